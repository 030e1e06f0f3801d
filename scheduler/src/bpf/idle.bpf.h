/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Idle CPUs: which there are, and the search for one.
 *
 * Each LLC has words of bits, one per idle CPU, alone on their cache lines. A
 * search reads the words of the wakee's LLC, so it costs as much as there are
 * idle CPUs, not as there are CPUs. To claim a CPU is to clear its bit: of two
 * wakers that want the same CPU one gets it. A claimed CPU that finds nothing
 * to run sets its bit again.
 *
 * When the bits change is a matter of policy, since it is the writing that can
 * cost more than the search saves:
 *   mask       set when a CPU goes idle, cleared when it leaves idle or is claimed
 *   tick-mask  set when a CPU goes idle, cleared by the first tick that finds it
 *              busy, or when it is claimed or found busy by a search
 *   scan       there are no bits; every CPU of the LLC is looked at
 *   builtin    the kernel's own masks and search
 */
#pragma once

#include "heddle.bpf.h"
#include "topology.bpf.h"

const volatile enum idle_policy idle_policy = IDLE_MASK;

/* Look beyond the LLC at wakeup, in the rest of the node. */
const volatile bool sis_node;

/* What cpu_ctx::idle says. */
enum idle_state { STATE_BUSY, STATE_IDLE, STATE_CLAIMED };

/* How far a search goes. */
enum reach { REACH_LLC, REACH_NODE, REACH_MACHINE };

struct cpu_word idle_words[MAX_WORDS];

/* CPUs that run a SCHED_IDLE task: as good as idle for any other task. */
struct cpu_word sched_idle_words[MAX_WORDS];

static __always_inline bool idle_is_builtin(void)
{
	return idle_policy == IDLE_BUILTIN;
}

static __always_inline bool idle_has_mask(void)
{
	return idle_policy == IDLE_MASK || idle_policy == IDLE_TICK_MASK;
}

static __always_inline u32 idle_state_of(u32 cpu)
{
	return *(volatile u32 *)&cpu_ctx(cpu)->idle;
}

/* ops.update_idle: this CPU goes idle. A full barrier, see recheck_offers(). */
static __always_inline void idle_enter(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (idle_is_builtin() || c->offline)
		return;
	__sync_lock_test_and_set(&c->idle, STATE_IDLE);
	if (idle_has_mask())
		word_set(word_in(idle_words, at->word), at->bit);
}

/* ops.update_idle: this CPU leaves idle. */
static __always_inline void idle_exit(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	if (idle_is_builtin())
		return;
	cpu_ctx(cpu)->idle = STATE_BUSY;
	if (idle_policy == IDLE_MASK)
		word_clear(word_in(idle_words, at->word), at->bit);
}

/* ops.tick: this CPU is busy. */
static __always_inline void idle_tick(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	if (idle_policy == IDLE_TICK_MASK)
		word_clear(word_in(idle_words, at->word), at->bit);
}

/* Do the bits say that @cpu can be claimed? For the debug dump. */
static __always_inline bool idle_is_known(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	return word_test(word_in(idle_words, at->word), at->bit);
}

/*
 * ops.dispatch found nothing. If this CPU idled already, ops.update_idle is not
 * called again: give back a claim that came to nothing. The same makes known
 * the CPUs that idle when the scheduler starts.
 */
static __always_inline void idle_stays(u32 cpu, const struct task_struct *prev)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (idle_is_builtin() || prev ||
	    !(bpf_get_current_task_btf()->flags & PF_IDLE))
		return;
	if (c->idle == STATE_CLAIMED ||
	    (idle_has_mask() && c->idle == STATE_IDLE && !idle_is_known(cpu)))
		count(idle_claim_false);
	idle_enter(cpu);
}

/* A CPU goes offline: it can no longer be claimed. */
static __always_inline void idle_offline(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	cpu_ctx(cpu)->idle = STATE_BUSY;
	word_clear(word_in(idle_words, at->word), at->bit);
	word_clear(word_in(sched_idle_words, at->word), at->bit);
}

/* ops.running: does this CPU run a SCHED_IDLE task now? */
static __always_inline void idle_note_running(u32 cpu, struct cpu_ctx *c,
					      bool sched_idle)
{
	const volatile struct cpu_place *at = place_of(cpu);
	struct cpu_word *word = word_in(sched_idle_words, at->word);

	if (c->curr_idle == sched_idle || idle_is_builtin())
		return;
	if (sched_idle)
		word_set(word, at->bit);
	else
		word_clear(word, at->bit);
}

/*
 * Every CPU of @word, one by one. Global, so that the verifier looks at it once
 * by itself: in its callers, 6.18's went through each CPU anew for each state.
 */
__noinline u64 scan_word(u32 word)
{
	u64 idle = 0;
	u32 bit;

	bpf_for(bit, 0, word_layout_of(word)->nr_cpus) {
		count(idle_examined);
		if (idle_state_of(cpu_at_place(word, bit)) == STATE_IDLE)
			idle |= 1ULL << (bit & 63);
	}
	return idle;
}

/* The CPUs of @word that seem to idle. */
static __always_inline u64 idle_in_word(u32 word)
{
	if (idle_policy == IDLE_SCAN)
		return scan_word(word);
	return word_read(word_in(idle_words, word));
}

/* Claim @cpu, bit @bit of @word, for a task that may run there. */
static __always_inline bool claim(u32 word, u32 bit, u32 cpu)
{
	if (idle_policy == IDLE_SCAN)
		return __sync_val_compare_and_swap(&cpu_ctx(cpu)->idle,
						   STATE_IDLE,
						   STATE_CLAIMED) == STATE_IDLE;
	if (!word_clear(word_in(idle_words, word), bit))
		return false;
	if (idle_policy == IDLE_TICK_MASK && idle_state_of(cpu) == STATE_BUSY) {
		count(idle_claim_false);
		return false;
	}
	return true;
}

/* Claim one of @cpus of @word for @p, the first from bit @start on and around. */
static __always_inline s32 claim_one_of(const struct task_struct *p, u32 word,
					u64 cpus, u32 start)
{
	while (cpus && can_loop) {
		u32 bit = bit_from(cpus, start);
		u32 cpu = cpu_at_place(word, bit);

		cpus &= ~(1ULL << (bit & 63));
		if (idle_policy != IDLE_SCAN)
			count(idle_examined);
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    claim(word, bit, cpu)) {
			count(idle_claim);
			return cpu;
		}
	}
	return -EBUSY;
}

/* The same of all idle CPUs of @word, of idle cores first. */
static __always_inline s32 claim_in_word(const struct task_struct *p, u32 word,
					 u64 idle, u32 start)
{
	const volatile struct word_layout *layout = word_layout_of(word);
	u64 cores = idle_cores(idle, layout->core_starts, layout->core_ends);
	s32 cpu = claim_one_of(p, word, cores, start);

	if (cpu >= 0)
		return cpu;
	return claim_one_of(p, word, idle & ~cores, start);
}

/* The same of the words that are within @reach of @near, but not nearer. */
static s32 claim_at(const struct task_struct *p, s32 near, enum reach reach)
{
	const volatile struct cpu_place *at = place_of(near);
	u32 first = at->llc_first, end = at->llc_end;
	u32 nearer = at->word, nearer_end = at->word + 1, word;

	if (reach >= REACH_NODE) {
		nearer = first;
		nearer_end = end;
		first = at->node_first;
		end = at->node_end;
	}
	if (reach >= REACH_MACHINE) {
		nearer = first;
		nearer_end = end;
		first = 0;
		end = nr_words;
	}
	if (end - first == nearer_end - nearer)
		return -EBUSY;
	bpf_for(word, first, end) {
		u64 idle;
		s32 cpu;

		if (word >= nearer && word < nearer_end)
			continue;
		idle = idle_in_word(word);
		if (!idle)
			continue;
		cpu = claim_in_word(p, word, idle, at->bit);
		if (cpu >= 0)
			return cpu;
	}
	return -EBUSY;
}

/*
 * The word of @near: @near itself if its core idles, an idle core, @near, its
 * neighbours.
 */
static __always_inline s32 claim_in_own_word(const struct task_struct *p,
					     s32 near)
{
	const volatile struct cpu_place *at = place_of(near);
	u64 idle = idle_in_word(at->word);

	if (!idle)
		return -EBUSY;
	if ((idle & at->core) == at->core) {
		s32 cpu = claim_one_of(p, at->word, 1ULL << (at->bit & 63),
				       at->bit);

		if (cpu >= 0)
			return cpu;
	}
	return claim_in_word(p, at->word, idle, at->bit);
}

/* A CPU of the LLC of @near that only runs a SCHED_IDLE task, for another. */
static __always_inline s32 claim_sched_idle(const struct task_struct *p,
					    s32 near)
{
	const volatile struct cpu_place *at = place_of(near);
	struct cpu_word *word = word_in(sched_idle_words, at->word);
	u64 cpus = word_read(word);

	if (!cpus || task_is_idle_policy(p))
		return -EBUSY;
	while (cpus && can_loop) {
		u32 bit = bit_from(cpus, at->bit);
		u32 cpu = cpu_at_place(at->word, bit);

		cpus &= ~(1ULL << (bit & 63));
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    word_clear(word, bit)) {
			count(sched_idle_claim);
			return cpu;
		}
	}
	return -EBUSY;
}

/*
 * Find and claim an idle CPU for @p as near to @near as there is: in its LLC,
 * in its node, anywhere, as far as @reach. Negative if there is none.
 */
static __always_inline s32 claim_idle(const struct task_struct *p, s32 near,
				      enum reach reach)
{
	s32 cpu = claim_in_own_word(p, near);

	if (cpu < 0)
		cpu = claim_at(p, near, REACH_LLC);
	if (cpu < 0 && reach >= REACH_NODE)
		cpu = claim_at(p, near, REACH_NODE);
	if (cpu < 0 && reach >= REACH_MACHINE)
		cpu = claim_at(p, near, REACH_MACHINE);
	return cpu;
}

/*
 * The kernel's search at wakeup: an idle core before an idle sibling, @prev_cpu
 * before its LLC before the rest.
 *
 * SCX_WAKE_SYNC is masked: the built-in policy would put the wakee behind its
 * waker while other CPUs idle.
 */
static __always_inline s32 claim_builtin(struct task_struct *p, s32 prev_cpu,
					 u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu;

	wake_flags &= ~(u64)SCX_WAKE_SYNC;
	if (__COMPAT_HAS_scx_bpf_select_cpu_and)
		return scx_bpf_select_cpu_and(p, prev_cpu, wake_flags,
					      p->cpus_ptr, 0);
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	return is_idle ? cpu : -EBUSY;
}

/* A new task may start anywhere: nothing ties it to a CPU's caches yet. */
static __always_inline enum reach wake_reach(u64 wake_flags)
{
	if (wake_flags & SCX_WAKE_FORK)
		return REACH_MACHINE;
	return sis_node ? REACH_NODE : REACH_LLC;
}

/* ops.select_cpu: an idle CPU for @p, claimed, or negative. */
static __always_inline s32 idle_for_wakee(struct task_struct *p, s32 prev_cpu,
					  u64 wake_flags)
{
	if (idle_is_builtin())
		return claim_builtin(p, prev_cpu, wake_flags);
	count(idle_search);
	return claim_idle(p, prev_cpu, wake_reach(wake_flags));
}

/* Later than ops.select_cpu: the same for a @p that waits, or will, on @cpu. */
static __always_inline s32 idle_for_waiter(const struct task_struct *p, s32 cpu,
					   enum reach reach)
{
	if (idle_is_builtin())
		return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	return claim_idle(p, cpu, reach);
}

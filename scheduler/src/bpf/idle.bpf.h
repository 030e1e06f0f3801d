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

#include "burst.bpf.h"
#include "heddle.bpf.h"
#include "topology.bpf.h"

const volatile enum idle_policy idle_policy = IDLE_MASK;

/* Look beyond the LLC at wakeup, in the rest of the node. */
const volatile bool sis_node;

/* Cores have several threads. Set by the loader. */
const volatile bool has_smt;

/* CPUs differ in priority, and are seated in that order. Set by the loader. */
const volatile bool cpus_differ;

/* What cpu_ctx::idle says. */
enum idle_state { STATE_BUSY, STATE_IDLE, STATE_CLAIMED };

/* How far a search goes. */
enum reach { REACH_LLC, REACH_NODE, REACH_MACHINE };

struct cpu_word idle_words[MAX_WORDS];

/* CPUs that run a SCHED_IDLE task: as good as idle for any other task. */
struct cpu_word sched_idle_words[MAX_WORDS];

/* There has been such a CPU: as a rule there is none to look for. */
bool sched_idle_seen;

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

	if (c->offline)
		return;
	c->local_pending = false;
	__sync_lock_test_and_set(&c->idle, STATE_IDLE);
	if (idle_has_mask())
		word_set(word_in(idle_words, at->word), at->own);
}

/* ops.update_idle: this CPU leaves idle. */
static __always_inline void idle_exit(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	cpu_ctx(cpu)->idle = STATE_BUSY;
	if (idle_policy == IDLE_MASK)
		word_clear(word_in(idle_words, at->word), at->own);
}

/* ops.tick: this CPU is busy. */
static __always_inline void idle_tick(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	if (idle_policy == IDLE_TICK_MASK)
		word_clear(word_in(idle_words, at->word), at->own);
}

/* Do the bits say that @cpu can be claimed? For the debug dump. */
static __always_inline bool idle_is_known(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	return word_test(word_in(idle_words, at->word), at->own);
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
	word_clear(word_in(idle_words, at->word), at->own);
	word_clear(word_in(sched_idle_words, at->word), at->own);
}

/*
 * ops.running: does this CPU run a SCHED_IDLE task now? Each such task sets the
 * bit anew, since the wakee that it was claimed for may be elsewhere.
 */
static __always_inline void idle_note_running(u32 cpu, struct cpu_ctx *c,
					      bool sched_idle)
{
	const volatile struct cpu_place *at;
	struct cpu_word *word;

	if (idle_is_builtin() || (!c->curr_idle && !sched_idle))
		return;
	at = place_of(cpu);
	word = word_in(sched_idle_words, at->word);
	if (!sched_idle) {
		word_clear(word, at->own);
	} else if (!word_test(word, at->own)) {
		sched_idle_seen = true;
		word_set(word, at->own);
	}
}

/*
 * The functions of the search that loop are global: the verifier looks at each
 * of them by itself, once, and not anew for each state of each caller.
 */

/* What a search looks for. */
enum sought {
	SOUGHT_CORE, /* a CPU of an idle core */
	SOUGHT_CPU, /* an idle CPU */
	SOUGHT_SCHED_IDLE, /* a CPU that runs nothing but a SCHED_IDLE task */
};

/* Every CPU of @word, one by one: those that idle. */
__noinline u64 scan_word(u32 word)
{
	u64 idle = 0;
	u32 bit;

	bpf_for(bit, 0, word_layout_of(word)->nr_cpus) {
		count(idle_examined);
		if (idle_state_of(cpu_at_place(word, bit)) == STATE_IDLE)
			idle |= bit_of(bit);
	}
	return idle;
}

/*
 * One CPU of each idle core of @word, whose idle CPUs are @idle. Of the core of
 * @near it is @near.
 */
static __always_inline u64 cores_of(u64 idle, u32 word,
				    const volatile struct cpu_place *near)
{
	const volatile struct word_layout *layout = word_layout_of(word);
	u64 cores = whole_cores(idle, layout->core_starts, layout->core_ends);

	if (word == near->word && cores & near->core)
		cores = (cores & ~near->core) | near->own;
	return cores;
}

/* The cores of @word that idle, by the bits: one CPU of each. */
static __always_inline u64 idle_cores_of(u32 word)
{
	const volatile struct word_layout *layout = word_layout_of(word);
	u64 idle = word_read(word_in(idle_words, word));

	return whole_cores(idle, layout->core_starts, layout->core_ends);
}

/* Are other threads of the core at @at busy? */
static __always_inline bool siblings_busy(const volatile struct cpu_place *at)
{
	u64 idle = word_read(word_in(idle_words, at->word));

	return at->core & ~at->own & ~idle;
}

/*
 * Is the place at @at, if its CPU idles, as good as any that idles in its LLC? No, where
 * that cannot be told by one word.
 */
static __always_inline bool is_best_place(const volatile struct cpu_place *at)
{
	if (!cpus_differ)
		return true;
	if (siblings_busy(at))
		return false;
	if (!at->class)
		return true;
	return at->llc_words == bit_of(at->word) &&
	       !(idle_cores_of(at->word) &
		 ~slower_than(at->word, at->class - 1));
}

/* The CPUs of @word that seem to idle, or to run SCHED_IDLE tasks only. */
static __always_inline u64 candidates_in(u32 word, enum sought sought)
{
	if (sought == SOUGHT_SCHED_IDLE)
		return word_read(word_in(sched_idle_words, word));
	if (idle_policy == IDLE_SCAN)
		return scan_word(word);
	return word_read(word_in(idle_words, word));
}

/* Claim @cpu, which is @bit of @word, for what it was @sought for. */
static __always_inline bool claim(u32 word, u64 bit, u32 cpu,
				  enum sought sought)
{
	if (sought == SOUGHT_SCHED_IDLE)
		return word_clear(word_in(sched_idle_words, word), bit);
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
static __always_inline s32 claim_one_of(const struct task_struct *p, u64 cpus,
					u32 word, u32 start, enum sought sought)
{
	while (cpus && can_loop) {
		u32 bit = bit_from(cpus, start);
		u32 cpu = cpu_at_place(word, bit);

		cpus &= ~bit_of(bit);
		if (idle_policy != IDLE_SCAN)
			count(idle_examined);
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    claim(word, bit_of(bit), cpu, sought))
			return cpu;
	}
	return -EBUSY;
}

/*
 * Where to start among @cpus of @word: at the core of @near, for the caches, and
 * because a parent that has no core to give its child soon waits for it, as a rule,
 * and leaves it its own. Where CPUs differ, only if none of a better class is among
 * them; else at the best.
 */
static __always_inline u32 first_seat(u64 cpus, u32 word,
				      const volatile struct cpu_place *near)
{
	u32 own = __builtin_ctzll(near->core);

	if (!cpus_differ)
		return own;
	if (word != near->word || !(cpus & near->core))
		return 0;
	return place_of(cpu_at_place(word, __builtin_ctzll(cpus)))->class <
			       near->class
		       ? 0
		       : own;
}

/* Of @words, those with CPUs that idle, by the bits. */
__noinline u64 words_idling(u64 words)
{
	u64 idling = 0;

	while (words && can_loop) {
		u32 word = __builtin_ctzll(words);

		words &= words - 1;
		if (word_read(word_in(idle_words, word)))
			idling |= bit_of(word);
	}
	return idling;
}

/*
 * Claim for @p a CPU such as is @sought in one of @words: in their order, from that
 * of @near on and around. -ENOENT: none idles in any of them. -EBUSY: none of those
 * that idle is such a one, or is to be had.
 *
 * The verifier of 6.18 gives up on this loop with its two conditions in the other
 * order ("global subprog unexpected regs"), with --idle scan only.
 */
__noinline s32 claim_at(const struct task_struct *p __arg_trusted, u32 near,
			u64 words, enum sought sought)
{
	const volatile struct cpu_place *at = place_of(near);
	s32 cpu = -ENOENT;

	while (words && can_loop) {
		u32 word = bit_from(words, at->word);
		u64 cpus;

		words &= ~bit_of(word);
		cpus = candidates_in(word, sought);
		if (!cpus)
			continue;
		if (sought == SOUGHT_CORE)
			cpus = cores_of(cpus, word, at);
		cpu = claim_one_of(p, cpus, word, first_seat(cpus, word, at),
				   sought);
		if (cpu >= 0)
			break;
	}
	return cpu;
}

/* The words within @reach of @cpu. */
static __always_inline u64 words_within(u32 cpu, enum reach reach)
{
	const volatile struct cpu_place *at = place_of(cpu);

	switch (reach) {
	case REACH_LLC:
		return at->llc_words;
	case REACH_NODE:
		return at->node_words;
	default:
		return all_words;
	}
}

/*
 * The words within @reach of @cpu that a search has to look at. Where no CPU idles,
 * this is all of it: its steps would each find out anew.
 */
static __always_inline u64 words_to_search(u32 cpu, enum reach reach)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 words = words_within(cpu, reach), others;

	if (!idle_has_mask() || word_read(word_in(idle_words, at->word)))
		return words;
	others = words & ~bit_of(at->word);
	return others ? words_idling(others) : 0;
}

/* The same as claim_at(), as near to @near as there is: in its LLC, its node, anywhere. */
static __always_inline s32 claim_nearest(const struct task_struct *p, u32 near,
					 u64 words, enum sought sought)
{
	s32 found = -ENOENT;
	u32 step;

	for (step = REACH_LLC; step <= REACH_MACHINE && found < 0; step++) {
		u64 within = words & words_within(near, step);
		s32 cpu = within ? claim_at(p, near, within, sought) : -ENOENT;

		if (cpu != -ENOENT)
			found = cpu;
		words ^= within;
	}
	return found;
}

/*
 * Claim for @p an idle CPU of @words: idle cores come before idle siblings.
 */
static __always_inline s32 claim_idle(const struct task_struct *p, u32 near,
				      u64 words)
{
	const volatile struct cpu_place *at = place_of(near);
	s32 cpu = -EBUSY;

	/* Within one word, a look tells whether there is a core to search for. */
	if (words != bit_of(at->word) || !idle_has_mask() ||
	    idle_cores_of(at->word))
		cpu = claim_nearest(p, near, words, SOUGHT_CORE);
	if (cpu == -EBUSY && has_smt)
		cpu = claim_nearest(p, near, words, SOUGHT_CPU);
	if (cpu >= 0)
		count(idle_claim);
	return cpu;
}

/*
 * Claim for a wakee @p a CPU of @words that is near its caches: @near, where it ran before,
 * then its LLC, an idle core before an idle thread. Where CPUs differ, a better one is worth
 * more than what L1 and L2 hold: @near comes first there if none is better.
 */
static __always_inline s32 claim_near(const struct task_struct *p, u32 near,
				      u64 words, u32 this_cpu)
{
	const volatile struct cpu_place *at = place_of(near);

	words &= at->llc_words;
	if (words && idle_has_mask() && is_best_place(at)) {
		count_on(this_cpu, idle_examined);
		if (bpf_cpumask_test_cpu(near, p->cpus_ptr) &&
		    claim(at->word, at->own, near, SOUGHT_CPU)) {
			count_on(this_cpu, idle_claim);
			return near;
		}
	}
	return claim_idle(p, near, words);
}

/* A new task may start anywhere: nothing ties it to a CPU's caches yet. */
static __always_inline enum reach wake_reach(u64 wake_flags)
{
	if (wake_flags & SCX_WAKE_FORK)
		return REACH_MACHINE;
	return sis_node ? REACH_NODE : REACH_LLC;
}

/*
 * Rather than wait, a task goes as far as there is an idle CPU: no CPU may idle
 * beside it. Switched off along with the search beyond the LLC.
 */
static __always_inline enum reach wait_reach(void)
{
	return sis_node ? REACH_MACHINE : REACH_LLC;
}

/* A CPU that only runs a SCHED_IDLE task, which any other @p preempts there. */
static __always_inline s32 claim_sched_idle(const struct task_struct *p,
					    u32 near, u64 wake_flags)
{
	s32 cpu;

	if (!sched_idle_seen || task_is_idle_policy(p))
		return -ENOENT;
	cpu = claim_nearest(p, near, words_within(near, wake_reach(wake_flags)),
			    SOUGHT_SCHED_IDLE);
	/* Its bit is not cleared when another class takes it. */
	if (cpu >= 0 && is_taken(cpu))
		return -EBUSY;
	if (cpu >= 0)
		count(sched_idle_claim);
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

/*
 * ops.select_cpu, on @this_cpu: an idle CPU for @p within @reach of @near, claimed, or
 * negative.
 */
static __always_inline s32 idle_for_wakee(struct task_struct *p, s32 near,
					  u32 this_cpu, enum reach reach,
					  u64 wake_flags)
{
	u64 words;
	s32 cpu;

	if (idle_is_builtin())
		return claim_builtin(p, near, wake_flags);
	count_on(this_cpu, idle_search);
	words = words_to_search(near, reach);
	if (!words)
		return -ENOENT;
	if (wake_flags & SCX_WAKE_TTWU) {
		cpu = claim_near(p, near, words, this_cpu);
		if (cpu >= 0)
			return cpu;
		words &= ~words_within(near, REACH_LLC);
	}
	return claim_idle(p, near, words);
}

/*
 * Later than ops.select_cpu, for one that waits, or will, on @cpu: the words that a
 * search has to look at, or nothing if no CPU idles within @reach.
 */
static __always_inline u64 words_for_waiter(s32 cpu, enum reach reach)
{
	return idle_is_builtin() ? ~0ULL : words_to_search(cpu, reach);
}

/* That search, of @words, for @p. */
static __always_inline s32 idle_among(const struct task_struct *p, s32 cpu,
				      u64 words)
{
	if (idle_is_builtin())
		return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	return words ? claim_idle(p, cpu, words) : -ENOENT;
}

static __always_inline s32 idle_for_waiter(const struct task_struct *p, s32 cpu,
					   enum reach reach)
{
	return idle_among(p, cpu, words_for_waiter(cpu, reach));
}

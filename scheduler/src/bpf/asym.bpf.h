/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Asymmetric packing: which kind of place a task runs on, where they differ: by
 * the speed of cores, or by whether a thread has its core to itself.
 *
 * The loader seats the CPUs of an LLC in the order of their priorities, so a
 * search for an idle core that starts at the first seat finds the best: fast
 * cores, then slow ones, then the second threads of cores that are busy. That
 * is placement at wakeup and fork.
 *
 * A task that runs already moves when a better CPU idles (policy/asym.h). The
 * idle CPU asks for it as it goes idle, or the tick of the busy one finds the
 * idle CPU. Either way the idle CPU is claimed and the task, out of a slice,
 * comes through ops.enqueue and goes there. What keeps tasks from moving about:
 * a move always is to a better place, the task must have run for ASYM_RUN_NS, and
 * a CPU takes part once in ASYM_INTERVAL_NS in the long run. A few moves at once
 * are free: tasks that start together find their places in several steps.
 *
 * Where all CPUs are equal, but cores have two threads, all that is left of it is
 * that a task which shares a core moves to one that idles. Where no place is better
 * than another, the mechanism is dead code.
 */
#pragma once

#include "heddle.bpf.h"
#include "idle.bpf.h"
#include "policy/asym.h"
#include "release.bpf.h"
#include "topology.bpf.h"

/* Some places are better than others. Set by the loader. */
const volatile bool asym_enabled;

/* Which CPUs an idle CPU asks for their task. Set by the loader, too. */
const volatile enum asym_rule asym_rule = ASYM_RULE_CORE;

/* Short runs end sooner than a move pays. */
#define ASYM_RUN_NS 1000000ULL

/* 20 moves a second. */
#define ASYM_INTERVAL_NS 50000000ULL

/* Moves that a CPU may take part in at once. */
#define ASYM_BURST 8

/* How often a CPU that goes idle looks for tasks to help. */
#define ASYM_LOOK_NS 500000ULL

struct asym_cpu {
	u64 moved_until; /* an interval on for each running task it gave or got */
	u64 looked_ns; /* when it went idle and looked, by scx_bpf_now() */
	u32 to; /* the claimed CPU that the running task goes to, + 1, or 0 */
} __attribute__((aligned(CACHE_LINE)));

struct asym_cpu asym_cpus[MAX_CPUS];

static __always_inline struct asym_cpu *asym_cpu(u32 cpu)
{
	return &asym_cpus[cpu & (MAX_CPUS - 1)];
}

/* The idle masks say which CPUs are busy: without them only placement is on. */
static __always_inline bool asym_sees_busy(void)
{
	return asym_enabled && idle_has_mask();
}

static __always_inline u64 seats_of(u32 word)
{
	return bits_below(word_layout_of(word)->nr_cpus);
}

/* What kind of place a task gets that goes to the idle @cpu. */
static __always_inline void asym_count_placement(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);

	if (!cpus_differ || !idle_has_mask())
		return;
	if (siblings_busy(at))
		count(asym_sibling);
	else if (at->class)
		count(asym_slower);
	else
		count(asym_fastest);
}

static __always_inline bool asym_rested(u32 cpu, u64 now)
{
	u64 burst = (ASYM_BURST - 1) * ASYM_INTERVAL_NS;

	return !vt_before(now + burst, asym_cpu(cpu)->moved_until);
}

static __always_inline void asym_charge(u32 cpu, u64 now)
{
	u64 *until = &asym_cpu(cpu)->moved_until;

	*until = (vt_before(*until, now) ? now : *until) + ASYM_INTERVAL_NS;
}

/*
 * May the idle @cpu be sent a running task? If another class has used it lately, the task
 * is safe only in its queue (release.bpf.h), and would run on where it is.
 */
static __always_inline bool asym_may_get(u32 cpu, u64 now)
{
	return asym_rested(cpu, now) && !may_be_kept(cpu);
}

/* May the task that runs on @cpu be moved? */
static __always_inline bool asym_may_give(u32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	return c->running && !c->curr_pinned && !asym_cpu(cpu)->to &&
	       vt_before(c->curr_since + ASYM_RUN_NS, now) &&
	       asym_rested(cpu, now);
}

/*
 * Have the task that runs on @from come to @to, which is claimed. False if
 * @from is asked already.
 */
static __always_inline bool asym_ask(u32 from, u32 to, u64 now)
{
	if (__sync_val_compare_and_swap(&asym_cpu(from)->to, 0, to + 1))
		return false;
	asym_charge(from, now);
	asym_charge(to, now);
	return true;
}

/*
 * The CPUs of @word whose task would run better on the idle CPU at @at.
 * @sibling_busy: another thread of @at's core is busy.
 */
static __always_inline u64 asym_candidates(u32 word,
					   const volatile struct cpu_place *at,
					   bool sibling_busy)
{
	const volatile struct word_layout *layout = word_layout_of(word);
	struct asym_view view = {
		.busy = seats_of(word) & ~word_read(word_in(idle_words, word)),
		.slower = slower_than(word, at->class),
		.starts = layout->core_starts,
		.ends = layout->core_ends,
		.smt = at->core & (at->core - 1),
		.sibling_busy = sibling_busy,
	};

	return asym_helped(asym_rule, &view);
}

/*
 * This CPU idles: ask for one of the tasks that run on @cpus of @word, of the
 * slowest first.
 */
static __always_inline bool asym_ask_one_of(u64 cpus, u32 word, u32 cpu,
					    u64 now)
{
	const volatile struct cpu_place *at = place_of(cpu);
	struct cpu_word *own = word_in(idle_words, at->word);

	while (cpus && can_loop) {
		u32 bit = 63 - __builtin_clzll(cpus);
		u32 from = cpu_at_place(word, bit);

		cpus &= ~bit_of(bit);
		if (from == cpu || !asym_may_give(from, now))
			continue;
		if (!word_clear(own, at->own))
			return true; /* somebody sends a task here */
		if (!asym_ask(from, cpu, now)) {
			word_set(own, at->own);
			continue;
		}
		kick(from, SCX_KICK_PREEMPT);
		count(asym_help);
		return true;
	}
	return false;
}

/* This CPU idles. Never beyond its NUMA node. Global, as it loops. */
__noinline int asym_look(u32 cpu, u64 now)
{
	const volatile struct cpu_place *at = place_of(cpu);
	bool sibling_busy = siblings_busy(at);
	u64 words;

	/* Such a place is no better than any other then: spare the walk. */
	if (!cpus_differ && sibling_busy)
		return 0;
	if (!asym_may_get(cpu, now))
		return 0;
	for (words = at->node_words; words && can_loop; words &= words - 1) {
		u32 word = __builtin_ctzll(words);
		u64 cpus = asym_candidates(word, at, sibling_busy);

		if (asym_ask_one_of(cpus, word, cpu, now))
			break;
	}
	return 0;
}

/*
 * ops.update_idle: this CPU has gone idle. A CPU that does so often will not idle
 * for long, and each look would delay the next wakeup. If it stays idle for once,
 * the tick of a task that would be better off here finds it.
 */
static __always_inline void asym_help_others(u32 cpu)
{
	u64 now;

	if (!asym_sees_busy())
		return;
	now = scx_bpf_now();
	if (ns_since(asym_cpu(cpu)->looked_ns, now) < ASYM_LOOK_NS)
		return;
	asym_cpu(cpu)->looked_ns = now;
	asym_look(cpu, now);
}

/* Of idle cores of @word, one CPU each: a thread of each that may be sent a task. */
static __always_inline u64 asym_open_in(u64 cores, u32 word, u64 now)
{
	u64 open = 0;

	while (cores && can_loop) {
		u32 bit = __builtin_ctzll(cores);
		u32 cpu = cpu_at_place(word, bit);
		u64 sibling = place_of(cpu)->core & ~bit_of(bit);

		cores &= cores - 1;
		if (asym_may_get(cpu, now))
			open |= bit_of(bit);
		else if (sibling &&
			 asym_may_get(cpu_at_place(word,
						   __builtin_ctzll(sibling)),
				      now))
			open |= sibling & -sibling;
	}
	return open;
}

/*
 * The idle cores of @word that are a better place than that of the CPU at @at.
 * @sibling_busy: another thread of @at's core is busy.
 */
static __always_inline u64 asym_better_in(u32 word,
					  const volatile struct cpu_place *at,
					  bool sibling_busy)
{
	u64 idle = word_read(word_in(idle_words, word));
	u64 cores = cores_of(idle, word, at);

	if (sibling_busy)
		return cores;
	return at->class ? cores & ~slower_than(word, at->class - 1) : 0;
}

/* May @p run on any of @cpus of @word? */
static __always_inline bool allows_any(const struct task_struct *p, u64 cpus,
				       u32 word)
{
	while (cpus && can_loop) {
		u32 cpu = cpu_at_place(word, __builtin_ctzll(cpus));

		cpus &= cpus - 1;
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			return true;
	}
	return false;
}

/* Does a better CPU idle for @p, which runs on @cpu? */
__noinline bool asym_better_idles(const struct task_struct *p __arg_trusted,
				  u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	bool sibling_busy = siblings_busy(at);
	u64 words;

	if (!sibling_busy && !at->class)
		return false;
	for (words = at->node_words; words && can_loop; words &= words - 1) {
		u32 word = __builtin_ctzll(words);
		u64 cores = asym_better_in(word, at, sibling_busy);

		if (allows_any(p, cores, word))
			return true;
	}
	return false;
}

/* A better CPU for @p, which runs on @cpu, claimed; or negative. */
__noinline s32 asym_claim_better(const struct task_struct *p __arg_trusted,
				 u32 cpu, u64 now)
{
	const volatile struct cpu_place *at = place_of(cpu);
	bool sibling_busy = siblings_busy(at);
	s32 better = -EBUSY;
	u64 words;

	for (words = at->node_words; words && can_loop; words &= words - 1) {
		u32 word = __builtin_ctzll(words);
		u64 cores = asym_better_in(word, at, sibling_busy);

		cores = asym_open_in(cores, word, now);
		better = claim_one_of(p, cores, word, 0, SOUGHT_CORE);
		if (better >= 0)
			break;
	}
	return better;
}

/* ops.tick: @p runs on this CPU. */
static __always_inline void asym_tick(u32 cpu, struct task_struct *p)
{
	u64 now, runs;
	s32 to;

	if (!asym_sees_busy() || !asym_better_idles(p, cpu))
		return;
	now = scx_bpf_now();
	runs = ns_since(cpu_ctx(cpu)->curr_since, now);
	count_by(asym_better_idle_ns, runs < tick_ns ? runs : tick_ns);
	if (!asym_may_give(cpu, now))
		return;
	to = asym_claim_better(p, cpu, now);
	if (to < 0)
		return;
	if (!asym_ask(cpu, to, now)) {
		kick(to, 0);
		return;
	}
	scx_bpf_task_set_slice(p, 0);
	count(asym_flee);
}

/* Is the task that runs on this CPU to go elsewhere? */
static __always_inline bool asym_is_asked(u32 cpu)
{
	return asym_sees_busy() && *(volatile u32 *)&asym_cpu(cpu)->to;
}

/* Where the task that leaves this CPU is to go: asked for once only. */
static __always_inline s32 asym_take_request(u32 cpu)
{
	if (!asym_is_asked(cpu))
		return -ENOENT;
	return (s32)__sync_lock_test_and_set(&asym_cpu(cpu)->to, 0) - 1;
}

/* The task that was asked for has gone to sleep: let the idle CPU know. */
static __always_inline void asym_decline(u32 cpu)
{
	s32 to = asym_take_request(cpu);

	if (to >= 0)
		kick(to, 0);
}

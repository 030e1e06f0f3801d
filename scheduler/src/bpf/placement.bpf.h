/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placement: on which CPU a task that wakes up goes to run.
 *
 * A brief waker that is about to sleep hands its own CPU over. Else an idle CPU takes the
 * wakee past the queues, and if none idles, it joins the queue of the CPU where it ran
 * before, or of such a waker.
 */
#pragma once

#include "heddle.bpf.h"
#include "asym.bpf.h"
#include "bandwidth.bpf.h"
#include "burst.bpf.h"
#include "group_load.bpf.h"
#include "idle.bpf.h"
#include "release.bpf.h"
#include "runq.bpf.h"
#include "schedstat.bpf.h"
#include "spread.bpf.h"
#include "topology.bpf.h"

/*
 * A waker that runs for no longer than this at a time, on average, hands its CPU
 * over if it says that it will sleep. Option.
 */
const volatile u64 wake_sync_ns;

/* How many CPUs are tried for one that no other class has. */
#define UNTAKEN_TRIES 4

/*
 * Another class has @prev_cpu: a CPU of its LLC where @p may run and that none has, or
 * @prev_cpu, from where it is rescued. Global, so that the verifier looks at it once.
 */
__noinline s32 untaken_near(const struct task_struct *p __arg_trusted,
			    s32 prev_cpu)
{
	u32 try;

	bpf_for(try, 0, UNTAKEN_TRIES) {
		u32 other = random_cpu_of_llc(prev_cpu);

		if (!is_taken(other) &&
		    bpf_cpumask_test_cpu(other, p->cpus_ptr))
			return other;
	}
	return prev_cpu;
}

/*
 * Every CPU is busy: @prev_cpu, or another CPU of its LLC picked at random if
 * the queue there is shorter by more than the wakee itself. Looking at two
 * queues instead of one is what keeps the longest of them short (the power of
 * two choices, Mitzenmacher 1996).
 */
static __always_inline s32 shorter_queue(const struct task_struct *p,
					 s32 prev_cpu)
{
	u32 waiting = cpu_ctx(prev_cpu)->nr_queued;
	s32 other;

	if (is_taken(prev_cpu))
		return untaken_near(p, prev_cpu);
	if (waiting < 2)
		return prev_cpu;
	other = random_cpu_of_llc(prev_cpu);
	if (cpu_ctx(other)->nr_queued + 1 < waiting &&
	    bpf_cpumask_test_cpu(other, p->cpus_ptr))
		return other;
	return prev_cpu;
}

/*
 * Does nobody but its wakee @p wait for the CPU that the waker is about to leave, @cpu? Only
 * within the LLC of @prev_cpu, for the wakee's caches.
 */
static __always_inline bool leaves_to(const struct task_struct *p, s32 cpu,
				      s32 prev_cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	return !c->nr_queued && !c->local_pending &&
	       place_of(cpu)->llc_first == place_of(prev_cpu)->llc_first &&
	       bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/*
 * Every CPU is busy, and the waker, on @cpu, is about to sleep: do no more tasks come before
 * @p there than on @prev_cpu? Then the two are better off on one CPU, with one set of caches.
 */
static __always_inline bool joins_waker(const struct task_struct *p, s32 cpu,
					s32 prev_cpu)
{
	u32 running_on_prev = 1;

	return cpu_ctx(cpu)->nr_queued <=
		       cpu_ctx(prev_cpu)->nr_queued + running_on_prev &&
	       place_of(cpu)->llc_first == place_of(prev_cpu)->llc_first &&
	       bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/*
 * Does the task that runs on this CPU do so briefly, as a rule? If it says that it will
 * sleep, that is soon then.
 */
static __always_inline bool waker_is_brief(void)
{
	return !task_is_hog(bpf_get_current_task_btf(), wake_sync_ns);
}

/* Does @p get a faster core than that of @cpu, where its waker runs? */
static __always_inline bool better_beyond_waker(const struct task_struct *p,
						u32 cpu)
{
	return cpus_differ && idle_has_mask() &&
	       !is_best_place(place_of(cpu)) && asym_better_idles(p, cpu);
}

/*
 * The waker, on @cpu, hands its CPU over: @p is the next to run there, past the queue. To
 * wake another CPU, and that one's way out of idle, take longer than a brief waker goes on.
 */
static __always_inline void hand_over_to(struct task_struct *p, s32 cpu,
					 u64 wake_flags)
{
	struct standing who = standing_of(p);
	struct cpu_ctx *c = cpu_ctx(cpu);

	c->local_pending = true;
	load_join(cpu, p, &who); /* by the debts of the CPU where it ran */
	scx_bpf_task_set_dsq_vtime(p, vt_key(sleeper_vt(p, &who, cpu, c, c->clock),
					     cpu));
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
	if (wake_flags & SCX_WAKE_TTWU)
		schedstat_ttwu();
	count_on(cpu, handed_over);
}

/*
 * The waker, on @cpu and about to sleep, is in another LLC of @prev_cpu's node, and has what its
 * wakee @p is going to read: the two belong together, as by wake_affine() of EEVDF. If that LLC
 * is busy, @p waits behind its waker, however many do: hackbench at 1.25 on two LLCs takes 18 to
 * 22 % longer than under EEVDF where it goes home if more wait here, and 8 % less as it is.
 */
static __always_inline bool waker_calls(const struct task_struct *p, s32 cpu,
					s32 prev_cpu)
{
	const volatile struct cpu_place *to = place_of(cpu);
	const volatile struct cpu_place *at = place_of(prev_cpu);

	return sis_node && to->llc_first != at->llc_first &&
	       to->node_first == at->node_first &&
	       bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/* ops.select_cpu: not called for tasks that may run on one CPU only. */
static __always_inline s32 place_wakee(struct task_struct *p, s32 prev_cpu,
				       u64 wake_flags)
{
	s32 this_cpu = bpf_get_smp_processor_id(), near = prev_cpu, cpu;
	bool sync = (wake_flags & SCX_WAKE_SYNC) && cpu_ctx(this_cpu)->running;
	bool called;

	cpu_ctx(this_cpu)->sync_wakee = sync ? p->pid : 0;
	if (is_stopped(p, true))
		return prev_cpu;
	if (sync && waker_is_brief() && leaves_to(p, this_cpu, prev_cpu) &&
	    !better_beyond_waker(p, this_cpu)) {
		hand_over_to(p, this_cpu, wake_flags);
		return this_cpu;
	}
	called = sync && waker_calls(p, this_cpu, prev_cpu);
	if (called)
		near = this_cpu;
	cpu = idle_for_wakee(p, spread_near(near, wake_flags), this_cpu,
			     called ? REACH_LLC : wake_reach(wake_flags),
			     wake_flags);
	if (cpu >= 0) {
		asym_count_placement(cpu);
		return cpu; /* where ops.enqueue finds nothing else to run */
	}
	cpu = claim_sched_idle(p, prev_cpu, wake_flags);
	if (cpu >= 0)
		return cpu; /* which @p preempts once it is queued there */
	if (called || (sync && joins_waker(p, this_cpu, prev_cpu)))
		return this_cpu;
	return shorter_queue(p, prev_cpu);
}

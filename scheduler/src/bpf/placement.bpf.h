/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placement: on which CPU a task that wakes up goes to run.
 *
 * An idle CPU takes it at once, past the queues, or its waker's if that is about to
 * sleep and no core idles. Otherwise it joins the queue of the CPU where it ran
 * before, or of such a waker.
 */
#pragma once

#include "heddle.bpf.h"
#include "asym.bpf.h"
#include "bandwidth.bpf.h"
#include "burst.bpf.h"
#include "idle.bpf.h"
#include "release.bpf.h"
#include "runq.bpf.h"
#include "schedstat.bpf.h"
#include "spread.bpf.h"
#include "topology.bpf.h"

/*
 * A waker that runs for no longer than this at a time, on average, hands its CPU
 * over: see place_wakee(). Option.
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
 * The waker, on @cpu, is about to sleep: nobody else waits there, so its wakee
 * runs sooner than behind whatever runs on @prev_cpu. Only within the LLC, for
 * the wakee's cache.
 */
static __always_inline bool waker_hands_over(const struct task_struct *p,
					     s32 cpu, s32 prev_cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	return !c->nr_queued && !c->local_pending &&
	       place_of(cpu)->llc_first == place_of(prev_cpu)->llc_first &&
	       bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/*
 * Does the task that runs on this CPU, @cpu, do so briefly, as a rule? If it says
 * that it will sleep, that is soon then.
 */
static __always_inline bool waker_is_brief(s32 cpu)
{
	return cpu_ctx(cpu)->running &&
	       !task_is_hog(bpf_get_current_task_btf(), wake_sync_ns);
}

/* @p goes on to @cpu past the queues. */
static __always_inline void place_directly(struct task_struct *p, s32 cpu,
					   u64 wake_flags)
{
	bound_sleeper(p);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
	if (wake_flags & SCX_WAKE_TTWU)
		schedstat_ttwu(cpu);
}

/*
 * Is @p better off elsewhere than on @cpu, which its brief waker is about to leave?
 *
 * While a core idles near, @p gets going sooner there. Beyond that another CPU is at
 * best the thread of a busy core. To wake it, to idle here and to do the same on the
 * way back costs the machine more than the little that the two would run at the same
 * time. EEVDF looks for no idle CPU then either, for any wakee (SIS_UTIL).
 *
 * Where CPUs differ, wakees do not come back to their own but go to the best that
 * idles. Pairs that have less than two cores each, which is so unless most cores
 * idle, then chase each other over all of them, with cold caches. So a pair stays
 * together, on a place that is as good as any that idles.
 */
static __always_inline bool better_beside_waker(const struct task_struct *p,
						u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 reach = words_within(cpu, wake_reach(0));

	if (!idle_has_mask())
		return true;
	if (cpus_differ)
		return most_cores_idle(at, reach) ||
		       (!is_best_place(at) && asym_better_idles(p, cpu));
	return idle_cores_of(at->word) || core_idles_in(reach);
}

/* ops.select_cpu: not called for tasks that may run on one CPU only. */
static __always_inline s32 place_wakee(struct task_struct *p, s32 prev_cpu,
				       u64 wake_flags)
{
	s32 this_cpu = bpf_get_smp_processor_id(), cpu;
	bool sync = wake_flags & SCX_WAKE_SYNC, hands_over, calls;

	cpu_ctx(this_cpu)->sync_wakee = sync ? p->pid : 0;
	if (is_stopped(p, true))
		return prev_cpu;
	hands_over = sync && waker_hands_over(p, this_cpu, prev_cpu);
	if (hands_over && waker_is_brief(this_cpu) &&
	    !better_beside_waker(p, this_cpu)) {
		cpu_ctx(this_cpu)->local_pending = true;
		place_directly(p, this_cpu, wake_flags);
		count_on(this_cpu, handed_over);
		return this_cpu;
	}
	calls = affine && waker_calls(this_cpu, prev_cpu, wake_flags);
	if (calls)
		prev_cpu = this_cpu;
	cpu = idle_for_wakee(p, spread_near(prev_cpu, wake_flags), this_cpu,
			     wake_flags, calls);
	if (cpu >= 0 && !is_taken(cpu)) {
		if (may_be_kept(cpu))
			cpu_ctx(cpu)->expected = p->pid;
		else
			place_directly(p, cpu, wake_flags);
		count_on(this_cpu, idle_direct);
		asym_count_placement(cpu);
		return cpu;
	}
	cpu = claim_sched_idle(p, prev_cpu, wake_flags);
	if (cpu >= 0)
		return cpu; /* which @p preempts once it is queued there */
	return hands_over ? this_cpu : shorter_queue(p, prev_cpu);
}

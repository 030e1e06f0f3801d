/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Dispatch: the CPU needs its next task. The order is: a waiting task that is much
 * heavier; the task that runs, if its turn is not over; the CPU's own queue; a fair
 * exchange with another CPU; another CPU's queue. With groups the exchange comes
 * before the CPU's own tasks; beside a SCHED_IDLE task, other CPUs' queues do.
 */
#pragma once

#include "heddle.bpf.h"
#include "asym.bpf.h"
#include "bandwidth.bpf.h"
#include "group_load.bpf.h"
#include "idle.bpf.h"
#include "pull.bpf.h"
#include "relief.bpf.h"
#include "rescue.bpf.h"
#include "reweigh.bpf.h"
#include "runq.bpf.h"
#include "schedstat.bpf.h"

/* @prev is at the end of its slice. */
static __always_inline void dispatch_slice_end(u32 cpu, struct cpu_ctx *c,
					       struct task_struct *prev)
{
	u64 vt = runq_charge(cpu, c, prev), next_vt = vt;
	bool keep = !c->yielded;

	c->yielded = false;
	if (bandwidth_slice_end(cpu, prev)) {
		/* Without a slice @prev is enqueued, see bandwidth_park(). */
		if (!runq_pick(cpu, c))
			pull_newidle(cpu);
		return;
	}
	if (asym_is_asked(cpu)) {
		/* Without a slice @prev is enqueued, see asym_move(). */
		runq_pick(cpu, c);
		return;
	}
	/* A CPU that runs a SCHED_IDLE task takes what one without would take. */
	if (c->curr_idle && !c->nr_queued && pull_newidle(cpu))
		return;
	if (runq_serve_heavier(cpu, c, true))
		return;
	if (c->nr_queued) {
		if (!runq_head(cpu, &next_vt))
			next_vt = vt;
		if (keep && keeps_running(vt, next_vt))
			next_vt = vt;
		else
			keep = false;
	}
	/* Groups' tasks differ so much that one elsewhere may come first. */
	if (cgroup_flat && exchange(cpu, c, next_vt))
		return;
	if (!keep && runq_pick(cpu, c))
		return;
	if (!cgroup_flat && !c->nr_queued && exchange(cpu, c, next_vt))
		return;
	runq_keep(cpu, c, prev, vt);
	schedstat_keep();
	load_settle(cpu);
}

/* Would dispatch_slice_end(), on @cpu, have the task that runs there go on? */
static __always_inline bool nobody_waits(u32 cpu, const struct cpu_ctx *c)
{
	return !c->nr_queued && !any_offer() && !any_quota() &&
	       !asym_is_asked(cpu) && !(cgroup_flat && reweighing_walks);
}

/*
 * ops.tick: the slice of @p, which runs on @cpu, may be over. While nobody waits, it
 * goes on without dispatch_slice_end(): a tick that goes through the scheduler leaves
 * softirqs to ksoftirqd besides, which then preempts @p.
 *
 * A CPU that goes offline is asked for nothing any more: without a slice, the kernel
 * thread that takes it down would be put behind the idle task, which nobody wakes
 * (balance_one() in kernel/sched/ext.c, with SCX_OPS_ENQ_LAST).
 */
static __always_inline void keep_alone(u32 cpu, struct task_struct *p)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (p->scx.slice || !(c->offline || nobody_waits(cpu, c)) ||
	    scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | cpu) > 0)
		return;
	runq_keep(cpu, c, p, runq_charge(cpu, c, p));
	load_settle(cpu);
}

/* ops.dispatch: @prev is the task that ran until now, if any. */
static __always_inline void dispatch_cpu(s32 cpu, struct task_struct *prev)
{
	bool slice_end = prev && (prev->scx.flags & SCX_TASK_QUEUED);
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (dispatch_in_vain(cpu))
		return;
	bandwidth_release(cpu, c);
	reweigh_waiting(cpu, c, slice_end);
	relieve(cpu, c);
	if (slice_end) {
		dispatch_slice_end(cpu, c, prev);
		return;
	}
	asym_decline(cpu);
	if (runq_pick(cpu, c))
		return;
	if (pull_newidle(cpu)) {
		/* It lets go of the rq lock: another class may have come meanwhile. */
		release_after(cpu);
		return;
	}
	/* Pulling lets go of the rq lock: a pinned task may have come meanwhile. */
	if (runq_pick(cpu, c))
		return;
	load_forgive(cpu);
	schedstat_idle(prev);
	idle_stays(cpu, prev);
}

/*
 * ops.yield: without a slice, @from comes to dispatch_slice_end() and gives way
 * to any task that waits here. It is not charged for what it gave up.
 */
static __always_inline bool yield_task(struct task_struct *from,
				       const struct task_struct *to)
{
	if (to)
		return false;
	cpu_ctx(cpu_of_task(from))->yielded = true;
	scx_bpf_task_set_slice(from, 0);
	return false;
}

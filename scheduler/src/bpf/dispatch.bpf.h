/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Dispatch: the CPU needs its next task. The order is: the task that runs, if its
 * turn is not over; the CPU's own queue; a fair exchange with another CPU; another
 * CPU's queue. With groups the exchange comes before the CPU's own tasks; beside a
 * SCHED_IDLE task, other CPUs' queues do.
 */
#pragma once

#include "heddle.bpf.h"
#include "asym.bpf.h"
#include "bandwidth.bpf.h"
#include "group_load.bpf.h"
#include "idle.bpf.h"
#include "pull.bpf.h"
#include "relief.bpf.h"
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
	struct cpu_ctx *c = cpu_ctx(cpu);

	bandwidth_release(cpu, c);
	reweigh_waiting(cpu);
	relieve(cpu, c);
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED)) {
		dispatch_slice_end(cpu, c, prev);
		return;
	}
	asym_decline(cpu);
	if (runq_pick(cpu, c) || pull_newidle(cpu))
		return;
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
	from->scx.slice = 0;
	return false;
}

/*
 * ops.update_idle: this CPU has just marked itself idle. A task that was queued
 * after pull_newidle() looked is offered by now, as a rule, or its enqueue sees this
 * CPU's idle bit. Between its look at the bits and the offer, and between the offer
 * and the insertion, which is the kernel's after ops.enqueue, lie some 100 ns each:
 * a task that falls in there waits for rescue_waiting(). One that was queued here, as
 * after a refused move, may be offered no more: another CPU, where it may not run, has
 * withdrawn it.
 */
static __always_inline void recheck_offers(s32 cpu)
{
	if (any_offer() || cpu_ctx(cpu)->nr_queued)
		kick(cpu, 0);
}

/*
 * ops.tick: the running task goes on while others wait. Renew the offer of them:
 * it may be lost (see recheck_offers(); or an affinity mask has widened), and where
 * the running task has much credit, it is long until the next insertion. If a CPU
 * idles all the same, wake it.
 */
static __always_inline void rescue_waiting(u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *head;
	s32 idle_cpu;

	if (!c->offered)
		return;
	head = __COMPAT_scx_bpf_dsq_peek(cpu);
	if (!head)
		return;
	offer(cpu);
	idle_cpu = idle_for_waiter(head, cpu, REACH_MACHINE);
	if (idle_cpu < 0)
		return;
	kick(idle_cpu, SCX_KICK_IDLE);
	count_by(wasted_idle_ns, tick_ns);
}

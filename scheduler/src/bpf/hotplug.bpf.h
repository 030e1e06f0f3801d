/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU hotplug, without a restart of the scheduler for CPUs that it knows.
 */
#pragma once

#include "heddle.bpf.h"
#include "bandwidth.bpf.h"
#include "group_load.bpf.h"
#include "idle.bpf.h"
#include "rescue.bpf.h"
#include "runq.bpf.h"
#include "timer.bpf.h"

/* From one kick of a CPU that goes offline to the next. */
#define LEAVE_NS 1000000ULL

static __always_inline void hotplug_online(s32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	struct cpu_ctx *c = cpu_ctx(cpu);

	/* It was offline when the loader laid out the CPUs: have it done again. */
	if (cpu_at_place(at->word, at->bit) != cpu)
		scx_bpf_exit(SCX_ECODE_ACT_RESTART | SCX_ECODE_RSN_HOTPLUG,
			     "CPU %d has come online for the first time", cpu);
	c->offline = false;
	c->running = false;
	c->local_pending = false;
}

/*
 * Is @cpu on its way out, from ops.cpu_offline until it has gone? If the kernel gives up
 * before, as 6.12 does for deadline tasks, it need not say so: its run queue is online again.
 */
static __always_inline bool is_leaving(u32 cpu)
{
	const struct cpumask *online;
	const struct rq *rq = NULL;
	bool leaves;

	if (!cpu_ctx(cpu)->offline)
		return false;
	if (&runqueues)
		rq = bpf_per_cpu_ptr(&runqueues, cpu);
	if (rq && rq->online)
		return false;
	online = scx_bpf_get_online_cpumask();
	leaves = bpf_cpumask_test_cpu(cpu, online);
	scx_bpf_put_cpumask(online);
	return leaves;
}

/*
 * Kick @cpu if it is leaving: then true. It waits until its run queue is empty, but looks
 * only as it switches tasks (balance_hotplug_wait() in kernel/sched/core.c): if another CPU
 * takes the last task out, nothing else has it look again. Global, so that the verifier
 * looks at it once.
 */
__noinline bool leave_kick(u32 cpu)
{
	if (!is_leaving(cpu))
		return false;
	/* Not kick(): this may be @cpu itself, which takes interrupts until it has gone. */
	scx_bpf_kick_cpu(cpu, 0);
	return true;
}

static int leave(void *map, u32 *id, struct timer_slot *slot)
{
	u32 cpu, nr_cpus = scx_bpf_nr_cpu_ids();
	bool again = false;

	timer_runs(slot);
	bpf_for(cpu, 0, nr_cpus)
		again |= leave_kick(cpu);
	if (again)
		timer_arm(TIMER_LEAVE, LEAVE_NS);
	return 0;
}

/*
 * The core calls ops.dispatch no more for a CPU that goes offline, but it still
 * runs what is on the CPU's local DSQ, and pushes each task away as soon as it
 * is picked, breaking its affinity where it must. So hand it the whole queue.
 * From 7.3 on the core does so itself; then the queue is empty here.
 *
 * The rq lock is not held here, so tasks may be queued meanwhile: enqueue_task()
 * lets them follow, and the count of the queue and its offer are left alone. Too
 * large a count is put right by runq_pick(); a zero would strand a task.
 */
static __always_inline void hotplug_offline(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	c->offline = true;
	idle_offline(cpu);
	load_forgive(cpu);
	c->parked = false; /* first: what is parked meanwhile sets it */
	hand_over(cpu);
	scx_bpf_kick_cpu(cpu, 0);
	timer_arm(TIMER_LEAVE, LEAVE_NS);
}

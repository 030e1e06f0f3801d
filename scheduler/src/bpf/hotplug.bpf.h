/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU hotplug, without a restart of the scheduler for CPUs that it knows.
 */
#pragma once

#include "heddle.bpf.h"
#include "bandwidth.bpf.h"
#include "group_load.bpf.h"
#include "idle.bpf.h"
#include "runq.bpf.h"
#include "timer.bpf.h"

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

static __always_inline void hand_over_queue(u64 dsq_id, s32 cpu)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, dsq_id, 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu,
				 0);
}

/* Put all that waits for @cpu on the CPU itself. The rq lock is not held. */
static __always_inline void hand_over(s32 cpu)
{
	hand_over_queue(cpu, cpu);
	if (cgroup_flat)
		hand_over_queue(PARK_DSQ + cpu, cpu);
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
	hand_over(cpu);
	c->parked = false; /* nor is anyone parked here from now on */
	scx_bpf_kick_cpu(cpu, 0);
}

/*
 * A CPU on its way out. The core calls ops.dispatch no more from when the CPU is
 * inactive, but ops.cpu_offline a grace period of RCU later (sched_cpu_deactivate()
 * in kernel/sched/core.c): more than 11 s were seen. Meanwhile it idles, and a task
 * that may not run elsewhere is stranded in its queue. No callback tells of it, so each tick
 * looks after one CPU; one that idles beside its queue, and STRANDED_NS later still,
 * is handed it.
 */
#define STRANDED_NS 1000000ULL

/* The CPU whose turn it was last to be looked after. */
u32 looked_after;

/* The CPU that was found so last, for TIMER_STRANDED. */
u32 stranded_cpu;

/* Does @cpu idle although tasks wait for it, or may again that were parked? */
static __always_inline bool is_stranded(u32 cpu)
{
	return idle_state_of(cpu) == STATE_IDLE &&
	       (scx_bpf_dsq_nr_queued(cpu) > 0 || cpu_ctx(cpu)->release);
}

/* ops.tick, of any CPU */
static __always_inline void hotplug_tick(void)
{
	u32 cpu = ++looked_after % scx_bpf_nr_cpu_ids();

	if (!is_stranded(cpu))
		return;
	count_by(wasted_idle_ns, tick_ns);
	stranded_cpu = cpu;
	timer_arm(TIMER_STRANDED, STRANDED_NS);
}

static int hand_over_stranded(void *map, u32 *id, struct timer_slot *slot)
{
	u32 cpu = stranded_cpu;

	timer_runs(slot);
	bpf_rcu_read_lock();
	if (is_stranded(cpu)) {
		hand_over(cpu);
		/* Older kernels do not wake it for that. */
		kick(cpu, 0);
	}
	bpf_rcu_read_unlock();
	return 0;
}

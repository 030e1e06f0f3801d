// SPDX-License-Identifier: GPL-2.0-only
/*
 * scx_heddle: a scheduler of per-CPU queues in virtual time, or of one queue in
 * the order of virtual deadlines.
 *
 * This file is the table of contents: the callbacks of sched_ext in the order
 * of a task's life, each handing on to the mechanism that decides.
 *
 *   policy/         arithmetic and decisions on plain numbers
 *   heddle.bpf.h    the state of a CPU, the options
 *   topology.bpf.h  sets of CPUs by distance
 *   timer.bpf.h     timers of the machine
 *   burst.bpf.h     how long tasks run at a time, of late
 *   idle.bpf.h      idle CPUs and the search for one
 *   spread.bpf.h    the NUMA node where a new task starts
 *   asym.bpf.h      CPUs of different speed: moving what runs to a better one
 *   cgroup.bpf.h    groups: which one a task is in, what it weighs there
 *   group_load.bpf.h  groups: the weights of their runnable tasks
 *   walk.bpf.h      groups: what each one's tasks weigh
 *   bandwidth.bpf.h groups: how much CPU time they may use
 *   stop.bpf.h      stopping a task where it holds no lock
 *   bandwidth_timer.bpf.h  the periods of that, and which tasks must stop
 *   runq.bpf.h      the queue and the clock of a CPU, charging
 *   reweigh.bpf.h   what a task weighs changes, or its group
 *   placement.bpf.h the CPU that a wakee goes to
 *   wakeq.bpf.h     the shared wake queue: the order in which wakees are pulled
 *   enqueue.bpf.h   queueing, and preemption at wakeup
 *   pull.bpf.h      work for a CPU that would idle, fairness between CPUs
 *   relief.bpf.h    a turn for tasks that wait too long
 *   crowd.bpf.h     short slices where very many wait
 *   release.bpf.h   CPUs that another class takes
 *   rescue.bpf.h    tasks whose CPU does not come to run them
 *   hotplug.bpf.h   CPUs that come and go
 *   grq.bpf.h       the global queue and its lock (--runq global)
 *   confine.bpf.h   tasks that may not run on all CPUs, in the global queue
 *   global.bpf.h    scheduling by the global queue: keys, placement, preemption
 *   global_dispatch.bpf.h  what a CPU takes from it
 *   schedstat.bpf.h what /proc/schedstat counts, by cause
 *   dump.bpf.h      state for the kernel's debug dump
 */
#include "heddle.bpf.h"
#include "topology.bpf.h"
#include "timer.bpf.h"
#include "burst.bpf.h"
#include "idle.bpf.h"
#include "spread.bpf.h"
#include "asym.bpf.h"
#include "cgroup.bpf.h"
#include "group_load.bpf.h"
#include "runq.bpf.h"
#include "stop.bpf.h"
#include "bandwidth.bpf.h"
#include "bandwidth_timer.bpf.h"
#include "reweigh.bpf.h"
#include "placement.bpf.h"
#include "wakeq.bpf.h"
#include "release.bpf.h"
#include "enqueue.bpf.h"
#include "walk.bpf.h"
#include "pull.bpf.h"
#include "relief.bpf.h"
#include "crowd.bpf.h"
#include "rescue.bpf.h"
#include "dispatch.bpf.h"
#include "schedstat.bpf.h"
#include "grq.bpf.h"
#include "confine.bpf.h"
#include "global.bpf.h"
#include "global_dispatch.bpf.h"
#include "hotplug.bpf.h"
#include "dump.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

s32 BPF_STRUCT_OPS(heddle_init_task, struct task_struct *p,
		   struct scx_init_task_args *args)
{
	return runq_global ? global_init_task(p) : 0;
}

void BPF_STRUCT_OPS(heddle_enable, struct task_struct *p)
{
	if (runq_global) {
		global_enable(p);
		return;
	}
	reweigh_init_task(p);
	load_enter(p);
	burst_init_task(p);
	runq_init_task(p);
}

void BPF_STRUCT_OPS(heddle_disable, struct task_struct *p)
{
	if (runq_global)
		return;
	load_leave(p);
	reweigh_exit_task(p);
	stop_exit_task(p);
}

void BPF_STRUCT_OPS(heddle_set_weight, struct task_struct *p, u32 weight)
{
	if (!runq_global)
		reweigh_task(p);
}

void BPF_STRUCT_OPS(heddle_set_cpumask, struct task_struct *p,
		    const struct cpumask *cpumask)
{
	global_set_affinity(p);
}

s32 BPF_STRUCT_OPS(heddle_select_cpu, struct task_struct *p, s32 prev_cpu,
		   u64 wake_flags)
{
	s32 cpu = runq_global ? global_place(p, prev_cpu, wake_flags)
			      : place_wakee(p, prev_cpu, wake_flags);

	schedstat_place(cpu, wake_flags);
	return cpu;
}

void BPF_STRUCT_OPS(heddle_enqueue, struct task_struct *p, u64 enq_flags)
{
	if (runq_global) {
		global_enqueue(p, enq_flags);
		return;
	}
	enqueue_task(p, enq_flags);
}

void BPF_STRUCT_OPS(heddle_dequeue, struct task_struct *p, u64 deq_flags)
{
	global_dequeue(p);
}

void BPF_STRUCT_OPS(heddle_dispatch, s32 cpu, struct task_struct *prev)
{
	if (runq_global)
		global_dispatch(cpu, prev);
	else
		dispatch_cpu(cpu, prev);
}

/*
 * The CPU of @p need not be this one. A change of a running task's nice level,
 * class or group calls ops.stopping and ops.running from the CPU that makes it.
 */
void BPF_STRUCT_OPS(heddle_running, struct task_struct *p)
{
	u32 cpu = cpu_of_task(p);
	struct standing who;

	schedstat_arrive(cpu, p);
	if (runq_global) {
		global_start(cpu, p);
		return;
	}
	who = standing_of(p);
	load_join(cpu, p, &who);
	runq_start(cpu, p, &who);
	load_settle(cpu);
	bandwidth_start(cpu, p);
}

void BPF_STRUCT_OPS(heddle_stopping, struct task_struct *p, bool runnable)
{
	u32 cpu = cpu_of_task(p);

	schedstat_depart(cpu);
	release_after(cpu);
	if (runq_global) {
		global_stop(cpu, p);
		return;
	}
	bandwidth_stop(cpu, p);
	runq_stop(cpu, p, runnable);
	if (runnable)
		return;
	burst_sleep(p);
	load_sleep(cpu, p);
}

void BPF_STRUCT_OPS(heddle_tick, struct task_struct *p)
{
	u32 cpu = cpu_of_task(p);

	idle_tick(cpu);
	rescue_another();
	if (runq_global)
		return;
	rescue_waiting(cpu);
	relief_tick(cpu_ctx(cpu));
	crowd_tick(cpu, cpu_ctx(cpu));
	asym_tick(cpu, p);
	stop_tick(cpu_ctx(cpu), p);
	keep_alone(cpu, p);
}

void BPF_STRUCT_OPS(heddle_cpu_release, s32 cpu,
		    struct scx_cpu_release_args *args)
{
	release_cpu(cpu);
}

bool BPF_STRUCT_OPS(heddle_yield, struct task_struct *from,
		    struct task_struct *to)
{
	return yield_task(from, to);
}

void BPF_STRUCT_OPS(heddle_update_idle, s32 cpu, bool idle)
{
	if (!idle) {
		idle_exit(cpu);
		release_after(cpu);
		return;
	}
	idle_enter(cpu);
	if (runq_global) {
		global_recheck(cpu);
		return;
	}
	recheck_offers(cpu);
	asym_help_others(cpu);
}

void BPF_STRUCT_OPS(heddle_exit_task, struct task_struct *p,
		    struct scx_exit_task_args *args)
{
	global_exit_task(p);
}

s32 BPF_STRUCT_OPS(heddle_cgroup_init, struct cgroup *cgrp,
		   struct scx_cgroup_init_args *args)
{
	group_set_weight(cgrp, args->weight);
	if (cgroup_told_bandwidth)
		group_set_bandwidth(cgrp, args->bw_period_us, args->bw_quota_us,
				    args->bw_burst_us);
	return 0;
}

void BPF_STRUCT_OPS(heddle_cgroup_exit, struct cgroup *cgrp)
{
	group_set_bandwidth(cgrp, 0, 0, 0);
	group_exit(cgrp);
}

void BPF_STRUCT_OPS(heddle_cgroup_move, struct task_struct *p,
		    struct cgroup *from, struct cgroup *to)
{
	reweigh_moved(p, from);
}

void BPF_STRUCT_OPS(heddle_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	group_set_weight(cgrp, weight);
}

void BPF_STRUCT_OPS(heddle_cgroup_set_bandwidth, struct cgroup *cgrp,
		    u64 period_us, u64 quota_us, u64 burst_us)
{
	group_set_bandwidth(cgrp, period_us, quota_us, burst_us);
}

/* The loader's call, on kernels that have no ops.cgroup_set_bandwidth. */
SEC("syscall")
int heddle_watched_bandwidth(struct bandwidth_limit *limit)
{
	return bandwidth_watched(limit);
}

void BPF_STRUCT_OPS(heddle_cgroup_set_idle, struct cgroup *cgrp, bool idle)
{
	group_set_idle(cgrp, idle);
}

void BPF_STRUCT_OPS(heddle_cpu_online, s32 cpu)
{
	hotplug_online(cpu);
}

void BPF_STRUCT_OPS(heddle_cpu_offline, s32 cpu)
{
	hotplug_offline(cpu);
	if (runq_global)
		global_offline(cpu);
}

void BPF_STRUCT_OPS(heddle_dump_cpu, struct scx_dump_ctx *dctx, s32 cpu,
		    bool idle)
{
	dump_cpu(cpu);
}

void BPF_STRUCT_OPS(heddle_dump_task, struct scx_dump_ctx *dctx,
		    struct task_struct *p)
{
	dump_task(p);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(heddle_init)
{
	u32 cpu, nr_cpus = scx_bpf_nr_cpu_ids();
	s32 err;

	bpf_for(cpu, 0, nr_cpus) {
		err = scx_bpf_create_dsq(cpu, __COMPAT_scx_bpf_cpu_node(cpu));
		if (err)
			return err;
	}
	err = timer_init(TIMER_RESCUE, rescue);
	if (err)
		return err;
	err = timer_init(TIMER_LEAVE, leave);
	if (err)
		return err;
	err = timer_init(TIMER_CROWD, crowd_end_slices);
	if (err || !cgroup_flat)
		return err;
	return groups_init();
}

void BPF_STRUCT_OPS(heddle_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(heddle_ops,
	       .select_cpu	= (void *)heddle_select_cpu,
	       .enqueue		= (void *)heddle_enqueue,
	       .dispatch	= (void *)heddle_dispatch,
	       .running		= (void *)heddle_running,
	       .stopping	= (void *)heddle_stopping,
	       .tick		= (void *)heddle_tick,
	       .cpu_release	= (void *)heddle_cpu_release,
	       .yield		= (void *)heddle_yield,
	       .update_idle	= (void *)heddle_update_idle,
	       .init_task	= (void *)heddle_init_task,
	       .enable		= (void *)heddle_enable,
	       .disable		= (void *)heddle_disable,
	       .set_weight	= (void *)heddle_set_weight,
	       .set_cpumask	= (void *)heddle_set_cpumask,
	       .dequeue		= (void *)heddle_dequeue,
	       .exit_task	= (void *)heddle_exit_task,
	       .cgroup_init	= (void *)heddle_cgroup_init,
	       .cgroup_exit	= (void *)heddle_cgroup_exit,
	       .cgroup_move	= (void *)heddle_cgroup_move,
	       .cgroup_set_weight	= (void *)heddle_cgroup_set_weight,
	       .cgroup_set_bandwidth	= (void *)heddle_cgroup_set_bandwidth,
	       .cgroup_set_idle	= (void *)heddle_cgroup_set_idle,
	       .cpu_online	= (void *)heddle_cpu_online,
	       .cpu_offline	= (void *)heddle_cpu_offline,
	       .dump_cpu	= (void *)heddle_dump_cpu,
	       .dump_task	= (void *)heddle_dump_task,
	       .init		= (void *)heddle_init,
	       .exit		= (void *)heddle_exit,
	       .timeout_ms	= 30000,
	       .name		= "heddle");

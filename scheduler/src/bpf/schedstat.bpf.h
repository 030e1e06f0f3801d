/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Statistics in the terms of /proc/schedstat, with the passes to idle split by
 * cause (A. Chen's VRQ, 2014). Off, all of it is dead code.
 */
#pragma once

#include "heddle.bpf.h"

/* Option; the loader sets it before the program is loaded. */
const volatile bool schedstat;

/* When the task that runs on a CPU started to. */
struct schedstat_cpu {
	u64 arrived;
} __attribute__((aligned(CACHE_LINE)));

struct schedstat_cpu schedstat_cpus[MAX_CPUS];

static __always_inline struct schedstat_cpu *schedstat_cpu(u32 cpu)
{
	return &schedstat_cpus[cpu & (MAX_CPUS - 1)];
}

/* A wakee runs or is queued. */
static __always_inline void schedstat_ttwu(void)
{
	if (schedstat)
		count(ttwu_count);
}

/* ops.select_cpu, on the waker's CPU: the task that it wakes by @wake_flags goes to @cpu. */
static __always_inline void schedstat_place(s32 cpu, u64 wake_flags)
{
	if (schedstat && (wake_flags & SCX_WAKE_TTWU) &&
	    cpu == bpf_get_smp_processor_id())
		count(ttwu_local);
}

#define US 1000ULL
#define MS (1000 * US)

/* A task waited for a CPU for @ns. */
static __always_inline void schedstat_waited(u64 ns)
{
	count_by(run_delay, ns);
	if (ns < 16 * US)
		count(waited_16us);
	else if (ns < 64 * US)
		count(waited_64us);
	else if (ns < 256 * US)
		count(waited_256us);
	else if (ns < 1 * MS)
		count(waited_1ms);
	else if (ns < 4 * MS)
		count(waited_4ms);
	else if (ns < 16 * MS)
		count(waited_16ms);
	else if (ns < 64 * MS)
		count(waited_64ms);
	else
		count(waited_longer);
}

/* ops.running */
static __always_inline void schedstat_arrive(u32 cpu,
					     const struct task_struct *p)
{
	u64 now, queued;

	if (!schedstat)
		return;
	now = rq_clock(cpu); /* which the kernel keeps sched_info by */
	queued = p->sched_info.last_queued;
	schedstat_cpu(cpu)->arrived = now;
	count(sched_count);
	count(pcount);
	if (queued)
		schedstat_waited(ns_since(queued, now));
}

/* ops.stopping */
static __always_inline void schedstat_depart(u32 cpu)
{
	if (schedstat)
		count_by(rq_cpu_time,
			 ns_since(schedstat_cpu(cpu)->arrived, rq_clock(cpu)));
}

/* The task that ran until now runs on. */
static __always_inline void schedstat_keep(void)
{
	if (schedstat)
		count(sched_count);
}

/* This CPU idles, after @prev if a task of ours ran. */
static __always_inline void schedstat_idle(const struct task_struct *prev)
{
	if (!schedstat)
		return;
	count(sched_count);
	if (bpf_get_current_task_btf()->flags & PF_IDLE)
		count(goidle_idle);
	else if (prev && (prev->scx.flags & SCX_TASK_QUEUED))
		count(goidle_needother);
	else
		count(goidle_deactivate);
}

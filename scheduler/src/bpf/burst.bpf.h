/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bursts of all tasks, in a table by thread id. Two tasks that meet in a place take it
 * from each other as they sleep; what is known of the one is then unknown again.
 */
#pragma once

#include "heddle.bpf.h"
#include "policy/burst.h"

struct burst bursts[NR_BURSTS] __attribute__((aligned(CACHE_LINE)));

static __always_inline struct burst *burst_of(const struct task_struct *p)
{
	u32 place = burst_place(p->pid);

	barrier_var(place);
	return &bursts[place & (NR_BURSTS - 1)];
}

static __always_inline bool task_is_hog(const struct task_struct *p,
					u64 gran_ns)
{
	return burst_is_hog(burst_of(p), p->pid, p->se.sum_exec_runtime,
			    gran_ns);
}

/* ops.enable: the place may hold what an earlier task of this thread id did. */
static __always_inline void burst_init_task(const struct task_struct *p)
{
	burst_begin(burst_of(p), p->pid, p->se.sum_exec_runtime);
}

/* ops.stopping: @p goes to sleep. */
static __always_inline void burst_sleep(const struct task_struct *p)
{
	burst_end(burst_of(p), p->pid, p->se.sum_exec_runtime);
}

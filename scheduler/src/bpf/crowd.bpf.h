/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Crowds: short slices where very many wait.
 *
 * The kernel ends a slice at a tick, of which ten seconds have 2,500 where HZ is 250.
 * No task is to wait for longer than that (relief.bpf.h), and any user may have
 * 2,500 tasks compute on one CPU. So where more than CROWD wait, a timer ends the
 * slices.
 */
#pragma once

#include "heddle.bpf.h"
#include "timer.bpf.h"

#define CROWD 500
#define CROWD_SLICE_NS 500000ULL

static __always_inline bool is_crowd(const struct cpu_ctx *c)
{
	/* A CPU that goes offline keeps its count (hotplug_offline()). */
	return c->nr_queued > CROWD && !c->offline;
}

/* ops.tick */
static __always_inline void crowd_tick(u32 cpu, struct cpu_ctx *c)
{
	if (!is_crowd(c))
		return;
	/* Tasks that other CPUs took are counted still. */
	c->nr_queued = scx_bpf_dsq_nr_queued(cpu);
	if (is_crowd(c))
		timer_arm(TIMER_CROWD, CROWD_SLICE_NS);
}

static int crowd_end_slices(void *map, u32 *id, struct timer_slot *slot)
{
	u32 cpu, nr_cpus = scx_bpf_nr_cpu_ids();
	bool crowd = false;

	timer_runs(slot);
	bpf_for(cpu, 0, nr_cpus) {
		if (!is_crowd(cpu_ctx(cpu)))
			continue;
		kick(cpu, SCX_KICK_PREEMPT);
		crowd = true;
	}
	if (crowd)
		timer_arm(TIMER_CROWD, CROWD_SLICE_NS);
	return 0;
}

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
}

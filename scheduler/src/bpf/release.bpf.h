/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Release: a task of a higher class, as of real time, takes a CPU.
 *
 * The task that ran there, and those that were sent there past the queues, stay on the
 * CPU, where the kernel keeps them until the last of the higher class sleeps. So all of
 * them are queued anew, and go on elsewhere.
 *
 * From 6.19 on the kernel does that whenever it is asked to; before, only in
 * ops.cpu_release, which it calls in the midst of the switch (and which it has
 * deprecated since; the loader leaves it out then).
 */
#pragma once

#include "heddle.bpf.h"
#include "timer.bpf.h"

/* ops.cpu_release, up to 6.18 */
static __always_inline void release_cpu(u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	/* The task that is preempted is the current one still. */
	c->release_tied = is_migration_disabled(bpf_get_current_task_btf());
	c->releasing = true;
	scx_bpf_reenqueue_local();
	c->releasing = false;
}

/*
 * ops.stopping, ops.update_idle: @cpu switches to a task of a higher class, if it is
 * taken. Only the kernel knows what is on its local queue.
 */
static __always_inline void release_after(u32 cpu)
{
	if (!is_taken(cpu))
		return;
	cpu_ctx(cpu)->taken_at = scx_bpf_now();
	scx_bpf_reenqueue_local_from_anywhere();
	timer_arm(TIMER_RESCUE, RESCUE_NS);
}

/* ops.enqueue: a task waits, or is parked, where another class may have the CPU. */
static __always_inline void release_wait(u32 cpu)
{
	if (cpu_ctx(cpu)->taken_at && is_taken(cpu))
		timer_arm(TIMER_RESCUE, RESCUE_NS);
}

/* A CPU that was taken so recently may be taken again at any moment: ten times a second. */
#define TAKEN_NS 100000000ULL

/*
 * Is a task that is sent to the idle @cpu past its queue in danger of being kept there by
 * another class? Nothing gets it back that arrives after the switch to that class; up to
 * 6.18 nothing does either if the CPU did not run one of ours before.
 */
static __always_inline bool may_be_kept(u32 cpu)
{
	u64 at = cpu_ctx(cpu)->taken_at;

	return at && vt_before(scx_bpf_now(), at + TAKEN_NS);
}

/*
 * Up to 6.18 the kernel asks for a task before each pick, also where another class then has
 * the CPU: whatever it is given is kept there. Later kernels ask only if they run it, be
 * it in the name of a deadline server.
 */
static __always_inline bool dispatch_in_vain(u32 cpu)
{
	return !bpf_core_field_exists(struct rq, ext_server) && is_taken(cpu);
}

/*
 * May @p, which is being queued, run on its CPU only, be it for a moment? While BPF
 * runs in its own context, it looks so anyway: once over in most callbacks, which
 * the helper takes into account, but twice over in the midst of ops.cpu_release.
 */
static __noinline bool is_tied(const struct task_struct *p)
{
	const struct cpu_ctx *c = cpu_ctx(bpf_get_smp_processor_id());

	if (p->nr_cpus_allowed == 1)
		return true;
	if (c->releasing && p == bpf_get_current_task_btf())
		return c->release_tied;
	return is_migration_disabled(p);
}

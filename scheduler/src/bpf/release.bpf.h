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
 * ops.stopping: @p is still @runnable. If it has some of its slice left, too, it is a
 * higher class that it gives way to.
 */
static __always_inline void release_after(const struct task_struct *p,
					  bool runnable)
{
	if (runnable && p->scx.slice)
		scx_bpf_reenqueue_local_from_anywhere();
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

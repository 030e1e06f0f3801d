/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Relief: nobody waits for ever.
 *
 * Virtual time promises each task its turn, but not when: the lighter it is, and
 * the more and heavier those that wait with it, the later. A SCHED_IDLE task that
 * is pinned beside 20 hogs is entitled to a slice in half a minute. sched_ext
 * throws a scheduler out under which a task waits for ops.timeout_ms, which is
 * 10 s. So a task that waits since before the last RELIEF_NS gets a slice out of
 * turn, and owes no more than that one.
 */
#pragma once

#include "heddle.bpf.h"
#include "runq.bpf.h"

#define RELIEF_NS 2000000000ULL

/* ops.tick: is it time for another look at who waits in the queue of @c? */
static __always_inline void relief_tick(struct cpu_ctx *c)
{
	u64 now;

	if (!c->nr_queued || c->relief)
		return;
	now = scx_bpf_now();
	if (vt_before(now, c->relief_ns + RELIEF_NS))
		return;
	c->relief_ns = now;
	c->relief = true;
}

/*
 * Move a task that was waiting at the last look already to this CPU, @cpu: one at
 * a time, those that are nearer to their turn first.
 */
__noinline bool relieve_one(u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, cpu, 0) {
		/* jiffies; the kernel's watchdog goes by the same. */
		if (!vt_before(p->scx.runnable_at, c->relief_jiffies))
			continue;
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER,
					   vt_key(c->clock, cpu));
		if (!scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0))
			continue;
		c->nr_queued--;
		count(relieved);
		return true;
	}
	c->relief_jiffies = bpf_jiffies64();
	c->relief = false;
	return false;
}

/* ops.dispatch: does this CPU run a task out of turn? */
static __always_inline bool relieve(u32 cpu, const struct cpu_ctx *c)
{
	return c->relief && relieve_one(cpu);
}

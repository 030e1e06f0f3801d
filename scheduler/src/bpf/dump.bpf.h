/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * State for the kernel's debug dump, printed on an error or by SysRq-D.
 */
#pragma once

#include "heddle.bpf.h"
#include "global.bpf.h"
#include "idle.bpf.h"
#include "runq.bpf.h"

static __always_inline void dump_global_cpu(s32 cpu)
{
	const struct global_cpu *g = global_cpu(cpu);

	scx_bpf_dump("key=%llu left=%u running=%d preempted=%d nr=%d idle=%d "
		     "known=%d\n",
		     g->curr_key, g->curr_left_ns, g->running, g->preempted,
		     scx_bpf_dsq_nr_queued(cpu), cpu_ctx(cpu)->idle,
		     idle_is_known(cpu));
}

static __always_inline void dump_cpu(s32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	if (runq_global) {
		dump_global_cpu(cpu);
		return;
	}
	scx_bpf_dump("clock=%llu frame=%llu running=%d queued=%d offered=%d "
		     "nr=%d idle=%d known=%d\n",
		     c->clock, frame_of(c, c->clock), c->running, c->nr_queued,
		     c->offered, scx_bpf_dsq_nr_queued(cpu), c->idle,
		     idle_is_known(cpu));
}

static __always_inline void dump_global_task(const struct task_struct *p)
{
	struct grq *grq = the_grq();
	const struct heap_node *node;

	if (!grq)
		return;
	node = node_of(grq, p);
	scx_bpf_dump("key=%llu node=%u left=%u lane=%d home=%d\n",
		     p->scx.dsq_vtime, node_of_key(p->scx.dsq_vtime),
		     node->left_ns, node->lane - 1, node->home);
}

static __always_inline void dump_task(struct task_struct *p)
{
	u64 key = p->scx.dsq_vtime;

	if (runq_global) {
		dump_global_task(p);
		return;
	}
	scx_bpf_dump("vt=%llu clock_of=%u inv=%llu\n", vt_of_key(key),
		     cpu_of_key(key), task_inv(p));
}

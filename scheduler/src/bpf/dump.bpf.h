/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * State for the kernel's debug dump, printed on an error or by SysRq-D.
 */
#pragma once

#include "heddle.bpf.h"
#include "idle.bpf.h"
#include "runq.bpf.h"

static __always_inline void dump_cpu(s32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	scx_bpf_dump("clock=%llu frame=%llu running=%d queued=%d offered=%d "
		     "nr=%d idle=%d known=%d\n",
		     c->clock, frame_of(c, c->clock), c->running, c->nr_queued,
		     c->offered, scx_bpf_dsq_nr_queued(cpu), c->idle,
		     idle_is_known(cpu));
}

static __always_inline void dump_task(struct task_struct *p)
{
	u64 key = p->scx.dsq_vtime;

	scx_bpf_dump("vt=%llu clock_of=%u inv=%llu\n", vt_of_key(key),
		     cpu_of_key(key), task_inv(p));
}

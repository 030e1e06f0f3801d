/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The load of a group: the weights of its tasks that are runnable.
 *
 * A task is counted from when it is seen awake, as it is queued or runs, until
 * it sleeps; a bit of its key says whether it is (policy/vtime.h). ops.runnable
 * and ops.quiescent would tell of the same, but two calls more at every wakeup
 * cost nearly as much as all else that groups do there.
 *
 * While a task waits, its weight, its group or its class may change. Each of these
 * is told (reweigh.bpf.h), and moves what was counted. Who runs meanwhile is
 * stopped before and started after, as if he had slept.
 *
 * Loads are striped by LLC: who adds is seldom who subtracts, so a stripe by
 * itself means nothing, and the sum does.
 */
#pragma once

#include "cgroup.bpf.h"
#include "heddle.bpf.h"
#include "topology.bpf.h"

static __always_inline bool is_counted(const struct task_struct *p)
{
	return !(p->scx.dsq_vtime & KEY_UNCOUNTED);
}

static __always_inline void load_add(struct group *g, u64 weight)
{
	u32 stripe = place_of(bpf_get_smp_processor_id())->word % GROUP_STRIPES;

	__sync_fetch_and_add(&g->stripes[stripe].load, weight);
}

/* See to it that the group of slot @id, to which a task of @tg counts, is walked. */
static __always_inline void ensure_walked(const struct task_group *tg, u32 id)
{
	struct group *g = group_at(id);

	if (id <= ROOT_GROUP)
		return;
	if (tg->css.id != id) {
		count(group_overflow);
		/* It is the ancestor in the slot that is to be walked. */
		if (!g->serial)
			group_activate(tg);
	} else if (g->serial != tg->css.serial_nr) {
		group_activate(tg);
	}
}

/* ops.enqueue, ops.running: count @p unless it is counted. */
static __always_inline void load_join(struct task_struct *p)
{
	const struct task_group *tg = p->sched_task_group;
	u32 id;

	if (!cgroup_flat || is_counted(p))
		return;
	p->scx.dsq_vtime &= ~KEY_UNCOUNTED;
	id = group_id(tg);
	load_add(group_at(id), task_weight(p));
	ensure_walked(tg, id);
}

/* ops.stopping, ops.disable: count @p no more. */
static __always_inline void load_leave(struct task_struct *p)
{
	if (!cgroup_flat || !is_counted(p))
		return;
	p->scx.dsq_vtime |= KEY_UNCOUNTED;
	load_add(group_of(p), -task_weight(p));
}

/* The weight of @p, which does not run, was @before. */
static __always_inline void load_reweigh(const struct task_struct *p,
					 u64 before)
{
	if (cgroup_flat && is_counted(p))
		load_add(group_of(p), task_weight(p) - before);
}

/* @p, which does not run, was in the group of slot @from. */
static __always_inline void load_move(const struct task_struct *p, u32 from)
{
	const struct task_group *tg = p->sched_task_group;
	u32 id = group_id(tg);

	if (!is_counted(p))
		return;
	load_add(group_at(from), -task_weight(p));
	load_add(group_at(id), task_weight(p));
	ensure_walked(tg, id);
}

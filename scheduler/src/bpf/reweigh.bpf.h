/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reweighing: the nice level, the policy or the group of a task changes.
 *
 * Its lag stays as much CPU time as it was, which is another virtual time by its
 * new weight: a task that is SCHED_IDLE no more does not owe the seconds that one
 * slice was worth to it. If it waits, the loads of groups follow.
 *
 * The task does not run meanwhile: the kernel takes it off its CPU or queue before,
 * and puts it back after.
 */
#pragma once

#include "cgroup.bpf.h"
#include "group_load.bpf.h"
#include "heddle.bpf.h"
#include "runq.bpf.h"

/* The weights of tasks that are, or once were, of another one than nice 0. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64); /* 0: nice 0 */
} odd_weights SEC(".maps");

/* The weight that @p had when this was asked last, or nice 0. */
static __always_inline u64 weight_before(struct task_struct *p)
{
	u64 weight = task_weight(p), before = WEIGHT_NICE_0;
	u64 create = weight == WEIGHT_NICE_0 ? 0
					     : BPF_LOCAL_STORAGE_GET_F_CREATE;
	u64 *kept = bpf_task_storage_get(&odd_weights, p, NULL, create);

	if (kept) {
		before = *kept ?: WEIGHT_NICE_0;
		*kept = weight;
	}
	return before;
}

/* ops.enable: what @p weighs now is what it has always weighed. */
static __always_inline void reweigh_init_task(struct task_struct *p)
{
	weight_before(p);
}

/* Inverse weight on the flat queue of a task of @weight in the group of slot @id. */
static __always_inline u64 inv_in(u32 id, u64 weight)
{
	u64 inv = weight_inv(weight);

	return cgroup_flat ? hot_inv(inv, group_at(id)->scale, inv_max) : inv;
}

/* The inverse weight of @p is @inv and was @before: keep its lag. */
static __always_inline void keep_lag(struct task_struct *p, u64 before, u64 inv)
{
	u64 key = p->scx.dsq_vtime;
	u32 cpu = cpu_of_key(key);
	u64 clock = cpu_ctx(cpu)->clock;

	p->scx.dsq_vtime =
		vt_key(lag_reweigh(vt_of_key(key), clock, before, inv), cpu) |
		(key & KEY_UNCOUNTED);
}

/* ops.set_weight */
static __always_inline void reweigh_task(struct task_struct *p)
{
	u64 weight = task_weight(p), before = weight_before(p);
	u32 id = cgroup_flat ? group_id(p->sched_task_group) : 0;

	if (weight == before)
		return;
	load_reweigh(p, before);
	keep_lag(p, inv_in(id, before), inv_in(id, weight));
}

/* ops.cgroup_move: @p was in @from. */
static __always_inline void reweigh_moved(struct task_struct *p,
					  struct cgroup *from)
{
	u32 was = slot_above(from), id = group_id(p->sched_task_group);
	u64 weight = task_weight(p);

	load_move(p, was);
	keep_lag(p, inv_in(was, weight), inv_in(id, weight));
}

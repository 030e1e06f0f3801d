/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reweighing: the nice level, the policy or the group of a task changes, or what a
 * group weighs.
 *
 * The lag of a task stays as much CPU time as it was, which is another virtual time by
 * its new weight: a task that is SCHED_IDLE no more does not owe the seconds that one
 * slice was worth to it. If it waits, the loads of groups follow.
 *
 * The task does not run meanwhile: the kernel takes it off its CPU or queue before,
 * and puts it back after. When a group is set to be much heavier or lighter, its tasks
 * and its siblings' stay where they are. Each CPU bounds the lag in its queue anew,
 * over the next two slices: by then what ran by the old weight is queued too.
 */
#pragma once

#include "cgroup.bpf.h"
#include "group_load.bpf.h"
#include "heddle.bpf.h"
#include "runq.bpf.h"

/* Of more tasks than these, lag is kept as if they had been nice 0 before. */
#define MAX_ODD_WEIGHTS 16384

/*
 * The weights of tasks other than nice 0, by address: a thread that calls execve()
 * takes over the thread id of its leader. Not the storage of tasks: to free that, the
 * kernel waits for RCU Tasks Trace, which a CPU that goes offline meanwhile never lets
 * end (6.18).
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ODD_WEIGHTS);
	__type(key, u64);
	__type(value, u64);
} odd_weights SEC(".maps");

/* The weight that @p had when this was asked last, or nice 0. */
static __always_inline u64 weight_before(const struct task_struct *p)
{
	u64 weight = task_weight(p), before = WEIGHT_NICE_0, *kept;
	u64 task = (u64)p;

	kept = bpf_map_lookup_elem(&odd_weights, &task);
	if (kept)
		before = *kept;
	if (weight != WEIGHT_NICE_0)
		bpf_map_update_elem(&odd_weights, &task, &weight, BPF_ANY);
	else if (kept)
		bpf_map_delete_elem(&odd_weights, &task);
	return before;
}

/* ops.disable: @p is of another class from now on, or of none. */
static __always_inline void reweigh_exit_task(const struct task_struct *p)
{
	u64 task = (u64)p;

	bpf_map_delete_elem(&odd_weights, &task);
}

/* ops.enable: what @p weighs now is what it has always weighed. */
static __always_inline void reweigh_init_task(const struct task_struct *p)
{
	weight_before(p);
}

/*
 * Inverse weight on the flat queue of a task of @weight in the group of slot @id.
 * Global, so that the verifier looks at it once.
 */
__noinline u64 inv_in(u32 id, u64 weight)
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
	load_reweigh(p, id, before);
	keep_lag(p, inv_in(id, before), inv_in(id, weight));
}

/* ops.cgroup_move: @p was in @from. */
static __always_inline void reweigh_moved(struct task_struct *p,
					  struct cgroup *from)
{
	u32 was = slot_above(from), id = group_id(p->sched_task_group);
	u64 weight = task_weight(p);

	load_move(p, was, id);
	load_enter(p);
	keep_lag(p, inv_in(was, weight), inv_in(id, weight));
}

/* @p waits on @cpu. Global, as reweighed_vt(), for the verifier's sake. */
__noinline int note_waiting(const struct task_struct *p __arg_trusted, u32 cpu)
{
	struct standing who = standing_of(p);

	runq_note_weight(cpu_ctx(cpu), &who);
	return 0;
}

/* Where @p, which waits on @cpu, is by what it weighs now. */
__noinline u64 reweighed_vt(const struct task_struct *p __arg_trusted, u32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	u64 slice_vt = vt_delta(slice_ns, task_inv(p));

	return lag_bound(vt_of_key(p->scx.dsq_vtime), c->clock, slice_vt,
			 lightest_slice_vt(c));
}

/*
 * Bound the lag of the tasks in the queue of this CPU, @cpu, and of the one that runs,
 * by what tasks weigh now. The walk does not meet again a
 * task that it has put back.
 */
__noinline int reweigh_queue(u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;

	c->lightest_inv = 0;
	bpf_for_each(scx_dsq, p, cpu, 0)
		note_waiting(p, cpu);
	c->curr_vt = lag_floor(c->curr_vt, c->clock,
			       vt_delta(slice_ns, c->curr_inv),
			       lightest_slice_vt(c));
	bpf_for_each(scx_dsq, p, cpu, 0) {
		u64 vt = reweighed_vt(p, cpu);

		if (vt == vt_of_key(p->scx.dsq_vtime))
			continue;
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, vt_key(vt, cpu));
		scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, cpu, 0);
	}
	return 0;
}

/* ops.dispatch */
static __always_inline void reweigh_waiting(u32 cpu)
{
	if (cgroup_flat && reweighing_walks)
		reweigh_queue(cpu);
}

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

	scx_bpf_task_set_dsq_vtime(
		p,
		vt_key(lag_reweigh(vt_of_key(key), clock, before, inv), cpu) |
			(key & KEY_UNCOUNTED));
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

/*
 * Is @p of our class, so that ops.enable was called for it? The kernel tells of the groups
 * of all tasks.
 */
static __always_inline bool is_ours(const struct task_struct *p)
{
	return p->prio >= MAX_RT_PRIO && (!partial || p->policy == SCHED_EXT);
}

/* ops.cgroup_move: @p was in @from. */
static __always_inline void reweigh_moved(struct task_struct *p,
					  struct cgroup *from)
{
	u32 was = slot_above(from), id = group_id(p->sched_task_group);
	u64 weight = task_weight(p);

	if (!is_ours(p))
		return;
	load_move(p, was, id);
	load_enter(p);
	keep_lag(p, inv_in(was, weight), inv_in(id, weight));
}

/* How many tasks at each end of a queue are looked at for too much lag, or debt. */
#define REWEIGH_LOOKS 16

/* Where @p, which waits on @cpu, is by what it weighs now. */
__noinline u64 reweighed_vt(const struct task_struct *p __arg_trusted, u32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	u64 slice_vt = vt_delta(slice_ns, task_inv(p));

	return lag_bound(vt_of_key(p->scx.dsq_vtime), c->clock, slice_vt,
			 lightest_slice_vt(c));
}

/* Bound the lag of @p, which waits on @cpu. False if it is within its bounds. */
static __always_inline bool reweigh_one(struct bpf_iter_scx_dsq *it,
					struct task_struct *p, u32 cpu)
{
	u64 vt = reweighed_vt(p, cpu);

	if (vt == vt_of_key(p->scx.dsq_vtime))
		return false;
	scx_bpf_dsq_move_set_vtime(it, vt_key(vt, cpu));
	scx_bpf_dsq_move_vtime(it, p, cpu, 0);
	return true;
}

/* @p waits on @cpu. Global, as reweighed_vt(), for the verifier's sake. */
__noinline int note_waiting(const struct task_struct *p __arg_trusted, u32 cpu)
{
	struct standing who = standing_of(p);

	runq_note_weight(cpu_ctx(cpu), &who);
	return 0;
}

/* How light the lightest is that runs or waits on this CPU, @cpu. */
__noinline int note_lightest(u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;
	u32 looks = 0;

	c->lightest_inv = c->running ? c->curr_inv : 0;
	bpf_for_each(scx_dsq, p, cpu, 0) {
		note_waiting(p, cpu);
		if (++looks == REWEIGH_LOOKS)
			break;
	}
	bpf_for_each(scx_dsq, p, cpu, SCX_DSQ_ITER_REV) {
		note_waiting(p, cpu);
		if (++looks >= 2 * REWEIGH_LOOKS)
			break;
	}
	return 0;
}

/*
 * Bound the lag of the tasks in the queue of this CPU, @cpu, and of the one that runs, by
 * what tasks weigh now. Those that are out of bounds stand at the ends of the queue: so
 * many of each end are looked at, however many wait.
 */
__noinline int reweigh_queue(u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;
	u32 looks = 0;

	note_lightest(cpu);
	c->curr_vt = lag_floor(c->curr_vt, c->clock,
			       vt_delta(slice_ns, c->curr_inv),
			       lightest_slice_vt(c));
	bpf_for_each(scx_dsq, p, cpu, 0) {
		reweigh_one(BPF_FOR_EACH_ITER, p, cpu);
		if (++looks == REWEIGH_LOOKS)
			break;
	}
	bpf_for_each(scx_dsq, p, cpu, SCX_DSQ_ITER_REV) {
		if (!reweigh_one(BPF_FOR_EACH_ITER, p, cpu) ||
		    ++looks >= 2 * REWEIGH_LOOKS)
			break;
	}
	return 0;
}

/*
 * ops.dispatch: the task that ran is at its @slice_end, or sleeps. Then once in each walk is
 * enough: tasks that sleep often would pay for what others do to their weights.
 */
static __always_inline void reweigh_waiting(u32 cpu, struct cpu_ctx *c,
					    bool slice_end)
{
	u32 walk = reweighing_walks;

	if (!cgroup_flat || !walk || (!slice_end && c->reweighed == walk))
		return;
	c->reweighed = walk;
	reweigh_queue(cpu);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The global queue's dispatch: what a CPU runs next, and which CPU it wakes as it
 * leaves a task.
 */
#pragma once

#include "global.bpf.h"
#include "grq.bpf.h"
#include "heddle.bpf.h"
#include "idle.bpf.h"
#include "policy/resched.h"
#include "release.bpf.h"
#include "runq.bpf.h"
#include "schedstat.bpf.h"

/* Option; the loader sets it before the program is loaded. */
const volatile enum resched_rule resched_rule = RESCHED_TABLE;

/* How often to try again when another CPU was quicker. */
#define PICK_TRIES 4

/* How often to look whether a switch is over: for longer than any takes. */
#define SWITCH_TRIES 10000

/*
 * Is @p, which is queued, still what its CPU is about to switch away from? on_cpu
 * is an int in older kernels and a bool in newer ones.
 */
static __always_inline bool is_switching_out(const struct task_struct *p)
{
	const void *on_cpu = (const void *)p + bpf_core_field_offset(p->on_cpu);

	barrier_var(on_cpu);
	if (bpf_core_field_size(p->on_cpu) == sizeof(int))
		return *(const volatile int *)on_cpu;
	return *(const volatile bool *)on_cpu;
}

/*
 * Wait until the CPU of @p, which is queued, has switched away from it. While BPF
 * runs there until then, @p looks like a task that may not migrate, and the kernel
 * ends a scheduler that hands such a one to another CPU. That CPU needs nothing
 * of this one to go on.
 */
static __always_inline bool global_await_switch(const struct task_struct *p)
{
	u32 tries;

	bpf_for(tries, 0, SWITCH_TRIES)
		if (!is_switching_out(p))
			return true;
	return false;
}

/*
 * Hand the task of @pid to this CPU, @cpu, or to its own if it may not migrate. A
 * task that has changed since it was taken from the queue is queued again, or
 * will be. What the kernel notes of it as it is inserted must still hold when it
 * moves the task: so insert first, then look whether it may run here. If it is
 * inserted all the same, it runs while it is queued, and is taken out when it is
 * queued the next time. A CPU that takes it before hands over a task that the
 * kernel does not accept, and tries again.
 */
static __always_inline bool global_hand(s32 pid, u32 left, u32 cpu)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	bool handed;

	if (!p)
		return false;
	if (!global_await_switch(p) || is_migration_disabled(p)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu_of_task(p), left,
				   0);
		bpf_task_release(p);
		return false;
	}
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, left, 0);
	handed = bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
	if (!handed)
		scx_bpf_dispatch_cancel();
	bpf_task_release(p);
	return handed;
}

/* What a CPU may choose from beside the queue. */
struct rival {
	u64 key;
	bool any;
};

static __always_inline bool due_before(const struct grq_best *best, u64 key,
				       bool any)
{
	return best->any && (!any || vt_before(best->key, key));
}

/* What global_take() returns: a task, as its pid and what is left of its slice, */
#define TAKEN(pid, left) ((u64)(left) << 32 | (u32)(pid))
/* or that none is due, or that another CPU was quicker. */
#define TAKEN_NONE 0
#define TAKEN_MISSED (~0ULL)

/*
 * Take the first task of the queue for @cpu if it is due before @key, in case
 * there is @any such rival. Global for the verifier.
 */
__noinline u64 global_take(u32 cpu, u64 key, bool any)
{
	struct grq *grq = the_grq();
	struct grq_hold hold = {};
	u64 taken = TAKEN_NONE;
	struct grq_best best;

	if (!grq)
		return TAKEN_NONE;
	if (locking == LOCKING_VRQ) {
		grq_find(grq, cpu, &best);
		if (!due_before(&best, key, any))
			return TAKEN_NONE;
		taken = TAKEN_MISSED;
	}
	GRQ_LOCK(grq, &hold);
	if (locking == LOCKING_VRQ)
		grq_look(grq, cpu, best.lane, &best);
	else
		grq_find(grq, cpu, &best);
	if (due_before(&best, key, any)) {
		u32 node = heap_first(grq->nodes, head_of(best.lane));

		taken = TAKEN(heap_at(grq->nodes, node)->pid,
			      left_of(heap_at(grq->nodes, node)));
		grq_remove(grq, &hold, node);
	}
	GRQ_UNLOCK(grq, &hold, pick);
	return taken;
}

/*
 * The first of the tasks that wait for this CPU only, if it is due before
 * @rival, becomes the rival.
 */
static __always_inline bool global_own_first(u32 cpu, struct rival *rival)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *head;

	if (!c->nr_queued)
		return false;
	head = __COMPAT_scx_bpf_dsq_peek(cpu);
	if (!head) {
		runq_mark_empty(cpu, c);
		return false;
	}
	if (rival->any && !vt_before(head->scx.dsq_vtime, rival->key))
		return false;
	rival->any = true;
	rival->key = head->scx.dsq_vtime;
	return true;
}

/*
 * Give this CPU the first of all tasks, unless that is @prev, which runs and is
 * a rival if it @stays.
 */
static __always_inline bool global_pick(u32 cpu, const struct task_struct *prev,
					bool stays)
{
	struct rival rival = {};
	u32 tries;
	bool own;

	if (stays) {
		rival.any = true;
		/* Of equal deadlines the one that waits comes first. */
		rival.key = prev->scx.dsq_vtime | NODE_MASK;
	}
	own = global_own_first(cpu, &rival);
	bpf_for(tries, 0, PICK_TRIES) {
		u64 taken = global_take(cpu, rival.key, rival.any);

		if (taken == TAKEN_NONE)
			break;
		if (taken != TAKEN_MISSED &&
		    global_hand(taken, taken >> 32, cpu))
			return true;
	}
	return own && runq_pick(cpu, cpu_ctx(cpu));
}

/*
 * This CPU has just marked itself idle. A task that was queued after it had looked
 * is seen here, or the CPU that queued it sees the mark.
 */
static __always_inline void global_recheck(u32 cpu)
{
	struct grq *grq = the_grq();

	if (grq && grq_has_work(grq, cpu))
		kick(cpu, 0);
}

/*
 * @prev goes on. If its slice is over and none waits that is due later, the CPU looks
 * again at the next tick. A task that leaves another CPU at this tick is queued only once
 * that CPU has chosen its next: it would wait two slices beside a task that had its own.
 */
static __always_inline void global_keep(struct grq *grq, u32 cpu,
					struct task_struct *prev)
{
	struct global_cpu *g = global_cpu(cpu);

	if (g->curr_left_ns == slice_ns && !cpu_ctx(cpu)->nr_queued &&
	    (!grq_has_work(grq, cpu) || global_queue_first(cpu, g->curr_key)))
		g->curr_left_ns = SLICE_SPENT_NS;
	scx_bpf_task_set_slice(prev, g->curr_left_ns);
	count(kept);
	schedstat_keep();
}

/* ops.dispatch: @prev is the task that ran until now, if any. */
static __always_inline void global_dispatch(u32 cpu, struct task_struct *prev)
{
	struct grq *grq = the_grq();
	struct resched_view view = {};
	bool stays;

	if (!grq || dispatch_in_vain(cpu))
		return;
	global_cpu(cpu)->preempted = false;
	view.prev_idle = !prev;
	view.prev_sleeps = prev && !(prev->scx.flags & SCX_TASK_QUEUED);
	stays = prev && !view.prev_sleeps &&
		bpf_cpumask_test_cpu(cpu, prev->cpus_ptr);
	view.prev_leaves = !stays;
	if (stays)
		global_settle(grq, cpu, prev);
	view.queued = global_pick(cpu, prev, stays);
	view.switches = view.queued || !stays;
	if (!view.switches) {
		global_keep(grq, cpu, prev);
	} else if (!view.queued) {
		schedstat_idle(prev);
		idle_stays(cpu, prev);
		global_recheck(cpu);
	}
	/* A runnable @prev is queued next, and that wakes an idle CPU. */
	if (prev && view.prev_sleeps && resched_best_idle(resched_rule, &view))
		global_wake_idle(prev, cpu);
}

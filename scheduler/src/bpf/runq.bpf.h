/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The run queue: one per CPU, ordered by virtual time.
 *
 * A queue is a DSQ whose keys are the tasks' virtual times, so its head is the
 * task that has had the least of its share. The clock of a queue is the
 * virtual time of the last task picked from it; tasks enter at their own
 * virtual time, clamped around the clock (lag.h). A task that sleeps keeps its
 * virtual time while the clock moves on: debt wears off, credit is bounded.
 *
 * Clocks of different CPUs are related by an offset each, so that virtual
 * times can be carried from one CPU to another and compared between them.
 */
#pragma once

#include "heddle.bpf.h"
#include "cgroup.bpf.h"
#include "idle.bpf.h"
#include "schedstat.bpf.h"
#include "topology.bpf.h"

/* The frame that all clocks share (lag.h). */
static __always_inline u64 frame_of(const struct cpu_ctx *c, u64 vt)
{
	return vt - c->offset;
}

static __always_inline u64 task_inv(const struct task_struct *p)
{
	return standing_of(p).inv;
}

/* What @ns on @cpu count: by --fair work, less on a slower one. */
static __always_inline u64 charged_ns(u32 cpu, u64 ns)
{
	return fair_work ? ns * place_of(cpu)->capacity >> CAPACITY_SHIFT : ns;
}

/* Virtual time that the running task of @cpu has reached at @now. */
static __always_inline u64 curr_vt_at(u32 cpu, const struct cpu_ctx *c, u64 now)
{
	u64 ran = ns_since(c->curr_since, now);

	return c->curr_vt + vt_delta(charged_ns(cpu, ran), c->curr_inv);
}

/* A slice of the lightest task that was on @c of late, in its virtual time. */
static __always_inline u64 lightest_slice_vt(const struct cpu_ctx *c)
{
	return cgroup_flat ? vt_delta(slice_ns, c->lightest_inv) : 0;
}

/*
 * How far the frames of two CPUs may be apart when a task moves between them.
 * The slices that count are those of the lightest task concerned: with less, a
 * difference that its single slice makes would be forgiven before the CPUs
 * could even it out.
 */
static __always_inline u64 frame_drift(const struct cpu_ctx *c,
				       const struct cpu_ctx *from)
{
	u64 drift = FRAME_DRIFT_SLICES * vt_delta(slice_ns, INV_NICE_0);
	u64 here = LAG_LIGHTEST_SLICES * lightest_slice_vt(c);
	u64 there = LAG_LIGHTEST_SLICES * lightest_slice_vt(from);

	if (drift < here)
		drift = here;
	return drift < there ? there : drift;
}

/*
 * Bring the frame of @c, whose clock stands at @clock, within reach of that of
 * @from. An empty queue has no claims on others and takes over their frame.
 */
static __always_inline void align_frame(struct cpu_ctx *c, u64 clock,
					const struct cpu_ctx *from)
{
	u64 drift = 0;

	if (c->nr_queued || (cgroup_flat && c->running))
		drift = frame_drift(c, from);
	c->offset = frame_offset(clock, c->offset, frame_of(from, from->clock),
				 drift);
}

/*
 * Virtual time of @p by the clock of @cpu, which stands at @clock, carried over
 * from the CPU where it was last charged.
 */
static __always_inline u64 task_vt_on(const struct task_struct *p, u32 cpu,
				      struct cpu_ctx *c, u64 clock)
{
	u64 key = p->scx.dsq_vtime;
	const struct cpu_ctx *from;

	if (cpu_of_key(key) == cpu)
		return vt_of_key(key);
	from = cpu_ctx(cpu_of_key(key));
	align_frame(c, clock, from);
	return frame_of(from, vt_of_key(key)) + c->offset;
}

/* The most credit of a task of standing @who: as a rule @slice_vt, its slice. */
static __always_inline u64 credit_vt_of(const struct standing *who,
					u64 slice_vt)
{
	return who->credit_inv == who->inv
		       ? slice_vt
		       : vt_delta(slice_ns, who->credit_inv);
}

/*
 * Where a @p that slept, of standing @who, enters the queue of @cpu, whose running
 * task, if any, is at @curr_vt. A sleeper with credit does not wait for a hog,
 * however much that one is owed.
 */
static __always_inline u64 wakee_vt(const struct task_struct *p,
				    const struct standing *who, u32 cpu,
				    struct cpu_ctx *c, u64 curr_vt)
{
	u64 key = p->scx.dsq_vtime, clock = c->clock, others;
	u64 slice_vt = vt_delta(slice_ns, who->inv);
	u64 credit_vt = credit_vt_of(who, slice_vt);
	u64 credit = lag_credit(vt_of_key(key), cpu_ctx(cpu_of_key(key))->clock,
				credit_vt);
	u64 vt;

	/* With nobody waiting, the clock is where the running task is. */
	if (c->running && !c->nr_queued)
		clock = vt_max(clock, curr_vt);
	others = c->running && c->curr_hog ? vt_min(clock, curr_vt) : clock;
	vt = lag_clamp(task_vt_on(p, cpu, c, clock), clock, credit_vt,
		       slice_vt);
	return lag_among(vt, others, credit);
}

/*
 * Where a @p that was runnable all the time, of standing @who, enters the queue of
 * @cpu.
 */
static __always_inline u64 waiter_vt(const struct task_struct *p,
				     const struct standing *who, u32 cpu,
				     struct cpu_ctx *c)
{
	u64 vt = task_vt_on(p, cpu, c, c->clock);
	u64 lightest;

	/* Most are not behind, or within the bound of the lightest. */
	if (!vt_before(vt, c->clock))
		return vt;
	lightest = lightest_slice_vt(c);
	if (!vt_before(vt, c->clock - LAG_LIGHTEST_SLICES * lightest))
		return vt;
	return lag_floor(vt, c->clock, vt_delta(slice_ns, who->inv), lightest);
}

/*
 * Bound the lag of a @p that slept by the clock that it slept by. For a task
 * that goes to an idle CPU, whose own clock is not to be touched from here.
 */
static __always_inline void bound_sleeper(struct task_struct *p)
{
	u64 key = p->scx.dsq_vtime;
	const struct cpu_ctx *from = cpu_ctx(cpu_of_key(key));
	struct standing who = standing_of(p);
	u64 slice_vt = vt_delta(slice_ns, who.inv);
	u64 vt = lag_clamp(vt_of_key(key), from->clock,
			   credit_vt_of(&who, slice_vt), slice_vt);

	p->scx.dsq_vtime = vt_key(vt, cpu_of_key(key)) | (key & KEY_UNCOUNTED);
}

/* ops.enable: a task enters the scheduler, at fork or from another class. */
static __always_inline void runq_init_task(struct task_struct *p)
{
	u32 cpu = cpu_of_task(p);

	/*
	 * Without lag but half a slice in debt, as EEVDF does, so that a fork
	 * storm does not run ahead of those who were there before.
	 */
	p->scx.dsq_vtime = vt_key(cpu_ctx(cpu)->clock +
					  vt_delta(slice_ns / 2, task_inv(p)),
				  cpu) |
			   KEY_UNCOUNTED;
}

/* One of standing @who waits or runs on the CPU of @c. */
static __always_inline void runq_note_weight(struct cpu_ctx *c,
					     const struct standing *who)
{
	/* A task that yields to all does not count, least of all for credit. */
	if (who->inv > c->lightest_inv && !who->idle)
		c->lightest_inv = who->inv;
}

/*
 * Virtual time of the head of the queue of @cpu, in its own clock. False if
 * the queue is empty.
 */
static __always_inline bool runq_head(u32 cpu, u64 *vt)
{
	struct task_struct *head = __COMPAT_scx_bpf_dsq_peek(cpu);

	if (!head)
		return false;
	*vt = vt_of_key(head->scx.dsq_vtime);
	return true;
}

/*
 * How far a task at @vt that starts on @cpu past the queue may move the clock: not
 * beyond the tasks that wait there. They come first. Else a wakee, which enters by the
 * clock, would wait for all of them. Global, so that the verifier looks at it once.
 */
__noinline u64 vt_beside_queue(u32 cpu, u64 vt)
{
	u64 first;

	return runq_head(cpu, &first) ? vt_min(vt, first) : vt;
}

/* One at @vt starts on @cpu. */
static __always_inline void runq_set_clock(u32 cpu, struct cpu_ctx *c, u64 vt)
{
	if (c->nr_queued && !c->picked)
		vt = vt_beside_queue(cpu, vt);
	c->clock = vt_max(c->clock, vt);
	c->picked = false;
}

/* @p, which is at @vt, runs from now on by the standing @who that it has now. */
static __always_inline void runq_rebase(u32 cpu, struct cpu_ctx *c,
					const struct task_struct *p, u64 vt,
					const struct standing *who)
{
	c->curr_vt = vt;
	c->curr_inv = who->inv;
	c->curr_sum_exec = p->se.sum_exec_runtime;
	c->curr_since = rq_now(cpu);
	if (!cgroup_flat)
		return;
	c->curr_weight = who->weight;
	c->curr_group = who->group;
	runq_note_weight(c, who);
}

/* ops.running: @p, of standing @who, starts on @cpu. */
static __always_inline void runq_start(u32 cpu, struct task_struct *p,
				       const struct standing *who)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 vt = waiter_vt(p, who, cpu, c);

	runq_set_clock(cpu, c, vt);
	runq_rebase(cpu, c, p, vt, who);
	idle_note_running(cpu, c, who->idle);
	c->curr_idle = who->idle;
	c->curr_hog = task_is_hog(p, wakeup_granularity_ns);
	c->curr_pinned = p->nr_cpus_allowed == 1;
	/* What the task before it said. */
	c->yielded = false;
	c->sync_wakee = 0;
	c->running = true;
	c->local_pending = false;
	c->own_work = false;
}

/*
 * CPU time of @p, the running task of @c, since it started or was rebased. By the
 * kernel's account, which unlike @curr_since may leave out interrupts and stolen
 * time (rq->clock_task), and is up to date where the kernel has just charged @p:
 * in ops.dispatch and ops.stopping.
 */
static __always_inline u64 curr_ran_ns(const struct cpu_ctx *c,
				       const struct task_struct *p)
{
	return p->se.sum_exec_runtime - c->curr_sum_exec;
}

/* Virtual time that @p, which runs on @cpu, has reached. */
static __always_inline u64 runq_charge(u32 cpu, const struct cpu_ctx *c,
				       const struct task_struct *p)
{
	return c->curr_vt +
	       vt_delta(charged_ns(cpu, curr_ran_ns(c, p)), c->curr_inv);
}

/* ops.stopping: @p leaves @cpu. */
static __always_inline void runq_stop(u32 cpu, struct task_struct *p)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 vt = runq_charge(cpu, c, p);

	p->scx.dsq_vtime = vt_key(vt, cpu);
	c->running = false;
	/* Alone, the task is the clock. */
	if (!c->nr_queued)
		c->clock = vt_max(c->clock, vt);
}

/*
 * Queue @p, of standing @who and at @vt, on @cpu. A SCHED_IDLE task, which any wakee
 * may preempt, is not first in line then either. One that @stays is not offered to
 * other CPUs before the next tick (rescue_waiting()).
 */
static __always_inline void runq_insert(struct task_struct *p,
					const struct standing *who, u32 cpu,
					struct cpu_ctx *c, u64 vt, bool stays,
					u64 enq_flags)
{
	if (who->idle)
		vt = lag_of_idle(vt, c->clock, vt_delta(slice_ns, INV_NICE_0),
				 vt_delta(slice_ns, who->inv));
	c->nr_queued++;
	if (p->nr_cpus_allowed > 1) {
		c->offered = true;
		if (!stays)
			offer(cpu);
	}
	scx_bpf_dsq_insert_vtime(p, cpu, slice_ns, vt_key(vt, cpu), enq_flags);
	count(queued);
}

/* The queue was found empty, under the rq lock. */
static __always_inline void runq_mark_empty(u32 cpu, struct cpu_ctx *c)
{
	c->nr_queued = 0;
	c->lightest_inv = 0;
	if (c->offered) {
		c->offered = false;
		withdraw(cpu);
	}
}

/*
 * Move the head of the queue of this CPU to the CPU. False, and the queue
 * marked as empty, if there was none.
 */
static __always_inline bool runq_pick(u32 cpu, struct cpu_ctx *c)
{
	if (!c->nr_queued)
		return false;
	if (scx_bpf_dsq_move_to_local(cpu, 0)) {
		c->picked = true;
		if (!--c->nr_queued)
			c->lightest_inv = 0;
		return true;
	}
	runq_mark_empty(cpu, c);
	return false;
}

/*
 * Let @prev, which runs on this CPU and is at @vt, run for another slice. Whatever
 * it did before, after one that long it is a hog, and has not just begun either.
 */
static __always_inline void runq_keep(u32 cpu, struct cpu_ctx *c,
				      struct task_struct *prev, u64 vt)
{
	u64 ran = curr_ran_ns(c, prev);
	struct standing who = standing_of(prev);

	prev->scx.slice = slice_ns;
	c->curr_hog = ran > wakeup_granularity_ns ||
		      task_is_hog(prev, wakeup_granularity_ns);
	c->clock = vt_max(c->clock, vt);
	if (cgroup_flat)
		runq_rebase(cpu, c, prev, vt, &who);
	count(kept);
}

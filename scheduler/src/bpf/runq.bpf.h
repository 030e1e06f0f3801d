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
 * times of tasks that wait can be carried from one CPU to another and compared
 * between them. A task that sleeps brings its lag.
 */
#pragma once

#include "burst.bpf.h"
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
 * Where a @p that slept, of standing @who, is by the clock of @cpu, of @c, which stands at
 * @clock. The frame of a busy CPU stays as it is: it says what its tasks are owed by others'
 * tasks, and that of an idle CPU, from where @p may come, stands still.
 */
static __always_inline u64 sleeper_vt(const struct task_struct *p,
				      const struct standing *who, u32 cpu,
				      const struct cpu_ctx *c, u64 clock)
{
	u64 slice_vt = vt_delta(slice_ns, who->inv);
	u32 from_cpu = cpu_of_key(p->scx.dsq_vtime);
	u64 vt = vt_of_key(p->scx.dsq_vtime);
	const struct cpu_ctx *from = cpu_ctx(from_cpu);

	if (from_cpu != cpu)
		vt = frame_of(from, vt) +
		     frame_offset(clock, c->offset, frame_of(from, from->clock),
				  frame_drift(c, from));
	return lag_clamp(vt, clock, credit_vt_of(who, slice_vt), slice_vt);
}

/*
 * Where a @p that slept, of standing @who, enters the queue of @cpu, whose running
 * task, if any, is at @curr_vt. A sleeper with credit does not wait for a hog,
 * however much that one is owed.
 */
static __always_inline u64 wakee_vt(const struct task_struct *p,
				    const struct standing *who, u32 cpu,
				    const struct cpu_ctx *c, u64 curr_vt)
{
	u64 key = p->scx.dsq_vtime, clock = c->clock, others;
	u64 credit =
		lag_credit(vt_of_key(key), cpu_ctx(cpu_of_key(key))->clock,
			   credit_vt_of(who, vt_delta(slice_ns, who->inv)));

	/* With nobody waiting, the clock is where the running task is. */
	if (c->running && !c->nr_queued)
		clock = vt_max(clock, curr_vt);
	others = c->running && c->curr_hog ? vt_min(clock, curr_vt) : clock;
	return lag_among(sleeper_vt(p, who, cpu, c, clock), others, credit);
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

/* ops.enable: a task enters the scheduler, at fork or from another class. */
static __always_inline void runq_init_task(struct task_struct *p)
{
	u32 cpu = cpu_of_task(p);

	/*
	 * No lag but half a slice of debt, as in EEVDF: a fork storm does not
	 * run ahead of the tasks that were there before.
	 */
	scx_bpf_task_set_dsq_vtime(
		p, vt_key(cpu_ctx(cpu)->clock +
				  vt_delta(slice_ns / 2, task_inv(p)),
			  cpu) |
			   KEY_UNCOUNTED);
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
	runq_note_weight(c, who);
	if (!cgroup_flat)
		return;
	c->curr_weight = who->weight;
	c->curr_group = who->group;
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

/* ops.stopping: @p leaves @cpu; if it sleeps, the loads of groups count it no more. */
static __always_inline void runq_stop(u32 cpu, struct task_struct *p,
				      bool runnable)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 vt = runq_charge(cpu, c, p);

	scx_bpf_task_set_dsq_vtime(p, vt_key(vt, cpu) |
					      (runnable ? 0 : KEY_UNCOUNTED));
	c->running = false;
	/* Alone, the task is the clock. */
	if (!c->nr_queued)
		c->clock = vt_max(c->clock, vt);
}

/*
 * Offer @p to others, which is about to be queued on @cpu: before the look for an idle
 * CPU. One that goes idle looks at the offers after it has become visible as idle, so
 * either of the two sees the other.
 */
static __always_inline void runq_offer(const struct task_struct *p, u32 cpu)
{
	if (p->nr_cpus_allowed > 1)
		offer(cpu);
}

/* A task that was offered by @cpu has gone elsewhere. */
static __always_inline void runq_withdraw(u32 cpu, const struct cpu_ctx *c)
{
	if (!c->nr_queued)
		withdraw(cpu);
}

/*
 * Queue @p, of standing @who and at @vt, on @cpu. A SCHED_IDLE task, which any wakee
 * may preempt, is not first in line then either.
 */
static __always_inline void runq_insert(struct task_struct *p,
					const struct standing *who, u32 cpu,
					struct cpu_ctx *c, u64 vt,
					u64 enq_flags)
{
	if (who->idle)
		vt = lag_of_idle(vt, c->clock, vt_delta(slice_ns, INV_NICE_0),
				 vt_delta(slice_ns, who->inv));
	c->nr_queued++;
	if (is_much_lighter(c->lightest_inv, who->inv) && !who->idle)
		c->heavier_waits = true;
	if (p->nr_cpus_allowed > 1)
		c->offered = true;
	scx_bpf_dsq_insert_vtime(p, cpu, slice_ns, vt_key(vt, cpu), enq_flags);
	count(queued);
}

/* How many tasks of a queue are looked at for one that is much heavier than the first. */
#define HEAVIER_LOOKS 32

/*
 * Goes @p before those it waits behind, which the walk of @c has met, as it is due; or
 * before the light task that had the slice that is over, of inverse weight @curr_inv?
 * These may be owed many slices of @p's.
 */
static __always_inline bool goes_before_lighter(const struct task_struct *p,
						const struct cpu_ctx *c,
						u64 inv, u64 curr_inv)
{
	u64 vt = vt_of_key(p->scx.dsq_vtime);

	if (is_much_lighter(curr_inv, inv) &&
	    may_lead(vt, c->curr_vt, curr_inv, slice_ns))
		return true;
	return is_much_lighter(c->lightest_met_inv, inv) &&
	       !task_is_hog(p, wakeup_granularity_ns) &&
	       is_due(vt, inv, c->clock, wakeup_granularity_ns);
}

/*
 * The walk of @cpu meets @p: does it go before lighter ones? Global, so that the verifier looks
 * at it once and not in each turn of the loop.
 */
__noinline bool runq_meet(const struct task_struct *p __arg_trusted, u32 cpu,
			  u64 curr_inv)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 inv = task_inv(p);
	bool before = goes_before_lighter(p, c, inv, curr_inv);

	if (inv > c->lightest_met_inv)
		c->lightest_met_inv = inv;
	return before;
}

/*
 * Move the first task in the queue of @cpu, this one, to the CPU that goes before lighter
 * ones. @curr_inv: inverse weight of the task whose slice is over, or 0. Global, as
 * runq_meet().
 */
__noinline bool runq_pick_heavier(u32 cpu, u64 curr_inv)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;

	c->looks = 0;
	c->lightest_met_inv = 0;
	bpf_for_each(scx_dsq, p, cpu, 0) {
		if (!may_look(c, HEAVIER_LOOKS))
			break;
		if (runq_meet(p, cpu, curr_inv) &&
		    scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0))
			return true;
	}
	return false;
}

/*
 * Of those in the queue of this CPU, one that is due comes before those that are much
 * lighter; at the end of a slice, so does one that is much heavier than the task that runs.
 */
static __always_inline bool runq_serve_heavier(u32 cpu, struct cpu_ctx *c,
					       bool slice_end)
{
	if (!c->heavier_waits)
		return false;
	if (runq_pick_heavier(cpu, slice_end ? c->curr_inv : 0)) {
		c->nr_queued--;
		return true;
	}
	c->heavier_waits = false;
	return false;
}

/* The queue was found empty, under the rq lock. */
static __always_inline void runq_mark_empty(u32 cpu, struct cpu_ctx *c)
{
	c->nr_queued = 0;
	c->lightest_inv = 0;
	c->heavier_waits = false;
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
	if (runq_serve_heavier(cpu, c, false))
		return true;
	if (scx_bpf_dsq_move_to_local(cpu, 0)) {
		c->picked = true;
		if (!--c->nr_queued)
			c->lightest_inv = 0;
		return true;
	}
	runq_mark_empty(cpu, c);
	return false;
}

/* Let @prev, which runs on this CPU and is at @vt, run for another slice. */
static __always_inline void runq_keep(u32 cpu, struct cpu_ctx *c,
				      struct task_struct *prev, u64 vt)
{
	struct standing who = standing_of(prev);

	scx_bpf_task_set_slice(prev, slice_ns);
	c->curr_hog = task_is_hog(prev, wakeup_granularity_ns);
	c->clock = vt_max(c->clock, vt);
	if (cgroup_flat)
		runq_rebase(cpu, c, prev, vt, &who);
	count(kept);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Enqueue: a task becomes runnable, on an idle CPU that ops.select_cpu found or where
 * none was at hand, or it is runnable still and its slice is over.
 */
#pragma once

#include "heddle.bpf.h"
#include "asym.bpf.h"
#include "bandwidth.bpf.h"
#include "burst.bpf.h"
#include "group_load.bpf.h"
#include "idle.bpf.h"
#include "release.bpf.h"
#include "relief.bpf.h"
#include "runq.bpf.h"
#include "schedstat.bpf.h"
#include "wakeq.bpf.h"

/*
 * Kernel threads of one CPU go first: they do the CPU's own work (softirq,
 * stop, migration), briefly, and others wait for it.
 */
static __always_inline bool is_percpu_kthread(const struct task_struct *p)
{
	return (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1;
}

/* One that runs for longer at a time, on average, is not brief. */
#define OWN_WORK_NS 100000ULL

/* Put @p, which is at @vt, past the queue of @cpu, on to the CPU itself. */
static __always_inline void insert_local(struct task_struct *p, u64 dsq_id,
					 u32 cpu, u64 vt, u64 enq_flags)
{
	scx_bpf_task_set_dsq_vtime(p, vt_key(vt, cpu));
	scx_bpf_dsq_insert(p, dsq_id, slice_ns, enq_flags);
}

/*
 * Will the task that runs on @cpu soon let go of it for @p, which wakes up? It says
 * so where it woke @p itself (the kernel's hint, WF_SYNC); else it is likely of one
 * that is no hog and has just begun.
 */
static __always_inline bool curr_is_ending(const struct task_struct *p, u32 cpu,
					   const struct cpu_ctx *c, u64 now)
{
	if (cpu == bpf_get_smp_processor_id() && c->sync_wakee == p->pid)
		return true;
	return !c->curr_hog &&
	       ns_since(c->curr_since, now) < wakeup_granularity_ns;
}

/* Does @p, the @wakee, take @cpu from the task that runs there, @curr? */
static __always_inline bool takes_cpu(const struct task_struct *p, u32 cpu,
				      const struct cpu_ctx *c,
				      const struct contender *wakee,
				      const struct contender *curr, u64 now)
{
	if (wakeup_preempts(wakee, curr, wakeup_granularity_ns))
		return !left_to_finish(wakee, curr) ||
		       !curr_is_ending(p, cpu, c, now);
	return wakee_outranks_light(wakee, curr, c->clock,
				    wakeup_granularity_ns);
}

/*
 * Is @p, which wakes up, pinned and the next to run on @cpu? Nobody waits there, and either
 * the CPU idles, or both the task that runs and @p are brief. A task that wakes up meanwhile
 * waits for two brief runs at most.
 */
static __always_inline bool runs_next(const struct task_struct *p, u32 cpu,
				      const struct cpu_ctx *c, u64 now)
{
	if (p->nr_cpus_allowed > 1 || c->nr_queued || c->local_pending)
		return false;
	return !c->running || (curr_is_ending(p, cpu, c, now) &&
			       !task_is_hog(p, wakeup_granularity_ns));
}

/*
 * A wakee, at @now, whose CPU is busy. True if it got on to the CPU past the queue; else
 * @vt is where it joins the queue.
 */
static __always_inline bool enqueue_wakee(struct task_struct *p,
					  const struct standing *who, u32 cpu,
					  struct cpu_ctx *c, u64 now, u64 *vt,
					  u64 enq_flags)
{
	struct contender curr = {
		.vt = curr_vt_at(cpu, c, now),
		.inv = c->curr_inv,
		.idle = c->curr_idle,
	};
	struct contender wakee = {
		.inv = who->inv,
		.idle = who->idle,
		.batch = p->policy == SCHED_BATCH,
	};

	*vt = wakee_vt(p, who, cpu, c, curr.vt);
	wakee.vt = *vt;

	/*
	 * One at a time: the running task may go on to wake a hundred others
	 * before it lets go, and past the queue nobody could pull them.
	 */
	if (c->running && !c->local_pending &&
	    takes_cpu(p, cpu, c, &wakee, &curr, now)) {
		c->local_pending = true;
		insert_local(p, SCX_DSQ_LOCAL, cpu, *vt,
			     enq_flags | SCX_ENQ_PREEMPT);
		count(preempt);
		return true;
	}
	/* It cannot be pulled, and need not take the way through the queue. */
	if (runs_next(p, cpu, c, now)) {
		c->local_pending = true;
		insert_local(p, SCX_DSQ_LOCAL, cpu, *vt, enq_flags);
		count(local);
		return true;
	}
	return false;
}

/*
 * @p was on its CPU when another class took that (release.bpf.h), and can go nowhere
 * else: it keeps its place and what is left of its slice.
 */
static __always_inline void enqueue_back(struct task_struct *p, u64 enq_flags)
{
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, 0, enq_flags);
	count(local);
}

/*
 * A CPU may idle all the same: it went idle after ops.select_cpu looked, or that did not
 * look, as @p is new or was preempted by a task that may not run there; then it may be on
 * another node. If a better CPU has @refused
 * @p, this is a move of a task that ran, and counts as one.
 */
static __always_inline bool enqueue_idle(struct task_struct *p, u32 cpu, u64 vt,
					 u64 enq_flags, bool refused)
{
	bool wakeup = enq_flags & SCX_ENQ_WAKEUP;
	/* A wakee waits near its caches for a while (FAR_NS). */
	u64 words = words_for_waiter(cpu, wakeup ? REACH_LLC : wait_reach());
	s32 idle_cpu;

	if (!words || is_tied(p))
		return false;
	idle_cpu = idle_among(p, cpu, words);
	if (idle_cpu < 0 || is_taken(idle_cpu))
		return false;
	if (may_be_kept(idle_cpu)) {
		cpu_ctx(idle_cpu)->pull_asked = true;
		kick(idle_cpu, SCX_KICK_IDLE);
		return false;
	}
	runq_withdraw(cpu, cpu_ctx(cpu));
	insert_local(p, SCX_DSQ_LOCAL_ON | idle_cpu, cpu, vt, enq_flags);
	/*
	 * If @p gets elsewhere before it gets there, nobody wakes the CPU, which
	 * would be taken for claimed ever after.
	 */
	kick(idle_cpu, SCX_KICK_IDLE);
	if (refused)
		asym_charge(idle_cpu, scx_bpf_now());
	count(idle_late);
	return true;
}

/*
 * @p, which is new or was put aside, finds a SCHED_IDLE task running where it is
 * or not far, and takes its CPU: that is as good as an idle one. A wakee was sent
 * to such a CPU by select_cpu, and preempts there as any other.
 */
static __always_inline bool enqueue_over_idle(struct task_struct *p,
					      const struct standing *who,
					      u32 cpu, struct cpu_ctx *c,
					      u64 vt, u64 enq_flags)
{
	u64 dsq_id = SCX_DSQ_LOCAL;

	if (!sched_idle_seen || who->idle)
		return false;
	if (c->running && c->curr_idle && !c->local_pending) {
		c->local_pending = true;
	} else {
		s32 to = is_tied(p) ? -EBUSY : claim_sched_idle(p, cpu, 0);

		if (to < 0)
			return false;
		dsq_id = SCX_DSQ_LOCAL_ON | to;
	}
	insert_local(p, dsq_id, cpu, vt, enq_flags | SCX_ENQ_PREEMPT);
	count(preempt);
	return true;
}

/*
 * @p, at @vt, ran on @cpu and goes to the better one that asked for it. Sets @refused if it
 * may not go there.
 */
static __always_inline bool asym_move(struct task_struct *p, u32 cpu, u64 vt,
				      u64 enq_flags, bool *refused)
{
	s32 to = asym_take_request(cpu);

	if (to < 0)
		return false;
	if (is_tied(p) || is_taken(to) || may_be_kept(to) ||
	    !bpf_cpumask_test_cpu(to, p->cpus_ptr)) {
		kick(to, 0);
		count(asym_refused);
		*refused = true;
		return false;
	}
	insert_local(p, SCX_DSQ_LOCAL_ON | to, cpu, vt, enq_flags);
	kick(to, SCX_KICK_IDLE);
	count(asym_moved);
	return true;
}

/*
 * Does @cpu, of @c, idle but for @p? Not if @p was put aside there a moment ago, or is to
 * wait for another class.
 */
static __always_inline bool idles_for(const struct task_struct *p, u32 cpu,
				      const struct cpu_ctx *c)
{
	return !c->running && !c->nr_queued && !c->local_pending &&
	       !c->offline && p != bpf_get_current_task_btf() && !is_taken(cpu);
}

/* @p comes to the idle @cpu, of @c: it need not go through the queue. */
static __always_inline void enqueue_on_idle(struct task_struct *p,
					    const struct standing *who, u32 cpu,
					    struct cpu_ctx *c, u64 enq_flags)
{
	c->local_pending = true;
	count(idle_direct);
	if (!(enq_flags & SCX_ENQ_WAKEUP)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	align_frame(c, c->clock, cpu_ctx(cpu_of_key(p->scx.dsq_vtime)));
	insert_local(p, SCX_DSQ_LOCAL, cpu, sleeper_vt(p, who, cpu, c, c->clock),
		     enq_flags);
}

/* ops.enqueue */
static __always_inline void enqueue_task(struct task_struct *p, u64 enq_flags)
{
	u32 cpu = cpu_of_task(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 last_cpu = cpu_of_key(p->scx.dsq_vtime);
	bool wakeup = enq_flags & SCX_ENQ_WAKEUP, stays, refused = false;
	struct standing who = standing_of(p);
	u64 vt, now;

	load_join(cpu, p, &who);
	if (bandwidth_park(p, cpu, c, enq_flags)) {
		release_wait(cpu);
		return;
	}
	if ((enq_flags & SCX_ENQ_REENQ) && is_tied(p)) {
		enqueue_back(p, enq_flags);
		return;
	}
	if (wakeup)
		schedstat_ttwu();
	if (wakeup && is_percpu_kthread(p)) {
		c->own_work = !task_is_hog(p, OWN_WORK_NS);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns,
				   enq_flags | SCX_ENQ_PREEMPT);
		count(local);
		return;
	}
	stays = idles_for(p, cpu, c);
	/* Where another class may come, it is safe in the queue only, and stays there. */
	if (stays && !may_be_kept(cpu)) {
		enqueue_on_idle(p, &who, cpu, c, enq_flags);
		return;
	}
	if (wakeup) {
		now = rq_now(cpu);
		if (enqueue_wakee(p, &who, cpu, c, now, &vt, enq_flags))
			return;
	} else {
		vt = waiter_vt(p, &who, cpu, c);
		if (asym_move(p, cpu, vt, enq_flags, &refused))
			return;
		/*
		 * Put aside for the CPU's own work, it is back sooner than elsewhere: it
		 * is not offered before the next tick (rescue).
		 */
		stays |= c->own_work;
	}
	if (!stays) {
		runq_offer(p, cpu);
		if (enqueue_idle(p, cpu, vt, enq_flags, refused))
			return;
	}
	if (!stays && !wakeup &&
	    enqueue_over_idle(p, &who, cpu, c, vt, enq_flags))
		return;
	if (c->offline) { /* or going offline: nobody picks from its queue */
		insert_local(p, SCX_DSQ_LOCAL, cpu, vt, enq_flags);
		return;
	}
	runq_insert(p, &who, cpu, c, vt, enq_flags);
	release_wait(cpu);
	if (!wakeup && stays)
		kick(cpu,
		     SCX_KICK_IDLE); /* of what is queued nobody tells it */
	if (!wakeup)
		relief_note(c, p);
	else if (!stays)
		wakeq_offer(p, vt_key(vt, cpu), last_cpu, now);
}

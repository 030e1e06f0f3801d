/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bandwidth: groups that may use only so much CPU time in a period (cpu.max).
 *
 * A group with a quota has a pool (policy/bandwidth.h), from which all CPUs draw
 * what tasks of that group, or of one below it, have run. Pools are chained to
 * the next one above, and a task draws from all of its chain. When one of them
 * is empty,
 *
 *   - a timer preempts the tasks that run on it;
 *   - a task that is to be queued is parked instead, in a queue of its CPU that
 *     nobody picks from;
 *   - a task that was queued before is parked as soon as it is picked.
 *
 * The timer runs while a task with a quota does, a millisecond later at most or
 * when the first pool will be empty. It begins the periods and has the CPUs
 * release what they parked. Released tasks enter the run queue as if they had
 * slept: at their own virtual time within the bounds of a sleeper, not before
 * all others. Kernel threads are never throttled, nor are tasks that exit. One in
 * the midst of an RCU reader, with which every grace period would wait, goes on
 * until it is out of that or its group owes too much: else a few dozen tasks that
 * are allowed a millisecond in each second would make RCU stall.
 *
 * Without any quota all of it is a test of one word.
 */
#pragma once

#include "heddle.bpf.h"
#include "cgroup.bpf.h"
#include "idle.bpf.h"
#include "policy/bandwidth.h"
#include "runq.bpf.h"
#include "timer.bpf.h"

/* linux/sched/signal.h */
#define SIGNAL_GROUP_EXIT 4

/*
 * Option: the kernel tells of cpu.max (ops.cgroup_set_bandwidth). Else the loader
 * does, which reads cgroupfs (bandwidth_watched()).
 */
const volatile bool cgroup_told_bandwidth;

/* The queue of the tasks parked on CPU n is PARK_DSQ + n. */
#define PARK_DSQ 0x10000

/* Time from one look of the timer at the pools to the next, ns. */
#define BANDWIDTH_MOST_NS 1000000ULL
#define BANDWIDTH_LEAST_NS 100000ULL

struct pool {
	s64 left; /* ns; negative: owed */
	u32 up; /* the next pool above, or 0 */

	/* Settings, ns. */
	u64 quota; /* 0: no limit */
	u64 period;
	u64 burst;

	/* The timer's. */
	u64 due; /* when the next period begins */
	u64 pending; /* used by what runs, and not drawn yet */
	u64 runners; /* CPUs that run on it */
	u64 throttled_since; /* 0: not throttled */

	/* For the loader's statistics, since the group got a quota. */
	u64 cgroup_id; /* or 0: no quota */
	u64 nr_throttled;
	u64 throttled_usec;
} __attribute__((aligned(CACHE_LINE)));

struct pool pools[MAX_GROUPS];

/* Which groups have a pool, and how many. */
u64 pool_words[MAX_GROUPS / 64];
u32 nr_pools;

static __always_inline struct pool *pool_at(u32 id)
{
	barrier_var(id);
	return &pools[id & (MAX_GROUPS - 1)];
}

/*
 * The clock of the pools. Not scx_bpf_now(): when a task is taken from a CPU,
 * that moment stays there as the valid time (7.3), and a timer would read it
 * until the CPU schedules next.
 */
static __always_inline u64 pool_now(void)
{
	return bpf_ktime_get_ns();
}

/* The word of pool_words that has the bit of the group @id. */
static __always_inline u64 *pool_word(u32 id)
{
	u32 word = id / 64;

	barrier_var(word);
	return &pool_words[word & (MAX_GROUPS / 64 - 1)];
}

/* Has any group a quota? */
static __always_inline bool any_quota(void)
{
	return cgroup_flat && nr_pools;
}

/* Has the group @id a quota, and used it up? */
static __always_inline bool pool_is_empty(u32 id)
{
	const struct pool *pool = pool_at(id);

	return any_quota() && pool->quota && *(volatile s64 *)&pool->left <= 0;
}

/* Does the group @id, whose quota is used up, owe too much for its readers, too? */
static __always_inline bool pool_stops_readers(u32 id)
{
	const struct pool *pool = pool_at(id);

	return *(volatile s64 *)&pool->left <=
	       -bandwidth_readers_debt(pool->quota, pool->period);
}

/*
 * Does any pool of the chain that starts at @id stop those that draw from it, of
 * which one is a @reader? As the other walks of a chain it is global, so that the
 * verifier looks at it once.
 */
__noinline bool chain_stops(u32 id, bool reader)
{
	u32 i;

	bpf_for(i, 0, GROUP_LEVELS) {
		if (!id)
			break;
		if (pool_is_empty(id) && (!reader || pool_stops_readers(id)))
			return true;
		id = pool_at(id)->up;
	}
	return false;
}

/* Draw @ns from all pools of the chain that starts at @id. */
__noinline int chain_draw(u32 id, u64 ns)
{
	u32 i;

	bpf_for(i, 0, GROUP_LEVELS) {
		if (!id)
			break;
		__sync_fetch_and_sub(&pool_at(id)->left, ns);
		id = pool_at(id)->up;
	}
	return 0;
}

/* @p is on its way out, and others may wait for it. */
static __always_inline bool task_exits(const struct task_struct *p)
{
	return p->flags & PF_EXITING || p->signal->flags & SIGNAL_GROUP_EXIT;
}

/*
 * Where there are quotas: has @p to wait until its group may run again? Out of line,
 * as bandwidth_follow(), so that tasks without a quota need not make room for it, and
 * global.
 */
__noinline bool quota_throttles(const struct task_struct *p __arg_trusted)
{
	u32 id = group_of(p)->pool;

	if (!id || !chain_stops(id, is_reader(p)))
		return false;
	return !(p->flags & PF_KTHREAD) && !task_exits(p);
}

/* Has @p to wait until its group may run again? */
static __always_inline bool is_throttled(const struct task_struct *p)
{
	return any_quota() && quota_throttles(p);
}

/* If @p, which runs on this CPU, draws from pools: draw what it has used. */
static __always_inline void bandwidth_settle(struct cpu_ctx *c,
					     const struct task_struct *p)
{
	u32 id = c->curr_pool;

	if (!cgroup_flat || !id)
		return;
	/* First, lest the timer count it twice: throttling late is made up for. */
	*(volatile u32 *)&c->curr_pool = 0;
	chain_draw(id, p->se.sum_exec_runtime - c->drawn_exec);
}

/* ops.stopping */
static __always_inline void bandwidth_stop(u32 cpu, const struct task_struct *p)
{
	bandwidth_settle(cpu_ctx(cpu), p);
}

/*
 * From now on @p, which runs on @cpu, draws from its group's pool. Has it to wait
 * instead?
 */
__noinline bool bandwidth_follow(u32 cpu,
				 const struct task_struct *p __arg_trusted)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 pool = group_of(p)->pool;

	if (!pool) {
		c->curr_pool = 0;
		return false;
	}
	c->drawn_exec = p->se.sum_exec_runtime;
	c->drawn_at = pool_now();
	/* Last: once the timer sees @curr_pool, it counts from @drawn_at on. */
	*(volatile u32 *)&c->curr_pool = pool;
	timer_arm(TIMER_BANDWIDTH, BANDWIDTH_LEAST_NS);
	return quota_throttles(p);
}

/* ops.running */
static __always_inline void bandwidth_start(u32 cpu, struct task_struct *p)
{
	if (!any_quota())
		return;
	if (!bandwidth_follow(cpu, p) || cpu_ctx(cpu)->offline)
		return;
	/* It was queued before; out of a slice, it is enqueued again: parked. */
	p->scx.slice = 0;
	kick(cpu, SCX_KICK_PREEMPT);
}

/*
 * The slice of @p is over. Its group may have got a quota since it began. Has @p
 * to wait now?
 */
static __always_inline bool bandwidth_slice_end(u32 cpu,
						const struct task_struct *p)
{
	bandwidth_settle(cpu_ctx(cpu), p);
	return any_quota() && bandwidth_follow(cpu, p);
}

/* ops.enqueue: park @p, which is on @cpu, if its group may not run. */
static __always_inline bool bandwidth_park(struct task_struct *p, u32 cpu,
					   struct cpu_ctx *c, u64 enq_flags)
{
	if (!is_throttled(p) || c->offline)
		return false;
	c->parked = true;
	scx_bpf_dsq_insert(p, PARK_DSQ + cpu, slice_ns, enq_flags);
	timer_arm(TIMER_BANDWIDTH, BANDWIDTH_LEAST_NS);
	count(parked);
	return true;
}

/*
 * Where @p, which @cpu had parked, enters its run queue: by the clock alone, as
 * a wakee where no task runs. The tasks that run when a quota is refilled are
 * not to be preempted by all that it releases. Global, as all that the loop of
 * release_parked() calls, so that the verifier looks at it once.
 */
__noinline u64 released_key(const struct task_struct *p __arg_trusted, u32 cpu)
{
	struct standing who = standing_of(p);
	struct cpu_ctx *c = cpu_ctx(cpu);

	return vt_key(wakee_vt(p, &who, cpu, c, c->clock), cpu);
}

/* An idle CPU may take @p, which waits on @cpu now. */
__noinline int offer_released(const struct task_struct *p __arg_trusted,
			      u32 cpu)
{
	s32 idle_cpu;

	if (p->nr_cpus_allowed == 1)
		return 0;
	cpu_ctx(cpu)->offered = true;
	offer(cpu);
	idle_cpu = idle_for_waiter(p, cpu, wait_reach());
	if (idle_cpu >= 0)
		kick(idle_cpu, SCX_KICK_IDLE);
	return 0;
}

/* Put @p, which this CPU, @cpu, had parked, on its run queue. */
static __always_inline void release_one(struct bpf_iter_scx_dsq *it,
					struct task_struct *p, u32 cpu)
{
	scx_bpf_dsq_move_set_slice(it, slice_ns);
	scx_bpf_dsq_move_set_vtime(it, released_key(p, cpu));
	if (!scx_bpf_dsq_move_vtime(it, p, cpu, 0))
		return;
	cpu_ctx(cpu)->nr_queued++;
	offer_released(p, cpu);
}

/* Release the tasks that @cpu, this CPU, has parked and that may run again. */
__noinline int release_parked(u32 cpu)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, PARK_DSQ + cpu, 0) {
		if (!is_throttled(p))
			release_one(BPF_FOR_EACH_ITER, p, cpu);
	}
	cpu_ctx(cpu)->parked = scx_bpf_dsq_nr_queued(PARK_DSQ + cpu) > 0;
	return 0;
}

/* ops.dispatch: the timer says when. */
static __always_inline void bandwidth_release(u32 cpu, struct cpu_ctx *c)
{
	if (!cgroup_flat || !c->release)
		return;
	c->release = false;
	release_parked(cpu);
}

/* The quota of the group @id has been lifted: it has no pool any more. */
static __always_inline void pool_remove(u32 id)
{
	u64 bit = 1ULL << (id & 63);

	if (__sync_fetch_and_and(pool_word(id), ~bit) & bit)
		__sync_fetch_and_sub(&nr_pools, 1);
}

static __always_inline void pool_add(u32 id)
{
	u64 bit = 1ULL << (id & 63);

	if (!(__sync_fetch_and_or(pool_word(id), bit) & bit))
		__sync_fetch_and_add(&nr_pools, 1);
}

/* Note which cgroup @pool belongs to: over time a slot passes to others. */
static __always_inline void pool_name(struct pool *pool, u64 cgroup_id)
{
	if (pool->cgroup_id == cgroup_id)
		return;
	pool->nr_throttled = 0;
	pool->throttled_usec = 0;
	*(volatile u64 *)&pool->cgroup_id = cgroup_id;
}

/* ops.cgroup_set_bandwidth, and as the group is made; us. */
static __always_inline void group_set_bandwidth(struct cgroup *cgrp,
						u64 period_us, u64 quota_us,
						u64 burst_us)
{
	u64 period = bandwidth_ns(period_us), burst = bandwidth_ns(burst_us);
	u64 quota = bandwidth_ns(quota_us);
	u32 id = slot_of(cgrp);
	struct pool *pool = pool_at(id);

	if (id >= MAX_GROUPS)
		return;
	if (quota == BANDWIDTH_MAX || !period_us)
		quota = 0;
	if (!quota && !pool->quota)
		return;
	pool_name(pool, quota ? cgrp->kn->id : 0);
	/* The loader may tell twice: that begins no period, and gains nothing. */
	if (quota == pool->quota && period == pool->period &&
	    burst == pool->burst)
		return;
	pool->period = period;
	pool->burst = burst;
	pool->left = quota;
	pool->due = pool_now() + pool->period;
	*(volatile u64 *)&pool->quota = quota;
	if (quota) {
		pool_add(id);
		group_at(id)->pool = id;
	}
	/* What is parked is looked at anew. */
	timer_arm(TIMER_BANDWIDTH, BANDWIDTH_LEAST_NS);
}

/*
 * The loader has read @limit from cgroupfs. A group that is being removed keeps
 * none: ops.cgroup_exit, which lifts it, may have been called meanwhile, and is
 * not called again. Under RCU, the group's slot is not another group's yet.
 */
static __always_inline int
bandwidth_watched(const struct bandwidth_limit *limit)
{
	struct cgroup *cgrp = bpf_cgroup_from_id(limit->cgroup_id);

	if (!cgrp)
		return -ENOENT;
	bpf_rcu_read_lock();
	group_set_bandwidth(cgrp, limit->period_us, limit->quota_us,
			    limit->burst_us);
	if (is_dying(cgrp))
		group_set_bandwidth(cgrp, 0, 0, 0);
	bpf_rcu_read_unlock();
	bpf_cgroup_release(cgrp);
	return 0;
}

/* The walk: which pool the tasks of the group @id draw from. */
static __always_inline void group_link_pool(u32 id, struct group *g,
					    const struct group *parent)
{
	if (!any_quota())
		return;
	pool_at(id)->up = parent->pool;
	g->pool = pool_at(id)->quota ? id : parent->pool;
}

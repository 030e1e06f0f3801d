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
 *   - a task that is preempted in user mode is parked, in a queue of its CPU from which no
 *     CPU picks. In the kernel it may hold a lock that others wait for, so there it runs
 *     on, until a tick or the timer finds it in user mode (stop.bpf.h);
 *   - a task in the kernel whose group owes 2 ms is asked to stop as it leaves the kernel.
 *     If it cannot be asked, it is parked where it is once the group owes too much.
 *
 * The timer runs while a task with a quota does, a millisecond later at most or
 * when the first pool will be empty. It begins the periods and has the CPUs
 * release what they parked. Released tasks enter the run queue as if they had
 * slept: at their own virtual time within the bounds of a sleeper, not before
 * all others. Kernel threads are never throttled, nor are tasks that exit, nor tasks that
 * may run only on a CPU that another class has: what they get there is little.
 *
 * Without any quota all of it is a test of one word.
 */
#pragma once

#include "heddle.bpf.h"
#include "cgroup.bpf.h"
#include "idle.bpf.h"
#include "policy/bandwidth.h"
#include "runq.bpf.h"
#include "stop.bpf.h"
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
	s64 forgiven; /* of what was owed since there was something left, ns */
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

/* The task of @c has gone on: where it was found no longer counts. */
static __always_inline void stop_forget(struct cpu_ctx *c)
{
	c->stop_looks = 0;
	c->at_user = 0;
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

/*
 * Where a task is as its group has used up its quota; if it cannot be asked to stop as it
 * leaves the kernel, by how many debts it is stopped there (bandwidth_kernel_debt()).
 */
enum whereabouts {
	AT_USER,
	AT_KERNEL = 1,
	AT_READER = 2, /* of RCU: every grace period would wait with it */
	LEAVING,
};

/* Does the group @id owe so much that it stops its tasks @where they are? */
static __always_inline bool pool_stops(u32 id, enum whereabouts where)
{
	const struct pool *pool = pool_at(id);
	s64 left = *(volatile s64 *)&pool->left;

	if (where == AT_USER)
		return true;
	if (where == LEAVING)
		return left <= -BANDWIDTH_LEAVING_NS;
	return left - pool->forgiven <=
	       -bandwidth_kernel_debt(pool->quota, pool->period, where);
}

/*
 * Does any pool of the chain that starts at @id stop those that draw from it, of which one
 * is @where? As the other walks of a chain it is global, so that the verifier looks at it
 * once.
 */
__noinline bool chain_stops(u32 id, enum whereabouts where)
{
	u32 i;

	bpf_for(i, 0, GROUP_LEVELS) {
		if (!id)
			break;
		if (pool_is_empty(id) && pool_stops(id, where))
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

/* linux/signal.h */
#define SIGKILL_BIT (1ULL << 8)

/* @p is on its way out, and others may wait for it. */
static __always_inline bool task_exits(const struct task_struct *p)
{
	return p->flags & PF_EXITING || p->signal->flags & SIGNAL_GROUP_EXIT ||
	       p->pending.signal.sig[0] & SIGKILL_BIT;
}

/*
 * Where there are quotas: has @p, which is @in_kernel, to wait until its group may run
 * again? In the kernel, if its group owes much, it is asked to stop as it leaves, unless it
 * cannot be. Out of line, as bandwidth_follow(), that those without a quota need not make
 * room for it, and global.
 */
__noinline bool quota_stops(const struct task_struct *p __arg_trusted,
			    bool in_kernel)
{
	u32 id = group_of(p)->pool;

	if (!id || p->flags & PF_KTHREAD || task_exits(p))
		return false;
	if (!in_kernel)
		return chain_stops(id, AT_USER);
	if (can_stop_leaving(p) && (!chain_stops(id, LEAVING) || stop_ask(p)))
		return false;
	return chain_stops(id, is_reader(p) ? AT_READER : AT_KERNEL);
}

static __always_inline bool is_stopped(const struct task_struct *p,
				       bool in_kernel)
{
	return any_quota() && quota_stops(p, in_kernel);
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
 * From now on @p, which runs on @cpu, draws from its group's pool. Is that used up?
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
	return quota_stops(p, false);
}

/*
 * May @p be parked on @cpu? Not where the core asks for no task any more, nor where
 * another class leaves it little as it is.
 */
static __always_inline bool may_park(const struct task_struct *p, u32 cpu)
{
	return !cpu_ctx(cpu)->offline &&
	       !((p->nr_cpus_allowed == 1 || is_migration_disabled(p)) &&
		 is_taken(cpu));
}

/*
 * The quota of @p, which runs on @cpu, is used up. Has it to stop at once, or to go on
 * until it is found in user mode?
 */
static __always_inline bool bandwidth_stops(u32 cpu, struct cpu_ctx *c,
					    struct task_struct *p)
{
	if (!may_park(p, cpu)) {
		c->at_user = 0;
		return false;
	}
	if (is_at_user(c, p)) {
		c->at_user = p->pid;
		return true;
	}
	if (c->stop_looks < STOP_LOOKS)
		c->stop_looks++;
	return quota_stops(p, true);
}

/* ops.running */
static __always_inline void bandwidth_start(u32 cpu, struct task_struct *p)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (!any_quota())
		return;
	/* A change of its standing has a task start again where it stands. */
	if (p != bpf_get_current_task_btf())
		stop_forget(c);
	if (!bandwidth_follow(cpu, p) || !may_park(p, cpu))
		return;
	c->stop_looks = 1;
	/* Ask at once: it may sleep before the next look. */
	quota_stops(p, true);
}

/*
 * The slice of @p is over. Its group may have got a quota since it began. Has @p
 * to wait now?
 */
static __always_inline bool bandwidth_slice_end(u32 cpu, struct task_struct *p)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	bandwidth_settle(c, p);
	if (any_quota() && bandwidth_follow(cpu, p))
		return bandwidth_stops(cpu, c, p);
	stop_forget(c);
	return false;
}

/*
 * The slice of a task that is parked, and of no other. It is kept while the task is dequeued
 * and enqueued anew without a run between, as its affinity changes or, up to 6.18, in the
 * switch away from one that may not migrate: there it may be parked again.
 */
static __always_inline u64 parked_slice(void)
{
	return slice_ns + 1;
}

/* ops.enqueue: park @p, which is on @cpu, if its group may not run. */
static __always_inline bool bandwidth_park(struct task_struct *p, u32 cpu,
					   struct cpu_ctx *c, u64 enq_flags)
{
	bool in_kernel = p->scx.slice != parked_slice() &&
			 (enq_flags & SCX_ENQ_WAKEUP || !is_at_user(c, p));

	if (!any_quota() || !may_park(p, cpu) || !quota_stops(p, in_kernel))
		return false;
	stop_done(p);
	c->parked = true;
	scx_bpf_dsq_insert(p, PARK_DSQ + cpu, parked_slice(), enq_flags);
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

/*
 * May @p, which is parked, run again? After as long as a group pays for its debts at most it
 * may for a moment in any case: others of its group, deep in the kernel, may use up all that
 * the group gets, and no task is to wait for 10 s.
 */
static __always_inline bool may_go_on(const struct task_struct *p)
{
	u64 until = p->scx.runnable_at + BANDWIDTH_DEBT_NS / tick_ns;

	return !is_stopped(p, false) || vt_before(until, bpf_jiffies64());
}

/* Release the tasks that @cpu, this CPU, has parked and that may run again. */
__noinline int release_parked(u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p;

	/* First: other CPUs set it after they have parked a task here. */
	*(volatile bool *)&c->parked = false;
	bpf_for_each(scx_dsq, p, PARK_DSQ + cpu, 0) {
		if (may_go_on(p))
			release_one(BPF_FOR_EACH_ITER, p, cpu);
	}
	if (scx_bpf_dsq_nr_queued(PARK_DSQ + cpu) > 0)
		c->parked = true;
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
	pool->forgiven = 0;
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

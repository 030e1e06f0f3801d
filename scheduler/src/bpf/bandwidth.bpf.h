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
 * all others. Kernel threads are never throttled, nor are tasks that exit.
 *
 * Without any quota all of it is a test of one word.
 */
#pragma once

#include "heddle.bpf.h"
#include "cgroup.bpf.h"
#include "idle.bpf.h"
#include "policy/bandwidth.h"
#include "runq.bpf.h"

/* linux/sched/signal.h */
#define SIGNAL_GROUP_EXIT 4

/* Option: this kernel tells of cpu.max (ops.cgroup_set_bandwidth). */
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
} __attribute__((aligned(CACHE_LINE)));

struct pool pools[MAX_GROUPS];

/* Which groups have a pool, and how many. */
u64 pool_words[MAX_GROUPS / 64];
u32 nr_pools;

struct bandwidth_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct bandwidth_timer);
} bandwidth_timers SEC(".maps");

/* The timer is set or its callback runs. */
u32 bandwidth_armed;

static __always_inline struct pool *pool_at(u32 id)
{
	barrier_var(id);
	return &pools[id & (MAX_GROUPS - 1)];
}

/*
 * The clock of the pools. Not scx_bpf_now(): whoever takes a task from a CPU
 * leaves the time of doing so there as valid (7.3), and in a timer, that would
 * be the time until the CPU schedules next.
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

/* Has the group @id a quota, and used it up? */
static __always_inline bool pool_is_empty(u32 id)
{
	const struct pool *pool = pool_at(id);

	return nr_pools && pool->quota && *(volatile s64 *)&pool->left <= 0;
}

/*
 * Is any pool of the chain that starts at @id empty? As the other walks of a
 * chain it is global, so that the verifier looks at it once.
 */
__noinline bool chain_is_empty(u32 id)
{
	u32 i;

	bpf_for(i, 0, GROUP_LEVELS) {
		if (!id)
			break;
		if (pool_is_empty(id))
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

/* Have the timer look at the pools in @delay_ns, or sooner. */
static __always_inline void bandwidth_arm(u64 delay_ns)
{
	struct bandwidth_timer *timer;
	u32 key = 0;

	/* A full barrier: the timer stops, then looks whether it may. */
	if (__sync_lock_test_and_set(&bandwidth_armed, 1))
		return;
	timer = bpf_map_lookup_elem(&bandwidth_timers, &key);
	if (timer)
		bpf_timer_start(&timer->timer, delay_ns, 0);
}

/* @p is on its way out, and others may wait for it. */
static __always_inline bool task_exits(const struct task_struct *p)
{
	return p->flags & PF_EXITING || p->signal->flags & SIGNAL_GROUP_EXIT;
}

/* Has @p to wait until its group may run again? */
static __always_inline bool is_throttled(const struct task_struct *p)
{
	u32 id;

	if (!nr_pools)
		return false;
	id = group_of(p)->pool;
	if (!id || !chain_is_empty(id))
		return false;
	return !(p->flags & PF_KTHREAD) && !task_exits(p);
}

/* @p, which runs on this CPU, has drawn from pools: draw what it has used. */
static __always_inline void bandwidth_settle(struct cpu_ctx *c,
					     const struct task_struct *p)
{
	u32 id = c->curr_pool;

	/* First, lest the timer count it twice: throttling late is made up for. */
	*(volatile u32 *)&c->curr_pool = 0;
	chain_draw(id, p->se.sum_exec_runtime - c->drawn_exec);
}

/* ops.stopping */
static __always_inline void bandwidth_stop(const struct task_struct *p)
{
	struct cpu_ctx *c = cpu_ctx(bpf_get_smp_processor_id());

	if (c->curr_pool)
		bandwidth_settle(c, p);
}

/* From now on @p, which runs on the CPU of @c, draws from its group's pool. */
static __always_inline void bandwidth_follow(struct cpu_ctx *c,
					     const struct task_struct *p)
{
	c->curr_pool = group_of(p)->pool;
	if (!c->curr_pool)
		return;
	c->drawn_exec = p->se.sum_exec_runtime;
	c->drawn_at = pool_now();
	bandwidth_arm(BANDWIDTH_LEAST_NS);
}

/* ops.running */
static __always_inline void bandwidth_start(struct task_struct *p)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (!nr_pools)
		return;
	bandwidth_follow(c, p);
	if (c->offline || !is_throttled(p))
		return;
	/* It was queued before; out of a slice, it is enqueued again: parked. */
	p->scx.slice = 0;
	kick(cpu, SCX_KICK_PREEMPT);
}

/*
 * The slice of @p is over. Its group may have got a quota since it began. Has @p
 * to wait now?
 */
static __always_inline bool bandwidth_slice_end(struct cpu_ctx *c,
						const struct task_struct *p)
{
	if (c->curr_pool)
		bandwidth_settle(c, p);
	if (!nr_pools)
		return false;
	bandwidth_follow(c, p);
	return is_throttled(p);
}

/* ops.enqueue: park @p if its group may not run. */
static __always_inline bool bandwidth_park(struct task_struct *p, u64 enq_flags)
{
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (!is_throttled(p) || c->offline)
		return false;
	c->parked = true;
	scx_bpf_dsq_insert(p, PARK_DSQ + cpu, slice_ns, enq_flags);
	bandwidth_arm(BANDWIDTH_LEAST_NS);
	count(parked);
	return true;
}

/*
 * Where @p, which @cpu had parked, enters its run queue. Global, as all that the
 * loop of release_parked() calls, so that the verifier looks at it once.
 */
__noinline u64 released_key(const struct task_struct *p __arg_trusted, u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	return vt_key(wakee_vt(p, cpu, c, c->clock), cpu);
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
	if (!c->release)
		return;
	c->release = false;
	release_parked(cpu);
}

/* Add to the pools that @cpu runs on what they are going to be charged. */
__noinline int pools_add_pending(u32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	u64 since = c->drawn_at;
	u32 id = c->curr_pool, i;

	bpf_for(i, 0, GROUP_LEVELS) {
		struct pool *pool = pool_at(id);

		if (!id)
			break;
		pool->runners++;
		/* It may have begun to draw after @now was read. */
		if (vt_before(since, now))
			pool->pending += now - since;
		id = pool->up;
	}
	return 0;
}

/* Is a pool that @cpu runs on empty? */
__noinline bool cpu_overdraws(u32 cpu)
{
	u32 id = cpu_ctx(cpu)->curr_pool, i;

	bpf_for(i, 0, GROUP_LEVELS) {
		if (!id)
			break;
		if (pool_at(id)->throttled_since)
			return true;
		id = pool_at(id)->up;
	}
	return false;
}

/* Begin the periods of @pool that are due. */
static __always_inline bool pool_refill(struct pool *pool, u64 now)
{
	u64 periods = bandwidth_periods(now, pool->due, pool->period);
	s64 left = *(volatile s64 *)&pool->left;

	if (!periods)
		return false;
	__sync_fetch_and_add(&pool->left,
			     bandwidth_refill(left, pool->quota, pool->burst,
					      pool->period, periods) -
				     left);
	pool->due += periods * pool->period;
	count(nr_periods);
	if (pool->throttled_since)
		count(nr_throttled);
	return true;
}

static __always_inline void pool_note_throttled(struct pool *pool,
						bool is_empty, u64 now)
{
	if (is_empty && !pool->throttled_since) {
		pool->throttled_since = now;
	} else if (!is_empty && pool->throttled_since) {
		count_by(throttled_usec, (now - pool->throttled_since) / 1000);
		pool->throttled_since = 0;
	}
}

/* What the timer's look at the pools has found so far. */
struct {
	u64 next; /* ns until another look is worth it */
	bool busy; /* there is to be one */
	bool release; /* tasks that are parked may run again */
} look;

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

/* As walk_measure(), a function of its own for the verifier. */
__noinline int pool_look(u32 id, u64 now)
{
	struct pool *pool = pool_at(id);
	u64 wait = BANDWIDTH_MOST_NS;
	s64 left;

	if (!*(volatile u64 *)&pool->quota) {
		pool_remove(id);
		if (*(volatile u64 *)&pool->quota) /* set meanwhile */
			pool_add(id);
		pool_note_throttled(pool, false, now);
		look.release = true;
		return 0;
	}
	if (pool_refill(pool, now))
		look.release = true;
	left = *(volatile s64 *)&pool->left - pool->pending;
	pool_note_throttled(pool, left <= 0, now);
	if (left <= 0) {
		look.busy = true;
		/* Preempted all at once, the first may not find it empty yet. */
		wait = pool->runners ? BANDWIDTH_LEAST_NS : pool->due - now;
	} else if (pool->runners) {
		wait = left / pool->runners;
	}
	pool->pending = 0;
	pool->runners = 0;
	if (wait < look.next)
		look.next = wait;
	return 0;
}

/* Look at the pools of the groups of @word. */
__noinline int pool_word_look(u32 word, u64 now)
{
	u64 left = *(volatile u64 *)pool_word(word * 64);
	u32 i;

	bpf_for(i, 0, 64) {
		if (!left)
			break;
		pool_look(word * 64 + first_bit(left), now);
		left &= left - 1;
	}
	return 0;
}

/*
 * Has @cpu parked a task that may run again? The timer's, whose programs the
 * verifier takes for sleepable, as is the one that sets it up.
 */
__noinline bool may_release(u32 cpu)
{
	struct task_struct *p;
	bool may = false;

	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, PARK_DSQ + cpu, 0) {
		may = !is_throttled(p);
		if (may)
			break;
	}
	bpf_rcu_read_unlock();
	return may;
}

/* Make @cpu act on what has been found. */
__noinline int bandwidth_enforce(u32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (c->parked) {
		look.busy = true;
		if (look.release && may_release(cpu)) {
			/* How fast they draw is to be seen when they run. */
			look.next = BANDWIDTH_LEAST_NS;
			c->release = true;
			kick(cpu, SCX_KICK_PREEMPT);
			return 0;
		}
	}
	if (c->curr_pool) {
		look.busy = true;
		if (cpu_overdraws(cpu))
			kick(cpu, SCX_KICK_PREEMPT);
	}
	return 0;
}

static int bandwidth_tick(void *map, u32 *key, struct bandwidth_timer *timer)
{
	u32 i, nr_cpus = scx_bpf_nr_cpu_ids();
	u64 now = pool_now();

	/* Whoever needs the timer from now on starts it anew. */
	__sync_lock_test_and_set(&bandwidth_armed, 0);
	look.next = BANDWIDTH_MOST_NS;
	look.busy = false;
	look.release = false;
	bpf_for(i, 0, nr_cpus)
		pools_add_pending(i, now);
	bpf_for(i, 0, MAX_GROUPS / 64)
		pool_word_look(i, now);
	bpf_for(i, 0, nr_cpus)
		bandwidth_enforce(i);
	if (look.busy)
		bandwidth_arm(look.next > BANDWIDTH_LEAST_NS
				      ? look.next
				      : BANDWIDTH_LEAST_NS);
	return 0;
}

/* ops.cgroup_set_bandwidth, and as the group is made; us. */
static __always_inline void group_set_bandwidth(struct cgroup *cgrp,
						u64 period_us, u64 quota_us,
						u64 burst_us)
{
	u32 id = slot_of(cgrp);
	struct pool *pool = pool_at(id);
	u64 quota = bandwidth_ns(quota_us);

	if (id >= MAX_GROUPS)
		return;
	if (quota == BANDWIDTH_MAX || !period_us)
		quota = 0;
	if (!quota && !pool->quota)
		return;
	pool->period = bandwidth_ns(period_us);
	pool->burst = bandwidth_ns(burst_us);
	pool->left = quota;
	pool->due = pool_now() + pool->period;
	*(volatile u64 *)&pool->quota = quota;
	if (quota) {
		pool_add(id);
		group_at(id)->pool = id;
	}
	/* What is parked is looked at anew. */
	bandwidth_arm(BANDWIDTH_LEAST_NS);
}

/* The walk: which pool the tasks of the group @id draw from. */
static __always_inline void group_link_pool(u32 id, struct group *g,
					    const struct group *parent)
{
	if (!nr_pools)
		return;
	pool_at(id)->up = parent->pool;
	g->pool = pool_at(id)->quota ? id : parent->pool;
}

/* ops.init */
static __always_inline s32 bandwidth_init(void)
{
	u32 cpu, key = 0, nr_cpus = scx_bpf_nr_cpu_ids();
	struct bandwidth_timer *timer;
	s32 err;

	bpf_for(cpu, 0, nr_cpus) {
		err = scx_bpf_create_dsq(PARK_DSQ + cpu,
					 __COMPAT_scx_bpf_cpu_node(cpu));
		if (err)
			return err;
	}
	timer = bpf_map_lookup_elem(&bandwidth_timers, &key);
	if (!timer)
		return -ENOENT;
	err = bpf_timer_init(&timer->timer, &bandwidth_timers, CLOCK_MONOTONIC);
	return err ?: bpf_timer_set_callback(&timer->timer, bandwidth_tick);
}

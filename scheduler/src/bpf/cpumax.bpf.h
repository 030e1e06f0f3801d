/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.max: groups that may use only so much CPU time in a period.
 *
 * A group with a quota has a pool (policy/bandwidth.h), in which all CPUs draw
 * for their tasks of that group or of one below it. Pools are chained to the
 * next one above, and a task draws from all of the chain. When one is empty,
 *
 *   - a task that runs is preempted: the walk over the groups (cgroup.bpf.h)
 *     looks at all CPUs once a millisecond while there are pools;
 *   - a task that is to be queued is parked instead, in a queue that no CPU
 *     looks into;
 *   - a task that was queued before is sent to be parked when it is picked.
 *
 * The walk refills the pools and releases what is parked, in the order of its
 * coming and a few at a time, to the run queues. There each task takes the
 * place of one that slept, so that those released do not all run first, having
 * fallen behind while they were parked.
 *
 * Kernel threads are never throttled, nor are tasks that exit.
 */
#pragma once

#include "heddle.bpf.h"
#include "cgroup.bpf.h"
#include "runq.bpf.h"
#include "policy/bandwidth.h"

/* Parked tasks of a group are in the queue PARK_DSQ + group % PARK_DSQS. */
#define PARK_DSQ 0x10000
#define PARK_DSQS 64

struct pool {
	s64 left; /* ns, negative: owed */
	u64 quota; /* ns a period; 0: no limit */
	u64 period;
	u64 burst;
	u64 due; /* when the next period begins */
	u64 pending; /* drawn by what runs and not yet charged */
	u64 throttled_since; /* 0: not throttled */
	bool throttled_now; /* in this period */
	u32 up; /* the next pool above, 0: none */
} __attribute__((aligned(CACHE_LINE)));

/* Option: this kernel tells of cpu.max (ops.cgroup_set_bandwidth). */
const volatile bool cgroup_bandwidth;

struct pool pools[MAX_GROUPS];

/* Which groups have a pool. */
u64 pool_words[MAX_GROUPS / 64];
u32 nr_pools;

/* The park queues that may hold tasks. */
u64 parked_queues;

static __always_inline struct pool *pool_at(u32 id)
{
	barrier_var(id);
	return &pools[id & (MAX_GROUPS - 1)];
}

/* Is the pool @id, or one above it, empty? */
__noinline u32 pool_is_empty(u32 id)
{
	u32 i;

	bpf_for(i, 0, GROUP_LEVELS) {
		const struct pool *pool = pool_at(id);

		if (!id)
			break;
		if (pool->quota && *(volatile s64 *)&pool->left <= 0)
			return 1;
		id = pool->up;
	}
	return 0;
}

/* Has @p to wait until its group may run again? */
static __always_inline bool is_throttled(const struct task_struct *p)
{
	u32 pool = group_of(p)->pool;

	if (!pool || (p->flags & (PF_KTHREAD | PF_EXITING)))
		return false;
	return pool_is_empty(pool);
}

/* ops.stopping, ops.tick: draw what @p has used since the last drawing. */
static __always_inline void draw(const struct task_struct *p)
{
	struct cpu_ctx *c = cpu_ctx(bpf_get_smp_processor_id());
	u64 used = p->se.sum_exec_runtime - c->drawn_exec;
	u32 id = c->curr_pool, i;

	if (!id)
		return;
	c->drawn_exec = p->se.sum_exec_runtime;
	c->drawn_at = scx_bpf_now();
	bpf_for(i, 0, GROUP_LEVELS) {
		if (!id)
			break;
		__sync_fetch_and_sub(&pool_at(id)->left, used);
		id = pool_at(id)->up;
	}
}

/* ops.running: from now on, @p draws. */
static __always_inline void draw_start(struct task_struct *p)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_ctx *c = cpu_ctx(cpu);

	c->curr_pool = group_of(p)->pool;
	if (!c->curr_pool)
		return;
	c->drawn_exec = p->se.sum_exec_runtime;
	c->drawn_at = scx_bpf_now();
	if (!is_throttled(p))
		return;
	/* It was queued before the pool was empty; dispatch will park it. */
	p->scx.slice = 0;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* ops.enqueue: park @p if its group may not run. */
static __always_inline bool park(struct task_struct *p, u64 enq_flags)
{
	u32 queue;

	if (!is_throttled(p))
		return false;
	queue = group_of(p)->pool % PARK_DSQS;
	__sync_fetch_and_or(&parked_queues, 1ULL << queue);
	scx_bpf_dsq_insert(p, PARK_DSQ + queue, slice_ns, enq_flags);
	count(parked);
	return true;
}

/* ops.cgroup_set_bandwidth, and at the start; times in us. */
static __always_inline void group_set_bandwidth(struct cgroup *cgrp,
						u64 period_us, u64 quota_us,
						u64 burst_us)
{
	u32 id = slot_of(cgrp);
	struct pool *pool = pool_at(id);
	u32 word = id / 64 & (MAX_GROUPS / 64 - 1);
	u64 bit = 1ULL << (id & 63);
	bool limited = period_us && quota_us < BANDWIDTH_MAX / 1000;

	if (id >= MAX_GROUPS)
		return;
	pool->burst = 1000 * (burst_us < BANDWIDTH_MAX / 1000 ? burst_us : 0);
	pool->period = 1000 * period_us;
	if (limited && !pool->quota) {
		pool->left = 1000 * quota_us;
		pool->due = bpf_ktime_get_ns() + pool->period;
	}
	pool->quota = limited ? 1000 * quota_us : 0;
	if (limited && !(__sync_fetch_and_or(&pool_words[word], bit) & bit))
		__sync_fetch_and_add(&nr_pools, 1);
	if (!limited && (__sync_fetch_and_and(&pool_words[word], ~bit) & bit))
		__sync_fetch_and_sub(&nr_pools, 1);
}

/* Begin the periods that are due. */
__noinline u32 refill(u32 id, u64 now)
{
	struct pool *pool = pool_at(id);
	u64 periods = bandwidth_periods(now, pool->due, pool->period);
	s64 old = *(volatile s64 *)&pool->left;
	bool empty = old <= 0;

	if (empty && !pool->throttled_now) {
		pool->throttled_now = true;
		count(bandwidth_throttled);
	}
	if (empty && !pool->throttled_since)
		pool->throttled_since = now;
	if (periods) {
		s64 new = bandwidth_refill(old, pool->quota, pool->burst,
					   periods);

		__sync_fetch_and_add(&pool->left, new - old);
		pool->due += periods * pool->period;
		pool->throttled_now = false;
		empty = new <= 0;
		count_more(bandwidth_periods, periods);
	}
	if (!empty && pool->throttled_since) {
		count_more(bandwidth_throttled_us,
			   (now - pool->throttled_since) / 1000);
		pool->throttled_since = 0;
	}
	pool->pending = 0;
	return 0;
}

static __always_inline void refill_all(u64 now)
{
	u32 word, i;

	bpf_for(word, 0, MAX_GROUPS / 64) {
		u64 left = *(volatile u64 *)&pool_words[word];

		if (!left)
			continue;
		bpf_for(i, 0, 64) {
			if (!left)
				break;
			refill(word * 64 + first_bit(left), now);
			left &= left - 1;
		}
	}
}

/* Add to the pools of @c what its task has drawn but not been charged for. */
__noinline u32 add_pending(u32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	u64 since = c->drawn_at;
	u32 id = c->curr_pool, i;

	bpf_for(i, 0, GROUP_LEVELS) {
		if (!id)
			break;
		if ((s64)(now - since) > 0)
			pool_at(id)->pending += now - since;
		id = pool_at(id)->up;
	}
	return 0;
}

/* Is a pool of @c empty, with what is pending? */
__noinline u32 overdrawn(u32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	u32 id = c->curr_pool, i;

	bpf_for(i, 0, GROUP_LEVELS) {
		const struct pool *pool = pool_at(id);

		if (!id)
			break;
		if (pool->quota && pool->left <= (s64)pool->pending)
			return 1;
		id = pool->up;
	}
	return 0;
}

/* Preempt the tasks whose pools have run empty. */
static __always_inline void preempt_overdrawn(u64 now)
{
	u32 cpu, nr_cpus = scx_bpf_nr_cpu_ids();

	bpf_for(cpu, 0, nr_cpus) {
		const struct cpu_ctx *c = cpu_ctx(cpu);

		if (c->running && c->curr_pool)
			add_pending(cpu, now);
	}
	bpf_for(cpu, 0, nr_cpus) {
		const struct cpu_ctx *c = cpu_ctx(cpu);

		if (c->running && c->curr_pool && overdrawn(cpu))
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
}

/*
 * Put the parked @p on the run queue of its CPU, where it enters as one that
 * slept. The queue's own count may only be changed by the CPU.
 */
static __always_inline bool release(struct bpf_iter_scx_dsq *parked,
				    struct task_struct *p)
{
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 clock = c->clock, slice_vt = task_slice_vt(p);
	u64 key = p->scx.dsq_vtime;
	u64 vt = cpu_of_key(key) == cpu ? vt_of_key(key) : clock;

	vt = lag_clamp(vt, clock, task_credit_vt(p, slice_vt), slice_vt);
	__sync_fetch_and_add(&c->nr_released, 1);
	scx_bpf_dsq_move_set_slice(parked, slice_ns);
	scx_bpf_dsq_move_set_vtime(parked, vt_key(vt, cpu));
	if (!scx_bpf_dsq_move_vtime(parked, p, cpu, 0))
		return false;
	offer(cpu);
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	return true;
}

/* Release up to one task a CPU from the park queue @queue. */
static __always_inline void release_some(u32 queue)
{
	u32 room = scx_bpf_nr_cpu_ids();
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, PARK_DSQ + queue, 0) {
		if (!room)
			break;
		if (!is_throttled(p) && release(BPF_FOR_EACH_ITER, p))
			room--;
	}
	if (scx_bpf_dsq_nr_queued(PARK_DSQ + queue) > 0)
		return;
	__sync_fetch_and_and(&parked_queues, ~(1ULL << queue));
	/* One may have been parked in between. */
	if (scx_bpf_dsq_nr_queued(PARK_DSQ + queue) > 0)
		__sync_fetch_and_or(&parked_queues, 1ULL << queue);
}

/* ops.dispatch: count what was released to the queue of this CPU. */
static __always_inline void accept_released(struct cpu_ctx *c)
{
	if (!c->nr_released)
		return;
	c->nr_queued += __sync_lock_test_and_set(&c->nr_released, 0);
	c->offered = true;
}

/* The walk's part: once a millisecond, after the groups. */
static __always_inline void cpumax_walk(void)
{
	u64 queues;
	u32 i;

	if (nr_pools) {
		refill_all(bpf_ktime_get_ns());
		preempt_overdrawn(scx_bpf_now());
	}
	queues = *(volatile u64 *)&parked_queues;
	bpf_for(i, 0, PARK_DSQS) {
		if (!queues)
			break;
		release_some(first_bit(queues));
		queues &= queues - 1;
	}
}

/* ops.init */
static __always_inline s32 cpumax_init(void)
{
	u32 queue;

	bpf_for(queue, 0, PARK_DSQS) {
		s32 err = scx_bpf_create_dsq(PARK_DSQ + queue, NUMA_NO_NODE);

		if (err)
			return err;
	}
	return 0;
}

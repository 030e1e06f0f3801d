/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The timer of bandwidth: it begins the periods of the pools, has those stop that
 * run on an empty one, and has the CPUs release what they parked.
 */
#pragma once

#include "heddle.bpf.h"
#include "bandwidth.bpf.h"
#include "policy/bandwidth.h"

/* Add to the pools that @cpu runs on what they are going to be charged. */
__noinline int pools_add_pending(u32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	/* In this order: see bandwidth_follow(). */
	u32 id = *(const volatile u32 *)&c->curr_pool, i;
	u64 since = *(const volatile u64 *)&c->drawn_at;

	bpf_for(i, 0, GROUP_LEVELS) {
		struct pool *pool = pool_at(id);

		if (!id)
			break;
		if (c->stop_looks < STOP_LOOKS)
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
	s64 left = *(volatile s64 *)&pool->left, after;

	if (!periods)
		return false;
	after = bandwidth_refill(left, pool->quota, pool->burst, pool->period,
				 periods);
	__sync_fetch_and_add(&pool->left, after - left);
	/*
	 * What is forgiven still counts against tasks that stop in the kernel: they overdraw
	 * so much once, not in each period.
	 */
	if (after > 0)
		pool->forgiven = 0;
	else
		pool->forgiven += after - left -
				  (s64)bandwidth_gain(pool->quota, periods);
	pool->due += periods * pool->period;
	count(nr_periods);
	if (pool->throttled_since) {
		count(nr_throttled);
		pool->nr_throttled++;
	}
	return true;
}

/* Note since when @pool is throttled. Is it from now on no more? */
static __always_inline bool pool_note_throttled(struct pool *pool,
						bool is_empty, u64 now)
{
	u64 usec;

	if (is_empty && !pool->throttled_since) {
		pool->throttled_since = now;
	} else if (!is_empty && pool->throttled_since) {
		usec = (now - pool->throttled_since) / 1000;
		count_by(throttled_usec, usec);
		pool->throttled_usec += usec;
		pool->throttled_since = 0;
		return true;
	}
	return false;
}

/* What the timer's look at the pools has found so far. */
struct {
	u64 next; /* ns until another look is worth it */
	bool busy; /* there is to be one */
	bool release; /* tasks that are parked may run again */
} look;

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
	/* Not only a new period ends it: so does a new limit. */
	if (pool_note_throttled(pool, left <= 0, now))
		look.release = true;
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
 * Has @cpu parked a task that may run again? Only the timer asks: the verifier
 * takes its programs for sleepable, as is the one that sets it up.
 */
__noinline bool may_release(u32 cpu)
{
	struct task_struct *p;
	bool may = false;

	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, PARK_DSQ + cpu, 0) {
		may = may_go_on(p);
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
			if (is_taken(
				    cpu)) /* which does not heed that (rescue) */
				timer_arm(TIMER_RESCUE, 0);
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

static int bandwidth_tick(void *map, u32 *id, struct timer_slot *slot)
{
	u32 i, nr_cpus = scx_bpf_nr_cpu_ids();
	u64 now = pool_now();

	timer_runs(slot);
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
		timer_arm(TIMER_BANDWIDTH, look.next > BANDWIDTH_LEAST_NS
						   ? look.next
						   : BANDWIDTH_LEAST_NS);
	return 0;
}

/* ops.init */
static __always_inline s32 bandwidth_init(void)
{
	u32 cpu, nr_cpus = scx_bpf_nr_cpu_ids();
	s32 err;

	stop_find_entries();
	bpf_for(cpu, 0, nr_cpus) {
		err = scx_bpf_create_dsq(PARK_DSQ + cpu,
					 __COMPAT_scx_bpf_cpu_node(cpu));
		err = err ?: stop_init(cpu);
		if (err)
			return err;
	}
	return timer_init(TIMER_BANDWIDTH, bandwidth_tick);
}

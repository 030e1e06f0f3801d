/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The shared wake queue: in which order idle CPUs take wakees.
 *
 * A wakee that gets no idle CPU waits on the queue of its home CPU, where it
 * may come to run at any time. Beside that, its LLC has a first-in-first-out
 * queue of references to such wakees, and a CPU that would idle takes the one
 * that has waited longest. The first CPU to come gets the task; the reference
 * that is left is found out by its generation and dropped (policy/wakeq.h).
 *
 * References are hints. That no CPU idles while a task waits is the business of
 * the offers (pull.bpf.h), which cover every task that is queued, so a reference
 * may be lost without harm: when two CPUs push at a time, when the reference is
 * taken before its task is queued, or when the queue is full. It is full as
 * long as no CPU idles and takes any, and then costs its producers one look at
 * a cache line that nobody writes; that is the back-pressure.
 *
 * An LLC of many CPUs has several such queues, one for a group of cores each.
 */
#pragma once

#include "heddle.bpf.h"
#include "topology.bpf.h"

const volatile bool wakeq_enabled = true;

/* Take wakees of other LLCs of the node too. */
const volatile bool wakeq_steal_node = true;

/*
 * A wakee that has waited for less stays in its LLC: what its caches hold is worth more than
 * so short a wait, and between LLCs each move of a cache line costs several times as much.
 * EEVDF calls a task cache-hot for as long (sched_migration_cost_ns).
 */
#define FAR_NS 500000ULL

/* How many references to look at before it is better to take any task. */
#define WAKEQ_TRIES 4

/* How many tasks of a queue to look at for the one that a reference means. */
#define WAKEQ_LOOKS 16

struct ring wakeqs[MAX_WAKEQS];

static __always_inline struct ring *wakeq(u32 index)
{
	return &wakeqs[index & (MAX_WAKEQS - 1)];
}

/* Refer to @p, a wakee that joins a queue @now with @key and ran last on @last_cpu. */
static __always_inline void wakeq_offer(const struct task_struct *p, u64 key,
					u32 last_cpu, u64 now)
{
	struct ring_item item = { .since = now };
	u32 cpu = cpu_of_key(key);
	struct ring *ring;

	if (!wakeq_enabled)
		return;
	switch (may_offer(p->nr_cpus_allowed, cpu, last_cpu)) {
	case OFFER_PINNED:
		count(wakeq_pinned);
		return;
	case OFFER_MIGRATED:
		count(wakeq_migrated);
		return;
	case OFFER_OK:
		break;
	}
	ring = wakeq(place_of(cpu)->wakeq);
	if (ring_is_full(ring)) {
		count(wakeq_full);
		return;
	}
	item.value = wake_ref(p->pid, key);
	if (ring_put(ring, item) == RING_OK)
		count(wakeq_offered);
	else
		count(wakeq_busy);
}

/*
 * Take the task that @ref means to this CPU, if it waits still. Its home queue
 * is ordered by virtual time, so the walk ends where the task would stand.
 */
static __always_inline bool wakeq_take(u64 ref, u32 cpu)
{
	u32 home = cpu_of_ref(ref), pid = pid_of_ref(ref);
	struct task_struct *p;
	bool taken = false;
	u32 looks = 0;

	if (!cpu_ctx(home)->nr_queued) {
		count(wakeq_gone);
		return false;
	}
	bpf_for_each(scx_dsq, p, home, 0) {
		u64 key = p->scx.dsq_vtime;

		if (p->pid != pid) {
			if (beyond_ref(key, ref) || ++looks == WAKEQ_LOOKS)
				break;
			continue;
		}
		if (wake_ref(pid, key) != ref) {
			count(wakeq_stale);
			return false;
		}
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr) ||
		    is_migration_disabled(p)) {
			count(wakeq_barred);
			return false;
		}
		taken = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL,
					 0);
		break;
	}
	if (!taken)
		count(wakeq_gone);
	else if (scx_bpf_dsq_nr_queued(home) <= 0)
		withdraw_empty(home);
	return taken;
}

/*
 * Take the oldest wakee that queue @index refers to. Global, so that the
 * verifier looks at it once.
 */
__noinline bool wakeq_pull(u32 index, u32 cpu)
{
	struct ring_item item = {};
	u32 tries = WAKEQ_TRIES;

	while (tries-- && ring_get(wakeq(index), &item) == RING_OK && can_loop)
		if (wakeq_take(item.value, cpu))
			return true;
	return false;
}

/* This CPU would idle: take the oldest wakee of its part of the LLC, else of another. */
static __always_inline bool wakeq_pull_llc(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u32 own = at->wakeq, first = at->llc_wakeq_first,
	    end = at->llc_wakeq_end;
	u32 index;

	if (!wakeq_enabled)
		return false;
	if (wakeq_pull(own, cpu))
		return true;
	if (end - first == 1)
		return false;
	bpf_for(index, first, end) {
		if (index != own && wakeq_pull(index, cpu))
			return true;
	}
	return false;
}

/* Take the oldest wakee of the other LLCs of the node. */
static __always_inline bool wakeq_steal(u32 cpu)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 oldest = 0, since;
	s32 from = -1;
	u32 index;

	if (!wakeq_enabled || !wakeq_steal_node ||
	    at->node_wakeq_end - at->node_wakeq_first ==
		    at->llc_wakeq_end - at->llc_wakeq_first)
		return false;
	bpf_for(index, at->node_wakeq_first, at->node_wakeq_end) {
		if (index >= at->llc_wakeq_first && index < at->llc_wakeq_end)
			continue;
		if (!ring_oldest(wakeq(index), &since))
			continue;
		if (from < 0 || vt_before(since, oldest)) {
			from = index;
			oldest = since;
		}
	}
	return from >= 0 && ns_since(oldest, rq_now(cpu)) >= FAR_NS &&
	       wakeq_pull(from, cpu);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The global run queue: its lock, and what the lock is for.
 *
 * The queue is a set of heaps (heap.h), the lanes: one for each LLC, of the tasks
 * that ran there last and may run anywhere, and one for each set of CPUs that tasks
 * are confined to. So a CPU never meets a task that it may not run: whichever of
 * its lanes has the earliest deadline, its first is the one. Tasks of all lanes are
 * in one order.
 *
 * What the one lock is taken for is a matter of policy:
 *   grq   everything: the queue, the fields of tasks, what CPUs tell of the
 *         task that they run (BFS)
 *   vrq   the queue (A. Chen's VRQ, 2014):
 *         a. the fields of a task belong to its run queue's lock while it runs, and to
 *            its own pi_lock while it wakes, both held by the kernel in all callbacks
 *            that change them; to the global lock while it is queued
 *         b. what a CPU tells of itself belongs to its run queue's lock
 *         c. the queue belongs to the global lock. Which lanes are not empty, and
 *            the first key of each, may be read without.
 *   The order of locks is run queue, then global: the program takes no other
 *   lock inside, and the verifier sees to it that it calls nothing.
 *
 * The kernel isolates the task that a CPU switches away from. It is queued here
 * before the switch is over, but a CPU that takes it must move it from a run
 * queue whose lock is held until then.
 */
#pragma once

#include "heddle.bpf.h"
#include "policy/heap.h"
#include "schedstat.bpf.h"
#include "topology.bpf.h"

/* Options; the loader sets them before the program is loaded. */
const volatile enum locking locking = LOCKING_VRQ;
const volatile bool lock_check; /* end on a breach of rule b or c */

/* One for each LLC, by the number of its first word, then one a confinement. */
#define NR_CONFINES 64
#define NR_LANES (MAX_WORDS + NR_CONFINES)

/* Node 0 is none; the heads of the lanes come next. */
#define FIRST_NODE (1 + NR_LANES)

/* A set of CPUs that tasks are confined to (confine.bpf.h). */
struct confine {
	u64 hash; /* of the set */
	u32 users;
	bool ready; /* all is known of it that others need */
};

struct grq {
	struct bpf_spin_lock lock;
	u32 owner; /* for statistics and checks: the CPU that holds it + 1, or 0 */
	bool broken; /* what needs the lock was done without */
	u64 coins;
	u32 free; /* nodes, chained by their first child */
	u32 nr_used; /* nodes that were ever used, beyond the heads */

	/* Lanes that are not empty. Written under the lock, read by all. */
	u64 llcs __attribute__((aligned(CACHE_LINE)));
	u64 confines;
	u64 first[NR_LANES]; /* key */

	struct confine table[NR_CONFINES];

	struct heap_node nodes[HEAP_NODES] __attribute__((aligned(CACHE_LINE)));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct grq);
} grqs SEC(".maps");

/* The confinements that a CPU belongs to. */
u64 confines_of[MAX_CPUS];

static __always_inline struct grq *the_grq(void)
{
	u32 key = 0;

	return bpf_map_lookup_elem(&grqs, &key);
}

/*
 * One taking of the lock. What needs the lock has this for a parameter, and checks
 * by it, where that is asked for, that it is the one that holds.
 */
struct grq_hold {
	u64 since;
	u32 owner; /* the CPU + 1 */
	bool contended;
};

static __always_inline void grq_ask(const struct grq *grq,
				    struct grq_hold *hold)
{
	if (lock_check || schedstat)
		hold->owner = bpf_get_smp_processor_id() + 1;
	if (!schedstat)
		return;
	hold->contended = *(const volatile u32 *)&grq->owner;
	hold->since = bpf_ktime_get_ns();
}

static __always_inline void grq_set_owner(struct grq *grq, u32 owner)
{
	if (lock_check || schedstat)
		*(volatile u32 *)&grq->owner = owner;
}

/* Nothing can be reported while the lock is held. */
static __always_inline void grq_needs(struct grq *grq,
				      const struct grq_hold *hold)
{
	if (lock_check &&
	    (!hold->owner || *(volatile u32 *)&grq->owner != hold->owner))
		grq->broken = true;
}

static __always_inline void grq_report(const struct grq *grq)
{
	if (lock_check && grq->broken)
		scx_bpf_error("the global queue was used without its lock");
}

#define GRQ_LOCK(grq, hold)                        \
	do {                                       \
		grq_ask(grq, hold);                \
		bpf_spin_lock(&(grq)->lock);       \
		grq_set_owner(grq, (hold)->owner); \
	} while (0)

/* @site: where the lock was taken, as the counters name it. */
#define GRQ_UNLOCK(grq, hold, site)                                            \
	do {                                                                   \
		grq_set_owner(grq, 0);                                         \
		bpf_spin_unlock(&(grq)->lock);                                 \
		grq_report(grq);                                               \
		if (schedstat) {                                               \
			count(lock_##site);                                    \
			count_by(lock_##site##_contended, (hold)->contended);  \
			count_by(lock_##site##_ns,                             \
				 ns_since((hold)->since, bpf_ktime_get_ns())); \
		}                                                              \
	} while (0)

/* For what does without the lock by --locking vrq. */
#define GRQ_LOCK_STRICT(grq, hold)           \
	do {                                 \
		if (locking == LOCKING_GRQ)  \
			GRQ_LOCK(grq, hold); \
	} while (0)

#define GRQ_UNLOCK_STRICT(grq, hold, site)           \
	do {                                         \
		if (locking == LOCKING_GRQ)          \
			GRQ_UNLOCK(grq, hold, site); \
	} while (0)

/*
 * Zero, which the verifier does not know: a loop under the lock that counts from
 * it is looked at once, and not once for each number.
 */
u32 zero;

static __always_inline u32 read_zero(void)
{
	return *(volatile u32 *)&zero;
}

static __always_inline u32 head_of(u32 lane)
{
	return 1 + lane;
}

static __always_inline u64 read_once(const u64 *from)
{
	return *(const volatile u64 *)from;
}

/* Note what is first in @lane now. */
static __always_inline void lane_publish(struct grq *grq,
					 const struct grq_hold *hold, u32 lane)
{
	u32 first = heap_first(grq->nodes, head_of(lane));
	u64 bit = 1ULL << (lane & 63);
	u64 *filled = lane < MAX_WORDS ? &grq->llcs : &grq->confines;

	grq_needs(grq, hold);
	if (first) {
		grq->first[lane & (NR_LANES - 1)] =
			heap_at(grq->nodes, first)->key;
		*filled |= bit;
	} else {
		*filled &= ~bit;
	}
}

/* Queue @node, whose key is set, in @lane. */
static __always_inline void
grq_push(struct grq *grq, const struct grq_hold *hold, u32 node, u32 lane)
{
	grq->coins = heap_coins(grq->coins);
	heap_push(grq->nodes, head_of(lane), node, grq->coins);
	heap_at(grq->nodes, node)->lane = lane + 1;
	lane_publish(grq, hold, lane);
}

/* Take @node out, if it is queued. */
static __always_inline void grq_remove(struct grq *grq,
				       const struct grq_hold *hold, u32 node)
{
	u32 lane = heap_at(grq->nodes, node)->lane;

	if (!lane)
		return;
	grq->coins = heap_coins(grq->coins);
	heap_remove(grq->nodes, node, grq->coins);
	heap_at(grq->nodes, node)->lane = 0;
	lane_publish(grq, hold, lane - 1);
}

/* How much later the tasks of @lane count as due on @cpu, for the caches. */
static __always_inline u64 distance_key(u32 cpu, u32 lane)
{
	const volatile struct cpu_place *at = place_of(cpu);
	u64 steps;

	if (lane == at->llc_first || lane >= MAX_WORDS)
		return 0;
	steps = at->node_words & bit_of(lane) ? 1 : 2;
	return steps * slice_ns << KEY_SHIFT;
}

struct grq_best {
	u64 key; /* with the distance */
	u32 lane;
	bool any;
};

/* See whether the first of @lane, which is not empty, is @best for @cpu. */
static __always_inline void grq_consider(const struct grq *grq, u32 cpu,
					 u32 lane, struct grq_best *best)
{
	u64 key = read_once(&grq->first[lane & (NR_LANES - 1)]) +
		  distance_key(cpu, lane);

	if (best->any && !vt_before(key, best->key))
		return;
	best->any = true;
	best->key = key;
	best->lane = lane;
}

/* Where the task waits that is first for @cpu. With or without the lock. */
static __always_inline void grq_find(const struct grq *grq, u32 cpu,
				     struct grq_best *best)
{
	u64 llcs = read_once(&grq->llcs);
	u64 confines = read_once(&grq->confines) &
		       confines_of[cpu & (MAX_CPUS - 1)];

	best->any = false;
	best->key = 0;
	best->lane = 0;
	while (llcs && can_loop) {
		grq_consider(grq, cpu, __builtin_ctzll(llcs), best);
		llcs &= llcs - 1;
	}
	while (confines && can_loop) {
		grq_consider(grq, cpu, MAX_WORDS + __builtin_ctzll(confines),
			     best);
		confines &= confines - 1;
	}
}

/* Under the lock: what is first for @cpu in @lane by now. */
static __always_inline void grq_look(struct grq *grq, u32 cpu, u32 lane,
				     struct grq_best *best)
{
	best->any = false;
	if (heap_first(grq->nodes, head_of(lane)))
		grq_consider(grq, cpu, lane, best);
}

/* Does a task wait that may run on @cpu? */
static __always_inline bool grq_has_work(const struct grq *grq, u32 cpu)
{
	return read_once(&grq->llcs) ||
	       (read_once(&grq->confines) & confines_of[cpu & (MAX_CPUS - 1)]);
}

static __always_inline struct confine *confine_at(const struct grq *grq,
						  u32 number)
{
	barrier_var(number);
	return (struct confine *)&grq->table[number & (NR_CONFINES - 1)];
}

/* A node for a task; 0 if there is none left. */
static __always_inline u32 grq_alloc(struct grq *grq,
				     const struct grq_hold *hold)
{
	u32 node = grq->free;

	grq_needs(grq, hold);
	if (node) {
		grq->free = heap_at(grq->nodes, node)->child[0];
		return node;
	}
	if (grq->nr_used >= HEAP_NODES - FIRST_NODE)
		return 0;
	return FIRST_NODE + grq->nr_used++;
}

/* @node is no longer needed. */
static __always_inline void grq_free(struct grq *grq,
				     const struct grq_hold *hold, u32 node)
{
	grq_needs(grq, hold);
	heap_at(grq->nodes, node)->child[0] = grq->free;
	grq->free = node;
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Virtual deadlines: the order of the global queue, as in BFS (C. Kolivas,
 * Documentation/scheduler/sched-BFS.txt of its patches).
 *
 * Every task gets slices of the same length, the rr interval. With a slice
 * comes a deadline: now, plus the rr interval times a ratio that grows by a
 * tenth with each nice level. A deadline is no promise: it only says what comes
 * first. It and the rest of the slice are kept over preemption and sleep, until
 * the slice is used up. So a task that sleeps is soon first in line.
 *
 * A task is not charged for time that it had: shares follow from the deadlines
 * alone: a nice level is worth more where few tasks compete than where many do.
 *
 * A key is a deadline in 2^-KEY_SHIFT ns whose lowest bits hold the number of the
 * task's node (heap.h). It wraps every 208 days and is compared by vt_before();
 * equal deadlines, which are 128 ns wide, go to the lower node.
 */
#pragma once

#include "vtime.h"

#define KEY_SHIFT 10
#define NODE_BITS 17
#define NODE_MASK ((1U << NODE_BITS) - 1)

/* What is left of a slice is not worth a switch (RESCHED_US of BFS). */
#define SLICE_SPENT_NS 100000ULL

/*
 * No task is to wait for 10 s (relief.bpf.h). So even
 * the idle policy, which BFS leaves without any CPU time beside others, is due at
 * some time, and no slice so long that a nice task would be due after it.
 */
#define DEADLINE_MAX_NS 2000000000ULL
#define DEADLINE_IDLE_NS 4000000000ULL

/* Deadlines from nice -20 to nice 19 in 1/128 of the rr interval. */
static const u32 prio_ratios[NICE_LEVELS] = {
	128,  140,  154,  169,	185,  203,  223,  245,	269,  295,
	324,  356,  391,  430,	473,  520,  572,  629,	691,  760,
	836,  919,  1010, 1111, 1222, 1344, 1478, 1625, 1787, 1965,
	2161, 2377, 2614, 2875, 3162, 3478, 3825, 4207, 4627, 5089,
};

/* How long after the start of its slice a task of @nice_index, 0..39, is due. */
static inline u64 deadline_ns(u64 rr_ns, u32 nice_index, bool idle)
{
	u64 ns;

	if (idle)
		return DEADLINE_IDLE_NS;
	ns = rr_ns * prio_ratios[nice_index] / 128;
	return ns < DEADLINE_MAX_NS ? ns : DEADLINE_MAX_NS;
}

static inline u64 deadline_key(u64 ns, u32 node)
{
	return (ns << KEY_SHIFT & ~(u64)NODE_MASK) | (node & NODE_MASK);
}

static inline u32 node_of_key(u64 key)
{
	return key & NODE_MASK;
}

/*
 * The key of a task that becomes runnable: its own, but no later than @fresh,
 * that of a slice that starts now. It may have changed its nice level or policy,
 * or slept for so long that its key lies ahead by the wrap.
 */
static inline u64 kept_key(u64 key, u64 fresh)
{
	return vt_min(key, fresh);
}

/*
 * Does a wakee with @key take the CPU from what runs with @curr_key? Neither the
 * idle nor the batch policy preempts, and all others preempt the idle policy.
 */
static inline bool deadline_preempts(u64 key, bool lowly, u64 curr_key,
				     bool curr_idle)
{
	return !lowly && (curr_idle || vt_before(key, curr_key));
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which task runs next, decided from plain numbers: preemption at wakeup,
 * keeping the running task at the end of its slice, and exchanging it for a
 * task that waits on another CPU.
 */
#pragma once

#include "vtime.h"

/* One side of a comparison. */
struct contender {
	u64 vt; /* virtual time reached by now */
	u64 inv; /* inverse weight */
	bool idle; /* SCHED_IDLE */
	bool batch; /* SCHED_BATCH */
};

/*
 * Should @wakee take the CPU from @curr?
 *
 * @gran_ns is how much CPU time the wakee must be behind. It is scaled by both
 * weights: the virtual time of a heavy @curr passes slowly, so it takes longer
 * to fall due, and the threshold itself is the granularity in the virtual time
 * of the wakee, so a heavy wakee needs a small gap and a light one a large.
 */
static __always_inline bool wakeup_preempts(const struct contender *wakee,
					    const struct contender *curr,
					    u64 gran_ns)
{
	if (curr->idle != wakee->idle)
		return curr->idle;
	if (wakee->batch || wakee->idle)
		return false;
	return vt_before(wakee->vt + vt_delta(gran_ns, wakee->inv), curr->vt);
}

/*
 * Is @curr, which by all signs will run for not much longer, left to finish before
 * @wakee, which would preempt it? That one is soon served as it is. Preempted, @curr
 * would wait for a whole run of it, its request half done and its locks held; so
 * only a heavier wakee may do that, which is owed more than to come after.
 */
static inline bool left_to_finish(const struct contender *wakee,
				  const struct contender *curr)
{
	return curr->idle == wakee->idle && wakee->inv >= curr->inv;
}

/*
 * Is a task a hog: has it, which ran @run_ns and slept @sleeps times in its
 * life, on average run longer than @gran_ns at a time? A wakee has its credit
 * with respect to hogs only (lag_among()): given it against tasks that run
 * shortly, these would preempt one another by turns, each as it wakes.
 */
static inline bool is_hog(u64 run_ns, u64 sleeps, u64 gran_ns)
{
	return run_ns > sleeps * gran_ns;
}

/* Does the running task keep the CPU before the first in the queue? */
static inline bool keeps_running(u64 prev_vt, u64 head_vt)
{
	return vt_before(prev_vt, head_vt);
}

/*
 * Is the running task so far ahead of one that waits on another CPU that they
 * should change places? Both positions are in the shared frame.
 */
static inline bool worth_exchanging(u64 prev_frame, u64 waiter_frame,
				    u64 threshold_vt)
{
	return vt_before(waiter_frame + threshold_vt, prev_frame);
}

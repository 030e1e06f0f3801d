/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which task runs next, decided from plain numbers: preemption at wakeup,
 * keeping the running task at the end of its slice, and exchanging it for a
 * task that waits on another CPU.
 */
#pragma once

#include "lag.h"
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

/* Is a task of inverse weight @inv much lighter than one of @than? */
static inline bool is_much_lighter(u64 inv, u64 than)
{
	return inv / 2 >= than;
}

/*
 * Is a task of inverse weight @inv that waits at @vt due by @clock: is it in debt by no
 * more than @gran_ns of its CPU time?
 */
static inline bool is_due(u64 vt, u64 inv, u64 clock, u64 gran_ns)
{
	return vt_before(vt, clock + vt_delta(gran_ns, inv));
}

/*
 * Goes one that waits at @vt before a much lighter one, of inverse weight @inv, that has
 * just had a slice from @light_vt on? Until it leads by as much as the light one may be owed.
 */
static inline bool may_lead(u64 vt, u64 light_vt, u64 inv, u64 slice_ns)
{
	return vt_before(vt, light_vt + LAG_LIGHTEST_SLICES *
						vt_delta(slice_ns, inv));
}

/*
 * Should @wakee take the CPU from @curr, however much that is owed? What a much
 * lighter task is owed may be many slices of the wakee's, which does not wait for all of
 * them while it is due by the queue's @clock.
 */
static inline bool wakee_outranks_light(const struct contender *wakee,
					const struct contender *curr, u64 clock,
					u64 gran_ns)
{
	return !wakee->batch && !wakee->idle &&
	       is_much_lighter(curr->inv, wakee->inv) &&
	       is_due(wakee->vt, wakee->inv, clock, gran_ns);
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

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When a CPU that has chosen its next task wakes an idle CPU for the one that
 * ran before (resched_best_idle() of BFS), by the case that it is in.
 *
 * BFS calls whenever next != prev. But a prev that went to sleep needs no CPU:
 * the one that is woken finds nothing to do and idles again. A. Chen's table
 * (2014) calls only where prev waits for a CPU:
 *
 *                                       table          next != prev
 *   #1 prev is the idle task            no             no: it may run here only
 *   #2 prev went to sleep               no             yes
 *   #3 prev may no longer run here      yes            yes
 *   #4 tasks are queued                 if it switches if it switches
 *   #5 none is                          no             no
 */
#pragma once

#include "types.h"

enum resched_rule {
	RESCHED_TABLE,
	RESCHED_NEXT_NOT_PREV,
};

enum resched_case {
	RESCHED_PREV_IDLE = 1,
	RESCHED_PREV_SLEEPS,
	RESCHED_PREV_LEAVES,
	RESCHED_QUEUED,
	RESCHED_ALONE,
};

struct resched_view {
	bool prev_idle; /* the idle task ran */
	bool prev_sleeps; /* prev is no longer runnable */
	bool prev_leaves; /* prev may not run on this CPU any more */
	bool queued; /* there was a task to choose beside prev */
	bool switches; /* next != prev */
};

static inline enum resched_case resched_case(const struct resched_view *view)
{
	if (view->prev_idle)
		return RESCHED_PREV_IDLE;
	if (view->prev_sleeps)
		return RESCHED_PREV_SLEEPS;
	if (view->prev_leaves)
		return RESCHED_PREV_LEAVES;
	return view->queued ? RESCHED_QUEUED : RESCHED_ALONE;
}

/* Is an idle CPU to be woken for prev? */
static inline bool resched_best_idle(enum resched_rule rule,
				     const struct resched_view *view)
{
	switch (resched_case(view)) {
	case RESCHED_PREV_SLEEPS:
		return rule == RESCHED_NEXT_NOT_PREV;
	case RESCHED_PREV_LEAVES:
		return true;
	case RESCHED_QUEUED:
		return view->switches;
	default:
		return false;
	}
}

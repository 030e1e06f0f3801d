/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Asymmetric packing: which busy CPUs give the task that they run to an idle
 * one, as bits of one word (topology.bpf.h).
 *
 * A thread of a fast core is best, a slower core comes next, a second thread of
 * a core that is busy already comes last. Classes are numbered from the fastest,
 * 0, on. Cores have one thread or two.
 */
#pragma once

#include "idle.h"

enum asym_rule {
	/* Linux 6.5: all threads of a core are equal; a core that idles helps. */
	ASYM_RULE_CORE,
	/* Linux 5.16 to 6.4: the truth table of asym_smt_can_pull_tasks(). */
	ASYM_RULE_TABLE,
};

/* What the idle CPU sees in a word. */
struct asym_view {
	u64 busy; /* CPUs of its class or slower that run something */
	u64 slower; /* CPUs of slower classes */
	u64 starts, ends; /* the first and the last thread of every core */
	bool smt; /* the idle CPU has a sibling */
	bool sibling_busy;
};

/* Of the cores whose two threads are both busy, the second thread. */
static inline u64 asym_shared(const struct asym_view *view)
{
	return whole_cores(view->busy, view->starts, view->ends) &
	       ~view->starts;
}

/*
 * The CPUs that a core which idles as a whole helps: one of two threads that
 * share a core; where there are none, those that are slower. A CPU whose sibling
 * is busy is the worst place, and helps nobody.
 */
static inline u64 asym_helped_by_core(const struct asym_view *view)
{
	u64 shared = asym_shared(view);

	if (view->sibling_busy)
		return 0;
	return shared ? shared : view->busy & view->slower;
}

/*
 * The same by the table. "Slower" is its comparison of priorities, L and B are
 * the busy threads of the idle CPU's core and of the other:
 *
 *	idle CPU	other core	gives its task
 *	one thread	one thread	if slower
 *	one thread	two, B = 2	always
 *	one thread	two, B = 1	if slower
 *	two threads	two, B - L = 1	if slower
 *	two threads	two, else	never
 *	two threads	one thread	if slower and L = 0
 */
static inline u64 asym_helped_by_table(const struct asym_view *view)
{
	u64 shared = asym_shared(view), both = shared | shared >> 1;
	u64 alone = view->busy & ~both & view->slower;

	if (!view->smt)
		return shared ? shared : alone;
	return view->sibling_busy ? shared & view->slower : alone;
}

static inline u64 asym_helped(enum asym_rule rule, const struct asym_view *view)
{
	if (rule == ASYM_RULE_TABLE)
		return asym_helped_by_table(view);
	return asym_helped_by_core(view);
}

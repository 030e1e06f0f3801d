/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Debts: a task that goes to sleep ahead of its run queue's clock stays counted
 * until the clock reaches it. EEVDF has its delayed dequeue for this.
 *
 * Each CPU has a set of them, by thread id modulo the number of places. The CPU itself
 * fills places, under its rq lock, and ends debts, without that as it goes offline;
 * any CPU may take one whose task has woken. So loads, and what is filled, change by
 * atomic operations only: one gets the load of a place, and is to see to it.
 *
 * Two tasks of one group and one weight that meet in a place may take each other's
 * debt. It is the same load.
 */
#pragma once

#include "vtime.h"

#define DEBT_PLACES 128
#define DEBT_WORDS (DEBT_PLACES / 64)

struct debt {
	u64 load; /* what is still counted and where (debt_load()), or 0 */
	u64 until; /* the clock's time when it ends */
};

/* All zeroes is an empty set. */
struct debts {
	u64 filled[DEBT_WORDS]; /* places that have a debt, or had one taken */
	u64 first; /* no debt ends before */
	struct debt places[DEBT_PLACES];
};

/* The load of a task of @weight, below 2^32 and not 0, in the group of slot @id. */
static inline u64 debt_load(u32 id, u64 weight)
{
	return (u64)id << 32 | (u32)weight;
}

static inline u32 debt_group(u64 load)
{
	return load >> 32;
}

static inline u64 debt_weight(u64 load)
{
	return (u32)load;
}

static inline bool debts_any(const struct debts *debts)
{
	return debts->filled[0] | debts->filled[1];
}

/* May some have ended, with the clock at @clock? */
static inline bool debts_due(const struct debts *debts, u64 clock)
{
	return debts_any(debts) && !vt_before(clock, debts->first);
}

/*
 * The thread @pid sleeps and owes @load until the clock is at @until. The load that
 * had its place, or 0, is returned: that one ends.
 */
static inline u64 debt_keep(struct debts *debts, u32 pid, u64 load, u64 until)
{
	u32 place = pid & (DEBT_PLACES - 1);
	struct debt *debt = &debts->places[place];

	if (!debts_any(debts) || vt_before(until, debts->first))
		debts->first = until;
	debt->until = until;
	load = __sync_lock_test_and_set(&debt->load, load);
	__sync_fetch_and_or(&debts->filled[place / 64], 1ULL << (place & 63));
	return load;
}

/* The thread @pid has woken: does it still owe @load? Then no more. */
static inline bool debt_take(struct debts *debts, u32 pid, u64 load)
{
	u64 *owed = &debts->places[pid & (DEBT_PLACES - 1)].load;

	return *(volatile u64 *)owed == load &&
	       __sync_val_compare_and_swap(owed, load, 0) == load;
}

/* All places are looked at next, with the clock at @clock. */
static inline void debts_begin(struct debts *debts, u64 clock)
{
	debts->first = clock + VT_STEP_MAX;
}

/* What ends in @place, or 0: a debt whose time has come, or any if @all do. */
static inline u64 debt_end(struct debts *debts, u32 place, u64 clock, bool all)
{
	struct debt *debt = &debts->places[place & (DEBT_PLACES - 1)];

	if (!all && *(volatile u64 *)&debt->load &&
	    vt_before(clock, debt->until)) {
		debts->first = vt_min(debts->first, debt->until);
		return 0;
	}
	__sync_fetch_and_and(&debts->filled[place / 64 % DEBT_WORDS],
			     ~(1ULL << (place & 63)));
	return __sync_lock_test_and_set(&debt->load, 0);
}

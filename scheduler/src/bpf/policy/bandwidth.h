/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bandwidth: the CPU time that a group may use in a period (cpu.max).
 *
 * A pool is filled by its quota at the start of every period. What is left of
 * it stays, up to the burst; what was overdrawn, because a group's tasks were
 * noticed late on some CPUs, is owed: the pool may be negative, and so the
 * average is exact however coarse the noticing.
 */
#pragma once

#include "types.h"

/* No pool is larger, in ns: sums and products stay within an s64. */
#define BANDWIDTH_MAX (1ULL << 60)

/* Periods that began since @due, when the next one was due. */
static inline u64 bandwidth_periods(u64 now, u64 due, u64 period)
{
	if (!period || (s64)(now - due) < 0)
		return 0;
	return 1 + (now - due) / period;
}

/* What is in a pool of which @left was left, @periods later; ns. */
static inline s64 bandwidth_refill(s64 left, u64 quota, u64 burst, u64 periods)
{
	u64 limit = quota + burst;
	u64 gain;

	if (limit < quota || limit > BANDWIDTH_MAX)
		limit = BANDWIDTH_MAX;
	if (quota > BANDWIDTH_MAX)
		quota = BANDWIDTH_MAX;
	if (quota && periods > BANDWIDTH_MAX / quota)
		gain = BANDWIDTH_MAX;
	else
		gain = quota * periods;
	if (left > (s64)limit)
		return limit;
	left += gain;
	return left > (s64)limit ? (s64)limit : left;
}

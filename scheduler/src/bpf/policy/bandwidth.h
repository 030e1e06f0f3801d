/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bandwidth: the CPU time that a group may use in a period (cpu.max).
 *
 * A pool gains its quota at the start of every period. What is left of it then
 * stays, up to the burst. What was overdrawn, because the end of a pool is
 * noticed late on some CPUs, is owed: a pool may be negative, and so the average
 * is exact however coarse the noticing.
 */
#pragma once

#include "types.h"

/* No pool is larger, in ns: sums and products stay within an s64. */
#define BANDWIDTH_MAX (1ULL << 60)

/*
 * A group pays for no more than it gains in this time, ns, and no parked task waits for
 * longer. No task is to wait for 10 s (relief.bpf.h): a hundred CPUs
 * that overdraw a millisecond's quota may not cost a group more than half of that.
 */
#define BANDWIDTH_DEBT_NS 4000000000ULL

/* ns of @us, of cpu.max or cpu.max.burst; BANDWIDTH_MAX stands for no limit. */
static inline u64 bandwidth_ns(u64 us)
{
	return us < BANDWIDTH_MAX / 1000 ? 1000 * us : BANDWIDTH_MAX;
}

/* Periods that began since @due, when the next one was due. */
static inline u64 bandwidth_periods(u64 now, u64 due, u64 period)
{
	if (!period || (s64)(now - due) < 0)
		return 0;
	return 1 + (now - due) / period;
}

/* @quota times @periods, saturated. */
static inline u64 bandwidth_gain(u64 quota, u64 periods)
{
	if (quota && periods > BANDWIDTH_MAX / quota)
		return BANDWIDTH_MAX;
	return quota * periods;
}

/* What a group with @quota in each @period owes at most, ns. */
static inline s64 bandwidth_debt(u64 quota, u64 period)
{
	return bandwidth_gain(quota,
			      1 + BANDWIDTH_DEBT_NS / (period ? period : 1));
}

/* From this debt on, tasks in the kernel are asked to stop as they leave it. */
#define BANDWIDTH_LEAVING_NS 2000000LL

/*
 * The least limit of the debt at which tasks that cannot be asked stop in the kernel, ns.
 * The limit is @times as much for a task within an RCU reader. A debt beyond
 * bandwidth_debt() is forgiven, so a group with a quota of 1 ms may get 2 % of a CPU.
 */
#define BANDWIDTH_KERNEL_NS 50000000LL

static inline s64 bandwidth_kernel_debt(u64 quota, u64 period, u32 times)
{
	s64 debt = bandwidth_debt(quota, period);
	s64 least = times * BANDWIDTH_KERNEL_NS;

	return debt < least ? least : debt;
}

/*
 * What is in a pool that held @left, @periods later, one at least; ns. Quota and
 * burst are up to BANDWIDTH_MAX.
 */
static inline s64 bandwidth_refill(s64 left, u64 quota, u64 burst, u64 period,
				   u64 periods)
{
	s64 floor = -bandwidth_debt(quota, period);
	s64 limit = quota + burst;

	if (left < floor)
		left = floor;
	if (left > limit)
		return limit;
	left += bandwidth_gain(quota, periods);
	return left > limit ? limit : left;
}

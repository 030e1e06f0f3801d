/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hierarchical weight: what a task in a tree of groups weighs on one flat
 * queue.
 *
 * A group's weight is shared by what is active in it, so each task of group g
 * weighs
 *
 *	task weight / scale(g),   scale(root) = 1,
 *	scale(g) = scale(parent) * load(g) / weight(g),
 *
 * where load(g) is the sum of the weights of what is active in g: its runnable
 * tasks and its child groups, averaged over the last few milliseconds in which
 * there were any. A child counts with its own weight, however many tasks are
 * in it, and only while it has any: a group is as busy as it is at all, not as
 * the sum of its tasks.
 *
 * Scales have SCALE_SHIFT fraction bits while the tree is walked and
 * HOT_SCALE_SHIFT where a task's weight is computed from one. In a chain of
 * groups each load is the weight of the next, and the product telescopes to
 * load(last) / weight(first): at least 3 / 102400, which is 491 in the coarser
 * of the two. So no legal hierarchy rounds a scale to zero, at any depth; one
 * that averages out of step is kept at 1. The other way there is no bound, since
 * each level may add a factor of 10000 and more, and scales saturate; but only
 * where a task would weigh less than 10^-8 of one in the root.
 */
#pragma once

#include "vtime.h"
#include "weight.h"

#define SCALE_SHIFT 26
#define SCALE_ONE (1ULL << SCALE_SHIFT)
#define SCALE_MAX (1ULL << 60)
#define RATIO_SHIFT 32 /* of load / weight */

#define HOT_SCALE_SHIFT 24
#define HOT_SCALE_ONE (1ULL << HOT_SCALE_SHIFT)

/* A new measurement of a load counts by 1 / 2^LOAD_AVERAGE_SHIFT. */
#define LOAD_AVERAGE_SHIFT 2

/* Lag is bounded anew when the weight of a group is set to so many times more or less. */
#define REWEIGH_FACTOR 4

/*
 * The least share of a CPU that a task has while it is runnable is 1 in
 * LIGHTEST_SHARE. No task is to wait for 10 s (relief.bpf.h),
 * and a run lasts until a tick at least, which is 4 ms: a task that is entitled
 * to less than this would wait too long.
 */
#define LIGHTEST_SHARE 1500

/* load / weight with RATIO_SHIFT fraction bits, saturated to VT_STEP_MAX. */
static inline u64 load_ratio(u64 load, u64 weight)
{
	const u64 weight_max = 1ULL << (63 - RATIO_SHIFT);
	u64 whole;

	if (weight < WEIGHT_MIN)
		weight = WEIGHT_MIN;
	if (weight > weight_max)
		weight = weight_max;
	whole = load / weight;
	if (whole >> (62 - RATIO_SHIFT))
		return VT_STEP_MAX;
	return (whole << RATIO_SHIFT) +
	       ((load % weight) << RATIO_SHIFT) / weight;
}

/* scale(g), within [1, SCALE_MAX]. */
static inline u64 group_scale(u64 parent_scale, u64 load, u64 weight)
{
	/* Half a shift here and half below: mul_shr_sat() shifts by less than 32. */
	u64 scale = mul_shr_sat(parent_scale, load_ratio(load, weight),
				RATIO_SHIFT - 1) >>
		    1;

	if (scale > SCALE_MAX)
		return SCALE_MAX;
	return scale ? scale : 1;
}

/* The same for hot_inv(). */
static inline u64 hot_scale(u64 scale)
{
	scale >>= SCALE_SHIFT - HOT_SCALE_SHIFT;
	return scale ? scale : 1;
}

/*
 * Inverse of the weight on the flat queue of a task whose inverse weight in
 * its group is @inv; at most @inv_max, never zero.
 */
static inline u64 hot_inv(u64 inv, u64 scale, u64 inv_max)
{
	u64 scaled;

	if (!((inv | scale) >> 32))
		scaled = (inv * scale) >> HOT_SCALE_SHIFT;
	else
		scaled = mul_shr_sat(inv, scale, HOT_SCALE_SHIFT);
	if (scaled > inv_max)
		return inv_max;
	return scaled ? scaled : 1;
}

/*
 * The average of a load, of which @sum is the newest measurement. @average is
 * zero if there has been none.
 */
static inline u64 load_average(u64 average, u64 sum)
{
	if (!average)
		return sum;
	if (sum > average)
		return average + ((sum - average) >> LOAD_AVERAGE_SHIFT);
	return average - ((average - sum) >> LOAD_AVERAGE_SHIFT);
}

/*
 * Inverse of the weight by which the tasks of a group of @weight have credit at most: a
 * slice of what it weighs on one of @cpus CPUs. Together they have a slice for each CPU.
 */
static inline u64 group_credit_inv(u64 weight, u32 cpus)
{
	return weight_inv(weight / (cpus ? cpus : 1));
}

/* Inverse of the least weight, where @total is active on @cpus CPUs. */
static inline u64 lightest_inv(u64 total, u32 cpus)
{
	u64 lightest = total / ((u64)(cpus ? cpus : 1) * LIGHTEST_SHARE);

	return weight_inv(lightest < WEIGHT_MAX ? lightest : WEIGHT_MAX);
}

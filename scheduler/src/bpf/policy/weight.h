/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Weights: what a task's share of the CPU is proportional to.
 *
 * A weight is a fixed point number with WEIGHT_SHIFT fraction bits over the
 * kernel's scale, in which nice 0 weighs 1024 and every nice level is worth
 * a factor of about 1.25 (the table of sched(7), sched_prio_to_weight[] in
 * kernel/sched/core.c). p->scx.weight is not used for tasks: the kernel rounds
 * it to 1..10000 with 100 for nice 0, and so gives nice 19 and nice 18 the
 * weights 1 and 2 where the table says 15 and 18.
 *
 * No weight is ever zero: a zero would divide, or stop virtual time.
 */
#pragma once

#include "types.h"

#define WEIGHT_SHIFT 10
#define NICE_0_SHIFT (10 + WEIGHT_SHIFT)
#define WEIGHT_NICE_0 (1ULL << NICE_0_SHIFT)
#define WEIGHT_IDLE (3ULL << WEIGHT_SHIFT) /* SCHED_IDLE, WEIGHT_IDLEPRIO */
#define WEIGHT_MIN 1ULL
#define WEIGHT_MAX (10000ULL * WEIGHT_NICE_0)

/* An inverse weight is 2^INV_SHIFT / weight; virtual time multiplies by it. */
#define INV_SHIFT 42
#define INV(weight) (((1ULL << INV_SHIFT) + (weight) / 2) / (weight))
#define INV_NICE_0 INV(WEIGHT_NICE_0)
#define INV_IDLE INV(WEIGHT_IDLE)

#define NICE_LEVELS 40
#define MAX_RT_PRIO 100 /* p->static_prio of nice -20 */
#define PRIO_NICE_0 120 /* p->static_prio of nice 0 */

/* The kernel's table from nice -20 to nice 19. */
/* clang-format off */
#define NICE_WEIGHTS(X)                                                    \
	X(88761) X(71755) X(56483) X(46273) X(36291) X(29154) X(23254)     \
	X(18705) X(14949) X(11916) X(9548) X(7620) X(6100) X(4904) X(3906) \
	X(3121) X(2501) X(1991) X(1586) X(1277) X(1024) X(820) X(655)      \
	X(526) X(423) X(335) X(272) X(215) X(172) X(137) X(110) X(87)      \
	X(70) X(56) X(45) X(36) X(29) X(23) X(18) X(15)
/* clang-format on */

#define NICE_WEIGHT_ENTRY(w) ((u64)(w) << WEIGHT_SHIFT),
#define NICE_INV_ENTRY(w) INV((u64)(w) << WEIGHT_SHIFT),

static const u64 nice_weight[NICE_LEVELS] = { NICE_WEIGHTS(NICE_WEIGHT_ENTRY) };
static const u64 nice_inv[NICE_LEVELS] = { NICE_WEIGHTS(NICE_INV_ENTRY) };

/* Index into the tables of a static priority, clamped to nice -20..19. */
static inline u32 nice_index(int static_prio)
{
	if (static_prio < MAX_RT_PRIO)
		return 0;
	if (static_prio >= MAX_RT_PRIO + NICE_LEVELS)
		return NICE_LEVELS - 1;
	return static_prio - MAX_RT_PRIO;
}

/*
 * Weight of a cgroup-scale weight 1..10000 (100 stands for nice 0), as
 * sched_weight_from_cgroup() but with the fraction kept.
 */
static inline u64 weight_from_cgroup(u64 cgroup_weight)
{
	u64 weight = (cgroup_weight * WEIGHT_NICE_0 + 50) / 100;

	return weight ? weight : WEIGHT_MIN;
}

/* Inverse of any weight, never zero within [WEIGHT_MIN, WEIGHT_MAX]. */
static inline u64 weight_inv(u64 weight)
{
	if (weight < WEIGHT_MIN)
		weight = WEIGHT_MIN;
	if (weight > WEIGHT_MAX)
		weight = WEIGHT_MAX;
	return INV(weight);
}

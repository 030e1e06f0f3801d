/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How many more tasks a NUMA node has room for, in units of 1 << ROOM_SHIFT.
 */
#pragma once

#include "types.h"

#define ROOM_SHIFT 16

/* As that of the kernel's load tracking (kernel/sched/pelt.c). */
#define START_HALF_LIFE_NS (32ULL * 1000 * 1000)

/* What @recent starts of tasks still count after @ns. */
static inline u64 starts_left(u64 recent, u64 ns)
{
	u64 halvings = ns / START_HALF_LIFE_NS;
	u64 rest = ns % START_HALF_LIFE_NS;

	if (halvings >= 64)
		return 0;
	recent >>= halvings;
	/* Between two halvings, on a straight line. */
	return recent - recent * rest / (2 * START_HALF_LIFE_NS);
}

/* The room of a node where @idle_cores idle and @starts still count. */
static inline s64 node_room(u32 idle_cores, u64 starts)
{
	return ((s64)idle_cores << ROOM_SHIFT) - (s64)starts;
}

/*
 * How much more room than a node of @cpus CPUs another one must have to be
 * better: an eighth of the CPUs, as in the kernel (imb_numa_nr), and enough for
 * a pair and its parent.
 */
static inline s64 node_margin(u32 cpus)
{
	s64 eighth = (s64)cpus << (ROOM_SHIFT - 3);
	s64 pair = 2LL << ROOM_SHIFT;

	return eighth < pair ? pair : eighth;
}

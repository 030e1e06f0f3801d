/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Choosing among idle CPUs, as bits of one word (topology.bpf.h). The threads
 * of a core sit side by side.
 */
#pragma once

#include "types.h"

/* The first of @cpus, which are not none, from bit @start on and around. */
static inline u32 bit_from(u64 cpus, u32 start)
{
	u64 ahead;

	if (cpus >> (start & 63) & 1)
		return start & 63;
	ahead = cpus & (~0ULL << (start & 63));
	return __builtin_ctzll(ahead ? ahead : cpus);
}

/* The lowest @n bits, of 64. */
static inline u64 bits_below(u32 n)
{
	return n < 64 ? (1ULL << n) - 1 : ~0ULL;
}

/*
 * The cores whose threads are all in @cpus: of each, its last thread. @starts
 * and @ends are the first and the last thread of every core.
 *
 * Adding a core's first bit to its bits but the last carries on to the last
 * one if, and only if, all before it are set. No sum crosses into another
 * core, so one addition asks all cores, whatever their sizes.
 */
static inline u64 whole_cores(u64 cpus, u64 starts, u64 ends)
{
	return ((cpus & ~ends) + starts) & cpus & ends;
}

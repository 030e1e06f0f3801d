/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Virtual time: CPU time divided by weight.
 *
 * Unit: 2^-VT_SHIFT ns of a nice 0 task. It is a u64 that wraps, every 208
 * days for nice 0 and every 15 hours for SCHED_IDLE, so two instants may only
 * be compared by vt_before() and they must lie within half that range; the
 * lag clamp (lag.h) keeps all that meet in one queue within seconds.
 *
 * The fraction bits have a second use. A queued or sleeping task carries its
 * virtual time in p->scx.dsq_vtime, and virtual time means nothing without
 * the clock it belongs to: the fraction bits of that key hold the CPU whose
 * clock it is. All keys in one queue name the same CPU, so the CPU number
 * never changes their order, and a task finds its way back to its clock
 * without a map lookup. The bit above them says whether the load of the task's
 * group misses its weight (group_load.bpf.h), which no task's does that waits.
 */
#pragma once

#include "types.h"
#include "weight.h"

#define VT_SHIFT 10

#define KEY_CPU_MASK ((1ULL << VT_SHIFT) - 1)
#define KEY_UNCOUNTED (1ULL << VT_SHIFT)
#define KEY_VT_SHIFT (VT_SHIFT + 1)
#define KEY_VT_MASK (~0ULL << KEY_VT_SHIFT)

/* Largest step of virtual time: comparisons stay valid for half the range. */
#define VT_STEP_MAX (1ULL << 62)

static inline bool vt_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static inline u64 vt_max(u64 a, u64 b)
{
	return vt_before(a, b) ? b : a;
}

static inline u64 vt_min(u64 a, u64 b)
{
	return vt_before(a, b) ? a : b;
}

/*
 * (a * b) >> shift in full precision, saturated to VT_STEP_MAX. BPF has no
 * 128-bit multiplication; 0 < shift < 32. Out of line, since few numbers need it.
 */
static __noinline u64 mul_shr_sat(u64 a, u64 b, u32 shift)
{
	u64 a_lo = (u32)a, a_hi = a >> 32, b_lo = (u32)b, b_hi = b >> 32;
	u64 lo = a_lo * b_lo;
	u64 mid1 = a_hi * b_lo;
	u64 mid2 = (u32)mid1 + a_lo * b_hi;
	u64 carry = (u32)mid2 + (lo >> 32);
	u64 hi = a_hi * b_hi + (mid1 >> 32) + (mid2 >> 32) + (carry >> 32);
	u64 result;

	if (hi >> (shift - 2))
		return VT_STEP_MAX;
	lo = (carry << 32) | (u32)lo;
	result = (hi << (64 - shift)) | (lo >> shift);
	return result < VT_STEP_MAX ? result : VT_STEP_MAX;
}

/*
 * Virtual time that @delta_ns of CPU time are worth to a task of inverse
 * weight @inv. Monotonic in @delta_ns, at most VT_STEP_MAX.
 */
static inline u64 vt_delta(u64 delta_ns, u64 inv)
{
	const u32 shift = INV_SHIFT - NICE_0_SHIFT - VT_SHIFT;

	if (!((delta_ns | inv) >> 32))
		return (delta_ns * inv) >> shift;
	return mul_shr_sat(delta_ns, inv, shift);
}

/* The key in p->scx.dsq_vtime: virtual time and the CPU of its clock. */
static inline u64 vt_key(u64 vt, u32 cpu)
{
	return (vt & KEY_VT_MASK) | (cpu & KEY_CPU_MASK);
}

static inline u64 vt_of_key(u64 key)
{
	return key & KEY_VT_MASK;
}

static inline u32 cpu_of_key(u64 key)
{
	return key & KEY_CPU_MASK;
}

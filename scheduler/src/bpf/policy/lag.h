/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lag: how far a task's virtual time is from its queue's clock.
 *
 * A task behind the clock (credit) has had less than its share, one ahead of
 * it (debt) more. Lag is kept over sleep and migration, within bounds: a
 * sleeper may not bank its absence, and a long runner may not be locked out.
 * The bounds are in slices of the task's own CPU time, as in EEVDF.
 */
#pragma once

#include "vtime.h"

#define LAG_CREDIT_SLICES 1
#define LAG_DEBT_SLICES 2

/* The credit of a task that did not sleep but waited, here or elsewhere. */
#define LAG_WAITING_SLICES 4

/*
 * The same in slices of the lightest task that it competes with. Queues differ
 * by that much before CPUs even them out, so a heavy task that moves between
 * them brings as much, though it be many slices of its own.
 */
#define LAG_LIGHTEST_SLICES 4

/* Fraction bits of the ratio of two weights: 2^INV_SHIFT has room for them. */
#define LAG_RATIO_SHIFT 20

/*
 * How far two CPUs' clocks may drift apart before the difference is forgiven.
 * It is the bound of the credit that one CPU's tasks may hold over another's.
 */
#define FRAME_DRIFT_SLICES 4

/*
 * Virtual time at which a task of @vt that slept enters a queue whose clock is
 * at @clock. @slice_vt: the task's slice in its own virtual time; @credit_vt:
 * the same or less, where its credit is not its own alone (hweight.h).
 */
static inline u64 lag_clamp(u64 vt, u64 clock, u64 credit_vt, u64 slice_vt)
{
	u64 oldest = clock - LAG_CREDIT_SLICES * credit_vt;
	u64 newest = clock + LAG_DEBT_SLICES * slice_vt;

	return vt_min(vt_max(vt, oldest), newest);
}

/*
 * The same for a task that was runnable all the time: its debt is real.
 * @lightest_vt: the slice of the lightest task around, in that one's virtual
 * time.
 */
static inline u64 lag_floor(u64 vt, u64 clock, u64 slice_vt, u64 lightest_vt)
{
	u64 credit = LAG_WAITING_SLICES * slice_vt;

	if (credit < LAG_LIGHTEST_SLICES * lightest_vt)
		credit = LAG_LIGHTEST_SLICES * lightest_vt;
	return vt_max(vt, clock - credit);
}

/* The same for one that was runnable all the time, but by other weights than now. */
static inline u64 lag_bound(u64 vt, u64 clock, u64 slice_vt, u64 lightest_vt)
{
	u64 newest = clock + LAG_DEBT_SLICES * slice_vt;

	return vt_min(lag_floor(vt, clock, slice_vt, lightest_vt), newest);
}

/* The credit of a task that is at @vt by @clock, of up to @most. */
static inline u64 lag_credit(u64 vt, u64 clock, u64 most)
{
	u64 credit = vt_before(vt, clock) ? clock - vt : 0;

	return credit < most ? credit : most;
}

/*
 * Where a task that slept, and would enter at @vt, enters instead among @others, where those are
 * that wait, or the hog that runs. It has @credit by the clock that it slept by. A hog may be
 * behind the clock by more. It is owed that, but not by one that slept: it has its credit with
 * respect to the hog. In steps of its credit, so that a task which hardly slept is not put ahead.
 */
static inline u64 lag_among(u64 vt, u64 others, u64 credit)
{
	u64 ahead = others - credit;

	if (!vt_before(ahead, vt))
		return vt;
	return vt_max(ahead, vt - LAG_WAITING_SLICES * credit);
}

/*
 * Where a SCHED_IDLE task at @vt waits: behind every task of slice @slice_vt
 * that lag_clamp() admits, and behind @clock by at least a slice of its own,
 * @own_slice_vt, however little it owes here. It is there for CPUs that would
 * idle. What it has had on one of those is forgotten as it moves.
 */
static inline u64 lag_of_idle(u64 vt, u64 clock, u64 slice_vt, u64 own_slice_vt)
{
	u64 behind = LAG_DEBT_SLICES * slice_vt;

	return vt_max(vt,
		      clock + (behind > own_slice_vt ? behind : own_slice_vt));
}

/*
 * Where a task at @vt is by @clock when its inverse weight is @inv and no longer
 * @before. Its lag is as much CPU time as before: more virtual time to a lighter
 * task (reweight_entity() of EEVDF). Inverse weights are at most 2^INV_SHIFT.
 */
static inline u64 lag_reweigh(u64 vt, u64 clock, u64 before, u64 inv)
{
	u64 ratio = (inv << LAG_RATIO_SHIFT) / (before ? before : 1);
	s64 lag = vt - clock;

	if (lag < 0)
		return clock - mul_shr_sat(-(u64)lag, ratio, LAG_RATIO_SHIFT);
	return clock + mul_shr_sat(lag, ratio, LAG_RATIO_SHIFT);
}

/*
 * Clocks of different CPUs advance at different speeds; a clock minus its
 * offset is its position in the frame that they share. Return the offset
 * under which @clock is at most @drift away from @other_frame.
 */
static inline u64 frame_offset(u64 clock, u64 offset, u64 other_frame,
			       u64 drift)
{
	s64 ahead = clock - offset - other_frame;

	if (ahead > (s64)drift)
		return offset + (ahead - drift);
	if (ahead < -(s64)drift)
		return offset - (-ahead - drift);
	return offset;
}

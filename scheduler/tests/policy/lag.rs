// SPDX-License-Identifier: GPL-2.0-only

//! `policy/lag.h`: what a task is owed, and within which bounds.

use super::*;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn is_bounded_by_slices(vt in any_vt(), clock in any_vt(), slice in 0..SLICE_VT_MAX) {
        let lag = ahead(shim_lag_clamp(vt, clock, slice, slice), clock);
        prop_assert!(lag >= -((CREDIT_SLICES * slice) as i64));
        prop_assert!(lag <= (DEBT_SLICES * slice) as i64);
    }

    #[test]
    fn is_kept_within_its_bounds(
        clock in any_vt(), slice in 1..SLICE_VT_MAX, part in -1000i64..=2000
    ) {
        let lag = (i128::from(part) * i128::from(slice) / 1000) as i64;
        let vt = clock.wrapping_add_signed(lag);
        prop_assert_eq!(shim_lag_clamp(vt, clock, slice, slice), vt);
    }

    #[test]
    fn keeps_the_order(
        clock in any_vt(), slice in 0..SLICE_VT_MAX,
        a in -(1i64 << 60)..(1 << 60), b in -(1i64 << 60)..(1 << 60)
    ) {
        let place = |lag| shim_lag_clamp(clock.wrapping_add_signed(lag), clock, slice, slice);
        prop_assert!(!shim_vt_before(place(a.max(b)), place(a.min(b))));
    }

    #[test]
    fn by_other_weights_than_now_is_bounded_by_those_of_now(
        clock in any_vt(), lag in -(1i64 << 60)..(1 << 60), slice in 0..SLICE_VT_MAX, lightest in 0..SLICE_VT_MAX
    ) {
        let vt = clock.wrapping_add_signed(lag);
        let kept = ahead(shim_lag_bound(vt, clock, slice, lightest), clock);
        let (least, most) = (-((WAITING_SLICES * slice.max(lightest)) as i64), (DEBT_SLICES * slice) as i64);
        prop_assert_eq!(kept, lag.clamp(least, most));
    }

    #[test]
    fn credit_is_what_the_clock_is_ahead(
        vt in any_vt(), behind in -(1i64 << 60)..(1 << 60), most in 0..SLICE_VT_MAX
    ) {
        let credit = shim_lag_credit(vt, vt.wrapping_add_signed(behind), most);
        prop_assert_eq!(credit, (behind.max(0) as u64).min(most));
    }

    #[test]
    fn among_others_a_sleeper_has_its_credit_or_is_where_it_was(
        vt in any_vt(), behind in -(1i64 << 60)..(1 << 60), credit in 0..SLICE_VT_MAX
    ) {
        let others = vt.wrapping_add_signed(-behind);
        let placed = shim_lag_among(vt, others, credit);
        let gained = ahead(vt, placed);
        // Never worse off, never ahead of them by more than its credit.
        prop_assert!(gained >= 0);
        prop_assert!(gained <= (WAITING_SLICES * credit) as i64);
        prop_assert!(gained == 0 || ahead(others, placed) <= credit as i64);
        prop_assert!(gained == (WAITING_SLICES * credit) as i64 || ahead(others, placed) >= credit as i64);
    }

    #[test]
    fn of_another_weight_is_as_much_cpu_time(
        clock in any_vt(), lag in -(1i64 << 60)..(1 << 60),
        before in 1..=1u64 << INV_SHIFT, inv in 1..=1u64 << INV_SHIFT
    ) {
        let placed = shim_lag_reweigh(clock.wrapping_add_signed(lag), clock, before, inv);
        let got = i128::from(ahead(placed, clock));
        let exact = i128::from(lag) * i128::from(inv) / i128::from(before);
        let step = i128::from(lag.unsigned_abs() >> 20) + 1;
        prop_assert!(got.signum() * exact.signum() >= 0);
        prop_assert!(got.abs() <= exact.abs().min(i128::from(VT_STEP_MAX)));
        prop_assert!(got.abs() >= (exact.abs() - step).min(i128::from(VT_STEP_MAX)));
    }

    #[test]
    fn of_the_same_weight_is_the_same(
        clock in any_vt(), lag in -(1i64 << 60)..(1 << 60), inv in 1..=1u64 << INV_SHIFT
    ) {
        let vt = clock.wrapping_add_signed(lag);
        prop_assert_eq!(shim_lag_reweigh(vt, clock, inv, inv), vt);
    }

    #[test]
    fn without_credit_nobody_is_put_ahead(vt in any_vt(), others in any_vt()) {
        prop_assert_eq!(shim_lag_among(vt, others, 0), vt);
    }

    #[test]
    fn of_the_idle_policy_is_behind_all_that_wake_up(
        clock in any_vt(), slice in 0..SLICE_VT_MAX, own in 0..SLICE_VT_MAX,
        idle in -(1i64 << 60)..(1 << 60), wakee in -(1i64 << 60)..(1 << 60)
    ) {
        let vt = clock.wrapping_add_signed(idle);
        let behind = shim_lag_of_idle(vt, clock, slice, own);
        let wakee = shim_lag_clamp(clock.wrapping_add_signed(wakee), clock, slice, slice);
        prop_assert!(!shim_vt_before(behind, wakee));
        prop_assert!(!shim_vt_before(behind, vt));
        prop_assert!(ahead(behind, clock) >= own as i64);
        // And no further, so that it waits no longer than for its share.
        prop_assert!(behind == vt || ahead(behind, clock) <= own.max(DEBT_SLICES * slice) as i64);
    }

    #[test]
    fn heavy_tasks_hold_less_of_it(clock in any_vt(), a in any_weight(), b in any_weight()) {
        let credit = |weight| {
            let slice = shim_vt_delta(3 * MS, shim_weight_inv(weight));
            ahead(clock, shim_lag_clamp(clock.wrapping_sub(1 << 61), clock, slice, slice))
        };
        prop_assert!(credit(a.max(b)) <= credit(a.min(b)));
    }
}

// SPDX-License-Identifier: GPL-2.0-only

//! `policy/vtime.h`: virtual time that wraps, and keys that name a CPU.

use super::*;

#[test]
fn a_nice_0_task_ages_in_real_time() {
    for ns in [0, 1, 999, MS, 1 << 40] {
        assert_eq!(shim_vt_delta(ns, shim_nice_inv(20)), ns << VT_SHIFT);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn multiplication_is_exact_or_saturates(
        a in any::<u64>(), b in any::<u64>(), shift in 3u32..32
    ) {
        let exact = (u128::from(a) * u128::from(b)) >> shift;
        let expected = exact.min(u128::from(VT_STEP_MAX)) as u64;
        prop_assert_eq!(shim_mul_shr_sat(a, b, shift), expected);
    }

    #[test]
    fn both_paths_of_delta_agree_with_the_exact_product(ns in any_ns(), inv in any_inv()) {
        let exact = (u128::from(ns) * u128::from(inv)) >> 12;
        let bounded = exact.min(u128::from(VT_STEP_MAX)) as u64;
        let delta = shim_vt_delta(ns, inv);
        prop_assert_eq!(delta, bounded);
    }

    #[test]
    fn never_runs_backwards(vt in any_vt(), ns in any_ns(), inv in any_inv()) {
        let later = vt.wrapping_add(shim_vt_delta(ns, inv));
        prop_assert!(!shim_vt_before(later, vt));
    }

    #[test]
    fn longer_runs_cost_no_less(a in any_ns(), b in any_ns(), inv in any_inv()) {
        prop_assert!(shim_vt_delta(a.min(b), inv) <= shim_vt_delta(a.max(b), inv));
    }

    #[test]
    fn heavier_tasks_pay_no_more(ns in any_ns(), a in any_weight(), b in any_weight()) {
        let heavy = shim_vt_delta(ns, shim_weight_inv(a.max(b)));
        let light = shim_vt_delta(ns, shim_weight_inv(a.min(b)));
        prop_assert!(heavy <= light);
    }

    #[test]
    fn charging_in_parts_costs_as_much(
        parts in prop::collection::vec(0..100 * MS, 1..50), inv in any_inv()
    ) {
        let whole = shim_vt_delta(parts.iter().sum(), inv);
        let sum: u64 = parts.iter().map(|&ns| shim_vt_delta(ns, inv)).sum();
        prop_assert!(sum <= whole && whole - sum <= parts.len() as u64);
    }

    #[test]
    fn equal_shares_for_equal_weights_are_proportional(
        ns in MS..1000 * MS, a in 0u32..40, b in 0u32..40
    ) {
        // Tasks that ran in proportion to their weights have aged alike.
        let (wa, wb) = (shim_nice_weight(a), shim_nice_weight(b));
        let other_ns = (u128::from(ns) * u128::from(wb) / u128::from(wa)) as u64;
        prop_assume!(other_ns > MS / 100);
        let (x, y) = (
            shim_vt_delta(ns, shim_nice_inv(a)),
            shim_vt_delta(other_ns, shim_nice_inv(b)),
        );
        prop_assert!(x.abs_diff(y) <= x / 2000, "{x} {y}");
    }

    #[test]
    fn order_is_antisymmetric(a in any_vt(), d in 1..(1u64 << 63)) {
        let b = a.wrapping_add(d);
        prop_assert!(shim_vt_before(a, b) && !shim_vt_before(b, a));
        prop_assert_eq!(shim_vt_max(a, b), b);
        prop_assert_eq!(shim_vt_min(a, b), a);
    }

    #[test]
    fn nothing_is_before_itself(a in any_vt()) {
        prop_assert!(!shim_vt_before(a, a));
    }

    #[test]
    fn keys_carry_time_and_clock(vt in any_vt(), cpu in 0..MAX_CPUS) {
        let key = shim_vt_key(vt, cpu);
        prop_assert_eq!(shim_cpu_of_key(key), cpu);
        let error = ahead(vt, shim_vt_of_key(key));
        prop_assert!((0..1 << KEY_VT_SHIFT).contains(&error));
    }

    #[test]
    fn the_mark_of_the_uncounted_changes_neither(vt in any_vt(), cpu in 0..MAX_CPUS) {
        let key = shim_vt_key(vt, cpu);
        prop_assert_eq!(key & KEY_UNCOUNTED, 0);
        prop_assert_eq!(shim_cpu_of_key(key | KEY_UNCOUNTED), cpu);
        prop_assert_eq!(shim_vt_of_key(key | KEY_UNCOUNTED), shim_vt_of_key(key));
    }

    #[test]
    fn keys_of_one_clock_keep_the_order(
        vt in any_vt(), d in (1u64 << KEY_VT_SHIFT)..(1 << 62), cpu in 0..MAX_CPUS
    ) {
        let (early, late) = (shim_vt_key(vt, cpu), shim_vt_key(vt.wrapping_add(d), cpu));
        prop_assert!(shim_vt_before(early, late));
    }
}

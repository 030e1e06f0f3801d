// SPDX-License-Identifier: GPL-2.0-only

//! `policy/hweight.h`: the weight of a task in a hierarchy of groups.

use super::*;

const SCALE_ONE: u64 = 1 << 26;
const SCALE_MAX: u64 = 1 << 60;
const HOT_ONE: f64 = (1u64 << 24) as f64;

/// A level of a hierarchy: the group's weight, and what else is active beside it.
fn level() -> impl Strategy<Value = (u64, u64)> {
    let weight = prop_oneof![1..=10_000u64, Just(1), Just(100), Just(10_000)];
    let beside = prop_oneof![Just(0), 1..=10_000u64, Just(10_000_000)];
    (weight, beside)
}

/// The scale at the end of a chain of groups that holds a load, and the exact value; infinite if it
/// saturates on the way.
fn chain(levels: &[(u64, u64)], load: u64) -> (u64, f64) {
    let weight = |cgroup| shim_weight_from_cgroup(cgroup);
    let mut scale = SCALE_ONE;
    let mut exact = SCALE_ONE as f64;
    for (i, &(own, _)) in levels.iter().enumerate() {
        let active = match levels.get(i + 1) {
            Some(&(0, _)) => unreachable!("no weight is zero"),
            Some(&(child, 0)) => weight(child),
            Some(&(child, beside)) => weight(child) + weight(beside),
            None => load,
        };
        scale = shim_group_scale(scale, active, weight(own));
        exact *= active as f64 / weight(own) as f64;
        if exact >= SCALE_MAX as f64 {
            exact = f64::INFINITY;
        }
    }
    (scale, exact)
}

#[test]
fn the_lightest_legal_load_keeps_its_precision() {
    for cgroup in 1..=10_000 {
        for load in [
            WEIGHT_IDLE,
            shim_nice_weight(39),
            NICE_0,
            shim_nice_weight(0),
        ] {
            let scale = shim_hot_scale(shim_group_scale(
                SCALE_ONE,
                load,
                shim_weight_from_cgroup(cgroup),
            ));
            let exact = load as f64 / shim_weight_from_cgroup(cgroup) as f64 * HOT_ONE;
            assert!(
                (scale as f64 - exact).abs() <= 1.0 + exact / 1e6,
                "{cgroup} {load}"
            );
            assert!(scale >= 490);
        }
    }
}

#[test]
fn a_task_alone_in_any_chain_weighs_what_the_first_group_does() {
    for depth in 1..=32 {
        for weights in [[1, 10_000], [10_000, 1], [10_000, 10_000], [1, 1]] {
            let levels: Vec<_> = (0..depth).map(|i| (weights[i % 2], 0)).collect();
            let hot = shim_hot_scale(chain(&levels, NICE_0).0);
            let inv = shim_hot_inv(shim_nice_inv(20), hot, u64::MAX);
            let expected = shim_weight_inv(shim_weight_from_cgroup(weights[0]));
            assert!(
                inv.abs_diff(expected) <= 2 + expected / 300,
                "{depth} {weights:?} {inv} {expected}"
            );
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// P4 of the review: depth or a large ratio rounds no weight to zero.
    #[test]
    fn weights_are_exact_or_saturated_at_any_depth(
        levels in prop::collection::vec(level(), 1..=32), load in any_weight()
    ) {
        let (scale, exact) = chain(&levels, load.max(WEIGHT_IDLE));
        prop_assert!((1..=SCALE_MAX).contains(&scale));
        if exact.is_finite() {
            prop_assert!((scale as f64 / exact - 1.0).abs() < 0.01, "{scale} {exact}");
        }
    }

    /// P1 of the review: in whatever order loads are summed up, no weight is zero.
    #[test]
    fn scales_and_inverses_are_never_zero_whatever_comes_in(
        parent in 1..=SCALE_MAX, load in any::<u64>(), weight in any::<u64>(), inv in any_inv(), most in 1..u64::MAX
    ) {
        let scale = shim_group_scale(parent, load, weight);
        prop_assert!((1..=SCALE_MAX).contains(&scale));
        let inv = shim_hot_inv(inv, shim_hot_scale(scale), most);
        prop_assert!((1..=most).contains(&inv));
    }

    #[test]
    fn a_group_weighs_no_more_than_its_weight(
        tasks in prop::collection::vec(0u32..NICE_LEVELS as u32, 1..200), cgroup in 1u64..=10_000
    ) {
        let weights: Vec<u64> = tasks.iter().map(|&i| shim_nice_weight(i)).collect();
        let own = shim_weight_from_cgroup(cgroup);
        let hot = shim_hot_scale(shim_group_scale(SCALE_ONE, weights.iter().sum(), own));
        let sum: f64 = tasks
            .iter()
            .map(|&i| (1u64 << INV_SHIFT) as f64 / shim_hot_inv(shim_nice_inv(i), hot, u64::MAX) as f64)
            .sum();
        prop_assert!((sum / own as f64 - 1.0).abs() < 0.005, "{sum} {own}");
    }

    #[test]
    fn an_average_lies_between_what_it_was_and_what_is_new(average in 1..1u64 << 50, sum in 1..1u64 << 50) {
        let next = shim_load_average(average, sum);
        prop_assert!((average.min(sum)..=average.max(sum)).contains(&next));
        prop_assert!(next > 0);
        prop_assert_eq!(shim_load_average(0, sum), sum);
    }

    #[test]
    fn an_average_follows_within_ten_milliseconds(before in 1..1u64 << 40, after in 1u64 << 10..1 << 40) {
        let mut average = before;
        for _ in 0..10 {
            average = shim_load_average(average, after);
        }
        prop_assert!(average.abs_diff(after) <= before.abs_diff(after) / 15 + 40);
    }

    /// P9 of the review: a herd has a slice of its group's for each CPU, however many it is.
    #[test]
    fn a_group_has_credit_for_a_slice_of_each_cpu(cgroup in 1u64..=10_000, cpus in 1u32..1024) {
        let weight = shim_weight_from_cgroup(cgroup);
        let alone = (1u64 << INV_SHIFT) as f64 / weight as f64;
        let slices = shim_group_credit_inv(weight, cpus) as f64 / alone;
        prop_assert!((slices / f64::from(cpus) - 1.0).abs() < 0.1, "{slices}");
    }

    #[test]
    fn the_lightest_task_has_its_share_of_a_cpu(total in 1..1u64 << 48, cpus in 1u32..1024) {
        let least = (1u64 << INV_SHIFT) as f64 / shim_lightest_inv(total, cpus) as f64;
        let share = least * f64::from(cpus) / total as f64;
        prop_assert!(share >= 0.99 / 1500.0 || least > 0.99 * WEIGHT_MAX as f64, "{share}");
    }

    #[test]
    fn credit_may_be_less_than_a_slice(
        vt in any_vt(), clock in any_vt(), slice in 0..SLICE_VT_MAX, part in 0..=1000u64
    ) {
        let credit = (u128::from(slice) * u128::from(part) / 1000) as u64;
        let lag = ahead(shim_lag_clamp(vt, clock, credit, slice), clock);
        prop_assert!(lag >= -((CREDIT_SLICES * credit) as i64));
        prop_assert!(lag <= (DEBT_SLICES * slice) as i64);
    }
}

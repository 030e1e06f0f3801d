// SPDX-License-Identifier: GPL-2.0-only

//! Properties of the policy headers, compiled for the host: what must hold
//! for any weights and at any virtual time, wrapping included.

mod common;

use common::config;
use proptest::prelude::*;

const NICE_LEVELS: usize = 40;
const NICE_0: u64 = 1 << 20;
const INV_SHIFT: u32 = 42;
const WEIGHT_MAX: u64 = 10_000 * NICE_0;
const WEIGHT_IDLE: u64 = 3 << 10;
const VT_SHIFT: u32 = 10;
const VT_STEP_MAX: u64 = 1 << 62;
const MAX_CPUS: u32 = 1 << VT_SHIFT;
const CREDIT_SLICES: u64 = 1;
const WAITING_SLICES: u64 = 4;
const DEBT_SLICES: u64 = 2;
const MS: u64 = 1_000_000;
/// A slice in virtual time that keeps all lags far below half the range.
const SLICE_VT_MAX: u64 = 1 << 56;

/// `sched_prio_to_weight[]` of the kernel, from nice -20 to nice 19.
const KERNEL_WEIGHTS: [u64; NICE_LEVELS] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Contender {
    vt: u64,
    inv: u64,
    idle: bool,
    batch: bool,
}

mod c {
    use super::Contender;

    #[link(name = "policy_shim", kind = "static")]
    unsafe extern "C" {
        pub safe fn shim_nice_index(prio: i32) -> u32;
        pub safe fn shim_nice_weight(index: u32) -> u64;
        pub safe fn shim_nice_inv(index: u32) -> u64;
        pub safe fn shim_weight_from_cgroup(weight: u64) -> u64;
        pub safe fn shim_weight_inv(weight: u64) -> u64;
        pub safe fn shim_vt_before(a: u64, b: u64) -> bool;
        pub safe fn shim_vt_max(a: u64, b: u64) -> u64;
        pub safe fn shim_vt_min(a: u64, b: u64) -> u64;
        pub safe fn shim_mul_shr_sat(a: u64, b: u64, shift: u32) -> u64;
        pub safe fn shim_vt_delta(delta: u64, inv: u64) -> u64;
        pub safe fn shim_vt_key(vt: u64, cpu: u32) -> u64;
        pub safe fn shim_vt_of_key(key: u64) -> u64;
        pub safe fn shim_cpu_of_key(key: u64) -> u32;
        pub safe fn shim_lag_clamp(vt: u64, clock: u64, credit_vt: u64, slice_vt: u64) -> u64;
        pub safe fn shim_lag_credit(vt: u64, clock: u64, most: u64) -> u64;
        pub safe fn shim_lag_among(vt: u64, others: u64, credit: u64) -> u64;
        pub safe fn shim_computes_long(run_ns: u64, sleeps: u64, gran_ns: u64) -> bool;
        pub safe fn shim_lag_behind_wakees(vt: u64, clock: u64, slice_vt: u64) -> u64;
        pub safe fn shim_group_scale(parent: u64, load: u64, weight: u64) -> u64;
        pub safe fn shim_hot_scale(scale: u64) -> u64;
        pub safe fn shim_hot_inv(inv: u64, scale: u64, inv_max: u64) -> u64;
        pub safe fn shim_load_average(average: u64, sum: u64) -> u64;
        pub safe fn shim_lightest_inv(total: u64, cpus: u32) -> u64;
        pub safe fn shim_frame_offset(clock: u64, offset: u64, other: u64, drift: u64) -> u64;
        pub safe fn shim_keeps_running(prev: u64, head: u64) -> bool;
        pub safe fn shim_worth_exchanging(prev: u64, waiter: u64, threshold: u64) -> bool;
        pub safe fn shim_wakeup_preempts(wakee: &Contender, curr: &Contender, gran: u64) -> bool;
    }
}
use c::*;

fn any_weight() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..=WEIGHT_MAX,
        (1u64..=10_000).prop_map(|w| shim_weight_from_cgroup(w)),
        (0u32..NICE_LEVELS as u32).prop_map(|i| shim_nice_weight(i)),
        Just(1),
        Just(WEIGHT_IDLE),
        Just(WEIGHT_MAX),
    ]
}

fn any_inv() -> impl Strategy<Value = u64> {
    any_weight().prop_map(|w| shim_weight_inv(w))
}

/// Any instant, with those around the places where a u64 wraps made likely.
fn any_vt() -> impl Strategy<Value = u64> {
    let around = |at: u64| (0..2_000_000u64).prop_map(move |d| at.wrapping_add(d).wrapping_sub(MS));
    prop_oneof![
        any::<u64>(),
        around(0),
        around(1 << 63),
        around(1 << 62),
        around(1 << 32)
    ]
}

/// Any duration in ns, from none to more than the machine will be up.
fn any_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..10 * MS,
        0..1u64 << 40,
        Just(0),
        Just(u64::MAX),
        Just(1 << 63)
    ]
}

fn contender() -> impl Strategy<Value = Contender> {
    (any_vt(), any_inv(), any::<bool>(), any::<bool>()).prop_map(|(vt, inv, idle, batch)| {
        Contender {
            vt,
            inv,
            idle,
            batch: batch && !idle,
        }
    })
}

/// Signed distance from `b` to `a` around the wrap.
fn ahead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

mod weights {
    use super::*;

    #[test]
    fn nice_levels_weigh_what_the_kernel_says() {
        for (i, weight) in KERNEL_WEIGHTS.iter().enumerate() {
            assert_eq!(shim_nice_weight(i as u32), weight << 10);
            assert_eq!(shim_nice_index(100 + i as i32), i as u32);
        }
    }

    #[test]
    fn nice_levels_are_strictly_ordered() {
        for i in 1..NICE_LEVELS as u32 {
            assert!(shim_nice_weight(i - 1) > shim_nice_weight(i));
            assert!(shim_nice_inv(i - 1) < shim_nice_inv(i));
        }
    }

    #[test]
    fn inverse_of_every_nice_level_is_exact_to_1e_4() {
        for i in 0..NICE_LEVELS as u32 {
            let product = u128::from(shim_nice_weight(i)) * u128::from(shim_nice_inv(i));
            let error = product.abs_diff(1 << INV_SHIFT);
            assert!(error * 10_000 < 1 << INV_SHIFT, "nice index {i}");
            assert_eq!(shim_nice_inv(i), shim_weight_inv(shim_nice_weight(i)));
        }
    }

    #[test]
    fn cgroup_weights_are_never_zero_and_strictly_ordered() {
        let mut last = 0;
        for weight in 1..=10_000 {
            let scaled = shim_weight_from_cgroup(weight);
            assert!(scaled > last);
            last = scaled;
        }
        assert_eq!(shim_weight_from_cgroup(100), NICE_0);
        assert_ne!(shim_weight_from_cgroup(0), 0);
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn any_static_priority_has_an_index(prio in any::<i32>()) {
            prop_assert!(shim_nice_index(prio) < NICE_LEVELS as u32);
        }

        #[test]
        fn inverse_is_never_zero(weight in any::<u64>()) {
            prop_assert!(shim_weight_inv(weight) > 0);
        }

        #[test]
        fn heavier_never_has_the_larger_inverse(a in any_weight(), b in any_weight()) {
            let (light, heavy) = (a.min(b), a.max(b));
            prop_assert!(shim_weight_inv(light) >= shim_weight_inv(heavy));
        }
    }
}

mod virtual_time {
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
            prop_assert!((0..1 << VT_SHIFT).contains(&error));
        }

        #[test]
        fn keys_of_one_clock_keep_the_order(
            vt in any_vt(), d in (1u64 << VT_SHIFT)..(1 << 62), cpu in 0..MAX_CPUS
        ) {
            let (early, late) = (shim_vt_key(vt, cpu), shim_vt_key(vt.wrapping_add(d), cpu));
            prop_assert!(shim_vt_before(early, late));
        }
    }
}

mod lag {
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
        fn without_credit_nobody_is_put_ahead(vt in any_vt(), others in any_vt()) {
            prop_assert_eq!(shim_lag_among(vt, others, 0), vt);
        }

        #[test]
        fn of_the_idle_policy_is_behind_all_that_wake_up(
            clock in any_vt(), slice in 0..SLICE_VT_MAX,
            idle in -(1i64 << 60)..(1 << 60), wakee in -(1i64 << 60)..(1 << 60)
        ) {
            let vt = clock.wrapping_add_signed(idle);
            let behind = shim_lag_behind_wakees(vt, clock, slice);
            let wakee = shim_lag_clamp(clock.wrapping_add_signed(wakee), clock, slice, slice);
            prop_assert!(!shim_vt_before(behind, wakee));
            prop_assert!(!shim_vt_before(behind, vt));
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
}

mod groups {
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
}

mod frames {
    use super::*;

    /// A distance between clocks that leaves room for sums.
    const FAR: i64 = 1 << 60;

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn drift_is_bounded(
            clock in any_vt(), offset in any_vt(), apart in -FAR..FAR, drift in 0u64..1 << 50
        ) {
            let other = clock.wrapping_sub(offset).wrapping_add_signed(apart);
            let new = shim_frame_offset(clock, offset, other, drift);
            let now_apart = ahead(clock.wrapping_sub(new), other);
            prop_assert!(now_apart.unsigned_abs() <= drift);
        }

        #[test]
        fn small_drift_is_left_alone(
            clock in any_vt(), offset in any_vt(), drift in 1u64..1 << 50, part in -1000i64..=1000
        ) {
            let apart = (i128::from(part) * i128::from(drift) / 1000) as i64;
            let other = clock.wrapping_sub(offset).wrapping_add_signed(apart);
            prop_assert_eq!(shim_frame_offset(clock, offset, other, drift), offset);
        }

        #[test]
        fn correction_is_the_smallest_there_is(
            clock in any_vt(), offset in any_vt(), apart in -FAR..FAR, drift in 0u64..1 << 50
        ) {
            let other = clock.wrapping_sub(offset).wrapping_add_signed(apart);
            let new = shim_frame_offset(clock, offset, other, drift);
            let excess = apart.unsigned_abs().saturating_sub(drift);
            prop_assert_eq!(ahead(new, offset).unsigned_abs(), excess);
        }
    }
}

mod decisions {
    use super::*;

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn idle_policy_always_gives_way(mut wakee in contender(), mut curr in contender()) {
            curr.idle = true;
            wakee.idle = false;
            prop_assert!(shim_wakeup_preempts(&wakee, &curr, MS));
        }

        #[test]
        fn idle_and_batch_never_take(mut wakee in contender(), curr in contender(), idle in any::<bool>()) {
            wakee.idle = idle;
            wakee.batch = !idle;
            prop_assume!(!curr.idle || wakee.idle);
            prop_assert!(!shim_wakeup_preempts(&wakee, &curr, MS));
        }

        #[test]
        fn nobody_preempts_who_is_behind(mut wakee in contender(), mut curr in contender(),
                                         d in 0..1u64 << 61) {
            wakee.idle = false;
            curr.idle = false;
            wakee.vt = curr.vt.wrapping_add(d);
            prop_assert!(!shim_wakeup_preempts(&wakee, &curr, MS));
        }

        #[test]
        fn preemption_is_not_mutual(a in contender(), mut b in contender(),
                                    apart in -(1i64 << 61)..1 << 61, gran in 0..100 * MS) {
            b.vt = a.vt.wrapping_add_signed(apart);
            prop_assert!(!(shim_wakeup_preempts(&a, &b, gran) && shim_wakeup_preempts(&b, &a, gran)));
        }

        #[test]
        fn a_heavier_wakee_preempts_no_later(
            vt in any_vt(), gap in 0..1u64 << 50, a in any_weight(), b in any_weight()
        ) {
            let curr = Contender { vt: vt.wrapping_add(gap), inv: shim_nice_inv(20), idle: false, batch: false };
            let wakes = |weight| {
                let wakee = Contender { vt, inv: shim_weight_inv(weight), idle: false, batch: false };
                shim_wakeup_preempts(&wakee, &curr, MS)
            };
            prop_assert!(wakes(a.max(b)) || !wakes(a.min(b)));
        }

        #[test]
        fn a_hog_runs_long_on_average(sleeps in 1u64..1 << 20, mean in 0..100 * MS, gran in 0..100 * MS) {
            prop_assert_eq!(shim_computes_long(sleeps * mean, sleeps, gran), mean > gran);
            prop_assert!(shim_computes_long(mean + 1, 0, gran));
        }

        #[test]
        fn keeping_and_exchanging_follow_the_order(prev in any_vt(), d in 1..1u64 << 61, gap in 0..1u64 << 61) {
            prop_assert!(shim_keeps_running(prev, prev.wrapping_add(d)));
            prop_assert!(!shim_keeps_running(prev.wrapping_add(d), prev));
            prop_assert!(!shim_keeps_running(prev, prev));
            prop_assert_eq!(shim_worth_exchanging(prev.wrapping_add(d), prev, gap), d > gap);
            prop_assert!(!shim_worth_exchanging(prev, prev.wrapping_add(d), gap));
        }
    }
}

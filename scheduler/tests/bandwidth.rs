// SPDX-License-Identifier: GPL-2.0-only

//! Properties of the pools of `cpu.max` (`policy/bandwidth.h`).

mod common;

use common::config;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const MOST: u64 = 1 << 60;
/// What a group may owe is worth this much time, and a period.
const DEBT_NS: u64 = 4_000 * MS;

mod c {
    #[link(name = "policy_shim", kind = "static")]
    unsafe extern "C" {
        pub safe fn shim_bandwidth_ns(us: u64) -> u64;
        pub safe fn shim_bandwidth_periods(now: u64, due: u64, period: u64) -> u64;
        pub safe fn shim_bandwidth_kernel_debt(quota: u64, period: u64, times: u32) -> i64;
        pub safe fn shim_bandwidth_refill(
            left: i64,
            quota: u64,
            burst: u64,
            period: u64,
            periods: u64,
        ) -> i64;
    }
}
use c::*;

/// What cpu.max may be: a quota of any size, a period from 1 ms to 1 s.
fn limits() -> impl Strategy<Value = (u64, u64)> {
    let quota = prop_oneof![MS..=MOST, MS..1000 * MS];
    (quota, MS..=1000 * MS)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_limit_stands_for_all_that_is_too_large(us in any::<u64>()) {
        let ns = shim_bandwidth_ns(us);
        prop_assert!(ns <= MOST);
        prop_assert_eq!(ns, us.saturating_mul(1000).min(MOST));
    }

    #[test]
    fn periods_are_counted_once(
        start in any::<u64>(), period in 1..1u64 << 40,
        steps in prop::collection::vec(0..1u64 << 41, 1..50),
    ) {
        let (mut now, mut due, mut seen) = (start, start.wrapping_add(period), 0u64);
        for step in &steps {
            now = now.wrapping_add(*step);
            let periods = shim_bandwidth_periods(now, due, period);
            due = due.wrapping_add(periods * period);
            seen += periods;
        }
        prop_assert_eq!(seen, steps.iter().sum::<u64>() / period);
    }

    #[test]
    fn a_group_that_wants_more_gets_its_quota_on_average(
        quota in MS..1u64 << 40, period in MS..=1000 * MS,
        overdraws in prop::collection::vec(0.0..1.0f64, 1..50),
    ) {
        // It runs until the pool is empty, and beyond by what nobody noticed in time.
        let mut left = quota as i64;
        let mut used = 0i64;
        for overdraw in &overdraws {
            if left > 0 {
                let beyond = (overdraw * 3.0 * quota as f64) as i64;
                used += left + beyond;
                left = -beyond;
            }
            left = shim_bandwidth_refill(left, quota, 0, period, 1);
        }
        prop_assert_eq!(used + left, quota as i64 * (overdraws.len() as i64 + 1));
    }

    #[test]
    fn no_more_is_saved_than_the_burst(
        left in any::<i64>().prop_map(|ns| ns >> 3), (quota, period) in limits(),
        burst in 0..=MOST, periods in 1..u64::MAX,
    ) {
        let now = shim_bandwidth_refill(left, quota, burst, period, periods);
        let limit = (quota + burst) as i64;
        prop_assert!(now <= limit);
        prop_assert!(now >= left.min(limit));
    }

    #[test]
    fn no_more_is_forgiven_than_the_kernel_may_need((quota, period) in limits(), times in 1u32..=2) {
        let most = i64::from(times) * 50 * MS as i64;
        let debt = shim_bandwidth_kernel_debt(quota, period, times);
        let owed = quota as i64 - shim_bandwidth_refill(-debt, quota, 0, period, 1);
        prop_assert!(debt >= most);
        prop_assert!((0..=most).contains(&(debt - owed)));
    }

    #[test]
    fn no_debt_outlasts_the_patience_of_the_kernel(
        left in any::<i64>().prop_map(|ns| ns >> 3), (quota, period) in limits(),
    ) {
        let mut left = left;
        let mut waited = 0;
        while left <= 0 {
            left = shim_bandwidth_refill(left, quota, 0, period, 1);
            waited += period;
            prop_assert!(waited <= DEBT_NS + 2 * period);
        }
    }
}

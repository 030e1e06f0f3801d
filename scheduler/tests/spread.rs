// SPDX-License-Identifier: GPL-2.0-only

//! Properties of `policy/spread.h`: in which NUMA node new tasks start.

mod common;

use common::config;
use proptest::prelude::*;

mod c {
    #[link(name = "policy_shim", kind = "static")]
    unsafe extern "C" {
        pub safe fn shim_starts_left(recent: u64, ns: u64) -> u64;
        pub safe fn shim_node_room(idle_cores: u32, starts: u64) -> i64;
        pub safe fn shim_node_margin(cpus: u32) -> i64;
    }
}
use c::*;

const HALF_LIFE_NS: u64 = 32_000_000;
const ONE: u64 = 1 << 16;

/// Start `tasks` at once on nodes of `cores` idle cores of two threads, from the first: how many each node gets.
fn start(tasks: u64, cores: &[u32]) -> Vec<u64> {
    let mut started = vec![0; cores.len()];
    for _ in 0..tasks {
        let room = |node: usize| shim_node_room(cores[node], started[node] * ONE);
        let mut near = 0;
        let mut most = room(0) + shim_node_margin(2 * cores[0]);
        for node in 1..cores.len() {
            if room(node) > most {
                (near, most) = (node, room(node));
            }
        }
        started[near] += 1;
    }
    started
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn starts_are_forgotten_by_half_lives(tasks in 0u64..100_000, ns in 0u64..1_000_000_000, more in 0u64..1_000_000_000) {
        let starts = tasks * ONE;
        let left = shim_starts_left(starts, ns);
        prop_assert!(left <= starts);
        prop_assert!(shim_starts_left(starts, ns + more) <= left);
        let exact = starts as f64 * 0.5f64.powf(ns as f64 / HALF_LIFE_NS as f64);
        // The straight line between two halvings is at most 6.2 % above the curve.
        prop_assert!((left as f64) < 1.062 * exact + 2.0 && left as f64 > exact - 2.0, "{left} {exact}");
        prop_assert_eq!(shim_starts_left(starts, HALF_LIFE_NS), starts / 2);
    }

    #[test]
    fn a_small_program_stays_together_and_a_large_one_is_spread(nodes in 2usize..9, cores in 1u32..65, per_core in 1u64..5) {
        let margin = u64::from(2 * cores / 8).max(2);
        prop_assert_eq!(start(margin + 1, &vec![cores; nodes])[0], margin + 1);
        let started = start(per_core * u64::from(cores) * nodes as u64, &vec![cores; nodes]);
        let (least, most) = (started[1..].iter().min().unwrap(), started.iter().max().unwrap());
        prop_assert!(most - least <= margin + 2, "{started:?}");
    }
}

#[test]
fn nothing_is_left_of_starts_long_ago() {
    assert_eq!(shim_starts_left(u64::MAX >> 24, 64 * HALF_LIFE_NS), 0);
    assert_eq!(shim_starts_left(u64::MAX >> 24, u64::MAX), 0);
}

#[test]
fn a_busy_node_gets_what_the_others_cannot_take() {
    assert_eq!(start(12, &[0, 8]), [3, 9]);
    assert_eq!(start(4, &[8, 0]), [4, 0]);
}

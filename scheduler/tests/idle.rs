// SPDX-License-Identifier: GPL-2.0-only

//! Properties of `policy/idle.h`: choosing among idle CPUs, against the plain
//! way of doing it.

mod common;

use common::config;
use proptest::prelude::*;

mod c {
    #[link(name = "policy_shim", kind = "static")]
    unsafe extern "C" {
        pub safe fn shim_bit_from(cpus: u64, start: u32) -> u32;
        pub safe fn shim_bits_below(n: u32) -> u64;
        pub safe fn shim_whole_cores(idle: u64, starts: u64, ends: u64) -> u64;
    }
}
use c::*;

/// The cores of a word, each by its first bit and its number of threads.
fn cores() -> impl Strategy<Value = Vec<(u32, u32)>> {
    prop::collection::vec(1u32..=8, 1..64).prop_map(|sizes| {
        let mut next = 0;
        let mut cores = Vec::new();
        for threads in sizes {
            if next + threads <= 64 {
                cores.push((next, threads));
                next += threads;
            }
        }
        cores
    })
}

fn threads((first, threads): (u32, u32)) -> u64 {
    (first..first + threads).map(|bit| 1 << bit).sum()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_core_idles_if_all_its_threads_do(cores in cores(), idle: u64, busy_too in any::<bool>()) {
        // With as many zeroes as ones whole cores are rare: thin them out or not.
        let idle = if busy_too { idle } else { idle | idle.rotate_left(7) | idle.rotate_left(29) };
        let starts = cores.iter().map(|core| 1 << core.0).sum();
        let ends = cores.iter().map(|core| 1 << (core.0 + core.1 - 1)).sum();
        let seated: u64 = cores.iter().copied().map(threads).sum();
        let expected = cores
            .iter()
            .filter(|&&core| idle & threads(core) == threads(core))
            .map(|core| 1u64 << (core.0 + core.1 - 1))
            .sum::<u64>();
        prop_assert_eq!(shim_whole_cores(idle & seated, starts, ends), expected);
    }

    #[test]
    fn the_first_bit_is_found_around_the_word(cpus in 1u64.., start in 0u32..64) {
        let expected = (start..64).chain(0..start).find(|bit| cpus >> bit & 1 == 1).unwrap();
        prop_assert_eq!(shim_bit_from(cpus, start), expected);
    }
}

#[test]
fn pairs_of_threads_exhaustively() {
    for idle in 0..1u64 << 8 {
        let expected = (0..4)
            .filter(|core| idle >> (2 * core) & 3 == 3)
            .map(|core| 2u64 << (2 * core))
            .sum::<u64>();
        assert_eq!(
            shim_whole_cores(idle, 0x5555, 0xaaaa) & 0xff,
            expected,
            "{idle:#b}"
        );
    }
}

#[test]
fn the_lowest_bits_exhaustively() {
    for n in 0..=64 {
        let expected = (0..n).map(|bit| 1u64 << bit).sum();
        assert_eq!(shim_bits_below(n), expected, "{n}");
    }
}

#[test]
fn a_single_cpu_is_found_from_everywhere() {
    for bit in 0..64 {
        for start in 0..64 {
            assert_eq!(shim_bit_from(1 << bit, start), bit);
        }
    }
}

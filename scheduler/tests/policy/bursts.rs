// SPDX-License-Identifier: GPL-2.0-only

//! Bursts: how long a task runs at a time, of late.

use std::collections::HashSet;

use super::*;

const NR_BURSTS: u32 = 32_768;
const BURST_MAX_NS: u64 = 8 * MS;
/// Within so many short bursts the longest computation is forgotten.
const FORGOTTEN: u64 = 24;

/// A task that has slept after each of `bursts`, in ns of CPU time.
fn after(pid: u32, bursts: impl IntoIterator<Item = u64>) -> Burst {
    let mut burst = Burst::default();
    let mut exec = 0;
    for ns in bursts {
        exec += ns;
        shim_burst_end(&mut burst, pid, exec);
    }
    burst
}

/// Is the task a hog as it wakes up?
fn is_hog(burst: &Burst, pid: u32, gran: u64) -> bool {
    shim_burst_is_hog(burst, pid, burst.slept_exec_ns, gran)
}

#[test]
fn each_of_as_many_threads_as_there_are_places_has_its_own() {
    let places: HashSet<u32> = (0..NR_BURSTS).map(|pid| shim_burst_place(pid)).collect();
    assert_eq!(places.len(), NR_BURSTS as usize);
    assert!(places.iter().all(|place| *place < NR_BURSTS));
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_task_that_has_never_slept_is_a_hog(pid in 1u32.., gran in 0..BURST_MAX_NS) {
        prop_assert!(is_hog(&Burst::default(), pid, gran));
    }

    #[test]
    fn another_task_in_the_same_place_says_nothing(pid in 1u32..u32::MAX, gran in 0..BURST_MAX_NS) {
        prop_assert!(is_hog(&after(pid, [1]), pid + 1, gran));
    }

    #[test]
    fn equal_bursts_are_their_own_average(pid in 1u32.., ns in 8..BURST_MAX_NS, times in 1usize..200) {
        let burst = after(pid, std::iter::repeat_n(ns, times));
        prop_assert!(is_hog(&burst, pid, ns / 2));
        prop_assert!(!is_hog(&burst, pid, ns));
    }

    #[test]
    fn a_long_computation_is_soon_forgotten(pid in 1u32.., first in 0..1u64 << 50, ns in 100..20_000u64) {
        let bursts = std::iter::once(first).chain(std::iter::repeat_n(ns, FORGOTTEN as usize));
        prop_assert!(!is_hog(&after(pid, bursts), pid, 50_000));
    }

    #[test]
    fn what_runs_on_is_a_hog_once_it_has_run_for_long(pid in 1u32.., ns in 1..100_000u64, ran in 0..1u64 << 50) {
        let burst = after(pid, [ns]);
        let exec = burst.slept_exec_ns + ran;
        prop_assert_eq!(shim_burst_is_hog(&burst, pid, exec, 100_000), ran > 100_000);
    }

    #[test]
    fn a_task_that_ran_elsewhere_is_judged_by_what_it_does_from_now_on(
        pid in 1u32.., exec in 1..1u64 << 50, ran in 0..1u64 << 50,
    ) {
        let mut burst = after(pid, [BURST_MAX_NS]);
        shim_burst_begin(&mut burst, pid, exec);
        prop_assert_eq!(shim_burst_is_hog(&burst, pid, exec + ran, 100_000), ran > 100_000);
    }

    #[test]
    fn a_new_task_does_not_inherit_its_place(pid in 1u32..u32::MAX, gran in 1..BURST_MAX_NS) {
        let mut burst = after(pid, [1]);
        shim_burst_begin(&mut burst, pid + 1, 0);
        prop_assert!(!is_hog(&burst, pid, gran));
        shim_burst_begin(&mut burst, pid, 0);
        prop_assert!(is_hog(&burst, pid, gran));
    }
}

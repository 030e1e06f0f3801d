// SPDX-License-Identifier: GPL-2.0-only

//! Properties of the shared wake queue: `policy/wakeq.h`, and `policy/ring.h`
//! under real threads.

mod common;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::config;
use proptest::prelude::*;

const SLOTS: usize = 64;
const PID_MAX: u32 = 1 << 22;
const MAX_CPUS: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[expect(dead_code, reason = "C makes some of the values")]
enum RingResult {
    Ok,
    Empty,
    Full,
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
enum Verdict {
    Ok,
    Pinned,
    Migrated,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Item {
    value: u64,
    since: u64,
}

/// `struct ring`: two cache lines and the slots, all zeroes when empty.
#[repr(C, align(64))]
struct Ring(UnsafeCell<[u64; 16 + 3 * SLOTS]>);

// SAFETY: the C side accesses it by atomic operations.
unsafe impl Sync for Ring {}

mod c {
    use super::{Item, RingResult, Verdict};

    #[link(name = "policy_shim", kind = "static")]
    unsafe extern "C" {
        pub safe fn shim_wake_ref(pid: u32, key: u64) -> u64;
        pub safe fn shim_pid_of_ref(wake: u64) -> u32;
        pub safe fn shim_cpu_of_ref(wake: u64) -> u32;
        pub safe fn shim_beyond_ref(key: u64, wake: u64) -> bool;
        pub safe fn shim_may_offer(nr_allowed: u32, cpu: u32, last_cpu: u32) -> Verdict;
        pub safe fn shim_vt_key(vt: u64, cpu: u32) -> u64;
        pub fn shim_ring_is_full(ring: *mut u64) -> bool;
        pub fn shim_ring_put(ring: *mut u64, item: Item) -> RingResult;
        pub fn shim_ring_get(ring: *mut u64, item: &mut Item) -> RingResult;
        pub fn shim_ring_oldest(ring: *mut u64, since: &mut u64) -> bool;
    }
}
use c::*;

impl Ring {
    fn new() -> Self {
        Self(UnsafeCell::new([0; 16 + 3 * SLOTS]))
    }

    fn put(&self, value: u64) -> RingResult {
        let item = Item {
            value,
            since: !value,
        };
        // SAFETY: the ring is as large as C's.
        unsafe { shim_ring_put(self.0.get().cast(), item) }
    }

    fn is_full(&self) -> bool {
        // SAFETY: likewise.
        unsafe { shim_ring_is_full(self.0.get().cast()) }
    }

    fn get(&self) -> Result<Item, RingResult> {
        let mut item = Item::default();
        // SAFETY: likewise.
        match unsafe { shim_ring_get(self.0.get().cast(), &mut item) } {
            RingResult::Ok => Ok(item),
            other => Err(other),
        }
    }

    fn oldest(&self) -> Option<u64> {
        let mut since = 0;
        // SAFETY: likewise.
        unsafe { shim_ring_oldest(self.0.get().cast(), &mut since) }.then_some(since)
    }
}

mod references {
    use super::*;

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn name_task_and_home(pid in 0..PID_MAX, vt: u64, cpu in 0..MAX_CPUS) {
            let wake = shim_wake_ref(pid, shim_vt_key(vt, cpu));
            prop_assert_eq!(shim_pid_of_ref(wake), pid);
            prop_assert_eq!(shim_cpu_of_ref(wake), cpu);
        }

        /// One step of virtual time is what the key keeps of it: 2 ns of nice 0.
        #[test]
        fn of_a_task_that_has_run_are_stale(
            pid in 0..PID_MAX, vt: u64, ran in 2048u64..1 << 40, cpu in 0..MAX_CPUS
        ) {
            let before = shim_wake_ref(pid, shim_vt_key(vt, cpu));
            let after = shim_wake_ref(pid, shim_vt_key(vt.wrapping_add(ran), cpu));
            prop_assert_ne!(before, after);
        }

        #[test]
        fn of_others_differ(
            a in 0..PID_MAX, b in 0..PID_MAX, vt: u64, cpu in 0..MAX_CPUS, other in 0..MAX_CPUS
        ) {
            let of = |pid, cpu| shim_wake_ref(pid, shim_vt_key(vt, cpu));
            prop_assert_eq!(of(a, cpu) == of(b, other), a == b && cpu == other);
        }

        #[test]
        fn end_the_walk_where_the_task_would_stand(
            pid in 0..PID_MAX, vt: u64, step in 2048i64..1 << 40, cpu in 0..MAX_CPUS
        ) {
            let at = |by: i64| shim_vt_key(vt.wrapping_add_signed(by), cpu);
            let wake = shim_wake_ref(pid, at(0));
            prop_assert!(shim_beyond_ref(at(step), wake));
            prop_assert!(!shim_beyond_ref(at(0), wake));
            prop_assert!(!shim_beyond_ref(at(-step), wake));
        }
    }
}

/// A task wakes and runs a million times; each time the queue still holds the
/// references to its last waits, as many as it has room for.
#[test]
fn none_of_a_million_references_outlives_its_wait() {
    let (pid, cpu) = (4711, 3);
    let (mut vt, mut seed) = (u64::MAX - (1 << 40), 1u64);
    let mut kept = VecDeque::new();
    for _ in 0..1_000_000 {
        let wake = shim_wake_ref(pid, shim_vt_key(vt, cpu));
        assert!(!kept.contains(&wake));
        kept.push_back(wake);
        if kept.len() > SLOTS {
            kept.pop_front();
        }
        // From 2 ns to 32 ms, small ones as often as large ones (xorshift64).
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let ran = 1 + (seed >> 40) / (1 << (seed % 24));
        vt = vt.wrapping_add(ran << 11);
    }
}

#[test]
fn only_wakees_at_home_that_may_leave_are_offered() {
    for allowed in 1..=4 {
        for cpu in 0..4 {
            for last in 0..4 {
                let expected = match (allowed, cpu == last) {
                    (1, _) => Verdict::Pinned,
                    (_, false) => Verdict::Migrated,
                    (_, true) => Verdict::Ok,
                };
                assert_eq!(shim_may_offer(allowed, cpu, last), expected);
            }
        }
    }
}

mod ring {
    use super::*;

    proptest! {
        #![proptest_config(config())]

        /// Against a queue of the standard library; each `true` is a put.
        #[test]
        fn is_a_bounded_queue(steps in prop::collection::vec(prop::bool::weighted(0.6), 0..500)) {
            let ring = Ring::new();
            let mut model = VecDeque::new();
            for (value, put) in (1..).zip(steps) {
                if put && model.len() < SLOTS {
                    prop_assert_eq!(ring.put(value), RingResult::Ok);
                    model.push_back(value);
                } else if put {
                    prop_assert_eq!(ring.put(value), RingResult::Full);
                } else {
                    let expected = model.pop_front().ok_or(RingResult::Empty);
                    prop_assert_eq!(ring.get().map(|item| item.value), expected);
                }
                prop_assert_eq!(ring.is_full(), model.len() == SLOTS);
                prop_assert_eq!(ring.oldest(), model.front().map(|value: &u64| !value));
            }
        }
    }

    #[test]
    fn loses_and_doubles_nothing_between_threads() {
        const PRODUCERS: u64 = 3;
        const CONSUMERS: usize = 3;
        const EACH: u64 = 50_000;
        let ring = Ring::new();
        let taken = AtomicUsize::new(0);
        let seen = Mutex::new(Vec::new());

        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let ring = &ring;
                scope.spawn(move || {
                    for n in 0..EACH {
                        while ring.put(producer << 32 | n) != RingResult::Ok {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..CONSUMERS {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    while taken.load(Ordering::Relaxed) < (PRODUCERS * EACH) as usize {
                        match ring.get() {
                            Ok(item) => {
                                assert_eq!(item.since, !item.value, "a torn item");
                                mine.push(item.value);
                                taken.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(_) => std::thread::yield_now(),
                        }
                    }
                    // What one consumer takes of one producer is in order.
                    for producer in 0..PRODUCERS {
                        assert!(mine.iter().filter(|v| *v >> 32 == producer).is_sorted());
                    }
                    seen.lock().unwrap().extend(mine);
                });
            }
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        let expected = (0..PRODUCERS).flat_map(|p| (0..EACH).map(move |n| p << 32 | n));
        assert!(seen.into_iter().eq(expected));
    }
}

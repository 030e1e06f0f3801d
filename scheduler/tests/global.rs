// SPDX-License-Identifier: GPL-2.0-only

//! Properties of the global queue's policy: deadlines (`policy/deadline.h`), the
//! heaps that keep their order (`policy/heap.h`), and the table of when an idle
//! CPU is woken (`policy/resched.h`), all of it.

mod common;

use std::collections::BTreeSet;

use common::config;
use proptest::prelude::*;

const NODE_BITS: u32 = 17;
const NODES: u32 = 1 << NODE_BITS;
const KEY_SHIFT: u32 = 10;
/// How much later a deadline must be to come later whatever the nodes.
const TICK_NS: u64 = 1 << (NODE_BITS - KEY_SHIFT);
const MS: u64 = 1_000_000;
const RR_NS: u64 = 6 * MS;
const MAX_NS: u64 = 2_000 * MS;
const NICE_0: u32 = 20;
const HEAD: u32 = 1;
const FIRST: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct HeapNode {
    key: u64,
    parent: u32,
    child: [u32; 2],
    pid: i32,
    left_ns: u32,
    lane: u16,
    home: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ReschedView {
    prev_idle: bool,
    prev_sleeps: bool,
    prev_leaves: bool,
    queued: bool,
    switches: bool,
}

const TABLE: u32 = 0;
const NEXT_NOT_PREV: u32 = 1;

mod c {
    use super::{HeapNode, ReschedView};

    #[link(name = "policy_shim", kind = "static")]
    unsafe extern "C" {
        pub safe fn shim_deadline_ns(rr_ns: u64, nice: u32, idle: bool) -> u64;
        pub safe fn shim_deadline_key(ns: u64, node: u32) -> u64;
        pub safe fn shim_node_of_key(key: u64) -> u32;
        pub safe fn shim_kept_key(key: u64, fresh: u64) -> u64;
        pub safe fn shim_deadline_preempts(key: u64, lowly: bool, curr: u64, idle: bool) -> bool;
        pub safe fn shim_vt_before(a: u64, b: u64) -> bool;
        pub safe fn shim_heap_coins(coins: u64) -> u64;
        pub safe fn shim_resched_best_idle(rule: u32, view: &ReschedView) -> bool;
        pub fn shim_heap_first(nodes: *mut HeapNode, head: u32) -> u32;
        pub fn shim_heap_push(nodes: *mut HeapNode, head: u32, n: u32, coins: u64);
        pub fn shim_heap_remove(nodes: *mut HeapNode, n: u32, coins: u64);
    }
}
use c::*;

/// The array of nodes with one heap, and the coins of its operations.
struct Heap {
    nodes: Vec<HeapNode>,
    coins: u64,
}

impl Heap {
    fn new() -> Self {
        Self {
            nodes: vec![HeapNode::default(); NODES as usize],
            coins: 0,
        }
    }

    fn toss(&mut self) -> u64 {
        self.coins = shim_heap_coins(self.coins);
        self.coins
    }

    fn push(&mut self, node: u32, key: u64) {
        let coins = self.toss();
        self.nodes[node as usize].key = key;
        // SAFETY: the array has as many nodes as the header says, and all numbers are of it.
        unsafe { shim_heap_push(self.nodes.as_mut_ptr(), HEAD, node, coins) }
    }

    fn remove(&mut self, node: u32) {
        let coins = self.toss();
        // SAFETY: as in push().
        unsafe { shim_heap_remove(self.nodes.as_mut_ptr(), node, coins) }
    }

    fn first(&mut self) -> u32 {
        // SAFETY: as in push().
        unsafe { shim_heap_first(self.nodes.as_mut_ptr(), HEAD) }
    }

    fn pop(&mut self) -> u32 {
        let first = self.first();
        if first != 0 {
            self.remove(first);
        }
        first
    }
}

/// Any time, with those where a key wraps made likely.
fn any_ns() -> impl Strategy<Value = u64> {
    let wrap = 1u64 << (64 - KEY_SHIFT);
    prop_oneof![any::<u64>(), (wrap - 1000..wrap + 1000), 0..1_000u64]
}

mod deadlines {
    use super::*;

    #[test]
    fn a_nice_level_is_worth_a_tenth() {
        let ratio = |nice| shim_deadline_ns(128, nice, false);
        assert_eq!(ratio(0), 128);
        for nice in 1..40 {
            assert_eq!(ratio(nice), ratio(nice - 1) * 11 / 10, "nice index {nice}");
        }
    }

    #[test]
    fn by_default_nice_0_is_due_after_39_ms() {
        assert_eq!(shim_deadline_ns(RR_NS, NICE_0, false), RR_NS * 836 / 128);
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn none_is_due_later_than_the_idle_policy(rr_us in 100u64..=1_000_000, nice in 0u32..40) {
            let due = shim_deadline_ns(rr_us * 1000, nice, false);
            prop_assert!(due <= MAX_NS);
            prop_assert!(due < shim_deadline_ns(rr_us * 1000, nice, true));
            prop_assert!(shim_deadline_ns(rr_us * 1000, nice, true) < 10_000 * MS);
        }

        #[test]
        fn keys_are_in_the_order_of_deadlines(ns in any_ns(), later in 0..MAX_NS * 4, a in 1..NODES, b in 1..NODES) {
            let (first, second) = (shim_deadline_key(ns, a), shim_deadline_key(ns.wrapping_add(later), b));
            if later >= TICK_NS {
                prop_assert!(shim_vt_before(first, second));
            }
            prop_assert!(!(shim_vt_before(first, second) && shim_vt_before(second, first)));
        }

        #[test]
        fn equal_deadlines_go_to_the_lower_node(ns in any_ns(), a in 1..NODES, b in 1..NODES) {
            let before = shim_vt_before(shim_deadline_key(ns, a), shim_deadline_key(ns, b));
            prop_assert_eq!(before, a < b);
        }

        #[test]
        fn a_key_names_its_node(ns in any_ns(), node in 0..NODES) {
            prop_assert_eq!(shim_node_of_key(shim_deadline_key(ns, node)), node);
        }

        #[test]
        fn a_deadline_is_kept_unless_a_new_one_is_earlier(now in any_ns(), node in 1..NODES, due in 0..MAX_NS,
                                                          then in 0..MAX_NS, slept in 0..MAX_NS * 1000) {
            let fresh = shim_deadline_key(now.wrapping_add(due), node);
            let key = shim_deadline_key(now.wrapping_sub(slept).wrapping_add(then), node);
            let kept = shim_kept_key(key, fresh);
            prop_assert!(!shim_vt_before(fresh, kept));
            prop_assert_eq!(kept, if shim_vt_before(key, fresh) { key } else { fresh });
        }

        #[test]
        fn who_is_due_before_preempts(key: u64, curr: u64) {
            for curr_idle in [false, true] {
                prop_assert!(!shim_deadline_preempts(key, true, curr, curr_idle));
            }
            prop_assert!(shim_deadline_preempts(key, false, curr, true));
            prop_assert_eq!(shim_deadline_preempts(key, false, curr, false), shim_vt_before(key, curr));
        }
    }
}

mod heaps {
    use super::*;

    /// What a test does to a heap and to a sorted set.
    #[derive(Clone, Copy, Debug)]
    enum Op {
        Push(u64),
        Pop,
        Remove(prop::sample::Index),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            // Few deadlines, so that many are equal.
            4 => (0u64..8).prop_map(|tick| Op::Push(tick * TICK_NS)),
            2 => any_ns().prop_map(|ns| Op::Push(ns % (MAX_NS * 4))),
            3 => Just(Op::Pop),
            2 => any::<prop::sample::Index>().prop_map(Op::Remove),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..config() })]

        #[test]
        fn a_heap_is_a_sorted_set(ops in prop::collection::vec(op(), 0..400)) {
            let mut heap = Heap::new();
            let mut sorted = BTreeSet::new();
            let mut free: Vec<u32> = (FIRST..FIRST + 400).rev().collect();
            for op in ops {
                match op {
                    Op::Push(ns) => {
                        let node = free.pop().unwrap();
                        let key = shim_deadline_key(ns, node);
                        heap.push(node, key);
                        sorted.insert(key);
                    }
                    Op::Pop => {
                        let expected = sorted.pop_first().map_or(0, |key| shim_node_of_key(key));
                        prop_assert_eq!(heap.pop(), expected);
                        free.extend((expected != 0).then_some(expected));
                    }
                    Op::Remove(which) if !sorted.is_empty() => {
                        let key = *which.get(&sorted.iter().copied().collect::<Vec<_>>());
                        sorted.remove(&key);
                        heap.remove(shim_node_of_key(key));
                        free.push(shim_node_of_key(key));
                    }
                    Op::Remove(_) => {}
                }
                prop_assert_eq!(heap.first(), sorted.first().map_or(0, |&key| shim_node_of_key(key)));
            }
            for key in sorted {
                prop_assert_eq!(heap.pop(), shim_node_of_key(key));
            }
            prop_assert_eq!(heap.pop(), 0);
        }
    }

    /// However they come, and with some that go before their turn.
    #[test]
    fn a_hundred_thousand_tasks_leave_in_order() {
        const TASKS: u32 = 100_000;
        let comes: [fn(u32) -> u64; 3] = [
            |i| u64::from(i),
            |i| u64::from(TASKS - i),
            |i| u64::from(i.wrapping_mul(2_654_435_761)),
        ];
        for come in comes {
            let mut heap = Heap::new();
            for i in 0..TASKS {
                heap.push(FIRST + i, shim_deadline_key(come(i) * TICK_NS, FIRST + i));
            }
            for i in (0..TASKS).step_by(3) {
                heap.remove(FIRST + i);
            }
            let mut last = None;
            let mut left = 0;
            while let node @ 1.. = heap.pop() {
                assert_ne!((node - FIRST) % 3, 0);
                let key = heap.nodes[node as usize].key;
                assert!(last.is_none_or(|last| shim_vt_before(last, key)));
                last = Some(key);
                left += 1;
            }
            assert_eq!(left, TASKS - TASKS.div_ceil(3));
        }
    }
}

mod resched {
    use super::*;

    /// Every state against the table of the header, read line by line.
    #[test]
    fn an_idle_cpu_is_woken_as_the_table_says() {
        for bits in 0..32u32 {
            let view = ReschedView {
                prev_idle: bits & 1 != 0,
                prev_sleeps: bits & 2 != 0,
                prev_leaves: bits & 4 != 0,
                queued: bits & 8 != 0,
                switches: bits & 16 != 0,
            };
            let [table, old] = match view {
                ReschedView {
                    prev_idle: true, ..
                } => [false, false],
                ReschedView {
                    prev_sleeps: true, ..
                } => [false, true],
                ReschedView {
                    prev_leaves: true, ..
                } => [true, true],
                ReschedView {
                    queued: true,
                    switches,
                    ..
                } => [switches, switches],
                _ => [false, false],
            };
            assert_eq!(shim_resched_best_idle(TABLE, &view), table, "{view:?}");
            assert_eq!(
                shim_resched_best_idle(NEXT_NOT_PREV, &view),
                old,
                "{view:?}"
            );
        }
    }
}

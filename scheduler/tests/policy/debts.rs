// SPDX-License-Identifier: GPL-2.0-only

//! `policy/debts.h`: a sleeper in debt is counted until its debt has worn off, and once.

use std::collections::BTreeMap;

use super::*;

const PLACES: u32 = 128;
const WORDS: usize = 2;

/// `struct debts`, all zeroes when empty.
#[repr(C)]
struct Debts {
    filled: [u64; WORDS],
    first: u64,
    /// Of each place the load and its end.
    places: [[u64; 2]; PLACES as usize],
}

mod c {
    use super::Debts;

    #[link(name = "policy_shim", kind = "static")]
    unsafe extern "C" {
        pub safe fn shim_debt_load(id: u32, weight: u64) -> u64;
        pub safe fn shim_debt_group(load: u64) -> u32;
        pub safe fn shim_debt_weight(load: u64) -> u64;
        pub safe fn shim_debts_any(debts: &Debts) -> bool;
        pub safe fn shim_debts_due(debts: &Debts, clock: u64) -> bool;
        pub safe fn shim_debt_keep(debts: &mut Debts, pid: u32, load: u64, until: u64) -> u64;
        pub safe fn shim_debt_take(debts: &mut Debts, pid: u32, load: u64) -> bool;
        pub safe fn shim_debts_begin(debts: &mut Debts, clock: u64);
        pub safe fn shim_debt_end(debts: &mut Debts, place: u32, clock: u64, all: bool) -> u64;
    }
}
use c::*;

impl Debts {
    const EMPTY: Self = Self {
        filled: [0; WORDS],
        first: 0,
        places: [[0; 2]; PLACES as usize],
    };

    /// As `debts_settle()` does: the loads that end, by place.
    fn settle(&mut self, clock: u64, all: bool) -> BTreeMap<u32, u64> {
        let filled: Vec<u32> = (0..PLACES)
            .filter(|place| self.filled[*place as usize / 64] >> (place % 64) & 1 == 1)
            .collect();
        shim_debts_begin(self, clock);
        filled
            .into_iter()
            .map(|place| (place, shim_debt_end(self, place, clock, all)))
            .filter(|&(_, load)| load != 0)
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Event {
    Sleeps { pid: u32, load: u64, owes: u64 },
    Wakes { pid: u32, load: u64 },
    ClockMoves { by: u64 },
    Idles,
}

fn any_load() -> impl Strategy<Value = u64> {
    (2u32..6, prop_oneof![Just(NICE_0), Just(WEIGHT_IDLE)])
        .prop_map(|(id, weight)| shim_debt_load(id, weight))
}

fn any_event() -> impl Strategy<Value = Event> {
    let pid = 1u32..300;
    prop_oneof![
        4 => (pid.clone(), any_load(), 1..100 * MS)
            .prop_map(|(pid, load, owes)| Event::Sleeps { pid, load, owes }),
        4 => (pid, any_load()).prop_map(|(pid, load)| Event::Wakes { pid, load }),
        3 => (0..50 * MS).prop_map(|by| Event::ClockMoves { by }),
        1 => Just(Event::Idles),
    ]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_load_names_its_group_and_weight(id in 0u32..1 << 20, weight in 1u64..1 << 32) {
        let load = shim_debt_load(id, weight);
        prop_assert_eq!(shim_debt_group(load), id);
        prop_assert_eq!(shim_debt_weight(load), weight);
    }

    /// Against a map from place to debt, from any time on.
    #[test]
    fn a_debt_ends_once_and_in_time(
        start in any_vt(),
        events in prop::collection::vec(any_event(), 1..200),
    ) {
        let mut debts = Debts::EMPTY;
        let mut model: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut clock = start;
        for event in events {
            match event {
                Event::Sleeps { pid, load, owes } => {
                    let until = clock.wrapping_add(owes);
                    let ended = shim_debt_keep(&mut debts, pid, load, until);
                    let before = model.insert(pid % PLACES, (load, until));
                    prop_assert_eq!(ended, before.map_or(0, |(load, _)| load));
                }
                Event::Wakes { pid, load } => {
                    let place = pid % PLACES;
                    let owed = model.get(&place).is_some_and(|debt| debt.0 == load);
                    prop_assert_eq!(shim_debt_take(&mut debts, pid, load), owed);
                    if owed {
                        model.remove(&place);
                    }
                }
                Event::ClockMoves { by } => {
                    clock = clock.wrapping_add(by);
                    let over = |until| !shim_vt_before(clock, until);
                    let ended: BTreeMap<u32, u64> = model
                        .extract_if(.., |_, debt| over(debt.1))
                        .map(|(place, debt)| (place, debt.0))
                        .collect();
                    let due = shim_debts_due(&debts, clock);
                    prop_assert!(due || ended.is_empty());
                    if due {
                        prop_assert_eq!(debts.settle(clock, false), ended);
                    }
                }
                Event::Idles => {
                    let left = std::mem::take(&mut model);
                    let ended = left.into_iter().map(|(place, debt)| (place, debt.0));
                    prop_assert_eq!(debts.settle(clock, true), ended.collect());
                    prop_assert!(!shim_debts_any(&debts));
                }
            }
        }
    }
}

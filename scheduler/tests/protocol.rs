// SPDX-License-Identifier: GPL-2.0-only

//! A model of the protocol by which no CPU idles while a task that may run there waits: offers,
//! idle bits, and the tick that finds what they miss.
//!
//! Each step of an actor (a CPU, a waker, a tick) reads or writes one word that others may write
//! meanwhile; `protocol/steps.rs` names the function of each step. The tests go through all orders
//! of all steps.
//!
//! So the model is sequentially consistent. Two barriers of the code make it so where it matters:
//! a waker that sets an offer and then reads the idle bits, a CPU that sets its idle bit and then
//! reads the offers. Both set by an atomic operation that fetches, which is a full barrier. One
//! case is left out: an offer that is there already is only read, which is no barrier.
//!
//! docs/mechanisms/waiting-work.md tells the protocol in words. This prints the numbers of states
//! and the shortest way to each flaw of today: `cargo test --test protocol -- --nocapture`.

mod protocol {
    pub mod checks;
    pub mod dispatch;
    pub mod enqueue;
    pub mod explorer;
    pub mod model;
    pub mod offers;
    pub mod promises;
    pub mod pull;
    pub mod rescue;
    pub mod state;
    pub mod steps;
}

use protocol::checks::{assert_flawed, assert_none, explore, holds_today, not_repaired_by_a_tick};
use protocol::explorer::Explored;
use protocol::model::{Change, Model, REMEDIES, Wakee};
use protocol::promises::Flaw;
use protocol::state::{CPUS, Queue, Set, State, bit};

const FIRST_WAKEE: u8 = CPUS as u8;

/// One that ran on `cpu` and may run on those of `mask`.
fn wakee(cpu: u8, mask: Set) -> Wakee {
    Wakee {
        cpu,
        mask,
        preempts: false,
        waits: false,
    }
}

fn waiter(cpu: u8, mask: Set) -> Wakee {
    Wakee {
        waits: true,
        ..wakee(cpu, mask)
    }
}

/// Each CPU runs a task that may go to sleep.
fn machine(name: &'static str, words: &'static [u8], wakees: &[Wakee]) -> Model {
    let (wakees, changes) = (wakees.to_vec(), Vec::new());
    Model {
        name,
        words,
        hogs: 0,
        wakees,
        affinity: None,
        rests: false,
        ticks: false,
        changes,
    }
}

/// The same, but the task of CPU 0 and all wakees go on for ever.
fn beside_hogs(name: &'static str, words: &'static [u8], wakees: &[Wakee]) -> Model {
    let model = machine(name, words, wakees);
    Model {
        hogs: bit(0) | !(bit(FIRST_WAKEE) - 1),
        ..model
    }
}

/// A wakee that is sent to an idle CPU may be bound to where it comes from.
fn with_affinity() -> Model {
    let model = beside_hogs("a change of affinity", &[0, 0], &[wakee(0, 3), wakee(0, 3)]);
    Model {
        affinity: Some((FIRST_WAKEE, 1)),
        ..model
    }
}

/// A tick may come at any time.
fn with_ticks() -> Model {
    let ticks = true;
    let model = beside_hogs("ticks", &[0, 0, 1], &[waiter(0, 7), wakee(0, 7)]);
    Model { ticks, ..model }
}

fn one_waker() -> Model {
    machine("one waker", &[0, 0], &[wakee(0, 3)])
}

fn two_wakers() -> Model {
    machine("two wakers", &[0, 0], &[wakee(0, 3), wakee(0, 3)])
}

#[test]
fn one_llc() {
    holds_today(&one_waker());
    holds_today(&two_wakers());
    holds_today(&machine("two homes", &[0, 0], &[wakee(0, 3), wakee(1, 3)]));
    let wakees = [wakee(0, 3); 3];
    holds_today(&Model {
        hogs: 1,
        ..machine("three wakers", &[0, 0], &wakees)
    });
}

#[test]
fn two_words() {
    holds_today(&machine("two words", &[0, 1], &[wakee(0, 3), wakee(0, 3)]));
    holds_today(&machine(
        "two words, two homes",
        &[0, 1],
        &[wakee(0, 3), wakee(1, 3)],
    ));
}

#[test]
fn three_cpus_in_two_words() {
    let words = &[0, 0, 1];
    holds_today(&beside_hogs(
        "three CPUs",
        words,
        &[wakee(0, 7), wakee(0, 7)],
    ));
    holds_today(&beside_hogs(
        "one waits",
        words,
        &[waiter(0, 7), wakee(0, 7)],
    ));
    let pulled = machine(
        "one waits, one at home",
        words,
        &[waiter(0, 7), wakee(2, 7)],
    );
    holds_today(&Model { hogs: 1, ..pulled });
    holds_today(&with_ticks());
}

#[test]
fn restricted_affinity() {
    let words = &[0, 0, 1];
    let some = [waiter(0, 3), wakee(0, 6)];
    holds_today(&beside_hogs("some CPUs", words, &some));
    holds_today(&beside_hogs(
        "a pinned waker",
        words,
        &[wakee(0, 1), wakee(0, 7)],
    ));
    holds_today(&machine(
        "a pinned wakee",
        &[0, 1],
        &[wakee(0, 3), wakee(0, 1)],
    ));
}

#[test]
fn a_pinned_task_at_the_head() {
    let wakees = [waiter(0, 1), wakee(0, 7)];
    holds_today(&beside_hogs("a pinned head", &[0, 0, 1], &wakees));
    holds_today(&beside_hogs(
        "a pinned head, two wakers",
        &[0, 0],
        &[waiter(0, 1), wakee(0, 3), wakee(0, 3)],
    ));
}

#[test]
fn affinity_changes() {
    holds_today(&with_affinity());
    let freed = machine(
        "a pinned task is freed",
        &[0, 0],
        &[wakee(0, 1), wakee(0, 3)],
    );
    holds_today(&Model {
        affinity: Some((FIRST_WAKEE, 3)),
        ..freed
    });
    let sent = beside_hogs(
        "a task has to leave",
        &[0, 0, 1],
        &[waiter(0, 7), wakee(0, 7)],
    );
    holds_today(&Model {
        affinity: Some((FIRST_WAKEE, 4)),
        ..sent
    });
}

#[test]
fn a_wakee_preempts() {
    let preempts = Wakee {
        preempts: true,
        ..wakee(0, 3)
    };
    holds_today(&machine("preemption", &[0, 0], &[preempts, wakee(0, 3)]));
}

/// The remedies close all gaps, so there are no others on these machines.
#[test]
fn with_the_gaps_closed_no_task_waits_beside_an_idle_cpu() {
    let words = &[0, 0, 1];
    let loads = [
        one_waker(),
        machine("two words", &[0, 1], &[wakee(0, 3)]),
        beside_hogs("one waits", words, &[waiter(0, 7), wakee(0, 7)]),
        beside_hogs("some CPUs", words, &[waiter(0, 3), wakee(0, 6)]),
        beside_hogs("a pinned head", words, &[waiter(0, 1), wakee(0, 7)]),
        with_affinity(),
    ];
    let flaws = [Flaw::Overlooked, Flaw::NotOffered, Flaw::ClaimedForEver];
    for load in loads {
        let model = load.with(&REMEDIES);
        assert_none(&explore(&model), &flaws);
    }
}

#[test]
fn each_gap_left_open_breaks_the_promise() {
    let renewal = beside_hogs("one waits", &[0, 0, 0], &[waiter(0, 7), wakee(0, 7)]);
    let gaps = [
        (Change::KeepOfferIfLocked, one_waker(), Flaw::NotOffered),
        (Change::LookAgainIfLocked, one_waker(), Flaw::Overlooked),
        (Change::RecheckIfClaimed, with_affinity(), Flaw::Overlooked),
        (Change::CallAfterRenewal, renewal, Flaw::Overlooked),
    ];
    for (remedy, load, flaw) in gaps {
        let others: Vec<_> = REMEDIES
            .into_iter()
            .filter(|&other| other != remedy)
            .collect();
        assert_flawed(&load.with(&others), flaw);
    }
}

/// A tick reads which CPUs idle, then offers: one that goes idle in between sees neither.
#[test]
fn a_tick_misses_a_cpu_that_goes_idle_meanwhile() {
    for (changes, misses) in [(&[][..], true), (&[Change::TickOffersFirst], false)] {
        let load = beside_hogs("a lost offer", &[0, 0], &[waiter(0, 3)]);
        let model = load.with(changes);
        let lost = State {
            offers: 0,
            sum: 0,
            ..model.initial()
        };
        let tick = model.ticked(&lost, 0).expect("a task waits");
        let met = Explored::new(&model, [tick], true);
        assert_eq!(met.with(Flaw::Overlooked).is_some(), misses, "{changes:?}");
    }
}

/// Protocols that lack a step or have two in another order.
#[test]
fn each_step_left_out_breaks_a_promise() {
    let pinned_head = beside_hogs("a pinned head", &[0, 0], &[waiter(0, 1), wakee(0, 3)]);
    let mutants = [
        (Change::NoRecheck, one_waker(), Flaw::Overlooked),
        (Change::RecheckBeforeEnter, one_waker(), Flaw::Overlooked),
        (Change::SearchBeforeOffer, one_waker(), Flaw::Overlooked),
        (Change::NoReoffer, one_waker(), Flaw::NotOffered),
        (Change::OneLookAtTied, pinned_head, Flaw::NotOffered),
        (Change::OneLookAtWord, two_wakers(), Flaw::NotInSum),
        (Change::StaysClaimed, with_affinity(), Flaw::ClaimedForEver),
        (
            Change::SendsWithoutKick,
            with_affinity(),
            Flaw::ClaimedForEver,
        ),
    ];
    for (mutation, load, flaw) in mutants {
        // Today's protocol has two of the flaws by itself.
        let today_has = [Flaw::Overlooked, Flaw::NotOffered].contains(&flaw);
        let mut changes = if today_has {
            REMEDIES.to_vec()
        } else {
            Vec::new()
        };
        changes.push(mutation);
        assert_flawed(&load.with(&changes), flaw);
    }
}

#[test]
fn a_tick_that_wakes_nobody_does_not_help() {
    let model = one_waker().with(&[Change::TickDoesNotAsk]);
    let met = explore(&model);
    assert!(not_repaired_by_a_tick(&met).is_some());
}

/// No kick is answered by a kick. With the remedies a CPU goes on while a lock is held.
#[test]
fn nothing_goes_on_for_ever() {
    for model in [two_wakers(), with_affinity(), with_ticks()] {
        assert!(explore(&model).ends(), "{model}");
    }
    assert!(!explore(&one_waker().with(&REMEDIES)).ends());
}

#[test]
fn a_lock_that_is_left_is_found() {
    let mut state = one_waker().initial();
    assert!(!state.has(&[0, 0], Flaw::Stuck));
    state.cpus[0].locked = true;
    assert!(state.has(&[0, 0], Flaw::Stuck));
}

#[test]
fn queues_keep_their_order() {
    let mut queue = Queue::default();
    [3, 0, 5].into_iter().for_each(|task| queue.push(task));
    queue.push_first(4);
    queue.remove(0);
    assert_eq!(queue.iter().collect::<Vec<_>>(), [4, 3, 5]);
}

// SPDX-License-Identifier: GPL-2.0-only

//! What the tests ask of a model.

use super::explorer::Explored;
use super::model::Model;
use super::promises::Flaw;
use super::state::{CPUS, State, bit};

/// How many states have a flaw, and the shortest way to one.
type Flawed = Option<(usize, String)>;

pub fn explore(model: &Model) -> Explored<'_> {
    let met = Explored::new(model, [model.initial()], true);
    let states = met.states.len();
    println!("{model}: {states} states");
    met
}

/// Where the tick of a CPU with a task that an idle CPU may run gets none of them to run.
pub fn not_repaired_by_a_tick(met: &Explored) -> Flawed {
    let mut ticks = Vec::new();
    for state in met.quiescent() {
        let stranded = state.stranded_tasks().count() as u8;
        let before = State { stranded, ..*state };
        for task in state.stranded_tasks() {
            let ticked = met.model.ticked(&before, task.cpu);
            ticks.push(ticked.expect("the CPU has ticks, and a task that is not tied"));
        }
    }
    let left = |state: &State| state.stranded_tasks().count() as u8;
    met.goes_on(ticks)
        .flawed(|state| left(state) > 0 && left(state) >= state.stranded)
}

/// Where the end of a slice does not help a task that waits in a local queue.
fn not_repaired_by_a_slice(met: &Explored) -> Flawed {
    let mut ends = Vec::new();
    for state in met.quiescent() {
        let waiters = state.cpus_with_waiters();
        for cpu in (0..CPUS).filter(|&cpu| waiters & bit(cpu as u8) != 0) {
            let mut end = *state;
            end.cpus[cpu].need_resched = true;
            ends.push(end);
        }
    }
    met.goes_on(ends).with(Flaw::PastQueue)
}

/// What holds today: a task may wait beside an idle CPU, but for one tick at most if nothing
/// happens meanwhile, or for a slice if it was sent past the queue. All else holds always.
pub fn holds_today(model: &Model) {
    for rests in [false, true] {
        let model = &Model {
            rests,
            ..model.clone()
        };
        let met = explore(model);
        for flaw in [Flaw::Overlooked, Flaw::NotOffered, Flaw::PastQueue] {
            if let Some((states, trace)) = met.with(flaw) {
                println!("{flaw:?} in {states}, the first one after:\n{trace}");
            }
        }
        assert_none(&met, &[Flaw::ClaimedForEver, Flaw::NotInSum, Flaw::Stuck]);
        let flawed = not_repaired_by_a_tick(&met).or_else(|| not_repaired_by_a_slice(&met));
        if let Some((states, trace)) = flawed {
            panic!("{model}: in {states} states neither tick nor slice helps:\n{trace}");
        }
    }
}

pub fn assert_none(met: &Explored, flaws: &[Flaw]) {
    for &flaw in flaws {
        if let Some((states, trace)) = met.with(flaw) {
            panic!("{}: {flaw:?} in {states} states:\n{trace}", met.model);
        }
    }
}

/// The model has the flaw, and this is the shortest way there.
pub fn assert_flawed(model: &Model, flaw: Flaw) {
    let met = explore(model);
    let (states, trace) = met.with(flaw).expect("the model has the flaw");
    println!("{flaw:?} in {states}, the first one after:\n{trace}");
}

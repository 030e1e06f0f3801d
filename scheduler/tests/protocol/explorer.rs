// SPDX-License-Identifier: GPL-2.0-only

//! Every state that can be reached, breadth first: of those with a flaw, the first one is among
//! those that the fewest steps lead to.

use std::fmt::Write;

use super::model::{AFFINITY, Event, MOVER, Model, TICK, WAKERS};
use super::promises::Flaw;
use super::state::State;

/// The states that were met, each with the one before it and what led from there.
pub struct Explored<'a> {
    pub model: &'a Model,
    pub states: Vec<State>,
    from: Vec<(u32, Option<Event>)>,
    /// Those in which nothing follows by itself.
    quiescent: Vec<usize>,
    /// Places of states, by their hashes.
    table: Vec<u32>,
}

const FREE: u32 = u32::MAX;

impl<'a> Explored<'a> {
    /// All that follows from `starts`: by itself only, or with all that may happen.
    pub fn new(model: &'a Model, starts: impl IntoIterator<Item = State>, events: bool) -> Self {
        let (states, from, quiescent) = (Vec::new(), Vec::new(), Vec::new());
        let table = vec![FREE; 1 << 12];
        let mut met = Self {
            model,
            states,
            from,
            quiescent,
            table,
        };
        for start in starts {
            met.add(start, 0, None);
        }
        let mut at = 0;
        while at < met.states.len() {
            met.go_on_from(at, events);
            at += 1;
        }
        met
    }

    /// What follows by itself from `starts`.
    pub fn goes_on(&self, starts: Vec<State>) -> Self {
        Self::new(self.model, starts, false)
    }

    fn go_on_from(&mut self, at: usize, events: bool) {
        let model = self.model;
        let state = self.states[at];
        let mut moves = false;
        model.steps(&state, |event, next| {
            moves = true;
            self.add(next, at, Some(event));
        });
        if !moves {
            self.quiescent.push(at);
        }
        if events {
            model.events(&state, |event, next| self.add(next, at, Some(event)));
        }
    }

    fn add(&mut self, state: State, from: usize, event: Option<Event>) {
        if self.states.len() * 2 >= self.table.len() {
            self.grow();
        }
        let slot = self.slot_of(&state);
        if self.table[slot] == FREE {
            self.table[slot] = self.states.len() as u32;
            self.states.push(state);
            self.from.push((from as u32, event));
        }
    }

    fn slot_of(&self, state: &State) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = state.hash() as usize & mask;
        while self.table[slot] != FREE && self.states[self.table[slot] as usize] != *state {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        self.table = vec![FREE; self.table.len() * 4];
        for at in 0..self.states.len() {
            let slot = self.slot_of(&self.states[at]);
            self.table[slot] = at as u32;
        }
    }

    /// Does all that follows by itself come to an end, in whatever order? Taking away states that
    /// nothing leads to any more leaves those of a circle.
    pub fn ends(&self) -> bool {
        let mut before = vec![0u32; self.states.len()];
        (0..self.states.len()).for_each(|at| self.next_of(at, |next| before[next] += 1));
        let mut first: Vec<_> = (0..before.len()).filter(|&at| before[at] == 0).collect();
        let mut taken = 0;
        while let Some(at) = first.pop() {
            taken += 1;
            self.next_of(at, |next| {
                before[next] -= 1;
                if before[next] == 0 {
                    first.push(next);
                }
            });
        }
        taken == self.states.len()
    }

    fn next_of(&self, at: usize, mut then: impl FnMut(usize)) {
        self.model.steps(&self.states[at], |_, next| {
            then(self.table[self.slot_of(&next)] as usize);
        });
    }

    pub fn quiescent(&self) -> impl Iterator<Item = &State> {
        self.quiescent.iter().map(|&at| &self.states[at])
    }

    /// How many quiescent states have a flaw, and what leads to the first one.
    pub fn flawed(&self, is_flawed: impl Fn(&State) -> bool) -> Option<(usize, String)> {
        let mut flawed = self
            .quiescent
            .iter()
            .filter(|&&at| is_flawed(&self.states[at]));
        let &first = flawed.next()?;
        Some((1 + flawed.count(), self.trace(first)))
    }

    pub fn with(&self, flaw: Flaw) -> Option<(usize, String)> {
        self.flawed(|state| state.has(self.model.words, flaw))
    }

    fn trace(&self, mut at: usize) -> String {
        let mut lines = vec![self.describe(&self.states[at])];
        while let (from, Some(event)) = self.from[at] {
            at = from as usize;
            lines.push(line(event, &self.states[at]));
        }
        lines.reverse();
        lines.concat()
    }

    fn describe(&self, state: &State) -> String {
        let mut text = String::new();
        for (cpu, c) in state.cpus[..self.model.words.len()].iter().enumerate() {
            let runs = c
                .curr
                .map_or("idles".into(), |task| format!("runs task {task}"));
            let [queue, local] = [c.queue, c.local].map(|queue| queue.iter().collect::<Vec<_>>());
            let _ = writeln!(text, "  CPU {cpu} {runs}; queue {queue:?}, local {local:?}");
        }
        let State {
            idle, offers, sum, ..
        } = state;
        text + &format!("  idle {idle:03b}, offers {offers:03b}, sum {sum:02b}\n")
    }
}

/// An event, and the state before it.
fn line(event: Event, state: &State) -> String {
    let me = match event {
        Event::Step(me) => me,
        Event::SelfKick(cpu) => return format!("  CPU {cpu} takes its own kick\n"),
        Event::IdleKick(cpu) => return format!("  CPU {cpu} is kicked\n"),
        Event::Sleep(cpu) => return format!("  CPU {cpu} looks for a task: its own sleeps\n"),
        Event::Tick(cpu) => return format!("  tick of CPU {cpu}\n"),
    };
    let actor = &state.actors[usize::from(me)];
    let (function, what) = actor.pc.says();
    let who = match usize::from(me) {
        TICK => "tick".into(),
        MOVER => "mover".into(),
        AFFINITY => "affinity".into(),
        me if me >= WAKERS => format!("waker of {}", actor.task),
        cpu => format!("CPU {cpu}"),
    };
    format!("  {who:<12}{function:<22} {what} [CPU {}]\n", actor.cpu)
}

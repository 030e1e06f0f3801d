// SPDX-License-Identifier: GPL-2.0-only

//! rescue.bpf.h: the tick of a CPU where tasks wait. It has the rq lock all the time.

use super::model::{Change, Run};
use super::state::*;
use super::steps::{Pc, Then};

impl Run<'_> {
    /// rescue_waiting(). False if it does nothing. The tasks have waited for `FAR_NS`: a tick
    /// that comes sooner searches their LLC only, and the next one counts.
    pub fn rescue_waiting(&mut self, cpu: u8) -> bool {
        let c = self.cpu(cpu);
        if !c.offered || c.queue.is_empty() {
            return false;
        }
        c.locked = true;
        for task in c.queue.iter() {
            self.task(task).early = false;
        }
        let words = self.model.all_words();
        let pc = Pc::TickRead;
        *self.actor() = Actor {
            pc,
            cpu,
            words,
            ..Actor::default()
        };
        if self.model.has(Change::TickOffersFirst) {
            self.offer(cpu, Then::Rescue);
        }
        true
    }

    /// words_for_waiter(): all words if a CPU of the own one idles, else those where one does.
    pub fn tick_read(&mut self) {
        let Actor { cpu, words, .. } = self.now();
        let own = self.model.word_of(cpu);
        let word = first_from(words, own).expect("a word is left");
        let idles = self.s.idle & self.model.cpus_of(word) != 0;
        let a = self.actor();
        a.words &= !bit(word);
        if idles && word == own {
            (a.reach, a.words) = (words, 0);
        } else if idles {
            a.reach |= bit(word);
        }
        if a.words != 0 {
            return;
        }
        if self.model.has(Change::TickOffersFirst) {
            self.rescue_tasks();
        } else {
            self.offer(cpu, Then::Rescue);
        }
    }

    pub fn rescue_offered(&mut self) {
        if self.now().words != 0 {
            self.goes_to(Pc::TickRead);
        } else {
            self.rescue_tasks();
        }
    }

    fn rescue_tasks(&mut self) {
        let Actor { cpu, reach, .. } = self.now();
        if reach == 0 || self.model.has(Change::TickDoesNotAsk) {
            return self.tick_ends();
        }
        self.actor().tasks = self.cpu(cpu).queue.set();
        self.goes_to(Pc::TickWalk);
    }

    /// rescue_by_idle(), of one task after the other until a CPU is claimed
    pub fn tick_walk(&mut self) {
        let Actor {
            cpu, tasks, reach, ..
        } = self.now();
        let mut queue = self.cpu(cpu).queue.iter();
        let Some(task) = queue.find(|&task| tasks & bit(task) != 0) else {
            return self.tick_ends();
        };
        self.actor().tasks &= !bit(task);
        if !self.task(task).is_pinned() {
            self.search_for(task, reach, Then::Rescue);
        }
    }

    pub fn ask(&mut self) {
        let to = self.now().to;
        self.cpu(to).pull_asked = true;
        self.goes_to(Pc::AskKick);
    }

    pub fn ask_kick(&mut self) {
        let to = self.now().to;
        self.s.idle_kicks |= self.kick_idle(to);
        self.tick_ends();
    }

    fn tick_ends(&mut self) {
        let cpu = self.now().cpu;
        self.cpu(cpu).locked = false;
        self.ends();
    }
}

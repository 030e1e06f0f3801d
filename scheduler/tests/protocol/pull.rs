// SPDX-License-Identifier: GPL-2.0-only

//! pull.bpf.h: a CPU looks for a task in the queues of others. To move one, the kernel unlocks
//! the CPU's own run queue for as long as it needs the other one's lock.

use super::model::{Change, Run};
use super::state::*;
use super::steps::{Pc, Then};

/// In place of a task: a walk has yet to note which tasks are queued.
const BEGINS: u8 = 7;

impl Run<'_> {
    fn own_word(&self) -> u8 {
        self.model.word_of(self.me())
    }

    /// any_offer() in pull_newidle(). offering() reads the same word right after it: one read
    /// is enough for both.
    pub fn any_offer(&mut self) {
        if self.s.sum == 0 {
            return self.pick_again();
        }
        let c = *self.own();
        let a = self.actor();
        a.rests = c.rests && !c.pull_asked;
        a.far_rests = c.far_rests && !c.pull_asked;
        if a.rests {
            self.pulled_none();
        } else {
            self.offering();
        }
    }

    /// pull_from_words(), of the LLC, then of the others
    pub fn offering(&mut self) {
        let near = bit(self.own_word());
        let far = self.model.all_words() & !near;
        self.actor().words = self.s.sum & if self.now().far { far } else { near };
        self.next_word();
    }

    fn next_word(&mut self) {
        let Actor {
            words,
            far,
            far_rests,
            ..
        } = self.now();
        if words != 0 {
            self.goes_to(Pc::OfferWord);
        } else if !far && !far_rests && self.model.all_words() != bit(self.own_word()) {
            self.actor().far = true;
            self.goes_to(Pc::Offering);
        } else {
            self.pulled_none();
        }
    }

    pub fn offer_word(&mut self) {
        let word = first_from(self.now().words, self.own_word()).expect("a word is left");
        self.actor().words &= !bit(word);
        self.actor().cpus = self.s.offers & self.model.cpus_of(word);
        self.look_at_next();
    }

    fn look_at_next(&mut self) {
        let Some(victim) = first_from(self.now().cpus, self.me() + 1) else {
            return self.next_word();
        };
        let a = self.actor();
        a.cpus &= !bit(victim);
        (a.cpu, a.found, a.again, a.pc) = (victim, Found::Empty, false, Pc::Peek);
    }

    /// pull_look()
    pub fn peek(&mut self) {
        let me = self.me();
        let victim = self.now().cpu;
        let locked = victim != me && self.cpu(victim).locked;
        self.actor().unsure |= locked && self.model.has(Change::LookAgainIfLocked);
        let Some(head) = self.cpu(victim).queue.first() else {
            return self.goes_to(Pc::Count);
        };
        let p = *self.task(head);
        let far = self.model.word_of(victim) != self.own_word();
        if far && p.early && !self.own().pull_asked {
            self.actor().found = Found::Early;
            self.next_queue();
        } else if p.may_run_on(me) {
            self.goes_to(Pc::Consume);
        } else {
            self.walk_from_head();
        }
    }

    /// scx_bpf_dsq_move_to_local(): the first task that may run here
    pub fn consume(&mut self) {
        let me = self.me();
        let victim = self.now().cpu;
        let mut tasks = self.cpu(victim).queue.iter();
        let Some(task) = tasks.find(|&task| self.task(task).may_run_on(me)) else {
            return self.walk_from_head();
        };
        if victim == me {
            self.take_own(task);
            return self.taken();
        }
        self.unlink(task, victim);
        self.task(task).place = Place::Held(me);
        self.actor().task = task;
        self.unlock_for(Pc::ConsumeMove);
    }

    fn unlock_for(&mut self, pc: Pc) {
        self.own().locked = false;
        self.goes_to(pc);
    }

    /// A change of affinity may have taken the task away.
    pub fn consume_move(&mut self) {
        let task = self.now().task;
        let held = Place::Held(self.me());
        if self.task(task).place == held {
            self.move_here(task);
        }
        self.goes_to(Pc::ConsumeLand);
    }

    fn move_here(&mut self, task: u8) {
        let cpu = self.me();
        let p = self.task(task);
        (p.place, p.cpu) = (Place::Moving, cpu);
    }

    fn is_moved(&mut self) -> bool {
        let (me, task) = (self.me(), self.now().task);
        let p = self.task(task);
        p.place == Place::Moving && p.cpu == me
    }

    pub fn consume_land(&mut self) {
        self.own().locked = true;
        if self.is_moved() {
            self.lands();
        } else {
            self.actor().task = 0;
            self.goes_to(Pc::Consume);
        }
    }

    fn lands(&mut self) {
        let (me, task) = (self.me(), self.now().task);
        self.insert_local(task, me);
        self.taken();
    }

    fn taken(&mut self) {
        let victim = self.now().cpu;
        let a = self.actor();
        (a.task, a.tasks, a.found) = (0, 0, Found::Taken);
        if a.again {
            self.offer(victim, Then::Next);
        } else {
            self.goes_to(Pc::Count);
        }
    }

    /// pull_past_head()
    fn walk_from_head(&mut self) {
        let a = self.actor();
        (a.task, a.tasks, a.found, a.pc) = (BEGINS, 0, Found::Empty, Pc::Walk);
    }

    pub fn walk_again(&mut self) {
        let keeps = self.keeps_offer(self.now().cpu);
        let a = self.actor();
        (a.again, a.keeps) = (true, keeps);
        self.walk_from_head();
    }

    /// The walk meets the tasks that were queued when it began.
    pub fn walk(&mut self) {
        let me = self.me();
        let victim = self.now().cpu;
        let queue = self.cpu(victim).queue;
        if self.now().task == BEGINS {
            self.actor().task = 0;
            self.actor().tasks = queue.set();
        }
        let left = self.now().tasks;
        let Some(task) = queue.iter().find(|&task| left & bit(task) != 0) else {
            return self.walked();
        };
        self.actor().tasks &= !bit(task);
        if !self.task(task).may_run_on(me) {
            self.passes(task);
        } else if victim == me {
            self.own().pull_asked = false;
            self.take_own(task);
            self.taken();
        } else {
            self.actor().task = task;
            self.unlock_for(Pc::WalkMove);
        }
    }

    /// The walk goes on past a task that may not run here or that has left.
    fn passes(&mut self, task: u8) {
        let pinned = self.task(task).is_pinned();
        let found = &mut self.actor().found;
        match found {
            _ if !pinned => *found = Found::Left,
            Found::Empty => *found = Found::Tied,
            _ => (),
        }
    }

    pub fn walk_move(&mut self) {
        let Actor {
            cpu: victim, task, ..
        } = self.now();
        if self.cpu(victim).queue.set() & bit(task) != 0 {
            self.unlink(task, victim);
            self.move_here(task);
        }
        self.goes_to(Pc::WalkLand);
    }

    pub fn walk_land(&mut self) {
        self.own().locked = true;
        if self.is_moved() {
            self.own().pull_asked = false;
            self.lands();
        } else {
            let task = std::mem::take(&mut self.actor().task);
            self.passes(task);
            self.goes_to(Pc::Walk);
        }
    }

    /// pull_from(), when a walk has taken nothing
    fn walked(&mut self) {
        let Actor {
            cpu: victim,
            found,
            again,
            keeps,
            ..
        } = self.now();
        let offers = found > Found::Tied || keeps;
        match (found, again) {
            (Found::Empty, false) => self.goes_to(Pc::Count),
            (Found::Tied, false) => self.withdraw(victim, Then::LookAgain),
            (_, true) if offers => self.offer(victim, Then::Next),
            _ => self.next_queue(),
        }
    }

    /// pull_from(): the offer of an empty queue is withdrawn.
    pub fn count(&mut self) {
        let victim = self.now().cpu;
        if self.cpu(victim).queue.is_empty() {
            self.withdraw(victim, Then::LastLook);
        } else {
            self.next_queue();
        }
    }

    /// The end of pull_from()
    pub fn next_queue(&mut self) {
        let a = self.actor();
        (a.again, a.keeps) = (false, false);
        match std::mem::take(&mut a.found) {
            Found::Taken => return self.run_next(),
            Found::Left | Found::Tied => a.missed = true,
            Found::Early => a.early = true,
            Found::Empty => (),
        }
        self.look_at_next();
    }

    /// pull_note() and pull_note_far(). Rests last until a tick asks.
    fn pulled_none(&mut self) {
        let rests = self.model.rests;
        let Actor {
            from_idle, unsure, ..
        } = self.now();
        let a = self.now();
        let c = self.own();
        if !a.rests {
            c.pull_asked = false;
            c.rests = a.missed && rests;
        }
        if !a.rests && !a.far_rests {
            c.far_rests = a.early && rests;
        }
        *self.actor() = Actor {
            pc: a.pc,
            from_idle,
            unsure,
            ..Actor::default()
        };
        self.pick_again();
    }
}

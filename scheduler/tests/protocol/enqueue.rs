// SPDX-License-Identifier: GPL-2.0-only

//! placement.bpf.h, idle.bpf.h and enqueue.bpf.h: a task becomes runnable.

use super::model::{AFFINITY, Change, MOVER, Run, WAKERS};
use super::state::*;
use super::steps::{Pc, Then};

impl Run<'_> {
    /// A wakeup or a change of affinity begins.
    pub fn begin(&mut self) -> bool {
        if self.me == AFFINITY {
            return self.change_affinity();
        }
        let task = self.now().task;
        let p = *self.task(task);
        self.actor().cpu = p.cpu;
        if p.is_pinned() {
            self.goes_to(Pc::Lock);
        } else {
            self.search_for(task, self.model.all_words(), Then::Place);
            self.search();
        }
        true
    }

    /// `__set_cpus_allowed_ptr()` of a task that waits or is on its way: the kernel takes it
    /// out, and enqueues it anew, on another CPU if need be.
    fn change_affinity(&mut self) -> bool {
        let (task, mask) = self.model.affinity.expect("a task is named");
        let Task { cpu, place, .. } = *self.task(task);
        let waits = matches!(place, Place::Queued | Place::Held(_) | Place::Sent(_));
        if !waits || self.cpu(cpu).locked {
            return false;
        }
        self.unlink(task, cpu);
        let p = self.task(task);
        (p.mask, p.place) = (mask, Place::Asleep);
        if !p.may_run_on(cpu) {
            p.cpu = first_from(mask, 0).expect("a task may run somewhere");
        }
        self.actor().cpu = self.task(task).cpu;
        self.goes_to(Pc::Lock);
        if self.now().cpu == cpu {
            self.enqueue();
        }
        true
    }

    /// A task leaves the queue of `cpu`. No walk of the queue meets it any more.
    pub fn unlink(&mut self, task: u8, cpu: u8) {
        self.cpu(cpu).queue.remove(task);
        for actor in &mut self.s.actors {
            actor.tasks &= !bit(task);
        }
    }

    /// idle_among(). words_to_search() reads some of these words once before; it is the last
    /// read of a word that decides, and all of them come after the offer.
    pub fn search_for(&mut self, task: u8, words: Set, then: Then) {
        let a = self.actor();
        (a.task, a.words, a.then, a.pc) = (task, words, then, Pc::Search);
    }

    pub fn search(&mut self) {
        let Actor {
            cpu, task, words, ..
        } = self.now();
        let word = first_from(words, self.model.word_of(cpu)).expect("a word is left");
        self.actor().words &= !bit(word);
        self.actor().cpus = self.s.idle & self.model.cpus_of(word) & self.task(task).mask;
        self.next_candidate();
    }

    fn next_candidate(&mut self) {
        let Actor { words, cpus, .. } = self.now();
        if cpus != 0 {
            self.goes_to(Pc::Claim);
        } else if words != 0 {
            self.goes_to(Pc::Search);
        } else {
            self.searched(None);
        }
    }

    /// claim(), of the nearest first. It fails if another one has claimed the CPU meanwhile.
    pub fn claim(&mut self) {
        let Actor { cpu, cpus, .. } = self.now();
        let to = first_from(cpus, cpu).expect("a candidate is left");
        self.actor().cpus &= !bit(to);
        if self.s.idle & bit(to) == 0 {
            return self.next_candidate();
        }
        self.s.idle &= !bit(to);
        let a = self.actor();
        (a.words, a.cpus, a.to) = (0, 0, to);
        self.searched(Some(to));
    }

    fn searched(&mut self, claimed: Option<u8>) {
        match self.now().then {
            Then::Place => self.place(claimed),
            Then::Rescue if claimed.is_some() => self.goes_to(Pc::Ask),
            Then::Rescue => self.goes_to(Pc::TickWalk),
            _ => self.enqueue_searched(claimed.is_some()),
        }
    }

    /// place_wakee(): to the idle CPU, or where the task ran before.
    fn place(&mut self, claimed: Option<u8>) {
        let p = self.now().task;
        let cpu = claimed.unwrap_or(self.task(p).cpu);
        self.task(p).cpu = cpu;
        let a = self.actor();
        (a.cpu, a.to, a.pc) = (cpu, 0, Pc::Lock);
    }

    fn is_wakeup(&self) -> bool {
        (WAKERS..AFFINITY).contains(&self.me)
    }

    fn preempts(&self) -> bool {
        self.is_wakeup() && self.model.wakees[self.me - WAKERS].preempts
    }

    /// enqueue_task(), with the rq lock
    pub fn enqueue(&mut self) {
        let Actor { cpu, task, .. } = self.now();
        let preempts = self.preempts();
        let c = self.cpu(cpu);
        let idles_for = !c.running && c.nr_queued == 0 && !c.local_pending;
        if idles_for {
            c.local_pending = true;
            self.insert_local(task, cpu);
            self.leave();
        } else if preempts && c.running && !c.local_pending {
            c.local_pending = true;
            c.local.push_first(task);
            c.need_resched = true;
            self.task(task).place = Place::Local;
            self.leave();
        } else {
            c.locked = true;
            self.enqueue_busy();
        }
    }

    /// runq_offer(), then enqueue_idle(). The bit goes with taking the lock: a step before it
    /// may as well come before the lock.
    pub fn enqueue_busy(&mut self) {
        let Actor { cpu, task, .. } = self.now();
        let near = self.is_wakeup() && self.model.rests;
        let word = bit(self.model.word_of(cpu));
        let words = if near { word } else { self.model.all_words() };
        if self.task(task).is_pinned() {
            self.insert();
        } else if self.model.has(Change::SearchBeforeOffer) {
            self.search_for(task, words, Then::Queue);
        } else {
            self.actor().words = words;
            self.offer(cpu, Then::Queue);
            self.offer_bit();
        }
    }

    pub fn enqueue_offered(&mut self) {
        let searched = self.model.has(Change::SearchBeforeOffer);
        self.goes_to(if searched { Pc::Insert } else { Pc::Search });
    }

    fn enqueue_searched(&mut self, found: bool) {
        let cpu = self.now().cpu;
        if found && self.cpu(cpu).nr_queued == 0 {
            self.withdraw(cpu, Then::Send);
        } else if found {
            self.goes_to(Pc::Send);
        } else if self.model.has(Change::SearchBeforeOffer) {
            self.offer(cpu, Then::Queue);
        } else {
            self.goes_to(Pc::Insert);
        }
    }

    /// runq_insert(). The kernel queues the task after ops.enqueue, still with the rq lock.
    pub fn insert(&mut self) {
        let Actor { cpu, task, .. } = self.now();
        let early = self.model.rests;
        let p = self.task(task);
        (p.place, p.early) = (Place::Queued, early);
        let pinned = p.is_pinned();
        let c = self.cpu(cpu);
        c.nr_queued += 1;
        c.offered |= !pinned;
        c.queue.push(task);
        self.leave();
    }

    /// enqueue_idle(): SCX_DSQ_LOCAL_ON, and the kick. The kernel moves the task when it may
    /// unlock the run queue: a waker before it takes the interrupt that kicks, a CPU that puts
    /// a task aside by an interrupt, too.
    pub fn send(&mut self) {
        let Actor { cpu, to, task, .. } = self.now();
        let kicked = !self.model.has(Change::SendsWithoutKick);
        let kicks = if kicked { self.kick_idle(to) } else { 0 };
        if to == cpu {
            self.s.idle_kicks |= kicks;
            self.insert_local(task, to);
            return self.leave();
        }
        self.leave();
        let me = if self.is_cpu() { MOVER } else { self.me };
        let mover = &mut self.s.actors[me];
        assert_eq!(mover.pc, Pc::Done, "one task is moved at a time");
        *mover = Actor {
            pc: Pc::Land,
            task,
            to,
            cpus: kicks,
            ..Actor::default()
        };
        self.task(task).place = Place::Sent(me as u8);
    }

    /// The task gets there, unless its affinity has changed meanwhile.
    pub fn land(&mut self) {
        let Actor {
            to,
            task,
            cpus: kicks,
            ..
        } = self.now();
        let sent = Place::Sent(self.me());
        if self.task(task).place == sent {
            self.task(task).cpu = to;
            self.insert_local(task, to);
        }
        self.s.idle_kicks |= kicks;
        self.ends();
    }

    /// A task comes to the local queue of `cpu`, which the kernel reschedules if it idles.
    pub fn insert_local(&mut self, task: u8, cpu: u8) {
        self.task(task).place = Place::Local;
        let c = self.cpu(cpu);
        c.local.push(task);
        c.need_resched |= c.idles();
    }

    /// The end of an enqueue, with wakeup_preempt(): an idle CPU looks at its queue.
    fn leave(&mut self) {
        if self.is_cpu() {
            return self.run_next();
        }
        let cpu = self.now().cpu;
        let c = self.cpu(cpu);
        c.need_resched |= c.idles();
        c.locked = false;
        self.ends();
    }

    pub fn ends(&mut self) {
        *self.actor() = Actor {
            pc: Pc::Done,
            ..Actor::default()
        };
    }

    /// kick(cpu, SCX_KICK_IDLE): the CPUs to be kicked. None if it runs a task and does not
    /// look for the next one.
    pub fn kick_idle(&mut self, cpu: u8) -> Set {
        let c = self.cpu(cpu);
        let kicks = c.locked || c.idles() || c.in_balance;
        if kicks { bit(cpu) } else { 0 }
    }
}

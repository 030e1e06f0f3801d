// SPDX-License-Identifier: GPL-2.0-only

//! dispatch.bpf.h: a CPU looks for its next task and goes idle if there is none.

use super::model::{Change, Run};
use super::state::*;
use super::steps::{Pc, Then};

impl Run<'_> {
    /// `__schedule()`, if the CPU has to. A task that runs goes on unless one preempts it.
    pub fn reschedule(&mut self) -> bool {
        let c = *self.own();
        if !c.need_resched {
            return false;
        }
        match c.curr {
            Some(task) if !c.local.is_empty() => self.put_aside(task),
            Some(_) => self.own().need_resched = false,
            None => self.schedule(),
        }
        true
    }

    /// `__schedule()` where the previous task sleeps or is the idle task: what is in the local
    /// queue is next, else dispatch_cpu() finds it.
    pub fn schedule(&mut self) {
        let cpu = self.me();
        let c = self.own();
        (c.locked, c.in_balance, c.running) = (true, true, false);
        let from_idle = c.idles();
        let pc = Pc::Runs;
        *self.actor() = Actor {
            pc,
            cpu,
            from_idle,
            ..Actor::default()
        };
        if self.own().local.is_empty() {
            self.runq_pick();
        } else {
            self.run_next();
        }
    }

    /// The task that runs has lost its slice: it is enqueued, then the first of the local queue
    /// runs.
    fn put_aside(&mut self, task: u8) {
        let cpu = self.me();
        let c = self.own();
        (c.locked, c.running, c.need_resched) = (true, false, false);
        *self.actor() = Actor {
            task,
            cpu,
            ..Actor::default()
        };
        self.enqueue_busy();
    }

    /// runq_pick(); runq_mark_empty() withdraws the offer.
    fn runq_pick(&mut self) {
        let c = self.own();
        if c.nr_queued == 0 {
            return self.picked_none();
        }
        if let Some(task) = c.queue.first() {
            c.nr_queued -= 1;
            self.take_own(task);
            return self.run_next();
        }
        c.nr_queued = 0;
        if std::mem::take(&mut c.offered) {
            self.withdraw(self.me(), Then::Pick);
        } else {
            self.picked_none();
        }
    }

    pub fn take_own(&mut self, task: u8) {
        let me = self.me();
        self.unlink(task, me);
        self.insert_local(task, me);
    }

    /// dispatch_cpu(): pull_newidle() after the first look at the own queue, idle after the
    /// second.
    pub fn picked_none(&mut self) {
        if !self.now().again {
            return self.goes_to(Pc::AnyOffer);
        }
        if self.now().from_idle {
            self.goes_to(Pc::Stays);
        } else if !self.own().local.is_empty() {
            self.run_next();
        } else if self.model.has(Change::RecheckBeforeEnter) {
            self.goes_to(Pc::Recheck);
        } else {
            self.goes_to(Pc::Enter);
        }
    }

    pub fn pick_again(&mut self) {
        self.actor().again = true;
        self.runq_pick();
    }

    /// The first task of the local queue is next. A CPU that idled leaves idle first.
    pub fn run_next(&mut self) {
        if self.now().from_idle {
            self.goes_to(Pc::Exit);
        } else {
            self.start();
        }
    }

    /// ops.update_idle(false): idle_exit()
    pub fn exit(&mut self) {
        self.s.idle &= !bit(self.me());
        self.start();
    }

    /// ops.running
    fn start(&mut self) {
        let c = self.own();
        let task = c.local.first().expect("there is a next task");
        c.local.remove(task);
        (c.curr, c.running, c.local_pending) = (Some(task), true, false);
        self.task(task).place = Place::Running;
        self.unlock();
    }

    /// ops.update_idle(true): idle_enter(), then recheck_offers()
    pub fn enter(&mut self) {
        self.s.idle |= bit(self.me());
        self.own().local_pending = false;
        let last = [Change::NoRecheck, Change::RecheckBeforeEnter];
        if last.iter().any(|&change| self.model.has(change)) {
            self.idle();
        } else {
            self.goes_to(Pc::Recheck);
        }
    }

    pub fn recheck(&mut self) {
        let near = self.s.sum & bit(self.model.word_of(self.me()));
        let sum = self.s.sum;
        let c = self.own();
        let rests = c.rests && !c.pull_asked;
        let far_rests = c.far_rests && !c.pull_asked;
        let may_pull = near != 0 || (sum != 0 && !far_rests);
        if c.nr_queued > 0 || (may_pull && !rests) {
            self.s.self_kicks |= bit(self.me());
        }
        if self.model.has(Change::RecheckBeforeEnter) {
            self.goes_to(Pc::Enter);
        } else {
            self.idle();
        }
    }

    /// idle_stays(): the idle task goes on, and no ops.update_idle follows.
    pub fn stays(&mut self) {
        let me = bit(self.me());
        let claimed = self.s.idle & me == 0;
        if !self.model.has(Change::StaysClaimed) {
            self.s.idle |= me;
        }
        self.own().local_pending = false;
        if !self.own().local.is_empty() {
            self.run_next();
        } else if claimed && self.model.has(Change::RecheckIfClaimed) {
            self.goes_to(Pc::Recheck);
        } else {
            self.idle();
        }
    }

    fn idle(&mut self) {
        if self.now().unsure {
            self.s.self_kicks |= bit(self.me());
        }
        self.own().curr = None;
        self.unlock();
    }

    /// The end of `__schedule()`
    fn unlock(&mut self) {
        let c = self.own();
        (c.locked, c.in_balance, c.need_resched) = (false, false, false);
        *self.actor() = Actor {
            pc: Pc::Runs,
            ..Actor::default()
        };
    }
}

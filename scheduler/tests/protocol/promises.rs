// SPDX-License-Identifier: GPL-2.0-only

//! What is promised of a state in which nothing follows by itself.

use super::state::*;
use super::steps::Pc;

/// A promise that a state does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A CPU idles although a task that may run there waits in a queue that is offered.
    Overlooked,
    /// The same, and the queue is not offered.
    NotOffered,
    /// A CPU idles although a task that may run there waits in the local queue of a busy CPU.
    PastQueue,
    /// A CPU idles, and no search finds it.
    ClaimedForEver,
    /// An offer whose word is not in the sum.
    NotInSum,
    /// A step that is never taken, or a task that nobody goes for.
    Stuck,
}

impl State {
    fn idle_cpus(&self) -> Set {
        let idles = |&at: &usize| self.actors[at].pc == Pc::Runs && self.cpus[at].idles();
        (0..CPUS).filter(idles).map(|at| bit(at as u8)).sum()
    }

    /// The tasks in queues that an idle CPU might run.
    pub fn stranded_tasks(&self) -> impl Iterator<Item = &Task> {
        let idle = self.idle_cpus();
        let waits = move |p: &&Task| p.place == Place::Queued && p.mask & idle != 0;
        self.tasks.iter().filter(waits)
    }

    /// CPUs with a task in the local queue that an idle CPU might run.
    pub fn cpus_with_waiters(&self) -> Set {
        let idle = self.idle_cpus();
        let waits = |p: &&Task| p.place == Place::Local && p.mask & idle != 0;
        let cpus = self.tasks.iter().filter(waits);
        cpus.fold(0, |cpus, p| cpus | bit(p.cpu))
    }

    pub fn has(&self, words: &[u8], flaw: Flaw) -> bool {
        let word_of = |cpu: u8| bit(words[usize::from(cpu)]);
        let offered = |cpu| self.offers & bit(cpu) != 0 && self.sum & word_of(cpu) != 0;
        let in_vain = |cpu| self.offers & bit(cpu) != 0 && !offered(cpu);
        match flaw {
            Flaw::Overlooked => self.stranded_tasks().any(|p| offered(p.cpu)),
            Flaw::NotOffered => self.stranded_tasks().any(|p| !offered(p.cpu)),
            Flaw::PastQueue => self.cpus_with_waiters() != 0,
            Flaw::ClaimedForEver => self.idle_cpus() & !self.idle != 0,
            Flaw::NotInSum => (0..words.len() as u8).any(in_vain),
            Flaw::Stuck => self.is_stuck(),
        }
    }

    fn is_stuck(&self) -> bool {
        let waits = |a: &Actor| !matches!(a.pc, Pc::Asleep | Pc::Runs | Pc::Done);
        let left = |c: &Cpu| c.locked || (c.idles() && !c.local.is_empty());
        let lost = |p: &Task| matches!(p.place, Place::Held(_) | Place::Moving | Place::Sent(_));
        let kicks = self.self_kicks | self.idle_kicks;
        kicks != 0
            || self.actors.iter().any(waits)
            || self.cpus.iter().any(left)
            || self.tasks.iter().any(lost)
    }
}

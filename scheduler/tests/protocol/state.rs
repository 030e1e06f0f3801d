// SPDX-License-Identifier: GPL-2.0-only

//! What the CPUs share, and what each actor is about to do.

use super::steps::{Pc, Then};

/// How many CPUs, tasks and actors a state has room for.
pub const CPUS: usize = 3;
pub const TASKS: usize = 6;
pub const ACTORS: usize = CPUS + 6;

/// A set of CPUs, words or tasks, by their numbers.
pub type Set = u8;

pub fn bit(n: u8) -> Set {
    1 << n
}

/// The member of `set` that comes first from `start` on and around (`bit_from()`).
pub fn first_from(set: Set, start: u8) -> Option<u8> {
    (start..8).chain(0..start).find(|&n| set & bit(n) != 0)
}

/// At most four tasks in their order. Each takes four bits, the first one the lowest, and is
/// there as its number plus one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Queue(u16);

impl Queue {
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..4)
            .map(move |place| (self.0 >> (4 * place) & 15) as u8)
            .take_while(|&item| item != 0)
            .map(|item| item - 1)
    }

    pub fn first(self) -> Option<u8> {
        self.iter().next()
    }

    pub fn push(&mut self, task: u8) {
        assert!(self.0 >> 12 == 0, "a queue has room for four tasks");
        self.0 |= (u16::from(task) + 1) << (4 * self.iter().count());
    }

    pub fn push_first(&mut self, task: u8) {
        assert!(self.0 >> 12 == 0, "a queue has room for four tasks");
        self.0 = self.0 << 4 | (u16::from(task) + 1);
    }

    pub fn remove(&mut self, task: u8) {
        let mut rest = Self::default();
        self.iter()
            .filter(|&other| other != task)
            .for_each(|other| rest.push(other));
        *self = rest;
    }

    pub fn set(self) -> Set {
        self.iter().map(bit).sum()
    }
}

/// Where a task is. A number is that of the actor that has the task in hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    #[default]
    Asleep,
    /// In the queue of its CPU.
    Queued,
    /// Out of its queue: a CPU has yet to lock the run queue that it comes from.
    Held(u8),
    /// Between two run queues: nobody else gets at it.
    Moving,
    /// On its way to the local queue of a claimed CPU.
    Sent(u8),
    /// In the local queue of its CPU.
    Local,
    Running,
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// The CPUs where it may run.
    pub mask: Set,
    /// `task_cpu()`
    pub cpu: u8,
    pub place: Place,
    /// It has waited for less than `FAR_NS`.
    pub early: bool,
}

impl Task {
    pub fn may_run_on(self, cpu: u8) -> bool {
        self.mask & bit(cpu) != 0
    }

    pub fn is_pinned(self) -> bool {
        self.mask.count_ones() == 1
    }
}

/// A run queue, and its `struct cpu_ctx`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// The rq lock is held.
    pub locked: bool,
    /// The task that runs; none if the CPU idles.
    pub curr: Option<u8>,
    pub need_resched: bool,
    /// `SCX_RQ_IN_BALANCE`: it looks for its next task.
    pub in_balance: bool,
    pub local: Queue,
    pub queue: Queue,
    pub nr_queued: u8,
    pub running: bool,
    pub offered: bool,
    pub local_pending: bool,
    pub pull_asked: bool,
    /// `pull_rests()` and `pull_far_rests()`, but for `pull_asked`.
    pub rests: bool,
    pub far_rests: bool,
}

impl Cpu {
    pub fn idles(&self) -> bool {
        self.curr.is_none()
    }
}

/// What a look at a queue has found (`enum pull_found`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub enum Found {
    #[default]
    Empty,
    Tied,
    Left,
    Early,
    Taken,
}

/// One flow of control: a CPU, a waker, a change of affinity or a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// The next step.
    pub pc: Pc,
    /// Where a part that several functions share leads to.
    pub then: Then,
    pub task: u8,
    /// The CPU whose queue is in hand, and the one that was claimed.
    pub cpu: u8,
    pub to: u8,
    /// What is left to look at: words, CPUs of the last word, tasks of the queue.
    pub words: Set,
    pub cpus: Set,
    pub tasks: Set,
    /// A tick: the words where it searches.
    pub reach: Set,
    pub found: Found,
    /// A CPU: this is the second look at the queue in hand, or for a task of its own.
    pub again: bool,
    /// It looks beyond its LLC.
    pub far: bool,
    /// It has met tasks that may not run there, or that had just begun to wait.
    pub missed: bool,
    pub early: bool,
    /// It rests, or rests beyond its LLC.
    pub rests: bool,
    pub far_rests: bool,
    /// The remedies: the second look began with the rq lock held, or the first look did.
    pub keeps: bool,
    pub unsure: bool,
    /// It idled before.
    pub from_idle: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct State {
    /// `idle_words` and `offers`: a bit for each CPU.
    pub idle: Set,
    pub offers: Set,
    /// `offered_words`: a bit for each word.
    pub sum: Set,
    /// Kicks on their way: of CPUs by themselves, and of CPUs that idle.
    pub self_kicks: Set,
    pub idle_kicks: Set,
    pub cpus: [Cpu; CPUS],
    pub tasks: [Task; TASKS],
    pub actors: [Actor; ACTORS],
    /// How many tasks were stranded before the tick that is looked at.
    pub stranded: u8,
}

impl State {
    /// Of what tells most states apart.
    pub fn hash(&self) -> u64 {
        let shared = [
            self.idle,
            self.offers,
            self.sum,
            self.self_kicks,
            self.idle_kicks,
        ];
        let shared = shared.iter().fold(0, |all, &set| mix(all, set.into()));
        let cpus = self.cpus.iter().fold(shared, |all, c| mix(all, c.digest()));
        let all = self.actors.iter().fold(cpus, |all, a| mix(all, a.digest()));
        all >> 24
    }
}

/// FxHash
fn mix(hash: u64, n: u64) -> u64 {
    (hash.rotate_left(5) ^ n).wrapping_mul(0x517c_c1b7_2722_0a95)
}

impl Cpu {
    fn digest(&self) -> u64 {
        let flags = [
            self.locked,
            self.need_resched,
            self.in_balance,
            self.running,
        ];
        let flags = flags
            .iter()
            .fold(0, |all, &flag| all << 1 | u64::from(flag));
        let curr = self.curr.map_or(15, u64::from) << 8 | u64::from(self.nr_queued);
        u64::from(self.local.0) << 48 | u64::from(self.queue.0) << 32 | curr << 8 | flags
    }
}

impl Actor {
    fn digest(&self) -> u64 {
        let [pc, then] = [self.pc as u8, self.then as u8];
        let Self {
            task,
            cpu,
            to,
            words,
            cpus,
            tasks,
            ..
        } = *self;
        u64::from_le_bytes([pc, then, task, cpu, to, words, cpus, tasks])
    }
}

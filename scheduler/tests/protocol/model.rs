// SPDX-License-Identifier: GPL-2.0-only

//! A small machine, what may happen to it, and which step follows which.

use std::fmt;

use super::state::*;
use super::steps::Pc;

/// The first actors are the CPUs, then come the wakers.
pub const WAKERS: usize = CPUS;
pub const AFFINITY: usize = ACTORS - 3;
/// It brings a task that a CPU has put aside to the CPU that was claimed for it.
pub const MOVER: usize = ACTORS - 2;
pub const TICK: usize = ACTORS - 1;

/// A difference from the protocol of today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// recheck_offers() is left out.
    NoRecheck,
    /// recheck_offers() comes before idle_enter().
    RecheckBeforeEnter,
    /// enqueue_idle() comes before runq_offer().
    SearchBeforeOffer,
    /// withdraw() does not look again when it has cleared the sum.
    OneLookAtWord,
    /// withdraw_empty() does not look again, and offers nothing anew.
    NoReoffer,
    /// pull_from() withdraws the offer of tasks that are tied, and does not look again.
    OneLookAtTied,
    /// idle_stays() does not set the bit.
    StaysClaimed,
    /// enqueue_idle() does not kick the CPU that it has claimed.
    SendsWithoutKick,
    /// A tick renews the offer and wakes nobody.
    TickDoesNotAsk,

    /// A remedy: an offer is made anew where the rq lock of its queue is held. An enqueue may
    /// be between the offer and the queue.
    KeepOfferIfLocked,
    /// A remedy: a CPU that has met a queue whose rq lock was held looks again.
    LookAgainIfLocked,
    /// A remedy: idle_stays() rechecks if the CPU was claimed.
    RecheckIfClaimed,
    /// A remedy: who makes an offer anew, or its bit of the sum, kicks the CPUs that idle.
    CallAfterRenewal,
    /// A remedy: rescue_queue() offers before it reads which CPUs idle.
    TickOffersFirst,
}

/// What closes the gaps of today, but that of a tick.
pub const REMEDIES: [Change; 4] = [
    Change::KeepOfferIfLocked,
    Change::LookAgainIfLocked,
    Change::RecheckIfClaimed,
    Change::CallAfterRenewal,
];

/// A task that wakes up once.
#[derive(Clone, Copy, Debug)]
pub struct Wakee {
    /// Where it ran before.
    pub cpu: u8,
    pub mask: Set,
    /// It takes the CPU from the task that runs there.
    pub preempts: bool,
    /// It waits there at first, and is offered.
    pub waits: bool,
}

/// A machine and its load. The first tasks are those that run at first, by their CPUs; from
/// task `CPUS` on they are the wakees.
#[derive(Clone, Debug)]
pub struct Model {
    pub name: &'static str,
    /// The word of each CPU; each word is an LLC.
    pub words: &'static [u8],
    /// Tasks that never end, of those that run at first and of the wakees.
    pub hogs: Set,
    pub wakees: Vec<Wakee>,
    /// A task whose affinity changes while it waits or is on its way, and to what.
    pub affinity: Option<(u8, Set)>,
    /// Rests and `FAR_NS` are on.
    pub rests: bool,
    /// Ticks may come at any time, one after the other.
    pub ticks: bool,
    pub changes: Vec<Change>,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rests = if self.rests {
            ", with rests and FAR_NS"
        } else {
            ""
        };
        write!(f, "{}{rests}", self.name)?;
        self.changes
            .iter()
            .try_for_each(|change| write!(f, ", {change:?}"))
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A step of an actor.
    Step(u8),
    /// A CPU's kick of itself arrives: `kick(cpu, 0)`.
    SelfKick(u8),
    /// `kick(cpu, SCX_KICK_IDLE)` arrives.
    IdleKick(u8),
    /// The task that runs on a CPU goes to sleep.
    Sleep(u8),
    Tick(u8),
}

impl Model {
    pub fn has(&self, change: Change) -> bool {
        self.changes.contains(&change)
    }

    pub fn with(&self, changes: &[Change]) -> Self {
        let changes = changes.to_vec();
        Self {
            changes,
            ..self.clone()
        }
    }

    pub fn nr_cpus(&self) -> u8 {
        self.words.len() as u8
    }

    pub fn word_of(&self, cpu: u8) -> u8 {
        self.words[usize::from(cpu)]
    }

    pub fn cpus_of(&self, word: u8) -> Set {
        let of_word = |&cpu: &u8| self.word_of(cpu) == word;
        (0..self.nr_cpus()).filter(of_word).map(bit).sum()
    }

    pub fn all_words(&self) -> Set {
        self.words.iter().fold(0, |all, &word| all | bit(word))
    }

    pub fn initial(&self) -> State {
        let mut s = State::default();
        for actor in &mut s.actors {
            actor.pc = Pc::Done;
        }
        for cpu in 0..self.nr_cpus() {
            let at = usize::from(cpu);
            let mask = bit(self.nr_cpus()) - 1;
            s.actors[at].pc = Pc::Runs;
            s.cpus[at].curr = Some(cpu);
            s.cpus[at].running = true;
            s.tasks[at] = Task {
                mask,
                cpu,
                place: Place::Running,
                early: false,
            };
        }
        for (nth, wakee) in self.wakees.iter().enumerate() {
            self.add(&mut s, nth, wakee);
        }
        if let Some((task, _)) = self.affinity {
            s.actors[AFFINITY] = Actor {
                pc: Pc::Asleep,
                task,
                ..Actor::default()
            };
        }
        s
    }

    fn add(&self, s: &mut State, nth: usize, wakee: &Wakee) {
        let task = (CPUS + nth) as u8;
        let place = if wakee.waits {
            Place::Queued
        } else {
            Place::Asleep
        };
        let &Wakee { cpu, mask, .. } = wakee;
        s.tasks[CPUS + nth] = Task {
            mask,
            cpu,
            place,
            early: false,
        };
        if !wakee.waits {
            s.actors[WAKERS + nth] = Actor {
                pc: Pc::Asleep,
                task,
                ..Actor::default()
            };
            return;
        }
        let c = &mut s.cpus[usize::from(cpu)];
        c.queue.push(task);
        (c.nr_queued, c.offered) = (c.nr_queued + 1, true);
        s.offers |= bit(cpu);
        s.sum |= bit(self.word_of(cpu));
    }

    /// What follows by itself, sooner or later.
    pub fn steps(&self, s: &State, mut then: impl FnMut(Event, State)) {
        for me in 0..ACTORS as u8 {
            let awake = s.actors[usize::from(me)].pc != Pc::Asleep;
            if let Some(next) = awake.then(|| self.step(s, me)).flatten() {
                then(Event::Step(me), next);
            }
        }
        for cpu in 0..self.nr_cpus() {
            if let Some(next) = self.kicked(s, cpu, true) {
                then(Event::SelfKick(cpu), next);
            }
            if let Some(next) = self.kicked(s, cpu, false) {
                then(Event::IdleKick(cpu), next);
            }
        }
    }

    /// What may happen or not.
    pub fn events(&self, s: &State, mut then: impl FnMut(Event, State)) {
        for me in WAKERS as u8..ACTORS as u8 {
            let asleep = s.actors[usize::from(me)].pc == Pc::Asleep;
            if let Some(next) = asleep.then(|| self.step(s, me)).flatten() {
                then(Event::Step(me), next);
            }
        }
        for cpu in 0..self.nr_cpus() {
            if let Some(next) = self.slept(s, cpu) {
                then(Event::Sleep(cpu), next);
            }
            if let Some(next) = self.ticks.then(|| self.ticked(s, cpu)).flatten() {
                then(Event::Tick(cpu), next);
            }
        }
    }

    fn run(&self, s: &State, me: usize) -> Run<'_> {
        Run {
            model: self,
            s: *s,
            me,
        }
    }

    fn step(&self, s: &State, me: u8) -> Option<State> {
        let mut run = self.run(s, me.into());
        run.step().then_some(run.s)
    }

    /// A kick arrives: an idle CPU goes through dispatch. One that arrives while the CPU has
    /// unlocked its run queue to move a task is lost, since `__schedule()` clears need_resched
    /// when it has picked. A CPU takes its own kick, an interrupt, only after it has switched.
    fn kicked(&self, s: &State, cpu: u8, by_itself: bool) -> Option<State> {
        let mut next = *s;
        let c = &mut next.cpus[usize::from(cpu)];
        let kicks = if by_itself {
            &mut next.self_kicks
        } else {
            &mut next.idle_kicks
        };
        if *kicks & bit(cpu) == 0 || c.locked || (by_itself && c.in_balance) {
            return None;
        }
        *kicks &= !bit(cpu);
        c.need_resched |= c.idles();
        Some(next)
    }

    /// The task that runs on `cpu` goes to sleep for good, and the CPU asks for the next one.
    fn slept(&self, s: &State, cpu: u8) -> Option<State> {
        let mut run = self.run(s, cpu.into());
        let runs = run.now().pc == Pc::Runs && !run.cpu(cpu).locked;
        let task = run.cpu(cpu).curr.filter(|_| runs)?;
        if self.hogs & bit(task) != 0 {
            return None;
        }
        *run.task(task) = Task {
            place: Place::Gone,
            ..Task::default()
        };
        run.schedule();
        Some(run.s)
    }

    /// A tick of `cpu` begins.
    pub fn ticked(&self, s: &State, cpu: u8) -> Option<State> {
        let mut run = self.run(s, TICK);
        let c = *run.cpu(cpu);
        let takes = s.actors[usize::from(cpu)].pc == Pc::Runs && !c.idles() && !c.locked;
        let free = takes && run.now().pc == Pc::Done;
        (free && run.rescue_waiting(cpu)).then_some(run.s)
    }
}

/// An actor at work on a copy of a state.
pub struct Run<'a> {
    pub model: &'a Model,
    pub s: State,
    pub me: usize,
}

impl Run<'_> {
    pub fn actor(&mut self) -> &mut Actor {
        &mut self.s.actors[self.me]
    }

    /// What the actor is about to do.
    pub fn now(&self) -> Actor {
        self.s.actors[self.me]
    }

    pub fn goes_to(&mut self, pc: Pc) {
        self.actor().pc = pc;
    }

    /// The number of this CPU.
    pub fn me(&self) -> u8 {
        self.me as u8
    }

    pub fn is_cpu(&self) -> bool {
        self.me < CPUS
    }

    /// The run queue of this CPU.
    pub fn own(&mut self) -> &mut Cpu {
        &mut self.s.cpus[self.me]
    }

    pub fn cpu(&mut self, cpu: u8) -> &mut Cpu {
        &mut self.s.cpus[usize::from(cpu)]
    }

    pub fn task(&mut self, task: u8) -> &mut Task {
        &mut self.s.tasks[usize::from(task)]
    }

    /// The rq lock that the next step takes.
    fn lock(&self) -> Option<u8> {
        let Actor { pc, cpu, to, .. } = self.now();
        match pc {
            Pc::Lock | Pc::ConsumeMove | Pc::WalkMove => Some(cpu),
            Pc::Land => Some(to),
            Pc::ConsumeLand | Pc::WalkLand | Pc::Runs => Some(self.me()),
            _ => None,
        }
    }

    /// One step. False if there is none, or none before somebody unlocks a run queue.
    fn step(&mut self) -> bool {
        if self.lock().is_some_and(|cpu| self.cpu(cpu).locked) {
            return false;
        }
        let pc = self.now().pc;
        match pc {
            Pc::Asleep => self.begin(),
            Pc::Runs => self.reschedule(),
            _ => pc.act().map(|act| act(self)).is_some(),
        }
    }
}

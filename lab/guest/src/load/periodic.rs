//! Tasks that timers wake at set times: sleepers, frames, chains as of audio, and real-time hogs.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use heddle_guest::cpulist;
use nix::unistd::pipe;
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::random::Random;
use crate::{clock, team, work};

/// Instructions between two looks at the clock.
const ITERATION: u64 = 500;

/// Tasks that a timer wakes at set times, and that compute for a while each time
///
/// Reports how late they run, how late of those that had gone to sleep, and how many activations end after
/// their deadline. An activation that comes while the one before still computes begins right after it. Run by a step of policy `fifo`, the tasks are real-time
/// hogs
#[derive(Args)]
pub struct Options {
    /// How many tasks, or chains of tasks
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    tasks: u32,
    /// Tasks of a chain: the timer wakes the first, each wakes the next through a pipe when it has computed
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    stages: u32,
    /// Time from one activation to the next, us
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    period_us: u64,
    /// Each activation comes up to so much later by the seed, us
    #[arg(long, default_value_t = 0)]
    jitter_us: u64,
    /// Activate so long after each multiple of the period of CLOCK_MONOTONIC, us [default: begin at once]
    #[arg(long)]
    phase_us: Option<u64>,
    /// Each further task or chain comes so much later, us
    #[arg(long, default_value_t = 0)]
    stagger_us: u64,
    /// Work of one activation of each task, instructions
    #[arg(long, required_unless_present = "run_us", value_parser = value_parser!(u64).range(work::MINIMUM..))]
    work_insns: Option<u64>,
    /// Compute until so long after the start of each activation instead, us
    #[arg(long, conflicts_with = "work_insns", value_parser = value_parser!(u64).range(1..))]
    run_us: Option<u64>,
    /// Time from the timer to the end of the last task's work that is in time, us [default: the period]
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    deadline_us: Option<u64>,
    /// CPUs that the tasks may use, such as 0-3,8 [default: all]
    #[arg(long)]
    cpus: Option<String>,
    /// Give each task one of the CPUs to itself, dealt out in turn
    #[arg(long, requires = "cpus")]
    pin: bool,
    /// Compute on this CPU, and sleep free to wake up on any of --cpus
    #[arg(long, requires = "cpus", conflicts_with = "pin")]
    home: Option<usize>,
    /// Decides the jitter
    #[arg(long, env = "HEDDLE_SEED", default_value_t = 1)]
    seed: u64,
    /// Time before the measurement, ms: activations due within it do not count
    #[arg(long, default_value_t = 0)]
    warm_up_ms: u64,
    /// Length of the measurement, ms of CLOCK_MONOTONIC
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    for_ms: u64,
}

/// A task's ends of the pipes of its chain.
struct Ends {
    from: Option<File>,
    to: Option<File>,
}

/// What one task measured.
#[derive(Default)]
struct Measured {
    /// From the timer to the start of the first task.
    late: Samples,
    /// The same, without the activations that came while the one before still computed.
    wakeup: Samples,
    /// From the timer to the end of the last task's work.
    done: Samples,
    missed: u64,
}

impl Measured {
    fn with_room(room: usize) -> Self {
        let samples = || Samples::with_room(room);
        Self { late: samples(), wakeup: samples(), done: samples(), missed: 0 }
    }

    /// Notes a start, before which the task slept or still computed.
    fn start(&mut self, late_ns: i64, slept: bool) {
        self.late.add(late_ns);
        if slept {
            self.wakeup.add(late_ns);
        }
    }
}

/// Runs the tasks.
///
/// # Errors
/// A bad CPU list, or too few file descriptors.
pub fn run(options: &Options) -> Result<Value> {
    let cpus = options.cpus.as_deref().map(cpulist::parse).transpose()?;
    let stages = options.stages as usize;
    let mut ends = Vec::new();
    for _ in 0..options.tasks {
        ends.extend(chain(stages)?.into_iter().map(Mutex::new));
    }
    let begin_ns = options.begin(clock::now());
    let prepare = |index: usize| {
        if let Some(cpus) = &cpus {
            let own = [cpus[index % cpus.len()]];
            cpulist::pin(if options.pin { &own } else { cpus })?;
        }
        team::sharpen_timers()
    };
    let measured = team::run(ends.len(), prepare, |index| {
        let mut ends = ends[index].lock().expect("one thread each");
        let first_ns = begin_ns + (index / stages) as u64 * options.stagger_us * 1000;
        let counted_ns = first_ns + options.warm_up_ms * 1_000_000;
        let task = Task { options, cpus: cpus.as_deref().unwrap_or_default(), counted_ns };
        if ends.from.is_some() { task.follow(&mut ends) } else { task.lead(&mut ends, first_ns, index) }
    })?;
    Ok(report(measured))
}

/// Makes the ends of a chain's pipes.
fn chain(stages: usize) -> Result<Vec<Ends>> {
    let mut from = None;
    let mut tasks = Vec::new();
    let file = |end: OwnedFd| Some(File::from(end));
    for _ in 1..stages {
        let (next, to) = pipe().context("pipe")?;
        tasks.push(Ends { from, to: file(to) });
        from = file(next);
    }
    tasks.push(Ends { from, to: None });
    Ok(tasks)
}

impl Options {
    /// When the first activation is due.
    fn begin(&self, now_ns: u64) -> u64 {
        let phase = |phase_us| now_ns.next_multiple_of(self.period_us * 1000) + phase_us * 1000;
        self.phase_us.map_or(now_ns, phase)
    }

    /// Whether what was due is done in time.
    fn in_time(&self, due_ns: u64, now_ns: u64) -> bool {
        now_ns <= due_ns + self.deadline_us.unwrap_or(self.period_us) * 1000
    }

    fn compute(&self) {
        match (self.work_insns, self.run_us) {
            (Some(insns), _) => work::execute(insns),
            (None, run_us) => {
                let end = clock::now() + run_us.unwrap_or(0) * 1000;
                while clock::now() < end {
                    work::execute(ITERATION);
                }
            }
        }
    }
}

struct Task<'a> {
    options: &'a Options,
    cpus: &'a [usize],
    /// From when on activations that are due count.
    counted_ns: u64,
}

impl Task<'_> {
    /// The first of a chain: the timer wakes it.
    fn lead(&self, ends: &mut Ends, first_ns: u64, stream: usize) -> Result<Measured> {
        let mut random = Random::new(self.options.seed, stream);
        let period_ns = self.options.period_us * 1000;
        let for_ns = (self.options.warm_up_ms + self.options.for_ms) * 1_000_000;
        let room = 1 + (for_ns / period_ns) as usize;
        let mut measured = Measured::with_room(room);
        for at_ns in (first_ns..first_ns + for_ns).step_by(period_ns as usize) {
            let due_ns = at_ns + random.below(self.options.jitter_us * 1000);
            let sleeps = clock::now() < due_ns;
            clock::sleep_until(due_ns);
            if due_ns >= self.counted_ns {
                measured.start(clock::between(due_ns, clock::now()), sleeps);
            }
            self.activate(ends, due_ns, &mut measured)?;
        }
        ends.to = None; // the next one reads the end
        Ok(measured)
    }

    /// Any other one: the one before wakes it.
    fn follow(&self, ends: &mut Ends) -> Result<Measured> {
        let mut measured = Measured::default();
        let mut due = [0; size_of::<u64>()];
        loop {
            let from = ends.from.as_mut().expect("it follows");
            if from.read(&mut due).context("read")? == 0 {
                ends.to = None;
                return Ok(measured);
            }
            self.activate(ends, u64::from_ne_bytes(due), &mut measured)?;
        }
    }

    /// Computes, then wakes the next one or notes the end.
    fn activate(&self, ends: &mut Ends, due_ns: u64, measured: &mut Measured) -> Result<()> {
        if let Some(home) = self.options.home {
            cpulist::pin(&[home])?;
        }
        self.options.compute();
        if self.options.home.is_some() {
            cpulist::pin(self.cpus)?;
        }
        if let Some(to) = &mut ends.to {
            return to.write_all(&due_ns.to_ne_bytes()).context("write");
        }
        if due_ns >= self.counted_ns {
            let now = clock::now();
            measured.done.add(clock::between(due_ns, now));
            measured.missed += u64::from(!self.options.in_time(due_ns, now));
        }
        Ok(())
    }
}

fn report(tasks: Vec<Measured>) -> Value {
    let mut total = Measured::default();
    for task in tasks {
        total.late.append(task.late);
        total.wakeup.append(task.wakeup);
        total.done.append(task.done);
        total.missed += task.missed;
    }
    json!({
        "late_ns": total.late.summary(),
        "wakeup_ns": total.wakeup.summary(),
        "done_ns": total.done.summary(),
        "missed": total.missed,
    })
}

#[cfg(test)]
mod tests {
    use super::{Options, chain, run};
    use clap::{Args, Command, FromArgMatches};

    fn options(arguments: &[&str]) -> Options {
        let fixed = ["periodic", "--for-ms", "1", "--period-us", "10", "--work-insns", "100"];
        let matches = Options::augment_args(Command::new("periodic"))
            .try_get_matches_from(fixed.iter().chain(arguments))
            .unwrap();
        Options::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn a_phase_is_counted_from_a_multiple_of_the_period() {
        assert_eq!(options(&["--phase-us", "3"]).begin(10_001), 23_000);
        assert_eq!(options(&["--phase-us", "3"]).begin(10_000), 13_000);
        assert_eq!(options(&[]).begin(10_001), 10_001);
    }

    #[test]
    fn the_deadline_is_the_period_unless_stated() {
        assert!(options(&[]).in_time(5_000, 15_000));
        assert!(!options(&[]).in_time(5_000, 15_001));
        assert!(options(&["--deadline-us", "30"]).in_time(5_000, 35_000));
    }

    #[test]
    fn activations_of_the_warm_up_do_not_count() {
        let timing = ["--period-us=1000", "--warm-up-ms=5", "--for-ms=10", "--stages=2"];
        let arguments = ["periodic", "--work-insns", "100"];
        let matches = Options::augment_args(Command::new("periodic"))
            .try_get_matches_from(arguments.iter().chain(&timing))
            .unwrap();
        let report = run(&Options::from_arg_matches(&matches).unwrap()).unwrap();
        assert_eq!((&report["late_ns"]["count"], &report["done_ns"]["count"]), (&10.into(), &10.into()));
    }

    #[test]
    fn a_chain_has_a_pipe_between_any_two_of_its_tasks() {
        let ends: Vec<_> =
            chain(3).unwrap().iter().map(|ends| (ends.from.is_some(), ends.to.is_some())).collect();
        assert_eq!(ends, [(false, true), (true, true), (true, false)]);
        assert!(chain(1).unwrap()[0].from.is_none());
    }
}

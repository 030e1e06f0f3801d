//! CPU hogs: how much each gets of which CPU.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum, value_parser};
use heddle_guest::cpulist;
use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use serde_json::{Value, json};

use crate::random::Random;
use crate::{clock, team, work};

const MS: u64 = 1_000_000;

/// Instructions between two looks at the clock.
const ITERATION: u64 = 10_000;

/// Spin on the CPU for a while, and report each thread's CPU time, where it ran and its longest gap
#[derive(Args)]
pub struct Options {
    /// How many threads
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    threads: u32,
    /// Nice levels; thread i takes the i-th, beginning again after the last
    #[arg(long, value_delimiter = ',', default_value = "0", allow_hyphen_values = true,
          value_parser = value_parser!(i32).range(-20..=19))]
    nice: Vec<i32>,
    /// Scheduling policies, dealt out likewise
    #[arg(long, value_delimiter = ',', default_value = "other")]
    policy: Vec<Policy>,
    /// CPUs that the threads may use, such as 0-3,8 [default: all]
    #[arg(long)]
    cpus: Option<String>,
    /// Give each thread one of the CPUs to itself, dealt out likewise
    #[arg(long, requires = "cpus")]
    pin: bool,
    /// Compute for so long, sleep for --sleep-ms, and so on; each thread begins at a time of its own within
    /// the first such turn, ms of CLOCK_MONOTONIC [default: never sleep]
    #[arg(long, requires = "sleep_ms", value_parser = value_parser!(u64).range(1..))]
    run_ms: Option<u64>,
    /// How long to sleep in each turn, ms
    #[arg(long, requires = "run_ms", value_parser = value_parser!(u64).range(1..))]
    sleep_ms: Option<u64>,
    /// Decides when threads that take turns begin
    #[arg(long, env = "HEDDLE_SEED", default_value_t = 1)]
    seed: u64,
    /// Time before the measurement, ms
    #[arg(long, default_value_t = 0)]
    warm_up_ms: u64,
    /// Length of the measurement, ms of CLOCK_MONOTONIC
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    for_ms: u64,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Policy {
    Other,
    Batch,
    Idle,
}

#[derive(Serialize)]
struct Hog {
    nice: i32,
    policy: Policy,
    /// From the common start to its first run; every turn of its own length it runs again.
    first_ns: u64,
    /// CPU time within the measurement.
    cpu_ns: u64,
    /// Turns of 10,000 instructions.
    iterations: u64,
    /// Switches away from it while it wanted to run on.
    preempted: i64,
    /// The CPUs it was seen on.
    cpus: BTreeSet<u32>,
    /// The longest time between two iterations of a run, or from its begin to its first.
    longest_gap_ns: u64,
    /// From the begin of the measurement to that gap.
    longest_gap_at_ns: u64,
}

/// Runs the hogs.
///
/// # Errors
/// A bad CPU list, a nice level or policy that the user may not have.
pub fn run(options: &Options) -> Result<Value> {
    let cpus = options.cpus.as_deref().map(cpulist::parse).transpose()?;
    let nice = |index: usize| options.nice[index % options.nice.len()];
    let policy = |index: usize| options.policy[index % options.policy.len()];
    let prepare = |index: usize| {
        if let Some(cpus) = &cpus {
            let own = [cpus[index % cpus.len()]];
            cpulist::pin(if options.pin { &own } else { cpus })?;
        }
        team::sharpen_timers()?;
        set_policy(policy(index), nice(index))
    };
    let turns = Turns::new(options);
    let start = OnceLock::new(); // of the first that runs: one that waits for its turn does not end later
    let hogs = team::run(options.threads as usize, prepare, |index| {
        let start = *start.get_or_init(clock::now);
        let first_ns = Random::new(options.seed, index).below(turns.spread_ns);
        let begin = start + options.warm_up_ms * MS;
        turns.runs(start, first_ns, start..begin).for_each(|run| Spun::default().spin(run));
        let (before, cpu_before) = (preemptions()?, clock::thread_cpu_time());
        let mut spun = Spun::default();
        turns.runs(start, first_ns, begin..u64::MAX).for_each(|run| spun.spin(run));
        Ok(Hog {
            nice: nice(index),
            policy: policy(index),
            first_ns,
            cpu_ns: clock::thread_cpu_time() - cpu_before,
            iterations: spun.iterations,
            preempted: preemptions()? - before,
            cpus: spun.cpus,
            longest_gap_ns: spun.gap.end - spun.gap.start,
            longest_gap_at_ns: spun.gap.start.saturating_sub(begin),
        })
    })?;
    Ok(json!({"length_ns": options.for_ms * MS, "threads": hogs}))
}

/// When hogs run.
struct Turns {
    run_ns: u64,
    sleep_ns: u64,
    /// Time over which the first runs are spread.
    spread_ns: u64,
    /// From the common start to the common end.
    length_ns: u64,
}

impl Turns {
    fn new(options: &Options) -> Self {
        let length_ns = (options.warm_up_ms + options.for_ms) * MS;
        match (options.run_ms, options.sleep_ms) {
            (Some(run), Some(sleep)) => {
                Self { run_ns: run * MS, sleep_ns: sleep * MS, spread_ns: (run + sleep) * MS, length_ns }
            }
            _ => Self { run_ns: length_ns, sleep_ns: 0, spread_ns: 0, length_ns },
        }
    }

    /// What of the runs of a hog, cut off at the common end, is within a time.
    fn runs(&self, start: u64, first_ns: u64, within: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let end = start + self.length_ns;
        let starts = (start + first_ns..end).step_by((self.run_ns + self.sleep_ns) as usize);
        let runs = starts.map(move |at| at.max(within.start)..end.min(at + self.run_ns).min(within.end));
        runs.filter(|run| !run.is_empty())
    }
}

/// Returns how often the calling thread lost its CPU while it wanted to run on.
fn preemptions() -> Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_THREAD).context("getrusage")?.involuntary_context_switches())
}

#[derive(Default)]
struct Spun {
    iterations: u64,
    cpus: BTreeSet<u32>,
    /// The longest, when it began and ended.
    gap: Range<u64>,
}

impl Spun {
    /// Sleeps until a run begins, and computes until it ends.
    fn spin(&mut self, run: Range<u64>) {
        clock::sleep_until(run.start);
        let mut last = u32::MAX;
        let mut before = run.start;
        loop {
            let now = clock::now();
            if now.saturating_sub(before) > self.gap.end - self.gap.start {
                self.gap = before..now;
            }
            if now >= run.end {
                break;
            }
            before = now;
            work::execute(ITERATION);
            self.iterations += 1;
            // SAFETY: no arguments; the C library reads the CPU from its rseq area.
            let cpu = unsafe { libc::sched_getcpu() }.cast_unsigned();
            if cpu != last {
                self.cpus.insert(cpu);
                last = cpu;
            }
        }
    }
}

fn set_policy(policy: Policy, nice: i32) -> Result<()> {
    let number = match policy {
        Policy::Other => libc::SCHED_OTHER,
        Policy::Batch => libc::SCHED_BATCH,
        Policy::Idle => libc::SCHED_IDLE,
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: plain system calls; 0 is the calling thread.
    unsafe {
        Errno::result(libc::sched_setscheduler(0, number, &raw const parameters)).context("policy")?;
        Errno::result(libc::setpriority(libc::PRIO_PROCESS, 0, nice))
            .with_context(|| format!("nice {nice}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Turns;
    use std::ops::Range;

    const ALWAYS: Range<u64> = 0..u64::MAX;

    #[test]
    fn turns_follow_each_other_to_the_common_end() {
        let turns = Turns { run_ns: 3, sleep_ns: 4, spread_ns: 7, length_ns: 16 };
        let runs: Vec<_> = turns.runs(100, 5, ALWAYS).collect();
        assert_eq!(runs, [105..108, 112..115]);
        assert_eq!(turns.runs(100, 0, ALWAYS).last(), Some(114..116));
    }

    #[test]
    fn who_never_sleeps_runs_from_start_to_end() {
        let turns = Turns { run_ns: 16, sleep_ns: 0, spread_ns: 0, length_ns: 16 };
        let mut runs = turns.runs(100, 0, ALWAYS);
        assert_eq!((runs.next(), runs.next()), (Some(100..116), None));
    }

    #[test]
    fn a_run_is_cut_where_the_warm_up_ends() {
        let turns = Turns { run_ns: 3, sleep_ns: 4, spread_ns: 7, length_ns: 16 };
        for (begin, before, after) in [(106, 105..106, 106..108), (108, 105..108, 112..115)] {
            assert_eq!(turns.runs(100, 5, 100..begin).collect::<Vec<_>>(), [before]);
            assert_eq!(turns.runs(100, 5, begin..u64::MAX).next(), Some(after));
        }
        assert_eq!(turns.runs(100, 5, 100..100).next(), None);
    }
}

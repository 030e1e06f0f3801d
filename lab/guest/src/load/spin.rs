//! CPU hogs: who gets how much of which CPU.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum, value_parser};
use heddle_guest::cpulist;
use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{clock, team, work};

/// Instructions between two looks at the clock.
const ITERATION: u64 = 10_000;

/// Spin on the CPU for a while, and report each thread's CPU time and where it ran
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
    /// How long, ms of CLOCK_MONOTONIC
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
    /// CPU time between the common start and the common end.
    cpu_ns: u64,
    /// Turns of 10,000 instructions.
    iterations: u64,
    /// Switches away from it while it wanted to run on.
    preempted: i64,
    /// The CPUs it was seen on.
    cpus: BTreeSet<u32>,
}

/// Runs the hogs.
///
/// # Errors
/// A bad CPU list, a nice level or policy that the user may not have.
pub fn run(options: &Options) -> Result<Value> {
    let cpus = options.cpus.as_deref().map(cpulist::parse).transpose()?;
    let length_ns = options.for_ms * 1_000_000;
    let nice = |index: usize| options.nice[index % options.nice.len()];
    let policy = |index: usize| options.policy[index % options.policy.len()];
    let prepare = |index: usize| {
        if let Some(cpus) = &cpus {
            let own = [cpus[index % cpus.len()]];
            cpulist::pin(if options.pin { &own } else { cpus })?;
        }
        set_policy(policy(index), nice(index))
    };
    let start = OnceLock::new(); // of the first that runs: who waits for its turn does not end later
    let hogs = team::run(options.threads as usize, prepare, |index| {
        let end = start.get_or_init(clock::now) + length_ns;
        let before = preemptions()?;
        let (cpu_ns, iterations, cpus) = spin(end);
        let preempted = preemptions()? - before;
        Ok(Hog { nice: nice(index), policy: policy(index), cpu_ns, iterations, preempted, cpus })
    })?;
    Ok(json!({"length_ns": length_ns, "threads": hogs}))
}

/// Returns how often the calling thread lost its CPU while it wanted to run on.
fn preemptions() -> Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_THREAD).context("getrusage")?.involuntary_context_switches())
}

fn spin(end: u64) -> (u64, u64, BTreeSet<u32>) {
    let before = clock::thread_cpu_time();
    let mut iterations = 0;
    let mut cpus = BTreeSet::new();
    let mut last = u32::MAX;
    while clock::now() < end {
        work::execute(ITERATION);
        iterations += 1;
        // SAFETY: no arguments; the C library reads the CPU from its rseq area.
        let cpu = unsafe { libc::sched_getcpu() }.cast_unsigned();
        if cpu != last {
            cpus.insert(cpu);
            last = cpu;
        }
    }
    (clock::thread_cpu_time() - before, iterations, cpus)
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

//! The latency of wakeups to each CPU: is any of them favoured?

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use heddle_guest::cpulist;
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::random::Random;
use crate::{clock, futex, team, work};

/// Instructions between two looks of a hog whether it is to end.
const HOG_TURN: u64 = 10_000;

/// One thread wakes sleepers that are pinned to one CPU each, in turn, and reports the latency of each CPU
#[derive(Args)]
pub struct Options {
    /// Wakeups of each CPU
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    count: u32,
    /// Time between two wakeups, us; each gets up to as much again by the seed, so that no wakeup keeps
    /// step with a clock of the machine
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    gap_us: u64,
    /// The waker's CPU
    #[arg(long, default_value_t = 0)]
    from: usize,
    /// CPUs to wake [default: all it may run on but the waker's]
    #[arg(long)]
    cpus: Option<String>,
    /// Slice that the sleepers ask for, us [default: the scheduler's own]
    #[arg(long, value_parser = value_parser!(u64).range(100..=100_000))]
    slice_us: Option<u64>,
    /// Put a thread that never sleeps on each of those CPUs
    #[arg(long)]
    hogs: bool,
    /// Decides the gaps
    #[arg(long, env = "HEDDLE_SEED", default_value_t = 1)]
    seed: u64,
}

/// What a thread does, and for which of the CPUs to wake.
enum Role {
    Waker,
    Sleeper(usize),
    Hog(usize),
}

#[repr(align(128))]
#[derive(Default)]
struct Sleeper {
    /// How often it was woken.
    wakeups: AtomicU32,
    stamp_ns: AtomicU64,
    /// It is about to sleep, the CPU is its own: the waker may go on.
    ready: AtomicBool,
}

/// Runs the waker and its sleepers.
///
/// # Errors
/// A bad CPU list, or a CPU that is not online.
pub fn run(options: &Options) -> Result<Value> {
    let cpus = match &options.cpus {
        Some(list) => cpulist::parse(list)?,
        None => cpulist::allowed()?.into_iter().filter(|&cpu| cpu != options.from).collect(),
    };
    if cpus.is_empty() {
        bail!("there is no CPU to wake but the waker's own");
    }
    let sleepers: Vec<Sleeper> = cpus.iter().map(|_| Sleeper::default()).collect();
    let done = AtomicBool::new(false);
    let role = |index: usize| match index.checked_sub(1) {
        None => Role::Waker,
        Some(place) if place < cpus.len() => Role::Sleeper(place),
        Some(place) => Role::Hog(place - cpus.len()),
    };
    let prepare = |index: usize| {
        team::sharpen_timers()?;
        let cpu = match role(index) {
            Role::Waker => options.from,
            Role::Sleeper(place) => {
                options.slice_us.map_or(Ok(()), |us| team::ask_for_slice(us * 1000))?;
                cpus[place]
            }
            Role::Hog(place) => cpus[place],
        };
        cpulist::pin(&[cpu])
    };
    let threads = 1 + cpus.len() * if options.hogs { 2 } else { 1 };
    let samples = team::run(threads, prepare, |index| {
        match role(index) {
            Role::Waker => {
                wake(options, &sleepers);
                done.store(true, Ordering::Relaxed);
            }
            Role::Sleeper(place) => return Ok(sleep(&sleepers[place], options.count)),
            Role::Hog(_) => {
                while !done.load(Ordering::Relaxed) {
                    work::execute(HOG_TURN);
                }
            }
        }
        Ok(Samples::default())
    })?;
    let per_cpu = cpus.iter().zip(samples.into_iter().skip(1)).map(|(cpu, samples)| {
        let summary = samples.summary().context("every sleeper was woken")?;
        Ok(json!({"cpu": cpu, "wakeup_latency_ns": summary}))
    });
    Ok(json!({"from": options.from, "cpus": per_cpu.collect::<Result<Vec<_>>>()?}))
}

fn wake(options: &Options, sleepers: &[Sleeper]) {
    let mut random = Random::new(options.seed, 0);
    let gap_ns = options.gap_us * 1000;
    for _ in 0..options.count {
        for sleeper in sleepers {
            clock::sleep_until(clock::now() + gap_ns + random.below(gap_ns));
            while !sleeper.ready.swap(false, Ordering::Acquire) {
                thread::yield_now();
            }
            sleeper.stamp_ns.store(clock::now(), Ordering::Relaxed);
            sleeper.wakeups.fetch_add(1, Ordering::Release);
            futex::wake(&sleeper.wakeups);
        }
    }
}

fn sleep(sleeper: &Sleeper, count: u32) -> Samples {
    let mut samples = Samples::with_room(count as usize);
    for seen in 0..count {
        sleeper.ready.store(true, Ordering::Release);
        while sleeper.wakeups.load(Ordering::Acquire) == seen {
            futex::wait(&sleeper.wakeups, seen);
        }
        let woken_ns = clock::now();
        samples.add(clock::between(sleeper.stamp_ns.load(Ordering::Relaxed), woken_ns));
    }
    samples
}

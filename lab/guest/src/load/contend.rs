//! Threads that wait for one another without sleeping.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use serde_json::{Value, json};

use crate::{clock, team, work};

/// What the threads wait for.
#[derive(Clone, Copy, ValueEnum)]
enum Until {
    /// Until all have computed, by `sched_yield`
    Barrier,
    /// Until a lock is free, which its holder has while it computes, by spinning
    Lock,
}

/// Threads that compute and wait for one another without sleeping, in turns
#[derive(Args)]
pub struct Options {
    /// What they wait for
    #[arg(value_enum)]
    until: Until,
    /// How many threads
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    threads: u32,
    /// Turns of each thread
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    count: u64,
    /// Instructions of a turn before the wait
    #[arg(long, value_parser = value_parser!(u64).range(work::MINIMUM..))]
    work_insns: u64,
    /// Instructions that the lock is held for
    #[arg(long, default_value_t = 2_000, value_parser = value_parser!(u64).range(work::MINIMUM..))]
    held_insns: u64,
}

/// Runs the threads.
///
/// # Errors
/// None in practice.
pub fn run(options: &Options) -> Result<Value> {
    let start = clock::now();
    match options.until {
        Until::Barrier => barrier(options)?,
        Until::Lock => lock(options)?,
    }
    let (elapsed_ns, turns) = (clock::now() - start, options.count * u64::from(options.threads));
    Ok(json!({
        "turns": turns,
        "elapsed_ns": elapsed_ns,
        "throughput": turns as f64 * 1e9 / elapsed_ns as f64,
    }))
}

fn barrier(options: &Options) -> Result<()> {
    let arrived = AtomicU64::new(0);
    team::run(
        options.threads as usize,
        |_| Ok(()),
        |_| {
            for turn in 1..=options.count {
                work::execute(options.work_insns);
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < turn * u64::from(options.threads) {
                    thread::yield_now();
                }
            }
            Ok(())
        },
    )?;
    Ok(())
}

fn lock(options: &Options) -> Result<()> {
    let taken = AtomicBool::new(false);
    team::run(
        options.threads as usize,
        |_| Ok(()),
        |_| {
            for _ in 0..options.count {
                work::execute(options.work_insns);
                while taken.load(Ordering::Relaxed) || taken.swap(true, Ordering::Acquire) {
                    hint::spin_loop();
                }
                work::execute(options.held_insns);
                taken.store(false, Ordering::Release);
            }
            Ok(())
        },
    )?;
    Ok(())
}

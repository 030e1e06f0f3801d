//! Threads that give the CPU away.

use std::thread;

use anyhow::Result;
use clap::{Args, value_parser};
use heddle_guest::cpulist;
use serde_json::{Value, json};

use crate::{clock, team};

/// Threads that call sched_yield over and over
#[derive(Args)]
pub struct Options {
    /// How many threads
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    threads: u32,
    /// Calls of each thread
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    count: u64,
    /// CPUs that the threads may use, such as 0-3,8 [default: all]
    #[arg(long)]
    cpus: Option<String>,
}

/// Runs the threads.
///
/// # Errors
/// A bad CPU list.
pub fn run(options: &Options) -> Result<Value> {
    let cpus = options.cpus.as_deref().map(cpulist::parse).transpose()?;
    let start = clock::now();
    let prepare = |_| cpus.as_deref().map_or(Ok(()), cpulist::pin);
    team::run(options.threads as usize, prepare, |_| {
        (0..options.count).for_each(|_| thread::yield_now());
        Ok(())
    })?;
    let (elapsed_ns, calls) = (clock::now() - start, options.count * u64::from(options.threads));
    Ok(json!({
        "calls": calls,
        "elapsed_ns": elapsed_ns,
        "throughput": calls as f64 * 1e9 / elapsed_ns as f64,
    }))
}

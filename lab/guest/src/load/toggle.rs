//! A file of a control group that is written over and over, as the user of a delegated group may do.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::{clock, team};

/// Write values to a file in turn at a rate, such as to a cgroup's cpu.weight
#[derive(Args)]
pub struct Options {
    /// The file
    #[arg(long)]
    file: PathBuf,
    /// What is written in turn
    #[arg(long, value_delimiter = ',', required = true)]
    values: Vec<String>,
    /// Writes a second
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u64).range(1..=1_000_000))]
    hz: u64,
    /// How long, ms of CLOCK_MONOTONIC
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    for_ms: u64,
}

/// Writes for as long as it is told to.
///
/// # Errors
/// The file does not take a value.
pub fn run(options: &Options) -> Result<Value> {
    team::sharpen_timers()?;
    let (start, period_ns) = (clock::now(), 1_000_000_000 / options.hz);
    let due = (start..start + options.for_ms * 1_000_000).step_by(period_ns as usize);
    let mut took = Samples::default();
    for (due_ns, value) in due.zip(options.values.iter().cycle()) {
        clock::sleep_until(due_ns);
        let before = clock::now();
        fs::write(&options.file, value)
            .with_context(|| format!("{} does not take '{value}'", options.file.display()))?;
        took.add(clock::between(before, clock::now()));
    }
    Ok(json!({"write_ns": took.summary()}))
}

//! heddle-replay: plays what the tasks of a recorded trace did (`heddle record`).
//!
//! Each task of the trace is a thread. It runs as long as the task ran, wakes the threads that the task woke where
//! in its run it woke them, and sleeps until the thread that ended the task's sleep does so, or until the time comes
//! that ended it. So what waited for another task waits for it here, however long that takes: a closed loop is
//! closed. Prints one object of JSON.

// The modules of heddle-load that it needs, and not all that is in them.
#[allow(dead_code)]
#[path = "../load/clock.rs"]
mod clock;
#[allow(dead_code)]
#[path = "../load/futex.rs"]
mod futex;
#[allow(dead_code)]
#[path = "../load/latency.rs"]
mod latency;
mod play;
mod script;
#[allow(dead_code)]
#[path = "../load/work.rs"]
mod work;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
#[command(version, about = "Plays what the tasks of a recorded trace did; prints one JSON object")]
struct Options {
    /// The script of `heddle record`
    script: PathBuf,
    /// How many times to play it side by side; of a fraction, tasks that need no other are left out
    #[arg(long, default_value_t = 1.0)]
    copies: f64,
    /// How many times slower than it was to play it: where the kernel takes longer than on the recorded machine
    #[arg(long, default_value_t = 1.0)]
    stretch: f64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(report) => println!("{report}"),
        Err(error) => {
            eprintln!("heddle-replay: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(options: &Options) -> Result<Value> {
    let name = options.script.display().to_string();
    let content = fs::read(&options.script).with_context(|| name.clone())?;
    let script = script::read(&content).context(name)?;
    play::run(&script.copied(options.copies).stretched(options.stretch))
}

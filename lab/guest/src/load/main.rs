//! heddle-load: loads of known size for schedulers.
//!
//! Work is stated in instructions, time in CLOCK_MONOTONIC, and all that is random comes from the seed, so
//! that a load means the same on any machine that the laboratory models. Each subcommand prints one object
//! of JSON.

mod adversary;
mod clock;
mod contend;
mod forks;
mod futex;
mod groups;
mod latency;
mod memcached;
mod periodic;
mod pingpong;
mod random;
mod replay;
mod schbench;
mod spin;
mod team;
mod toggle;
mod wake;
mod work;
mod yields;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use serde_json::Value;

#[derive(Parser)]
#[command(version, about = "Loads of known size for schedulers; prints one JSON object")]
struct Options {
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand)]
enum Load {
    Spin(spin::Options),
    Schbench(schbench::Options),
    Groups(groups::Options),
    Pingpong(pingpong::Options),
    Periodic(periodic::Options),
    Memcached(memcached::Options),
    Wake(wake::Options),
    Forks(forks::Options),
    Yield(yields::Options),
    Contend(contend::Options),
    Toggle(toggle::Options),
    Replay(replay::Options),
    Adversary(adversary::Options),
    /// Does nothing, successfully: what `forks --exec` executes
    #[command(hide = true)]
    Exit,
}

fn main() -> ExitCode {
    match run(&Options::parse().load) {
        Ok(Some(report)) => println!("{report}"),
        Ok(None) => {}
        Err(error) => {
            eprintln!("heddle-load: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(load: &Load) -> Result<Option<Value>> {
    let report = match load {
        Load::Spin(options) => spin::run(options)?,
        Load::Schbench(options) => schbench::run(options)?,
        Load::Groups(options) => groups::run(options)?,
        Load::Pingpong(options) => pingpong::run(options)?,
        Load::Periodic(options) => periodic::run(options)?,
        Load::Memcached(options) => memcached::run(options)?,
        Load::Wake(options) => wake::run(options)?,
        Load::Forks(options) => forks::run(options)?,
        Load::Yield(options) => yields::run(options)?,
        Load::Contend(options) => contend::run(options)?,
        Load::Toggle(options) => toggle::run(options)?,
        Load::Replay(options) => replay::run(options)?,
        Load::Adversary(options) => adversary::run(options)?,
        Load::Exit => return Ok(None),
    };
    Ok(Some(report))
}

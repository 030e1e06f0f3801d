// SPDX-License-Identifier: GPL-2.0-only

//! `scx_heddle`: load the scheduler, keep it attached, report on it.

mod bpf_skel;
mod monitor;
mod options;
mod preflight;
mod ranks;
mod scheduler;
mod stats;
mod topology;
mod verifier;

use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Parser;

use options::Options;
use scheduler::{Ended, Scheduler};
use topology::Topology;

const NAME: &str = "scx_heddle";

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{NAME}: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    init_log(options.verbose)?;
    let shutdown = shutdown_on_signal()?;

    if options.topology {
        print!("{}", Topology::read(&options.asym)?);
        return Ok(());
    }
    if let Some(interval) = options.monitor {
        return monitor::watch(interval, options.json, shutdown);
    }

    preflight::check()?;
    let printer = options.stats.map(|interval| {
        let (json, shutdown) = (options.json, shutdown.clone());
        std::thread::spawn(move || monitor::watch(interval, json, shutdown))
    });
    let result = schedule(options, &shutdown);
    shutdown.store(true, Ordering::Relaxed);
    if let Some(printer) = printer {
        printer.join().expect("the statistics printer panicked")?;
    }
    result
}

/// Schedule until a signal comes, the program fails, or the kernel ends it.
/// Both sides may ask for a restart: the kernel, for instance, when CPUs came or
/// went while the program was being loaded.
fn schedule(options: &Options, shutdown: &Arc<AtomicBool>) -> Result<()> {
    loop {
        let mut object = MaybeUninit::uninit();
        let ended = Scheduler::load(options, &mut object)?.run(shutdown)?;
        if ended == Ended::Done || shutdown.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

fn shutdown_on_signal() -> Result<Arc<AtomicBool>> {
    let shutdown = Arc::new(AtomicBool::new(false));
    let flag = shutdown.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .context("cannot handle signals")?;
    Ok(shutdown)
}

/// Log to stderr: warnings and what the user should know, with `-v` also
/// progress, with `-vv` libbpf's own messages.
fn init_log(verbose: u8) -> Result<()> {
    use simplelog::{ColorChoice, ConfigBuilder, LevelFilter, TermLogger, TerminalMode};

    let level = match verbose {
        0 => LevelFilter::Info,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    let config = ConfigBuilder::new()
        .set_time_level(LevelFilter::Off)
        .set_target_level(LevelFilter::Off)
        .set_thread_level(LevelFilter::Off)
        .set_location_level(LevelFilter::Off)
        .build();
    TermLogger::init(level, config, TerminalMode::Stderr, ColorChoice::Auto)
        .context("cannot set up logging")
}

// SPDX-License-Identifier: GPL-2.0-only

//! `scx_heddle`: load the scheduler, keep it attached, report on it.

mod bpf_skel;
mod cgroupfs;
mod config;
mod exit;
mod manual;
mod metrics;
mod monitor;
mod options;
mod output;
mod preflight;
mod privileges;
mod ranks;
mod remarks;
mod scheduler;
mod stats;
mod topology;
mod usage;
mod verifier;
mod view;

use std::io::{self, IsTerminal, Write};
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, RecvTimeoutError};

use options::Options;
use scheduler::{Ended, Scheduler};
use topology::Topology;

const NAME: &str = "scx_heddle";

/// How long the end of the program waits for a line that is being printed.
const LAST_LINE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match Options::read().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // eprintln!() panics where stderr is closed or full.
            let _ = writeln!(io::stderr(), "{NAME}: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    if let Some(shell) = options.completions {
        output::print(|out| manual::completions(shell, out))?;
    } else if options.man {
        output::print(manual::page)?;
    } else if options.help_stats {
        output::print(monitor::explain)?;
    } else if options.check {
        preflight::report()?;
    } else if options.topology {
        init_log(options.verbose)?;
        let topology = Topology::read(&options.asym)?;
        output::print(|out| write!(out, "{topology}"))?;
    } else if let Some(interval) = options.monitor {
        init_log(options.verbose)?;
        let shutdown = shutdown_on_signal()?;
        monitor::watch(interval, options.json, &shutdown)?;
    } else {
        init_log(options.verbose)?;
        load(options)?;
    }
    Ok(())
}

/// Load the scheduler and stay with it, printing and serving what it counts.
fn load(options: &Options) -> Result<()> {
    preflight::check()?;
    // Before there are other threads, which would keep theirs.
    privileges::drop_unneeded(options.verbose > 0)?;
    let shutdown = shutdown_on_signal()?;
    let scrapes = match options.metrics {
        Some(address) => metrics::serve(address)?,
        None => crossbeam_channel::never(),
    };
    let printer = options
        .stats
        .map(|interval| start_printer(interval, options.json, shutdown.clone()));
    let ended = schedule(options, &shutdown, &scrapes);
    shutdown.store(true, Ordering::Relaxed);
    let printed = printer.map_or(Ok(()), |(thread, printed)| end_printer(&thread, &printed));
    why_ended(ended, printed)
}

/// Print statistics in a thread of its own. What it came to is received when it has ended.
fn start_printer(
    interval: Duration,
    json: bool,
    shutdown: Arc<AtomicBool>,
) -> (Thread, Receiver<Result<()>>) {
    let (done, ended) = crossbeam_channel::bounded(1);
    let printer = thread::spawn(move || {
        // The answers come from this very process: late is better than counted anew.
        let printed = monitor::print(interval, json, None, &shutdown);
        // Nobody waits for it any more if its end takes too long.
        let _ = done.send(printed);
    });
    (printer.thread().clone(), ended)
}

/// What the printer came to, which has been told to end. If nobody reads its lines, it is left
/// behind: it holds up nobody.
fn end_printer(thread: &Thread, printed: &Receiver<Result<()>>) -> Result<()> {
    thread.unpark();
    match printed.recv_timeout(LAST_LINE) {
        Ok(printed) => printed,
        Err(RecvTimeoutError::Timeout) => Ok(()),
        Err(RecvTimeoutError::Disconnected) => bail!("the printer of statistics panicked"),
    }
}

/// Why the program ends: for the scheduler's reason, if it has one, whatever became of the lines.
fn why_ended(ended: Result<()>, printed: Result<()>) -> Result<()> {
    if let (Err(_), Err(error)) = (&ended, &printed) {
        log::warn!("statistics ended early: {error:#}");
    }
    ended.and(printed)
}

/// Schedule until a signal comes, the program fails, or the kernel ends it.
/// Both sides may ask for a restart: the kernel, for instance, when CPUs came or
/// went while the program was being loaded.
fn schedule(
    options: &Options,
    shutdown: &Arc<AtomicBool>,
    scrapes: &Receiver<metrics::Asked>,
) -> Result<()> {
    loop {
        let mut object = MaybeUninit::uninit();
        let ended = Scheduler::load(options, &mut object)?.run(shutdown, scrapes)?;
        if ended == Ended::Done || shutdown.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

/// A flag that a signal sets; then this thread is unparked, which may wait for its next line.
fn shutdown_on_signal() -> Result<Arc<AtomicBool>> {
    let shutdown = Arc::new(AtomicBool::new(false));
    let (flag, waiter) = (shutdown.clone(), thread::current());
    ctrlc::set_handler(move || {
        flag.store(true, Ordering::Relaxed);
        waiter.unpark();
    })
    .context("cannot handle signals")?;
    Ok(shutdown)
}

/// Log to stderr: warnings and what the user should know, with `-v` also
/// progress, with `-vv` libbpf's own messages. Colours are for terminals: a journal or a file
/// would keep their codes, and `Auto` does not look.
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
    let colours = if io::stderr().is_terminal() {
        ColorChoice::Auto
    } else {
        ColorChoice::Never
    };
    TermLogger::init(level, config, TerminalMode::Stderr, colours).context("cannot set up logging")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn the_reason_of_the_scheduler_comes_first() {
        let stall = || Err(anyhow!("stall"));
        let full = || Err(anyhow!("full"));
        let why = |ended, printed| why_ended(ended, printed).unwrap_err().to_string();
        assert_eq!(why(stall(), full()), "stall");
        assert_eq!(why(stall(), Ok(())), "stall");
        assert_eq!(why(Ok(()), full()), "full");
        assert!(why_ended(Ok(()), Ok(())).is_ok());
    }

    #[test]
    fn a_printer_that_is_stuck_or_gone_holds_up_nobody() {
        let (done, printer) = crossbeam_channel::bounded(1);
        assert!(end_printer(&thread::current(), &printer).is_ok());
        done.send(Err(anyhow!("full"))).unwrap();
        assert!(end_printer(&thread::current(), &printer).is_err());
        drop(done);
        assert!(end_printer(&thread::current(), &printer).is_err());
    }
}

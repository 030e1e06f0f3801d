//! Storms of short processes.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use serde_json::{Value, json};

use crate::{clock, team};

/// Threads that start processes which end at once, one after the other
#[derive(Args)]
pub struct Options {
    /// Processes that each thread starts
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    count: u64,
    /// How many threads
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    parallel: u32,
    /// Execute a program in each
    #[arg(long)]
    exec: bool,
}

/// Runs the storm.
///
/// # Errors
/// A process could not be started, or ended other than it should.
pub fn run(options: &Options) -> Result<Value> {
    let start = clock::now();
    let prepare = |_| Ok(());
    team::run(options.parallel as usize, prepare, |_| {
        (0..options.count).try_for_each(|_| if options.exec { execute() } else { fork_only() })
    })?;
    let (elapsed_ns, processes) = (clock::now() - start, options.count * u64::from(options.parallel));
    Ok(json!({
        "processes": processes,
        "elapsed_ns": elapsed_ns,
        "throughput": processes as f64 * 1e9 / elapsed_ns as f64,
    }))
}

fn execute() -> Result<()> {
    let status = Command::new("/proc/self/exe").arg("exit").stdin(Stdio::null()).status().context("exec")?;
    if !status.success() {
        bail!("a child ended with {status}");
    }
    Ok(())
}

fn fork_only() -> Result<()> {
    // SAFETY: the child does nothing but end.
    match unsafe { fork() }.context("fork")? {
        // SAFETY: as above.
        ForkResult::Child => unsafe { libc::_exit(0) },
        ForkResult::Parent { child } => match waitpid(child, None).context("wait")? {
            WaitStatus::Exited(_, 0) => Ok(()),
            status => bail!("a child ended with {status:?}"),
        },
    }
}

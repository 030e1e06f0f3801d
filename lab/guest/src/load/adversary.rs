//! A task that tries to get more of a CPU than its weight is worth.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, value_parser};
use heddle_guest::cpulist;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use serde_json::{Value, json};

use crate::{clock, team, work};

/// Instructions between two looks at the clock.
const ITERATION: u64 = 10_000;

/// How long before a tick it sleeps, and how long after, ns.
const MARGIN_NS: u64 = 100_000;

/// How long it computes between two tricks, ns.
const TURN_NS: u64 = 1_000_000;

/// Compute as much as possible by a trick
#[derive(Args)]
pub struct Options {
    /// What it does against others
    #[arg(long, value_enum)]
    trick: Trick,
    /// CPUs that it may use, such as 0-3,8
    #[arg(long)]
    cpus: String,
    /// Length of a tick of the kernel, us
    #[arg(long, default_value_t = 4000, value_parser = value_parser!(u64).range(1000..))]
    tick_us: u64,
    /// How long, ms of CLOCK_MONOTONIC
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    for_ms: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Trick {
    /// Sleep while the tick looks who runs
    Dodge,
    /// Give the CPU away every now and then
    Yield,
    /// Change its affinity every millisecond
    Hop,
    /// Go on in a child every millisecond, and end
    Fork,
}

/// Runs the adversary; reports how often it computed 10,000 instructions.
///
/// # Errors
/// A bad CPU list, or a process that cannot be started.
pub fn run(options: &Options) -> Result<Value> {
    let cpus = cpulist::parse(&options.cpus)?;
    cpulist::pin(&cpus)?;
    team::sharpen_timers()?;
    let end = clock::now() + options.for_ms * 1_000_000;
    let iterations = match options.trick {
        Trick::Dodge => dodge(end, options.tick_us * 1000),
        Trick::Yield => turns(end, |_| {
            thread::yield_now();
            Ok(())
        })?,
        Trick::Hop => turns(end, |turn| cpulist::pin(&[cpus[turn % cpus.len()]]))?,
        Trick::Fork => chain(end)?,
    };
    Ok(json!({"iterations": iterations}))
}

/// Computes until a moment; returns for how many iterations.
fn compute(until: u64) -> u64 {
    let mut iterations = 0;
    while clock::now() < until {
        work::execute(ITERATION);
        iterations += 1;
    }
    iterations
}

fn dodge(end: u64, tick_ns: u64) -> u64 {
    let mut iterations = 0;
    while clock::now() < end {
        let tick = (clock::now() + MARGIN_NS).next_multiple_of(tick_ns);
        iterations += compute(tick - MARGIN_NS);
        clock::sleep_until(tick + MARGIN_NS);
    }
    iterations
}

fn turns(end: u64, trick: impl Fn(usize) -> Result<()>) -> Result<u64> {
    let mut iterations = 0;
    let mut turn = 0;
    while clock::now() < end {
        iterations += compute(end.min(clock::now() + TURN_NS));
        trick(turn)?;
        turn += 1;
    }
    Ok(iterations)
}

/// Each process computes for a turn, starts the next and ends.
fn chain(end: u64) -> Result<u64> {
    // SAFETY: anonymous memory that all processes share, large and aligned enough.
    let iterations = unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            size_of::<AtomicU64>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if memory == libc::MAP_FAILED {
            bail!("no memory to share");
        }
        &*memory.cast::<AtomicU64>()
    };
    // SAFETY: the children use what they inherit, and end by _exit(). The first one is
    // waited for; the others, orphans, end before or at `end`.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Parent { child } => match waitpid(child, None).context("wait")? {
            WaitStatus::Exited(_, 0) => {}
            status => bail!("a child ended with {status:?}"),
        },
        ForkResult::Child => link(end, iterations),
    }
    clock::sleep_until(end);
    Ok(iterations.load(Ordering::Relaxed))
}

fn link(end: u64, iterations: &AtomicU64) -> ! {
    loop {
        iterations.fetch_add(compute(end.min(clock::now() + TURN_NS)), Ordering::Relaxed);
        if clock::now() >= end {
            break;
        }
        // SAFETY: as in chain().
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {}
            Ok(ForkResult::Parent { .. }) => break,
            // SAFETY: ends the process at once.
            Err(_) => unsafe { libc::_exit(1) },
        }
    }
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) }
}

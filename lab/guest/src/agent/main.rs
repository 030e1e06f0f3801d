//! heddle-agent: PID 1 of Heddle's guests.
//!
//! Sets the guest up, starts the scheduler, carries out the job that the host gives, reports over a virtio port,
//! powers off.
//! Whatever goes wrong becomes an error record, never a guest that hangs. One thread, no polling while
//! a step is measured, nothing written while a step is measured: the agent must not be what is measured.

mod clock;
mod counters;
mod init;
mod job;
mod kmsg;
mod payload;
mod port;
mod power;
mod process;
mod random;
mod record;
mod run;
mod scheduler;
mod shell;
mod snapshot;
mod start;
mod topology;
mod trace;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Error, Result};
use nix::unistd::{Pid, getpid};

use crate::job::Job;
use crate::payload::Part;
use crate::process::Children;
use crate::record::{Record, emit};
use crate::snapshot::Mark;
use crate::start::Start;

const JOB: &str = "/heddle/job.json";
/// Of the random numbers of all guests, until the job's own seed is known.
const BOOT_SEED: u64 = 0;
const RESULTS_PORT: &str = "heddle.results";

fn main() -> ExitCode {
    if getpid() != Pid::from_raw(1) {
        eprintln!(
            "heddle-agent: is the init of Heddle's guests and does nothing elsewhere: use `heddle run`"
        );
        return ExitCode::FAILURE;
    }
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string().replace('\n', " ");
        end(Some((None, Error::msg(format!("the agent failed: {text}")))))
    }));
    if let Err(error) = begin() {
        end(Some((None, error)));
    }
    match carry_out() {
        Ok(()) => end(None),
        Err((step, error)) => end(Some((step, error))),
    }
}

fn begin() -> Result<()> {
    kmsg::clear();
    init::set_up()?;
    record::open(port::open(RESULTS_PORT)?);
    let topology = topology::read()?;
    init::settle();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    emit(&Record::Ready { kernel: kernel.trim(), cpus: topology.len(), topology: &topology });
    Ok(())
}

fn carry_out() -> Result<(), (Option<String>, Error)> {
    let general = |error| (None, error);
    random::seed(BOOT_SEED).map_err(general)?;
    snapshot::pass(Mark::Booted);
    payload::unpack(Part::Start).map_err(general)?;
    let start = Start::read().map_err(general)?;
    let mut children = Children::new().map_err(general)?;
    let scheduler = start.scheduler(&mut children).map_err(general)?;
    snapshot::pass(Mark::Started);
    let job = read_job().map_err(general)?;
    random::reseed(job.seed).map_err(general)?;
    start.wait().map_err(general)?;
    run::run(&job, scheduler, &mut children)
        .map_err(|failure| (failure.step.map(str::to_owned), failure.error))
}

fn read_job() -> Result<Job> {
    payload::unpack(Part::Job)?;
    let text = fs::read_to_string(JOB).with_context(|| format!("cannot read {JOB}"))?;
    job::parse(&text)
}

/// Says how the job ended, and powers off.
fn end(failure: Option<(Option<String>, Error)>) -> ! {
    if let Some((step, error)) = failure {
        emit(&Record::Error {
            step: step.as_deref(),
            message: format!("{error:#}").replace('\n', " "),
            console: kmsg::tail(),
        });
    }
    emit(&Record::Done);
    power::off()
}

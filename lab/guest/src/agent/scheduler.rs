//! The scheduler under test: a program that attaches itself to sched_ext, whichever it is.

use std::fs;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::job::SchedulerCommand;
use crate::process::{Children, Exit, Process, Program, signal_group};
use crate::record::{Record, SchedulerRecord, SchedulerState, emit, last_line};
use crate::{clock, kmsg};

const STATE: &str = "/sys/kernel/sched_ext/state";
const OPS: &str = "/sys/kernel/sched_ext/root/ops";
const PERIOD_NS: u64 = 2_000_000;

/// How long a scheduler that lost its attachment may take to attach again (they do after CPU hotplug): as long as to
/// load, of which the verifier of older kernels takes two seconds alone.
const RESTART_NS: u64 = 10_000_000_000;

/// Starts a scheduler, waits until it is attached, and reports what became of it.
///
/// # Errors
/// It ended, or was not attached within `limit_ns` of virtual time and was killed.
pub fn start(command: &SchedulerCommand, limit_ns: u64, children: &mut Children) -> Result<Scheduler> {
    let (record, scheduler) = Scheduler::start(command, limit_ns, children);
    let why = match (record.exit, record.signal) {
        (Some(code), _) => format!("exited with {code} before it was attached"),
        (None, Some(signal)) => format!("was killed by signal {signal} before it was attached"),
        (None, None) => format!("was not attached within {limit_ns} ns of virtual time"),
    };
    let failure = format!("scheduler '{}' {why}{}", record.name, last_line(&record.stderr));
    emit(&Record::Scheduler(record));
    scheduler.context(failure)
}

/// A running, attached scheduler.
pub struct Scheduler {
    name: String,
    process: Process,
}

impl Scheduler {
    /// Starts a scheduler and waits until sched_ext is enabled with it.
    ///
    /// Returns the record to report, and the scheduler unless it failed: its program ended, or did not
    /// attach within `limit_ns` and was killed.
    fn start(
        command: &SchedulerCommand,
        limit_ns: u64,
        children: &mut Children,
    ) -> (SchedulerRecord, Option<Self>) {
        let scheduler = match Self::launch(command, children) {
            Ok(scheduler) => scheduler,
            Err(error) => {
                let failed = record(&command.name, SchedulerState::Failed, None);
                return (SchedulerRecord { stderr: format!("{error:#}"), ..failed }, None);
            }
        };
        let outcome = clock::poll(PERIOD_NS, limit_ns, || match children.exit(scheduler.process.pid) {
            Some(exit) => Some(Err(exit)),
            None => attached_ops().map(Ok),
        });
        match outcome {
            Some(Ok(ops)) => {
                let attached = record(&scheduler.name, SchedulerState::Attached, None);
                (SchedulerRecord { ops, ..attached }, Some(scheduler))
            }
            Some(Err(exit)) => (scheduler.close(SchedulerState::Failed, Some(exit), children), None),
            None => (scheduler.close(SchedulerState::Failed, None, children), None),
        }
    }

    fn launch(command: &SchedulerCommand, children: &mut Children) -> Result<Self> {
        if let Some(ops) = attached_ops() {
            bail!("scheduler '{ops}' is attached already");
        }
        let program = Program { name: "scheduler", argv: &command.argv, ..Program::default() };
        Ok(Self { name: command.name.clone(), process: Process::start(&program, children)? })
    }

    /// Tells whether the scheduler lost its attachment, and with it how its process ended.
    ///
    /// A process that lives on gets a moment to attach again.
    pub fn lost(&self, children: &mut Children) -> Option<Option<Exit>> {
        let mut exit = children.exit(self.process.pid);
        if exit.is_none() && attached_ops().is_some() {
            return None;
        }
        let again = clock::poll(PERIOD_NS, RESTART_NS, || {
            exit = children.exit(self.process.pid);
            if exit.is_some() { Some(false) } else { attached_ops().map(|_| true) }
        });
        (again != Some(true)).then_some(exit)
    }

    /// Ends the scheduler by a signal and waits until the kernel's own is back.
    ///
    /// # Errors
    /// The process does not end, or sched_ext stays enabled, for `limit_ns`.
    pub fn stop(self, signal: Signal, limit_ns: u64, children: &mut Children) -> Result<SchedulerRecord> {
        signal_group(self.process.pid, signal as i32)?;
        let Some(exit) = children.wait(Some(self.process.pid), clock::now().saturating_add(limit_ns)) else {
            bail!("scheduler '{}' did not end within {limit_ns} ns of {signal}", self.name);
        };
        if clock::poll(PERIOD_NS, limit_ns, || (state() == "disabled").then_some(())).is_none() {
            bail!("scheduler '{}' is gone, but sched_ext is still {}", self.name, state());
        }
        Ok(self.close(SchedulerState::Detached, Some(exit), children))
    }

    /// Collects what is left of a scheduler, and kills it if it still runs.
    pub fn close(
        self,
        state: SchedulerState,
        exit: Option<Exit>,
        children: &mut Children,
    ) -> SchedulerRecord {
        let _ = self.process.sweep(children);
        children.forget(self.process.pid);
        let record = SchedulerRecord {
            stdout: self.process.stdout(),
            stderr: self.process.stderr(),
            ..record(&self.name, state, exit)
        };
        self.process.forget();
        record
    }
}

fn record(name: &str, state: SchedulerState, exit: Option<Exit>) -> SchedulerRecord {
    let trouble = matches!(state, SchedulerState::Failed | SchedulerState::Died);
    SchedulerRecord {
        state,
        name: name.to_owned(),
        ops: String::new(),
        exit: exit.and_then(|exit| exit.code),
        signal: exit.and_then(|exit| exit.signal),
        stdout: String::new(),
        stderr: String::new(),
        console: if trouble { kmsg::tail() } else { String::new() },
    }
}

/// The name of the attached scheduler, if one is attached and at work.
fn attached_ops() -> Option<String> {
    let ops = (state() == "enabled").then(|| fs::read_to_string(OPS).ok()).flatten()?;
    let ops = ops.trim();
    (!ops.is_empty()).then(|| ops.to_owned())
}

/// enabled, disabled, or on the way; "absent" on a kernel without sched_ext.
fn state() -> String {
    fs::read_to_string(STATE).map_or_else(|_| "absent".to_owned(), |state| state.trim().to_owned())
}

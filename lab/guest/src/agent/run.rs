//! Carries out a job, step by step.

use std::collections::BTreeMap;
use std::fs::{self, File};

use anyhow::{Context, Error, Result, bail};
use heddle_guest::cgroup;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::counters::Counters;
use crate::job::{Action, Job, SchedulerCommand, Step};
use crate::process::{Children, Exit, Process, Program, signal_group};
use crate::record::{Record, SchedulerState, StepRecord, emit, last_line};
use crate::scheduler::{self, Scheduler};
use crate::{clock, port, shell, trace};

const TRACE_PORT: &str = "heddle.trace";

/// Why a job ended early.
pub struct Failure<'a> {
    pub step: Option<&'a str>,
    pub error: Error,
}

/// Runs a job to its end; whatever still runs then is killed and reported.
///
/// # Errors
/// The step that did not end as expected, or the whole job's time-out.
pub fn run<'a>(
    job: &'a Job,
    scheduler: Option<Scheduler>,
    children: &mut Children,
) -> Result<(), Failure<'a>> {
    let deadline_ns = clock::now().saturating_add(job.timeout_ns);
    let mut runner =
        Runner { job, deadline_ns, children, scheduler, background: BTreeMap::new(), trace_port: None };
    let outcome = runner.run_steps();
    runner.end_background();
    runner.end_scheduler();
    outcome
}

struct Runner<'a, 'c> {
    job: &'a Job,
    /// Virtual time at which the whole job is over.
    deadline_ns: u64,
    children: &'c mut Children,
    scheduler: Option<Scheduler>,
    /// By the step's name.
    background: BTreeMap<&'a str, Background<'a>>,
    trace_port: Option<File>,
}

struct Background<'a> {
    step: &'a Step,
    process: Process,
    deadline_ns: u64,
    timed_out: bool,
}

impl<'a> Runner<'a, '_> {
    fn run_steps(&mut self) -> Result<(), Failure<'a>> {
        let job = self.job;
        for step in &job.steps {
            let outcome = match (&step.argv, &step.action) {
                (Some(argv), _) if step.background => self.start_background(step, argv),
                (Some(argv), _) => self.run_program(step, argv),
                (None, Some(action)) => self.run_action(step, action),
                (None, None) => unreachable!("parse() refuses such a step"),
            };
            self.report_lost_scheduler();
            // Said first: a step that was cut short by it has no fault of its own.
            let verdict = self.check_deadline().and(outcome);
            verdict.map_err(|error| Failure { step: Some(&step.name), error })?;
        }
        if job.shell {
            shell::run(self.children).map_err(|error| Failure { step: None, error })?;
        }
        Ok(())
    }

    fn check_deadline(&self) -> Result<()> {
        if clock::now() >= self.deadline_ns {
            bail!("the job's time is over: {} ns of virtual time", self.job.timeout_ns);
        }
        Ok(())
    }

    /// The time a step may take from now on: its own limit or what is left of the job's.
    fn limit_ns(&self, step: &Step) -> u64 {
        step.timeout_ns.min(self.deadline_ns.saturating_sub(clock::now()))
    }

    /// Runs a program to its end, measured.
    fn run_program(&mut self, step: &'a Step, argv: &[String]) -> Result<()> {
        if let Some(spec) = &step.trace {
            if self.trace_port.is_none() {
                self.trace_port = Some(port::open(TRACE_PORT)?);
            }
            trace::start(spec)?;
        }
        let before = Counters::read()?;
        let process = Process::start(&self.program(step, argv), self.children)?;
        let ended = self.wait(Some(process.pid), process.started_ns.saturating_add(self.limit_ns(step)));
        let end_ns = ended.map_or_else(clock::now, |exit| exit.at_ns);
        if step.trace.is_some() {
            trace::stop()?;
        }
        let counters = Counters::read()?.since(&before);
        let report = self.close(step, process, end_ns, ended.is_none())?;
        let verdict = judge(step, &report);
        self.report_lost_scheduler();
        emit(&Record::Step(StepRecord { counters: Some(counters), ..report }));
        if let (Some(spec), Some(port)) = (&step.trace, &mut self.trace_port) {
            trace::send(&step.name, spec, port)?;
        }
        verdict
    }

    fn start_background(&mut self, step: &'a Step, argv: &[String]) -> Result<()> {
        let process = Process::start(&self.program(step, argv), self.children)?;
        let deadline_ns = process.started_ns.saturating_add(self.limit_ns(step));
        self.background.insert(&step.name, Background { step, process, deadline_ns, timed_out: false });
        Ok(())
    }

    fn program<'p>(&self, step: &'p Step, argv: &'p [String]) -> Program<'p> {
        let mut env = step.env.clone();
        env.entry("HEDDLE_SEED".to_owned()).or_insert_with(|| self.job.seed.to_string());
        Program {
            name: &step.name,
            argv,
            env,
            cpus: step.cpus.as_deref(),
            cgroup: step.cgroup.as_deref(),
            stdin: step.stdin.as_deref(),
            uid: step.uid,
            nice: step.nice,
            policy: step.policy,
        }
    }

    /// Ends what is left of a program, and makes its record.
    fn close(&mut self, step: &Step, process: Process, end_ns: u64, timed_out: bool) -> Result<StepRecord> {
        process.sweep(self.children)?;
        let exit = self.children.exit(process.pid);
        self.children.forget(process.pid);
        let report = StepRecord {
            name: step.name.clone(),
            exit: exit.and_then(|exit| exit.code),
            signal: exit.and_then(|exit| exit.signal),
            elapsed_ns: end_ns - process.started_ns,
            stdout: process.stdout(),
            stderr: process.stderr(),
            timed_out,
            counters: None,
        };
        process.forget();
        Ok(report)
    }

    /// Waits for a process or a time; background steps whose time is over are killed meanwhile.
    fn wait(&mut self, pid: Option<Pid>, until_ns: u64) -> Option<Exit> {
        loop {
            let running = self.background.values().filter(|background| !background.timed_out);
            let next_ns = running.map(|background| background.deadline_ns).min().unwrap_or(u64::MAX);
            let exit = self.children.wait(pid, until_ns.min(next_ns));
            if exit.is_some() || clock::now() >= until_ns {
                return exit;
            }
            self.expire_background();
        }
    }

    fn expire_background(&mut self) {
        let now = clock::now();
        for background in self.background.values_mut().filter(|background| background.deadline_ns <= now) {
            background.timed_out = self.children.exit(background.process.pid).is_none();
            background.deadline_ns = u64::MAX;
            if background.timed_out {
                let _ = signal_group(background.process.pid, Signal::SIGKILL as i32);
            }
        }
    }

    fn run_action(&mut self, step: &'a Step, action: &'a Action) -> Result<()> {
        let start_ns = clock::now();
        let outcome = self.act(step, action);
        let report = StepRecord {
            name: step.name.clone(),
            exit: Some(outcome.is_err().into()),
            signal: None,
            elapsed_ns: clock::now() - start_ns,
            stdout: outcome.as_ref().map(Clone::clone).unwrap_or_default(),
            stderr: outcome.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default(),
            timed_out: false,
            counters: None,
        };
        let verdict = judge(step, &report);
        emit(&Record::Step(report));
        // An action's own error says more than its exit.
        verdict.map_err(|error| outcome.err().unwrap_or(error))
    }

    /// Carries out an action; returns what goes into the record's stdout.
    fn act(&mut self, step: &'a Step, action: &'a Action) -> Result<String> {
        let limit_ns = self.limit_ns(step);
        match action {
            Action::SchedulerStart { scheduler } => {
                let command = scheduler.as_ref().or(self.job.scheduler.as_ref()).context("no scheduler")?;
                self.start_scheduler(command, limit_ns)?;
            }
            Action::SchedulerStop {} => self.stop_scheduler(Signal::SIGTERM, limit_ns)?,
            Action::KillScheduler {} => self.stop_scheduler(Signal::SIGKILL, limit_ns)?,
            Action::Write { path, value } => {
                fs::write(path, value).with_context(|| format!("{path} does not take '{value}'"))?;
            }
            Action::Read { path } => {
                return fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
            }
            Action::Sleep { ns } => {
                self.wait(None, clock::now().saturating_add((*ns).min(limit_ns)));
            }
            Action::KillStep { step, signal } => {
                let pid = self.background(step)?.process.pid;
                signal_group(pid, *signal)?;
                // Whatever its end is judged to be: it was asked to end.
                let _ = self.collect(step, limit_ns)?;
            }
            Action::WaitStep { step } => {
                let report = self.collect(step, limit_ns)?;
                report.with_context(|| format!("step '{step}'"))?;
            }
            Action::CgroupSet { cgroup, file, value } => cgroup::set(cgroup, file, value)?,
        }
        Ok(String::new())
    }

    fn background(&self, name: &str) -> Result<&Background<'a>> {
        self.background.get(name).with_context(|| format!("step '{name}' was collected before"))
    }

    /// Waits for a background step and reports it; the inner result is the judgement of its exit.
    fn collect(&mut self, name: &str, limit_ns: u64) -> Result<Result<()>> {
        let pid = self.background(name)?.process.pid;
        let Some(exit) = self.wait(Some(pid), clock::now().saturating_add(limit_ns)) else {
            bail!("step '{name}' still runs after {limit_ns} ns of virtual time");
        };
        let (_, background) = self.background.remove_entry(name).context("checked above")?;
        let report = self.close(background.step, background.process, exit.at_ns, background.timed_out)?;
        let verdict = judge(background.step, &report);
        emit(&Record::Step(report));
        Ok(verdict)
    }

    fn end_background(&mut self) {
        for (_, background) in std::mem::take(&mut self.background) {
            let pid = background.process.pid;
            let ended = self.children.exit(pid);
            let end_ns = ended.map_or_else(clock::now, |exit| exit.at_ns);
            match self.close(background.step, background.process, end_ns, background.timed_out) {
                Ok(report) => emit(&Record::Step(report)),
                Err(error) => eprintln!("heddle-agent: {error:#}"),
            }
        }
    }

    fn start_scheduler(&mut self, command: &SchedulerCommand, limit_ns: u64) -> Result<()> {
        if self.scheduler.is_some() {
            bail!("a scheduler runs already: stop it first");
        }
        self.scheduler = Some(scheduler::start(command, limit_ns, self.children)?);
        Ok(())
    }

    fn stop_scheduler(&mut self, signal: Signal, limit_ns: u64) -> Result<()> {
        self.report_lost_scheduler();
        let scheduler = self.scheduler.take().context("no scheduler runs")?;
        emit(&Record::Scheduler(scheduler.stop(signal, limit_ns, self.children)?));
        Ok(())
    }

    /// Reports a scheduler that ended by itself; the job goes on under the kernel's own.
    fn report_lost_scheduler(&mut self) {
        let lost = self.scheduler.as_ref().and_then(|scheduler| scheduler.lost(self.children));
        if let (Some(exit), Some(scheduler)) = (lost, self.scheduler.take_if(|_| lost.is_some())) {
            emit(&Record::Scheduler(scheduler.close(SchedulerState::Died, exit, self.children)));
        }
    }

    fn end_scheduler(&mut self) {
        const LIMIT_NS: u64 = 10_000_000_000;
        if self.scheduler.is_some()
            && let Err(error) = self.stop_scheduler(Signal::SIGTERM, LIMIT_NS)
        {
            eprintln!("heddle-agent: {error:#}");
        }
    }
}

/// Decides whether a step's end lets the job go on.
fn judge(step: &Step, report: &StepRecord) -> Result<()> {
    let Some(expected) = step.expect_exit else {
        return Ok(());
    };
    let detail = last_line(&report.stderr);
    if report.timed_out {
        bail!("timed out after {} ns of virtual time", report.elapsed_ns);
    }
    match (report.exit, report.signal) {
        (Some(code), _) if code == expected => Ok(()),
        (Some(code), _) => bail!("exited with {code}, not {expected}{detail}"),
        (None, signal) => bail!("was killed by signal {}{detail}", signal.unwrap_or(0)),
    }
}

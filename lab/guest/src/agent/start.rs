//! How a job starts: its scheduler is attached and settles, then the job begins at the same uptime for all.

use std::fs;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::clock;
use crate::job::SchedulerCommand;
use crate::process::Children;
use crate::scheduler::{self, Scheduler};

const FILE: &str = "/heddle/start.json";

/// How long a scheduler is attached before the job begins, at least, virtual ns.
const SETTLE_NS: u64 = 1_000_000_000;

/// What the guest knows before it knows its job.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// None: the kernel's own.
    scheduler: Option<SchedulerCommand>,
    /// Virtual uptime at which the job begins.
    begin_ns: u64,
}

impl Start {
    /// Reads what the host gave.
    ///
    /// # Errors
    /// The file is missing or malformed.
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
        serde_json::from_str(&text).with_context(|| format!("malformed {FILE}"))
    }

    /// Starts the scheduler, if there is one.
    ///
    /// # Errors
    /// It ends, or is not attached early enough to settle before the job begins.
    pub fn scheduler(&self, children: &mut Children) -> Result<Option<Scheduler>> {
        let Some(command) = &self.scheduler else {
            return Ok(None);
        };
        let limit_ns = self.begin_ns.saturating_sub(SETTLE_NS).saturating_sub(clock::now());
        scheduler::start(command, limit_ns, children).map(Some)
    }

    /// Sleeps until the job begins.
    ///
    /// # Errors
    /// It is too late for that.
    pub fn wait(&self) -> Result<()> {
        let now_ns = clock::now();
        if now_ns > self.begin_ns {
            bail!("the job is to begin at {} ns of virtual time; it is {now_ns} ns", self.begin_ns);
        }
        clock::sleep(self.begin_ns - now_ns);
        Ok(())
    }
}

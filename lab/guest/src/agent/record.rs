//! Records: what the guest tells the host, one JSON object a line. README.md documents them.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use serde::Serialize;

use crate::clock;
use crate::counters::Differences;
use crate::topology::Cpu;

static PORT: OnceLock<Mutex<File>> = OnceLock::new();

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Record<'a> {
    Ready {
        kernel: &'a str,
        cpus: usize,
        topology: &'a [Cpu],
    },
    Scheduler(SchedulerRecord),
    Step(StepRecord),
    Error {
        step: Option<&'a str>,
        message: String,
        /// Last lines of the kernel's log.
        console: String,
    },
    Done,
}

#[derive(Serialize)]
pub struct SchedulerRecord {
    pub state: SchedulerState,
    pub name: String,
    /// /sys/kernel/sched_ext/root/ops; empty unless attached.
    pub ops: String,
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Last lines of the kernel's log, if it failed or died.
    pub console: String,
}

#[derive(Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SchedulerState {
    Attached,
    Detached,
    Failed,
    Died,
}

#[derive(Serialize)]
pub struct StepRecord {
    pub name: String,
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    pub elapsed_ns: u64,
    pub stdout: String,
    pub stderr: String,
    pub timed_out: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Differences>,
}

#[derive(Serialize)]
struct Stamped<'a> {
    virtual_ns: u64,
    #[serde(flatten)]
    record: &'a Record<'a>,
}

/// Makes a virtio port the destination of all records.
pub fn open(port: File) {
    let _ = PORT.set(Mutex::new(port));
}

/// Writes a record, stamped with the virtual time; must not be called while a step is measured.
///
/// Without a port (QEMU was started without one) it goes to the console.
pub fn emit(record: &Record) {
    let stamped = Stamped { virtual_ns: clock::now(), record };
    let mut line = serde_json::to_vec(&stamped).expect("records have string keys only");
    line.push(b'\n');
    let written = match PORT.get() {
        Some(port) => port.lock().unwrap_or_else(std::sync::PoisonError::into_inner).write_all(&line),
        None => std::io::stderr().write_all(&line),
    };
    if let Err(error) = written {
        eprintln!("heddle-agent: cannot write a record: {error}");
    }
}

/// The last line of a program's complaints, as the end of a sentence.
pub fn last_line(text: &str) -> String {
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!(": {}", line.trim()),
        None => String::new(),
    }
}

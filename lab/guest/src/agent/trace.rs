//! Kernel tracepoints of a step, by tracefs (Documentation/trace/ftrace.rst).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::job::{TraceFormat, TraceSpec};

const TRACING: &str = "/sys/kernel/tracing";

/// Size of the ring buffer's pages, in bytes.
const PAGE: usize = 4096;

/// Starts to record a step's events into empty buffers, stamped with CLOCK_MONOTONIC.
///
/// # Errors
/// Names the event or the filter that the kernel does not know.
pub fn start(spec: &TraceSpec) -> Result<()> {
    write("tracing_on", "0")?;
    write("trace_clock", "mono")?;
    write("buffer_size_kb", &spec.buffer_kb.to_string())?;
    write("trace", "")?;
    for event in &spec.events {
        let folder = format!("events/{}", event.replace(':', "/"));
        let filter = if spec.filter.is_empty() { "0" } else { &spec.filter };
        write(&format!("{folder}/filter"), filter)
            .with_context(|| format!("trace event '{event}' with filter '{}'", spec.filter))?;
        write(&format!("{folder}/enable"), "1").with_context(|| format!("trace event '{event}'"))?;
    }
    write("tracing_on", "1")
}

/// Stops recording; the events stay in the buffers.
///
/// # Errors
/// tracefs refused, which it has no reason to.
pub fn stop() -> Result<()> {
    write("tracing_on", "0")?;
    write("events/enable", "0")
}

/// Writes the recorded events between two lines of JSON: `{"step", "cpus", "lost"}` and `{"end"}`.
///
/// As text they stand there as the kernel shows them. Raw, the first line also has the `formats` of the
/// events, and a line `{"cpu", "pages"}` follows for each CPU, its pages in base64.
///
/// # Errors
/// The buffers cannot be read, or the port cannot be written.
pub fn send(step: &str, spec: &TraceSpec, port: &mut File) -> Result<()> {
    let (cpus, lost) = lost_events()?;
    match spec.format {
        TraceFormat::Text => {
            send_line(port, &json!({"step": step, "cpus": cpus, "lost": lost}))?;
            let mut trace = File::open(format!("{TRACING}/trace")).context("cannot read the trace")?;
            io::copy(&mut trace, port).context("cannot write the trace")?;
        }
        TraceFormat::Raw => {
            let formats = formats(&spec.events)?;
            send_line(port, &json!({"step": step, "cpus": cpus, "lost": lost, "formats": formats}))?;
            for cpu in 0..cpus {
                let pages = STANDARD.encode(pages(cpu)?);
                send_line(port, &json!({"cpu": cpu, "pages": pages}))?;
            }
        }
    }
    send_line(port, &json!({"end": step}))
}

/// Writes a line at once: each write to a port leaves the guest.
fn send_line(port: &mut File, content: &Value) -> Result<()> {
    port.write_all(format!("{content}\n").as_bytes()).context("cannot write the trace")
}

/// Reads how the fields of each event lie in its records.
fn formats(events: &[String]) -> Result<Vec<String>> {
    let read = |event: &String| {
        fs::read_to_string(format!("{TRACING}/events/{}/format", event.replace(':', "/")))
            .with_context(|| format!("trace event '{event}' has no format"))
    };
    events.iter().map(read).collect()
}

/// Takes the pages out of a CPU's buffer.
fn pages(cpu: usize) -> Result<Vec<u8>> {
    let path = format!("{TRACING}/per_cpu/cpu{cpu}/trace_pipe_raw");
    // An empty buffer would block a reader until more is recorded.
    let mut pipe = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
    let mut pages = Vec::new();
    // The kernel gives a page for each read; one that is asked for less it cuts short.
    let mut page = [0; PAGE];
    loop {
        match pipe.read(&mut page) {
            Ok(0) => return Ok(pages),
            Ok(length) => pages.extend_from_slice(&page[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(pages),
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        }
    }
}

/// Counts the CPUs with a buffer and the events that found no room in it.
fn lost_events() -> Result<(usize, u64)> {
    let mut cpus = 0;
    let mut lost = 0;
    for entry in fs::read_dir(format!("{TRACING}/per_cpu"))? {
        let stats = fs::read_to_string(entry?.path().join("stats"))?;
        cpus += 1;
        lost += stats
            .lines()
            .filter_map(|line| {
                line.strip_prefix("overrun: ").or_else(|| line.strip_prefix("dropped events: "))
            })
            .filter_map(|count| count.trim().parse::<u64>().ok())
            .sum::<u64>();
    }
    Ok((cpus, lost))
}

fn write(file: &str, value: &str) -> Result<()> {
    fs::write(format!("{TRACING}/{file}"), value)
        .with_context(|| format!("{TRACING}/{file} does not take '{value}'"))
}

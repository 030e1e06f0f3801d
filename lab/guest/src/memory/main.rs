//! heddle-memory: says what lies where in the memory of the kernel that it runs on.
//!
//! `heddle profile --lines` has a guest run it before and after the measured step, to name the cache lines that moved.

mod bpf;
mod kernel;
mod maps;
mod slab;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use heddle_guest::cpulist;
use serde::Serialize;

use crate::kernel::Memory;
use crate::maps::Map;
use crate::slab::Cache;

/// What `heddle_lab/memorymap.py` reads. Addresses are virtual.
#[derive(Serialize)]
struct Report {
    kallsyms: String,
    vmallocinfo: String,
    /// What each CPU adds to the addresses of per-CPU symbols.
    per_cpu: Vec<u64>,
    /// Bytes of each CPU's part of a chunk of per-CPU memory.
    per_cpu_unit: u64,
    maps: Vec<Map>,
    /// Of the maps, by their number, in base64.
    btf: BTreeMap<u32, String>,
    caches: Vec<Cache>,
    /// What the kernel notes of each page of memory, that of page 0 first.
    page_notes: u64,
}

#[derive(Parser)]
#[command(version, about = "Says what lies where in the kernel's memory")]
struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Have slab caches keep the pages that they have: what ends later than this can still be named
    Keep,
    /// Print symbols, per-CPU data, BPF maps, slabs and vmalloc areas as one object of JSON
    Report,
}

fn main() -> ExitCode {
    let done = match Options::parse().action {
        Action::Keep => slab::keep(),
        Action::Report => report(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("heddle-memory: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn report() -> Result<()> {
    // Since then root sees addresses as they are, and not their hashes.
    write("/proc/sys/kernel/kptr_restrict", "1")?;
    let kallsyms = read("/proc/kallsyms")?;
    let symbol = |name| address(&kallsyms, name).with_context(|| format!("the kernel has no {name}"));
    let cpus = cpulist::parse(read("/sys/devices/system/cpu/possible")?.trim())?.len();
    let maps = maps::list(cpus)?;
    let memory = Memory::new()?;
    let page_notes = memory.words(symbol("vmemmap_base")?, 1)?[0];
    let report = Report {
        btf: maps::types(&maps),
        maps,
        per_cpu: memory.words(symbol("__per_cpu_offset")?, cpus)?,
        per_cpu_unit: memory.half(symbol("pcpu_unit_size")?)?.into(),
        caches: slab::list(&memory, page_notes)?,
        page_notes,
        vmallocinfo: read("/proc/vmallocinfo")?,
        kallsyms,
    };
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, &report)?;
    out.flush()?;
    Ok(())
}

fn address(kallsyms: &str, name: &str) -> Option<u64> {
    let line = kallsyms.lines().find(|line| line.split(' ').nth(2) == Some(name))?;
    u64::from_str_radix(line.split(' ').next()?, 16).ok()
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

fn write(path: &str, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("{path} does not take '{value}'"))
}

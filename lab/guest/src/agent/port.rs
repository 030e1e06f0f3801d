//! Virtio serial ports, found by the name that QEMU gave them.

use std::fs::{self, File, OpenOptions};

use anyhow::{Context, Result};

use crate::clock;

const PORTS: &str = "/sys/class/virtio-ports";
const PERIOD_NS: u64 = 1_000_000;
const LIMIT_NS: u64 = 2_000_000_000;

/// Opens a port for writing. The device tells the names after it was probed, so this waits a little.
///
/// # Errors
/// No port of that name appeared within 2 s of virtual time.
pub fn open(name: &str) -> Result<File> {
    let device = clock::poll(PERIOD_NS, LIMIT_NS, || find(name))
        .with_context(|| format!("no virtio port is named '{name}'"))?;
    OpenOptions::new().write(true).open(&device).with_context(|| format!("cannot open {device}"))
}

fn find(name: &str) -> Option<String> {
    let entries = fs::read_dir(PORTS).ok()?;
    entries
        .flatten()
        .find(|entry| fs::read_to_string(entry.path().join("name")).is_ok_and(|text| text.trim() == name))
        .map(|entry| format!("/dev/{}", entry.file_name().to_string_lossy()))
}

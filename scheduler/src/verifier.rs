// SPDX-License-Identifier: GPL-2.0-only

//! What the kernel's verifier had to do to accept the program. Its limit is a
//! million instructions per callback; how near a callback comes differs from
//! kernel to kernel.

use std::collections::HashMap;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Object, Program};

/// Log for each callback how many instructions the verifier went through.
///
/// # Errors
/// The kernel does not tell about the programs just loaded.
pub fn log_costs(object: &Object) -> Result<()> {
    let mut names = HashMap::new();
    // Callbacks that this kernel does not know, or that are off, are not loaded.
    for program in object.progs().filter(|program| program.autoload()) {
        let id = Program::id_from_fd(program.as_fd()).context("cannot query a loaded program")?;
        // The kernel's own copy of the name is cut to 15 characters.
        names.insert(id, program.name().to_string_lossy().into_owned());
    }
    for info in ProgInfoIter::default() {
        if let Some(name) = names.get(&info.id) {
            log::debug!("verifier: {name}: {} instructions", info.verified_insns);
        }
    }
    Ok(())
}

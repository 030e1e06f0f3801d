// SPDX-License-Identifier: GPL-2.0-only

//! Capabilities: what loading takes is kept, for the scheduler may have to be
//! loaded again when CPUs change; all else that root may do is given up.

use anyhow::{Context, Result};
use caps::{CapSet, Capability, CapsHashSet};

/// What the kernel asks of a process that loads a scheduler (bpf_prog_load() in
/// kernel/bpf/syscall.c): BPF itself, pointers in programs, and struct_ops, which
/// count as programs of the network.
pub const NEEDED: [Capability; 3] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_NET_ADMIN,
];

/// Addresses of the kernel's functions. Without them, a task whose group has used up its quota
/// is found in user mode by ticks only (stop.bpf.h).
const TO_RESOLVE: Capability = Capability::CAP_SYSLOG;

/// Looking through the programs that are loaded, for `-v`.
const TO_QUERY: Capability = Capability::CAP_SYS_ADMIN;

/// Names of those that are missing.
///
/// # Errors
/// The process's capabilities cannot be read.
pub fn missing() -> Result<Vec<String>> {
    let held = caps::read(None, CapSet::Effective).context("cannot read capabilities")?;
    let missing = NEEDED.iter().filter(|needed| !held.contains(needed));
    Ok(missing.map(ToString::to_string).collect())
}

/// Give up what is not needed, for this thread and all that it will start, and
/// for programs that they might execute.
///
/// # Errors
/// The kernel refuses.
pub fn drop_unneeded(query: bool) -> Result<()> {
    let mut kept: CapsHashSet = NEEDED.into_iter().collect();
    kept.insert(TO_RESOLVE);
    if query {
        kept.insert(TO_QUERY);
    }
    let held = caps::read(None, CapSet::Permitted).context("cannot read capabilities")?;
    let kept = held.intersection(&kept).copied().collect();
    // The bounding set stays: with no_new_privs there is nothing to gain from it.
    caps::clear(None, CapSet::Ambient).context("cannot clear ambient capabilities")?;
    caps::clear(None, CapSet::Inheritable).context("cannot clear inheritable capabilities")?;
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept)
            .with_context(|| format!("cannot reduce {set:?} capabilities"))?;
    }
    // SAFETY: this prctl() takes numbers only.
    let refused = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    anyhow::ensure!(refused == 0, "cannot set no_new_privs");
    Ok(())
}

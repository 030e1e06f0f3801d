//! Control groups (version 2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";

/// Makes a group with its parents, all available controllers switched on down to it.
///
/// # Errors
/// Names the group, and why the kernel refused: a parent that holds processes cannot pass controllers on.
pub fn create(path: &str) -> Result<PathBuf> {
    descend(Path::new(ROOT), path, |parent| delegate(parent, |_| true), |_| Ok(()))
}

/// Makes a group for threads of the processes of another one, with its parents below that one; they have the
/// CPU controller (Documentation/admin-guide/cgroup-v2.rst, "Threads").
///
/// # Errors
/// Names the group, and why the kernel refused.
pub fn create_threaded(domain: &Path, path: &str) -> Result<PathBuf> {
    let only_cpu = |parent: &Path| delegate(parent, |name| name == "cpu");
    descend(domain, path, only_cpu, |group| fs::write(group.join("cgroup.type"), "threaded"))
}

/// Writes a control file of a group, which is created if need be.
///
/// # Errors
/// Names the file and the refused value.
pub fn set(path: &str, file: &str, value: &str) -> Result<()> {
    write(&create(path)?, file, value)
}

/// Writes a control file of a group that `create` or `create_threaded` returned.
///
/// # Errors
/// Names the file and the refused value.
pub fn write(group: &Path, file: &str, value: &str) -> Result<()> {
    let name = group.strip_prefix(ROOT).unwrap_or(group).display();
    fs::write(group.join(file), value)
        .with_context(|| format!("cgroup '{name}': {file} does not take '{value}'"))
}

/// Walks from a group to one below it, and makes what is missing on the way.
fn descend(
    top: &Path,
    path: &str,
    prepare_parent: impl Fn(&Path) -> io::Result<()>,
    prepare_new: impl Fn(&Path) -> io::Result<()>,
) -> Result<PathBuf> {
    let mut group = top.to_path_buf();
    for part in path.split('/') {
        prepare_parent(&group).with_context(|| {
            format!("cgroup '{path}': cannot pass controllers on from {}", group.display())
        })?;
        group.push(part);
        if !group.is_dir() {
            let made = fs::create_dir(&group).and_then(|()| prepare_new(&group));
            made.with_context(|| format!("cannot make cgroup '{path}'"))?;
        }
    }
    Ok(group)
}

/// Enables in a group's children those of its controllers that are wanted.
fn delegate(group: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let available = fs::read_to_string(group.join("cgroup.controllers"))?;
    let enabled = fs::read_to_string(group.join("cgroup.subtree_control"))?;
    let missing: Vec<String> = available
        .split_whitespace()
        .filter(|name| wanted(name) && !enabled.split_whitespace().any(|other| other == *name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::write(group.join("cgroup.subtree_control"), missing.join(" "))
}

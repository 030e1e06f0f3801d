//! Control groups (version 2).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";

/// Makes a group with its parents, all available controllers switched on down to it.
///
/// # Errors
/// Names the group, and why the kernel refused: a parent that holds processes cannot pass controllers on.
pub fn create(path: &str) -> Result<PathBuf> {
    let mut group = PathBuf::from(ROOT);
    for part in path.split('/') {
        delegate(&group).with_context(|| {
            format!("cgroup '{path}': cannot pass controllers on from {}", group.display())
        })?;
        group.push(part);
        if !group.is_dir() {
            fs::create_dir(&group).with_context(|| format!("cannot make cgroup '{path}'"))?;
        }
    }
    Ok(group)
}

/// Writes a control file of a group, which is created if need be.
///
/// # Errors
/// Names the file and the refused value.
pub fn set(path: &str, file: &str, value: &str) -> Result<()> {
    let group = create(path)?;
    fs::write(group.join(file), value)
        .with_context(|| format!("cgroup '{path}': {file} does not take '{value}'"))
}

/// Enables in a group's children every controller that the group has.
fn delegate(group: &Path) -> std::io::Result<()> {
    let available = fs::read_to_string(group.join("cgroup.controllers"))?;
    let enabled = fs::read_to_string(group.join("cgroup.subtree_control"))?;
    let missing: Vec<String> = available
        .split_whitespace()
        .filter(|name| !enabled.split_whitespace().any(|other| other == *name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::write(group.join("cgroup.subtree_control"), missing.join(" "))
}

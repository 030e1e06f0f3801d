// SPDX-License-Identifier: GPL-2.0-only

//! What is so on this machine, hinders nothing, and is better known before
//! the scheduler is loaded.

use std::path::Path;

use crate::preflight::read;

const NOHZ_FULL: &str = "/sys/devices/system/cpu/nohz_full";
const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Each remark on the file system under `root` is a line: a fact, its effect, the remedy.
pub fn on_machine(root: &Path) -> Vec<String> {
    let remarks = [
        nohz_full(&read(root, NOHZ_FULL)),
        autogroup(&read(root, AUTOGROUP)),
    ];
    remarks.into_iter().flatten().collect()
}

/// The tick stops for slices without end only, and these are finite.
fn nohz_full(cpus: &str) -> Option<String> {
    // Where nothing was asked for, the kernel prints a mask that is not there.
    if !cpus.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    Some(format!(
        "nohz_full={cpus}: slices end by ticks, so such a CPU keeps its tick even for a task that is alone \
         (Linux 6.18 loses it even where tasks wait, which then wait longer); \
         --partial leaves tasks that do not ask for sched_ext to the kernel's own scheduler"
    ))
}

/// Autogroups have neither callbacks nor a cgroup: programs cannot tell them apart.
fn autogroup(enabled: &str) -> Option<String> {
    (enabled == "1").then(|| {
        "autogroup is on: it has no effect on tasks of this scheduler, which the kernel tells of cgroups only; \
         sessions share CPUs evenly if each is in a cgroup with the cpu controller (systemd: CPUWeight=)"
            .to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_without_ticks_are_named() {
        let said = nohz_full("1-3,5").unwrap();
        assert!(said.contains("nohz_full=1-3,5") && said.contains("--partial"));
    }

    #[test]
    fn no_such_cpus_are_no_remark() {
        assert_eq!(nohz_full(""), None);
        assert_eq!(nohz_full("(null)"), None);
    }

    #[test]
    fn autogroup_is_a_remark_if_it_is_on() {
        assert!(autogroup("1").unwrap().contains("CPUWeight="));
        assert_eq!(autogroup("0"), None);
        assert_eq!(autogroup(""), None); // a kernel without it
    }

    #[test]
    fn a_machine_that_has_neither_file_has_no_remarks() {
        let nowhere = Path::new("/proc/self/no-such-root");
        assert!(on_machine(nowhere).is_empty());
    }
}

// SPDX-License-Identifier: GPL-2.0-only

//! How busy CPUs and cgroups are, by the kernel's own accounts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

/// Ticks that a CPU was busy, and all of them.
type Ticks = (u64, u64);

/// What CPUs and groups have used since boot.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    cpus: BTreeMap<usize, Ticks>,
    /// Microseconds of CPU time, by the group's name.
    groups: BTreeMap<String, u64>,
    weights: BTreeMap<String, u32>,
}

/// A group below the root and what it got.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    pub weight: u32,
    /// CPU time as a number of CPUs.
    pub cpus: f64,
}

impl Usage {
    /// Read /proc/stat and the groups below the root of cgroup v2, if there is one.
    ///
    /// # Errors
    /// /proc/stat cannot be read.
    pub fn read() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let mut usage = Self {
            cpus: stat.lines().filter_map(cpu_ticks).collect(),
            ..Self::default()
        };
        usage.read_groups(Path::new("/sys/fs/cgroup"));
        Ok(usage)
    }

    /// Groups come and go while they are read: what is gone is left out.
    fn read_groups(&mut self, root: &Path) {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
            let used = read("cpu.stat").and_then(|text| usage_us(&text));
            let weight = read("cpu.weight").and_then(|text| text.trim().parse().ok());
            if let (Some(used), Some(weight)) = (used, weight) {
                let name = entry
                    .file_name()
                    .to_string_lossy()
                    .escape_debug()
                    .to_string();
                self.groups.insert(name.clone(), used);
                self.weights.insert(name, weight);
            }
        }
    }

    /// The busy part, 0 to 1, of those of `cpus` that were there all the time
    /// since `earlier`; nothing if none was, or no tick has passed.
    pub fn busy_since(&self, earlier: &Self, cpus: &[usize]) -> Option<f64> {
        let (mut busy, mut all) = (0, 0);
        for cpu in cpus {
            if let (Some(then), Some(now)) = (earlier.cpus.get(cpu), self.cpus.get(cpu)) {
                busy += now.0.saturating_sub(then.0);
                all += now.1.saturating_sub(then.1);
            }
        }
        (all > 0).then(|| busy as f64 / all as f64)
    }

    /// The groups by what they got since `earlier`, `elapsed` ago; the largest first.
    pub fn groups_since(&self, earlier: &Self, elapsed: Duration) -> Vec<Group> {
        let us = elapsed.as_micros().max(1) as f64;
        let mut groups: Vec<Group> = self
            .groups
            .iter()
            .filter_map(|(name, now)| {
                let used = now.saturating_sub(*earlier.groups.get(name)?);
                Some(Group {
                    name: name.clone(),
                    weight: self.weights[name],
                    cpus: used as f64 / us,
                })
            })
            .collect();
        groups.sort_by(|a, b| b.cpus.total_cmp(&a.cpus));
        groups
    }
}

/// A line of /proc/stat (proc_stat(5)): `cpuN user nice system idle iowait irq
/// softirq steal guest guest_nice`, the last two being parts of the first two.
fn cpu_ticks(line: &str) -> Option<(usize, Ticks)> {
    let mut words = line.split_whitespace();
    let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(8).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: u64 = ticks.iter().sum();
    Some((cpu, (all - idle, all)))
}

fn usage_us(stat: &str) -> Option<u64> {
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(lines: &str) -> Usage {
        Usage {
            cpus: lines.lines().filter_map(cpu_ticks).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting_for_a_disk() {
        let earlier =
            usage("cpu 9 9 9 9 9\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 5 0 0 5 0 0 0 0 0 0\nintr 3");
        let now =
            usage("cpu0 10 5 5 50 10 10 5 5 99 0\ncpu1 5 0 0 105 0 0 0 0 0 0\ncpu2 1 1 1 1 1");
        assert_eq!(now.busy_since(&earlier, &[0]), Some(0.4));
        assert_eq!(now.busy_since(&earlier, &[0, 1]), Some(0.2));
        assert_eq!(now.busy_since(&earlier, &[2]), None);
    }

    #[test]
    fn groups_are_sorted_and_their_names_escaped() {
        let root = std::env::temp_dir().join(format!("heddle-usage-{}", std::process::id()));
        let set = |name: &str, used: u64| {
            let group = root.join(name);
            fs::create_dir_all(&group).unwrap();
            fs::write(
                group.join("cpu.stat"),
                format!("usage_usec {used}\nuser_usec 1\n"),
            )
            .unwrap();
            fs::write(group.join("cpu.weight"), "100\n").unwrap();
        };
        let read = || {
            let mut usage = Usage::default();
            usage.read_groups(&root);
            usage
        };
        set("a", 0);
        set("b\n\u{1b}[2J", 0);
        let earlier = read();
        set("a", 500_000);
        set("b\n\u{1b}[2J", 2_000_000);
        let groups = read().groups_since(&earlier, Duration::from_secs(1));
        fs::remove_dir_all(&root).unwrap();
        let names: Vec<_> = groups
            .iter()
            .map(|group| (group.name.as_str(), group.cpus))
            .collect();
        assert_eq!(names, [(r"b\n\u{1b}[2J", 2.0), ("a", 0.5)]);
    }
}

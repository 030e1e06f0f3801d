// SPDX-License-Identifier: GPL-2.0-only

//! How busy CPUs and cgroups are, by the kernel's own accounts.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cgroupfs;

/// Ticks that a CPU was busy, and all of them.
type Ticks = (u64, u64);

/// What CPUs and groups have used since boot.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    cpus: BTreeMap<usize, Ticks>,
    /// By the kernel's number.
    groups: BTreeMap<u64, GroupUsage>,
}

#[derive(Clone, Debug)]
struct GroupUsage {
    /// Its path below the root, escaped.
    name: String,
    weight: u32,
    /// CPU time, us.
    used: u64,
}

/// A group and what it got.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The kernel's number of it.
    pub id: u64,
    /// Its path below the root, escaped.
    pub name: String,
    pub weight: u32,
    /// CPU time as a number of CPUs.
    pub cpus: f64,
}

/// The tree of cgroups, and where those are that were asked for by number.
pub struct Tree {
    root: PathBuf,
    /// None: there was no such group when the tree was read.
    found: BTreeMap<u64, Option<PathBuf>>,
}

impl Tree {
    /// The tree at `root`, or where this system has its cgroups of version 2.
    pub fn new(root: Option<PathBuf>) -> Self {
        let root = root.or_else(cgroupfs::mount_point);
        Self {
            root: root.unwrap_or_default(),
            found: BTreeMap::new(),
        }
    }

    /// Note where the groups `ids` are, and forget all others. All of the tree is
    /// read when one is asked for that was not the last time.
    fn find(&mut self, ids: impl Iterator<Item = u64>) {
        let found = ids
            .map(|id| (id, self.found.get(&id).cloned()))
            .collect::<BTreeMap<_, _>>();
        let known = found.values().all(Option::is_some);
        self.found = found
            .into_iter()
            .map(|(id, at)| (id, at.flatten()))
            .collect();
        if !known {
            let root = self.root.clone();
            self.search(&root);
        }
    }

    fn search(&mut self, folder: &Path) {
        for group in groups_in(folder) {
            if let Some(at) = self.found.get_mut(&group.ino()) {
                *at = Some(group.path());
            }
            self.search(&group.path());
        }
    }
}

/// The groups right below the one at `folder`; none if it is gone.
fn groups_in(folder: &Path) -> impl Iterator<Item = DirEntry> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

impl Usage {
    /// Read /proc/stat, and the groups of `tree` that are right below its root or among `ids`.
    ///
    /// # Errors
    /// /proc/stat cannot be read.
    pub fn read(tree: &mut Tree, ids: impl Iterator<Item = u64>) -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let mut usage = Self {
            cpus: stat.lines().filter_map(cpu_ticks).collect(),
            ..Self::default()
        };
        usage.read_groups(tree, ids);
        Ok(usage)
    }

    /// Groups come and go while they are read: what is gone is left out.
    fn read_groups(&mut self, tree: &mut Tree, ids: impl Iterator<Item = u64>) {
        tree.find(ids);
        let top = groups_in(&tree.root).map(|group| (group.ino(), group.path()));
        let found = tree.found.iter();
        let found = found.filter_map(|(&id, at)| Some((id, at.clone()?)));
        for (id, path) in top.chain(found) {
            if let Some(group) = GroupUsage::read(&tree.root, &path) {
                self.groups.insert(id, group);
            }
        }
    }

    /// Groups of the usual weight: number, name and CPU time in us of each.
    #[cfg(test)]
    pub fn of_groups(groups: impl IntoIterator<Item = (u64, String, u64)>) -> Self {
        let group = |(id, name, used)| {
            (
                id,
                GroupUsage {
                    name,
                    weight: 100,
                    used,
                },
            )
        };
        Self {
            groups: groups.into_iter().map(group).collect(),
            ..Self::default()
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
            .filter_map(|(&id, now)| {
                let used = now.used.saturating_sub(earlier.groups.get(&id)?.used);
                Some(Group {
                    id,
                    name: now.name.clone(),
                    weight: now.weight,
                    cpus: used as f64 / us,
                })
            })
            .collect();
        groups.sort_by(|a, b| b.cpus.total_cmp(&a.cpus));
        groups
    }
}

impl GroupUsage {
    fn read(root: &Path, path: &Path) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(path.join(file)).ok();
        let name = path.strip_prefix(root).ok()?.to_string_lossy();
        Some(Self {
            name: name.escape_debug().to_string(),
            weight: read("cpu.weight")?.trim().parse().ok()?,
            used: usage_us(&read("cpu.stat")?)?,
        })
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
    use std::os::unix::fs::MetadataExt;

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

    /// Groups as cgroupfs shows them, in a folder of its own that goes with it.
    struct Groups(PathBuf);

    impl Groups {
        fn new(test: &str) -> Self {
            let name = format!("heddle-usage-{}-{test}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        /// Make the group `name`, or change its CPU time in us; return its number.
        fn set(&self, name: &str, used: u64) -> u64 {
            let group = self.0.join(name);
            fs::create_dir_all(&group).unwrap();
            let stat = format!("usage_usec {used}\nuser_usec 1\n");
            fs::write(group.join("cpu.stat"), stat).unwrap();
            fs::write(group.join("cpu.weight"), "100\n").unwrap();
            fs::metadata(&group).unwrap().ino()
        }

        fn read(&self, tree: &mut Tree, ids: &[u64]) -> Usage {
            let mut usage = Usage::default();
            usage.read_groups(tree, ids.iter().copied());
            usage
        }

        fn tree(&self) -> Tree {
            Tree::new(Some(self.0.clone()))
        }
    }

    impl Drop for Groups {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn groups_are_sorted_and_their_names_escaped() {
        let groups = Groups::new("names");
        groups.set("a", 0);
        groups.set("b\n\u{1b}[2J", 0);
        let mut tree = groups.tree();
        let earlier = groups.read(&mut tree, &[]);
        groups.set("a", 500_000);
        groups.set("b\n\u{1b}[2J", 2_000_000);
        let now = groups.read(&mut tree, &[]);
        let got = now.groups_since(&earlier, Duration::from_secs(1));
        let names: Vec<_> = got
            .iter()
            .map(|group| (group.name.as_str(), group.cpus))
            .collect();
        assert_eq!(names, [(r"b\n\u{1b}[2J", 2.0), ("a", 0.5)]);
    }

    #[test]
    fn a_group_deep_down_is_found_by_its_number() {
        let groups = Groups::new("deep");
        let (top, pod) = (groups.set("pods", 0), groups.set("pods/one/c", 0));
        groups.set("pods/two", 0);
        let mut tree = groups.tree();
        let names = |usage: &Usage| -> Vec<(u64, String)> {
            let named = usage.groups.iter();
            named.map(|(&id, group)| (id, group.name.clone())).collect()
        };
        let mut both = vec![(top, "pods".to_string()), (pod, "pods/one/c".to_string())];
        both.sort();
        assert_eq!(names(&groups.read(&mut tree, &[pod, 0])), both);
        // Made before the other goes: this filesystem may give its number again; cgroupfs does not.
        let later = groups.set("pods/three", 0);
        fs::remove_dir_all(groups.0.join("pods/one")).unwrap();
        assert_eq!(
            names(&groups.read(&mut tree, &[pod])),
            [(top, "pods".to_string())]
        );
        assert!(
            names(&groups.read(&mut tree, &[later])).contains(&(later, "pods/three".to_string()))
        );
    }
}

// SPDX-License-Identifier: GPL-2.0-only

//! Which CPUs are better: their priorities, from the best source there is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use log::warn;

use crate::topology::{FULL_CAPACITY, NR_CLASSES};

/// Where the priorities come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asym {
    /// From the machine.
    Auto,
    /// All CPUs are equal.
    Off,
    /// From the command line: CPUs and their priority.
    Priorities(BTreeMap<usize, u32>),
}

/// The priorities of CPUs that are not all equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Where they come from, for people.
    pub source: String,
    /// Speed relative to the others, as the source has it; 1 or more.
    priorities: BTreeMap<usize, u32>,
    /// The highest priority of each class of speed, descending.
    classes: Vec<u32>,
}

/// A CPU is of another class than a faster one if it has less than this many
/// percent of its speed. Priorities also tell apart the cores of one kind, by
/// a few percent; those are worth a choice at wakeup, but no move.
const SAME_CLASS_PERCENT: u32 = 90;

/// Where priorities are found.
enum Source {
    /// A file in each CPU's folder in /sys/devices/system/cpu.
    File(&'static str),
    /// One list of CPUs per kind of core.
    Kinds,
}

/// The best first. Frequencies come last: they may mislead where kinds are known.
const SOURCES: [Source; 5] = [
    Source::File("cpufreq/amd_pstate_prefcore_ranking"),
    Source::File("acpi_cppc/highest_perf"),
    Source::File("cpu_capacity"),
    Source::Kinds,
    Source::File("cpufreq/cpuinfo_max_freq"),
];

/// The lists in /sys/devices, and a speed for want of a better one.
const KINDS: [(&str, u32); 3] = [
    ("cpu_core/cpus", 100),
    ("cpu_atom/cpus", 60),
    ("cpu_lowpower/cpus", 40),
];

impl Ranks {
    /// Find the priorities of `cpus` as `asym` says; none if all are equal.
    ///
    /// # Errors
    /// `asym` names a CPU that there is not, or not every CPU.
    pub fn find(asym: &Asym, cpus: &[usize]) -> Result<Option<Self>> {
        match asym {
            Asym::Off => Ok(None),
            Asym::Auto => Ok(Self::read(Path::new("/sys/devices"), cpus)),
            Asym::Priorities(priorities) => Self::given(priorities, cpus),
        }
    }

    fn given(priorities: &BTreeMap<usize, u32>, cpus: &[usize]) -> Result<Option<Self>> {
        if let Some(cpu) = priorities.keys().find(|cpu| !cpus.contains(cpu)) {
            bail!("--asym names CPU {cpu}, which is not there");
        }
        if let Some(cpu) = cpus.iter().find(|cpu| !priorities.contains_key(cpu)) {
            bail!("--asym names no priority for CPU {cpu}: give one for every CPU");
        }
        Ok(Self::unless_equal("--asym", priorities.clone()))
    }

    fn read(devices: &Path, cpus: &[usize]) -> Option<Self> {
        SOURCES.iter().find_map(|source| match source {
            Source::File(file) => Self::read_files(devices, file, cpus),
            Source::Kinds => Self::read_kinds(devices, cpus),
        })
    }

    /// One file per CPU. None if there are no such files, they make no sense or
    /// make no difference.
    fn read_files(devices: &Path, file: &str, cpus: &[usize]) -> Option<Self> {
        let path = |cpu| -> PathBuf { devices.join(format!("system/cpu/cpu{cpu}/{file}")) };
        let texts: Vec<_> = cpus
            .iter()
            .map(|&cpu| fs::read_to_string(path(cpu)))
            .collect();
        if texts.iter().all(Result::is_err) {
            return None;
        }
        let mut priorities = BTreeMap::new();
        for (&cpu, text) in cpus.iter().zip(texts) {
            match text.map(|text| text.trim().parse::<u32>()) {
                Ok(Ok(priority @ 1..)) => priorities.insert(cpu, priority),
                _ => {
                    warn!("{file} of CPU {cpu} is no priority: not used for any CPU");
                    return None;
                }
            };
        }
        Self::unless_equal(file, priorities)
    }

    /// One list of CPUs per kind of core.
    fn read_kinds(devices: &Path, cpus: &[usize]) -> Option<Self> {
        let mut priorities = BTreeMap::new();
        for (file, priority) in KINDS {
            let Ok(text) = fs::read_to_string(devices.join(file)) else {
                continue;
            };
            for cpu in parse_cpus(text.trim()).ok()? {
                priorities.insert(cpu, priority);
            }
        }
        priorities.retain(|cpu, _| cpus.contains(cpu));
        if !priorities.is_empty() && priorities.len() < cpus.len() {
            warn!("the lists cpu_core and cpu_atom leave out a CPU: not used for any CPU");
            return None;
        }
        Self::unless_equal("cpu_core and cpu_atom", priorities)
    }

    fn unless_equal(source: &str, priorities: BTreeMap<usize, u32>) -> Option<Self> {
        let mut descending: Vec<u32> = priorities.values().copied().collect();
        descending.sort_unstable_by(|a, b| b.cmp(a));
        if descending.first() == descending.last() {
            return None;
        }
        let mut classes: Vec<u32> = Vec::new();
        for priority in descending {
            let same = |&fastest: &u32| {
                u64::from(priority) * 100 >= u64::from(fastest) * u64::from(SAME_CLASS_PERCENT)
            };
            if !classes.last().is_some_and(same) {
                classes.push(priority);
            }
        }
        classes.truncate(NR_CLASSES);
        Some(Self {
            source: source.to_owned(),
            priorities,
            classes,
        })
    }

    /// The priority of a CPU; 0 if it was not there when they were read.
    pub fn priority(&self, cpu: usize) -> u32 {
        self.priorities.get(&cpu).copied().unwrap_or(0)
    }

    /// The class of a CPU's speed: 0 for the fastest.
    pub fn class(&self, cpu: usize) -> usize {
        let reached = |&&fastest: &&u32| fastest >= self.priority(cpu);
        self.classes.iter().filter(reached).count() - 1
    }

    /// The speed of a CPU relative to the fastest; at least 1.
    pub fn capacity(&self, cpu: usize) -> u16 {
        let (own, fastest) = (u64::from(self.priority(cpu)), u64::from(self.classes[0]));
        (own * u64::from(FULL_CAPACITY) / fastest).max(1) as u16
    }
}

/// Parse what `--asym` takes.
///
/// # Errors
/// What is wrong with `text`, for clap to print.
pub fn parse(text: &str) -> Result<Asym, String> {
    match text {
        "auto" => return Ok(Asym::Auto),
        "off" => return Ok(Asym::Off),
        _ => {}
    }
    let mut priorities = BTreeMap::new();
    for item in text.split(',') {
        let wanted = || format!("`{item}` is not CPUS:PRIORITY, such as 0-15:100");
        let (cpus, priority) = item.split_once(':').ok_or_else(wanted)?;
        let priority = priority
            .parse()
            .ok()
            .filter(|&n| n > 0)
            .ok_or_else(wanted)?;
        for cpu in parse_cpus(cpus).map_err(|_| wanted())? {
            if priorities.insert(cpu, priority).is_some() {
                return Err(format!("CPU {cpu} has two priorities"));
            }
        }
    }
    Ok(Asym::Priorities(priorities))
}

/// CPUs of a list such as 0-3,8.
fn parse_cpus(list: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for item in list.split(',').filter(|item| !item.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (first.parse::<usize>()?, last.parse::<usize>()?);
        ensure!(first <= last && last < 1 << 16, "`{item}` is no range");
        cpus.extend(first..=last);
    }
    ensure!(!cpus.is_empty(), "no CPUs");
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: [usize; 4] = [0, 1, 2, 3];

    /// A /sys/devices that has `file` for each CPU with what `text` says.
    fn devices(name: &str, file: &str, text: [&str; 4]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("heddle-ranks-{}-{name}", std::process::id()));
        for (cpu, text) in text.iter().enumerate() {
            let path = root.join(format!("system/cpu/cpu{cpu}/{file}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn classes(ranks: &Ranks) -> [usize; 4] {
        CPUS.map(|cpu| ranks.class(cpu))
    }

    #[test]
    fn priorities_are_read_and_make_classes() {
        let root = devices(
            "good",
            "acpi_cppc/highest_perf",
            ["68\n", "65\n", "42\n", "10\n"],
        );
        let ranks = Ranks::read(&root, &CPUS).unwrap();
        assert_eq!(ranks.source, "acpi_cppc/highest_perf");
        assert_eq!(classes(&ranks), [0, 0, 1, 2]);
        assert_eq!(ranks.capacity(0), 1024);
        assert_eq!(ranks.capacity(2), 632);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn ranks_that_change_are_seen() {
        let file = "cpufreq/amd_pstate_prefcore_ranking";
        let root = devices("change", file, ["236", "231", "226", "221"]);
        let before = Ranks::read(&root, &CPUS);
        assert_eq!(before, Ranks::read(&root, &CPUS));
        let after = Ranks::read(
            &devices("change", file, ["221", "231", "226", "236"]),
            &CPUS,
        );
        assert_ne!(before, after);
        assert!(after.unwrap().priority(3) > before.unwrap().priority(3));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn nonsense_leaves_cpus_equal() {
        for (name, text) in [
            ("zero", ["0", "0", "0", "0"]),
            ("negative", ["-1", "5", "5", "5"]),
            ("word", ["high", "5", "5", "5"]),
            ("equal", ["7", "7", "7", "7"]),
        ] {
            let root = devices(name, "acpi_cppc/highest_perf", text);
            assert_eq!(Ranks::read(&root, &CPUS), None, "{name}");
            fs::remove_dir_all(root).unwrap();
        }
    }

    #[test]
    fn priorities_of_some_cpus_only_are_not_used() {
        let root = devices("some", "cpu_capacity", ["9", "8", "7", "6"]);
        assert_eq!(Ranks::read(&root, &[0, 1, 2, 3, 4]), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn kinds_come_before_frequencies() {
        let root = devices(
            "kinds",
            "cpufreq/cpuinfo_max_freq",
            ["50", "49", "48", "47"],
        );
        for (file, cpus) in [("cpu_core", "0-1\n"), ("cpu_atom", "2-3\n")] {
            fs::create_dir_all(root.join(file)).unwrap();
            fs::write(root.join(file).join("cpus"), cpus).unwrap();
        }
        let ranks = Ranks::read(&root, &CPUS).unwrap();
        assert_eq!(ranks.source, "cpu_core and cpu_atom");
        assert_eq!(classes(&ranks), [0, 0, 1, 1]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_list_names_every_cpu_once() {
        let given = |text: &str| match parse(text) {
            Ok(asym) => Ranks::find(&asym, &CPUS).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let ranks = given("0-1:100,2,3:60").unwrap_err();
        assert!(ranks.contains("`2`"), "{ranks}");
        assert_eq!(
            classes(&given("0-1:100,2-3:60").unwrap().unwrap()),
            [0, 0, 1, 1]
        );
        assert_eq!(given("0-3:5"), Ok(None));
        for bad in [
            "",
            "x",
            "0-3",
            "0-3:0",
            "0-3:-1",
            "3-0:1",
            "0-3:1,3:2",
            "0-2:1",
            "0-4:1",
        ] {
            assert!(given(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn there_are_at_most_so_many_classes() {
        let Asym::Priorities(priorities) = parse("0:100,1:50,2:25,3:12,4:6,5:3").unwrap() else {
            panic!("a list");
        };
        let ranks = Ranks::unless_equal("test", priorities).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|cpu| ranks.class(cpu)),
            [0, 1, 2, 3, 3, 3]
        );
    }
}

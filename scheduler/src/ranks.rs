// SPDX-License-Identifier: GPL-2.0-only

//! Which CPUs are better: their priorities, from the best source there is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
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
    /// What the kernel's own asymmetric packing goes by on x86: a line for each
    /// CPU that there may be. In debugfs of recent kernels, for root only.
    Kernel,
    /// One list of CPUs per kind of core.
    Kinds,
}

/// The best first. Frequencies come last: they may mislead where kinds are known.
const SOURCES: [Source; 6] = [
    Source::File("cpufreq/amd_pstate_prefcore_ranking"),
    Source::File("acpi_cppc/highest_perf"),
    Source::File("cpu_capacity"),
    Source::Kernel,
    Source::Kinds,
    Source::File("cpufreq/cpuinfo_max_freq"),
];

const KERNEL: &str = "sched_core_priority";

/// The lists in /sys/devices, and a speed for want of a better one.
const KINDS: [(&str, u32); 3] = [
    ("cpu_core/cpus", 100),
    ("cpu_atom/cpus", 60),
    ("cpu_lowpower/cpus", 40),
];

/// What a source says: none if it is not there or makes no difference.
type Found = Result<Option<Ranks>>;

impl Ranks {
    /// Find the priorities of `cpus`, those online, as `asym` says; none if all
    /// are equal. One warning names all sources of the machine that make no sense.
    ///
    /// # Errors
    /// `asym` names a CPU that the machine has not, or not every CPU.
    pub fn find(asym: &Asym, cpus: &[usize]) -> Result<Option<Self>> {
        let (ranks, complaints) = Self::seek(Path::new("/sys"), asym, cpus)?;
        if !complaints.is_empty() {
            warn!("priorities of CPUs not used: {}", complaints.join("; "));
        }
        Ok(ranks)
    }

    /// Does the machine report other priorities by now? Of the CPUs that are online:
    /// one that is not takes its files along, and keeps its priority.
    pub fn changed(&self, asym: &Asym) -> bool {
        self.changed_in(Path::new("/sys"), asym)
    }

    fn changed_in(&self, sys: &Path, asym: &Asym) -> bool {
        let mut online = self.priorities.clone();
        if let Some(cpus) = listed(sys, "online") {
            online.retain(|cpu, _| cpus.contains(cpu));
        }
        let cpus: Vec<usize> = online.keys().copied().collect();
        let before = Self::unless_equal(&self.source, online);
        // What makes no sense has been told when the scheduler was loaded.
        Self::seek(sys, asym, &cpus).is_ok_and(|(now, _)| now != before)
    }

    fn seek(sys: &Path, asym: &Asym, cpus: &[usize]) -> Result<(Option<Self>, Vec<String>)> {
        match asym {
            Asym::Off => Ok((None, Vec::new())),
            Asym::Auto => Ok(Self::read(sys, cpus)),
            Asym::Priorities(priorities) => {
                let present = listed(sys, "present").unwrap_or_else(|| cpus.to_vec());
                Ok((Self::given(priorities, &present, cpus)?, Vec::new()))
            }
        }
    }

    /// The priorities of `cpus` from a list of all that are `present`: the others
    /// may come online.
    ///
    /// # Errors
    /// The list names a CPU that is not present, or not every one.
    pub fn given(priorities: &BTreeMap<usize, u32>, present: &[usize], cpus: &[usize]) -> Found {
        if let Some(cpu) = priorities.keys().find(|cpu| !present.contains(cpu)) {
            bail!("--asym names CPU {cpu}, which is not there");
        }
        if let Some(cpu) = present.iter().find(|cpu| !priorities.contains_key(cpu)) {
            bail!("--asym names no priority for CPU {cpu}: give one for every CPU");
        }
        let mut online = priorities.clone();
        online.retain(|cpu, _| cpus.contains(cpu));
        Ok(Self::unless_equal("--asym", online))
    }

    /// The priorities from the best source, and why better ones were not used.
    fn read(sys: &Path, cpus: &[usize]) -> (Option<Self>, Vec<String>) {
        let mut complaints = Vec::new();
        let ranks = SOURCES.iter().find_map(|source| {
            let found = match source {
                Source::File(file) => Self::read_files(sys, file, cpus),
                Source::Kernel => Self::read_kernel(sys, cpus),
                Source::Kinds => Self::read_kinds(sys, cpus),
            };
            found.unwrap_or_else(|error| {
                complaints.push(error.to_string());
                None
            })
        });
        (ranks, complaints)
    }

    /// One file per CPU.
    fn read_files(sys: &Path, file: &str, cpus: &[usize]) -> Found {
        let path = |cpu| -> PathBuf { sys.join(format!("devices/system/cpu/cpu{cpu}/{file}")) };
        let texts: Vec<_> = cpus
            .iter()
            .map(|&cpu| fs::read_to_string(path(cpu)))
            .collect();
        if texts.iter().all(Result::is_err) {
            return Ok(None);
        }
        let of_cpus = cpus.iter().copied().zip(texts);
        Self::unless_nonsense(
            file,
            of_cpus.filter_map(|(cpu, text)| Some((cpu, text.ok()?))),
            cpus,
        )
    }

    /// One line per CPU, after a heading: its number and its priority.
    fn read_kernel(sys: &Path, cpus: &[usize]) -> Found {
        let Ok(text) = fs::read_to_string(sys.join("kernel/debug/x86").join(KERNEL)) else {
            return Ok(None);
        };
        let of_cpus = text.lines().skip(1).filter_map(|line| {
            let (cpu, priority) = line.split_once('\t')?;
            Some((cpu.trim().parse().ok()?, priority.to_owned()))
        });
        Self::unless_nonsense(KERNEL, of_cpus, cpus)
    }

    /// The priorities of all `cpus`, if they are numbers of 1 or more.
    fn unless_nonsense(
        source: &str,
        texts: impl Iterator<Item = (usize, String)>,
        cpus: &[usize],
    ) -> Found {
        let texts: BTreeMap<usize, String> = texts.collect();
        let priority = |&cpu: &usize| match texts.get(&cpu).map(|text| text.trim().parse()) {
            Some(Ok(priority @ 1..)) => Ok((cpu, priority)),
            _ => bail!("{source} of CPU {cpu} is no priority"),
        };
        let priorities = cpus.iter().map(priority).collect::<Result<_>>()?;
        Ok(Self::unless_equal(source, priorities))
    }

    /// One list of CPUs per kind of core.
    fn read_kinds(sys: &Path, cpus: &[usize]) -> Found {
        let mut priorities = BTreeMap::new();
        for (file, priority) in KINDS {
            let Ok(text) = fs::read_to_string(sys.join("devices").join(file)) else {
                continue;
            };
            let kind = parse_cpus(text.trim()).with_context(|| format!("{file} is no list"))?;
            priorities.extend(kind.into_iter().map(|cpu| (cpu, priority)));
        }
        priorities.retain(|cpu, _| cpus.contains(cpu));
        ensure!(
            priorities.is_empty() || priorities.len() == cpus.len(),
            "the lists cpu_core and cpu_atom leave out a CPU"
        );
        Ok(Self::unless_equal("cpu_core and cpu_atom", priorities))
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

/// The CPUs that are `present`, online or not, or those `online`.
fn listed(sys: &Path, what: &str) -> Option<Vec<usize>> {
    let list = fs::read_to_string(sys.join("devices/system/cpu").join(what)).ok()?;
    parse_cpus(list.trim()).ok()
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

    /// A /sys with files of its own, gone with the test.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("heddle-ranks-{}-{name}", std::process::id())))
        }

        fn with(self, file: impl AsRef<Path>, text: &str) -> Self {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        /// `file` for each CPU with what `texts` say.
        fn with_each(self, file: &str, texts: [&str; 4]) -> Self {
            texts.iter().enumerate().fold(self, |sys, (cpu, text)| {
                sys.with(format!("devices/system/cpu/cpu{cpu}/{file}"), text)
            })
        }

        /// The priorities, without any complaint.
        fn ranks(&self) -> Option<Ranks> {
            let (ranks, complaints) = Ranks::read(&self.0, &CPUS);
            assert!(complaints.is_empty(), "{complaints:?}");
            ranks
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn classes(ranks: &Ranks) -> [usize; 4] {
        CPUS.map(|cpu| ranks.class(cpu))
    }

    #[test]
    fn priorities_are_read_and_make_classes() {
        let sys =
            Sys::new("good").with_each("acpi_cppc/highest_perf", ["68\n", "65\n", "42\n", "10\n"]);
        let ranks = sys.ranks().unwrap();
        assert_eq!(ranks.source, "acpi_cppc/highest_perf");
        assert_eq!(classes(&ranks), [0, 0, 1, 2]);
        assert_eq!(ranks.capacity(0), 1024);
        assert_eq!(ranks.capacity(2), 632);
    }

    #[test]
    fn ranks_that_change_are_seen() {
        let file = "cpufreq/amd_pstate_prefcore_ranking";
        let sys = Sys::new("change").with_each(file, ["236", "231", "226", "221"]);
        let before = sys.ranks().unwrap();
        assert!(!before.changed_in(&sys.0, &Asym::Auto));
        let sys = sys.with_each(file, ["221", "231", "226", "236"]);
        assert!(before.changed_in(&sys.0, &Asym::Auto));
        assert!(sys.ranks().unwrap().priority(3) > before.priority(3));
    }

    #[test]
    fn a_cpu_that_goes_offline_keeps_its_rank() {
        let file = "cpufreq/amd_pstate_prefcore_ranking";
        let sys = Sys::new("offline").with_each(file, ["236", "231", "226", "221"]);
        let before = sys.ranks().unwrap();
        fs::remove_file(sys.0.join("devices/system/cpu/cpu3").join(file)).unwrap();
        let sys = sys.with("devices/system/cpu/online", "0-2\n");
        assert!(!before.changed_in(&sys.0, &Asym::Auto));
        let sys = sys.with(format!("devices/system/cpu/cpu0/{file}"), "100");
        assert!(before.changed_in(&sys.0, &Asym::Auto));
    }

    #[test]
    fn nonsense_leaves_cpus_equal_and_is_told_once() {
        for (name, texts) in [
            ("zero", ["0", "0", "0", "0"]),
            ("negative", ["-1", "5", "5", "5"]),
            ("word", ["high", "5", "5", "5"]),
            ("empty", ["", "", "", ""]),
        ] {
            let sys = Sys::new(name)
                .with_each("acpi_cppc/highest_perf", texts)
                .with_each("cpu_capacity", texts);
            let (ranks, complaints) = Ranks::read(&sys.0, &CPUS);
            assert_eq!(ranks, None, "{name}");
            let expected = ["acpi_cppc/highest_perf", "cpu_capacity"];
            assert_eq!(
                complaints,
                expected.map(|file| format!("{file} of CPU 0 is no priority"))
            );
        }
    }

    #[test]
    fn equal_priorities_make_no_difference_and_no_noise() {
        let sys = Sys::new("equal").with_each("acpi_cppc/highest_perf", ["7", "7", "7", "7"]);
        assert_eq!(sys.ranks(), None);
    }

    #[test]
    fn priorities_of_some_cpus_only_are_not_used() {
        let few = "CPU #\tPriority\n0\t9\n1\t8\n2\t7\n3\t6\n";
        let sys = Sys::new("some")
            .with_each("cpu_capacity", ["9", "8", "7", "6"])
            .with(PathBuf::from("kernel/debug/x86").join(KERNEL), few)
            .with("devices/cpu_core/cpus", "0-1\n")
            .with("devices/cpu_atom/cpus", "2-3\n");
        let (ranks, complaints) = Ranks::read(&sys.0, &[0, 1, 2, 3, 4]);
        assert_eq!(ranks, None);
        assert_eq!(
            complaints,
            [
                "cpu_capacity of CPU 4 is no priority",
                "sched_core_priority of CPU 4 is no priority",
                "the lists cpu_core and cpu_atom leave out a CPU",
            ]
        );
    }

    #[test]
    fn a_worse_source_stands_in_for_a_nonsensical_one() {
        let sys = Sys::new("fallback")
            .with_each("acpi_cppc/highest_perf", ["0", "0", "0", "0"])
            .with_each("cpu_capacity", ["1024", "1024", "600", "600"]);
        let (ranks, complaints) = Ranks::read(&sys.0, &CPUS);
        assert_eq!(ranks.unwrap().source, "cpu_capacity");
        assert_eq!(complaints.len(), 1);
    }

    #[test]
    fn what_the_kernel_goes_by_comes_before_kinds() {
        // Also of CPUs that are not online, whose priority nobody has set.
        let text = "CPU #\tPriority\n0\t203\n1\t135\n2\t196\n3\t135\n4\t0\n";
        let sys = Sys::new("kernel")
            .with(PathBuf::from("kernel/debug/x86").join(KERNEL), text)
            .with("devices/cpu_core/cpus", "0-1\n")
            .with("devices/cpu_atom/cpus", "2-3\n");
        let ranks = sys.ranks().unwrap();
        assert_eq!(ranks.source, KERNEL);
        assert_eq!(classes(&ranks), [0, 1, 0, 1]);
    }

    #[test]
    fn kinds_come_before_frequencies() {
        let sys = Sys::new("kinds")
            .with_each("cpufreq/cpuinfo_max_freq", ["50", "49", "48", "47"])
            .with("devices/cpu_core/cpus", "0-1\n")
            .with("devices/cpu_atom/cpus", "2-3\n");
        let ranks = sys.ranks().unwrap();
        assert_eq!(ranks.source, "cpu_core and cpu_atom");
        assert_eq!(classes(&ranks), [0, 0, 1, 1]);
    }

    fn given(text: &str, present: &[usize], online: &[usize]) -> Result<Option<Ranks>, String> {
        let Asym::Priorities(priorities) = parse(text)? else {
            panic!("a list");
        };
        Ranks::given(&priorities, present, online).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_names_every_cpu_once() {
        let refused = given("0-1:100,2,3:60", &CPUS, &CPUS).unwrap_err();
        assert!(refused.contains("`2`"), "{refused}");
        let ranks = given("0-1:100,2-3:60", &CPUS, &CPUS).unwrap().unwrap();
        assert_eq!(classes(&ranks), [0, 0, 1, 1]);
        assert_eq!(given("0-3:5", &CPUS, &CPUS), Ok(None));
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
            assert!(given(bad, &CPUS, &CPUS).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_outlives_the_cpus_that_go_offline() {
        let ranks = given("0:100,1-2:60,3:30", &CPUS, &[1, 2, 3])
            .unwrap()
            .unwrap();
        assert_eq!([1, 2, 3].map(|cpu| ranks.class(cpu)), [0, 0, 1]);
        assert_eq!(ranks.capacity(1), FULL_CAPACITY);
        assert_eq!(given("0:100,1-3:60", &CPUS, &[1, 2, 3]), Ok(None));
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

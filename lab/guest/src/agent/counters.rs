//! The kernel's counters around a step.
//!
//! /proc/schedstat changed its version twice lately: 16 (6.10) reordered and 17 (6.15) renamed the
//! fields of the *domain* lines. The lines of the CPUs, all that is read here, are those of
//! version 15 (Documentation/scheduler/sched-stats.rst).
//!
//! Most of schedstat is off unless a job writes 1 to /proc/sys/kernel/sched_schedstats. The agent leaves it
//! off, as the kernel does: it slows down what it counts (`heddle-load pingpong --cpus 1` shows by how much).

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// sched_ext's events, one `NAME VALUE` a line (since 6.15; kernel/sched/ext.c, scx_attr_events_show).
const SCX_EVENTS: &str = "/sys/kernel/sched_ext/root/events";

const SCHEDSTAT_VERSIONS: std::ops::RangeInclusive<u32> = 15..=17;

const SCHEDSTATS_SWITCH: &str = "/proc/sys/kernel/sched_schedstats";

/// A counter of each CPU, by the CPU's number; CPUs that are offline have none.
type PerCpu = Vec<u64>;

/// One reading of all counters.
pub struct Counters {
    switches: u64,
    schedstat: Schedstat,
    /// Whether all of schedstat counts, or only the delays.
    schedstats_on: bool,
    interrupts: BTreeMap<String, PerCpu>,
    scx_events: BTreeMap<String, u64>,
}

/// Differences between two readings, summed over the CPUs. A CPU that went offline counts for nothing.
#[derive(Debug, Serialize)]
pub struct Differences {
    /// Context switches (`ctxt` of /proc/stat).
    pub switches: u64,
    /// Time that runnable tasks waited for a CPU.
    pub run_delay_ns: u64,
    /// None while schedstat is off.
    #[serde(flatten)]
    pub calls: Option<Calls>,
    /// By the kernel's own letters (RES, CAL, TLB, LOC...); `device` is the sum of numbered ones; no zeros.
    pub interrupts: BTreeMap<String, u64>,
    /// sched_ext's events by name; no zeros.
    pub scx_events: BTreeMap<String, u64>,
}

/// How often the kernel went through the scheduler's doors.
#[derive(Debug, Serialize)]
pub struct Calls {
    /// `schedule()`.
    pub sched_count: u64,
    /// `schedule()` that found nothing to run.
    pub sched_goidle: u64,
    /// Wakeups.
    pub ttwu_count: u64,
    /// Wakeups on the waker's own CPU.
    pub ttwu_local: u64,
}

impl Counters {
    /// Reads all counters.
    ///
    /// # Errors
    /// Names the file that is missing or that has an unknown format.
    pub fn read() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        Ok(Self {
            switches: parse_ctxt(&read("/proc/stat")?)?,
            schedstat: Schedstat::parse(&read("/proc/schedstat")?)?,
            schedstats_on: read(SCHEDSTATS_SWITCH)?.trim() == "1",
            interrupts: parse_interrupts(&read("/proc/interrupts")?)?,
            // Absent while no scheduler is attached, and before 6.15.
            scx_events: parse_events(&fs::read_to_string(SCX_EVENTS).unwrap_or_default()),
        })
    }

    /// Returns how far the counters moved since an earlier reading.
    pub fn since(&self, before: &Self) -> Differences {
        let scx_event = |name: &str, value: u64| {
            // Counters start again with every scheduler that is attached.
            value.checked_sub(before.scx_events.get(name).copied().unwrap_or(0)).unwrap_or(value)
        };
        let none = PerCpu::new();
        Differences {
            switches: self.switches - before.switches,
            run_delay_ns: moved(&self.schedstat.run_delay_ns, &before.schedstat.run_delay_ns),
            calls: self.schedstats_on.then(|| self.schedstat.calls_since(&before.schedstat)),
            interrupts: self
                .interrupts
                .iter()
                .map(|(name, counts)| {
                    (name.clone(), moved(counts, before.interrupts.get(name).unwrap_or(&none)))
                })
                .filter(|(_, moved)| *moved > 0)
                .collect(),
            scx_events: self
                .scx_events
                .iter()
                .map(|(name, &value)| (name.clone(), scx_event(name, value)))
                .filter(|(_, moved)| *moved > 0)
                .collect(),
        }
    }
}

fn moved(after: &PerCpu, before: &PerCpu) -> u64 {
    let earlier = before.iter().chain(std::iter::repeat(&0));
    after.iter().zip(earlier).map(|(after, before)| after.saturating_sub(*before)).sum()
}

/// The fields in use of /proc/schedstat's CPU lines.
#[derive(Debug, Default)]
struct Schedstat {
    sched_count: PerCpu,
    sched_goidle: PerCpu,
    ttwu_count: PerCpu,
    ttwu_local: PerCpu,
    run_delay_ns: PerCpu,
}

impl Schedstat {
    fn parse(text: &str) -> Result<Self> {
        let version = text.lines().next().and_then(|line| line.strip_prefix("version ")?.trim().parse().ok());
        match version {
            Some(version) if SCHEDSTAT_VERSIONS.contains(&version) => {}
            Some(version) => bail!("/proc/schedstat has version {version}, known are {SCHEDSTAT_VERSIONS:?}"),
            None => bail!("/proc/schedstat does not begin with its version"),
        }
        let mut stat = Self::default();
        for line in text.lines() {
            let Some((cpu, fields)) = line.strip_prefix("cpu").and_then(|line| line.split_once(' ')) else {
                continue;
            };
            let (Ok(cpu), Some(fields)) = (cpu.parse(), numbers(fields)) else {
                bail!("/proc/schedstat: bad line '{line}'");
            };
            // yld_count, 0, sched_count, sched_goidle, ttwu_count, ttwu_local, rq_cpu_time, run_delay, pcount
            let &[_, _, sched_count, sched_goidle, ttwu_count, ttwu_local, _, run_delay, _] =
                fields.as_slice()
            else {
                bail!("/proc/schedstat: 'cpu{cpu}' has {} fields, not 9", fields.len());
            };
            set(&mut stat.sched_count, cpu, sched_count);
            set(&mut stat.sched_goidle, cpu, sched_goidle);
            set(&mut stat.ttwu_count, cpu, ttwu_count);
            set(&mut stat.ttwu_local, cpu, ttwu_local);
            set(&mut stat.run_delay_ns, cpu, run_delay);
        }
        Ok(stat)
    }

    fn calls_since(&self, before: &Self) -> Calls {
        Calls {
            sched_count: moved(&self.sched_count, &before.sched_count),
            sched_goidle: moved(&self.sched_goidle, &before.sched_goidle),
            ttwu_count: moved(&self.ttwu_count, &before.ttwu_count),
            ttwu_local: moved(&self.ttwu_local, &before.ttwu_local),
        }
    }
}

fn set(counter: &mut PerCpu, cpu: usize, value: u64) {
    if counter.len() <= cpu {
        counter.resize(cpu + 1, 0);
    }
    counter[cpu] = value;
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

fn parse_ctxt(stat: &str) -> Result<u64> {
    stat.lines()
        .find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok())
        .context("/proc/stat has no line 'ctxt'")
}

/// Parses /proc/interrupts: a header with the online CPUs, then `NAME: one count per CPU, description`.
/// ERR and MIS have a single count that belongs to no CPU; it is booked on the first.
fn parse_interrupts(text: &str) -> Result<BTreeMap<String, PerCpu>> {
    let header = text.lines().next().unwrap_or_default();
    let cpus: Option<Vec<usize>> =
        header.split_whitespace().map(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let cpus =
        cpus.filter(|cpus| !cpus.is_empty()).context("/proc/interrupts does not begin with its CPUs")?;
    let mut interrupts = BTreeMap::<String, PerCpu>::new();
    for line in text.lines().skip(1) {
        let Some((name, counts)) = line.split_once(':') else {
            bail!("/proc/interrupts: bad line '{line}'");
        };
        let name = name.trim();
        let is_device = name.bytes().all(|byte| byte.is_ascii_digit());
        let row = interrupts.entry(if is_device { "device" } else { name }.to_owned()).or_default();
        let counts = counts.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        for (&cpu, count) in cpus.iter().zip(counts) {
            let sum = row.get(cpu).copied().unwrap_or(0) + count;
            set(row, cpu, sum);
        }
    }
    Ok(interrupts)
}

fn parse_events(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a booted guest of each kernel said.
    macro_rules! samples {
        ($file:literal) => {
            [
                include_str!(concat!("../../samples/6.18/", $file)),
                include_str!(concat!("../../samples/7.3/", $file)),
            ]
        };
    }

    #[test]
    fn reads_schedstat_of_both_kernels() {
        let [old, new] = samples!("schedstat").map(|text| Schedstat::parse(text).unwrap());
        assert_eq!(old.sched_count, [29, 189, 507, 20]);
        assert_eq!(old.sched_goidle, [5, 91, 253, 8]);
        assert_eq!(old.ttwu_count, [41, 68, 249, 3]);
        assert_eq!(old.ttwu_local, [9, 65, 244, 2]);
        assert_eq!(old.run_delay_ns, [77_439_496, 26_001_684, 46_316_778, 31_741_828]);
        assert_eq!(new.sched_count, [100, 413, 23, 53]);
        assert_eq!(new.run_delay_ns, [28_440_735, 42_642_786, 49_696_200, 10_395_763]);
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for (text, word) in [
            ("", "version"),
            ("version 99\n", "version 99"),
            ("version 17\ncpu0 1 2 3\n", "'cpu0' has 3 fields"),
            ("version 17\ncpu0 1 2 3 4 5 6 7 8 x\n", "bad line"),
        ] {
            let error = format!("{:#}", Schedstat::parse(text).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(parse_interrupts("").is_err());
        assert!(parse_interrupts("CPU0\nnonsense\n").is_err());
        assert!(parse_ctxt("cpu 1 2\n").is_err());
    }

    #[test]
    fn reads_interrupts_of_both_kernels() {
        let [old, new] = samples!("interrupts").map(|text| parse_interrupts(text).unwrap());
        assert_eq!(new["RES"], [13, 20, 10, 65]);
        assert_eq!(new["CAL"], [261, 445, 277, 356]);
        assert_eq!(new["device"], [103, 13, 1, 4]);
        assert_eq!(old["ERR"], [0]);
        assert!(old.keys().chain(new.keys()).all(|name| name == "device" || name.len() >= 3));
    }

    #[test]
    fn reads_switches_and_events_of_both_kernels() {
        assert_eq!(samples!("stat").map(|text| parse_ctxt(text).unwrap()), [2723, 2345]);
        let [old, new] = samples!("events").map(parse_events);
        assert_eq!((old.len(), new.len()), (9, 21));
        assert!(old.keys().all(|name| name.starts_with("SCX_EV_") && new.contains_key(name)));
        assert_eq!(parse_events("SCX_EV_A 3\nSCX_EV_B 0\n")["SCX_EV_A"], 3);
    }

    fn reading(schedstat: &str, interrupts: &str, events: &str) -> Counters {
        Counters {
            switches: 0,
            schedstat: Schedstat::parse(schedstat).unwrap(),
            schedstats_on: true,
            interrupts: parse_interrupts(interrupts).unwrap(),
            scx_events: parse_events(events),
        }
    }

    #[test]
    fn differences_survive_hotplug_and_restarts() {
        let before = reading(
            "version 17\ncpu0 0 0 10 0 0 0 0 0 0\ncpu1 0 0 100 0 0 0 0 0 0\n",
            "CPU0 CPU1\nRES: 5 50 text\n",
            "SCX_EV_A 7\nSCX_EV_B 2\n",
        );
        // CPU 1 went offline, CPU 2 came, the scheduler was started anew.
        let after = reading(
            "version 17\ncpu0 0 0 13 0 0 0 0 0 0\ncpu2 0 0 4 0 0 0 0 0 0\n",
            "CPU0 CPU2\nRES: 6 2 text\n",
            "SCX_EV_A 1\nSCX_EV_B 2\n",
        );
        let moved = after.since(&before);
        assert_eq!(moved.calls.unwrap().sched_count, 7);
        assert_eq!(moved.interrupts, BTreeMap::from([("RES".to_owned(), 3)]));
        assert_eq!(moved.scx_events, BTreeMap::from([("SCX_EV_A".to_owned(), 1)]));
    }
}

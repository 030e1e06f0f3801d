// SPDX-License-Identifier: GPL-2.0-only

//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use clap_complete::Shell;

use crate::config;
use crate::metrics;
use crate::ranks::{self, Asym};

// The headings of --help, one a mechanism.
const RUN_QUEUE: &str = "Run queue";
const GLOBAL_QUEUE: &str = "Global queue";
const WAKE_QUEUE: &str = "Shared wake queue";
const IDLE_SEARCH: &str = "Idle search";
const ASYMMETRY: &str = "CPUs of different speed";
const GROUPS: &str = "Control groups";
const OBSERVATION: &str = "Observation";
const OPERATION: &str = "Operation";

/// A sched_ext scheduler of per-CPU queues in virtual time.
///
/// Runs until interrupted; the kernel's own scheduler then takes over again.
#[derive(Debug, Parser)]
#[command(name = "scx_heddle", version)]
pub struct Options {
    /// How runnable tasks are queued
    #[arg(long, value_enum, default_value_t = RunQueue::Percpu, help_heading = RUN_QUEUE)]
    pub runq: RunQueue,

    /// What the lock of the global queue is taken for
    #[arg(long, value_enum, default_value_t = Locking::Vrq, help_heading = GLOBAL_QUEUE)]
    pub locking: Locking,

    /// End with an error if a rule of --locking is broken (for tests)
    #[arg(long, help_heading = GLOBAL_QUEUE)]
    pub lock_check: bool,

    /// When a CPU that switches tasks wakes an idle one for the task before (global queue)
    #[arg(long, value_enum, default_value_t = ReschedIdle::Table, help_heading = GLOBAL_QUEUE)]
    pub resched_idle: ReschedIdle,

    /// Whether idle CPUs take the wakee first that has waited longest
    #[arg(long, value_enum, default_value_t = WakeQueue::Llc, help_heading = WAKE_QUEUE)]
    pub wakeq: WakeQueue,

    /// CPUs that share a wake queue in a large LLC; cores are not divided
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = WAKE_QUEUE)]
    pub wakeq_shard: u32,

    /// Whether idle CPUs also take the longest waiting wakee of other LLCs
    #[arg(long, value_enum, default_value_t = WakeQueueSteal::Node, help_heading = WAKE_QUEUE)]
    pub wakeq_steal: WakeQueueSteal,

    /// Have the CPU that a wakee goes to queue it, if it idles, and not the waker [default: on
    /// where the kernel lets schedulers choose]
    #[arg(long, value_enum, value_name = "SWITCH", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", help_heading = IDLE_SEARCH)]
    pub queued_wakeup: Option<Switch>,

    /// How idle CPUs are known to those who look for one
    #[arg(long, value_enum, default_value_t = Idle::Mask, help_heading = IDLE_SEARCH)]
    pub idle: Idle,

    /// Look for an idle CPU in the other LLCs of the node too, when a task wakes up
    #[arg(long, value_enum, value_name = "SWITCH", num_args = 0..=1, require_equals = true,
          default_value_t = Switch::On, default_missing_value = "on", help_heading = IDLE_SEARCH)]
    pub sis_node: Switch,

    /// A waker that is about to sleep and runs for no longer than this at a time, on average,
    /// hands its CPU over to its wakee; 0: none does
    #[arg(long, value_name = "US", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000), help_heading = IDLE_SEARCH)]
    pub wake_sync_us: u64,

    /// Which CPUs are better, where they differ: as the machine says, as none, or by a list
    /// such as 0-15:100,16-23:60 (a higher number is faster). With `off`, nothing that runs
    /// moves to a better place, not even off a core that two threads share
    #[arg(long, value_name = "auto|off|PRIORITIES", default_value = "auto",
          value_parser = ranks::parse, help_heading = ASYMMETRY)]
    pub asym: Asym,

    /// When a running task moves to a better CPU
    #[arg(long, value_enum, default_value_t = AsymRule::Core, help_heading = ASYMMETRY)]
    pub asym_rule: AsymRule,

    /// What tasks share evenly where CPUs differ in speed
    #[arg(long, value_enum, default_value_t = Fair::Time, help_heading = ASYMMETRY)]
    pub fair: Fair,

    /// How long a task may run while others wait, in microseconds [default: 3000, of the
    /// global queue 6000]
    #[arg(long, value_name = "US",
          value_parser = clap::value_parser!(u64).range(100..=1_000_000), help_heading = RUN_QUEUE)]
    pub slice_us: Option<u64>,

    /// How far, in CPU time of its own, a wakee must be behind the running task to preempt it
    #[arg(long, value_name = "US", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(..=1_000_000), help_heading = RUN_QUEUE)]
    pub wakeup_granularity_us: u64,

    /// Whether cpu.weight, cpu.idle and cpu.max of cgroups count [default: flat where the
    /// kernel tells schedulers of cgroups]
    #[arg(long, value_enum, help_heading = GROUPS)]
    pub cgroup: Option<Cgroup>,

    /// How the scheduler learns of cpu.max [default: told where the kernel tells, from Linux
    /// 6.17 on, else watch]
    #[arg(long, value_enum, help_heading = GROUPS)]
    pub cpu_max: Option<CpuMax>,

    /// Schedule only tasks that ask for it (SCHED_EXT), leave the rest alone
    #[arg(long, help_heading = RUN_QUEUE)]
    pub partial: bool,

    /// Print what happened every SEC seconds
    #[arg(long, value_name = "SEC", value_parser = seconds, help_heading = OBSERVATION)]
    pub stats: Option<Duration>,

    /// Schedule nothing: show the statistics of the running scx_heddle every SEC seconds, as a
    /// view on a terminal, as lines elsewhere; wait for it where none runs
    #[arg(long, value_name = "SEC", value_parser = seconds, conflicts_with = "stats", help_heading = OBSERVATION)]
    pub monitor: Option<Duration>,

    /// Serve the counters to Prometheus at this port of the loopback address, or at ADDRESS:PORT
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = metrics::parse_address,
          help_heading = OBSERVATION)]
    pub metrics: Option<SocketAddr>,

    /// Count what /proc/schedstat does too, by cause, and the global queue's lock by call site
    #[arg(long, help_heading = OBSERVATION)]
    pub schedstat: bool,

    /// Print the statistics of --stats or --monitor as JSON, one object a line
    #[arg(long, help_heading = OBSERVATION)]
    pub json: bool,

    /// Print what each counter counts and exit
    #[arg(long, help_heading = OBSERVATION)]
    pub help_stats: bool,

    /// Take options from a file, TOML with their long names as keys; what is given here wins
    #[arg(long, value_name = "FILE", help_heading = OPERATION)]
    pub config: Option<PathBuf>,

    /// Say whether this machine can load the scheduler, and what is missing, and exit
    #[arg(long, help_heading = OPERATION)]
    pub check: bool,

    /// Print the completions of a shell and exit
    #[arg(long, value_name = "SHELL", help_heading = OPERATION)]
    pub completions: Option<Shell>,

    /// Print the manual page, in roff, and exit
    #[arg(long, help_heading = OPERATION)]
    pub man: bool,

    /// Print the CPUs as the scheduler sees them and exit
    #[arg(long, help_heading = OPERATION)]
    pub topology: bool,

    /// Log more, such as what the verifier had to do; twice for libbpf's messages
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = OPERATION)]
    pub verbose: u8,
}

impl Options {
    /// Read this process's command line, and the file that it names. Help,
    /// version and mistakes on the command line end the process.
    ///
    /// # Errors
    /// The file cannot be read, or holds something wrong.
    pub fn read() -> Result<Self> {
        let command = Self::command();
        let given: Vec<OsString> = std::env::args_os().collect();
        let matches = command.clone().get_matches_from(&given);
        let options = match matches.get_one::<PathBuf>("config") {
            None => Self::from_arg_matches(&matches)?,
            Some(file) => {
                let more = config::arguments(file, &command, &matches)?;
                Self::parse_from(given.into_iter().chain(more))
            }
        };
        Ok(options.consistent().unwrap_or_else(|error| error.exit()))
    }

    /// What cannot be judged before the file has been read: either may be there, the other on the
    /// command line.
    ///
    /// # Errors
    /// An option has no effect without another.
    fn consistent(self) -> Result<Self, clap::Error> {
        if self.json && self.stats.is_none() && self.monitor.is_none() {
            let said = "--json is how --stats and --monitor print: give one of them too";
            return Err(Self::command().error(ErrorKind::MissingRequiredArgument, said));
        }
        Ok(self)
    }

    /// How long a task may run while others wait, in microseconds.
    pub fn slice_us(&self) -> u64 {
        self.slice_us.unwrap_or(match self.runq {
            RunQueue::Percpu => 3000,
            RunQueue::Global => 6000, // rr_interval of BFS
        })
    }
}

/// Where runnable tasks wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunQueue {
    /// One queue per CPU, ordered by virtual time
    Percpu,
    /// One queue, ordered by virtual deadline as in BFS
    Global,
}

/// The lock of the global queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Locking {
    /// For the queue, not to look at it nor at what tasks run (VRQ)
    Vrq,
    /// For every access to the queue, to tasks and to what CPUs run (BFS)
    Grq,
}

/// When a CPU that switches tasks wakes an idle one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReschedIdle {
    /// If the task before waits for a CPU
    Table,
    /// Always, also if it sleeps
    NextNotPrev,
}

/// The shared wake queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WakeQueue {
    /// One per LLC, or more (--wakeq-shard)
    Llc,
    /// None: idle CPUs take what is first in the nearest queue
    Off,
}

/// Where a shared wake queue is looked at when those of the LLC are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WakeQueueSteal {
    /// In the other LLCs of the node
    Node,
    /// Nowhere
    Off,
}

/// How idle CPUs are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Idle {
    /// A mask per LLC, kept at every idle entry and exit
    Mask,
    /// A mask per LLC that the tick clears of busy CPUs
    TickMask,
    /// No mask: every CPU of the LLC is looked at
    Scan,
    /// The kernel's masks and search
    Builtin,
}

/// When a CPU asks for a task that runs elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AsymRule {
    /// A core that idles helps those that share one, then slower ones (Linux 6.5)
    Core,
    /// By the truth table of Linux 5.16 to 6.4
    Table,
}

/// What weights are shares of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fair {
    /// CPU time
    Time,
    /// Work: time on a slower CPU counts less
    Work,
}

/// A mechanism that can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// The CPU controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cgroup {
    /// A task weighs what its groups leave it, on the one queue of its CPU
    Flat,
    /// Groups are ignored
    Off,
}

/// How the scheduler learns of cpu.max.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CpuMax {
    /// By the kernel
    Told,
    /// By the files of the cgroups
    Watch,
}

/// Parse an interval in seconds, fractions allowed.
fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if !(0.01..=86_400.0).contains(&value) {
        return Err(format!("{text} s is not between 0.01 and 86400 s"));
    }
    Ok(Duration::from_secs_f64(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn intervals_may_have_fractions() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn nonsensical_intervals_are_refused() {
        for text in ["", "x", "0", "-1", "nan", "inf", "1e9"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn slices_have_bounds() {
        for us in ["0", "99", "1000001", "-1", "x"] {
            let args = ["scx_heddle", "--slice-us", us];
            assert!(Options::try_parse_from(args).is_err(), "{us}");
        }
    }

    #[test]
    fn the_slice_follows_from_the_queue_unless_it_is_given() {
        let slice = |args: &[&str]| {
            let options = Options::try_parse_from([&["scx_heddle"], args].concat()).unwrap();
            options.slice_us()
        };
        assert_eq!(slice(&[]), 3000);
        assert_eq!(slice(&["--runq", "global"]), 6000);
        assert_eq!(slice(&["--runq", "global", "--slice-us", "1000"]), 1000);
    }

    #[test]
    fn a_switch_without_a_value_is_on() {
        let switch = |args: &[&str]| {
            let args = [&["scx_heddle"], args].concat();
            Options::try_parse_from(args).unwrap().sis_node
        };
        assert_eq!(switch(&["--sis-node"]), Switch::On);
        assert_eq!(switch(&["--sis-node=off"]), Switch::Off);
    }

    #[test]
    fn json_is_of_statistics() {
        let judged = |args: &[&str]| {
            let options = Options::try_parse_from([&["scx_heddle"], args].concat()).unwrap();
            options.consistent().map(|options| options.json)
        };
        assert!(judged(&["--json", "--stats", "1"]).unwrap());
        assert!(judged(&["--json", "--monitor", "1"]).unwrap());
        assert!(!judged(&[]).unwrap());
        let error = judged(&["--json"]).unwrap_err().to_string();
        assert!(error.lines().next().unwrap().contains("--stats"), "{error}");
    }

    #[test]
    fn monitor_and_stats_exclude_each_other() {
        let args = ["scx_heddle", "--monitor", "1", "--stats", "1"];
        assert!(Options::try_parse_from(args).is_err());
    }
}

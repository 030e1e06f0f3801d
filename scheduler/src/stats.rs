// SPDX-License-Identifier: GPL-2.0-only

//! What the scheduler counts. Each counter is documented here, once; every
//! output takes its names and texts from this struct.

use std::collections::BTreeMap;

use anyhow::Result;
use scx_stats::prelude::*;
use scx_stats_derive::Stats;
use serde::{Deserialize, Serialize};

use crate::bpf_skel::types;

macro_rules! counters {
    ($(#[stat(desc = $text:literal)] $name:ident,)*) => {
        /// Events since the last report, over all CPUs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Stats)]
        #[stat(top)]
        pub struct Counters {
            $(#[stat(desc = $text)] pub $name: u64,)*
        }

        impl Counters {
            /// Names and what they count, in the order of declaration.
            pub const ABOUT: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), $text),)*];

            /// Add one CPU's counters.
            pub fn add_cpu(&mut self, cpu: &types::cpu_stats) {
                $(self.$name = self.$name.wrapping_add(cpu.$name);)*
            }

            /// Add what was counted elsewhere.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            /// What was counted since `earlier`.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }

            /// Names and values, in the order of declaration.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

impl Counters {
    /// The longest that the shortest `part` (0 to 1) of the waits for a CPU took: the upper end of
    /// the bucket in which the last of them is. None without `--schedstat`, or if nobody waited.
    pub fn waited(&self, part: f64) -> Option<&'static str> {
        let buckets = [
            ("<16us", self.waited_16us),
            ("<64us", self.waited_64us),
            ("<256us", self.waited_256us),
            ("<1ms", self.waited_1ms),
            ("<4ms", self.waited_4ms),
            ("<16ms", self.waited_16ms),
            ("<64ms", self.waited_64ms),
            (">64ms", self.waited_longer),
        ];
        let waits: u64 = buckets.iter().map(|(_, waits)| waits).sum();
        let last = (waits as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        buckets.into_iter().find_map(|(end, waits)| {
            seen += waits;
            (seen >= last).then_some(end)
        })
    }
}

counters! {
    #[stat(desc = "Tasks queued on a CPU that idles, to run there at once")]
    idle_direct,
    #[stat(desc = "Wakeups to which a brief waker about to sleep hands its own CPU")]
    handed_over,
    #[stat(desc = "Tasks sent to an idle CPU as they were being queued: it has just gone idle, or they were put aside")]
    idle_late,
    #[stat(desc = "Tasks put on a CPU's queue")]
    queued,
    #[stat(desc = "Pinned tasks and per-CPU kernel threads put past the queue")]
    local,
    #[stat(desc = "Wakeups that preempted the running task")]
    preempt,
    #[stat(desc = "Slices granted anew to the task that was running")]
    kept,
    #[stat(desc = "Tasks pulled from a queue in the LLC by a CPU without work")]
    pull_llc,
    #[stat(desc = "Tasks pulled from another LLC of the node by a CPU without work")]
    pull_node,
    #[stat(desc = "Tasks pulled from another node by a CPU without work")]
    pull_far,
    #[stat(desc = "Queues found to hold nothing for the CPU that looked")]
    pull_miss,
    #[stat(desc = "Running tasks exchanged for one that was further behind elsewhere")]
    exchange,
    #[stat(desc = "Time that tasks waited while a CPU idled that they may use, ns, by ticks, which have that CPU take them")]
    wasted_idle_ns,
    #[stat(desc = "Tasks moved off a CPU that another class had taken")]
    rescued,
    #[stat(desc = "Tasks run out of turn because they had waited for seconds, or held up RCU")]
    relieved,
    #[stat(desc = "Wakeups that looked for an idle CPU (not by --idle builtin)")]
    idle_search,
    #[stat(desc = "CPUs looked at in those and in later searches")]
    idle_examined,
    #[stat(desc = "Idle CPUs found and claimed")]
    idle_claim,
    #[stat(desc = "Claims of a CPU that was busy, or that then got no task")]
    idle_claim_false,
    #[stat(desc = "Wakeups sent to a CPU that ran nothing but a SCHED_IDLE task")]
    sched_idle_claim,
    #[stat(desc = "Wakees that the shared wake queue refers to")]
    wakeq_offered,
    #[stat(desc = "Wakees not offered: pinned to their CPU")]
    wakeq_pinned,
    #[stat(desc = "Wakees not offered: moved to their CPU on purpose")]
    wakeq_migrated,
    #[stat(desc = "Wakees not offered: the queue was full, as no CPU idles")]
    wakeq_full,
    #[stat(desc = "Wakees not offered: another CPU was offering at the time")]
    wakeq_busy,
    #[stat(desc = "Oldest wakees taken by a CPU of their LLC without work")]
    wakeq_pulled,
    #[stat(desc = "Oldest wakees taken by another LLC of the node")]
    wakeq_stolen,
    #[stat(desc = "References dropped: the wakee ran before, at home as a rule")]
    wakeq_gone,
    #[stat(desc = "References dropped: the wakee waits there again, since later")]
    wakeq_stale,
    #[stat(desc = "References dropped: the wakee may not run on the CPU that took it")]
    wakeq_barred,
    #[stat(desc = "Wakeups in a cgroup without a slot, counted to an ancestor")]
    group_overflow,
    #[stat(desc = "Tasks parked because a cgroup of theirs had used up its cpu.max")]
    parked,
    #[stat(desc = "Periods of cpu.max that began, of cgroups that ran")]
    nr_periods,
    #[stat(desc = "Periods of cpu.max at whose end a cgroup was throttled")]
    nr_throttled,
    #[stat(desc = "Time that cgroups were throttled, us")]
    throttled_usec,
    #[stat(desc = "Tasks placed on an idle core of the fastest class")]
    asym_fastest,
    #[stat(desc = "Tasks placed on an idle core of a slower class")]
    asym_slower,
    #[stat(desc = "Tasks placed beside a busy thread of the same core")]
    asym_sibling,
    #[stat(desc = "Running tasks that a CPU asked for when it went idle")]
    asym_help,
    #[stat(desc = "Running tasks for which a tick found a better CPU")]
    asym_flee,
    #[stat(desc = "Running tasks that moved to a better CPU")]
    asym_moved,
    #[stat(desc = "Running tasks that were asked for but may not run there")]
    asym_refused,
    #[stat(desc = "Time that a task shared a core or ran on a slower one while a better one idled that it may use, ns, by ticks")]
    asym_better_idle_ns,
    #[stat(desc = "Idle CPUs woken for a task that was queued, or that went to sleep (--resched-idle)")]
    resched_idle,
    #[stat(desc = "Tasks of a CPU set that got no lane in the global queue: too many sets")]
    confine_overflow,
    #[stat(desc = "Tasks that got no node in the global queue: too many tasks")]
    nodes_exhausted,
    #[stat(desc = "Decisions what to run next, idling included (--schedstat)")]
    sched_count,
    #[stat(desc = "Passes from idle to idle (--schedstat)")]
    goidle_idle,
    #[stat(desc = "Passes to idle as the task went to sleep (--schedstat)")]
    goidle_deactivate,
    #[stat(desc = "Passes to idle as the task may no longer run here (--schedstat)")]
    goidle_needother,
    #[stat(desc = "Wakeups (--schedstat)")]
    ttwu_count,
    #[stat(desc = "Wakeups to the CPU of the waker, of tasks that may run on others (--schedstat)")]
    ttwu_local,
    #[stat(desc = "Time that tasks ran, ns (--schedstat)")]
    rq_cpu_time,
    #[stat(desc = "Time that tasks waited since they were queued or moved to their CPU, ns (--schedstat)")]
    run_delay,
    #[stat(desc = "Times that a task was given a CPU (--schedstat)")]
    pcount,
    #[stat(desc = "Waits for a CPU of less than 16 us (--schedstat)")]
    waited_16us,
    #[stat(desc = "Waits for a CPU of less than 64 us, not less than 16 us (--schedstat)")]
    waited_64us,
    #[stat(desc = "Waits for a CPU of less than 256 us, not less than 64 us (--schedstat)")]
    waited_256us,
    #[stat(desc = "Waits for a CPU of less than 1 ms, not less than 256 us (--schedstat)")]
    waited_1ms,
    #[stat(desc = "Waits for a CPU of less than 4 ms, not less than 1 ms (--schedstat)")]
    waited_4ms,
    #[stat(desc = "Waits for a CPU of less than 16 ms, not less than 4 ms (--schedstat)")]
    waited_16ms,
    #[stat(desc = "Waits for a CPU of less than 64 ms, not less than 16 ms (--schedstat)")]
    waited_64ms,
    #[stat(desc = "Waits for a CPU of 64 ms and more (--schedstat)")]
    waited_longer,
    #[stat(desc = "Global lock: taken to queue a task (--schedstat)")]
    lock_enqueue,
    #[stat(desc = "Global lock: found held to queue a task (--schedstat)")]
    lock_enqueue_contended,
    #[stat(desc = "Global lock: waited for and held to queue a task, ns (--schedstat)")]
    lock_enqueue_ns,
    #[stat(desc = "Global lock: taken to take a task out that changes (--schedstat)")]
    lock_dequeue,
    #[stat(desc = "Global lock: found held to take a task out that changes (--schedstat)")]
    lock_dequeue_contended,
    #[stat(desc = "Global lock: waited for and held to take a task out that changes, ns (--schedstat)")]
    lock_dequeue_ns,
    #[stat(desc = "Global lock: taken to take the next task (--schedstat)")]
    lock_pick,
    #[stat(desc = "Global lock: found held to take the next task (--schedstat)")]
    lock_pick_contended,
    #[stat(desc = "Global lock: waited for and held to take the next task, ns (--schedstat)")]
    lock_pick_ns,
    #[stat(desc = "Global lock: taken for what a task and its CPU tell (--locking grq) (--schedstat)")]
    lock_task,
    #[stat(desc = "Global lock: found held for what a task and its CPU tell (--locking grq) (--schedstat)")]
    lock_task_contended,
    #[stat(desc = "Global lock: waited for and held for what a task and its CPU tell (--locking grq), ns (--schedstat)")]
    lock_task_ns,
    #[stat(desc = "Global lock: taken to find the CPU to preempt (--locking grq) (--schedstat)")]
    lock_search,
    #[stat(desc = "Global lock: found held to find the CPU to preempt (--locking grq) (--schedstat)")]
    lock_search_contended,
    #[stat(desc = "Global lock: waited for and held to find the CPU to preempt (--locking grq), ns (--schedstat)")]
    lock_search_ns,
    #[stat(desc = "Global lock: taken as tasks come, go and change their affinity (--schedstat)")]
    lock_slot,
    #[stat(desc = "Global lock: found held as tasks come, go and change their affinity (--schedstat)")]
    lock_slot_contended,
    #[stat(desc = "Global lock: waited for and held as tasks come, go and change their affinity, ns (--schedstat)")]
    lock_slot_ns,
}

/// What a cgroup with a quota was throttled since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Stats)]
pub struct Throttled {
    #[stat(desc = "Periods of cpu.max at whose end it was throttled")]
    pub nr_throttled: u64,
    #[stat(desc = "Time that it was throttled, us")]
    pub throttled_usec: u64,
}

impl Throttled {
    /// What was counted since `earlier`. A cgroup whose quota was lifted and set counts anew.
    fn since(&self, earlier: &Self) -> Self {
        let anew = self.nr_throttled < earlier.nr_throttled
            || self.throttled_usec < earlier.throttled_usec;
        if anew {
            return *self;
        }
        Self {
            nr_throttled: self.nr_throttled - earlier.nr_throttled,
            throttled_usec: self.throttled_usec - earlier.throttled_usec,
        }
    }
}

/// What was counted since the scheduler was attached.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// By the LLC's number.
    pub llcs: BTreeMap<usize, Counters>,
    /// Of the cgroups that have a quota, by their number in cgroupfs.
    pub groups: BTreeMap<u64, Throttled>,
}

impl Sample {
    /// What was counted on the whole machine.
    pub fn total(&self) -> Counters {
        let mut total = Counters::default();
        for counters in self.llcs.values() {
            total.add(counters);
        }
        total
    }
}

/// Events since the last report, by LLC: the target `llc` of the socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
pub struct Llcs {
    #[stat(desc = "Counters of each LLC, by its number in --topology")]
    pub llcs: BTreeMap<usize, Counters>,
}

/// What was throttled since the last report: the target `group` of the socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
pub struct Groups {
    #[stat(desc = "Throttling of each cgroup with a quota, by its number (inode) in cgroupfs")]
    pub groups: BTreeMap<u64, Throttled>,
}

/// What each has counted since `earlier`; one that was not there yet, all of it.
fn between<K: Copy + Ord, T: Default>(
    earlier: &BTreeMap<K, T>,
    now: &BTreeMap<K, T>,
    since: fn(&T, &T) -> T,
) -> BTreeMap<K, T> {
    let zero = T::default();
    now.iter()
        .map(|(&of, counted)| (of, since(counted, earlier.get(&of).unwrap_or(&zero))))
        .collect()
}

/// The server's side of the channel between it and the scheduler's loop.
pub type Server = StatsServer<(), Sample>;

/// Offer the counters on the scx_stats socket: the whole machine's as target
/// `top`, each LLC's as target `llc`, each throttled cgroup's as target `group`.
/// Each client gets differences from its own last request on.
///
/// # Errors
/// The socket cannot be made.
pub fn serve() -> Result<Server> {
    let data = StatsServerData::new()
        .add_meta(Counters::meta())
        .add_meta(Llcs::meta())
        .add_meta(Throttled::meta())
        .add_meta(Groups::meta())
        .add_ops(
            "top",
            differences(|last, now| now.total().since(&last.total()).to_json()),
        )
        .add_ops(
            "llc",
            differences(|last, now| {
                let llcs = between(&last.llcs, &now.llcs, Counters::since);
                Llcs { llcs }.to_json()
            }),
        )
        .add_ops(
            "group",
            differences(|last, now| {
                let groups = between(&last.groups, &now.groups, Throttled::since);
                Groups { groups }.to_json()
            }),
        );
    StatsServer::new(data).launch()
}

/// What a client is told of two samples: its last one and a new one.
type Tell = fn(&Sample, &Sample) -> Result<serde_json::Value>;

fn differences(tell: Tell) -> StatsOps<(), Sample> {
    let open: Box<dyn StatsOpener<(), Sample>> = Box::new(move |(req, res)| {
        req.send(())?;
        let mut last = res.recv()?;
        let read: Box<dyn StatsReader<(), Sample>> = Box::new(move |_args, (req, res)| {
            req.send(())?;
            let now = res.recv()?;
            let told = tell(&last, &now);
            last = now;
            told
        });
        Ok(read)
    });
    StatsOps { open, close: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_wrap() {
        let earlier = Counters {
            queued: u64::MAX,
            ..Default::default()
        };
        let now = Counters {
            queued: 1,
            ..Default::default()
        };
        assert_eq!(now.since(&earlier).queued, 2);
    }

    #[test]
    fn every_counter_is_described_the_same_everywhere() {
        let meta = Counters::meta();
        assert_eq!(Counters::ABOUT.len(), meta.fields.len());
        for (name, text) in Counters::ABOUT {
            assert_eq!(meta.fields[*name].attrs.desc.as_deref(), Some(*text));
            assert!(!text.is_empty() && !text.ends_with('.'), "{name}: {text}");
        }
    }

    #[test]
    fn a_percentile_of_waits_is_the_end_of_its_bucket() {
        let counters = Counters {
            waited_16us: 90,
            waited_1ms: 9,
            waited_longer: 1,
            ..Default::default()
        };
        let waited = |part| counters.waited(part);
        assert_eq!((waited(0.0), waited(0.5)), (Some("<16us"), Some("<16us")));
        assert_eq!((waited(0.9), waited(0.91)), (Some("<16us"), Some("<1ms")));
        assert_eq!((waited(0.99), waited(1.0)), (Some("<1ms"), Some(">64ms")));
        assert_eq!(Counters::default().waited(0.5), None);
    }

    #[test]
    fn llcs_add_up_to_the_machine() {
        let of = |queued| Counters {
            queued,
            ..Default::default()
        };
        let sample = |first, second| Sample {
            llcs: BTreeMap::from([(0, of(first)), (1, of(second))]),
            ..Default::default()
        };
        let (earlier, now) = (sample(1, 2), sample(11, 5));
        let told = between(&earlier.llcs, &now.llcs, Counters::since);
        assert_eq!((told[&0].queued, told[&1].queued), (10, 3));
        assert_eq!(now.total().since(&earlier.total()).queued, 13);
    }

    #[test]
    fn a_cgroup_that_counts_anew_is_told_of_from_zero() {
        let of = |nr_throttled, throttled_usec| Throttled {
            nr_throttled,
            throttled_usec,
        };
        let earlier = BTreeMap::from([(7, of(2, 500)), (8, of(9, 900)), (9, of(1, 1))]);
        let now = BTreeMap::from([(6, of(1, 10)), (7, of(5, 800)), (8, of(1, 100))]);
        let told = between(&earlier, &now, Throttled::since);
        let expected = [(6, of(1, 10)), (7, of(3, 300)), (8, of(1, 100))];
        assert_eq!(told, BTreeMap::from(expected));
    }
}

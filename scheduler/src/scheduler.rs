// SPDX-License-Identifier: GPL-2.0-only

//! The BPF program: configured, loaded, attached, and detached when dropped.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, select};
use libbpf_rs::skel::Skel;
use libbpf_rs::{Link, OpenObject, ProgramInput};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_getres};
use scx_utils::compat;
use scx_utils::compat::{
    SCX_OPS_ALLOW_QUEUED_WAKEUP, SCX_OPS_ENQ_LAST, SCX_OPS_ENQ_MIGRATION_DISABLED,
    SCX_OPS_KEEP_BUILTIN_IDLE, SCX_OPS_SWITCH_PARTIAL,
};
use scx_utils::{scx_ops_attach, scx_ops_load, scx_ops_open, uei_exited};

use crate::bpf_skel::{BpfSkel, BpfSkelBuilder, OpenBpfSkel, types};
use crate::cgroupfs;
use crate::exit::Exit;
use crate::metrics;
use crate::options::{
    AsymRule, Cgroup, CpuMax, Fair, Idle, Locking, Options, ReschedIdle, RunQueue, Switch,
    WakeQueue, WakeQueueSteal,
};
use crate::ranks::Asym;
use crate::stats::{self, Counters, Sample, Throttled};
use crate::topology::{CPUS_PER_WORD, GROUP_STRIPES, MAX_CPUS, MAX_WORDS, NR_CLASSES, Topology};
use crate::verifier;

/// How often the loop looks whether it should end.
const POLL: Duration = Duration::from_millis(100);

/// How often it looks whether CPUs rank differently: firmware and drivers change
/// that with load and temperature, seldom.
const RANK_POLL: Duration = Duration::from_secs(5);

/// An attached scheduler.
pub struct Scheduler<'object> {
    skel: BpfSkel<'object>,
    link: Option<Link>,
    stats: stats::Server,
    asym: Asym,
    topology: Topology,
    /// Where the kernel does not tell the program of limits itself.
    limits: Option<cgroupfs::Watch>,
}

/// Why a scheduler no longer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Done,
    /// The machine has changed: it is to be loaded again.
    Restart,
}

impl<'object> Scheduler<'object> {
    /// Load the program into the kernel and attach it.
    ///
    /// # Errors
    /// One line that says which step failed and why.
    pub fn load(options: &Options, object: &'object mut MaybeUninit<OpenObject>) -> Result<Self> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log_libbpf)));

        let mut open = scx_ops_open!(
            BpfSkelBuilder::default(),
            object,
            heddle_ops,
            None::<libbpf_rs::libbpf_sys::bpf_object_open_opts>
        )?;
        configure(&mut open, options)?;
        let bandwidth = set_up_groups(&mut open, options)?;
        set_up_global(&mut open, options)?;
        let topology = Topology::read(&options.asym)?;
        lay_out(&mut open, &topology, options)?;

        let mut skel = scx_ops_load!(open, heddle_ops, uei)?;
        if log::log_enabled!(log::Level::Debug) {
            verifier::log_costs(skel.object())?;
        }
        let link = scx_ops_attach!(skel, heddle_ops)?;
        let stats = stats::serve().context("cannot serve statistics")?;
        let limits = match bandwidth {
            CpuMax::Watch => watch_limits()?,
            CpuMax::Told => None,
        };
        log::info!("attached");
        Ok(Self {
            skel,
            link: Some(link),
            stats,
            asym: options.asym.clone(),
            topology,
            limits,
        })
    }

    /// Answer requests for statistics, from the socket and from `scrapes`, until
    /// the scheduler ends, `shutdown` is set or the CPUs rank differently; then
    /// detach.
    ///
    /// # Errors
    /// The kernel's reason, if it ended the scheduler because of an error.
    pub fn run(
        mut self,
        shutdown: &Arc<AtomicBool>,
        scrapes: &Receiver<metrics::Asked>,
    ) -> Result<Ended> {
        let (response, mut request) = self.stats.channels();
        let mut scrapes = scrapes.clone();
        let mut limits = match &self.limits {
            Some(watch) => watch.told.clone(),
            None => crossbeam_channel::never(),
        };
        let mut ranks_read = Instant::now();
        let mut ranks_changed = false;
        while !shutdown.load(Ordering::Relaxed) && !uei_exited!(&self.skel, uei) && !ranks_changed {
            select! {
                // A closed channel is always ready: whatever has ended the thread that asked, the
                // scheduler goes on without it.
                recv(request) -> asked => if asked.is_err() || response.send(self.sample()).is_err() {
                    request = crossbeam_channel::never();
                },
                recv(limits) -> told => match told {
                    Ok(told) => self.limit(told),
                    // Whatever has ended the watch, tasks go on with the limits they have.
                    Err(_) => limits = crossbeam_channel::never(),
                },
                recv(scrapes) -> asked => match asked {
                    // A scrape that has given up is no error.
                    Ok(reply) => if !reply.is_closed() {
                        let _ = reply.send(self.sample());
                    },
                    Err(_) => scrapes = crossbeam_channel::never(),
                },
                default(POLL) => {}
            }
            if ranks_read.elapsed() >= RANK_POLL {
                ranks_read = Instant::now();
                ranks_changed = self.topology.ranks_changed(&self.asym);
            }
        }
        drop(self.link.take());
        let exit = Exit::read(&self.skel)?;
        exit.report(&mut io::stderr().lock())?;
        if ranks_changed {
            log::info!("CPUs rank differently now");
        } else if exit.should_restart() {
            log::info!("the kernel asked for a restart");
        } else {
            return Ok(Ended::Done);
        }
        Ok(Ended::Restart)
    }

    /// Tell the program of a limit.
    fn limit(&self, told: cgroupfs::Told) {
        let limit = told.limit.unwrap_or(cgroupfs::Limit {
            quota: u64::MAX,
            period: 0,
            burst: 0,
        });
        // struct bandwidth_limit (intf.h)
        let fields = [told.cgroup, limit.period, limit.quota, limit.burst];
        let mut context: Vec<u8> = fields.iter().flat_map(|one| one.to_ne_bytes()).collect();
        let input = ProgramInput {
            context_in: Some(&mut context),
            ..Default::default()
        };
        // What it returns says whether the cgroup is still there: else it needs no limit.
        if let Err(error) = self.skel.progs.heddle_watched_bandwidth.test_run(input) {
            log::warn!("cannot tell the program of cpu.max: {error}");
        }
    }

    /// What each LLC's CPUs have counted, and each cgroup's pool. CPUs that came
    /// later than the program count to none, until the kernel asks for a restart.
    fn sample(&self) -> Sample {
        let bss = self
            .skel
            .maps
            .bss_data
            .as_ref()
            .expect("the program has a .bss");
        let sum = |cpus: &Vec<usize>| {
            let mut counters = Counters::default();
            for &cpu in cpus {
                counters.add_cpu(&bss.cpu_stats[cpu]);
            }
            counters
        };
        let llcs = self.topology.llcs();
        let pools = bss.pools.iter().filter(|pool| pool.cgroup_id != 0);
        Sample {
            llcs: llcs.iter().map(|(&llc, cpus)| (llc, sum(cpus))).collect(),
            groups: pools
                .map(|pool| (pool.cgroup_id, throttled(pool)))
                .collect(),
        }
    }
}

fn throttled(pool: &types::pool) -> Throttled {
    Throttled {
        nr_throttled: pool.nr_throttled,
        throttled_usec: pool.throttled_usec,
    }
}

/// What libbpf has to say is of use only when loading fails, and the error then
/// names the step; `-vv` shows the details.
fn log_libbpf(_level: libbpf_rs::PrintLevel, message: String) {
    log::trace!("{}", message.trim_end());
}

/// Set what the options ask for.
fn configure(open: &mut OpenBpfSkel<'_>, options: &Options) -> Result<()> {
    let rodata = open
        .maps
        .rodata_data
        .as_mut()
        .context("the program has no .rodata")?;
    // The coarse clocks advance with the ticks (clock_getres(2)).
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE)
        .context("cannot tell how long a tick lasts")?;
    rodata.tick_ns = tick.num_nanoseconds() as u64;
    rodata.slice_ns = options.slice_us() * 1000;
    rodata.schedstat = options.schedstat;
    rodata.partial = options.partial;
    rodata.wake_sync_ns = options.wake_sync_us * 1000;
    rodata.wakeup_granularity_ns = options.wakeup_granularity_us * 1000;
    rodata.idle_policy = match options.idle {
        Idle::Mask => types::idle_policy::IDLE_MASK,
        Idle::TickMask => types::idle_policy::IDLE_TICK_MASK,
        Idle::Scan => types::idle_policy::IDLE_SCAN,
        Idle::Builtin => types::idle_policy::IDLE_BUILTIN,
    };
    rodata.sis_node = options.sis_node == Switch::On;
    rodata.wakeq_enabled = options.wakeq == WakeQueue::Llc;
    rodata.asym_rule = match options.asym_rule {
        AsymRule::Core => types::asym_rule::ASYM_RULE_CORE,
        AsymRule::Table => types::asym_rule::ASYM_RULE_TABLE,
    };
    rodata.fair_work = options.fair == Fair::Work;
    rodata.wakeq_steal_node = options.wakeq_steal == WakeQueueSteal::Node;

    let mut flags = 0;
    if options.queued_wakeup == Some(Switch::On) && *SCX_OPS_ALLOW_QUEUED_WAKEUP == 0 {
        bail!("--queued-wakeup: schedulers cannot choose that on this kernel; leave it out");
    }
    if options.queued_wakeup != Some(Switch::Off) {
        flags |= *SCX_OPS_ALLOW_QUEUED_WAKEUP;
    }
    if options.idle == Idle::Builtin {
        flags |= *SCX_OPS_KEEP_BUILTIN_IDLE;
    }
    if options.partial {
        flags |= *SCX_OPS_SWITCH_PARTIAL;
    }
    // What the kernel does with tasks that may not migrate for a moment is to put them past all queues.
    flags |= *SCX_OPS_ENQ_MIGRATION_DISABLED;
    let ops = open.struct_ops.heddle_ops_mut();
    ops.flags = flags;
    if requeues_anywhere() {
        ops.cpu_release = ptr::null_mut();
    }
    Ok(())
}

/// Switch the global queue on or off. Off, there is no memory for it and none of
/// its callbacks is called.
fn set_up_global(open: &mut OpenBpfSkel<'_>, options: &Options) -> Result<()> {
    let rodata = open
        .maps
        .rodata_data
        .as_mut()
        .context("the program has no .rodata")?;
    rodata.runq_global = options.runq == RunQueue::Global;
    rodata.locking = match options.locking {
        Locking::Vrq => types::locking::LOCKING_VRQ,
        Locking::Grq => types::locking::LOCKING_GRQ,
    };
    rodata.lock_check = options.lock_check;
    rodata.resched_rule = match options.resched_idle {
        ReschedIdle::Table => types::resched_rule::RESCHED_TABLE,
        ReschedIdle::NextNotPrev => types::resched_rule::RESCHED_NEXT_NOT_PREV,
    };
    if options.runq == RunQueue::Global {
        return Ok(());
    }
    open.maps.grqs.set_autocreate(false)?;
    let ops = open.struct_ops.heddle_ops_mut();
    ops.exit_task = ptr::null_mut();
    ops.set_cpumask = ptr::null_mut();
    ops.dequeue = ptr::null_mut();
    Ok(())
}

/// Read cpu.max from the cgroups' files from now on.
fn watch_limits() -> Result<Option<cgroupfs::Watch>> {
    let Some(root) = cgroupfs::mount_point() else {
        log::warn!("cpu.max of cgroups has no effect: no cgroup2 file system is mounted");
        return Ok(None);
    };
    log::info!("cpu.max is read from the files in {}", root.display());
    cgroupfs::watch(root).map(Some)
}

/// Can a CPU's tasks be queued anew at any time? From 6.19 on, and by another function from 7.1 on.
fn requeues_anywhere() -> bool {
    let has = |function| compat::ksym_exists(function).unwrap_or(false);
    has("scx_bpf_reenqueue_local___v2") || has("scx_bpf_dsq_reenq")
}

/// Does this kernel have the operation `op` of schedulers?
fn tells(op: &str) -> bool {
    compat::struct_has_field("sched_ext_ops", op).unwrap_or(false)
}

/// The flag by which a scheduler tells that it keeps cpu.weight: without it the kernel warns that it does not, up to
/// Linux 6.14. From 6.15 on, which has flags that were not known before, it warns of the flag.
fn weight_flag() -> u64 {
    let flag = |name| compat::read_enum("scx_ops_flags", name);
    match flag("SCX_OPS_BUILTIN_IDLE_PER_NODE") {
        Ok(_) => 0,
        Err(_) => flag("SCX_OPS_HAS_CGROUP_WEIGHT").unwrap_or(0),
    }
}

/// Is the CPU controller asked for, and possible?
fn wants_groups(options: &Options) -> Result<bool> {
    match options.cgroup {
        Some(Cgroup::Flat) if options.runq == RunQueue::Global => {
            bail!("--cgroup flat: the global queue knows no groups: use --runq percpu")
        }
        _ if options.runq == RunQueue::Global => Ok(false),
        Some(Cgroup::Off) => Ok(false),
        Some(Cgroup::Flat) if !tells("cgroup_init") => bail!(
            "--cgroup flat: this kernel tells schedulers nothing of cgroups: \
             boot one built with CONFIG_EXT_GROUP_SCHED"
        ),
        _ => Ok(tells("cgroup_init")),
    }
}

/// By what way the program learns of cpu.max.
fn way_of_bandwidth(options: &Options, flat: bool) -> Result<CpuMax> {
    match options.cpu_max {
        Some(_) if !flat => bail!("--cpu-max: groups are ignored: --cgroup flat is what keeps it"),
        Some(CpuMax::Told) if !tells("cgroup_set_bandwidth") => bail!(
            "--cpu-max told: kernels tell schedulers of it from Linux 6.17 on: \
             use --cpu-max watch"
        ),
        Some(way) => Ok(way),
        None if flat && !tells("cgroup_set_bandwidth") => Ok(CpuMax::Watch),
        None => Ok(CpuMax::Told),
    }
}

/// Switch the CPU controller on or off. Off, none of its callbacks is called.
/// Returns by what way the program learns of cpu.max.
fn set_up_groups(open: &mut OpenBpfSkel<'_>, options: &Options) -> Result<CpuMax> {
    let flat = wants_groups(options)?;
    let bandwidth = way_of_bandwidth(options, flat)?;
    let told = flat && bandwidth == CpuMax::Told;
    let rodata = open
        .maps
        .rodata_data
        .as_mut()
        .context("the program has no .rodata")?;
    rodata.cgroup_flat = flat;
    rodata.cgroup_poll_idle = flat && !tells("cgroup_set_idle");
    rodata.cgroup_told_bandwidth = told;
    open.progs
        .heddle_watched_bandwidth
        .set_autoload(bandwidth == CpuMax::Watch);

    let ops = open.struct_ops.heddle_ops_mut();
    if flat {
        // Without a slice, a task whose group is throttled is enqueued, even alone.
        ops.flags |= *SCX_OPS_ENQ_LAST;
        ops.flags |= weight_flag();
    } else {
        ops.cgroup_init = ptr::null_mut();
        ops.cgroup_exit = ptr::null_mut();
        ops.cgroup_move = ptr::null_mut();
        ops.cgroup_set_weight = ptr::null_mut();
    }
    if !told {
        ops.cgroup_set_bandwidth = ptr::null_mut();
    }
    if !flat || !tells("cgroup_set_idle") {
        ops.cgroup_set_idle = ptr::null_mut();
    }
    Ok(bandwidth)
}

/// Words as bits of one.
fn word_bits(words: &Range<usize>) -> u64 {
    words.clone().map(|word| 1 << word).sum()
}

/// Tell the program where each CPU is.
fn lay_out(open: &mut OpenBpfSkel<'_>, topology: &Topology, options: &Options) -> Result<()> {
    let layout = topology.layout(options.wakeq_shard as usize)?;
    let rodata = open
        .maps
        .rodata_data
        .as_mut()
        .context("the program has no .rodata")?;

    rodata.all_words = word_bits(&(0..layout.words));
    rodata.has_nodes = layout
        .places
        .iter()
        .any(|place| place.node != (0..layout.words));
    rodata.cpus_differ = topology.ranks().is_some();
    rodata.has_smt = layout
        .places
        .iter()
        .any(|place| !place.core.is_power_of_two());
    let asym_enabled = options.asym != Asym::Off && (rodata.cpus_differ || rodata.has_smt);
    rodata.asym_enabled = asym_enabled;
    let places: &mut [types::cpu_place; MAX_CPUS] = &mut rodata.places;
    let cpu_at: &mut [u16; MAX_WORDS * CPUS_PER_WORD] = &mut rodata.cpu_at;
    let words: &mut [types::word_layout; MAX_WORDS] = &mut rodata.word_layouts;
    let _: fn(types::group) -> [types::group_stripe; GROUP_STRIPES] = |group| group.stripes;
    for place in &layout.places {
        places[place.cpu] = types::cpu_place {
            own: 1 << place.bit,
            core: place.core,
            llc_words: word_bits(&place.llc),
            node_words: word_bits(&place.node),
            word: place.word as u16,
            bit: place.bit as u16,
            class: place.class as u16,
            capacity: place.capacity,
            llc_cpus: place.llc_cpus as u16,
            llc_first: place.llc.start as u16,
            node_cpus: place.node_cpus as u16,
            node_first: place.node.start as u16,
            group_stripe: place.group_stripe(layout.words) as u16,
            wakeq: place.wakeq as u16,
            llc_wakeq_first: place.llc_wakeqs.start as u16,
            llc_wakeq_end: place.llc_wakeqs.end as u16,
            node_wakeq_first: place.node_wakeqs.start as u16,
            node_wakeq_end: place.node_wakeqs.end as u16,
            ..Default::default()
        };
        cpu_at[place.word * CPUS_PER_WORD + place.bit] = place.cpu as u16;
        let word = &mut words[place.word];
        word.core_starts |= place.core_start();
        word.core_ends |= place.core_end();
        word.nr_cpus += 1;
        let by_class: &mut [u64; NR_CLASSES] = &mut word.slower;
        for slower in &mut by_class[..place.class] {
            *slower |= 1 << place.bit;
        }
    }
    if let Some(ranks) = topology.ranks() {
        log::info!("CPUs differ: priorities from {}", ranks.source);
    }
    if asym_enabled && options.runq == RunQueue::Percpu {
        // Without a slice, the task that is asked for is enqueued, even alone.
        open.struct_ops.heddle_ops_mut().flags |= *SCX_OPS_ENQ_LAST;
    }
    Ok(())
}

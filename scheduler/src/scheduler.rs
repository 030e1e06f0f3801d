// SPDX-License-Identifier: GPL-2.0-only

//! The BPF program: configured, loaded, attached, and detached when dropped.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use libbpf_rs::skel::Skel;
use libbpf_rs::{Link, OpenObject};
use scx_utils::compat;
use scx_utils::compat::{SCX_OPS_KEEP_BUILTIN_IDLE, SCX_OPS_SWITCH_PARTIAL};
use scx_utils::{UserExitInfo, scx_ops_attach, scx_ops_load, scx_ops_open, uei_exited, uei_report};

use crate::bpf_skel::{BpfSkel, BpfSkelBuilder, OpenBpfSkel, types};
use crate::options::{Cgroup, Options, RunQueue};
use crate::stats::{self, Counters};
use crate::topology::{CPUS_PER_WORD, MAX_CPUS, MAX_WORDS, Topology};
use crate::verifier;

/// How often the loop looks whether it should end.
const POLL: Duration = Duration::from_millis(100);

/// An attached scheduler.
pub struct Scheduler<'object> {
    skel: BpfSkel<'object>,
    link: Option<Link>,
    stats: stats::Server,
}

impl<'object> Scheduler<'object> {
    /// Load the program into the kernel and attach it.
    ///
    /// # Errors
    /// One line that says which step failed and why.
    pub fn load(options: &Options, object: &'object mut MaybeUninit<OpenObject>) -> Result<Self> {
        scx_utils::try_set_rlimit_infinity();
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log_libbpf)));

        let mut open = scx_ops_open!(
            BpfSkelBuilder::default(),
            object,
            heddle_ops,
            None::<libbpf_rs::libbpf_sys::bpf_object_open_opts>
        )?;
        configure(&mut open, options)?;
        set_up_groups(&mut open, options.cgroup)?;
        lay_out(&mut open)?;

        let mut skel = scx_ops_load!(open, heddle_ops, uei)?;
        if log::log_enabled!(log::Level::Debug) {
            verifier::log_costs(skel.object())?;
        }
        let link = scx_ops_attach!(skel, heddle_ops)?;
        let stats = stats::serve().context("cannot serve statistics")?;
        log::info!("attached");
        Ok(Self {
            skel,
            link: Some(link),
            stats,
        })
    }

    /// Answer requests for statistics until the scheduler ends or `shutdown`
    /// is set; then detach.
    ///
    /// # Errors
    /// The kernel's reason, if it ended the scheduler because of an error.
    pub fn run(mut self, shutdown: &Arc<AtomicBool>) -> Result<UserExitInfo> {
        let (response, request) = self.stats.channels();
        while !shutdown.load(Ordering::Relaxed) && !uei_exited!(&self.skel, uei) {
            if request.recv_timeout(POLL).is_ok() {
                response.send(self.counters())?;
            }
        }
        drop(self.link.take());
        uei_report!(&self.skel, uei)
    }

    fn counters(&self) -> Counters {
        let bss = self
            .skel
            .maps
            .bss_data
            .as_ref()
            .expect("the program has a .bss");
        Counters::sum(&bss.cpu_stats)
    }
}

/// What libbpf has to say is of use only when loading fails, and the error then
/// names the step; `-vv` shows the details.
fn log_libbpf(_level: libbpf_rs::PrintLevel, message: String) {
    log::trace!("{}", message.trim_end());
}

/// Set what the options ask for.
fn configure(open: &mut OpenBpfSkel<'_>, options: &Options) -> Result<()> {
    let RunQueue::Percpu = options.runq;
    let rodata = open
        .maps
        .rodata_data
        .as_mut()
        .context("the program has no .rodata")?;
    rodata.slice_ns = options.slice_us * 1000;

    // SCX_OPS_ALLOW_QUEUED_WAKEUP stays off: a wakeup by way of an interrupt of
    // the idle CPU takes a fifth longer from end to end (pipe ping-pong).
    let mut flags = *SCX_OPS_KEEP_BUILTIN_IDLE;
    if options.partial {
        flags |= *SCX_OPS_SWITCH_PARTIAL;
    }
    open.struct_ops.heddle_ops_mut().flags = flags;
    Ok(())
}

/// Switch the CPU controller on or off. Off, none of its callbacks is called.
fn set_up_groups(open: &mut OpenBpfSkel<'_>, asked: Option<Cgroup>) -> Result<()> {
    let tells = |op| compat::struct_has_field("sched_ext_ops", op).unwrap_or(false);
    let flat = match asked {
        Some(Cgroup::Off) => false,
        Some(Cgroup::Flat) if !tells("cgroup_init") => bail!(
            "--cgroup flat: this kernel tells schedulers nothing of cgroups: \
             boot one built with CONFIG_EXT_GROUP_SCHED"
        ),
        _ => tells("cgroup_init"),
    };
    let rodata = open
        .maps
        .rodata_data
        .as_mut()
        .context("the program has no .rodata")?;
    rodata.cgroup_flat = flat;
    rodata.cgroup_poll_idle = flat && !tells("cgroup_set_idle");
    rodata.cgroup_bandwidth = flat && tells("cgroup_set_bandwidth");
    if flat && !tells("cgroup_set_bandwidth") {
        log::warn!("this kernel does not tell schedulers of cpu.max: it has no effect");
    }

    let ops = open.struct_ops.heddle_ops_mut();
    if flat {
        // A throttled task comes back to be parked even if no other task runs.
        ops.flags |= *compat::SCX_OPS_ENQ_LAST;
        ops.flags |= compat::read_enum("scx_ops_flags", "SCX_OPS_HAS_CGROUP_WEIGHT").unwrap_or(0);
    } else {
        ops.runnable = ptr::null_mut();
        ops.quiescent = ptr::null_mut();
        ops.cgroup_init = ptr::null_mut();
        ops.cgroup_exit = ptr::null_mut();
        ops.cgroup_set_weight = ptr::null_mut();
    }
    if !flat || !tells("cgroup_set_bandwidth") {
        ops.cgroup_set_bandwidth = ptr::null_mut();
    }
    if !flat || !tells("cgroup_set_idle") {
        ops.cgroup_set_idle = ptr::null_mut();
    }
    Ok(())
}

/// Tell the program where each CPU is.
fn lay_out(open: &mut OpenBpfSkel<'_>) -> Result<()> {
    let layout = Topology::read()?.layout()?;
    let rodata = open
        .maps
        .rodata_data
        .as_mut()
        .context("the program has no .rodata")?;

    rodata.nr_words = layout.words as u32;
    let places: &mut [types::cpu_place; MAX_CPUS] = &mut rodata.places;
    let cpu_at: &mut [u16; MAX_WORDS * CPUS_PER_WORD] = &mut rodata.cpu_at;
    for place in &layout.places {
        let slot = &mut places[place.cpu];
        slot.word = place.word as u16;
        slot.bit = place.bit as u8;
        slot.llc_cpus = place.llc_cpus as u16;
        slot.llc_first = place.llc.start as u16;
        slot.llc_end = place.llc.end as u16;
        slot.node_first = place.node.start as u16;
        slot.node_end = place.node.end as u16;
        cpu_at[place.word * CPUS_PER_WORD + place.bit] = place.cpu as u16;
    }
    Ok(())
}

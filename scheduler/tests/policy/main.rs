// SPDX-License-Identifier: GPL-2.0-only

//! Properties of the policy headers, compiled for the host: what must hold
//! for any weights and at any virtual time, wrapping included.

mod bursts;
#[path = "../common/mod.rs"]
mod common;
mod debts;
mod decisions;
mod frames;
mod groups;
mod lag;
mod virtual_time;
mod weights;

use common::config;
use proptest::prelude::*;

const NICE_LEVELS: usize = 40;
const NICE_0: u64 = 1 << 20;
const INV_SHIFT: u32 = 42;
const WEIGHT_MAX: u64 = 10_000 * NICE_0;
const WEIGHT_IDLE: u64 = 3 << 10;
const VT_SHIFT: u32 = 10;
const KEY_UNCOUNTED: u64 = 1 << VT_SHIFT;
const KEY_VT_SHIFT: u32 = VT_SHIFT + 1;
const VT_STEP_MAX: u64 = 1 << 62;
const MAX_CPUS: u32 = 1 << VT_SHIFT;
const CREDIT_SLICES: u64 = 1;
const WAITING_SLICES: u64 = 4;
const DEBT_SLICES: u64 = 2;
const MS: u64 = 1_000_000;
/// A slice in virtual time that keeps all lags far below half the range.
const SLICE_VT_MAX: u64 = 1 << 56;

/// `sched_prio_to_weight[]` of the kernel, from nice -20 to nice 19.
const KERNEL_WEIGHTS: [u64; NICE_LEVELS] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Contender {
    vt: u64,
    inv: u64,
    idle: bool,
    batch: bool,
}

/// What is known of one task's bursts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Burst {
    pid: u32,
    average_ns: u32,
    slept_exec_ns: u64,
}

mod c {
    use super::{Burst, Contender};

    #[link(name = "policy_shim", kind = "static")]
    unsafe extern "C" {
        pub safe fn shim_nice_index(prio: i32) -> u32;
        pub safe fn shim_nice_weight(index: u32) -> u64;
        pub safe fn shim_nice_inv(index: u32) -> u64;
        pub safe fn shim_weight_from_cgroup(weight: u64) -> u64;
        pub safe fn shim_weight_inv(weight: u64) -> u64;
        pub safe fn shim_vt_before(a: u64, b: u64) -> bool;
        pub safe fn shim_vt_max(a: u64, b: u64) -> u64;
        pub safe fn shim_vt_min(a: u64, b: u64) -> u64;
        pub safe fn shim_mul_shr_sat(a: u64, b: u64, shift: u32) -> u64;
        pub safe fn shim_vt_delta(delta: u64, inv: u64) -> u64;
        pub safe fn shim_vt_key(vt: u64, cpu: u32) -> u64;
        pub safe fn shim_vt_of_key(key: u64) -> u64;
        pub safe fn shim_cpu_of_key(key: u64) -> u32;
        pub safe fn shim_lag_clamp(vt: u64, clock: u64, credit_vt: u64, slice_vt: u64) -> u64;
        pub safe fn shim_lag_bound(vt: u64, clock: u64, slice_vt: u64, lightest_vt: u64) -> u64;
        pub safe fn shim_lag_credit(vt: u64, clock: u64, most: u64) -> u64;
        pub safe fn shim_lag_among(vt: u64, others: u64, credit: u64) -> u64;
        pub safe fn shim_burst_place(pid: u32) -> u32;
        pub safe fn shim_burst_begin(burst: &mut Burst, pid: u32, exec_ns: u64);
        pub safe fn shim_burst_end(burst: &mut Burst, pid: u32, exec_ns: u64);
        pub safe fn shim_burst_is_hog(burst: &Burst, pid: u32, exec_ns: u64, gran_ns: u64) -> bool;
        pub safe fn shim_lag_reweigh(vt: u64, clock: u64, before: u64, inv: u64) -> u64;
        pub safe fn shim_lag_of_idle(vt: u64, clock: u64, slice_vt: u64, own_slice_vt: u64) -> u64;
        pub safe fn shim_group_scale(parent: u64, load: u64, weight: u64) -> u64;
        pub safe fn shim_hot_scale(scale: u64) -> u64;
        pub safe fn shim_hot_inv(inv: u64, scale: u64, inv_max: u64) -> u64;
        pub safe fn shim_load_average(average: u64, sum: u64) -> u64;
        pub safe fn shim_group_credit_inv(weight: u64, cpus: u32) -> u64;
        pub safe fn shim_lightest_inv(total: u64, cpus: u32) -> u64;
        pub safe fn shim_frame_offset(clock: u64, offset: u64, other: u64, drift: u64) -> u64;
        pub safe fn shim_keeps_running(prev: u64, head: u64) -> bool;
        pub safe fn shim_worth_exchanging(prev: u64, waiter: u64, threshold: u64) -> bool;
        pub safe fn shim_left_to_finish(wakee: &Contender, curr: &Contender) -> bool;
        pub safe fn shim_wakeup_preempts(wakee: &Contender, curr: &Contender, gran: u64) -> bool;
    }
}
use c::*;

fn any_weight() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..=WEIGHT_MAX,
        (1u64..=10_000).prop_map(|w| shim_weight_from_cgroup(w)),
        (0u32..NICE_LEVELS as u32).prop_map(|i| shim_nice_weight(i)),
        Just(1),
        Just(WEIGHT_IDLE),
        Just(WEIGHT_MAX),
    ]
}

fn any_inv() -> impl Strategy<Value = u64> {
    any_weight().prop_map(|w| shim_weight_inv(w))
}

/// Any instant, with those around the places where a u64 wraps made likely.
fn any_vt() -> impl Strategy<Value = u64> {
    let around = |at: u64| (0..2_000_000u64).prop_map(move |d| at.wrapping_add(d).wrapping_sub(MS));
    prop_oneof![
        any::<u64>(),
        around(0),
        around(1 << 63),
        around(1 << 62),
        around(1 << 32)
    ]
}

/// Any duration in ns, from none to more than the machine will be up.
fn any_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..10 * MS,
        0..1u64 << 40,
        Just(0),
        Just(u64::MAX),
        Just(1 << 63)
    ]
}

fn contender() -> impl Strategy<Value = Contender> {
    (any_vt(), any_inv(), any::<bool>(), any::<bool>()).prop_map(|(vt, inv, idle, batch)| {
        Contender {
            vt,
            inv,
            idle,
            batch: batch && !idle,
        }
    })
}

/// Signed distance from `b` to `a` around the wrap.
fn ahead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

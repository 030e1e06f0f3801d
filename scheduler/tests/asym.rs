// SPDX-License-Identifier: GPL-2.0-only

//! `policy/asym.h` in every state of a machine of two fast cores with two
//! threads each and two slow cores, against the rules core by core.

const STARTS: u64 = 0b11_01_01;
const ENDS: u64 = 0b11_10_10;
const CORES: [u64; 4] = [0b00_00_11, 0b00_11_00, 0b01_00_00, 0b10_00_00];
const SLOW: u64 = 0b11_00_00;
const CPUS: u32 = 6;

#[repr(C)]
struct View {
    busy: u64,
    slower: u64,
    starts: u64,
    ends: u64,
    smt: bool,
    sibling_busy: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
enum Rule {
    Core,
    Table,
}

unsafe extern "C" {
    fn shim_asym_helped(rule: Rule, view: *const View) -> u64;
}

fn core_of(cpu: u32) -> u64 {
    CORES[CORES.iter().position(|core| core >> cpu & 1 == 1).unwrap()]
}

fn helped(rule: Rule, busy: u64, idle_cpu: u32) -> u64 {
    let core = core_of(idle_cpu);
    let view = View {
        busy,
        slower: if core & SLOW == 0 { SLOW } else { 0 },
        starts: STARTS,
        ends: ENDS,
        smt: core.count_ones() > 1,
        sibling_busy: core & busy != 0,
    };
    // SAFETY: the function reads what it is given.
    unsafe { shim_asym_helped(rule, &raw const view) }
}

/// All states in which some CPU idles: (busy CPUs, an idle CPU).
fn states() -> impl Iterator<Item = (u64, u32)> {
    (0..1u64 << CPUS).flat_map(|busy| {
        (0..CPUS)
            .filter(move |cpu| busy >> cpu & 1 == 0)
            .map(move |cpu| (busy, cpu))
    })
}

/// The second threads of fast cores whose two threads are busy.
fn shared(busy: u64) -> u64 {
    CORES[..2]
        .iter()
        .filter(|&&core| busy & core == core)
        .map(|core| core & ENDS)
        .sum()
}

#[test]
fn an_idle_core_helps_those_that_share_one_then_slower_ones() {
    for (busy, cpu) in states() {
        let core_idles = busy & core_of(cpu) == 0;
        let faster_than_slow = core_of(cpu) & SLOW == 0;
        let expected = match (core_idles, shared(busy)) {
            (false, _) => 0,
            (true, 0) if faster_than_slow => busy & SLOW,
            (true, shared) => shared,
        };
        assert_eq!(
            helped(Rule::Core, busy, cpu),
            expected,
            "{busy:#08b}, CPU {cpu}"
        );
    }
}

/// asym_smt_can_pull_tasks() of Linux 5.16 for one core (mechanism's table).
fn table_pulls(busy: u64, idle_cpu: u32, from: u64) -> bool {
    let local = core_of(idle_cpu);
    let (l, b) = ((busy & local).count_ones(), (busy & from).count_ones());
    let slower = local & SLOW == 0 && from & SLOW != 0;
    match (local.count_ones() > 1, from.count_ones() > 1) {
        (false, false) => slower,
        (false, true) => b >= 2 || slower,
        (true, true) => b == l + 1 && slower,
        (true, false) => l == 0 && slower,
    }
}

#[test]
fn the_table_is_followed_core_by_core() {
    for (busy, cpu) in states() {
        let given = helped(Rule::Table, busy, cpu);
        for from in CORES
            .into_iter()
            .filter(|&core| core != core_of(cpu) && busy & core != 0)
        {
            // Cores that share come first; where there are some, others wait.
            let waits = from & shared(busy) == 0 && given & shared(busy) != 0;
            assert!(
                waits || (given & from != 0) == table_pulls(busy, cpu, from),
                "{busy:#08b}, CPU {cpu}, core {from:#08b}: {given:#08b}"
            );
        }
    }
}

#[test]
fn nothing_moves_without_gain() {
    // What a place is worth: a fast core, a slow one, beside a busy thread.
    let worth = |busy: u64, cpu: u32| match core_of(cpu) {
        core if core & busy & !(1 << cpu) != 0 => 0,
        core if core & SLOW != 0 => 1,
        _ => 2,
    };
    for (busy, cpu) in states() {
        for rule in [Rule::Core, Rule::Table] {
            let given = helped(rule, busy, cpu);
            assert_eq!(given & !busy, 0);
            for from in (0..CPUS).filter(|from| given >> from & 1 == 1) {
                assert!(
                    worth(busy, cpu) > worth(busy, from),
                    "{rule:?} {busy:#08b} {from} to {cpu}"
                );
            }
        }
    }
}

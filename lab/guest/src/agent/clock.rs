//! Virtual time: the guest's CLOCK_MONOTONIC, which the laboratory's QEMU derives from instructions.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Returns the virtual time since power-on, ns.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC always exists");
    u64::try_from(Duration::from(time).as_nanos()).expect("584 years")
}

/// Sleeps, virtual ns.
pub fn sleep(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns));
}

/// Calls `check` every `period_ns` until it returns something or `limit_ns` have passed.
pub fn poll<T>(period_ns: u64, limit_ns: u64, mut check: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = now().saturating_add(limit_ns);
    loop {
        if let Some(found) = check() {
            return Some(found);
        }
        if now() >= deadline {
            return None;
        }
        sleep(period_ns);
    }
}

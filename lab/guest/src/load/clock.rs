//! Virtual time as programs see it: CLOCK_MONOTONIC from the vDSO, no system call.

use std::time::Duration;

use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

/// Returns CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns the time from one reading of the clock to another, which on a faulty machine may be negative, ns.
pub fn between(from_ns: u64, to_ns: u64) -> i64 {
    to_ns.cast_signed() - from_ns.cast_signed()
}

/// Returns the CPU time that the calling thread has had, ns; a system call.
pub fn thread_cpu_time() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("the clock always exists");
    u64::try_from(Duration::from(time).as_nanos()).expect("584 years")
}

/// Sleeps until CLOCK_MONOTONIC reaches `ns`.
pub fn sleep_until(ns: u64) {
    let request = Duration::from_nanos(ns).into();
    while clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &request).is_err() {}
}

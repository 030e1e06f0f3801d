//! Futexes (futex(2)) within one process.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::sys::time::TimeSpec;

/// Sleeps until woken, unless the word no longer holds `expected`; may return without reason.
pub fn wait(word: &AtomicU32, expected: u32) {
    call(word, libc::FUTEX_WAIT, expected, std::ptr::null());
}

/// Sleeps likewise, but at most for `ns`.
pub fn wait_for(word: &AtomicU32, expected: u32, ns: u64) {
    let timeout = TimeSpec::from(Duration::from_nanos(ns));
    call(word, libc::FUTEX_WAIT, expected, timeout.as_ref());
}

/// Wakes one sleeper.
pub fn wake(word: &AtomicU32) {
    call(word, libc::FUTEX_WAKE, 1, std::ptr::null());
}

/// A null timeout means none.
fn call(word: &AtomicU32, operation: libc::c_int, value: u32, timeout: *const libc::timespec) {
    // SAFETY: the word and the timeout outlive the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, timeout);
    }
}

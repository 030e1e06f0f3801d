//! Futexes (futex(2)) within one process.

use std::sync::atomic::AtomicU32;

/// Sleeps until woken, unless the word no longer holds `expected`; may return without reason.
pub fn wait(word: &AtomicU32, expected: u32) {
    call(word, libc::FUTEX_WAIT, expected);
}

/// Wakes one sleeper.
pub fn wake(word: &AtomicU32) {
    call(word, libc::FUTEX_WAKE, 1);
}

fn call(word: &AtomicU32, operation: libc::c_int, value: u32) {
    let no_timeout: *const libc::timespec = std::ptr::null();
    // SAFETY: the word outlives the call; a null timeout means none.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            no_timeout,
        );
    }
}

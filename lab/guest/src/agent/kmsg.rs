//! The kernel's log since the agent began.

// syslog(2)
const READ_ALL: libc::c_int = 3;
const CLEAR: libc::c_int = 5;

const TAIL: libc::c_int = 4096;

/// Forgets what was logged so far; the console still has it.
pub fn clear() {
    // SAFETY: this action uses no buffer.
    unsafe { libc::klogctl(CLEAR, std::ptr::null_mut(), 0) };
}

/// Returns the last lines, up to 4 KiB.
pub fn tail() -> String {
    let mut buffer = vec![0u8; TAIL as usize];
    // SAFETY: the buffer outlives the call and its true length is passed.
    let length = unsafe { libc::klogctl(READ_ALL, buffer.as_mut_ptr().cast(), TAIL) };
    buffer.truncate(usize::try_from(length).unwrap_or(0));
    String::from_utf8_lossy(&buffer).into_owned()
}

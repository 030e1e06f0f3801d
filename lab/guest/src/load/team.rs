//! Threads that begin together.

use std::sync::Barrier;
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;

/// Runs `body(i)` on `count` threads and returns what they return, in order. Each thread first runs
/// `prepare(i)`; no body begins before all are prepared.
///
/// # Errors
/// A thread could not be created, or the first error that a thread returned.
pub fn run<T: Send>(
    count: usize,
    prepare: impl Fn(usize) -> Result<()> + Sync,
    body: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let barrier = Barrier::new(count);
    let (barrier, prepare, body) = (&barrier, &prepare, &body);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| {
                let main = move || {
                    let prepared = prepare(index);
                    barrier.wait();
                    prepared.and_then(|()| body(index))
                };
                // The others would wait for the missing one for ever.
                let spawned = thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, main);
                spawned.unwrap_or_else(|error| fail(&format!("cannot create thread {index}: {error}")))
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<Result<T>>| {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?
        };
        threads.into_iter().map(join).collect()
    })
}

fn fail(message: &str) -> ! {
    eprintln!("heddle-load: {message}");
    std::process::exit(1)
}

/// Asks the scheduler for slices of `slice_ns` for the calling thread, which is of normal policy (sched(7):
/// sched_runtime of a task that has no deadline, since Linux 6.12).
///
/// # Errors
/// The kernel refuses: it knows no such slices, or not this long or short.
pub fn ask_for_slice(slice_ns: u64) -> Result<()> {
    // SAFETY: all zeroes is a valid sched_attr: normal policy, nice 0.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = u32::try_from(size_of::<libc::sched_attr>())?;
    attributes.sched_runtime = slice_ns;
    // SAFETY: a plain system call that reads the structure; 0 is the calling thread.
    Errno::result(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
        .with_context(|| format!("a slice of {slice_ns} ns"))?;
    Ok(())
}

/// Lets timers of the calling thread expire when they are due, not up to 50 us later (prctl(2)).
///
/// # Errors
/// None in practice.
pub fn sharpen_timers() -> Result<()> {
    // SAFETY: plain system call on the calling thread.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) }).context("timer slack")?;
    Ok(())
}

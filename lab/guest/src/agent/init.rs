//! What an init does before anything can run: file systems, loopback, limits.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::unistd::sethostname;

use crate::clock;

struct Mount {
    fstype: &'static str,
    target: &'static str,
    data: Option<&'static str>,
    /// A kernel without it still runs jobs that do not need it.
    optional: bool,
}

const MOUNTS: [Mount; 10] = [
    Mount { fstype: "proc", target: "/proc", data: None, optional: false },
    Mount { fstype: "sysfs", target: "/sys", data: None, optional: false },
    Mount { fstype: "devtmpfs", target: "/dev", data: None, optional: false },
    Mount { fstype: "devpts", target: "/dev/pts", data: Some("ptmxmode=0666"), optional: false },
    Mount { fstype: "tmpfs", target: "/dev/shm", data: None, optional: false },
    Mount { fstype: "tmpfs", target: "/tmp", data: None, optional: false },
    Mount { fstype: "cgroup2", target: "/sys/fs/cgroup", data: None, optional: false },
    Mount { fstype: "tracefs", target: "/sys/kernel/tracing", data: None, optional: true },
    Mount { fstype: "debugfs", target: "/sys/kernel/debug", data: None, optional: true },
    Mount { fstype: "bpf", target: "/sys/fs/bpf", data: None, optional: true },
];

/// Names that devtmpfs leaves to the init: bash's `<(...)` needs the first.
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Where outputs of steps go: limited, so that a chatty program gets ENOSPC and the guest goes on.
pub const OUTPUTS: &str = "/run/heddle";

/// Sets the guest up.
///
/// # Errors
/// Names the mount or the setting that failed.
pub fn set_up() -> Result<()> {
    for entry in &MOUNTS {
        mount_one(entry.fstype, entry.target, entry.data, entry.optional)?;
    }
    for (link, to) in LINKS {
        symlink(to, link).with_context(|| format!("cannot link {link}"))?;
    }
    mount_one("tmpfs", "/run", None, false)?;
    mount_one("tmpfs", OUTPUTS, Some("size=64m"), false)?;
    sethostname("heddle").context("hostname")?;
    bring_up(c"lo").context("loopback")?;
    raise_limits()?;
    // Every step is a session of its own: autogroup would turn each into a group with an equal share,
    // and a step's nice level would mean nothing. A step that wants groups names a cgroup.
    let _ = fs::write("/proc/sys/kernel/sched_autogroup_enabled", "0");
    outrank_every_scheduler()
}

/// Waits until the kernel has finished what it put off until after boot (probes, crypto self-tests): the
/// agent is the only runnable task for a while. Gives up after 5 s of virtual time: it is no error.
pub fn settle() {
    const PERIOD_NS: u64 = 2_000_000;
    const LIMIT_NS: u64 = 5_000_000_000;
    const QUIET_PERIODS: u32 = 5;
    let mut quiet = 0;
    clock::poll(PERIOD_NS, LIMIT_NS, || {
        let loadavg = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        // proc_loadavg(5): 0.20 0.18 0.12 RUNNABLE/EXISTING LAST_PID
        let alone = loadavg.split_whitespace().nth(3).is_some_and(|tasks| tasks.starts_with("1/"));
        quiet = if alone { quiet + 1 } else { 0 };
        (quiet == QUIET_PERIODS).then_some(())
    });
}

fn mount_one(fstype: &str, target: &str, data: Option<&str>, optional: bool) -> Result<()> {
    if !Path::new(target).is_dir() {
        match fs::create_dir_all(target) {
            Err(_) if optional => return Ok(()),
            made => made.with_context(|| format!("cannot make {target}"))?,
        }
    }
    match mount(Some(fstype), target, Some(fstype), MsFlags::empty(), data) {
        // devtmpfs: some kernels mount it themselves.
        Ok(()) | Err(Errno::EBUSY) => Ok(()),
        Err(Errno::ENODEV) if optional => Ok(()),
        Err(error) => bail!("cannot mount {fstype} on {target}: {error}"),
    }
}

fn bring_up(name: &CStr) -> Result<()> {
    // SAFETY: an all-zero ifreq is valid; the socket lives until it is closed here.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let socket = Errno::result(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        let result = Errno::result(libc::ioctl(socket, libc::SIOCSIFFLAGS, &request));
        libc::close(socket);
        result?;
    }
    Ok(())
}

fn raise_limits() -> Result<()> {
    const FILES: u64 = 1 << 20; // fs.nr_open's default
    for (resource, limit) in [
        (Resource::RLIMIT_NOFILE, FILES),
        (Resource::RLIMIT_NPROC, RLIM_INFINITY),
        (Resource::RLIMIT_MEMLOCK, RLIM_INFINITY),
        (Resource::RLIMIT_CORE, 0),
    ] {
        setrlimit(resource, limit, limit).with_context(|| format!("ulimit {resource:?}"))?;
    }
    Ok(())
}

/// Makes the agent the highest FIFO task, its children ordinary ones again: neither a scheduler under test
/// that starves everything nor a real-time step can starve the time-outs. The agent sleeps while a step is
/// measured.
fn outrank_every_scheduler() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 99 };
    // SAFETY: plain system call on the calling thread.
    Errno::result(unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters)
    })
    .context("cannot become SCHED_FIFO")?;
    Ok(())
}

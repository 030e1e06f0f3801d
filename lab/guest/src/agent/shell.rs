//! An interactive shell on the console, for `heddle shell`.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::setsid;

use crate::process::Children;

const CONSOLE: &str = "/dev/ttyS0";

/// Runs bash until the user leaves it.
///
/// # Errors
/// There is no serial console, or no bash in the image.
pub fn run(children: &mut Children) -> Result<()> {
    let tty = OpenOptions::new()
        .read(true)
        .write(true)
        .open(CONSOLE)
        .with_context(|| format!("cannot open {CONSOLE}"))?;
    let fd = tty.as_raw_fd();
    let mut command = Command::new("/bin/bash");
    command
        .args(["--login", "-i"])
        .env("HOME", "/root")
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("TERM", "linux")
        .env("PS1", r"guest:\w\$ ")
        .stdin(tty.try_clone()?)
        .stdout(tty.try_clone()?)
        .stderr(Stdio::from(tty));
    // SAFETY: between fork and exec only system calls; the descriptor is open in the child too.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            Errno::result(libc::ioctl(fd, libc::TIOCSCTTY, 0))?;
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            Ok(())
        });
    }
    let child = command.spawn().context("cannot start bash")?;
    let pid = children.adopt(&child);
    children.wait(Some(pid), u64::MAX);
    Ok(())
}

//! The kernel's random numbers: from the job's seed, and at once.

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::errno::Errno;

/// random(4); `_IOW('R', 3, int[2])` and `_IO('R', 7)`.
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

/// `struct rand_pool_info` with as much as makes the generator ready (256 bits).
#[repr(C)]
struct PoolInfo {
    entropy_bits: libc::c_int,
    bytes: libc::c_int,
    words: [u64; 4],
}

/// Seeds the kernel's generator. Else the first program that asks it for a number would wait for more than a
/// virtual second, while the kernel looks for jitter where there is none.
///
/// # Errors
/// /dev/random is missing or refuses.
pub fn seed(seed: u64) -> Result<()> {
    let info = PoolInfo { entropy_bits: 256, bytes: 32, words: [seed; 4] };
    let device = File::open("/dev/random").context("/dev/random")?;
    // SAFETY: the kernel reads `bytes` bytes after the two counts.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY, &raw const info) })
        .context("cannot seed the kernel's random numbers")?;
    Ok(())
}

/// Seeds the generator anew: all numbers from now on depend on this seed and on the ones before.
///
/// # Errors
/// As `seed`.
pub fn reseed(seed: u64) -> Result<()> {
    self::seed(seed)?;
    let device = File::open("/dev/random").context("/dev/random")?;
    // SAFETY: takes no argument.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), RNDRESEEDCRNG) })
        .context("cannot seed the kernel's random numbers anew")?;
    Ok(())
}

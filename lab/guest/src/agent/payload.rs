//! What the host gives a guest beside its image: archives in the memory of a PCI device, which no snapshot holds.
//!
//! The same layout as `heddle_lab/payload.py`.

use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::slice;

use anyhow::{Context, Result, bail};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use tar::Archive;

const DEVICES: &str = "/sys/bus/pci/devices";

/// QEMU's ivshmem: vendor and device.
const IDS: [(&str, &str); 2] = [("vendor", "0x1af4"), ("device", "0x1110")];

/// The BAR that holds the memory.
const MEMORY: &str = "resource2";

const PART_BYTES: usize = 128 << 20;
const PAGE: usize = 4096;

/// The parts of the memory, in the order in which the agent reads them.
#[derive(Clone, Copy)]
pub enum Part {
    /// What the scheduler needs to start.
    Start = 0,
    Job = 1,
}

/// Unpacks a part into the root file system.
///
/// # Errors
/// The device is missing, or the part is not what the host writes.
pub fn unpack(part: Part) -> Result<()> {
    let path = find().context("the host gives no payload: no ivshmem device")?;
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let start = part as usize * PART_BYTES;
    let length = with_memory(&file, start, PAGE, |page| {
        usize::from_le_bytes(page[..8].try_into().expect("a page has eight bytes"))
    })?;
    if length == 0 || length > PART_BYTES - PAGE {
        bail!("the payload has a part of {length} bytes");
    }
    with_memory(&file, start + PAGE, length, |mut archive| Archive::new(&mut archive).unpack("/"))?
        .context("cannot unpack the payload")
}

fn find() -> Option<PathBuf> {
    let devices = fs::read_dir(DEVICES).ok()?;
    let is = |device: &PathBuf, (file, id): (&str, &str)| {
        fs::read_to_string(device.join(file)).is_ok_and(|text| text.trim() == id)
    };
    let mut paths = devices.flatten().map(|entry| entry.path());
    paths.find(|device| IDS.iter().all(|id| is(device, *id))).map(|device| device.join(MEMORY))
}

/// Calls `look` with a range of the memory.
fn with_memory<T>(file: &File, offset: usize, length: usize, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
    let size = NonZeroUsize::new(length).context("an empty range")?;
    let offset = libc::off_t::try_from(offset)?;
    // SAFETY: a new mapping, which is unmapped below; nothing writes to it once the machine runs.
    unsafe {
        let address = mmap(None, size, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, offset)?;
        let result = look(slice::from_raw_parts(address.as_ptr().cast(), length));
        munmap(address, length)?;
        Ok(result)
    }
}

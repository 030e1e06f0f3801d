//! Which pages hold objects of which slab cache, as the kernel notes it down for each page.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use libbpf_rs::btf::types::{Enum, MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};
use serde::Serialize;

use crate::kernel::Memory;

const CACHES: &str = "/sys/kernel/slab";
/// More pages without an object than any cache has.
const MANY: &str = "1000000";
const PAGE_BITS: u32 = 12;
/// Pages whose notes are read at once.
const BATCH: usize = 4096;
/// In the second word of a page's notes: it belongs to the one before it (compound_head, compound_info).
const TAIL: u64 = 1;
/// Where the kind of a page is in its `page_type`.
const KIND_SHIFT: u32 = 24;
/// Where the order is in `kmem_cache_order_objects`.
const ORDER_SHIFT: u32 = 16;
/// No name is longer.
const NAME_BYTES: usize = 64;

/// A slab cache, and the pages that it has.
#[derive(Serialize)]
pub struct Cache {
    /// It may have several, as caches of objects of one size are merged.
    names: Vec<String>,
    /// Bytes from one object to the next.
    size: u32,
    /// The number of each slab's first page, and how many pages it has.
    slabs: Vec<(u64, u64)>,
    /// Pages of a slab, at most.
    #[serde(skip)]
    most: u64,
}

/// Has all slab caches keep pages whose objects are all free.
///
/// # Errors
/// The kernel does not let them.
pub fn keep() -> Result<()> {
    for cache in fs::read_dir(CACHES).with_context(|| format!("cannot read {CACHES}"))? {
        let limit = cache?.path().join("min_partial");
        fs::write(&limit, MANY).with_context(|| format!("{} does not take {MANY}", limit.display()))?;
    }
    Ok(())
}

/// Returns all slab caches that have pages, where `notes` is the address of what the kernel notes of page 0.
///
/// # Errors
/// The kernel's types are unknown, or its memory is not where they say.
pub fn list(memory: &Memory, notes: u64) -> Result<Vec<Cache>> {
    let layout = Layout::read()?;
    let merged = merged()?;
    let mut caches = BTreeMap::new();
    for (begin, end) in ram()? {
        let mut last = None;
        for first in (begin..end).step_by(BATCH) {
            let count = BATCH.min((end - first) as usize);
            let bytes = memory.read(notes + first * layout.page as u64, count * layout.page)?;
            for (page, note) in (first..).zip(bytes.chunks_exact(layout.page)) {
                last = layout.add(memory, &mut caches, page, note, last)?;
            }
        }
    }
    for cache in caches.values_mut() {
        if let Some(names) = merged.values().find(|names| names.contains(&cache.names[0])) {
            cache.names.clone_from(names);
        }
    }
    Ok(caches.into_values().collect())
}

/// Returns the names of each cache: links to one folder.
fn merged() -> Result<BTreeMap<PathBuf, Vec<String>>> {
    let mut caches = BTreeMap::<_, Vec<_>>::new();
    for entry in fs::read_dir(CACHES).with_context(|| format!("cannot read {CACHES}"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(':') {
            caches.entry(fs::canonicalize(entry.path())?).or_default().push(name);
        }
    }
    caches.values_mut().for_each(|names| names.sort());
    Ok(caches)
}

/// Returns the first page, and the one after the last, of each range of RAM.
fn ram() -> Result<Vec<(u64, u64)>> {
    let text = fs::read_to_string("/proc/iomem").context("cannot read /proc/iomem")?;
    let ranges = text.lines().filter_map(|line| line.strip_suffix(" : System RAM")).map(|range| {
        let (first, last) = range.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some((address(first)?.div_ceil(1 << PAGE_BITS), (address(last)? + 1) >> PAGE_BITS))
    });
    ranges.collect::<Option<_>>().context("/proc/iomem is not understood")
}

/// Where things are in the kernel's structures, bytes.
struct Layout {
    page: usize,
    kind: usize,
    cache: usize,
    name: usize,
    size: usize,
    order: usize,
    /// Of the pages that hold objects.
    slab: u32,
}

impl Layout {
    fn read() -> Result<Self> {
        let btf = Btf::from_vmlinux()?;
        let kinds = btf.type_by_name::<Enum>("pagetype").context("the kernel has no enum pagetype")?;
        let slab = kinds.iter().find(|kind| kind.name.is_some_and(|name| name == "PGTY_slab"));
        Ok(Self {
            page: btf.type_by_name::<Struct>("page").context("the kernel has no struct page")?.size(),
            kind: offset(&btf, "slab", "__page_type")?,
            cache: offset(&btf, "slab", "slab_cache")?,
            name: offset(&btf, "kmem_cache", "name")?,
            size: offset(&btf, "kmem_cache", "size")?,
            order: offset(&btf, "kmem_cache", "oo")?,
            slab: slab.context("the kernel has no PGTY_slab")?.value as u32,
        })
    }

    /// Adds a page to the caches, by what the kernel notes of it; `last` is the cache of the page before it.
    fn add(
        &self,
        memory: &Memory,
        caches: &mut BTreeMap<u64, Cache>,
        page: u64,
        note: &[u8],
        last: Option<u64>,
    ) -> Result<Option<u64>> {
        if word(note, size_of::<u64>()) & TAIL != 0 {
            let slabs = last.and_then(|at| caches.get_mut(&at)).map(|cache| (cache.most, &mut cache.slabs));
            if let Some((most, slabs)) = slabs
                && let Some((_, pages)) = slabs.last_mut()
                && *pages < most
            {
                *pages += 1;
            }
            return Ok(last);
        }
        if half(note, self.kind) >> KIND_SHIFT != self.slab {
            return Ok(None);
        }
        let at = word(note, self.cache);
        if let Some(cache) = caches.get_mut(&at) {
            cache.slabs.push((page, 1));
        } else {
            caches.insert(at, self.cache(memory, at, page)?);
        }
        Ok(Some(at))
    }

    fn cache(&self, memory: &Memory, at: u64, page: u64) -> Result<Cache> {
        let name = memory.words(at + self.name as u64, 1)?[0];
        let name = memory.read(name, NAME_BYTES)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Cache {
            names: vec![String::from_utf8_lossy(name).into_owned()],
            size: memory.half(at + self.size as u64)?,
            slabs: vec![(page, 1)],
            most: 1 << (memory.half(at + self.order as u64)? >> ORDER_SHIFT),
        })
    }
}

fn offset(btf: &Btf<'_>, name: &str, member: &str) -> Result<usize> {
    let one = btf.type_by_name::<Struct>(name).with_context(|| format!("the kernel has no struct {name}"))?;
    let found = one.iter().find(|one| one.name.is_some_and(|name| name == member));
    match found.map(|one| one.attr) {
        Some(MemberAttr::Normal { offset }) => Ok(offset as usize / 8),
        _ => anyhow::bail!("the kernel's struct {name} has no {member}"),
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

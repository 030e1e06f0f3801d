//! The machine as the kernel sees it, from /sys/devices/system/cpu.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use heddle_guest::cpulist;
use serde::Serialize;

const CPUS: &str = "/sys/devices/system/cpu";

/// Where a CPU sits. Cores and LLCs are numbered densely, in the order of their first CPU.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    pub cpu: usize,
    pub core: usize,
    pub llc: usize,
    pub node: usize,
    /// CPU list of the threads of its core, itself among them.
    pub siblings: String,
}

/// Reads the topology of the online CPUs.
///
/// # Errors
/// Names the sysfs file that is missing or unreadable.
pub fn read() -> Result<Vec<Cpu>> {
    let mut cores = Numbering::default();
    let mut llcs = Numbering::default();
    let online = read_trimmed(&format!("{CPUS}/online"))?;
    cpulist::parse(&online)?
        .into_iter()
        .map(|cpu| {
            let siblings = read_trimmed(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"))?;
            Ok(Cpu {
                cpu,
                core: cores.number(&siblings),
                llc: llcs.number(&llc_cpus(cpu)?),
                node: node(cpu),
                siblings,
            })
        })
        .collect()
}

/// Hands out 0, 1, 2... to keys as they first appear.
#[derive(Default)]
struct Numbering(Vec<String>);

impl Numbering {
    fn number(&mut self, key: &str) -> usize {
        self.0.iter().position(|known| known == key).unwrap_or_else(|| {
            self.0.push(key.to_owned());
            self.0.len() - 1
        })
    }
}

/// The CPUs that share the last level of cache; a machine that describes none has one per package.
fn llc_cpus(cpu: usize) -> Result<String> {
    let caches = format!("{CPUS}/cpu{cpu}/cache");
    match (0..).take_while(|index| Path::new(&format!("{caches}/index{index}")).exists()).last() {
        Some(last) => read_trimmed(&format!("{caches}/index{last}/shared_cpu_list")),
        None => read_trimmed(&format!("{CPUS}/cpu{cpu}/topology/package_cpus_list")),
    }
}

/// The NUMA node: `nodeN` links to it from the CPU's directory; none on kernels without NUMA.
fn node(cpu: usize) -> usize {
    let entries = fs::read_dir(format!("{CPUS}/cpu{cpu}")).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .next()
        .unwrap_or(0)
}

fn read_trimmed(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::Numbering;

    #[test]
    fn numbers_are_dense_and_stable() {
        let mut numbering = Numbering::default();
        let keys = ["0,4", "1,5", "0,4", "2", "1,5"];
        assert_eq!(keys.map(|key| numbering.number(key)), [0, 1, 0, 2, 1]);
    }
}

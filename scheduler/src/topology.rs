// SPDX-License-Identifier: GPL-2.0-only

//! The machine's CPUs, laid out as the BPF side wants them.
//!
//! CPUs become bits of 64-bit words. Every LLC starts a word of its own and
//! the words of a NUMA node follow one another, so that an LLC, a node and the
//! machine are each a range of words (`src/bpf/topology.bpf.h`).

use std::fmt;
use std::ops::Range;

use anyhow::{Result, ensure};

/// The limits of `src/bpf/intf.h`; the compiler checks them where the arrays
/// are filled.
pub const MAX_CPUS: usize = 1024;
pub const MAX_WORDS: usize = 64;
pub const CPUS_PER_WORD: usize = 64;

/// One CPU and what it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub id: usize,
    pub core: usize,
    pub llc: usize,
    pub node: usize,
}

/// All CPUs, by node, LLC and core.
#[derive(Clone, Debug)]
pub struct Topology {
    cpus: Vec<Cpu>,
}

/// Where a CPU sits among the words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub cpu: usize,
    pub word: usize,
    pub bit: usize,
    /// The CPUs of its LLC, which sit without gaps from `llc.start` on.
    pub llc_cpus: usize,
    /// The words of its LLC.
    pub llc: Range<usize>,
    /// The words of its NUMA node.
    pub node: Range<usize>,
}

/// The place of every CPU.
#[derive(Clone, Debug)]
pub struct Layout {
    pub places: Vec<Place>,
    pub words: usize,
}

impl Topology {
    /// Read the topology of this machine from sysfs.
    ///
    /// # Errors
    /// If sysfs cannot be read or the machine is too large.
    pub fn read() -> Result<Self> {
        let machine = scx_utils::Topology::new()?;
        Self::new(
            machine
                .all_cpus
                .values()
                .map(|cpu| Cpu {
                    id: cpu.id,
                    core: cpu.core_id,
                    llc: cpu.llc_id,
                    node: cpu.node_id,
                })
                .collect(),
        )
    }

    fn new(mut cpus: Vec<Cpu>) -> Result<Self> {
        if let Some(cpu) = cpus.iter().find(|cpu| cpu.id >= MAX_CPUS) {
            anyhow::bail!("CPU {} is beyond the {MAX_CPUS} CPUs supported", cpu.id);
        }
        cpus.sort_by_key(|cpu| (cpu.node, cpu.llc, cpu.core, cpu.id));
        Ok(Self { cpus })
    }

    /// Assign every CPU its bit.
    ///
    /// # Errors
    /// If the machine has more LLCs than there are words.
    pub fn layout(&self) -> Result<Layout> {
        let mut places: Vec<Place> = Vec::new();
        let mut words = 0;

        for node in self.cpus.chunk_by(|a, b| a.node == b.node) {
            let node_start = (words, places.len());
            for llc in node.chunk_by(|a, b| a.llc == b.llc) {
                let first = words;
                words += llc.len().div_ceil(CPUS_PER_WORD);
                places.extend(llc.iter().enumerate().map(|(i, cpu)| Place {
                    cpu: cpu.id,
                    word: first + i / CPUS_PER_WORD,
                    bit: i % CPUS_PER_WORD,
                    llc_cpus: llc.len(),
                    llc: first..words,
                    node: 0..0,
                }));
            }
            for place in &mut places[node_start.1..] {
                place.node = node_start.0..words;
            }
        }
        ensure!(
            words <= MAX_WORDS,
            "the machine's LLCs need {words} words of {CPUS_PER_WORD} CPUs, more than the {MAX_WORDS} supported"
        );
        Ok(Layout { places, words })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>5} {:>5} {:>5} {:>5}", "node", "llc", "core", "cpu")?;
        for cpu in &self.cpus {
            writeln!(
                f,
                "{:>5} {:>5} {:>5} {:>5}",
                cpu.node, cpu.llc, cpu.core, cpu.id
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `nodes` nodes of `llcs` LLCs of `cpus` CPUs each, numbered across the
    /// LLCs as firmware often does.
    fn machine(nodes: usize, llcs: usize, cpus: usize) -> Topology {
        let groups = nodes * llcs;
        Topology::new(
            (0..groups * cpus)
                .map(|id| Cpu {
                    id,
                    core: id,
                    llc: id % groups,
                    node: id % groups / llcs,
                })
                .collect(),
        )
        .unwrap()
    }

    proptest! {
        #[test]
        fn layout_is_a_partition(nodes in 1usize..5, llcs in 1usize..5, cpus in 1usize..50) {
            let topology = machine(nodes, llcs, cpus);
            let layout = topology.layout().unwrap();

            let mut seats: Vec<_> = layout.places.iter().map(|p| (p.word, p.bit)).collect();
            seats.sort_unstable();
            seats.dedup();
            prop_assert_eq!(seats.len(), nodes * llcs * cpus);

            for a in &layout.places {
                prop_assert!(a.bit < CPUS_PER_WORD && a.word < layout.words);
                prop_assert!(a.llc.contains(&a.word));
                prop_assert!(a.node.start <= a.llc.start && a.llc.end <= a.node.end);
                for b in &layout.places {
                    let (x, y) = (
                        topology.cpus.iter().find(|c| c.id == a.cpu).unwrap(),
                        topology.cpus.iter().find(|c| c.id == b.cpu).unwrap(),
                    );
                    prop_assert_eq!(a.llc.contains(&b.word), x.llc == y.llc);
                    prop_assert_eq!(a.node.contains(&b.word), x.node == y.node);
                }
            }
        }
    }

    #[test]
    fn a_large_llc_takes_several_words() {
        let layout = machine(1, 1, 130).layout().unwrap();
        assert_eq!(layout.words, 3);
        assert!(layout.places.iter().all(|place| place.llc == (0..3)));
    }

    #[test]
    fn too_many_llcs_are_refused() {
        let error = machine(1, MAX_WORDS + 1, 1).layout().unwrap_err();
        assert!(error.to_string().contains("65 words"));
    }

    #[test]
    fn too_many_cpus_are_refused() {
        let cpu = Cpu {
            id: MAX_CPUS,
            core: 0,
            llc: 0,
            node: 0,
        };
        assert!(Topology::new(vec![cpu]).is_err());
    }
}

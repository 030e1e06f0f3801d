// SPDX-License-Identifier: GPL-2.0-only

//! The machine's CPUs, laid out as the BPF side wants them.
//!
//! CPUs become bits of 64-bit words. Every LLC starts a word of its own and
//! the words of a NUMA node follow one another, so that an LLC, a node and the
//! machine are each a range of words (`src/bpf/topology.bpf.h`).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::ranks::{Asym, Ranks};

/// The limits of `src/bpf/intf.h`; the compiler checks them where the arrays
/// are filled.
pub const MAX_CPUS: usize = 1024;
pub const MAX_WORDS: usize = 64;
pub const CPUS_PER_WORD: usize = 64;
pub const MAX_WAKEQS: usize = 128;
pub const NR_CLASSES: usize = 4;
pub const GROUP_STRIPES: usize = 8;

/// Neighbours that write the same stripe of a group's load.
const STRIPE_CPUS: usize = 8;

/// The capacity of the fastest CPUs, 1 << CAPACITY_SHIFT.
pub const FULL_CAPACITY: u16 = 1 << 10;

/// One CPU and what it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub id: usize,
    pub core: usize,
    pub llc: usize,
    pub node: usize,
}

/// All CPUs, by node, LLC, priority and core.
#[derive(Clone, Debug)]
pub struct Topology {
    cpus: Vec<Cpu>,
    ranks: Option<Ranks>,
}

/// Where a CPU sits among the words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub cpu: usize,
    pub word: usize,
    pub bit: usize,
    /// Of its speed; the fastest are 0.
    pub class: usize,
    /// Its speed; the fastest have `FULL_CAPACITY`.
    pub capacity: u16,
    /// Bits of the CPUs of its core in its word. A core on the border of two
    /// words counts as two.
    pub core: u64,
    /// The CPUs of its LLC, which sit without gaps from `llc.start` on.
    pub llc_cpus: usize,
    /// The words of its LLC.
    pub llc: Range<usize>,
    /// The CPUs of its NUMA node.
    pub node_cpus: usize,
    /// The words of its NUMA node.
    pub node: Range<usize>,
    /// Its shared wake queue.
    pub wakeq: usize,
    /// The shared wake queues of its LLC.
    pub llc_wakeqs: Range<usize>,
    /// The shared wake queues of its NUMA node.
    pub node_wakeqs: Range<usize>,
}

impl Place {
    /// The stripe of each group's load that it writes, on a machine of so many `words`: CPUs of
    /// two words share none unless there are more than `GROUP_STRIPES`.
    pub fn group_stripe(&self, words: usize) -> usize {
        let of_word = (GROUP_STRIPES / words).max(1);
        (self.word * of_word + self.bit / STRIPE_CPUS % of_word) % GROUP_STRIPES
    }

    /// The first thread of its core, as a bit of its word.
    pub fn core_start(&self) -> u64 {
        self.core & self.core.wrapping_neg()
    }

    /// The last thread of its core, as a bit of its word.
    pub fn core_end(&self) -> u64 {
        1 << self.core.ilog2()
    }
}

/// The place of every CPU.
#[derive(Clone, Debug)]
pub struct Layout {
    pub places: Vec<Place>,
    pub words: usize,
}

/// Times that sysfs is read, and the time between two of them: a CPU that goes offline
/// meanwhile takes its files along.
const READS: usize = 5;
const READ_PAUSE: Duration = Duration::from_millis(100);

fn read_machine() -> Result<scx_utils::Topology> {
    for _ in 1..READS {
        if let Ok(machine) = scx_utils::Topology::new() {
            return Ok(machine);
        }
        thread::sleep(READ_PAUSE);
    }
    scx_utils::Topology::new()
}

impl Topology {
    /// Read the topology of this machine from sysfs, and which CPUs are better
    /// from where `asym` says.
    ///
    /// # Errors
    /// If sysfs cannot be read, the machine is too large, or `asym` does not fit
    /// it.
    pub fn read(asym: &Asym) -> Result<Self> {
        let machine = read_machine()?;
        let ids: Vec<usize> = machine.all_cpus.keys().copied().collect();
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
            Ranks::find(asym, &ids)?,
        )
    }

    fn new(mut cpus: Vec<Cpu>, ranks: Option<Ranks>) -> Result<Self> {
        if let Some(cpu) = cpus.iter().find(|cpu| cpu.id >= MAX_CPUS) {
            anyhow::bail!("CPU {} is beyond the {MAX_CPUS} CPUs supported", cpu.id);
        }
        // A core stays together, whatever its threads' priorities.
        let mut best_of_core = BTreeMap::new();
        for cpu in &cpus {
            let priority = ranks.as_ref().map_or(0, |ranks| ranks.priority(cpu.id));
            let best = best_of_core.entry(cpu.core).or_insert(priority);
            *best = priority.max(*best);
        }
        cpus.sort_by_key(|cpu| {
            let best = Reverse(best_of_core[&cpu.core]);
            (cpu.node, cpu.llc, best, cpu.core, cpu.id)
        });
        Ok(Self { cpus, ranks })
    }

    /// Which CPUs are better; none if all are equal.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
    }

    /// Are there ranks, and does the machine report others by now?
    pub fn ranks_changed(&self, asym: &Asym) -> bool {
        self.ranks.as_ref().is_some_and(|ranks| ranks.changed(asym))
    }

    /// The CPUs of each LLC.
    pub fn llcs(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut llcs: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for cpu in &self.cpus {
            llcs.entry(cpu.llc).or_default().push(cpu.id);
        }
        llcs
    }

    /// Assign every CPU its bit, and its shared wake queue: an LLC has as many
    /// as it takes for about `wakeq_cpus` CPUs each.
    ///
    /// # Errors
    /// If the machine has more LLCs than there are words, or the shared wake
    /// queues are too many.
    pub fn layout(&self, wakeq_cpus: usize) -> Result<Layout> {
        let mut places: Vec<Place> = Vec::new();
        let (mut words, mut wakeqs) = (0, 0);

        for node in self.cpus.chunk_by(|a, b| a.node == b.node) {
            let (first_place, first_word, first_wakeq) = (places.len(), words, wakeqs);
            for llc in node.chunk_by(|a, b| a.llc == b.llc) {
                let shards = llc.len().div_ceil(wakeq_cpus);
                let llc_words = words..words + llc.len().div_ceil(CPUS_PER_WORD);
                let llc_wakeqs = wakeqs..wakeqs + shards;
                words = llc_words.end;
                wakeqs = llc_wakeqs.end;
                for (i, cpu) in llc.iter().enumerate() {
                    let word = i / CPUS_PER_WORD;
                    let in_core = |&j: &usize| llc[j].core == cpu.core;
                    let seats = word * CPUS_PER_WORD..llc.len().min((word + 1) * CPUS_PER_WORD);
                    let first_thread = llc.iter().position(|c| c.core == cpu.core).unwrap_or(i);
                    places.push(Place {
                        cpu: cpu.id,
                        word: llc_words.start + word,
                        bit: i % CPUS_PER_WORD,
                        class: self.ranks.as_ref().map_or(0, |ranks| ranks.class(cpu.id)),
                        capacity: self
                            .ranks
                            .as_ref()
                            .map_or(FULL_CAPACITY, |ranks| ranks.capacity(cpu.id)),
                        core: seats
                            .filter(in_core)
                            .map(|j| 1 << (j % CPUS_PER_WORD))
                            .sum(),
                        llc_cpus: llc.len(),
                        llc: llc_words.clone(),
                        node_cpus: node.len(),
                        node: 0..0,
                        wakeq: llc_wakeqs.start + first_thread * shards / llc.len(),
                        llc_wakeqs: llc_wakeqs.clone(),
                        node_wakeqs: 0..0,
                    });
                }
            }
            for place in &mut places[first_place..] {
                place.node = first_word..words;
                place.node_wakeqs = first_wakeq..wakeqs;
            }
        }
        ensure!(
            words <= MAX_WORDS,
            "the machine's LLCs need {words} words of {CPUS_PER_WORD} CPUs, more than the {MAX_WORDS} supported"
        );
        ensure!(
            wakeqs <= MAX_WAKEQS,
            "--wakeq-shard {wakeq_cpus} makes {wakeqs} wake queues, more than the {MAX_WAKEQS} supported: use a larger number"
        );
        Ok(Layout { places, words })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ranks {
            Some(ranks) => writeln!(f, "priorities from {}", ranks.source)?,
            None => writeln!(f, "all CPUs have the same priority")?,
        }
        let titles = ["node", "llc", "core", "cpu", "priority", "class"];
        writeln!(f, "{}", titles.map(|title| format!("{title:>8}")).concat())?;
        for cpu in &self.cpus {
            let (priority, class) = self.ranks.as_ref().map_or((0, 0), |ranks| {
                (ranks.priority(cpu.id) as usize, ranks.class(cpu.id))
            });
            let values = [cpu.node, cpu.llc, cpu.core, cpu.id, priority, class];
            writeln!(f, "{}", values.map(|value| format!("{value:>8}")).concat())?;
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
            None,
        )
        .unwrap()
    }

    proptest! {
        #[test]
        fn layout_is_a_partition(nodes in 1usize..5, llcs in 1usize..5, cpus in 1usize..50) {
            let topology = machine(nodes, llcs, cpus);
            let layout = topology.layout(32).unwrap();

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
                    if layout.words <= GROUP_STRIPES && a.word != b.word {
                        let [of_a, of_b] = [a, b].map(|place| place.group_stripe(layout.words));
                        prop_assert_ne!(of_a, of_b);
                    }
                }
            }
        }
    }

    mod c {
        #[link(name = "policy_shim", kind = "static")]
        unsafe extern "C" {
            pub safe fn shim_whole_cores(idle: u64, starts: u64, ends: u64) -> u64;
            pub safe fn shim_bit_from(cpus: u64, start: u32) -> u32;
        }
    }

    /// The core of each CPU: two fast cores with two threads each, 0 and 1, and two
    /// slow ones. As on Intel's, with second threads last, mixed up, slow ones first.
    const NUMBERINGS: [[usize; 6]; 4] = [
        [0, 0, 1, 1, 2, 3],
        [0, 1, 2, 3, 0, 1],
        [2, 0, 3, 1, 0, 1],
        [3, 1, 2, 0, 1, 0],
    ];
    const PRIORITIES: [u32; 4] = [97, 100, 58, 60];
    const SLOW: usize = 2;

    fn hybrid(cores: [usize; 6]) -> Topology {
        let cpus = cores.iter().enumerate().map(|(id, &core)| Cpu {
            id,
            core,
            llc: 0,
            node: 0,
        });
        let priorities = cores
            .iter()
            .map(|&core| PRIORITIES[core])
            .enumerate()
            .collect();
        let ids: Vec<usize> = (0..cores.len()).collect();
        Topology::new(
            cpus.collect(),
            Ranks::given(&priorities, &ids, &ids).unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn cores_sit_together_from_the_fastest_on_however_cpus_are_numbered() {
        for cores in NUMBERINGS {
            let places = hybrid(cores).layout(32).unwrap().places;
            let seated: Vec<_> = places.iter().map(|place| cores[place.cpu]).collect();
            assert_eq!(seated, [1, 1, 0, 0, 3, 2], "{cores:?}");
            for (seat, place) in places.iter().enumerate() {
                assert_eq!((place.word, place.bit), (0, seat));
                assert_eq!(place.class, usize::from(cores[place.cpu] >= SLOW));
                let own = places.iter().filter(|p| cores[p.cpu] == cores[place.cpu]);
                assert_eq!(place.core, own.map(|p| 1 << p.bit).sum::<u64>());
            }
        }
    }

    /// The order in which a search that starts at the first seat takes CPUs
    /// (`claim_idle` in `src/bpf/idle.bpf.h`), in all states.
    #[test]
    fn fast_cores_are_chosen_then_slow_ones_then_second_threads() {
        for (cores, busy) in NUMBERINGS
            .iter()
            .flat_map(|&n| (0..63u64).map(move |b| (n, b)))
        {
            let places = hybrid(cores).layout(32).unwrap().places;
            let is_busy = |cpu: usize| busy >> cpu & 1 == 1;
            let idle: u64 = places
                .iter()
                .filter(|p| !is_busy(p.cpu))
                .map(|p| 1 << p.bit)
                .sum();
            let starts = places.iter().fold(0, |bits, p| bits | p.core_start());
            let ends = places.iter().fold(0, |bits, p| bits | p.core_end());
            let whole = c::shim_whole_cores(idle, starts, ends);
            let bit = c::shim_bit_from(if whole == 0 { idle } else { whole }, 0);
            let chosen = places[bit as usize].cpu;

            let worth = |cpu: usize| {
                let core = cores[cpu];
                let shared = (0..6).any(|other| cores[other] == core && is_busy(other));
                (!shared, PRIORITIES[core])
            };
            let best = (0..6)
                .filter(|&cpu| !is_busy(cpu))
                .map(worth)
                .max()
                .unwrap();
            assert!(!is_busy(chosen));
            assert_eq!(worth(chosen), best, "{cores:?}, {busy:#08b}");
        }
    }

    #[test]
    fn a_large_llc_takes_several_words() {
        let layout = machine(1, 1, 130).layout(32).unwrap();
        assert_eq!(layout.words, 3);
        assert!(layout.places.iter().all(|place| place.llc == (0..3)));
    }

    #[test]
    fn a_large_llc_has_several_wake_queues_and_cores_are_whole() {
        let cpus = (0..48).map(|id| Cpu {
            id,
            core: id / 2,
            llc: id / 24,
            node: 0,
        });
        let layout = Topology::new(cpus.collect(), None)
            .unwrap()
            .layout(10)
            .unwrap();
        for place in &layout.places {
            let sibling = &layout.places[place.cpu ^ 1];
            assert_eq!(place.wakeq, sibling.wakeq);
            assert_eq!(place.core, sibling.core);
            assert_eq!(place.core.count_ones(), 2);
            assert!(place.core >> place.bit & 1 == 1);
            assert!(place.llc_wakeqs.contains(&place.wakeq));
            assert_eq!(place.llc_wakeqs.len(), 3);
            assert_eq!(place.node_wakeqs, 0..6);
        }
        for wakeq in 0..6 {
            let cpus = layout.places.iter().filter(|p| p.wakeq == wakeq).count();
            assert!((6..=10).contains(&cpus), "{cpus} CPUs share queue {wakeq}");
        }
    }

    #[test]
    fn too_many_wake_queues_are_refused() {
        let error = machine(2, 16, 8).layout(1).unwrap_err();
        assert!(error.to_string().contains("256 wake queues"));
    }

    #[test]
    fn too_many_llcs_are_refused() {
        let error = machine(1, MAX_WORDS + 1, 1).layout(32).unwrap_err();
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
        assert!(Topology::new(vec![cpu], None).is_err());
    }
}

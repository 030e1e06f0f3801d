//! Where the values of BPF maps lie, and what their types are.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use anyhow::Result;
use base64::prelude::{BASE64_STANDARD, Engine};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::query::{BtfInfoIter, MapInfo, MapInfoIter};
use libbpf_rs::{MapHandle, MapType};
use serde::Serialize;

use crate::bpf::{Code, Program, Register};

/// A map whose values lie one after the other.
#[derive(Serialize)]
pub struct Map {
    name: String,
    entries: u32,
    /// Bytes from one value to the next.
    stride: u32,
    /// Where the first value lies: one address, or one for each CPU.
    values: Vec<u64>,
    /// The number of the types, 0 if they are not known,
    btf: u32,
    /// and of the values' type among them.
    value_type: u32,
}

/// Returns the arrays, and the arrays per CPU.
///
/// # Errors
/// The kernel does not tell where one lies.
pub fn list(cpus: usize) -> Result<Vec<Map>> {
    let mut maps = Vec::new();
    for info in MapInfoIter::default() {
        let values = match info.ty {
            MapType::Array => vec![first_value(&info, sys::BPF_FUNC_map_lookup_elem)?.run(0)?],
            MapType::PercpuArray => {
                let program = first_value(&info, sys::BPF_FUNC_map_lookup_percpu_elem)?;
                (0..cpus).map(|cpu| program.run(cpu as u64)).collect::<Result<_>>()?
            }
            _ => continue,
        };
        maps.push(Map {
            name: info.name.to_string_lossy().into_owned(),
            entries: info.max_entries,
            stride: info.value_size.next_multiple_of(8),
            values,
            btf: info.btf_id,
            value_type: info.btf_value_type_id,
        });
    }
    Ok(maps)
}

/// Returns the types of maps, by their number, in base64.
pub fn types(maps: &[Map]) -> BTreeMap<u32, String> {
    BtfInfoIter::default()
        .filter(|info| maps.iter().any(|map| map.btf == info.id))
        .map(|info| (info.id, BASE64_STANDARD.encode(info.btf)))
        .collect()
}

/// Returns a program that returns where the first value of a map lies, on the CPU that it is given.
fn first_value(info: &MapInfo, lookup: sys::bpf_func_id) -> Result<Program> {
    let map = MapHandle::from_map_id(info.id)?;
    let code = Code::default()
        .copy(Register::R6, Register::R1)
        .map(Register::R1, map.as_fd())
        .zero(Register::R2)
        .load(Register::R3, Register::R6)
        .call(lookup)
        .store(Register::R6, Register::R0);
    Program::new(code)
}

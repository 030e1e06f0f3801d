//! The memory of the kernel, by address.

use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use libbpf_rs::libbpf_sys::{self as sys, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::bpf::{Code, Program, Register};

/// What is read at once: a page is all there, or not at all.
const PAGE: u64 = 4096;

/// Reads memory of the kernel.
pub struct Memory {
    page: MapHandle,
    reader: Program,
}

impl Memory {
    /// # Errors
    /// The kernel refuses the BPF program that reads, or its map.
    pub fn new() -> Result<Self> {
        let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        let page = MapHandle::create(MapType::Array, Some("page"), 4, PAGE as u32, 1, &options)?;
        let code = Code::default()
            .copy(Register::R6, Register::R1)
            .value(Register::R1, page.as_fd())
            .set(Register::R2, PAGE as i32)
            .load(Register::R3, Register::R6)
            .call(sys::BPF_FUNC_probe_read_kernel)
            .store(Register::R6, Register::R0);
        let reader = Program::new(code)?;
        Ok(Self { page, reader })
    }

    /// Returns the bytes at an address; `length` is in bytes.
    ///
    /// # Errors
    /// There is no memory.
    pub fn read(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        let start = (address % PAGE) as usize;
        let mut bytes = Vec::new();
        let mut page = address - address % PAGE;
        while bytes.len() < start + length {
            ensure!(self.reader.run(page)? == 0, "no memory at {address:#x}");
            let content = self.page.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
            bytes.extend(content.context("an array has no first value")?);
            page += PAGE;
        }
        Ok(bytes[start..start + length].to_vec())
    }

    /// Returns the words of 8 bytes at an address.
    ///
    /// # Errors
    /// There is no memory.
    pub fn words(&self, address: u64, count: usize) -> Result<Vec<u64>> {
        let bytes = self.read(address, count * size_of::<u64>())?;
        Ok(bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect())
    }

    /// Returns the 4 bytes at an address.
    ///
    /// # Errors
    /// There is no memory.
    pub fn half(&self, address: u64) -> Result<u32> {
        let bytes = self.read(address, size_of::<u32>())?;
        Ok(u32::from_ne_bytes(bytes.try_into().expect("as many as were asked for")))
    }
}

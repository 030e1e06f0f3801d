//! Programs of a few instructions that the kernel runs at once: what it alone can say of its memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{mem, ptr};

use anyhow::{Context, Result};
use libbpf_rs::libbpf_sys as sys;

/// A register. A program gets its context in R1, and what a call returns is in R0.
#[derive(Clone, Copy)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    /// Outlives calls.
    R6 = 6,
    /// The end of the stack.
    R10 = 10,
}

/// The instructions of a program, in order.
#[derive(Default)]
pub struct Code(Vec<sys::bpf_insn>);

impl Code {
    /// `to = from`
    pub fn copy(self, to: Register, from: Register) -> Self {
        self.add(sys::BPF_ALU64 | sys::BPF_MOV | sys::BPF_X, to as u8, from as u8, 0, 0)
    }

    /// `to = value`
    pub fn set(self, to: Register, value: i32) -> Self {
        self.add(sys::BPF_ALU64 | sys::BPF_MOV | sys::BPF_K, to as u8, 0, 0, value)
    }

    /// `to = the map`
    pub fn map(self, to: Register, map: BorrowedFd<'_>) -> Self {
        self.wide(to, sys::BPF_PSEUDO_MAP_FD, map)
    }

    /// `to = the address of the first value of the map`, an array
    pub fn value(self, to: Register, map: BorrowedFd<'_>) -> Self {
        self.wide(to, sys::BPF_PSEUDO_MAP_VALUE, map)
    }

    /// `to = an address of the stack that holds a 0 of 4 bytes`
    pub fn zero(self, to: Register) -> Self {
        const SIZE: i16 = 4;
        self.add(sys::BPF_ST | sys::BPF_MEM | sys::BPF_W, Register::R10 as u8, 0, -SIZE, 0)
            .copy(to, Register::R10)
            .add(sys::BPF_ALU64 | sys::BPF_ADD | sys::BPF_K, to as u8, 0, 0, (-SIZE).into())
    }

    /// `to = *from`, 8 bytes
    pub fn load(self, to: Register, from: Register) -> Self {
        self.add(sys::BPF_LDX | sys::BPF_MEM | sys::BPF_DW, to as u8, from as u8, 0, 0)
    }

    /// `*to = from`, 8 bytes
    pub fn store(self, to: Register, from: Register) -> Self {
        self.add(sys::BPF_STX | sys::BPF_MEM | sys::BPF_DW, to as u8, from as u8, 0, 0)
    }

    /// `R0 = function(R1, R2...)`
    pub fn call(self, function: sys::bpf_func_id) -> Self {
        self.add(sys::BPF_JMP | sys::BPF_CALL, 0, 0, 0, function as i32)
    }

    fn wide(self, to: Register, source: u32, map: BorrowedFd<'_>) -> Self {
        let code = sys::BPF_LD | sys::BPF_DW | sys::BPF_IMM;
        self.add(code, to as u8, source as u8, 0, map.as_raw_fd()).add(0, 0, 0, 0, 0)
    }

    fn add(mut self, code: u32, to: u8, from: u8, offset: i16, value: i32) -> Self {
        let mut insn = sys::bpf_insn { code: code as u8, off: offset, imm: value, ..Default::default() };
        insn.set_dst_reg(to);
        insn.set_src_reg(from);
        self.0.push(insn);
        self
    }
}

/// A program that the kernel has accepted.
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program, which then returns.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn new(code: Code) -> Result<Self> {
        let code = code.set(Register::R0, 0).add(sys::BPF_JMP | sys::BPF_EXIT, 0, 0, 0, 0).0;
        let mut options = sys::bpf_prog_load_opts {
            sz: mem::size_of::<sys::bpf_prog_load_opts>() as _,
            prog_flags: sys::BPF_F_SLEEPABLE,
            ..Default::default()
        };
        // SAFETY: code and options live until the call returns.
        let fd = unsafe {
            sys::bpf_prog_load(
                sys::BPF_PROG_TYPE_SYSCALL,
                ptr::null(),
                c"GPL".as_ptr(),
                code.as_ptr(),
                code.len() as _,
                &mut options,
            )
        };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd)).context("the kernel refuses a BPF program");
        }
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Runs the program on a context of one word; returns what it left there.
    ///
    /// # Errors
    /// The kernel does not run it.
    pub fn run(&self, mut context: u64) -> Result<u64> {
        let mut options = sys::bpf_test_run_opts {
            sz: mem::size_of::<sys::bpf_test_run_opts>() as _,
            ctx_in: ptr::from_mut(&mut context).cast(),
            ctx_size_in: mem::size_of_val(&context) as _,
            ..Default::default()
        };
        // SAFETY: the kernel writes into the context, which lives until the call returns.
        let error = unsafe { sys::bpf_prog_test_run_opts(self.0.as_raw_fd(), &mut options) };
        if error < 0 {
            return Err(io::Error::from_raw_os_error(-error))
                .context("the kernel does not run a BPF program");
        }
        Ok(context)
    }
}

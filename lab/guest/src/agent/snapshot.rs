//! Marks, at which the laboratory may save the whole machine and let many guests go on from there.

use std::arch::asm;

use crate::clock;

/// The marks, in the order in which a guest passes them; the same numbers as in `heddle_lab/vm.py`.
#[derive(Clone, Copy)]
#[repr(u64)]
pub enum Mark {
    /// The kernel is up, and nothing of the job is known.
    Booted = 1,
    /// The job's scheduler is attached.
    Started = 2,
}

/// Passes a mark. What the guest does next is the same whether the machine is saved, was loaded, or neither.
pub fn pass(mark: Mark) {
    /// A machine stops at the end of its clock's round, which is not longer.
    const ROUND_NS: u64 = 1_000_000;
    // SAFETY: a NOP, which tells the laboratory's QEMU the mark, and changes no register and no memory.
    unsafe {
        asm!(".byte 0x0f, 0x1f, 0x04, 0x25", ".ascii \"SNAP\"", in("rax") mark as u64, options(nostack));
    }
    clock::sleep(ROUND_NS);
}

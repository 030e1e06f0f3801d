//! Work stated in instructions.

use std::arch::asm;

/// Instructions of one turn of the loop, its counter and branch included.
const TURN: u64 = 128;

/// Instructions of `execute` beside the sled and the loop.
const FIXED: u64 = 11;

/// As many of these, if COMPUTE stands for all but the two after it: of the least that it stands for.
const STOOD_FOR: u64 = FIXED - 2;

/// The least that `execute` can do.
pub const MINIMUM: u64 = FIXED;

/// Executes exactly `instructions` (at least [`MINIMUM`]) between entering and leaving its assembly; the
/// caller's own few instructions come on top.
///
/// In the laboratory, COMPUTE stands for nearly all of them: an instruction that its clock executes RCX times
/// (`lab/clock/README.md`). Elsewhere COMPUTE is a no-op that leaves RCX as it was, and a loop executes as many:
/// no-ops but for its counter. Memory is not touched: what a program pays for caches is the machine model's
/// business.
#[inline]
pub fn execute(instructions: u64) {
    // SAFETY: jumps within itself only, touches the named registers and the flags.
    unsafe {
        asm!(
            ".byte 0x0f, 0x1f, 0x80, 0x63, 0x6f, 0x6d, 0x70", // 1: COMPUTE, nop dword ptr [rax + 0x706d6f63]
            "test rcx, rcx",                                  // 2
            "jz 5f",                                          // 3
            "sub rcx, {stood_for}",                           // 4
            "mov {odd}, rcx",                                 // 5
            "and {odd}, {turn} - 1",                          // 6
            "lea {target}, [rip + 3f]",                       // 7: into the sled,
            "sub {target}, {odd}",                            // 8: `odd` one-byte instructions before its end
            "shr rcx, {shift}",                               // 9: turns
            "jmp {target}",                                   // 10
            ".rept {turn} - 1",
            "nop",
            ".endr",
            "3:",
            "jz 5f", // 11: if there are no turns
            "4:",
            ".rept {turn} - 2",
            "nop",
            ".endr",
            "dec rcx",
            "jnz 4b",
            "5:",
            stood_for = const STOOD_FOR,
            turn = const TURN,
            shift = const TURN.trailing_zeros(),
            inout("rcx") instructions.saturating_sub(FIXED) + STOOD_FOR => _,
            odd = out(reg) _,
            target = out(reg) _,
            options(nomem, nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{MINIMUM, TURN, execute};
    use nix::sys::ptrace;
    use nix::sys::signal::{Signal, raise};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// Instructions that a child retires from its stop to its exit with `execute(n)` between, by
    /// single-stepping it.
    fn steps(n: u64) -> u64 {
        // SAFETY: the child calls only system calls and `execute`.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let _ = ptrace::traceme();
                let _ = raise(Signal::SIGSTOP);
                execute(std::hint::black_box(n));
                // SAFETY: ends the child without running the test harness's exit handlers.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                let mut count = 0;
                loop {
                    match waitpid(child, None).unwrap() {
                        WaitStatus::Exited(_, code) => {
                            assert_eq!(code, 0);
                            return count;
                        }
                        WaitStatus::Stopped(..) => {}
                        other => panic!("{other:?}"),
                    }
                    ptrace::step(child, None).unwrap();
                    count += 1;
                }
            }
        }
    }

    #[test]
    fn executes_exactly_what_it_promises() {
        let least = steps(MINIMUM);
        for n in [MINIMUM + 1, TURN, TURN + MINIMUM - 1, TURN + MINIMUM, 1000, 4097] {
            assert_eq!(steps(n) - least, n - MINIMUM, "{n} instructions");
        }
    }
}

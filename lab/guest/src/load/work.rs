//! Work stated in instructions.

use std::arch::asm;

/// Instructions of one turn of the loop, its counter and branch included.
const TURN: u64 = 128;

/// Instructions that `execute` adds to the sled and the loop.
const FIXED: u64 = 5;

/// The least that `execute` can do.
pub const MINIMUM: u64 = FIXED;

/// Executes exactly `instructions` (at least [`MINIMUM`]) between entering and leaving its assembly; the
/// caller's own few instructions come on top.
///
/// They are no-ops but for the loop's counter: a simulator that counts instructions charges each in full,
/// yet translates it to next to nothing, so that virtual time is cheap. Memory is not touched: what a
/// program pays for caches is the machine model's business.
#[inline]
pub fn execute(instructions: u64) {
    let rest = instructions.saturating_sub(FIXED);
    let (turns, odd) = (rest / TURN, rest % TURN);
    // SAFETY: jumps within itself only, touches the named registers and the flags.
    unsafe {
        asm!(
            "lea {target}, [rip + 3f]", // 1: into the sled, `odd` one-byte instructions before its end
            "sub {target}, {odd}",      // 2
            "jmp {target}",             // 3
            ".rept 127",
            "nop",
            ".endr",
            "3:",
            "test {turns}, {turns}", // 4
            "jz 5f",                 // 5
            "4:",
            ".rept 126",
            "nop",
            ".endr",
            "dec {turns}",
            "jnz 4b",
            "5:",
            target = out(reg) _,
            odd = in(reg) odd,
            turns = inout(reg) turns => _,
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

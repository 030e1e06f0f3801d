// SPDX-License-Identifier: GPL-2.0-only

//! What the kernel says when it ends the scheduler. It names tasks, and a task's name is whatever
//! bytes its owner chose: the reader of scx_utils panics where they are not UTF-8, and lets escape
//! sequences through to the terminal. The printed form is the same as its.

use std::io::{self, Write};
use std::ptr;

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags};
use scx_utils::{SCX_ECODE_ACT_RESTART, ScxExitKind};

use crate::bpf_skel::{BpfSkel, types};
use crate::output::visible;

const RULE: &str =
    "================================================================================";

/// How a scheduler ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// enum scx_exit_kind; 0 if it has not ended.
    kind: i32,
    code: i64,
    /// Where it was triggered, if the kernel tells (UEI_RECORD).
    cpu: Option<i32>,
    reason: String,
    msg: String,
    dump: String,
}

impl Exit {
    /// Read what the program noted in ops.exit, as text that is safe to print.
    ///
    /// # Errors
    /// The program has no .data. Without a dump the rest is still worth telling.
    pub fn read(skel: &BpfSkel<'_>) -> Result<Self> {
        let data = skel.maps.data_data.as_ref();
        let data: &types::data = data.context("the program has no .data")?;
        // SAFETY: a reference to a mapping that `skel` keeps. Volatile, for the program writes there.
        let uei = unsafe { ptr::read_volatile(&raw const data.uei) };
        if uei.kind == 0 {
            return Ok(Self::default());
        }
        // The skeleton's type has one byte of it: the loader sizes it (uei_set_size!).
        let dump = skel.maps.data_uei_dump.lookup(&[0; 4], MapFlags::ANY);
        let dump = dump.unwrap_or_else(|error| {
            log::warn!("cannot read the kernel's dump: {error}");
            None
        });
        Ok(Self::new(&uei, &dump.unwrap_or_default()))
    }

    fn new(uei: &types::user_exit_info, dump: &[u8]) -> Self {
        Self {
            kind: uei.kind,
            code: uei.exit_code,
            cpu: Some(uei.exit_cpu).filter(|&cpu| cpu >= 0),
            reason: visible(&text(&bytes(&uei.reason))),
            msg: visible(&text(&bytes(&uei.msg))),
            dump: lines(&text(dump)),
        }
    }

    /// Write the dump to `out`, and after an exit that was asked for, why.
    ///
    /// # Errors
    /// The kernel's reason, in one line, if it ended the scheduler because of an error.
    pub fn report(&self, out: &mut impl Write) -> Result<()> {
        if self.kind == ScxExitKind::None as i32 {
            return Ok(());
        }
        // The reason is what counts, whether or not anybody reads the rest.
        let _ = self.write_dump(out);
        let why = self.why();
        if self.kind > ScxExitKind::UnregKern as i32 {
            bail!("{why}");
        }
        let _ = writeln!(out, "{why}");
        Ok(())
    }

    fn write_dump(&self, out: &mut impl Write) -> io::Result<()> {
        if self.dump.is_empty() {
            return Ok(());
        }
        write!(out, "\nDEBUG DUMP\n{RULE}\n\n{}\n{RULE}\n\n", self.dump)
    }

    fn why(&self) -> String {
        let cpu = self
            .cpu
            .map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
        match (self.reason.as_str(), self.msg.as_str()) {
            ("", _) => format!("<UNKNOWN>{cpu}"),
            (reason, "") => format!("EXIT: {reason}{cpu}"),
            (reason, msg) => format!("EXIT: {reason} ({msg}){cpu}"),
        }
    }

    /// Whether the program is to be loaded again, as when a CPU came that it did not know.
    pub fn should_restart(&self) -> bool {
        self.asks_for(*SCX_ECODE_ACT_RESTART)
    }

    /// Is `action` in the exit code? Only exits of the kernel's or the program's choice have one.
    fn asks_for(&self, action: u64) -> bool {
        let chosen = [ScxExitKind::UnregBPF as i32, ScxExitKind::UnregKern as i32];
        chosen.contains(&self.kind) && self.code as u64 & action != 0
    }
}

/// The bytes of C's characters, which are signed or not by architecture.
fn bytes(chars: &[i8]) -> Vec<u8> {
    chars.iter().map(|&char| char as u8).collect()
}

/// The text that a NUL ends, or the array's end does.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Text of several lines, each made visible.
fn lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(visible).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: i32 = ScxExitKind::ErrorStall as i32;
    const UNREG: i32 = ScxExitKind::Unreg as i32;

    fn exit(kind: i32, reason: &[u8], msg: &[u8], dump: &[u8]) -> Exit {
        let mut uei = types::user_exit_info {
            kind,
            exit_cpu: -1,
            ..Default::default()
        };
        for (to, from) in uei.reason.iter_mut().zip(reason) {
            *to = *from as i8;
        }
        for (to, from) in uei.msg.iter_mut().zip(msg) {
            *to = *from as i8;
        }
        Exit::new(&uei, dump)
    }

    fn error(exit: &Exit) -> String {
        let error = exit.report(&mut io::sink()).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }

    fn written(exit: &Exit) -> String {
        let mut out = Vec::new();
        let _ = exit.report(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_error_is_the_reason_and_the_message() {
        let mut stall = exit(STALL, b"runnable task stall", b"\"a's\"[7] failed", b"");
        let said = "EXIT: runnable task stall (\"a's\"[7] failed)";
        assert_eq!(error(&stall), said);
        stall.cpu = Some(3);
        assert_eq!(error(&stall), format!("{said} on CPU 3"));
        assert_eq!(error(&exit(STALL, b"why", b"", b"")), "EXIT: why");
        assert_eq!(error(&exit(STALL, b"", b"message", b"")), "<UNKNOWN>");
        assert_eq!(written(&stall), "");
    }

    #[test]
    fn an_exit_that_was_asked_for_is_no_error() {
        let ended = exit(UNREG, b"unregistered from user space", b"", b"");
        assert!(ended.report(&mut io::sink()).is_ok());
        assert_eq!(written(&ended), "EXIT: unregistered from user space\n");
        assert_eq!(written(&Exit::default()), "");
    }

    #[test]
    fn names_may_hold_any_bytes() {
        let stall = exit(STALL, b"stall", b"\xff\xc3[7]", b"");
        assert_eq!(error(&stall), "EXIT: stall (\u{fffd}\u{fffd}[7])");
    }

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        let hostile = b"a\n\x1b[2Jb\xc2\x9b";
        let stall = exit(STALL, hostile, hostile, b"one\x1b[2J\r\ntwo\n");
        let shown = r"a\n\u{1b}[2Jb\u{9b}";
        assert_eq!(error(&stall), format!("EXIT: {shown} ({shown})"));
        let dump = written(&stall);
        assert!(dump.contains("\none\\u{1b}[2J\\r\ntwo\n"), "{dump}");
    }

    #[test]
    fn the_dump_comes_first_and_between_rules() {
        let stall = exit(STALL, b"stall", b"", b"one\ntwo\n\0behind");
        let expected = format!("\nDEBUG DUMP\n{RULE}\n\none\ntwo\n\n{RULE}\n\n");
        assert_eq!(written(&stall), expected);
        assert_eq!(RULE.len(), 80);
    }

    #[test]
    fn a_dump_may_be_cut_inside_a_character() {
        let whole = "task ü".as_bytes();
        let stall = exit(STALL, b"stall", b"", &whole[..whole.len() - 1]);
        assert_eq!(stall.dump, "task \u{fffd}");
    }

    #[test]
    fn arrays_may_be_full() {
        let stall = exit(STALL, &[b'r'; 200], &[b'm'; 2000], b"");
        assert_eq!((stall.reason.len(), stall.msg.len()), (128, 1024));
    }

    #[test]
    fn only_an_exit_of_choice_asks_for_a_restart() {
        const RESTART: u64 = 1 << 48; // SCX_ECODE_ACT_RESTART
        let coded = |kind, code| {
            let code = code as i64;
            Exit {
                kind,
                code,
                ..Default::default()
            }
        };
        let hotplug = RESTART | 1 << 32;
        assert!(coded(ScxExitKind::UnregKern as i32, hotplug).asks_for(RESTART));
        assert!(coded(ScxExitKind::UnregBPF as i32, hotplug).asks_for(RESTART));
        assert!(!coded(ScxExitKind::UnregKern as i32, 1 << 32).asks_for(RESTART));
        assert!(!coded(UNREG, hotplug).asks_for(RESTART));
        assert!(!coded(STALL, hotplug).asks_for(RESTART));
    }
}

// SPDX-License-Identifier: GPL-2.0-only

//! What the program writes: to stdout, where the macros of the standard library panic if it is
//! closed or full; and text that others made.

use std::io::{self, StdoutLock, Write};

use anyhow::{Context, Result};

/// Have `write` write to stdout. Whether anybody still reads: a closed pipe is no error, but the
/// end of what `head` wanted to see.
///
/// # Errors
/// Stdout cannot be written for another reason, such as a full disk.
pub fn print(write: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<()>) -> Result<bool> {
    let mut out = io::stdout().lock();
    read(write(&mut out).and_then(|()| out.flush()))
}

/// Text with what would do something to a terminal, or end the line, written as escapes.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            // escape_debug() would escape these too, as if for a string of Rust.
            '\'' | '"' | '\\' => shown.push(char),
            char => shown.extend(char.escape_debug()),
        }
    }
    shown
}

fn read(written: io::Result<()>) -> Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_acts_is_escaped() {
        let harmless = "\"it's\" C:\\ ü \u{fffd}";
        assert_eq!(visible(harmless), harmless);
        assert_eq!(visible("\0\t\u{7f}\u{202e}"), r"\0\t\u{7f}\u{202e}");
    }

    #[test]
    fn a_closed_pipe_is_no_error_but_a_full_disk_is() {
        let failed = |kind| read(Err(io::Error::from(kind)));
        assert!(read(Ok(())).unwrap());
        assert!(!failed(io::ErrorKind::BrokenPipe).unwrap());
        let error = failed(io::ErrorKind::StorageFull).unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write to stdout: "));
    }
}

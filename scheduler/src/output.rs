// SPDX-License-Identifier: GPL-2.0-only

//! What the program writes to stdout. The macros of the standard library panic where it is closed
//! or full.

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
    fn a_closed_pipe_is_no_error_but_a_full_disk_is() {
        let failed = |kind| read(Err(io::Error::from(kind)));
        assert!(read(Ok(())).unwrap());
        assert!(!failed(io::ErrorKind::BrokenPipe).unwrap());
        let error = failed(io::ErrorKind::StorageFull).unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write to stdout: "));
    }
}

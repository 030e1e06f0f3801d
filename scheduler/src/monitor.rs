// SPDX-License-Identifier: GPL-2.0-only

//! Print the statistics of a running scx_heddle.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use crate::stats::Counters;

/// Print what each counter counts.
///
/// # Errors
/// `out` cannot be written.
pub fn explain(out: &mut impl Write) -> Result<()> {
    let names = Counters::ABOUT.iter().map(|(name, _)| name.len());
    let width = names.max().unwrap_or(0);
    for (name, text) in Counters::ABOUT {
        writeln!(out, "{name:width$}  {text}")?;
    }
    Ok(())
}

/// Ask the running scheduler every `interval` and print a line, until
/// `shutdown` is set. Waits for a scheduler to appear.
///
/// # Errors
/// If stdout cannot be written.
pub fn watch(interval: Duration, json: bool, shutdown: Arc<AtomicBool>) -> Result<()> {
    scx_utils::monitor_stats::<Counters>(
        &[],
        interval,
        || shutdown.load(Ordering::Relaxed),
        |counters| {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", format(&counters, json)?)?;
            Ok(out.flush()?)
        },
    )
}

fn format(counters: &Counters, json: bool) -> Result<String> {
    if json {
        return Ok(serde_json::to_string(counters)?);
    }
    let fields: Vec<String> = counters
        .entries()
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    Ok(fields.join("  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_one_line_and_reads_back() {
        let counters = Counters {
            queued: 7,
            ..Default::default()
        };
        let line = format(&counters, true).unwrap();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Counters>(&line).unwrap(), counters);
    }

    #[test]
    fn text_names_every_counter() {
        let line = format(&Counters::default(), false).unwrap();
        for (name, _) in Counters::default().entries() {
            assert!(line.contains(name));
        }
    }
}

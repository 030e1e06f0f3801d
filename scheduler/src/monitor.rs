// SPDX-License-Identifier: GPL-2.0-only

//! Show the statistics of a running scx_heddle.

use std::io::{self, IsTerminal, Write};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use scx_stats::StatsClient;

use crate::ranks::Asym;
use crate::stats::{Counters, Groups, Llcs};
use crate::topology::Topology;
use crate::usage::{Tree, Usage};
use crate::view::View;

/// How often the view looks whether it should end.
const POLL: Duration = Duration::from_millis(100);

/// How long the scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Print what each counter counts.
///
/// # Errors
/// `out` cannot be written.
pub fn explain(out: &mut impl Write) -> io::Result<()> {
    let names = Counters::ABOUT.iter().map(|(name, _)| name.len());
    let width = names.max().unwrap_or(0);
    for (name, text) in Counters::ABOUT {
        writeln!(out, "{name:width$}  {text}")?;
    }
    Ok(())
}

/// Show the statistics of the running scheduler every `interval` until
/// `shutdown` is set, as a view if stdout is a terminal, else as lines.
///
/// # Errors
/// The terminal or stdout cannot be used.
pub fn watch(interval: Duration, json: bool, shutdown: Arc<AtomicBool>) -> Result<()> {
    if json || !io::stdout().is_terminal() {
        return print(interval, json, shutdown);
    }
    let cpus = Topology::read(&Asym::Off)?.llcs();
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = show(&mut terminal, &mut View::new(cpus), interval, &shutdown);
    ratatui::try_restore().context("cannot restore the terminal")?;
    shown
}

/// Ask the running scheduler every `interval` and print a line, until
/// `shutdown` is set. Waits for a scheduler to appear.
///
/// # Errors
/// If stdout cannot be written.
pub fn print(interval: Duration, json: bool, shutdown: Arc<AtomicBool>) -> Result<()> {
    scx_utils::monitor_stats::<Counters>(
        &[],
        interval,
        || shutdown.load(Ordering::Relaxed),
        |counters| {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", format(&counters, json)?)?;
            Ok(out.flush()?)
        },
    )
}

fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    interval: Duration,
    shutdown: &Arc<AtomicBool>,
) -> Result<()> {
    let mut client = None;
    let mut tree = Tree::new(None);
    let mut usage = Usage::read(&mut tree, iter::empty())?;
    let mut asked = Instant::now();
    while !shutdown.load(Ordering::Relaxed) {
        match counted(&mut client) {
            Ok(counted) => {
                let now = Usage::read(&mut tree, counted.1.groups.keys().copied())?;
                view.update(asked.elapsed(), counted, &usage, &now);
                usage = now;
                asked = Instant::now();
            }
            Err(_) => view.trouble = Some("waiting for scx_heddle".to_string()),
        }
        terminal.draw(|frame| view.draw(frame))?;
        let next = Instant::now() + interval;
        if wait(terminal, view, next, shutdown)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Ask the scheduler what it has counted since the last time; after a failure,
/// which it may be restarting after, connect anew.
fn counted(client: &mut Option<StatsClient>) -> Result<(Llcs, Groups)> {
    let mut connected = match client.take() {
        Some(connected) => connected,
        None => StatsClient::new().connect(Some(PATIENCE.as_millis() as u64))?,
    };
    let target = |name: &str| vec![("target".to_string(), name.to_string())];
    let counted = (
        connected.request("stats", target("llc"))?,
        connected.request("stats", target("group"))?,
    );
    *client = Some(connected);
    Ok(counted)
}

/// Wait until `next`, drawing anew whenever the terminal's size changes. Whether
/// a key said to quit.
fn wait(
    terminal: &mut DefaultTerminal,
    view: &View,
    next: Instant,
    shutdown: &Arc<AtomicBool>,
) -> Result<bool> {
    while !shutdown.load(Ordering::Relaxed) {
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if !event::poll(left.min(POLL))? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if quits(&key) => return Ok(true),
            Event::Resize(..) => {
                terminal.draw(|frame| view.draw(frame))?;
            }
            _ => {}
        }
    }
    Ok(false)
}

/// In raw mode, Ctrl-C is a key.
fn quits(key: &KeyEvent) -> bool {
    let interrupt = key.modifiers == KeyModifiers::CONTROL && key.code == KeyCode::Char('c');
    interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
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

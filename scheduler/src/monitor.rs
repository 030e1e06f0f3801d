// SPDX-License-Identifier: GPL-2.0-only

//! Show the statistics of a running scx_heddle.

use std::io::{self, IsTerminal, Write};
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use scx_stats::StatsClient;

use crate::output::{self, visible};
use crate::ranks::Asym;
use crate::stats::{Counters, Groups, Llcs};
use crate::topology::Topology;
use crate::usage::{Tree, Usage};
use crate::view::View;

/// How often a wait for keys looks whether it should end.
const POLL: Duration = Duration::from_millis(100);

/// How long the scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long lines wait for a scheduler that is not there before they look again.
const RETRY: Duration = Duration::from_secs(1);

/// Where scx_stats has the running scheduler's socket.
const SOCKET: &str = "/var/run/scx/root/stats";

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
/// The terminal or stdout cannot be used, or this user may not ask.
pub fn watch(interval: Duration, json: bool, shutdown: &AtomicBool) -> Result<()> {
    if json || !io::stdout().is_terminal() {
        return print(interval, json, Some(PATIENCE), shutdown);
    }
    let cpus = Topology::read(&Asym::Off)?.llcs();
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = show(&mut terminal, &mut View::new(cpus), interval, shutdown);
    let restored = ratatui::try_restore().context("cannot restore the terminal");
    shown.and(restored)
}

/// Ask the running scheduler every `interval` and print a line, until
/// `shutdown` is set or nobody reads any more. Waits for a scheduler to appear.
/// One that takes longer than `patience` is asked anew, and then counts anew.
///
/// # Errors
/// Stdout cannot be written, or this user may not ask.
pub fn print(
    interval: Duration,
    json: bool,
    patience: Option<Duration>,
    shutdown: &AtomicBool,
) -> Result<()> {
    print_each(
        interval,
        shutdown,
        || connect(patience),
        |counters| {
            let line = format(counters, json)?;
            output::print(|out| writeln!(out, "{line}"))
        },
    )
}

/// What `print` does, with what `line` makes of the counters: whether anybody still reads.
fn print_each(
    interval: Duration,
    shutdown: &AtomicBool,
    connect: impl Fn() -> Result<StatsClient>,
    mut line: impl FnMut(&Counters) -> Result<bool>,
) -> Result<()> {
    let mut client = None;
    let mut failures = 0;
    while !shutdown.load(Ordering::Relaxed) {
        let pause = match ask(&mut client, &connect, |client| {
            client.request("stats", Vec::new())
        }) {
            Ok(counters) => {
                failures = 0;
                if !line(&counters)? {
                    return Ok(());
                }
                interval
            }
            Err(error) => {
                failures += 1;
                let trouble = trouble(error)?;
                // The first is no news: --stats begins before the scheduler has been loaded.
                if failures == 2 {
                    log::info!("{trouble}");
                }
                RETRY
            }
        };
        rest(pause, shutdown);
    }
    Ok(())
}

/// Sleep for `time`, or until `shutdown` is set and this thread unparked. To wake up and look at
/// the flag would take time from the tasks that are counted.
fn rest(time: Duration, shutdown: &AtomicBool) {
    let end = Instant::now() + time;
    while !shutdown.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        thread::park_timeout(left);
    }
}

fn connect(patience: Option<Duration>) -> Result<StatsClient> {
    let connected = StatsClient::new().connect(patience.map(|time| time.as_millis() as u64));
    match patience {
        Some(_) => connected.map_err(absent),
        None => connected, // of this very process, which has started it
    }
}

/// Say what to do where no scheduler of another process runs; other errors stay as they are.
fn absent(error: anyhow::Error) -> anyhow::Error {
    match kind(&error) {
        Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            anyhow!("start it, nothing answers at {SOCKET}")
        }
        _ => error,
    }
}

fn kind(error: &anyhow::Error) -> Option<io::ErrorKind> {
    error.downcast_ref().map(io::Error::kind)
}

/// Ask the scheduler something; after a failure, which it may be restarting after, connect anew.
fn ask<T>(
    client: &mut Option<StatsClient>,
    connect: impl Fn() -> Result<StatsClient>,
    request: impl FnOnce(&mut StatsClient) -> Result<T>,
) -> Result<T> {
    let mut connected = match client.take() {
        Some(connected) => connected,
        None => connect()?,
    };
    let answer = request(&mut connected)?;
    *client = Some(connected);
    Ok(answer)
}

/// What to say of a failure that may pass.
///
/// # Errors
/// It will not: this user may not ask.
fn trouble(error: anyhow::Error) -> Result<String> {
    if kind(&error) == Some(io::ErrorKind::PermissionDenied) {
        return Err(error.context("cannot ask the running scheduler"));
    }
    Ok(visible(&format!("waiting for scx_heddle: {error:#}")))
}

fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    interval: Duration,
    shutdown: &AtomicBool,
) -> Result<()> {
    let mut client = None;
    let mut tree = Tree::new(None);
    let mut usage = Usage::read(&mut tree, iter::empty())?;
    let mut asked = Instant::now();
    while !shutdown.load(Ordering::Relaxed) {
        match ask(&mut client, || connect(Some(PATIENCE)), counted) {
            Ok(counted) => {
                let now = Usage::read(&mut tree, counted.1.groups.keys().copied())?;
                view.update(asked.elapsed(), counted, &usage, &now);
                usage = now;
                asked = Instant::now();
            }
            Err(error) => view.trouble = Some(trouble(error)?),
        }
        terminal.draw(|frame| view.draw(frame))?;
        let next = Instant::now() + interval;
        if wait(terminal, view, next, shutdown)? {
            return Ok(());
        }
    }
    Ok(())
}

/// What the scheduler has counted since the last time.
fn counted(client: &mut StatsClient) -> Result<(Llcs, Groups)> {
    let target = |name: &str| vec![("target".to_string(), name.to_string())];
    Ok((
        client.request("stats", target("llc"))?,
        client.request("stats", target("group"))?,
    ))
}

/// Wait until `next`, drawing anew whenever the terminal's size changes. Whether
/// a key said to quit.
fn wait(
    terminal: &mut DefaultTerminal,
    view: &View,
    next: Instant,
    shutdown: &AtomicBool,
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
    use anyhow::bail;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    /// A scheduler that answers one request of each of two clients, then closes; `print` is given
    /// what connects to it.
    fn with_two_answers(name: &str, print: impl FnOnce(&dyn Fn() -> Result<StatsClient>)) {
        let path = std::env::temp_dir().join(format!("heddle-{name}-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || answer_twice(&listener));
        print(&|| StatsClient::new().set_path(&path).connect(Some(60_000)));
        server.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    fn answer_twice(listener: &UnixListener) {
        for value in [1, 2] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            reader.read_line(&mut request).unwrap();
            let counters = Counters {
                queued: value,
                ..Default::default()
            };
            let answer = serde_json::json!({"errno": 0, "args": {"resp": counters}});
            writeln!(stream, "{answer}").unwrap();
        }
    }

    #[test]
    fn lines_come_again_after_a_restart() {
        let shutdown = AtomicBool::new(false);
        let mut queued = Vec::new();
        with_two_answers("lines", |connect| {
            print_each(Duration::ZERO, &shutdown, connect, |counters| {
                queued.push(counters.queued);
                shutdown.store(queued.len() == 2, Ordering::Relaxed);
                Ok(true)
            })
            .unwrap();
        });
        assert_eq!(queued, [1, 2]);
    }

    #[test]
    fn lines_end_when_nobody_reads_and_fail_when_they_cannot_be_written() {
        let running = AtomicBool::new(false);
        let day = Duration::from_secs(86_400);
        with_two_answers("reader", |connect| {
            assert!(print_each(day, &running, connect, |_| Ok(false)).is_ok());
            assert!(print_each(day, &running, connect, |_| bail!("full")).is_err());
        });
    }

    #[test]
    fn waiting_ends_with_the_shutdown() {
        let shutdown = AtomicBool::new(false);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| rest(Duration::from_secs(86_400), &shutdown));
            shutdown.store(true, Ordering::Relaxed);
            waiter.thread().unpark();
            waiter.join().unwrap();
        });
    }

    #[test]
    fn who_may_not_ask_does_not_wait() {
        let refused = || Err(io::Error::from(io::ErrorKind::PermissionDenied).into());
        let running = AtomicBool::new(false);
        let second = Duration::from_secs(1);
        let error = print_each(second, &running, refused, |_| Ok(true)).unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains("permission denied"), "{said}");
        assert_eq!(said.lines().count(), 1);
    }

    #[test]
    fn where_none_runs_the_socket_is_named_and_what_to_do() {
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused] {
            assert_eq!(
                trouble(absent(io::Error::from(kind).into())).unwrap(),
                "waiting for scx_heddle: start it, nothing answers at /var/run/scx/root/stats"
            );
        }
        let late = absent(io::Error::from(io::ErrorKind::WouldBlock).into());
        assert!(!trouble(late).unwrap().contains("start it"));
        assert!(
            trouble(absent(
                io::Error::from(io::ErrorKind::PermissionDenied).into()
            ))
            .is_err()
        );
    }

    #[test]
    fn a_failure_that_may_pass_is_named_in_one_line() {
        let error = anyhow::anyhow!("one\ntwo\u{1b}[2J").context("no answer");
        let said = trouble(error).unwrap();
        assert_eq!(
            said,
            r"waiting for scx_heddle: no answer: one\ntwo\u{1b}[2J"
        );
    }

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

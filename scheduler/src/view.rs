// SPDX-License-Identifier: GPL-2.0-only

//! The terminal view of `--monitor`: what it shows, drawn to any size.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::symbols::bar;
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};

use crate::stats::{Counters, Groups, Llcs};
use crate::usage::{Group, Usage};

/// Intervals that a sparkline goes back.
const HISTORY: usize = 24;

/// Lines for groups, with frame and heading.
const GROUP_LINES: u16 = 7;

/// Width of a counter, its rate and the space to the next.
const COUNTER_WIDTH: u16 = 28;

/// What of an LLC is in its line: heading, and which counters it adds up.
type Column = (&'static str, fn(&Counters) -> u64);
const COLUMNS: [Column; 5] = [
    ("to idle", |c| c.idle_direct + c.idle_late),
    ("queued", |c| c.queued),
    ("preempt", |c| c.preempt),
    ("pulled", |c| {
        c.pull_llc + c.pull_node + c.pull_far + c.wakeq_pulled + c.wakeq_stolen
    }),
    ("exchange", |c| c.exchange),
];

/// Parts of the waits for a CPU, of each of which an LLC's line says how long it took at most.
const WAITS: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// What the view shows.
pub struct View {
    /// The CPUs of each LLC.
    cpus: BTreeMap<usize, Vec<usize>>,
    interval: Duration,
    counted: Llcs,
    throttled: Groups,
    groups: Vec<Group>,
    /// Busy part of each LLC, 0 to 1, the newest last.
    busy: BTreeMap<usize, VecDeque<f64>>,
    /// What is wrong, if something is.
    pub trouble: Option<String>,
}

impl View {
    /// A view that nothing is known of yet but the machine: the CPUs of each LLC.
    pub fn new(cpus: BTreeMap<usize, Vec<usize>>) -> Self {
        Self {
            cpus,
            interval: Duration::ZERO,
            counted: Llcs::default(),
            throttled: Groups::default(),
            groups: Vec::new(),
            busy: BTreeMap::new(),
            trouble: Some("waiting for scx_heddle".to_string()),
        }
    }

    /// Take in what was counted during the last `interval`, and used from `earlier` to `now`.
    pub fn update(
        &mut self,
        interval: Duration,
        (counted, throttled): (Llcs, Groups),
        earlier: &Usage,
        now: &Usage,
    ) {
        for (&llc, cpus) in &self.cpus {
            let history = self.busy.entry(llc).or_default();
            history.extend(now.busy_since(earlier, cpus));
            while history.len() > HISTORY {
                history.pop_front();
            }
        }
        self.interval = interval;
        self.counted = counted;
        self.throttled = throttled;
        let mut groups = now.groups_since(earlier, interval);
        let runs_free = |group: &Group| self.throttled_part(group.id).unwrap_or(0.0) == 0.0;
        groups.sort_by_key(runs_free);
        self.groups = groups;
        self.trouble = None;
    }

    /// Draw all of it, as far as there is room.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let llc_lines = self.cpus.len() as u16 + 3;
        let [title, llcs, groups, counters] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(llc_lines),
            Constraint::Length(if self.groups.is_empty() {
                0
            } else {
                GROUP_LINES
            }),
            Constraint::Min(0),
        ])
        .areas(frame.area());
        frame.render_widget(self.title(), title);
        frame.render_widget(self.llc_table(), llcs);
        frame.render_widget(self.group_table(), groups);
        frame.render_widget(self.counter_columns(counters), counters);
    }

    fn title(&self) -> Line<'_> {
        let cpus: usize = self.cpus.values().map(Vec::len).sum();
        let name = format!("scx_heddle {}", env!("CARGO_PKG_VERSION")).bold();
        let state = match &self.trouble {
            Some(trouble) => format!("  {trouble}").red(),
            None => format!(
                "  {cpus} CPUs, per second, over {:.1} s",
                self.interval.as_secs_f64()
            )
            .into(),
        };
        Line::from(vec![name, state, "  q quits".dim()])
    }

    fn rate(&self, count: u64) -> String {
        let seconds = self.interval.as_secs_f64();
        if seconds > 0.0 {
            short(count as f64 / seconds)
        } else {
            "-".to_string()
        }
    }

    /// For which part of the interval, 0 to 1, the group `id` was throttled; None: it has no quota.
    fn throttled_part(&self, id: u64) -> Option<f64> {
        let group = self.throttled.groups.get(&id)?;
        // What began before the interval is counted when it ends.
        let us = self.interval.as_micros().max(1) as f64;
        Some((group.throttled_usec as f64 / us).min(1.0))
    }

    /// Which part of the time of `cpus` CPUs they idled while a task waited that may use them.
    fn wasted_part(&self, counters: &Counters, cpus: usize) -> f64 {
        let ns = self.interval.as_nanos().max(1) as f64;
        (counters.wasted_idle_ns as f64 / ns / cpus as f64).min(1.0)
    }

    fn llc_table(&self) -> Table<'_> {
        let heading = ["LLC", "CPUs", "busy", "", "wasted"];
        let waits = WAITS.iter().map(|(name, _)| *name);
        let names = waits.chain(COLUMNS.iter().map(|(name, _)| *name));
        let rows = self
            .cpus
            .iter()
            .map(|(llc, cpus)| self.llc_row(*llc, cpus.len()));
        let widths = [4, 5, 5, HISTORY as u16, 6]
            .into_iter()
            .chain(WAITS.map(|_| 6))
            .chain(COLUMNS.map(|_| 8));
        Table::new(rows, widths.map(Constraint::Length))
            .header(Row::new(heading.into_iter().chain(names)).style(Style::new().dim()))
            .block(Block::bordered().title("LLCs"))
    }

    fn llc_row(&self, llc: usize, cpus: usize) -> Row<'_> {
        let history = self.busy.get(&llc);
        let busy = history.and_then(|history| history.back());
        let counters = self.counted.llcs.get(&llc).copied().unwrap_or_default();
        let fixed = [
            llc.to_string(),
            cpus.to_string(),
            busy.map_or("-".to_string(), |busy| format!("{:.0}%", 100.0 * busy)),
            history.map_or(String::new(), sparkline),
            format!("{:.1}%", 100.0 * self.wasted_part(&counters, cpus)),
        ];
        let rates = COLUMNS.iter().map(|(_, count)| self.rate(count(&counters)));
        let waits = WAITS.map(|(_, part)| counters.waited(part).unwrap_or("-").to_string());
        Row::new(fixed.into_iter().chain(waits).chain(rates).map(Cell::from))
    }

    fn group_table(&self) -> Table<'_> {
        let rows = self.groups.iter().map(|group| {
            let throttled = self.throttled_part(group.id);
            Row::new([
                format!("{:.2}", group.cpus),
                group.weight.to_string(),
                throttled.map_or("-".to_string(), |part| format!("{:.0}%", 100.0 * part)),
                group.name.clone(),
            ])
        });
        Table::new(
            rows,
            [
                Constraint::Length(8),
                Constraint::Length(8),
                Constraint::Length(9),
                Constraint::Min(10),
            ],
        )
        .header(Row::new(["CPUs", "weight", "throttled", "group"]).style(Style::new().dim()))
        .block(Block::bordered().title("Control groups"))
    }

    /// All counters of the machine, in as many columns as fit.
    fn counter_columns(&self, area: Rect) -> Paragraph<'_> {
        let mut total = Counters::default();
        for counters in self.counted.llcs.values() {
            total.add(counters);
        }
        let entries = total.entries();
        let columns = (area.width.saturating_sub(2) / COUNTER_WIDTH).max(1);
        let lines = entries.len().div_ceil(columns as usize);
        let width = COUNTER_WIDTH as usize;
        let line = |row: usize| {
            let of_row = entries.iter().skip(row).step_by(lines);
            let cells = of_row.map(|(name, count)| {
                let rate = self.rate(*count);
                format!("{name:<17}{rate:>8}{:rest$}", "", rest = width - 25)
            });
            Line::from(cells.collect::<String>())
        };
        Paragraph::new((0..lines).map(line).collect::<Vec<_>>())
            .block(Block::bordered().title("Counters"))
    }
}

/// A number in at most six characters.
fn short(value: f64) -> String {
    match value {
        ..1e4 => format!("{value:.0}"),
        ..1e7 => format!("{:.0}k", value / 1e3),
        _ => format!("{:.0}M", value / 1e6),
    }
}

/// Parts from 0 to 1 as a row of bars.
fn sparkline(parts: &VecDeque<f64>) -> String {
    const LEVELS: [&str; 9] = [
        " ",
        bar::ONE_EIGHTH,
        bar::ONE_QUARTER,
        bar::THREE_EIGHTHS,
        bar::HALF,
        bar::FIVE_EIGHTHS,
        bar::THREE_QUARTERS,
        bar::SEVEN_EIGHTHS,
        bar::FULL,
    ];
    parts
        .iter()
        .map(|part| LEVELS[(part.clamp(0.0, 1.0) * 8.0).round() as usize])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Throttled;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view() -> View {
        let cpus = BTreeMap::from([(0, vec![0, 1]), (1, vec![2, 3])]);
        let mut view = View::new(cpus);
        let counters = Counters {
            queued: 3000,
            wakeq_offered: 26_000,
            waited_256us: 99,
            waited_64ms: 1,
            wasted_idle_ns: 1_000_000_000,
            ..Default::default()
        };
        let llcs = Llcs {
            llcs: BTreeMap::from([(1, counters)]),
        };
        view.update(
            Duration::from_secs(2),
            (llcs, Groups::default()),
            &Usage::default(),
            &Usage::default(),
        );
        view
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn rates_are_per_second_and_by_llc() {
        let screen = drawn(&view(), 100, 40);
        let llc = screen
            .lines()
            .find(|line| line.contains("│1 ") && line.contains("1500"));
        assert!(
            llc.is_some_and(|line| line.contains("25.0%  <256us <256us")),
            "{screen}"
        );
        let offered = format!("{:<17}{:>8}", "wakeq_offered", "13k");
        assert!(screen.contains(&offered), "{screen}");
    }

    #[test]
    fn who_was_throttled_comes_first() {
        let mut view = view();
        let group = |id, name: &str, cpus| (id, name.to_string(), cpus);
        let of = |used: [u64; 3]| {
            let named = [
                group(1, "user", used[0]),
                group(2, "pods/one", used[1]),
                group(3, "jobs", used[2]),
            ];
            Usage::of_groups(named)
        };
        let throttled = [(2, 500_000), (3, 0)].map(|(id, throttled_usec)| {
            let nr_throttled = 5;
            (
                id,
                Throttled {
                    nr_throttled,
                    throttled_usec,
                },
            )
        });
        let groups = Groups {
            groups: BTreeMap::from(throttled),
        };
        let (earlier, now) = (of([0; 3]), of([2_000_000, 500_000, 1_000_000]));
        view.update(
            Duration::from_secs(1),
            (Llcs::default(), groups),
            &earlier,
            &now,
        );
        let screen = drawn(&view, 100, 40);
        let lines = screen
            .lines()
            .skip_while(|line| !line.contains("throttled"));
        let shown: Vec<Vec<&str>> = lines
            .skip(1)
            .take(3)
            .map(|line| line.trim_matches(['"', '│']).split_whitespace().collect())
            .collect();
        let expected = [
            ["0.50", "100", "50%", "pods/one"],
            ["2.00", "100", "-", "user"],
            ["1.00", "100", "0%", "jobs"],
        ];
        assert_eq!(shown, expected, "{screen}");
    }

    #[test]
    fn every_counter_has_a_place() {
        let screen = drawn(&view(), 120, 64);
        for (name, _) in Counters::ABOUT {
            assert!(screen.contains(name), "{name}\n{screen}");
        }
    }

    #[test]
    fn any_size_will_do() {
        for width in [1, 2, 10, 27, 28, 80, 300] {
            for height in [1, 2, 5, 24, 100] {
                drawn(&view(), width, height);
            }
        }
    }

    #[test]
    fn trouble_is_said() {
        let mut view = view();
        view.trouble = Some("waiting".to_string());
        assert!(drawn(&view, 80, 24).contains("waiting"));
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.4, "0"),
            (9999.0, "9999"),
            (12_345.0, "12k"),
            (2.5e7, "25M"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!(sparkline(&VecDeque::from([0.0, 0.5, 1.0, 7.0])), " ▄██");
    }
}

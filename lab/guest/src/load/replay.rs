//! Tasks that run, wake one another and sleep as a recorded trace says (`heddle record`).

use std::ffi::CString;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use nix::errno::Errno;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::random::Random;
use crate::{clock, futex, team, work};

/// Replay a model of a recorded load, which is read from stdin
#[derive(Args)]
pub struct Options {
    /// Time before the measurement, ms: what is done within it does not count
    #[arg(long, default_value_t = 0)]
    warm_up_ms: u64,
    /// Length of the measurement, ms of `CLOCK_MONOTONIC`
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    for_ms: u64,
    /// Seed of all that is random
    #[arg(long, env = "HEDDLE_SEED", default_value_t = 1)]
    seed: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    /// How long the trace was; a replay that is longer plays it again from its begin.
    #[serde(default = "for_ever")]
    length_ns: u64,
    groups: Vec<Group>,
}

fn for_ever() -> u64 {
    u64::MAX
}

/// Tasks that behave alike.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    /// What its threads are called.
    name: String,
    /// Number of threads.
    tasks: usize,
    nice: i32,
    /// Work between two sleeps, instructions: quantiles at equal steps, ascending.
    runs_insns: Vec<u64>,
    /// Length of a sleep, likewise; also how long a task waits for another to wake it. None: it never sleeps.
    sleeps_ns: Vec<u64>,
    /// Part of the sleeps that another task ends.
    woken: f64,
    /// Wakeups of each group for each run.
    wakes: Vec<f64>,
    /// Of each thread begin and end of one life after another, ns since the trace's begin. None: all live through it.
    #[serde(default)]
    lives_ns: Vec<Vec<u64>>,
}

/// When a thread runs, `CLOCK_MONOTONIC`.
struct Life {
    start: u64,
    end: u64,
    /// It went on already when the trace began.
    under_way: bool,
}

/// What one task did.
#[derive(Default)]
struct Done {
    /// From when on it counts, `CLOCK_MONOTONIC`.
    since_ns: u64,
    runs: u64,
    /// Sleeps that another task should have ended, and time did.
    timeouts: u64,
    /// How late sleeps that time ends did end, ns.
    late: Samples,
}

/// Runs the replay.
///
/// # Errors
/// A malformed model, or a thread could not be set up.
pub fn run(options: &Options) -> Result<Value> {
    let model: Model = serde_json::from_reader(io::stdin()).context("malformed model on stdin")?;
    model.check()?;
    let wakeups: Vec<Wakeups> = model.groups.iter().map(|_| Wakeups::default()).collect();
    let members: Vec<(usize, usize)> = model
        .groups
        .iter()
        .enumerate()
        .flat_map(|(number, group)| (0..group.tasks).map(move |thread| (number, thread)))
        .collect();
    let prepare = |index: usize| model.groups[members[index].0].dress();
    // Lives are at times of the trace, so all threads count from one instant.
    let begin = OnceLock::new();
    let length_ns = options.for_ms * 1_000_000;
    let done = team::run(members.len(), prepare, |index| {
        let mut random = Random::new(options.seed, index);
        let (number, thread) = members[index];
        let begin = *begin.get_or_init(clock::now);
        let since_ns = begin + options.warm_up_ms * 1_000_000;
        let mut done = Done { since_ns, ..Done::default() };
        for life in model.groups[number].lives(thread, model.length_ns, begin, since_ns + length_ns) {
            clock::sleep_until(life.start);
            model.play(number, &wakeups, &mut random, &life, &mut done);
        }
        Ok(done)
    })?;
    let (mut runs, mut timeouts, mut late) = (0, 0, Samples::default());
    for one in done {
        runs += one.runs;
        timeouts += one.timeouts;
        late.append(one.late);
    }
    Ok(json!({
        "tasks": members.len(),
        "length_ns": length_ns,
        "runs": runs,
        "timeouts": timeouts,
        "throughput": runs as f64 * 1e9 / length_ns as f64,
        "wakeup_latency_ns": late.summary(),
    }))
}

impl Model {
    fn check(&self) -> Result<()> {
        for group in &self.groups {
            let rising = |values: &[u64]| values.len() >= 2 && values.is_sorted();
            if !rising(&group.runs_insns) || !(group.sleeps_ns.is_empty() || rising(&group.sleeps_ns)) {
                bail!(
                    "group '{}': runs_insns and sleeps_ns need two ascending quantiles or more",
                    group.name
                );
            }
            if group.wakes.len() != self.groups.len() {
                bail!("group '{}': wakes needs a number for each of the groups", group.name);
            }
            if group.wakes.iter().chain([&group.woken]).any(|rate| !(0.0..1e6).contains(rate)) {
                bail!("group '{}': woken and wakes cannot be negative", group.name);
            }
            if !group.lives_ns.is_empty() && group.lives_ns.len() != group.tasks {
                bail!("group '{}': lives_ns needs a list for each of the tasks", group.name);
            }
            let fit = |times: &Vec<u64>| times.len().is_multiple_of(2) && times.is_sorted();
            let within = |times: &Vec<u64>| times.last().is_none_or(|&end| end <= self.length_ns);
            if !group.lives_ns.iter().all(|times| fit(times) && within(times)) {
                bail!("group '{}': lives_ns needs ascending pairs of times up to length_ns", group.name);
            }
        }
        Ok(())
    }

    /// Plays one life of a thread of a group.
    fn play(&self, number: usize, wakeups: &[Wakeups], random: &mut Random, life: &Life, done: &mut Done) {
        let group = &self.groups[number];
        let mut pace = Pace::default();
        let sleeps = !group.sleeps_ns.is_empty();
        if life.under_way && sleeps {
            // Such tasks begin asleep, each at a point of its own.
            let first = quantile(&group.sleeps_ns, random);
            clock::sleep_until(life.end.min(clock::now() + random.below(first)));
        }
        while clock::now() < life.end {
            pace.run(quantile(&group.runs_insns, random), life.end);
            let counts = u64::from(clock::now() >= done.since_ns);
            done.runs += counts;
            for (other, &rate) in group.wakes.iter().enumerate() {
                (0..times(rate, random)).for_each(|_| wakeups[other].give(self.groups[other].tasks));
            }
            if !sleeps {
                continue;
            }
            let wanted = clock::now() + quantile(&group.sleeps_ns, random);
            let due = wanted.min(life.end);
            // A wakeup that was there first ends no sleep, but every recorded run ended with one.
            if random.chance(group.woken) && !wakeups[number].take_given() {
                done.timeouts += counts * u64::from(!wakeups[number].wait(due));
            } else {
                clock::sleep_until(due);
                if due == wanted && due >= done.since_ns {
                    done.late.add(clock::between(due, clock::now()));
                }
            }
        }
    }
}

impl Group {
    /// The lives of a thread, each with its begin and end.
    fn lives(&self, thread: usize, length_ns: u64, begin: u64, end: u64) -> impl Iterator<Item = Life> {
        let through = [0, length_ns];
        let times = self.lives_ns.get(thread).map_or(&through[..], Vec::as_slice).to_vec();
        // What lives through the trace does not die where the trace begins again.
        let (times, length_ns) =
            if times == through { (vec![0, u64::MAX], u64::MAX) } else { (times, length_ns) };
        let rounds = (begin..end).step_by(usize::try_from(length_ns.max(1)).unwrap_or(usize::MAX));
        rounds.flat_map(move |round| {
            let lives: Vec<Life> = times
                .chunks(2)
                .map(|pair| Life {
                    start: round.saturating_add(pair[0]),
                    end: round.saturating_add(pair[1]).min(end),
                    under_way: pair[0] == 0,
                })
                .filter(|life| life.start < life.end)
                .collect();
            lives
        })
    }

    /// Gives the calling thread the group's name and nice level.
    fn dress(&self) -> Result<()> {
        let name = CString::new(self.name.as_str()).context("a group's name has a zero byte")?;
        // SAFETY: the string lives through the call; the kernel takes 15 bytes of it.
        Errno::result(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }).context("name")?;
        // SAFETY: plain system call; 0 is the calling thread.
        Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.nice) }).context("nice")?;
        team::sharpen_timers()
    }
}

/// How fast a task works, learnt as it goes.
#[derive(Default)]
struct Pace {
    insns: u64,
    /// CPU time that these instructions took.
    work_ns: u64,
    /// CPU time at the end of the last work.
    since_ns: u64,
}

impl Pace {
    /// Instructions between two looks at the clock.
    const PIECE: u64 = 100_000;

    /// Works for what is left of a recorded run: it contained the wakeups, falling asleep and getting up, too.
    /// Stops at `end`, or shortly after where the CPU is slower.
    fn run(&mut self, recorded_insns: u64, end: u64) {
        let before_ns = clock::thread_cpu_time();
        let beside_ns = before_ns - self.since_ns;
        let beside_insns = (beside_ns * self.insns).checked_div(self.work_ns).unwrap_or(0);
        let wanted = recorded_insns.saturating_sub(beside_insns).max(work::MINIMUM);
        let mut insns = 0;
        while insns < wanted {
            // What is left of the life, at one instruction a nanosecond: it may be shorter than a piece.
            let left = end.saturating_sub(clock::now());
            if left == 0 {
                break;
            }
            let piece = (wanted - insns).min(left).clamp(work::MINIMUM, Self::PIECE);
            work::execute(piece);
            insns += piece;
        }
        self.since_ns = clock::thread_cpu_time();
        self.insns += insns;
        self.work_ns += self.since_ns - before_ns;
    }
}

/// The wakeups of a group: those that found nobody asleep, or less than none if sleepers did not wait for theirs.
#[derive(Default)]
struct Wakeups {
    due: AtomicI32,
    /// Moves with every wakeup: what sleepers wait on.
    turn: AtomicU32,
}

impl Wakeups {
    /// Wakes a sleeper, or lets the next one not fall asleep; a group never owes more wakeups than it has tasks.
    fn give(&self, tasks: usize) {
        let most = i32::try_from(tasks).unwrap_or(i32::MAX);
        let more = |due| (due < most).then_some(due + 1);
        if self.due.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok_and(|due| due >= 0) {
            self.turn.fetch_add(1, Ordering::Release);
            futex::wake(&self.turn);
        }
    }

    /// Takes a wakeup that found nobody asleep; tells whether there was one.
    fn take_given(&self) -> bool {
        let one = |due: i32| (due > 0).then(|| due - 1);
        self.due.fetch_update(Ordering::AcqRel, Ordering::Acquire, one).is_ok()
    }

    /// Waits for a wakeup until `end`; tells whether it came. One that did not is owed: else every wait that ends
    /// early would add a wakeup to the load, and it would grow.
    fn wait(&self, end: u64) -> bool {
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            if self.take_given() {
                return true;
            }
            let now = clock::now();
            if now >= end {
                self.due.fetch_sub(1, Ordering::AcqRel);
                return false;
            }
            futex::wait_for(&self.turn, turn, end - now);
        }
    }
}

/// Draws from a distribution given by its quantiles, straight between them.
fn quantile(values: &[u64], random: &mut Random) -> u64 {
    const STEPS: u64 = 1 << 20;
    let place = random.below((values.len() as u64 - 1) * STEPS);
    let (left, part) = ((place / STEPS) as usize, place % STEPS);
    let width = values[left + 1] - values[left];
    values[left] + u64::try_from(u128::from(width) * u128::from(part) / u128::from(STEPS)).unwrap_or(width)
}

/// Draws how often something happens that happens `rate` times on average.
fn times(rate: f64, random: &mut Random) -> u64 {
    rate as u64 + u64::from(random.chance(rate.fract()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(wakes: &str, runs: &str) -> Result<Model> {
        let text = format!(
            r#"{{"groups":[{{"name":"a","tasks":1,"nice":0,"runs_insns":{runs},"sleeps_ns":[1,2],"woken":0.5,"wakes":{wakes}}}]}}"#
        );
        let model: Model = serde_json::from_str(&text)?;
        model.check().map(|()| model)
    }

    #[test]
    fn refuses_what_cannot_be_played() {
        assert!(model("[0.5]", "[1,2,3]").is_ok());
        for (wakes, runs, word) in [
            ("[]", "[1,2]", "wakes needs"),
            ("[-1]", "[1,2]", "negative"),
            ("[0]", "[2,1]", "ascending"),
            ("[0]", "[1]", "two"),
        ] {
            let error = format!("{:#}", model(wakes, runs).err().expect(word));
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn refuses_lives_that_cannot_be_lived() {
        let group = r#"{"name":"a","tasks":2,"nice":0,"runs_insns":[1,2],"sleeps_ns":[],"woken":0,"wakes":[0],"lives_ns":"#;
        let read = |lives: &str| {
            let model: Model =
                serde_json::from_str(&format!(r#"{{"length_ns":9,"groups":[{group}{lives}}}]}}"#)).unwrap();
            model.check().map(|()| model)
        };
        assert!(read("[[0,9],[1,2,2,5]]").is_ok());
        for (lives, word) in [
            ("[[0,9]]", "a list for each"),
            ("[[0,9],[1]]", "pairs"),
            ("[[0,9],[3,2]]", "ascending"),
            ("[[0,9],[3,10]]", "up to length_ns"),
        ] {
            let error = format!("{:#}", read(lives).err().expect(word));
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn lives_are_lived_again_when_the_trace_is_over() {
        let mut group = model("[0]", "[1,2]").unwrap().groups.remove(0);
        let spans = |group: &Group, thread, end| -> Vec<(u64, u64, bool)> {
            group.lives(thread, 100, 1000, end).map(|life| (life.start, life.end, life.under_way)).collect()
        };
        assert_eq!(spans(&group, 0, 1250), [(1000, 1250, true)]);
        group.lives_ns = vec![vec![0, 100], vec![0, 10, 30, 40]];
        assert_eq!(spans(&group, 0, 1250), [(1000, 1250, true)]);
        assert_eq!(spans(&group, 1, 1032), [(1000, 1010, true), (1030, 1032, false)]);
        let twice = [(1000, 1010, true), (1030, 1040, false), (1100, 1110, true), (1130, 1140, false)];
        assert_eq!(spans(&group, 1, 1200), twice);
    }

    #[test]
    fn a_run_ends_with_the_life() {
        let begin = clock::now();
        Pace::default().run(u64::MAX, begin + 1_000_000);
        assert!(clock::now() >= begin + 1_000_000);
    }

    #[test]
    fn a_task_that_never_sleeps_works_until_the_life_ends() {
        let mut model = model("[0]", "[1000,2000]").unwrap();
        model.groups[0].sleeps_ns.clear();
        let begin = clock::now();
        let life = Life { start: begin, end: begin + 2_000_000, under_way: false };
        let mut done = Done::default();
        model.play(0, &[Wakeups::default()], &mut Random::new(1, 0), &life, &mut done);
        assert!(clock::now() >= life.end);
        assert!(done.runs > 10);
    }

    #[test]
    fn what_is_done_in_the_warm_up_does_not_count() {
        let model = model("[0]", "[1000,2000]").unwrap();
        let begin = clock::now();
        let life = Life { start: begin, end: begin + 2_000_000, under_way: false };
        let mut done = Done { since_ns: life.end + 1_000_000_000, ..Done::default() };
        model.play(0, &[Wakeups::default()], &mut Random::new(1, 0), &life, &mut done);
        assert_eq!((done.runs, done.timeouts, done.late.summary()), (0, 0, None));
    }

    #[test]
    fn draws_follow_the_quantiles() {
        let mut random = Random::new(1, 0);
        let draws: Vec<u64> = (0..10_000).map(|_| quantile(&[0, 10, 1000], &mut random)).collect();
        let low = draws.iter().filter(|&&draw| draw < 10).count();
        assert!((4800..5200).contains(&low), "{low}");
        assert!(draws.iter().all(|&draw| draw < 1000));
        let total: u64 = (0..10_000).map(|_| times(2.25, &mut random)).sum();
        assert!((22_000..23_000).contains(&total), "{total}");
    }

    #[test]
    fn a_wakeup_is_taken_once_and_patience_ends() {
        let wakeups = Wakeups::default();
        wakeups.give(1);
        wakeups.give(1);
        assert!(wakeups.wait(clock::now()));
        assert!(!wakeups.wait(clock::now() + 1_000_000));
    }

    #[test]
    fn a_wakeup_that_was_not_waited_for_wakes_nobody_else() {
        let wakeups = Wakeups::default();
        assert!(!wakeups.wait(clock::now()));
        wakeups.give(2);
        assert!(!wakeups.wait(clock::now()));
        (0..3).for_each(|_| wakeups.give(2));
        assert!(wakeups.wait(clock::now()));
    }
}

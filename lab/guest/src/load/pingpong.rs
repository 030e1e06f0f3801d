//! Two threads that wake each other over pipes: what a wakeup and a switch cost.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use heddle_guest::cpulist;
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::{clock, team, work};

/// Instructions between two looks at the clock of one that computes first.
const ITERATION: u64 = 10_000;

/// Pairs of threads send a byte to and fro over pipes (as perf bench sched pipe)
#[derive(Args)]
pub struct Options {
    /// How many pairs
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    pairs: u32,
    /// Time before the measurement, ms: round trips within it do not count
    #[arg(long, default_value_t = 0)]
    warm_up_ms: u64,
    /// Round trips of each pair that are measured
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    count: u64,
    /// Work of each thread in each round trip, instructions
    #[arg(long, default_value_t = 0)]
    work_insns: u64,
    /// Each thread computes for so long before the first round trip, ms of CLOCK_MONOTONIC
    #[arg(long, default_value_t = 0)]
    age_ms: u64,
    /// The thread of a pair that begins sleeps for so long after each round trip, us
    #[arg(long, default_value_t = 0)]
    idle_us: u64,
    /// Measure each round trip, and count those that take longer, us
    #[arg(long)]
    over_us: Option<u64>,
    /// CPUs that the threads may use, such as 0-3,8 [default: all]
    #[arg(long)]
    cpus: Option<String>,
    /// Each thread stays on one of the CPUs, in turn: the two of a pair have neighbours of the list
    #[arg(long, requires = "cpus")]
    pin: bool,
}

/// One thread's ends of its pair's two pipes.
struct Ends {
    from: PipeReader,
    to: PipeWriter,
}

impl Ends {
    /// One round trip.
    fn go(&mut self, byte: u8) -> Result<()> {
        self.to.write_all(&[byte])?;
        Ok(self.from.read_exact(&mut [0])?)
    }
}

/// The byte of the last round trip.
const LAST: u8 = 1;

/// What the first thread of a pair measured.
struct Measured {
    start_ns: u64,
    end_ns: u64,
    trips: Samples,
    /// Round trips longer than asked for, and how long they took together.
    over: u64,
    over_ns: i64,
}

/// Runs the pairs.
///
/// # Errors
/// A bad CPU list, or too few file descriptors.
pub fn run(options: &Options) -> Result<Value> {
    let cpus = options.cpus.as_deref().map(cpulist::parse).transpose()?;
    let mut ends = Vec::new();
    for _ in 0..options.pairs {
        let (there, back) = (pipe().context("pipe")?, pipe().context("pipe")?);
        ends.push(Mutex::new(Ends { from: back.0, to: there.1 }));
        ends.push(Mutex::new(Ends { from: there.0, to: back.1 }));
    }
    let prepare = |index: usize| {
        if let Some(cpus) = cpus.as_deref() {
            cpulist::pin(if options.pin { std::slice::from_ref(&cpus[index % cpus.len()]) } else { cpus })?;
        }
        let end = clock::now() + options.age_ms * 1_000_000;
        while clock::now() < end {
            work::execute(ITERATION);
        }
        team::sharpen_timers()
    };
    let measured = team::run(ends.len(), prepare, |index| {
        let mut ends = ends[index].lock().expect("one thread each");
        if index % 2 == 0 { serve(&mut ends, options).map(Some) } else { answer(&mut ends, options) }
    })?;
    Ok(report(options, measured.into_iter().flatten().collect()))
}

/// Sends the byte and waits for it.
fn serve(ends: &mut Ends, options: &Options) -> Result<Measured> {
    let (mut over, mut over_ns, mut trips) = (0, 0, Samples::default());
    if options.over_us.is_some() {
        trips = Samples::with_room(options.count as usize);
    }
    let warm_ns = clock::now() + options.warm_up_ms * 1_000_000;
    while clock::now() < warm_ns {
        ends.go(0)?;
        rest(options);
    }
    let start_ns = clock::now();
    for trip in 1..=options.count {
        let sent_ns = options.over_us.map_or(0, |_| clock::now());
        ends.go(if trip == options.count { LAST } else { 0 })?;
        if let Some(us) = options.over_us {
            let trip_ns = clock::between(sent_ns, clock::now());
            trips.add(trip_ns);
            if trip_ns > (us * 1000).cast_signed() {
                over += 1;
                over_ns += trip_ns;
            }
        }
        rest(options);
    }
    Ok(Measured { start_ns, end_ns: clock::now(), trips, over, over_ns })
}

/// Sends back what comes.
fn answer(ends: &mut Ends, options: &Options) -> Result<Option<Measured>> {
    let mut byte = [0];
    while byte != [LAST] {
        ends.from.read_exact(&mut byte)?;
        compute(options);
        ends.to.write_all(&byte)?;
    }
    Ok(None)
}

/// What the first thread of a pair does between two round trips.
fn rest(options: &Options) {
    compute(options);
    if options.idle_us > 0 {
        clock::sleep_until(clock::now() + options.idle_us * 1000);
    }
}

fn compute(options: &Options) {
    if options.work_insns > 0 {
        work::execute(options.work_insns);
    }
}

fn report(options: &Options, threads: Vec<Measured>) -> Value {
    let begin = threads.iter().map(|thread| thread.start_ns).min().unwrap_or(0);
    let end = threads.iter().map(|thread| thread.end_ns).max().unwrap_or(0);
    let over: u64 = threads.iter().map(|thread| thread.over).sum();
    let over_ns: i64 = threads.iter().map(|thread| thread.over_ns).sum();
    let (elapsed_ns, trips) = (end - begin, u64::from(options.pairs) * options.count);
    let mut round_trips = Samples::default();
    threads.into_iter().for_each(|thread| round_trips.append(thread.trips));
    let mut report = json!({
        "pairs": options.pairs,
        "count": options.count,
        "elapsed_ns": elapsed_ns,
        "throughput": trips as f64 * 1e9 / elapsed_ns as f64,
        "one_way_ns": elapsed_ns as f64 / (2 * options.count) as f64,
    });
    if options.over_us.is_some() {
        report["round_trip_ns"] = json!(round_trips.summary());
        report["over"] = json!(over);
        report["over_ns"] = json!(over_ns);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::{Options, run};
    use clap::{Args, Command, FromArgMatches};

    #[test]
    fn round_trips_of_the_warm_up_do_not_count() {
        let arguments = ["pingpong", "--pairs=2", "--count=20", "--warm-up-ms=5", "--over-us=1000000"];
        let matches =
            Options::augment_args(Command::new("pingpong")).try_get_matches_from(arguments).unwrap();
        let report = run(&Options::from_arg_matches(&matches).unwrap()).unwrap();
        assert_eq!((&report["round_trip_ns"]["count"], &report["over"]), (&40.into(), &0.into()));
    }
}

//! Two threads that wake each other over pipes: what a wakeup and a switch cost.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use heddle_guest::cpulist;
use serde_json::{Value, json};

use crate::{clock, team};

/// Pairs of threads send a byte to and fro over pipes (as perf bench sched pipe)
#[derive(Args)]
pub struct Options {
    /// How many pairs
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    pairs: u32,
    /// Round trips of each pair
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    count: u64,
    /// CPUs that the threads may use, such as 0-3,8 [default: all]
    #[arg(long)]
    cpus: Option<String>,
}

/// One thread's ends of its pair's two pipes.
struct Ends {
    from: PipeReader,
    to: PipeWriter,
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
    let prepare = |_| cpus.as_deref().map_or(Ok(()), cpulist::pin);
    let times = team::run(ends.len(), prepare, |index| {
        let mut ends = ends[index].lock().expect("one thread each");
        let start = clock::now();
        play(&mut ends, index % 2 == 0, options.count)?;
        Ok((start, clock::now()))
    })?;
    let begin = times.iter().map(|(start, _)| *start).min().unwrap_or(0);
    let end = times.iter().map(|(_, end)| *end).max().unwrap_or(0);
    let (elapsed_ns, trips) = (end - begin, u64::from(options.pairs) * options.count);
    Ok(json!({
        "pairs": options.pairs,
        "count": options.count,
        "elapsed_ns": elapsed_ns,
        "throughput": trips as f64 * 1e9 / elapsed_ns as f64,
        "one_way_ns": elapsed_ns as f64 / (2 * options.count) as f64,
    }))
}

fn play(ends: &mut Ends, serves: bool, count: u64) -> Result<()> {
    let mut byte = [0];
    for _ in 0..count {
        if serves {
            ends.to.write_all(&byte)?;
            ends.from.read_exact(&mut byte)?;
        } else {
            ends.from.read_exact(&mut byte)?;
            ends.to.write_all(&byte)?;
        }
    }
    Ok(())
}

//! Clients of a memcached server: what a get or a set takes, one after the other or by a schedule.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::random::Random;
use crate::{clock, team};

/// Clients that get and set values of a memcached server over TCP
///
/// Without --rate each connection sends its next request when the answer to the last one is there. With it,
/// requests are due at random times, whatever the answers do: one that finds no free connection waits for it,
/// and its latency counts from when it was due
#[derive(Args)]
pub struct Options {
    /// Address and port of the server
    #[arg(long, default_value = "127.0.0.1:11211")]
    server: SocketAddr,
    /// How many threads
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    threads: u32,
    /// Connections of each thread, each with one request at a time
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    connections: u32,
    /// Requests a second of all threads together [default: as fast as they are answered]
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// How many keys; all have a value before the first request
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u64).range(1..))]
    keys: u64,
    /// Length of a key, bytes
    #[arg(long, default_value_t = 30, value_parser = value_parser!(u64).range(20..=250))]
    key_bytes: u64,
    /// Length of a value, bytes
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u64).range(1..=1_000_000))]
    value_bytes: u64,
    /// Part of the requests that get; the others set
    #[arg(long, default_value_t = 0.9)]
    gets: f64,
    /// Time before the measurement, ms
    #[arg(long, default_value_t = 0)]
    warm_up_ms: u64,
    /// Length of the measurement, ms
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    for_ms: u64,
    /// Decides keys, kinds and times of the requests
    #[arg(long, env = "HEDDLE_SEED", default_value_t = 1)]
    seed: u64,
}

/// Runs the clients.
///
/// # Errors
/// A part that is none, no server, or an answer that is not memcached's.
pub fn run(options: &Options) -> Result<Value> {
    if !(0.0..=1.0).contains(&options.gets) {
        bail!("--gets {} is not within 0..1", options.gets);
    }
    options.fill()?;
    let connect = |_| (0..options.connections).map(|_| options.connect()).collect::<Result<Vec<_>>>();
    let streams = (0..options.threads).map(connect).collect::<Result<Vec<_>>>()?;
    let streams: Vec<_> = streams.into_iter().map(Mutex::new).collect();
    let start = OnceLock::new();
    let measured = team::run(
        streams.len(),
        |_| team::sharpen_timers(),
        |index| {
            let streams = std::mem::take(&mut *streams[index].lock().expect("one thread each"));
            let start_ns = *start.get_or_init(clock::now);
            Client::new(options, index, start_ns, streams).live()
        },
    )?;
    Ok(report(options, measured))
}

impl Options {
    fn connect(&self) -> Result<TcpStream> {
        let stream =
            TcpStream::connect(self.server).with_context(|| format!("connect to {}", self.server))?;
        stream.set_nodelay(true).context("TCP_NODELAY")?;
        Ok(stream)
    }

    /// Gives every key a value; the answer to the last command says that the server has them all.
    fn fill(&self) -> Result<()> {
        let mut stream = self.connect()?;
        for key in 0..self.keys {
            stream.write_all(&self.set(key, " noreply")).context("send")?;
        }
        stream.write_all(b"version\r\n").context("send")?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n") {
            receive(&mut stream, &mut answer)?;
        }
        if !answer.starts_with(b"VERSION ") {
            bail!("the server says: {}", first_line(&answer));
        }
        Ok(())
    }

    fn get(&self, key: u64) -> Vec<u8> {
        format!("get {key:0width$}\r\n", width = self.key_bytes as usize).into_bytes()
    }

    fn set(&self, key: u64, flag: &str) -> Vec<u8> {
        let (width, bytes) = (self.key_bytes as usize, self.value_bytes);
        let mut request = format!("set {key:0width$} 0 0 {bytes}{flag}\r\n").into_bytes();
        request.resize(request.len() + self.value_bytes as usize, b'x');
        request.extend(b"\r\n");
        request
    }
}

/// When requests of one thread are due: each a random time after the one before, without memory.
struct Schedule {
    random: Random,
    mean_ns: f64,
    next_ns: u64,
}

impl Schedule {
    fn new(options: &Options, rate: u64, index: usize, start_ns: u64) -> Self {
        let mean_ns = f64::from(options.threads) * 1e9 / rate as f64;
        // A stream of its own: when requests are due does not depend on what they are.
        let random = Random::new(options.seed, index + options.threads as usize);
        let mut schedule = Self { random, mean_ns, next_ns: start_ns };
        schedule.advance();
        schedule
    }

    fn advance(&mut self) {
        self.next_ns += self.random.exponential(self.mean_ns);
    }
}

struct Connection {
    stream: TcpStream,
    /// When the request was due whose answer it awaits.
    due_ns: Option<u64>,
    answer: Vec<u8>,
}

/// What one thread measured.
struct Measured {
    /// Of requests that were due within the window.
    latency: Samples,
    /// Answers that came within it.
    answers: u64,
    /// Gets that found no value, at any time.
    misses: u64,
}

struct Client<'a> {
    options: &'a Options,
    random: Random,
    schedule: Option<Schedule>,
    connections: Vec<Connection>,
    /// Where the search for a free one begins.
    next: usize,
    begin_ns: u64,
    end_ns: u64,
    measured: Measured,
}

impl<'a> Client<'a> {
    fn new(options: &'a Options, index: usize, start_ns: u64, streams: Vec<TcpStream>) -> Self {
        let begin_ns = start_ns + options.warm_up_ms * 1_000_000;
        // So many answers a thread hardly gets: one each 20 us.
        let room = Samples::with_room((options.for_ms * 50) as usize);
        let open = |stream| Connection { stream, due_ns: None, answer: Vec::new() };
        Self {
            options,
            random: Random::new(options.seed, index),
            schedule: options.rate.map(|rate| Schedule::new(options, rate, index, start_ns)),
            connections: streams.into_iter().map(open).collect(),
            next: 0,
            begin_ns,
            end_ns: begin_ns + options.for_ms * 1_000_000,
            measured: Measured { latency: room, answers: 0, misses: 0 },
        }
    }

    /// Sends until the window ends, and waits for the answers to all that was due in it.
    fn live(mut self) -> Result<Measured> {
        loop {
            while let Some((index, due_ns)) =
                self.free().zip(self.next_due()).filter(|next| next.1 <= clock::now())
            {
                self.schedule.iter_mut().for_each(Schedule::advance);
                self.send(index, due_ns)?;
            }
            if self.next_due().is_none() && self.connections.iter().all(|one| one.due_ns.is_none()) {
                return Ok(self.measured);
            }
            for index in self.wait()? {
                self.receive(index)?;
            }
        }
    }

    /// When the next request is due; none after the window.
    fn next_due(&self) -> Option<u64> {
        let due_ns = self.schedule.as_ref().map_or_else(clock::now, |schedule| schedule.next_ns);
        (due_ns < self.end_ns).then_some(due_ns)
    }

    /// The first connection after the one used last that waits for no answer: the server deals its threads out to
    /// connections in turn, and all have the same load.
    fn free(&self) -> Option<usize> {
        let count = self.connections.len();
        (self.next..self.next + count)
            .map(|place| place % count)
            .find(|&index| self.connections[index].due_ns.is_none())
    }

    fn send(&mut self, index: usize, due_ns: u64) -> Result<()> {
        let key = self.random.below(self.options.keys);
        let gets = self.random.chance(self.options.gets);
        let request = if gets { self.options.get(key) } else { self.options.set(key, "") };
        self.next = index + 1;
        let connection = &mut self.connections[index];
        connection.due_ns = Some(due_ns);
        connection.stream.write_all(&request).context("send")
    }

    /// Sleeps until answers come or, if a connection is free, a request is due; returns the connections that have
    /// something to read.
    fn wait(&self) -> Result<Vec<usize>> {
        let left = |due_ns: u64| Duration::from_nanos(due_ns.saturating_sub(clock::now()));
        let timeout = self.free().and_then(|_| self.next_due()).map(|due_ns| TimeSpec::from(left(due_ns)));
        let mut files: Vec<_> =
            self.connections.iter().map(|one| PollFd::new(one.stream.as_fd(), PollFlags::POLLIN)).collect();
        ppoll(&mut files, timeout, None).context("poll")?;
        Ok((0..files.len()).filter(|&index| files[index].any().unwrap_or(false)).collect())
    }

    /// Takes what came; notes the answer once it is whole.
    fn receive(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        receive(&mut connection.stream, &mut connection.answer)?;
        let now_ns = clock::now();
        let Some(found) = found(&connection.answer)? else { return Ok(()) };
        connection.answer.clear();
        let due_ns = connection.due_ns.take().context("the server answers what nobody asked")?;
        let within = |ns| (self.begin_ns..self.end_ns).contains(&ns);
        self.measured.misses += u64::from(!found);
        self.measured.answers += u64::from(within(now_ns));
        if within(due_ns) {
            self.measured.latency.add(clock::between(due_ns, now_ns));
        }
        Ok(())
    }
}

fn receive(stream: &mut TcpStream, answer: &mut Vec<u8>) -> Result<()> {
    let before = answer.len();
    answer.resize(before + 16_384, 0);
    let length = stream.read(&mut answer[before..]).context("receive")?;
    answer.truncate(before + length);
    if length == 0 {
        bail!("the server closed the connection");
    }
    Ok(())
}

/// Whether an answer found or stored a value; none while a part of it is missing.
fn found(answer: &[u8]) -> Result<Option<bool>> {
    match answer {
        b"STORED\r\n" => Ok(Some(true)),
        b"END\r\n" => Ok(Some(false)),
        _ if !answer.ends_with(b"\r\n") => Ok(None),
        _ if !answer.starts_with(b"VALUE ") => bail!("the server says: {}", first_line(answer)),
        _ => Ok(answer.ends_with(b"\r\nEND\r\n").then_some(true)),
    }
}

fn first_line(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer).lines().next().unwrap_or_default().to_owned()
}

fn report(options: &Options, threads: Vec<Measured>) -> Value {
    let (mut latency, mut answers, mut misses) = (Samples::default(), 0, 0);
    for thread in threads {
        latency.append(thread.latency);
        answers += thread.answers;
        misses += thread.misses;
    }
    json!({
        "answers": answers,
        "misses": misses,
        "throughput": answers as f64 * 1e3 / options.for_ms as f64,
        "latency_ns": latency.summary(),
    })
}

#[cfg(test)]
mod tests;

//! The request model of schbench, with differences that matter to a simulated machine.
//!
//! As in schbench, message threads wake workers, and a worker that was woken computes. Different are:
//! - The stamp of a wakeup is taken right before *its* futex wake; schbench takes one for a whole batch,
//!   and so counts the waker's serial loop as latency of the later workers.
//! - Every sample counts, in ns; schbench drops samples of 0 us, which biases a fast machine's median up.
//! - A worker thinks, *then* asks for work and computes when it gets it; schbench's worker is woken, sleeps,
//!   then computes, so that the measured wakeup is not the one that work waits for.
//! - The request is a number of instructions that touch no memory, without schbench's per-CPU spin lock.
//! - A run may end with a number of completed requests, not with a time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::random::Random;
use crate::{clock, futex, team, work};

/// Workers think, ask a message thread to be woken, and compute a request (schbench's model)
#[derive(Args)]
pub struct Options {
    /// Runnable work as a multiple of the CPUs: workers = load * CPUs / duty, with
    /// duty = request / (request + think)
    #[arg(long, required_unless_present = "workers", conflicts_with = "workers")]
    load: Option<f64>,
    /// CPUs that --load refers to [default: those it may run on]
    #[arg(long, value_parser = value_parser!(u32).range(1..), conflicts_with = "workers")]
    cpus_online: Option<u32>,
    /// How many workers
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    workers: Option<u32>,
    /// How many message threads; workers are dealt out to them
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    message_threads: u32,
    /// Instructions of a request
    #[arg(long, value_parser = value_parser!(u64).range(work::MINIMUM..))]
    request_insns: u64,
    /// Think time, us: each is drawn uniformly from half to one and a half times this
    #[arg(long)]
    think_us: u64,
    /// Speed that converts instructions to time for --load and the start offsets
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u64).range(1..))]
    insns_per_100ns: u64,
    /// Time before the measurement, ms
    #[arg(long, default_value_t = 0)]
    warm_up_ms: u64,
    /// Length of the measurement, ms
    #[arg(long, required_unless_present = "requests", value_parser = value_parser!(u64).range(1..))]
    for_ms: Option<u64>,
    /// Completed requests after which the measurement ends instead
    #[arg(long, conflicts_with = "for_ms", value_parser = value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Decides think times and start offsets
    #[arg(long, env = "HEDDLE_SEED", default_value_t = 1)]
    seed: u64,
}

/// Runs the model.
///
/// # Errors
/// A load that is no positive number or asks for no or too many workers.
pub fn run(options: &Options) -> Result<Value> {
    let workers = options.workers()?;
    let groups = (options.message_threads as usize).min(workers);
    let model = Model::new(options, workers, groups);
    let results = thread::scope(|scope| {
        let messengers: Vec<_> = (0..groups)
            .map(|group| {
                let model = &model;
                thread::Builder::new().spawn_scoped(scope, move || model.message(group))
            })
            .collect::<std::io::Result<_>>()
            .context("cannot create a message thread")?;
        let results = team::run(workers, |_| team::sharpen_timers(), |index| Ok(model.work(index)));
        (0..groups).for_each(|group| model.post(group, QUIT));
        drop(messengers);
        results
    })?;
    Ok(model.report(results))
}

impl Options {
    fn workers(&self) -> Result<usize> {
        const MOST: f64 = 100_000.0;
        let Some(load) = self.load else {
            return Ok(self.workers.context("clap requires --load or --workers")? as usize);
        };
        let cpus = match self.cpus_online {
            Some(cpus) => cpus as usize,
            None => thread::available_parallelism()?.get(),
        };
        let duty = self.request_ns() as f64 / self.cycle_ns() as f64;
        let workers = (load * cpus as f64 / duty).round();
        if !(1.0..=MOST).contains(&workers) {
            bail!(
                "--load {load} on {cpus} CPUs at a duty of {duty:.4} means {workers} workers, not 1..{MOST}"
            );
        }
        Ok(workers as usize)
    }

    fn request_ns(&self) -> u64 {
        (self.request_insns * 100 / self.insns_per_100ns).max(1)
    }

    fn cycle_ns(&self) -> u64 {
        self.request_ns() + self.think_us * 1000
    }
}

/// Ends a list of workers, and is no worker.
const NONE: u32 = 0;
/// Posted instead of a worker to end a message thread.
const QUIT: u32 = u32::MAX;

struct Model<'a> {
    options: &'a Options,
    workers: Vec<Worker>,
    groups: Vec<Group>,
    /// When the measurement begins: one time for all workers.
    begin_ns: OnceLock<u64>,
    /// When it ends; not known before so many requests are completed if their number decides.
    end_ns: AtomicU64,
    /// Requests completed by all workers since it began.
    completed: AtomicU64,
}

/// A worker's half of the conversation; alone on its cache lines, as false sharing is not what is modelled.
#[repr(align(128))]
#[derive(Default)]
struct Worker {
    /// 1 once woken.
    woken: AtomicU32,
    /// The next poster of the same group, by number.
    next: AtomicU32,
    /// When its waker was about to wake it.
    stamp_ns: AtomicU64,
}

/// A message thread's mail: the head of a stack of posters, a futex word at the same time.
#[repr(align(128))]
#[derive(Default)]
struct Group {
    /// The latest poster's index + 1, or NONE, or QUIT.
    head: AtomicU32,
}

/// What one worker measured.
struct Measured {
    wakeup: Samples,
    request: Samples,
}

impl<'a> Model<'a> {
    fn new(options: &'a Options, workers: usize, groups: usize) -> Self {
        Self {
            options,
            workers: (0..workers).map(|_| Worker::default()).collect(),
            groups: (0..groups).map(|_| Group::default()).collect(),
            begin_ns: OnceLock::new(),
            end_ns: AtomicU64::new(u64::MAX),
            completed: AtomicU64::new(0),
        }
    }

    /// When the measurement begins; the first worker that asks starts the run.
    fn begin(&self) -> u64 {
        *self.begin_ns.get_or_init(|| {
            let begin_ns = clock::now() + self.options.warm_up_ms * 1_000_000;
            let end_ns = self.options.for_ms.map_or(u64::MAX, |ms| begin_ns + ms * 1_000_000);
            self.end_ns.store(end_ns, Ordering::Relaxed);
            begin_ns
        })
    }

    /// Whether a request that ends now is one of those that count; the last of a number of them ends the run.
    fn counts(&self, done_ns: u64) -> bool {
        if done_ns < self.begin() || done_ns >= self.end_ns.load(Ordering::Relaxed) {
            return false;
        }
        let nth = self.completed.fetch_add(1, Ordering::Relaxed) + 1;
        let most = self.options.requests.unwrap_or(u64::MAX);
        if nth == most {
            self.end_ns.store(done_ns, Ordering::Relaxed);
        }
        nth <= most
    }

    /// So many requests a worker hardly completes.
    fn room(&self) -> usize {
        let requests = match self.options.requests {
            Some(requests) => requests / self.workers.len() as u64,
            None => self.options.for_ms.unwrap_or(0) * 1_000_000 / self.options.cycle_ns(),
        };
        2 * requests as usize + 64
    }

    /// A worker's life.
    fn work(&self, index: usize) -> Measured {
        let room = || Samples::with_room(self.room());
        let mut measured = Measured { wakeup: room(), request: room() };
        let mut random = Random::new(self.options.seed, index);
        self.begin();
        clock::sleep_until(clock::now() + random.below(self.options.cycle_ns()));
        while clock::now() < self.end_ns.load(Ordering::Relaxed) {
            if self.options.think_us > 0 {
                clock::sleep_until(clock::now() + random.around(self.options.think_us * 1000));
            }
            let (wakeup_ns, request_ns, done_ns) = self.request(index);
            if self.counts(done_ns) {
                measured.wakeup.add(wakeup_ns);
                measured.request.add(request_ns);
            }
        }
        measured
    }

    /// One request; returns its wakeup latency, the time from asking for it to its end, and when that was, ns.
    fn request(&self, index: usize) -> (i64, i64, u64) {
        let worker = &self.workers[index];
        worker.woken.store(0, Ordering::Relaxed);
        let asked_ns = clock::now();
        self.post(index % self.groups.len(), u32::try_from(index).expect("at most 100,000") + 1);
        while worker.woken.load(Ordering::Acquire) == 0 {
            futex::wait(&worker.woken, 0);
        }
        let woken_ns = clock::now();
        work::execute(self.options.request_insns);
        let done_ns = clock::now();
        let stamp_ns = worker.stamp_ns.load(Ordering::Relaxed);
        (clock::between(stamp_ns, woken_ns), clock::between(asked_ns, done_ns), done_ns)
    }

    /// Puts a worker, or the order to quit, on a message thread's list, and wakes the thread if it sleeps.
    fn post(&self, group: usize, poster: u32) {
        let head = &self.groups[group].head;
        let mut before = head.load(Ordering::Relaxed);
        loop {
            if poster != QUIT {
                self.workers[poster as usize - 1].next.store(before, Ordering::Relaxed);
            }
            match head.compare_exchange_weak(before, poster, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        if before == NONE {
            futex::wake(head);
        }
    }

    /// A message thread's life: wakes all workers that posted, in the order of their posts.
    fn message(&self, group: usize) {
        let head = &self.groups[group].head;
        let mut batch = Vec::with_capacity(self.workers.len());
        loop {
            let mut poster = head.swap(NONE, Ordering::Acquire);
            if poster == QUIT {
                return;
            }
            if poster == NONE {
                futex::wait(head, NONE);
                continue;
            }
            while poster != NONE {
                let worker = &self.workers[poster as usize - 1];
                batch.push(worker);
                poster = worker.next.load(Ordering::Relaxed);
            }
            for worker in batch.drain(..).rev() {
                worker.stamp_ns.store(clock::now(), Ordering::Relaxed);
                worker.woken.store(1, Ordering::Release);
                futex::wake(&worker.woken);
            }
        }
    }

    fn report(&self, results: Vec<Measured>) -> Value {
        let (mut wakeup, mut request) = (Samples::default(), Samples::default());
        for measured in results {
            wakeup.append(measured.wakeup);
            request.append(measured.request);
        }
        let elapsed_ns = self.end_ns.load(Ordering::Relaxed) - self.begin();
        let requests = self.completed.load(Ordering::Relaxed).min(self.options.requests.unwrap_or(u64::MAX));
        json!({
            "workers": self.workers.len(),
            "message_threads": self.groups.len(),
            "requests": requests,
            "elapsed_ns": elapsed_ns,
            "throughput": requests as f64 * 1e9 / elapsed_ns as f64,
            "wakeup_latency_ns": wakeup.summary(),
            "request_latency_ns": request.summary(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, run};
    use clap::{Args, Command, FromArgMatches};
    use serde_json::Value;

    fn measured(arguments: &[&str]) -> Value {
        let fixed = ["schbench", "--workers", "3", "--request-insns", "1000", "--think-us", "100"];
        let matches = Options::augment_args(Command::new("schbench"))
            .try_get_matches_from(fixed.iter().chain(arguments))
            .unwrap();
        run(&Options::from_arg_matches(&matches).unwrap()).unwrap()
    }

    #[test]
    fn a_window_is_as_long_as_told() {
        let report = measured(&["--warm-up-ms", "20", "--for-ms", "30"]);
        assert_eq!(report["elapsed_ns"], 30_000_000);
        assert_eq!(report["requests"], report["request_latency_ns"]["count"]);
        assert_eq!(report["requests"], report["wakeup_latency_ns"]["count"]);
        // Each of three workers thinks for 50 us or more before a request.
        assert!((1..=1800).contains(&report["requests"].as_u64().unwrap()), "{report}");
    }

    #[test]
    fn so_many_requests_as_told_end_the_run() {
        let report = measured(&["--warm-up-ms", "5", "--requests", "50"]);
        assert_eq!((&report["requests"], &report["request_latency_ns"]["count"]), (&50.into(), &50.into()));
        assert!(report["elapsed_ns"].as_u64().unwrap() > 0);
    }
}

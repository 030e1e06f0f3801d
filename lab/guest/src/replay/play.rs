//! Threads that do what a script says.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::script::{Script, Step, Task};
use crate::{clock, futex, work};

/// From when all threads are there until the play begins: those that wait have to fall asleep.
const MARGIN_NS: u64 = 5_000_000;
/// For each thread besides.
const MARGIN_EACH_NS: u64 = 20_000;
/// Real-time priorities of the kernel are below.
const REAL_TIME: u64 = 100;

/// Where a thread sleeps until others wake it.
#[derive(Default)]
struct Bed {
    /// Wakeups that it has not taken yet.
    wakeups: AtomicU32,
    /// When the last of them was given.
    given_ns: AtomicU64,
}

/// When the play begins and ends, `CLOCK_MONOTONIC`, and whether it is over.
struct Stage {
    begin_ns: u64,
    end_ns: u64,
    piece_ns: u64,
    over: AtomicBool,
    /// Threads that have not done all of their steps.
    playing: AtomicU32,
}

/// What one thread did.
#[derive(Default)]
struct Done {
    /// When its first run began.
    first_ns: Option<u64>,
    last_ns: u64,
    runs: u64,
    /// From a wakeup, or from when a sleep was over, until the thread runs, ns.
    late: Samples,
}

/// Plays a script.
///
/// # Errors
/// A thread could not be created or set up.
pub fn run(script: &Script) -> Result<Value> {
    let beds: Vec<Bed> = script.tasks.iter().map(|_| Bed::default()).collect();
    let barrier = Barrier::new(script.tasks.len() + 1);
    let stage = OnceLock::new();
    let (stage, barrier, beds) = (&stage, &barrier, &beds);
    let done = thread::scope(|scope| {
        let threads: Vec<_> = script
            .tasks
            .iter()
            .enumerate()
            .map(|(number, task)| {
                let main = move || {
                    let dressed = dress(task);
                    barrier.wait();
                    let stage: &Stage = stage.wait();
                    let player = Player { beds, stage, number, pace: Pace::default(), done: Done::default() };
                    let done = player.play(&task.steps);
                    if stage.playing.fetch_sub(1, Ordering::AcqRel) == 1 {
                        futex::wake(&stage.playing);
                    }
                    dressed.map(|()| done)
                };
                let spawned = thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, main);
                // The others would wait for the missing one for ever.
                spawned.unwrap_or_else(|error| fail(&format!("cannot create thread {number}: {error}")))
            })
            .collect();
        barrier.wait();
        conduct(stage.get_or_init(|| Stage::new(script)), beds);
        let join = |thread: thread::ScopedJoinHandle<Result<Done>>| {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(report(script, stage.wait(), done))
}

fn fail(message: &str) -> ! {
    eprintln!("heddle-replay: {message}");
    std::process::exit(1)
}

impl Stage {
    fn new(script: &Script) -> Self {
        let begin_ns = clock::now() + MARGIN_NS + MARGIN_EACH_NS * script.tasks.len() as u64;
        let playing = AtomicU32::new(u32::try_from(script.tasks.len()).unwrap_or(u32::MAX));
        Self {
            begin_ns,
            end_ns: begin_ns + script.length_ns,
            piece_ns: script.piece_ns,
            over: AtomicBool::new(false),
            playing,
        }
    }
}

/// Sleeps until all threads are done or the time is over, then ends all sleeps.
fn conduct(stage: &Stage, beds: &[Bed]) {
    loop {
        let (playing, now) = (stage.playing.load(Ordering::Acquire), clock::now());
        if playing == 0 || now >= stage.end_ns {
            break;
        }
        futex::wait_for(&stage.playing, playing, stage.end_ns - now);
    }
    stage.over.store(true, Ordering::Release);
    beds.iter().for_each(Bed::wake);
}

impl Bed {
    fn wake(&self) {
        self.given_ns.store(clock::now(), Ordering::Relaxed);
        self.wakeups.fetch_add(1, Ordering::Release);
        futex::wake(&self.wakeups);
    }

    /// Waits for a wakeup and takes it; returns how long ago it was given, if the thread slept.
    fn wait(&self) -> Option<i64> {
        let mut slept = false;
        while self.wakeups.load(Ordering::Acquire) == 0 {
            futex::wait(&self.wakeups, 0);
            slept = true;
        }
        self.wakeups.fetch_sub(1, Ordering::AcqRel);
        slept.then(|| clock::between(self.given_ns.load(Ordering::Relaxed), clock::now()))
    }
}

/// A thread that plays.
struct Player<'a> {
    beds: &'a [Bed],
    stage: &'a Stage,
    number: usize,
    pace: Pace,
    done: Done,
}

impl Player<'_> {
    fn play(mut self, steps: &[Step]) -> Done {
        // One that begins asleep stays so.
        if !matches!(steps.first(), Some(Step::Wait | Step::Until(_))) {
            clock::sleep_until(self.stage.begin_ns);
        }
        for step in steps {
            if self.is_over() {
                break;
            }
            self.step(*step);
        }
        self.done.last_ns = clock::now();
        self.done
    }

    fn is_over(&self) -> bool {
        self.stage.over.load(Ordering::Acquire) || clock::now() >= self.stage.end_ns
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Run(ns) => {
                self.done.first_ns.get_or_insert_with(clock::now);
                self.pace.run(ns, self.stage.end_ns);
            }
            Step::Wake(task) => self.beds[task].wake(),
            Step::Wait => {
                let late_ns = self.beds[self.number].wait();
                if !self.is_over() {
                    self.woke(late_ns);
                }
            }
            Step::Sleep(ns) => self.sleep(clock::now() + ns),
            Step::Until(ns) => self.sleep(self.stage.begin_ns + ns),
            Step::Forever => {
                self.done.first_ns.get_or_insert_with(clock::now);
                while clock::now() < self.stage.end_ns {
                    self.pace.run(self.stage.piece_ns, self.stage.end_ns);
                    self.done.runs += 1;
                }
            }
        }
    }

    /// Sleeps until a time, which may have passed.
    fn sleep(&mut self, due_ns: u64) {
        if due_ns >= self.stage.end_ns {
            clock::sleep_until(self.stage.end_ns);
        } else if due_ns > clock::now() {
            clock::sleep_until(due_ns);
            self.woke(Some(clock::between(due_ns, clock::now())));
        } else {
            self.woke(None);
        }
    }

    /// Notes the end of a sleep, which was that of a run, too.
    fn woke(&mut self, late_ns: Option<i64>) {
        self.done.runs += u64::from(self.done.first_ns.is_some());
        if let Some(ns) = late_ns {
            self.done.late.add(ns);
        }
    }
}

/// How fast a thread works, learnt as it goes.
#[derive(Default)]
struct Pace {
    insns: u64,
    /// CPU time that these instructions took.
    work_ns: u64,
    /// CPU time at the end of the last work.
    since_ns: u64,
    /// Instructions that were due and took place beside the work: falling asleep, getting up, wakeups.
    ahead: u64,
}

impl Pace {
    /// Instructions between two looks at the clock.
    const PIECE: u64 = 100_000;

    /// Works for what is left of a recorded run: it contained the wakeups, falling asleep and getting up, too.
    /// Stops at `end_ns`, or shortly after where the CPU is slower.
    fn run(&mut self, recorded_insns: u64, end_ns: u64) {
        let before_ns = clock::thread_cpu_time();
        // The first run begins with the thread's own start, which is no part of the trace.
        if self.since_ns > 0 {
            let beside_ns = before_ns - self.since_ns;
            self.ahead += (beside_ns * self.insns).checked_div(self.work_ns).unwrap_or(beside_ns);
        }
        let wanted = recorded_insns.saturating_sub(self.ahead);
        self.ahead -= recorded_insns - wanted;
        let mut insns = 0;
        while insns < wanted {
            let left = end_ns.saturating_sub(clock::now());
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

/// Gives the calling thread the task's name and its nice level or real-time priority.
fn dress(task: &Task) -> Result<()> {
    let name = CString::new(task.name.as_slice()).context("a task's name has a zero byte")?;
    // SAFETY: the string lives through the call; the kernel takes 15 bytes of it.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }).context("name")?;
    // SAFETY: plain system call on the calling thread.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) }).context("timer slack")?;
    if task.prio < REAL_TIME {
        let priority = i32::try_from(REAL_TIME - 1 - task.prio)?.max(1);
        let parameter = libc::sched_param { sched_priority: priority };
        // SAFETY: a plain system call that reads the structure; 0 is the calling thread.
        Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) })
            .context("priority")?;
    } else {
        let nice = i32::try_from(task.prio)? - 120;
        // SAFETY: plain system call; 0 is the calling thread.
        Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).context("nice")?;
    }
    Ok(())
}

/// How fast a thread did what its task had done: 1 if it took as long.
fn speed(task: &Task, done: &Done, stage: &Stage) -> f64 {
    let Some(first_ns) = done.first_ns else { return 0.0 };
    let took_ns = done.last_ns.min(stage.end_ns).saturating_sub(first_ns);
    let part = done.runs as f64 / task.runs as f64;
    if took_ns == 0 { part } else { part * task.span_ns as f64 / took_ns as f64 }
}

fn report(script: &Script, stage: &Stage, done: Vec<Done>) -> Value {
    let (mut runs, mut rate, mut late) = (0, 0.0, Samples::default());
    for (task, one) in script.tasks.iter().zip(done) {
        runs += one.runs;
        rate += if task.runs > 0 { speed(task, &one, stage) * task.runs as f64 } else { 0.0 };
        late.append(one.late);
    }
    json!({
        "tasks": script.tasks.len(),
        "begin_ns": stage.begin_ns,
        "length_ns": script.length_ns,
        "runs": runs,
        "throughput": rate * 1e9 / script.length_ns as f64,
        "wakeup_latency_ns": late.summary(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(runs: u64, steps: Vec<Step>) -> Task {
        Task { name: b"a".to_vec(), prio: 120, component: 0, span_ns: 20_000_000, cpu_ns: 0, runs, steps }
    }

    fn played(tasks: Vec<Task>) -> Value {
        run(&Script { length_ns: 20_000_000, piece_ns: 1_000_000, tasks }).unwrap()
    }

    #[test]
    fn a_wakeup_is_never_lost_however_early() {
        let early = vec![Step::Run(1), Step::Wake(1), Step::Wake(1), Step::Wake(1)];
        let late =
            vec![Step::Until(5_000_000), Step::Run(1000), Step::Wait, Step::Run(1), Step::Wait, Step::Wait];
        let report = played(vec![task(0, early), task(3, late)]);
        assert_eq!(report["runs"], 3);
    }

    #[test]
    fn what_nobody_wakes_sleeps_until_the_end() {
        let report =
            played(vec![task(1, vec![Step::Run(1000), Step::Wait, Step::Run(1000), Step::Sleep(1)])]);
        assert_eq!(report["runs"], 0);
        assert_eq!(report["wakeup_latency_ns"], Value::Null);
    }

    #[test]
    fn what_runs_for_ever_runs_until_the_end() {
        let begin = clock::now();
        let report = played(vec![task(20, vec![Step::Forever])]);
        assert!(clock::now() >= begin + 20_000_000);
        assert!(report["runs"].as_u64().unwrap() > 1);
    }

    #[test]
    fn two_that_wake_each_other_do_so_to_the_end_of_their_steps() {
        let ping = [Step::Run(1000), Step::Wake(1), Step::Wait].repeat(100);
        let pong = [&[Step::Wait][..], &[Step::Run(1000), Step::Wake(0), Step::Wait].repeat(100)].concat();
        let report = played(vec![task(100, ping), task(100, pong)]);
        // The first wait of `pong` comes before its first run, and its last one has no end within the script.
        assert_eq!(report["runs"], 199);
    }
}

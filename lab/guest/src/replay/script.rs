//! What the tasks of a trace did, as `heddle record` writes it: numbers in LEB128, one after another.
//!
//! ```text
//! file  = length_ns tasks task*
//! task  = name_bytes name prio component span_ns cpu_ns runs steps (kind value)*
//! ```

use anyhow::{Context, Result, bail};

/// `piece_ns` of a script as it was recorded.
const PIECE_NS: u64 = 1_000_000;

/// A trace to play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub length_ns: u64,
    /// Of a task that runs until the end: what counts as a run.
    pub piece_ns: u64,
    pub tasks: Vec<Task>,
}

/// One task of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// As the kernel has it: any bytes.
    pub name: Vec<u8>,
    /// The kernel's priority: below 100 real time, 120 nice 0.
    pub prio: u64,
    /// Number of those tasks that wake one another, directly or not.
    pub component: u64,
    /// From its first run to its end, in the trace.
    pub span_ns: u64,
    /// CPU time that it had.
    pub cpu_ns: u64,
    /// How many of its runs ended.
    pub runs: u64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Runs for so many ns of CPU time on a CPU of 100 instructions per 100 ns.
    Run(u64),
    /// Wakes a task.
    Wake(usize),
    /// Sleeps until another task wakes it.
    Wait,
    /// Sleeps for so many ns.
    Sleep(u64),
    /// Sleeps until so many ns after the begin.
    Until(u64),
    /// Runs until the end.
    Forever,
}

/// Reads a script.
///
/// # Errors
/// It is cut off, or a step makes no sense.
pub fn read(content: &[u8]) -> Result<Script> {
    let mut rest = Reader(content);
    let length_ns = rest.number()?;
    let count = usize::try_from(rest.number()?)?;
    let tasks = (0..count).map(|_| task(&mut rest, count)).collect::<Result<_>>()?;
    if !rest.0.is_empty() {
        bail!("{} bytes are left over", rest.0.len());
    }
    Ok(Script { length_ns, piece_ns: PIECE_NS, tasks })
}

fn task(rest: &mut Reader, count: usize) -> Result<Task> {
    let length = usize::try_from(rest.number()?)?;
    let name = rest.bytes(length)?.to_vec();
    let [prio, component, span_ns, cpu_ns, runs, steps] = rest.numbers()?;
    let steps = (0..steps)
        .map(|_| {
            let [kind, value] = rest.numbers()?;
            step(kind, value, count)
        })
        .collect::<Result<_>>()?;
    Ok(Task { name, prio, component, span_ns, cpu_ns, runs, steps })
}

fn step(kind: u64, value: u64, count: usize) -> Result<Step> {
    Ok(match kind {
        0 => Step::Run(value),
        1 => match usize::try_from(value) {
            Ok(task) if task < count => Step::Wake(task),
            _ => bail!("task {value} of {count}"),
        },
        2 => Step::Wait,
        3 => Step::Sleep(value),
        4 => Step::Until(value),
        5 => Step::Forever,
        _ => bail!("step of unknown kind {kind}"),
    })
}

impl Step {
    /// The step with another number of the task that it wakes.
    fn renumbered(self, number: impl Fn(usize) -> usize) -> Self {
        if let Self::Wake(task) = self { Self::Wake(number(task)) } else { self }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        bail!("a number of more than 64 bits")
    }

    fn numbers<const N: usize>(&mut self) -> Result<[u64; N]> {
        let mut found = [0; N];
        for value in &mut found {
            *value = self.number()?;
        }
        Ok(found)
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (found, rest) = self.0.split_at_checked(count).context("it is cut off")?;
        self.0 = rest;
        Ok(found)
    }
}

impl Script {
    /// Returns several copies of the script in one, at least a whole one or a part of one.
    ///
    /// A part of a copy has those components, in their order, whose CPU time fits into it. Where none fits, it is a
    /// whole copy if it is half of one or there is no other.
    #[must_use]
    pub fn copied(&self, copies: f64) -> Self {
        let whole = copies.max(0.0) as usize;
        let mut all = Self { length_ns: self.length_ns, piece_ns: self.piece_ns, tasks: Vec::new() };
        (0..whole).for_each(|_| all.add(&self.tasks));
        let part = copies.max(0.0).fract();
        let kept = self.part(part);
        if kept.is_empty() && (whole == 0 || part >= 0.5) {
            all.add(&self.tasks);
        } else {
            all.add(&kept);
        }
        all
    }

    /// The tasks of components that need no more than a part of the CPU time, numbered anew.
    fn part(&self, part: f64) -> Vec<Task> {
        let total: u64 = self.tasks.iter().map(|task| task.cpu_ns).sum();
        let components = self.tasks.iter().map(|task| task.component).max().map_or(0, |most| most + 1);
        let (mut room, mut chosen) =
            (total as f64 * part, vec![false; usize::try_from(components).unwrap_or(0)]);
        for (component, chosen) in (0..).zip(&mut chosen) {
            let own = self.tasks.iter().filter(|task| task.component == component);
            let needs = own.map(|task| task.cpu_ns).sum::<u64>() as f64;
            *chosen = needs > 0.0 && needs <= room;
            room -= if *chosen { needs } else { 0.0 };
        }
        let is_kept = |task: &Task| chosen[usize::try_from(task.component).unwrap_or(0)];
        let numbers: Vec<usize> = self
            .tasks
            .iter()
            .scan(0, |next, task| {
                let number = *next;
                *next += usize::from(is_kept(task));
                Some(number)
            })
            .collect();
        let renumber = |step: &Step| step.renumbered(|task| numbers[task]);
        self.tasks
            .iter()
            .filter(|task| is_kept(task))
            .map(|task| Task { steps: task.steps.iter().map(renumber).collect(), ..task.clone() })
            .collect()
    }

    /// Returns the script with all times, those of runs too, so many times as long.
    #[must_use]
    pub fn stretched(&self, times: f64) -> Self {
        let longer = |ns: u64| (ns as f64 * times) as u64;
        let step = |step: &Step| match *step {
            Step::Run(ns) => Step::Run(longer(ns)),
            Step::Sleep(ns) => Step::Sleep(longer(ns)),
            Step::Until(ns) => Step::Until(longer(ns)),
            other => other,
        };
        let tasks = self.tasks.iter().map(|task| Task {
            span_ns: longer(task.span_ns),
            cpu_ns: longer(task.cpu_ns),
            steps: task.steps.iter().map(step).collect(),
            ..task.clone()
        });
        Self { length_ns: longer(self.length_ns), piece_ns: longer(self.piece_ns), tasks: tasks.collect() }
    }

    /// Adds tasks that wake one another.
    fn add(&mut self, tasks: &[Task]) {
        let base = self.tasks.len();
        let moved = |step: &Step| step.renumbered(|task| base + task);
        self.tasks.extend(
            tasks.iter().map(|task| Task { steps: task.steps.iter().map(moved).collect(), ..task.clone() }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(component: u64, cpu_ns: u64, steps: &[Step]) -> Task {
        let name = b"task".to_vec();
        Task { name, prio: 120, component, span_ns: 9, cpu_ns, runs: 1, steps: steps.to_vec() }
    }

    fn number(mut value: u64, out: &mut Vec<u8>) {
        while value >= 0x80 {
            out.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        out.push(value.to_le_bytes()[0]);
    }

    #[test]
    fn reads_what_was_written() {
        let mut content = Vec::new();
        for value in [1_000_000, 1, 2] {
            number(value, &mut content);
        }
        content.extend(b"ab");
        for value in [120, 0, 900, 300, 1, 6, 0, 300, 1, 0, 2, 0, 3, 5_000_000_000, 4, 7, 5, 0] {
            number(value, &mut content);
        }
        let script = read(&content).unwrap();
        assert_eq!(script.length_ns, 1_000_000);
        assert_eq!(script.tasks[0].name, b"ab");
        let expected = [
            Step::Run(300),
            Step::Wake(0),
            Step::Wait,
            Step::Sleep(5_000_000_000),
            Step::Until(7),
            Step::Forever,
        ];
        assert_eq!(script.tasks[0].steps, expected);
        for cut in 0..content.len() {
            assert!(read(&content[..cut]).is_err(), "{cut}");
        }
        content.push(0);
        assert!(format!("{:#}", read(&content).unwrap_err()).contains("left over"));
    }

    #[test]
    fn refuses_steps_that_make_no_sense() {
        for (kind, value, word) in [(1, 3, "task 3 of 2"), (6, 0, "unknown kind 6")] {
            let error = format!("{:#}", step(kind, value, 2).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn stretched_takes_longer() {
        let steps = [Step::Run(10), Step::Wake(0), Step::Sleep(20), Step::Until(30), Step::Forever];
        let script = Script { length_ns: 100, piece_ns: 10, tasks: vec![task(0, 7, &steps)] }.stretched(2.5);
        assert_eq!((script.length_ns, script.piece_ns), (250, 25));
        assert_eq!((script.tasks[0].cpu_ns, script.tasks[0].span_ns), (17, 22));
        let longer = [Step::Run(25), Step::Wake(0), Step::Sleep(50), Step::Until(75), Step::Forever];
        assert_eq!(script.tasks[0].steps, longer);
    }

    #[test]
    fn copies_wake_their_own() {
        let script = Script {
            length_ns: 1,
            piece_ns: 1,
            tasks: vec![task(0, 60, &[Step::Wake(1)]), task(0, 10, &[Step::Wait]), task(1, 30, &[])],
        };
        let wakes = |script: &Script| -> Vec<usize> {
            let steps = script.tasks.iter().flat_map(|task| &task.steps);
            steps.filter_map(|step| if let Step::Wake(task) = step { Some(*task) } else { None }).collect()
        };
        assert_eq!(script.copied(1.0), script);
        let twice = script.copied(2.0);
        assert_eq!((twice.tasks.len(), wakes(&twice)), (6, vec![1, 4]));
        let more = script.copied(1.75);
        assert_eq!((more.tasks.len(), wakes(&more)), (5, vec![1, 4]));
        let fewer = script.copied(0.3);
        assert_eq!((fewer.tasks.len(), fewer.tasks[0].component), (1, 1));
        assert_eq!(script.copied(0.1), script);
        assert_eq!(script.copied(1.1), script);
    }
}

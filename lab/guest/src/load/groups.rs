//! Tasks that compute and sleep in turn, in control groups: does each group get its share?

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use heddle_guest::{cgroup, cpulist};
use serde_json::{Value, json};

use crate::latency::Samples;
use crate::random::Random;
use crate::{clock, team, work};

/// Instructions between two looks at the clock: how exactly the measured time is cut out.
const CHUNK: u64 = 10_000;

/// The cgroup that holds the process; its threads are in groups below.
const DOMAIN: &str = "load";

/// Period of cpu.max, us; the kernel's default of 100 ms would make short runs depend on its phase.
const LIMIT_PERIOD_US: f64 = 20_000.0;

/// Run tasks that compute and sleep in turn in cgroups, and report each group's share of the CPUs
#[derive(Args)]
pub struct Options {
    /// What the tasks ask for as a multiple of the CPUs; their number is load * CPUs * period / run
    #[arg(long)]
    load: f64,
    /// Ratios in which the tasks are dealt to groups, at least one to each; as many groups as numbers
    #[arg(long, value_delimiter = ',', default_value = "1,1")]
    split: Vec<f64>,
    /// cpu.weight of the groups; group i takes the i-th, beginning again after the last
    #[arg(long, value_delimiter = ',', default_value = "100", value_parser = value_parser!(u32).range(1..=10_000))]
    weights: Vec<u32>,
    /// Most CPUs that a group may use (cpu.max), dealt out likewise; 0: no limit
    #[arg(long, value_delimiter = ',', default_value = "0")]
    limits: Vec<f64>,
    /// Levels of cgroups: each group is a chain this long, weight and limit at its top, tasks at its end
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=32))]
    depth: u32,
    /// Work of one activation, instructions
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    run_insns: u64,
    /// Least time from one activation of a task to its next, us; one that is late does not catch up
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    period_us: u64,
    /// Periods over which the first activations are spread; 0: all tasks wake at once
    #[arg(long, default_value_t = 1.0)]
    spread: f64,
    /// Time before the measurement, ms
    #[arg(long, default_value_t = 50)]
    warm_up_ms: u64,
    /// Length of the measurement, ms
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    for_ms: u64,
    /// Speed of a CPU, which turns instructions into time for --load
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u64).range(1..))]
    insns_per_100ns: u64,
    /// Decides when tasks wake first
    #[arg(long, env = "HEDDLE_SEED", default_value_t = 1)]
    seed: u64,
}

/// Runs the groups.
///
/// # Errors
/// A load, ratio or limit that is out of range, or a control group that cannot be made.
pub fn run(options: &Options) -> Result<Value> {
    let cpus = cpulist::allowed()?.len() as f64;
    let groups = options.groups(cpus)?;
    let homes = groups.iter().enumerate().map(|(index, group)| group.make(index, options.depth));
    let homes = homes.collect::<Result<Vec<_>>>()?;
    fs::write(cgroup::create(DOMAIN)?.join("cgroup.procs"), "0").context("cannot enter the load's cgroup")?;
    let member: Vec<usize> =
        groups.iter().enumerate().flat_map(|(index, group)| vec![index; group.tasks]).collect();

    let start_ns = clock::now() + 2_000_000 + member.len() as u64 * 100_000;
    let window = Window::after(start_ns, options);
    let prepare = |task: usize| {
        team::sharpen_timers()?;
        let threads = homes[member[task]].join("cgroup.threads");
        fs::write(&threads, "0").with_context(|| format!("cannot enter {}", threads.display()))
    };
    let tasks = team::run(member.len(), prepare, |task| {
        let mut random = Random::new(options.seed, task);
        let spread_ns = (options.spread * options.period_ns() as f64) as u64;
        Ok(live(options, &window, start_ns + random.below(spread_ns)))
    })?;
    Ok(report(options, cpus, &groups, &member, tasks))
}

impl Options {
    fn groups(&self, cpus: f64) -> Result<Vec<Group>> {
        const MOST: f64 = 10_000.0;
        if !(self.spread.is_finite() && (0.0..=1e3).contains(&self.spread)) {
            bail!("--spread {} is not within 0..1000", self.spread);
        }
        if let Some(ratio) = self.split.iter().find(|ratio| !(ratio.is_finite() && **ratio > 0.0)) {
            bail!("--split {ratio}: a ratio is a number above 0");
        }
        if let Some(limit) = self.limits.iter().find(|limit| !(0.0..=MOST).contains(*limit)) {
            bail!("--limits {limit} is not within 0..{MOST} CPUs");
        }
        let duty = self.run_insns as f64 * 100.0 / self.insns_per_100ns as f64 / self.period_ns() as f64;
        let duty = duty.min(1.0);
        let total = self.load * cpus / duty;
        if !(1.0..=MOST).contains(&total) {
            bail!("--load {} on {cpus} CPUs at a duty of {duty:.4} means {total:.0} tasks", self.load);
        }
        let ratios: f64 = self.split.iter().sum();
        let group = |(index, ratio): (usize, &f64)| {
            let tasks = (total * ratio / ratios).round().max(1.0);
            Group {
                tasks: tasks as usize,
                weight: self.weights[index % self.weights.len()],
                limit: self.limits[index % self.limits.len()],
                full_speed_demand: tasks * duty,
            }
        };
        Ok(self.split.iter().enumerate().map(group).collect())
    }

    fn period_ns(&self) -> u64 {
        self.period_us * 1000
    }
}

struct Group {
    tasks: usize,
    weight: u32,
    /// CPUs, 0 for no limit.
    limit: f64,
    /// What its tasks ask for at --insns-per-100ns, CPUs.
    full_speed_demand: f64,
}

impl Group {
    /// What it asks for within its limit, CPUs, if its work takes `stretch` times as long: beside a busy SMT
    /// sibling or on a slower CPU the same work is more time, and it is time that the weights divide.
    fn demand(&self, stretch: f64) -> f64 {
        let most = if self.limit > 0.0 { self.limit } else { f64::INFINITY };
        (self.full_speed_demand * stretch).min(self.tasks as f64).min(most)
    }

    /// Makes the group's chain of cgroups; returns its end.
    fn make(&self, index: usize, depth: u32) -> Result<PathBuf> {
        let domain = cgroup::create(DOMAIN)?;
        let name = format!("g{index}");
        let top = cgroup::create_threaded(&domain, &name)?;
        cgroup::write(&top, "cpu.weight", &self.weight.to_string())?;
        let quota = match self.limit {
            0.0 => "max".to_owned(),
            limit => (limit * LIMIT_PERIOD_US).round().to_string(),
        };
        cgroup::write(&top, "cpu.max", &format!("{quota} {LIMIT_PERIOD_US}"))?;
        cgroup::create_threaded(&domain, &(name + &"/g".repeat(depth as usize - 1)))
    }
}

/// What counts: from `begin_ns` to `end_ns`.
struct Window {
    begin_ns: u64,
    end_ns: u64,
}

impl Window {
    fn after(start_ns: u64, options: &Options) -> Self {
        let begin_ns = start_ns + options.warm_up_ms * 1_000_000;
        Self { begin_ns, end_ns: begin_ns + options.for_ms * 1_000_000 }
    }
}

/// What one task measured within the window.
#[derive(Default)]
struct Measured {
    cpu_ns: u64,
    /// Instructions.
    work: u64,
    activations: u64,
    wakeup: Samples,
}

/// A task's life.
fn live(options: &Options, window: &Window, first_ns: u64) -> Measured {
    let room = 2 + (window.end_ns - window.begin_ns) / options.period_ns();
    let mut measured = Measured { wakeup: Samples::with_room(room as usize), ..Measured::default() };
    let mut before_ns = None;
    // Called often enough, it sees both ends of the window when they come or when the task next runs.
    let mut look = |measured: &mut Measured| {
        let now = clock::now();
        if now >= window.begin_ns && before_ns.is_none() {
            before_ns = Some(clock::thread_cpu_time());
        }
        if now < window.end_ns {
            return Some(now);
        }
        measured.cpu_ns = clock::thread_cpu_time() - before_ns.unwrap_or(0);
        None
    };
    let mut due_ns = first_ns;
    loop {
        let slept = clock::now() < due_ns;
        clock::sleep_until(due_ns);
        let Some(woken_ns) = look(&mut measured) else { return measured };
        let counts = due_ns >= window.begin_ns;
        if slept && counts {
            measured.wakeup.add(clock::between(due_ns, woken_ns));
        }
        let (mut left, mut began_ns) = (options.run_insns, woken_ns);
        while left > 0 {
            let chunk = left.min(CHUNK);
            work::execute(chunk);
            left -= chunk;
            let Some(now) = look(&mut measured) else { return measured };
            measured.work += if began_ns < window.begin_ns { 0 } else { chunk };
            began_ns = now;
        }
        measured.activations += u64::from(counts);
        due_ns = (due_ns + options.period_ns()).max(clock::now());
    }
}

fn report(options: &Options, cpus: f64, groups: &[Group], member: &[usize], tasks: Vec<Measured>) -> Value {
    let length_ns = (options.for_ms * 1_000_000) as f64;
    let own = |index: usize| {
        tasks.iter().zip(member).filter(move |(_, group)| **group == index).map(|(task, _)| task)
    };
    let demands: Vec<f64> = (0..groups.len())
        .map(|index| groups[index].demand(stretch(own(index), options.insns_per_100ns)))
        .collect();
    let ideal = fluid_shares(cpus, groups, &demands);
    let used: Vec<Vec<f64>> = (0..groups.len())
        .map(|index| own(index).map(|task| task.cpu_ns as f64 / length_ns).collect())
        .collect();
    let got: Vec<f64> = used.iter().map(|tasks| tasks.iter().sum()).collect();
    let share_error =
        got.iter().zip(&ideal).map(|(got, ideal)| (got / ideal - 1.0).abs()).fold(0.0, f64::max);
    let described: Vec<Value> = groups
        .iter()
        .zip(&demands)
        .zip(got.iter().zip(&ideal))
        .map(|((group, demand), (got, ideal))| {
            json!({"tasks": group.tasks, "weight": group.weight, "limit": group.limit,
                   "demand": demand, "ideal": ideal, "cpus": got})
        })
        .collect();
    let activations: u64 = tasks.iter().map(|task| task.activations).sum();
    let mut wakeup = Samples::default();
    tasks.into_iter().for_each(|task| wakeup.append(task.wakeup));
    json!({
        "groups": described,
        "share_error": share_error,
        "task_share_error": used.iter().map(|tasks| unevenness(tasks)).fold(0.0, f64::max),
        "activations": activations,
        "throughput": activations as f64 * 1e9 / length_ns,
        "wakeup_latency_ns": wakeup.summary(),
    })
}

/// How much longer the work of some tasks took than it would at a speed.
fn stretch<'a>(tasks: impl Iterator<Item = &'a Measured>, insns_per_100ns: u64) -> f64 {
    let (cpu_ns, work) = tasks.fold((0, 0), |(ns, work), task| (ns + task.cpu_ns, work + task.work));
    if work == 0 { 1.0 } else { cpu_ns as f64 * insns_per_100ns as f64 / 100.0 / work as f64 }
}

/// What each group gets of a machine that divides its time continuously: CPUs by weight, to none more than it
/// demands, what one leaves to the others.
fn fluid_shares(cpus: f64, groups: &[Group], demands: &[f64]) -> Vec<f64> {
    let mut shares: Vec<Option<f64>> = vec![None; groups.len()];
    loop {
        let open = || groups.iter().zip(&shares).filter(|(_, share)| share.is_none());
        let weight: f64 = open().map(|(group, _)| f64::from(group.weight)).sum();
        let left = cpus - shares.iter().flatten().sum::<f64>();
        let fair = |group: &Group| left * f64::from(group.weight) / weight;
        let content: Vec<bool> =
            groups.iter().zip(demands).map(|(group, demand)| *demand <= fair(group)).collect();
        let mut settled = false;
        for ((share, demand), content) in shares.iter_mut().zip(demands).zip(content) {
            if share.is_none() && content {
                *share = Some(*demand);
                settled = true;
            }
        }
        if !settled {
            return groups.iter().zip(shares).map(|(group, share)| share.unwrap_or(fair(group))).collect();
        }
    }
}

/// Largest deviation from the mean, as a fraction of the mean.
fn unevenness(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|value| (value / mean - 1.0).abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::{Group, Measured, Options, fluid_shares, stretch, unevenness};
    use clap::{Args, Command, FromArgMatches};

    fn options(arguments: &[&str]) -> Options {
        let fixed = ["groups", "--run-insns", "8000000", "--period-us", "16000", "--for-ms", "1"];
        let matches = Options::augment_args(Command::new("groups"))
            .try_get_matches_from(fixed.iter().chain(arguments))
            .unwrap();
        Options::from_arg_matches(&matches).unwrap()
    }

    fn shares(cpus: f64, groups: &[(u32, f64)]) -> Vec<f64> {
        let demands: Vec<f64> = groups.iter().map(|&(_, demand)| demand).collect();
        let group = |&(weight, full_speed_demand)| Group { tasks: 1, weight, limit: 0.0, full_speed_demand };
        fluid_shares(cpus, &groups.iter().map(group).collect::<Vec<_>>(), &demands)
    }

    #[test]
    fn cpus_are_dealt_by_weight_and_leftovers_go_round() {
        assert_eq!(shares(4.0, &[(100, 9.0), (300, 9.0)]), [1.0, 3.0]);
        assert_eq!(shares(2.0, &[(100, 2.0), (100, 1.0)]), [1.0, 1.0]);
        assert_eq!(shares(4.0, &[(100, 9.0), (100, 0.5), (200, 9.0)]), [3.5 / 3.0, 0.5, 7.0 / 3.0]);
        // The first is content only once the second has left something.
        assert_eq!(shares(3.0, &[(100, 1.2), (100, 0.2), (100, 9.0)]), [1.2, 0.2, 1.6]);
        assert_eq!(shares(4.0, &[(100, 1.0), (10_000, 1.0)]), [1.0, 1.0]);
    }

    #[test]
    fn tasks_follow_load_and_split() {
        let groups = options(&["--load", "1.5", "--split", "2,1", "--limits", "0,0.3"]).groups(2.0).unwrap();
        let tasks: Vec<_> = groups.iter().map(|group| group.tasks).collect();
        assert_eq!(tasks, [4, 2]);
        assert!((groups[0].demand(1.0) - 2.0).abs() < 1e-9);
        assert!((groups[1].demand(1.0) - 0.3).abs() < 1e-9);
        let herd = options(&["--load", "0.25", "--split", "1,1000"]).groups(2.0).unwrap();
        assert_eq!((herd[0].tasks, herd[1].tasks), (1, 1));
    }

    #[test]
    fn slow_work_asks_for_more_time_but_for_no_more_than_its_tasks_can_use() {
        let [group] = &options(&["--load", "1", "--split", "1"]).groups(2.0).unwrap()[..] else { panic!() };
        assert_eq!(
            (group.tasks, group.demand(1.0), group.demand(1.5), group.demand(3.0)),
            (4, 2.0, 3.0, 4.0)
        );
        let task = |cpu_ns, work| Measured { cpu_ns, work, ..Measured::default() };
        let tasks = [task(300, 100), task(100, 100)];
        assert_eq!(stretch(tasks.iter(), 100), 2.0);
        assert_eq!(stretch([].iter(), 100), 1.0);
    }

    #[test]
    fn a_bad_value_is_named() {
        for (arguments, word) in [
            (["--load", "0"], "--load 0 on 2 CPUs"),
            (["--load", "1e9"], "tasks"),
            (["--load=1", "--split=1,0"], "--split 0"),
            (["--load=1", "--limits=-1"], "--limits -1"),
            (["--load=1", "--spread=-1"], "--spread -1"),
        ] {
            let error = options(&arguments).groups(2.0).err().unwrap().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn unevenness_is_relative_to_the_mean() {
        assert!((unevenness(&[1.0, 1.0, 4.0]) - 1.0).abs() < 1e-9);
        assert!(unevenness(&[2.0]) < 1e-9);
    }
}

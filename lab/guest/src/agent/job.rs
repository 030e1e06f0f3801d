//! The job: what the guest is to do between power-on and power-off. README.md documents the format.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use heddle_guest::cpulist;
use serde::Deserialize;

/// Version of the job and of the records.
pub const PROTOCOL: u32 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    v: u32,
    /// Handed to every step as `HEDDLE_SEED`.
    #[serde(default)]
    pub seed: u64,
    /// Limit of the whole job, virtual ns.
    pub timeout_ns: u64,
    /// Started before the first step; none: the kernel's own scheduler.
    #[serde(default)]
    pub scheduler: Option<SchedulerCommand>,
    #[serde(default)]
    pub steps: Vec<Step>,
    /// After the steps, an interactive shell on the console, without a time limit.
    #[serde(default)]
    pub shell: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerCommand {
    pub name: String,
    pub argv: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub name: String,
    #[serde(default)]
    pub argv: Option<Vec<String>>,
    #[serde(default)]
    pub action: Option<Action>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// CPU list; none: all.
    #[serde(default)]
    pub cpus: Option<String>,
    /// Path below the root of cgroup v2.
    #[serde(default)]
    pub cgroup: Option<String>,
    #[serde(default = "default_timeout_ns")]
    pub timeout_ns: u64,
    #[serde(default)]
    pub background: bool,
    /// Status that lets the job go on; none: any, a signal and a time-out too.
    #[serde(default = "default_expect_exit")]
    pub expect_exit: Option<i32>,
    #[serde(default)]
    pub stdin: Option<String>,
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub nice: i32,
    #[serde(default)]
    pub policy: Policy,
    #[serde(default)]
    pub trace: Option<TraceSpec>,
}

/// The scheduling policies a step may start under (sched(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    #[default]
    Other,
    Batch,
    Idle,
    Fifo,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSpec {
    /// `system:event`, such as `sched:sched_switch`.
    pub events: Vec<String>,
    /// ftrace's filter, applied to each of the events; empty: none.
    #[serde(default)]
    pub filter: String,
    /// Ring buffer of each CPU, KiB.
    #[serde(default = "default_buffer_kb")]
    pub buffer_kb: u64,
    #[serde(default)]
    pub format: TraceFormat,
}

/// How the recorded events are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceFormat {
    /// ftrace's text, rounded to microseconds; some ten thousand instructions an event.
    #[default]
    Text,
    /// The ring buffer's pages as they are, exact to the nanosecond.
    Raw,
}

/// What the agent itself does as a step.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// Starts the job's scheduler again, or another one, and waits until it is attached.
    SchedulerStart {
        #[serde(default)]
        scheduler: Option<SchedulerCommand>,
    },
    /// SIGTERM; waits until the process is gone and sched_ext is disabled.
    SchedulerStop {},
    /// SIGKILL; waits likewise.
    KillScheduler {},
    /// Writes a file of /proc or /sys.
    Write { path: String, value: String },
    /// Returns a file of /proc or /sys as the step's stdout.
    Read { path: String },
    /// Sleeps, virtual ns.
    Sleep { ns: u64 },
    /// Sends a signal (default SIGKILL) to a background step's process group and waits for its end.
    KillStep {
        step: String,
        #[serde(default = "default_signal")]
        signal: i32,
    },
    /// Waits for a background step's end.
    WaitStep { step: String },
    /// Writes a cgroup's control file, such as `cpu.max`; creates the group with its parents.
    CgroupSet { cgroup: String, file: String, value: String },
}

fn default_timeout_ns() -> u64 {
    60_000_000_000
}

/// Absent means 0, null means any.
fn default_expect_exit() -> Option<i32> {
    Some(0)
}

fn default_buffer_kb() -> u64 {
    4096
}

fn default_signal() -> i32 {
    libc::SIGKILL
}

/// Parses and checks a job.
///
/// # Errors
/// One line that names the offending field or step.
pub fn parse(text: &str) -> Result<Job> {
    let job: Job = serde_json::from_str(text).context("malformed job")?;
    if job.v != PROTOCOL {
        bail!("job has version {}, this agent speaks {PROTOCOL}: rebuild the guest image", job.v);
    }
    if let Some(scheduler) = &job.scheduler {
        scheduler.check()?;
    }
    let mut names = BTreeSet::new();
    let mut background = BTreeSet::new();
    for step in &job.steps {
        step.check(&job, &background).with_context(|| format!("step '{}'", step.name))?;
        if !names.insert(&step.name) {
            bail!("step '{}' appears twice: records are told apart by name", step.name);
        }
        if step.background {
            background.insert(step.name.as_str());
        }
    }
    Ok(job)
}

impl SchedulerCommand {
    fn check(&self) -> Result<()> {
        if self.argv.is_empty() {
            bail!("scheduler '{}' has an empty argv", self.name);
        }
        Ok(())
    }
}

impl Step {
    fn check(&self, job: &Job, background: &BTreeSet<&str>) -> Result<()> {
        match (&self.argv, &self.action) {
            (Some(argv), None) if argv.is_empty() => bail!("argv is empty"),
            (Some(_), None) => {}
            (None, Some(action)) => action.check(job, background)?,
            _ => bail!("needs either argv or action"),
        }
        if self.action.is_some() && self.background {
            bail!("an action cannot run in the background");
        }
        if self.background && self.trace.is_some() {
            bail!("a background step cannot be traced: trace the step that it accompanies");
        }
        if let Some(cpus) = &self.cpus {
            cpulist::parse(cpus)?;
        }
        if let Some(cgroup) = &self.cgroup {
            check_cgroup(cgroup)?;
        }
        if !(-20..=19).contains(&self.nice) {
            bail!("nice {} is not within -20..19", self.nice);
        }
        self.trace.as_ref().map_or(Ok(()), TraceSpec::check)
    }
}

impl TraceSpec {
    fn check(&self) -> Result<()> {
        if self.events.is_empty() {
            bail!("trace names no event");
        }
        for event in &self.events {
            if !event.split_once(':').is_some_and(|(system, name)| is_word(system) && is_word(name)) {
                bail!("trace event '{event}' is not SYSTEM:EVENT");
            }
        }
        Ok(())
    }
}

impl Action {
    fn check(&self, job: &Job, background: &BTreeSet<&str>) -> Result<()> {
        match self {
            Self::SchedulerStart { scheduler: Some(scheduler) } => scheduler.check(),
            Self::SchedulerStart { scheduler: None } if job.scheduler.is_none() => {
                bail!("neither the action nor the job names a scheduler")
            }
            Self::Write { path, .. } | Self::Read { path } => check_path(path),
            Self::KillStep { step, .. } | Self::WaitStep { step } if !background.contains(step.as_str()) => {
                bail!("no background step '{step}' before this one")
            }
            Self::CgroupSet { cgroup, file, .. } => {
                check_cgroup(cgroup)?;
                if file.contains('/') || !file.contains('.') {
                    bail!("'{file}' is not a cgroup file such as cpu.max");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn check_path(path: &str) -> Result<()> {
    let inside = path.starts_with("/proc/") || path.starts_with("/sys/");
    if !inside || path.split('/').any(|part| part == "..") {
        bail!("path '{path}' is not below /proc or /sys");
    }
    Ok(())
}

fn check_cgroup(path: &str) -> Result<()> {
    if path.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
        bail!("cgroup '{path}' is not a relative path such as a/b");
    }
    Ok(())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_step(step: &str) -> String {
        format!(r#"{{"v":1,"timeout_ns":1000,"steps":[{step}]}}"#)
    }

    #[test]
    fn reads_a_whole_job() {
        let job = parse(
            r#"{"v":1,"seed":7,"timeout_ns":60000000000,"scheduler":{"name":"heddle","argv":["scx_heddle"]},
            "steps":[
             {"name":"load","argv":["heddle-load","spin"],"background":true,"cpus":"0-3","nice":5,"policy":"batch"},
             {"name":"hb","argv":["hackbench"],"env":{"A":"b"},"cgroup":"a/b","expect_exit":null,"uid":1000,
              "trace":{"events":["sched:sched_switch"],"filter":"","buffer_kb":64,"format":"raw"}},
             {"name":"q","action":{"kind":"cgroup-set","cgroup":"a","file":"cpu.max","value":"max"}},
             {"name":"w","argv":null,"action":{"kind":"wait-step","step":"load"},"trace":null}]}"#,
        )
        .unwrap();
        assert_eq!(job.seed, 7);
        assert_eq!(job.steps[0].policy, Policy::Batch);
        assert_eq!(job.steps[0].expect_exit, Some(0));
        assert_eq!(job.steps[1].expect_exit, None);
        let trace = job.steps[1].trace.as_ref().unwrap();
        assert_eq!((trace.buffer_kb, trace.format), (64, TraceFormat::Raw));
        assert!(matches!(&job.steps[3].action, Some(Action::WaitStep { step }) if step == "load"));
        assert!(!job.shell);
    }

    #[test]
    fn refuses_with_a_line_that_names_the_offender() {
        let steps = [
            (r#"{"name":"a"}"#, "step 'a': needs either argv or action"),
            (r#"{"name":"a","argv":[]}"#, "step 'a': argv is empty"),
            (r#"{"name":"a","argv":["x"],"action":{"kind":"sleep","ns":1}}"#, "needs either"),
            (r#"{"name":"a","argv":["x"],"cpus":"0-z"}"#, "0-z"),
            (r#"{"name":"a","argv":["x"],"cgroup":"../x"}"#, "cgroup '../x'"),
            (r#"{"name":"a","argv":["x"],"cgroup":"/x"}"#, "cgroup '/x'"),
            (r#"{"name":"a","argv":["x"],"nice":20}"#, "nice 20"),
            (r#"{"name":"a","argv":["x"],"colour":1}"#, "colour"),
            (r#"{"name":"a","argv":["x"],"policy":"deadline"}"#, "deadline"),
            (r#"{"name":"a","argv":["x"],"trace":{"events":["sched_switch"]}}"#, "SYSTEM:EVENT"),
            (r#"{"name":"a","argv":["x"],"trace":{"events":["../x:enable"]}}"#, "SYSTEM:EVENT"),
            (r#"{"name":"a","argv":["x"],"trace":{"events":[]}}"#, "no event"),
            (r#"{"name":"a","argv":["x"],"background":true,"trace":{"events":["a:b"]}}"#, "background"),
            (r#"{"name":"a","action":{"kind":"explode"}}"#, "explode"),
            (r#"{"name":"a","action":{"kind":"wait-step","step":"b"}}"#, "no background step 'b'"),
            (r#"{"name":"a","action":{"kind":"read","path":"/etc/passwd"}}"#, "/etc/passwd"),
            (r#"{"name":"a","action":{"kind":"read","path":"/proc/../etc/x"}}"#, "/proc/../etc/x"),
            (
                r#"{"name":"a","action":{"kind":"cgroup-set","cgroup":"a","file":"x/cpu.max","value":""}}"#,
                "x/cpu.max",
            ),
            (r#"{"name":"a","action":{"kind":"scheduler-start"}}"#, "names a scheduler"),
            (r#"{"name":"a","action":{"kind":"sleep","ns":1},"background":true}"#, "background"),
            (r#"{"name":"a","argv":["x"]},{"name":"a","argv":["x"]}"#, "appears twice"),
        ];
        let whole = [
            ("", "malformed job"),
            ("{", "malformed job"),
            (r#"{"v":2,"timeout_ns":1}"#, "version 2"),
            (r#"{"v":1}"#, "timeout_ns"),
            (r#"{"v":1,"timeout_ns":-1}"#, "-1"),
            (r#"{"v":1,"timeout_ns":1,"scheduler":{"name":"s","argv":[]}}"#, "'s' has an empty argv"),
        ];
        let cases = steps.map(|(step, word)| (with_step(step), word)).into_iter();
        for (text, word) in cases.chain(whole.map(|(text, word)| (text.to_owned(), word))) {
            let error = format!("{:#}", parse(&text).expect_err(&text));
            assert!(error.contains(word) && !error.contains('\n'), "{text}: {error}");
        }
    }
}

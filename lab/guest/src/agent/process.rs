//! Programs: start with attributes, wait in virtual time, end with all descendants.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use heddle_guest::{cgroup, cpulist};
use nix::errno::Errno;
use nix::sched::sched_setaffinity;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getsid, setsid};

use crate::clock;
use crate::init::OUTPUTS;
use crate::job::Policy;

/// How much of an output is reported, bytes; the tail is kept.
const OUTPUT_CAP: u64 = 64 << 10;

/// Every program starts with these and with what its step adds.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("LANG", "C.UTF-8"),
    ("TERM", "linux"),
];

/// A program to start; the fields mean what they mean in a job's step.
#[derive(Default)]
pub struct Program<'a> {
    pub name: &'a str,
    pub argv: &'a [String],
    pub env: BTreeMap<String, String>,
    pub cpus: Option<&'a str>,
    pub cgroup: Option<&'a str>,
    pub stdin: Option<&'a str>,
    pub uid: u32,
    pub nice: i32,
    pub policy: Policy,
}

/// What to start, with all that may keep it from starting.
impl fmt::Display for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "'{}'", self.argv.join(" "))?;
        if let Some(cpus) = self.cpus {
            write!(f, " on CPUs {cpus}")?;
        }
        if let Some(cgroup) = self.cgroup {
            write!(f, " in cgroup '{cgroup}'")?;
        }
        if self.uid != 0 {
            write!(f, " as user {}", self.uid)?;
        }
        Ok(())
    }
}

/// A started program: leader of a session of its own.
pub struct Process {
    pub pid: Pid,
    pub started_ns: u64,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub at_ns: u64,
}

impl Process {
    /// Prepares a program's files and cgroup, then starts it.
    ///
    /// # Errors
    /// The program does not exist, or one of its attributes cannot be set; names the program and them.
    pub fn start(program: &Program, children: &mut Children) -> Result<Self> {
        let mut prepared = prepare(program)?;
        let [stdout, stderr] = prepared.outputs;
        let started_ns = clock::now();
        let child =
            prepared.command.spawn().with_context(|| format!("cannot start '{}'", program.argv.join(" ")))?;
        let pid = children.adopt(&child);
        Ok(Self { pid, started_ns, stdout, stderr })
    }

    /// Returns the tail of what the program wrote to its standard output.
    pub fn stdout(&self) -> String {
        tail(&self.stdout)
    }

    /// Returns the tail of what the program wrote to its standard error.
    pub fn stderr(&self) -> String {
        tail(&self.stderr)
    }

    /// Deletes the outputs.
    pub fn forget(self) {
        let _ = fs::remove_file(self.stdout);
        let _ = fs::remove_file(self.stderr);
    }

    /// Kills all that is left of the program's process group and session.
    ///
    /// The group dies at once: the kernel lets no member fork between being chosen and being signalled.
    /// Job-control shells put children into groups of their own, hence the search by session.
    ///
    /// # Errors
    /// Some process outlives SIGKILL for 5 s of virtual time.
    pub fn sweep(&self, children: &mut Children) -> Result<()> {
        const PERIOD_NS: u64 = 1_000_000;
        const LIMIT_NS: u64 = 5_000_000_000;
        let _ = killpg(self.pid, Signal::SIGKILL);
        let gone = clock::poll(PERIOD_NS, LIMIT_NS, || {
            children.reap();
            let members = session_members(self.pid);
            for member in &members {
                let _ = kill(*member, Signal::SIGKILL);
            }
            members.is_empty().then_some(())
        });
        gone.with_context(|| format!("processes of session {} outlive SIGKILL", self.pid))
    }
}

struct Prepared {
    command: Command,
    outputs: [PathBuf; 2],
}

/// Does outside the measured interval all that can be done before the fork.
fn prepare(program: &Program) -> Result<Prepared> {
    let outputs =
        ["out", "err"].map(|suffix| Path::new(OUTPUTS).join(format!("{}.{suffix}", file_name(program.name))));
    let create =
        |path: &PathBuf| File::create(path).with_context(|| format!("cannot create {}", path.display()));
    let stdin = match program.stdin {
        Some(text) => Stdio::from(temporary_file(text)?),
        None => Stdio::null(),
    };
    let procs = match program.cgroup {
        Some(path) => Some(
            fs::OpenOptions::new()
                .write(true)
                .open(cgroup::create(path)?.join("cgroup.procs"))
                .with_context(|| format!("cgroup '{path}'"))?,
        ),
        None => None,
    };
    let affinity =
        program.cpus.map(cpulist::parse).transpose()?.map(|cpus| cpulist::mask(&cpus)).transpose()?;
    let (uid, nice, policy) = (program.uid, program.nice, program.policy);

    let mut command = Command::new(&program.argv[0]);
    command
        .args(&program.argv[1..])
        .env_clear()
        .envs(ENVIRONMENT)
        .envs(&program.env)
        .current_dir("/")
        .stdin(stdin)
        .stdout(create(&outputs[0])?)
        .stderr(create(&outputs[1])?);
    // SAFETY: between fork and exec only system calls, no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            if let Some(mut procs) = procs.as_ref() {
                io::Write::write_all(&mut procs, b"0")?;
            }
            if let Some(mask) = &affinity {
                sched_setaffinity(Pid::from_raw(0), mask)?;
            }
            set_policy(policy, nice)?;
            set_user(uid)
        });
    }
    Ok(Prepared { command, outputs })
}

/// Step names are the job's, file names are ours.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn temporary_file(text: &str) -> Result<File> {
    let mut file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(OUTPUTS)
        .context("cannot make a file for stdin")?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn set_policy(policy: Policy, nice: i32) -> io::Result<()> {
    let (number, priority) = match policy {
        Policy::Other => (libc::SCHED_OTHER, 0),
        Policy::Batch => (libc::SCHED_BATCH, 0),
        Policy::Idle => (libc::SCHED_IDLE, 0),
        Policy::Fifo => (libc::SCHED_FIFO, 1),
    };
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: plain system calls on the calling process.
    unsafe {
        Errno::result(libc::sched_setscheduler(0, number, &raw const parameters))?;
        Errno::result(libc::setpriority(libc::PRIO_PROCESS, 0, nice))?;
    }
    Ok(())
}

fn set_user(uid: u32) -> io::Result<()> {
    if uid == 0 {
        return Ok(());
    }
    // SAFETY: plain system calls; the list of groups is empty.
    unsafe {
        Errno::result(libc::setgroups(0, std::ptr::null()))?;
        Errno::result(libc::setgid(uid))?;
        Errno::result(libc::setuid(uid))?;
    }
    Ok(())
}

fn tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_CAP)))?;
        let mut bytes = Vec::new();
        file.take(OUTPUT_CAP).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

fn session_members(session: Pid) -> Vec<Pid> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(Pid::from_raw)
        .filter(|pid| getsid(Some(*pid)) == Ok(session))
        .collect()
}

/// The children of PID 1: those it started, and orphans, which are reaped and forgotten.
pub struct Children {
    exits: BTreeMap<Pid, Option<Exit>>,
    sigchld: SigSet,
}

impl Children {
    /// Blocks SIGCHLD, so that it can be waited for with a time limit.
    ///
    /// # Errors
    /// None in practice.
    pub fn new() -> Result<Self> {
        let mut sigchld = SigSet::empty();
        sigchld.add(Signal::SIGCHLD);
        sigchld.thread_block()?;
        Ok(Self { exits: BTreeMap::new(), sigchld })
    }

    /// Takes over the waiting for a started child.
    pub fn adopt(&mut self, child: &Child) -> Pid {
        let pid = Pid::from_raw(child.id().cast_signed());
        self.exits.insert(pid, None);
        pid
    }

    /// Tells how a started process ended, if it has.
    pub fn exit(&mut self, pid: Pid) -> Option<Exit> {
        self.reap();
        self.exits.get(&pid).copied().flatten()
    }

    /// Forgets a process that has ended.
    pub fn forget(&mut self, pid: Pid) {
        self.exits.remove(&pid);
    }

    /// Sleeps until a started process ends (none: no process) or the virtual time comes.
    pub fn wait(&mut self, pid: Option<Pid>, until_ns: u64) -> Option<Exit> {
        loop {
            self.reap();
            if let Some(exit) = pid.and_then(|pid| self.exits.get(&pid).copied().flatten()) {
                return Some(exit);
            }
            let left = until_ns.checked_sub(clock::now()).filter(|&left| left > 0)?;
            self.wait_for_signal(Duration::from_nanos(left));
        }
    }

    fn wait_for_signal(&self, limit: Duration) {
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: both pointers are to live values; the signal's details are not wanted.
        unsafe { libc::sigtimedwait(self.sigchld.as_ref(), std::ptr::null_mut(), &raw const limit) };
    }

    fn reap(&mut self) {
        loop {
            let (pid, code, signal) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Some(code), None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, None, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => continue,
            };
            if let Some(exit) = self.exits.get_mut(&pid) {
                *exit = Some(Exit { code, signal, at_ns: clock::now() });
            }
        }
    }
}

/// Sends a signal to a process group.
///
/// # Errors
/// The number is no signal.
pub fn signal_group(leader: Pid, number: i32) -> Result<()> {
    let signal = Signal::try_from(number).with_context(|| format!("{number} is not a signal"))?;
    match killpg(leader, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => bail!("cannot signal process group {leader}: {error}"),
    }
}

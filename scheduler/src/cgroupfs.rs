// SPDX-License-Identifier: GPL-2.0-only

//! cpu.max of all cgroups, as their files say: kernels before 6.17 do not tell
//! schedulers of it.
//!
//! A thread watches every directory by inotify, which reports what is written to
//! its files and which cgroups are made and removed in it. The files of the CPU
//! controller come and go when it is switched on and off for all children of a
//! cgroup; that is a write too, to its cgroup.subtree_control. What inotify may
//! miss, by a queue that overflows or a limit on watches, is found when all of
//! the tree is read again, every few seconds.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, SendError, Sender};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

const MAX: &str = "cpu.max";
const BURST: &str = "cpu.max.burst";
const CONTROLLERS: &str = "cgroup.subtree_control";

/// More than any of the files holds that are read.
const FILE_BYTES: u64 = 128;

/// How often all of the tree is read, at the most.
const REREAD: Duration = Duration::from_secs(10);

/// That may take one part in so many of a CPU.
const REREAD_SHARE: u32 = 100;

/// Limits that wait to be taken; the thread then waits too.
const CHANNEL: usize = 64;

/// A limit in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// CPU time in a period.
    pub quota: u64,
    pub period: u64,
    /// What may be saved up beyond the quota.
    pub burst: u64,
}

/// What was read of a cgroup. It may be what was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The kernel's number of the cgroup.
    pub cgroup: u64,
    /// None: the cgroup may use what it gets.
    pub limit: Option<Limit>,
}

/// Limits of cgroups, until it is dropped.
pub struct Watch {
    pub told: Receiver<Told>,
    /// Closing it ends the thread.
    _alive: PipeWriter,
}

/// Where this system has its cgroups, if it has any of version 2.
pub fn mount_point() -> Option<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    mounts.split(|&byte| byte == b'\n').find_map(mounted_at)
}

/// Tell of all limits below `root`, and of changes from then on.
///
/// # Errors
/// The kernel gives no inotify instance, pipe or thread.
pub fn watch(root: PathBuf) -> Result<Watch> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
        .context("cannot watch cgroups")?;
    let (end, alive) = io::pipe().context("cannot watch cgroups")?;
    let (sender, told) = crossbeam_channel::bounded(CHANNEL);
    let tree = Tree {
        root,
        inotify,
        groups: BTreeMap::new(),
        paths: HashMap::new(),
        refused: false,
        told: sender,
    };
    thread::Builder::new()
        .name("cgroupfs".to_string())
        // An error means that the receiver has gone: there is nothing left to do.
        .spawn(move || tree.follow(&end).unwrap_or_default())
        .context("cannot watch cgroups")?;
    Ok(Watch {
        told,
        _alive: alive,
    })
}

/// A cgroup that has been seen.
struct Group {
    id: u64,
    watch: Option<WatchDescriptor>,
    /// A limit has been told of.
    limited: bool,
}

/// The receiver of what is told has gone.
type Gone = SendError<Told>;

struct Tree {
    root: PathBuf,
    inotify: Inotify,
    /// In the order of paths: a cgroup before all that are below it.
    groups: BTreeMap<PathBuf, Group>,
    /// Those of `groups` that are watched.
    paths: HashMap<WatchDescriptor, PathBuf>,
    /// The kernel has refused a watch, and that has been logged.
    refused: bool,
    told: Sender<Told>,
}

impl Tree {
    /// Tell of limits until nobody takes them any more.
    fn follow(mut self, end: &PipeReader) -> Result<(), Gone> {
        loop {
            let start = Instant::now();
            self.reread()?;
            let pause = REREAD.max(REREAD_SHARE * start.elapsed());
            log::debug!("cpu.max of {} cgroups read", self.groups.len());
            while start.elapsed() < pause {
                if self.wait(end, pause.saturating_sub(start.elapsed())) {
                    return Ok(());
                }
                self.handle_events()?;
            }
        }
    }

    /// Wait until there are events, or for `time`. Returns whether it is over.
    fn wait(&self, end: &PipeReader, time: Duration) -> bool {
        let mut fds = [
            PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
            PollFd::new(end.as_fd(), PollFlags::POLLIN),
        ];
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        // Interrupted, it has waited for less.
        let _ = poll(&mut fds, timeout);
        fds[1].any().unwrap_or(false)
    }

    fn handle_events(&mut self) -> Result<(), Gone> {
        for event in self.inotify.read_events().unwrap_or_default() {
            self.handle(&event)?;
        }
        Ok(())
    }

    fn handle(&mut self, event: &InotifyEvent) -> Result<(), Gone> {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return self.reread();
        }
        // Of a directory that has been removed, events may still come.
        let Some(directory) = self.paths.get(&event.wd).cloned() else {
            return Ok(());
        };
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.ignored(event.wd, &directory);
            return Ok(());
        }
        let name = event.name.as_deref().unwrap_or_default();
        if !event.mask.contains(AddWatchFlags::IN_ISDIR) {
            return self.written(&directory, name);
        }
        let child = directory.join(name);
        if event.mask.contains(AddWatchFlags::IN_DELETE) {
            self.forget(&child);
            return Ok(());
        }
        self.visit_all(child)
    }

    /// The kernel has removed `watch`, and with it what was at `path`, where another
    /// cgroup may be by now.
    fn ignored(&mut self, watch: WatchDescriptor, path: &Path) {
        self.paths.remove(&watch);
        if self.groups.get(path).and_then(|group| group.watch) == Some(watch) {
            self.forget(path);
        }
    }

    /// The file `name` in `directory` has been written to.
    fn written(&mut self, directory: &Path, name: &OsStr) -> Result<(), Gone> {
        if name == MAX || name == BURST {
            return self.visit(directory);
        }
        if name == CONTROLLERS {
            for child in children(directory) {
                self.visit(&child)?;
            }
        }
        Ok(())
    }

    /// Look at every cgroup, and forget those that are no more.
    fn reread(&mut self) -> Result<(), Gone> {
        let known: Vec<PathBuf> = self.groups.keys().cloned().collect();
        for path in known.iter().filter(|path| !path.exists()) {
            self.forget(path);
        }
        self.visit_all(self.root.clone())
    }

    /// Look at `path` and all that is below it.
    fn visit_all(&mut self, path: PathBuf) -> Result<(), Gone> {
        let mut left = vec![path];
        while let Some(path) = left.pop() {
            self.visit(&path)?;
            left.extend(children(&path));
        }
        Ok(())
    }

    /// Watch `path`, then read its limit: what is written later is an event.
    fn visit(&mut self, path: &Path) -> Result<(), Gone> {
        // It may have been removed meanwhile: then there is nothing to know.
        let Ok(id) = fs::metadata(path).map(|meta| meta.ino()) else {
            self.forget(path);
            return Ok(());
        };
        if self.groups.get(path).is_some_and(|group| group.id != id) {
            self.forget(path);
        }
        if self
            .groups
            .get(path)
            .is_none_or(|group| group.watch.is_none())
        {
            let watch = self.add_watch(path);
            let limited = false;
            self.groups
                .entry(path.to_path_buf())
                .or_insert(Group { id, watch, limited })
                .watch = watch;
        }
        let limit = read_limit(path);
        match self.groups.get_mut(path) {
            Some(group) if group.limited || limit.is_some() => {
                group.limited = limit.is_some();
                self.told.send(Told { cgroup: id, limit })
            }
            _ => Ok(()),
        }
    }

    fn add_watch(&mut self, path: &Path) -> Option<WatchDescriptor> {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_ONLYDIR;
        match self.inotify.add_watch(path, flags) {
            Ok(watch) => {
                self.paths.insert(watch, path.to_path_buf());
                Some(watch)
            }
            Err(Errno::ENOENT) => None,
            Err(error) => {
                if !self.refused {
                    self.refused = true;
                    log::warn!(
                        "cannot watch all cgroups ({}; fs.inotify.max_user_watches may be too \
                         low): cpu.max of the others is read every {} s",
                        error.desc(),
                        REREAD.as_secs()
                    );
                }
                None
            }
        }
    }

    /// The cgroup at `path` is no more, nor what was below it. Not all kernels remove
    /// the watch of a cgroup with it.
    fn forget(&mut self, path: &Path) {
        let from = self.groups.range(path.to_path_buf()..);
        let gone: Vec<PathBuf> = from
            .map(|(known, _)| known)
            .take_while(|known| known.starts_with(path))
            .cloned()
            .collect();
        for path in gone {
            if let Some(watch) = self.groups.remove(&path).and_then(|group| group.watch) {
                self.paths.remove(&watch);
                let _ = self.inotify.rm_watch(watch);
            }
        }
    }
}

/// The directories in `path`, as far as they can be read.
fn children(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// The limit that the files in `path` set. There is none where the CPU controller
/// is off, nor when the cgroup has just been removed.
fn read_limit(path: &Path) -> Option<Limit> {
    let (quota, period) = parse_max(&read(&path.join(MAX))?)?;
    let burst = read(&path.join(BURST)).and_then(|text| text.trim().parse().ok());
    Some(Limit {
        quota,
        period,
        burst: burst.unwrap_or(0),
    })
}

/// Quota and period by the text of cpu.max; none without a limit, or if the text
/// is not what kernels write.
fn parse_max(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.trim_end().split_once(' ')?;
    let period = period.parse().ok().filter(|&period| period > 0)?;
    Some((quota.parse().ok()?, period))
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(FILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Where the mount of `line` is, by proc_pid_mountinfo(5), if it is one of cgroups.
fn mounted_at(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|&byte| byte == b' ');
    let point = fields.nth(4)?;
    // Optional fields come first, up to a dash.
    let kind = fields.skip_while(|&field| field != b"-").nth(1)?;
    (kind == b"cgroup2").then(|| PathBuf::from(std::ffi::OsString::from_vec(unescaped(point))))
}

/// `text` with what the kernel writes as three octal digits: blanks, backslashes.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((&byte, rest)) = left.split_first() {
        let octal = rest
            .get(..3)
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(value) if byte == b'\\' => {
                bytes.push(value);
                left = &rest[3..];
            }
            _ => {
                bytes.push(byte);
                left = rest;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sooner than all of the tree is read again.
    const SOON: Duration = REREAD.checked_div(2).unwrap();

    /// A folder that looks like a file system of cgroups.
    struct Cgroups(PathBuf);

    impl Cgroups {
        fn new(test: &str) -> Self {
            let name = format!("heddle-cgroups-{test}-{}", std::process::id());
            let root = Self(std::env::temp_dir().join(name));
            fs::create_dir(&root.0).unwrap();
            root
        }

        /// Make a cgroup; returns its number.
        fn make(&self, group: &str) -> u64 {
            fs::create_dir(self.0.join(group)).unwrap();
            fs::metadata(self.0.join(group)).unwrap().ino()
        }

        fn remove(&self, group: &str) {
            fs::remove_dir_all(self.0.join(group)).unwrap();
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.0.join(file), text).unwrap();
        }

        fn watch(&self) -> Watch {
            watch(self.0.clone()).unwrap()
        }
    }

    impl Drop for Cgroups {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn limit(quota: u64, period: u64, burst: u64) -> Option<Limit> {
        Some(Limit {
            quota,
            period,
            burst,
        })
    }

    /// Wait until this is told, whatever is told before.
    fn expect(watch: &Watch, cgroup: u64, limit: Option<Limit>) {
        expect_all(watch, vec![Told { cgroup, limit }]);
    }

    /// Wait until all of `left` has been told, in any order.
    fn expect_all(watch: &Watch, mut left: Vec<Told>) {
        while !left.is_empty() {
            let told = watch.told.recv_timeout(SOON).expect("not told");
            left.retain(|expected| *expected != told);
        }
    }

    #[test]
    fn what_kernels_write_is_understood() {
        assert_eq!(parse_max("5000 100000\n"), Some((5000, 100_000)));
        assert_eq!(parse_max("max 100000\n"), None);
    }

    #[test]
    fn garbage_is_no_limit() {
        for text in [
            "",
            "\n",
            "max",
            "5000",
            "5000 ",
            " 5000 100000",
            "-1 100000",
            "5000 0",
            "5000 -1",
            "5e3 1e5",
            "5000 100000 7",
            "99999999999999999999 100000",
            "a b",
            "5000\t100000",
        ] {
            assert_eq!(parse_max(text), None, "{text:?}");
        }
    }

    #[test]
    fn files_that_are_not_text_or_too_long_or_gone_are_no_limit() {
        let root = Cgroups::new("garbage");
        assert_eq!(read_limit(&root.0), None);
        fs::write(root.0.join(MAX), [0xff, b' ', 0xfe]).unwrap();
        assert_eq!(read_limit(&root.0), None);
        root.write(MAX, &"7".repeat(1 << 20));
        assert_eq!(read_limit(&root.0), None);
        root.write(MAX, "5000 10000\n");
        root.write(BURST, "many\n");
        assert_eq!(read_limit(&root.0), limit(5000, 10_000, 0));
        assert_eq!(read_limit(&root.0.join("gone")), None);
    }

    #[test]
    fn the_mount_point_is_found_whatever_its_name() {
        let plain =
            b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mounted_at(plain), Some(PathBuf::from("/sys/fs/cgroup")));
        let odd = br"30 23 0:26 / /a\040b\134\012\09 rw - cgroup2 none rw";
        assert_eq!(mounted_at(odd), Some(PathBuf::from("/a b\\\n\\09")));
        for other in [
            &b"30 23 0:26 / /sys/fs/cgroup/cpu rw shared:4 - cgroup cgroup rw,cpu"[..],
            b"30 23 0:26 / /cgroup2 rw - tmpfs cgroup2 rw",
            b"30 23 0:26 / /x rw -",
            b"",
        ] {
            assert_eq!(mounted_at(other), None);
        }
    }

    #[test]
    fn limits_that_are_set_are_told_first() {
        let root = Cgroups::new("first");
        let (a, b) = (root.make("a"), root.make("a/b"));
        root.write("a/cpu.max", "max 100000\n");
        root.write("a/b/cpu.max", "5000 100000\n");
        root.write("a/b/cpu.max.burst", "300\n");
        let watch = root.watch();
        assert_ne!(a, b);
        let first = watch.told.recv_timeout(SOON).unwrap();
        let limit = limit(5000, 100_000, 300);
        assert_eq!(first, Told { cgroup: b, limit });
    }

    #[test]
    fn changes_are_told() {
        let root = Cgroups::new("changes");
        let a = root.make("a");
        root.write("a/cpu.max", "5000 100000\n");
        let watch = root.watch();
        expect(&watch, a, limit(5000, 100_000, 0));
        root.write("a/cpu.max", "7000 20000\n");
        expect(&watch, a, limit(7000, 20_000, 0));
        root.write("a/cpu.max.burst", "50\n");
        expect(&watch, a, limit(7000, 20_000, 50));
        root.write("a/cpu.max", "max 20000\n");
        expect(&watch, a, None);
    }

    #[test]
    fn cgroups_that_are_made_later_are_told_of() {
        let root = Cgroups::new("later");
        let watch = root.watch();
        for round in 1..4 {
            let a = root.make("a");
            let odd = root.make("a/ \n\\040 – %s");
            root.write("a/cpu.max", &format!("{round}000 100000\n"));
            root.write("a/ \n\\040 – %s/cpu.max", "2000 100000\n");
            let told = |cgroup, quota| Told {
                cgroup,
                limit: limit(quota, 100_000, 0),
            };
            expect_all(&watch, vec![told(a, 1000 * round), told(odd, 2000)]);
            root.remove("a");
        }
    }

    #[test]
    fn a_controller_that_is_switched_on_is_seen() {
        let root = Cgroups::new("controllers");
        let (a, late) = (root.make("a"), root.make("a/late"));
        root.write("a/cpu.max", "5000 100000\n");
        let watch = root.watch();
        expect(&watch, a, limit(5000, 100_000, 0));
        // Unlike here, the kernel makes files without an event.
        let made = root.0.join("made");
        fs::write(&made, "6000 100000\n").unwrap();
        fs::rename(made, root.0.join("a/late/cpu.max")).unwrap();
        root.write("a/cgroup.subtree_control", "+cpu\n");
        expect(&watch, late, limit(6000, 100_000, 0));
    }

    #[test]
    fn the_thread_ends_with_the_watch() {
        let root = Cgroups::new("end");
        let watch = root.watch();
        let told = watch.told.clone();
        drop(watch);
        while told.recv_timeout(SOON).is_ok() {}
        assert!(told.recv_timeout(SOON).is_err());
    }
}

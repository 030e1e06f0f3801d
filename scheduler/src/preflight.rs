// SPDX-License-Identifier: GPL-2.0-only

//! What must be true before the program can be loaded, each checked up front:
//! libbpf and the kernel would otherwise refuse with a bare error number.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};

use crate::output;
use crate::privileges;
use crate::remarks;

const STATE: &str = "/sys/kernel/sched_ext/state";
const ROOT_OPS: &str = "/sys/kernel/sched_ext/root/ops";
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Where it is absent, scx_utils refuses to load (function_tracer_available()).
const FTRACE: &str = "/proc/sys/kernel/ftrace_enabled";
const PROC_CONFIG: &str = "/proc/config.gz";
/// uname -v
const VERSION: &str = "/proc/sys/kernel/version";
const REALTIME: &str = "/sys/kernel/realtime";
const COMMAND_LINE: &str = "/proc/cmdline";
/// CPUs without scheduling domains: by isolcpus= and, as some kernels count, by cpusets.
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

/// Kernel functions that not every supported kernel has, and what the
/// scheduler does without them.
const OPTIONAL: &[(&str, &str)] = &[
    (
        "scx_bpf_select_cpu_and",
        "idle CPUs are searched by scx_bpf_select_cpu_dfl()",
    ),
    (
        "scx_bpf_dsq_peek",
        "the head of a queue is read under its lock",
    ),
    (
        "scx_bpf_now",
        "time is read from the clock source each time",
    ),
];

/// Something that loading needs.
struct Requirement {
    what: &'static str,
    /// What is missing and how to mend it; nothing if it is there.
    missing: Option<String>,
}

/// Check this machine, as root, for all that the scheduler needs.
///
/// # Errors
/// One line that names what is missing and how to mend it.
pub fn check() -> Result<()> {
    if let Some(missing) = requirements()?.into_iter().find_map(|one| one.missing) {
        bail!("{missing}");
    }
    for (function, instead) in absent_functions() {
        log::info!("this kernel has no {function}(): {instead}");
    }
    Ok(())
}

/// Print each requirement and whether it is met, and what is remarkable besides.
///
/// # Errors
/// One line, if the scheduler cannot be loaded here as things are, or stdout cannot be written.
pub fn report() -> Result<()> {
    let requirements = requirements()?;
    output::print(|out| {
        for one in &requirements {
            match &one.missing {
                None => writeln!(out, "ok       {}", one.what)?,
                Some(missing) => writeln!(out, "missing  {}: {missing}", one.what)?,
            }
        }
        for (function, instead) in absent_functions() {
            writeln!(out, "without  {function}(): {instead}")?;
        }
        for remark in remarks::on_machine(Path::new("/")) {
            writeln!(out, "remark   {remark}")?;
        }
        Ok(())
    })?;
    let missing = requirements.iter().filter(|one| one.missing.is_some());
    match missing.count() {
        0 => Ok(()),
        count => bail!(
            "cannot be loaded here: {count} of {} missing",
            requirements.len()
        ),
    }
}

fn requirements() -> Result<Vec<Requirement>> {
    // SAFETY: geteuid() cannot fail and touches no memory.
    let is_root = unsafe { libc::geteuid() } == 0;
    let capabilities = privileges::missing()?;
    Ok(on_machine(
        Path::new("/"),
        is_root,
        &capabilities,
        &release()?,
    ))
}

/// The requirements on the file system under `root`, of a process that lacks
/// `capabilities`, on the kernel `release`. Those that explain others come first.
fn on_machine(
    root: &Path,
    is_root: bool,
    capabilities: &[String],
    release: &str,
) -> Vec<Requirement> {
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    let met = |what, met: bool, missing: String| {
        let missing = (!met).then_some(missing);
        Requirement { what, missing }
    };
    let config = format!("/boot/config-{release}");
    vec![
        met(
            "a kernel with sched_ext",
            at(STATE).exists(),
            format!(
                "this kernel ({release}) has no sched_ext: boot one of 6.12 or later built with CONFIG_SCHED_CLASS_EXT"
            ),
        ),
        Requirement {
            what: "a kernel without PREEMPT_RT",
            missing: is_realtime(root).then(|| format!(
                "this kernel ({release}) is built with CONFIG_PREEMPT_RT, and refuses the timers of BPF programs: \
                 boot one without"
            )),
        },
        Requirement {
            what: "no domains isolated by isolcpus=",
            missing: isolated_at_boot(root).map(|parameter| format!(
                "booted with {parameter}, beside which the kernel takes no sched_ext scheduler: boot without, and \
                 isolate the CPUs by a cgroup with cpuset.cpus.partition = isolated"
            )),
        },
        met(
            "root",
            is_root,
            "loading a scheduler needs root: run it with sudo".to_string(),
        ),
        met(
            "capabilities",
            capabilities.is_empty(),
            format!("loading a scheduler needs {}", capabilities.join(", ")),
        ),
        Requirement {
            what: "no other scheduler",
            missing: running(&at(STATE), &at(ROOT_OPS)).map(|name| {
                format!("another sched_ext scheduler is running ({name}): stop it first")
            }),
        },
        met(
            "the kernel's types",
            at(BTF).exists(),
            format!("{BTF} is missing: boot a kernel built with CONFIG_DEBUG_INFO_BTF"),
        ),
        met(
            "the kernel's tracing of functions",
            at(FTRACE).exists(),
            format!("{FTRACE} is missing: boot a kernel built with CONFIG_FUNCTION_TRACER"),
        ),
        met(
            "the kernel's configuration",
            at(&config).exists() || at(PROC_CONFIG).exists(),
            format!(
                "the kernel's configuration is missing: provide {config} or load a kernel with {PROC_CONFIG}"
            ),
        ),
    ]
}

/// Is the kernel under `root` one whose locks are preempted? Its verifier knows no bpf_timer.
fn is_realtime(root: &Path) -> bool {
    let version = read(root, VERSION);
    read(root, REALTIME) == "1" || version.split_whitespace().any(|word| word == "PREEMPT_RT")
}

/// The boot parameter that has taken CPUs out of the scheduling domains, for good. Those that a cpuset takes out
/// later are no hindrance, though the kernel lists them in the same file.
fn isolated_at_boot(root: &Path) -> Option<String> {
    if read(root, ISOLATED).is_empty() {
        return None;
    }
    let line = read(root, COMMAND_LINE);
    let mut parameters = line.split_whitespace().take_while(|word| *word != "--");
    let asked =
        parameters.find(|word| word.strip_prefix("isolcpus=").is_some_and(isolates_domains))?;
    Some(asked.escape_debug().to_string())
}

/// Does `isolcpus=` with this value isolate domains? Flags come before the CPUs, and this one is meant where none of
/// the three is among them: unknown ones are passed over (Documentation/admin-guide/kernel-parameters.txt).
fn isolates_domains(value: &str) -> bool {
    let is_flag = |word: &&str| word.starts_with(|first: char| first.is_ascii_alphabetic());
    let flags: Vec<&str> = value.split(',').take_while(is_flag).collect();
    let cpus = value
        .split(',')
        .skip(flags.len())
        .any(|cpus| !cpus.is_empty());
    let others = flags
        .iter()
        .any(|flag| ["nohz", "managed_irq"].contains(flag));
    cpus && (flags.contains(&"domain") || !others)
}

/// The text of a file under `root`, without the space around it; one that is not there is empty.
pub fn read(root: &Path, path: &str) -> String {
    let text = fs::read_to_string(root.join(path.trim_start_matches('/')));
    text.unwrap_or_default().trim().to_string()
}

/// The name of the scheduler that runs, if one does. Names are what their authors
/// made them: bounded by the kernel, escaped here.
fn running(state: &Path, ops: &Path) -> Option<String> {
    let state = fs::read_to_string(state).ok()?;
    if state.trim() == "disabled" {
        return None;
    }
    let name = fs::read_to_string(ops).unwrap_or_default();
    match name.trim() {
        "" => Some("an unnamed one".to_string()),
        name => Some(name.escape_debug().to_string()),
    }
}

/// Those of [`OPTIONAL`] that this kernel lacks.
fn absent_functions() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let present = |function| scx_utils::compat::ksym_exists(function).unwrap_or(false);
    let types = Path::new(BTF).exists(); // without them, the question is an error
    OPTIONAL
        .iter()
        .filter(move |(function, _)| types && !present(function))
}

fn release() -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(release.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const RELEASE: &str = "6.18.0-test";

    /// A file system with all that is needed.
    struct Root(PathBuf);

    impl Root {
        fn new(test: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("heddle-{test}-{}", std::process::id()));
            let root = Self(dir);
            root.write(STATE, "disabled\n");
            root.write(BTF, "");
            root.write(FTRACE, "1\n");
            root.write(&format!("/boot/config-{RELEASE}"), "");
            root
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.join(path.trim_start_matches('/'))
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn remove(&self, path: &str) {
            fs::remove_file(self.path(path)).unwrap();
        }

        /// What is missing, each in one line.
        fn missing(&self, is_root: bool) -> Vec<String> {
            let requirements = on_machine(&self.0, is_root, &[], RELEASE);
            let missing: Vec<_> = requirements
                .into_iter()
                .filter_map(|one| one.missing)
                .collect();
            assert!(
                missing.iter().all(|line| line.lines().count() == 1),
                "{missing:?}"
            );
            missing
        }

        /// The one thing that is missing.
        fn error(&self, is_root: bool) -> String {
            let [error] = self.missing(is_root).try_into().unwrap();
            error
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_complete_machine_passes() {
        let root = Root::new("complete");
        assert!(root.missing(true).is_empty());
    }

    #[test]
    fn a_kernel_without_sched_ext_is_named() {
        let root = Root::new("no-scx");
        root.remove(STATE);
        let error = root.error(true);
        assert!(error.contains(RELEASE) && error.contains("CONFIG_SCHED_CLASS_EXT"));
    }

    #[test]
    fn a_realtime_kernel_is_named_by_its_version_or_its_file() {
        let root = Root::new("realtime");
        root.write(VERSION, "#1 SMP PREEMPT_RT Debian 7.3.4-1\n");
        let error = root.error(true);
        assert!(error.contains(RELEASE) && error.contains("CONFIG_PREEMPT_RT"));
        root.write(VERSION, "#1 SMP PREEMPT_DYNAMIC PREEMPT_RTS\n");
        assert!(root.missing(true).is_empty());
        root.write(REALTIME, "1\n");
        assert_eq!(root.error(true), error);
    }

    #[test]
    fn cpus_isolated_at_boot_are_named() {
        let root = Root::new("isolcpus");
        root.write(ISOLATED, "2-3\n");
        root.write(COMMAND_LINE, "quiet isolcpus=nohz,domain,2-3 ro\n");
        let error = root.error(true);
        assert!(error.contains("booted with isolcpus=nohz,domain,2-3,"));
        assert!(error.contains("cpuset.cpus.partition"));
    }

    #[test]
    fn cpus_isolated_by_a_cpuset_are_no_hindrance() {
        let root = Root::new("cpuset");
        root.write(ISOLATED, "3\n");
        root.write(COMMAND_LINE, "quiet isolcpus=nohz,3 -- isolcpus=3\n");
        assert!(root.missing(true).is_empty());
    }

    #[test]
    fn cpus_that_are_not_there_are_not_isolated() {
        let root = Root::new("no-such-cpu");
        root.write(ISOLATED, "\n");
        root.write(COMMAND_LINE, "isolcpus=9\n");
        assert!(root.missing(true).is_empty());
    }

    #[test]
    fn the_flags_of_isolcpus_tell_what_is_isolated() {
        for value in [
            "3",
            "0-2,5",
            "0-20:2/5",
            "domain,3",
            "nohz,domain,3",
            "domain,managed_irq,1,3",
            "other,3",
        ] {
            assert!(isolates_domains(value), "{value}");
        }
        for value in [
            "",
            "nohz,3",
            "managed_irq,3",
            "nohz,managed_irq,3",
            "other,nohz,3",
            "domain",
            "domain,",
            "N",
        ] {
            assert!(!isolates_domains(value), "{value}");
        }
    }

    #[test]
    fn root_is_required() {
        assert!(Root::new("user").error(false).contains("sudo"));
    }

    #[test]
    fn the_running_scheduler_is_named() {
        let root = Root::new("second");
        root.write(STATE, "enabled\n");
        root.write(ROOT_OPS, "rival_1.0\n");
        assert!(root.error(true).contains("rival_1.0"));
    }

    #[test]
    fn a_hostile_name_stays_on_its_line() {
        let root = Root::new("hostile");
        root.write(STATE, "enabled\n");
        root.write(ROOT_OPS, "a\nb\u{1b}[2J\n");
        assert!(root.error(true).contains(r"(a\nb\u{1b}[2J)"));
    }

    #[test]
    fn capabilities_are_named() {
        let root = Root::new("capabilities");
        let requirements = on_machine(&root.0, true, &["CAP_BPF".to_string()], RELEASE);
        let missing: Vec<_> = requirements
            .into_iter()
            .filter_map(|one| one.missing)
            .collect();
        assert_eq!(missing, ["loading a scheduler needs CAP_BPF"]);
    }

    #[test]
    fn missing_btf_is_named() {
        let root = Root::new("btf");
        root.remove(BTF);
        assert!(root.error(true).contains("CONFIG_DEBUG_INFO_BTF"));
    }

    #[test]
    fn missing_tracing_of_functions_is_named() {
        let root = Root::new("ftrace");
        root.remove(FTRACE);
        assert!(root.error(true).contains("CONFIG_FUNCTION_TRACER"));
    }

    #[test]
    fn the_configuration_may_be_in_boot_or_proc() {
        let root = Root::new("config");
        let boot = format!("/boot/config-{RELEASE}");
        root.remove(&boot);
        assert!(root.error(true).contains(&boot));
        root.write(PROC_CONFIG, "");
        assert!(root.missing(true).is_empty());
    }
}

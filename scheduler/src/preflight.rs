// SPDX-License-Identifier: GPL-2.0-only

//! What must be true before the program can be loaded, each checked up front:
//! libbpf and the kernel would otherwise refuse with a bare error number.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const STATE: &str = "/sys/kernel/sched_ext/state";
const ROOT_OPS: &str = "/sys/kernel/sched_ext/root/ops";
const BTF: &str = "/sys/kernel/btf/vmlinux";
const PROC_CONFIG: &str = "/proc/config.gz";

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

/// Check this machine, as root, for all that the scheduler needs.
///
/// # Errors
/// One line that names what is missing and how to mend it.
pub fn check() -> Result<()> {
    // SAFETY: geteuid() cannot fail and touches no memory.
    let is_root = unsafe { libc::geteuid() } == 0;
    check_machine(Path::new("/"), is_root, &release()?)?;
    log_missing_functions();
    Ok(())
}

/// As [`check`], on the file system under `root`.
fn check_machine(root: &Path, is_root: bool, release: &str) -> Result<()> {
    let at = |path: &str| root.join(path.trim_start_matches('/'));

    if !at(STATE).exists() {
        bail!(
            "this kernel ({release}) has no sched_ext: boot one of 6.12 or later built with CONFIG_SCHED_CLASS_EXT"
        );
    }
    if !is_root {
        bail!("loading a scheduler needs root: run it with sudo");
    }
    let state = fs::read_to_string(at(STATE))?;
    if state.trim() != "disabled" {
        let name = fs::read_to_string(at(ROOT_OPS)).unwrap_or_default();
        let name = match name.trim() {
            "" => "an unnamed one",
            name => name,
        };
        bail!("another sched_ext scheduler is running ({name}): stop it first");
    }
    if !at(BTF).exists() {
        bail!("{BTF} is missing: boot a kernel built with CONFIG_DEBUG_INFO_BTF");
    }
    let config = PathBuf::from("/boot").join(format!("config-{release}"));
    if !at(&config.to_string_lossy()).exists() && !at(PROC_CONFIG).exists() {
        bail!(
            "the kernel's configuration is missing: provide {} or load a kernel with {PROC_CONFIG}",
            config.display()
        );
    }
    Ok(())
}

fn release() -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(release.trim().to_string())
}

fn log_missing_functions() {
    for (function, instead) in OPTIONAL {
        if !scx_utils::compat::ksym_exists(function).unwrap_or(false) {
            log::info!("this kernel has no {function}(): {instead}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASE: &str = "6.18.0-test";

    /// A file system with all that is needed.
    struct Root(PathBuf);

    impl Root {
        fn new(test: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("heddle-{test}-{}", std::process::id()));
            let root = Self(dir);
            root.write(STATE, "disabled\n");
            root.write(BTF, "");
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

        /// The one line that the check fails with.
        fn error(&self, is_root: bool) -> String {
            let error = format!(
                "{:#}",
                check_machine(&self.0, is_root, RELEASE).unwrap_err()
            );
            assert_eq!(error.lines().count(), 1, "{error}");
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
        check_machine(&root.0, true, RELEASE).unwrap();
    }

    #[test]
    fn a_kernel_without_sched_ext_is_named() {
        let root = Root::new("no-scx");
        root.remove(STATE);
        let error = root.error(true);
        assert!(error.contains(RELEASE) && error.contains("CONFIG_SCHED_CLASS_EXT"));
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
    fn missing_btf_is_named() {
        let root = Root::new("btf");
        root.remove(BTF);
        assert!(root.error(true).contains("CONFIG_DEBUG_INFO_BTF"));
    }

    #[test]
    fn the_configuration_may_be_in_boot_or_proc() {
        let root = Root::new("config");
        let boot = format!("/boot/config-{RELEASE}");
        root.remove(&boot);
        assert!(root.error(true).contains(&boot));
        root.write(PROC_CONFIG, "");
        check_machine(&root.0, true, RELEASE).unwrap();
    }
}

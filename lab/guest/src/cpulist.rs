//! The kernel's CPU lists (`0-3,8`), as in sysfs, cpusets and job files.

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Parses a CPU list.
///
/// Ranges may carry the kernel's stride (`0-7:2/4`, Documentation/admin-guide/kernel-parameters.rst)
/// only in input that the kernel itself reads; here they are refused.
///
/// # Errors
/// Names the offending part: not a number, a range that runs backwards, or an empty list.
pub fn parse(list: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.trim()
                .parse::<usize>()
                .with_context(|| format!("CPU list '{}': '{part}' is not N or N-M", list.trim()))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            bail!("CPU list '{}': '{part}' runs backwards", list.trim());
        }
        if last >= CpuSet::count() {
            bail!(
                "CPU list '{}': CPU {last} is beyond {}, the largest an affinity mask holds",
                list.trim(),
                CpuSet::count() - 1
            );
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// Makes the affinity mask of a list of CPUs.
///
/// # Errors
/// A CPU is beyond what the mask holds.
pub fn mask(cpus: &[usize]) -> nix::Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu)?;
    }
    Ok(set)
}

/// Returns the CPUs that the calling thread may use.
///
/// # Errors
/// None in practice.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).collect())
}

/// Restricts the calling thread to some CPUs.
///
/// # Errors
/// Names the CPUs if none of them is online.
pub fn pin(cpus: &[usize]) -> Result<()> {
    let set = mask(cpus)?;
    sched_setaffinity(Pid::from_raw(0), &set)
        .with_context(|| format!("cannot run on CPUs {cpus:?}: is any of them online?"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reads_what_sysfs_writes() {
        assert_eq!(parse("0-3,8\n").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse("5").unwrap(), [5]);
        assert_eq!(parse("2,0-1,1").unwrap(), [0, 1, 2]);
    }

    #[test]
    fn names_the_offender() {
        for (list, part) in
            [("0-x", "0-x"), ("", "''"), ("3-1", "3-1"), ("1,,2", "''"), ("-1", "-1"), ("0-99999", "99999")]
        {
            let error = format!("{:#}", parse(list).unwrap_err());
            assert!(error.contains(part), "{list}: {error}");
        }
    }
}

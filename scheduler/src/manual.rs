// SPDX-License-Identifier: GPL-2.0-only

//! The manual page and shell completions, generated from the options.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

use crate::options::Options;
use crate::stats::Counters;

/// Write the completions of `shell`.
///
/// # Errors
/// `out` cannot be written.
pub fn completions(shell: Shell, out: &mut impl Write) -> io::Result<()> {
    let mut command = Options::command();
    let name = command.get_name().to_string();
    // clap_complete panics where it cannot write: into memory, it always can.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    out.write_all(&text)
}

/// Write scx_heddle(8).
///
/// # Errors
/// `out` cannot be written.
pub fn page(out: &mut impl Write) -> io::Result<()> {
    let command = Options::command();
    let version = command.get_version().unwrap_or_default().to_string();
    let man = Man::new(command)
        .section("8")
        .manual("System administration")
        .source(format!("Heddle {version}"));
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    counters().to_writer(out)?;
    surroundings().to_writer(out)
}

fn counters() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COUNTERS"]);
    roff.text([roman(
        "Printed by --stats and --monitor, served on the socket and, as heddle_NAME_total with the LLC as a label, by --metrics:",
    )]);
    for (name, text) in Counters::ABOUT {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*text)]);
    }
    roff
}

fn surroundings() -> Roff {
    let mut roff = Roff::new();
    let sections: [(&str, &[&str]); 4] = [
        (
            "EXIT STATUS",
            &[
                "0 after SIGINT or SIGTERM; 1, with one line that says why, if the scheduler could not be loaded or the kernel threw it out; 2 for a mistake on the command line. In each case the kernel's own scheduler is back and no task is lost.",
            ],
        ),
        (
            "FILES",
            &[
                "/etc/scx_heddle.toml: what the service takes by --config.",
                "/etc/default/scx_heddle: further options of the service, in SCX_HEDDLE_FLAGS.",
                "/run/scx/root/stats: the socket of scx_stats.",
            ],
        ),
        (
            "ENVIRONMENT",
            &[
                "SCX_TIMEOUT_MS: after how long a wait of a runnable task the kernel throws the scheduler out.",
            ],
        ),
        (
            "SEE ALSO",
            &["heddle(1), sched(7), cgroups(7), capabilities(7)"],
        ),
    ];
    for (title, paragraphs) in sections {
        roff.control("SH", [title]);
        for paragraph in paragraphs {
            roff.control("PP", []);
            roff.text([roman(*paragraph)]);
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_option_and_counter() {
        let mut page = Vec::new();
        super::page(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace(r"\-", "-");
        for option in Options::command()
            .get_arguments()
            .filter_map(|arg| arg.get_long())
        {
            assert!(page.contains(&format!("--{option}")), "{option}");
        }
        for (name, _) in Counters::ABOUT {
            assert!(page.contains(name), "{name}");
        }
    }

    #[test]
    fn options_are_grouped_by_mechanism() {
        for arg in Options::command().get_arguments() {
            let id = arg.get_id();
            assert!(arg.get_help_heading().is_some(), "--{id} has no heading");
        }
    }
}

// SPDX-License-Identifier: GPL-2.0-only

//! The configuration file: TOML whose keys are the long names of the options.
//! A key becomes the option that it names, so that both mean the same.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::{Table, Value};

/// Options that make the program do something else than schedule.
const NOT_IN_A_FILE: [&str; 9] = [
    "check",
    "completions",
    "config",
    "help",
    "help-stats",
    "man",
    "monitor",
    "topology",
    "version",
];

/// The file's settings as arguments of `command`, but for those that `given`
/// has from the command line.
///
/// # Errors
/// One line with the file, the key and what is wrong.
pub fn arguments(path: &Path, command: &Command, given: &ArgMatches) -> Result<Vec<OsString>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let settings = parse(&text, command).with_context(|| path.display().to_string())?;
    let from_file = |id: &str| given.value_source(id) != Some(ValueSource::CommandLine);
    Ok(settings
        .into_iter()
        .filter(|(id, _)| from_file(id))
        .flat_map(|(_, arguments)| arguments)
        .map(OsString::from)
        .collect())
}

/// Each key's argument id and what it stands for on the command line.
fn parse(text: &str, command: &Command) -> Result<Vec<(String, Vec<String>)>> {
    let table: Table = text.parse().map_err(|e| syntax(text, &e))?;
    let setting = |(key, value): (&String, &Value)| {
        let known = command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(key));
        let Some(arg) = known.filter(|_| !NOT_IN_A_FILE.contains(&key.as_str())) else {
            bail!("{key:?}: no such key: the keys are the options of --help that schedule");
        };
        let arguments = spell(arg, key, value)?;
        check(command, &arguments).with_context(|| key.clone())?;
        Ok((arg.get_id().to_string(), arguments))
    };
    table.iter().map(setting).collect()
}

fn syntax(text: &str, error: &toml::de::Error) -> anyhow::Error {
    let at = error.span().map_or(0, |span| span.start);
    let line = 1 + text[..at].matches('\n').count();
    anyhow::anyhow!("line {line}: {}", error.message().replace('\n', " "))
}

/// A setting as it is written on the command line.
fn spell(arg: &Arg, key: &str, value: &Value) -> Result<Vec<String>> {
    let option = format!("--{key}");
    Ok(match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(on)) => vec![option; usize::from(*on)],
        (ArgAction::SetTrue, _) => bail!("{key}: is true or false"),
        (ArgAction::Count, Value::Integer(times @ 0..=255)) => vec![option; *times as usize],
        (ArgAction::Count, _) => bail!("{key}: is a number of 0 to 255"),
        (_, Value::String(text)) => vec![format!("{option}={text}")],
        (_, Value::Integer(number)) => vec![format!("{option}={number}")],
        (_, Value::Float(number)) => vec![format!("{option}={number}")],
        _ => bail!("{key}: is a number or a string"),
    })
}

/// Have the option's own parser judge the value.
fn check(command: &Command, arguments: &[String]) -> Result<()> {
    let name = [command.get_name().to_string()];
    let Err(error) = command
        .clone()
        .try_get_matches_from(name.iter().chain(arguments))
    else {
        return Ok(());
    };
    let said = error.to_string();
    let first = said.split("\n\n").next().unwrap_or(&said);
    let words: Vec<&str> = first
        .trim_start_matches("error: ")
        .split_whitespace()
        .collect();
    bail!("{}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use clap::{CommandFactory, Parser};
    use proptest::prelude::*;

    fn settings(text: &str) -> Vec<String> {
        let settings = parse(text, &Options::command()).unwrap();
        settings
            .into_iter()
            .flat_map(|(_, arguments)| arguments)
            .collect()
    }

    fn error(text: &str) -> String {
        let error = format!("{:#}", parse(text, &Options::command()).unwrap_err());
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }

    #[test]
    fn a_key_is_the_option_of_its_name() {
        assert_eq!(
            settings("slice-us = 500\nwakeq = \"off\""),
            ["--slice-us=500", "--wakeq=off"]
        );
        assert_eq!(
            settings("partial = true\nverbose = 2"),
            ["--partial", "--verbose", "--verbose"]
        );
        assert!(settings("partial = false").is_empty());
        assert_eq!(
            settings("stats = 0.5\njson = true\nsis-node = \"off\""),
            ["--json", "--sis-node=off", "--stats=0.5"]
        );
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error("slice_us = 500").contains("\"slice_us\": no such key"));
        assert!(error("monitor = 1").contains("\"monitor\": no such key"));
        assert!(error("\n\nslice-us = = 3").contains("line 3:"));
        let error = error("slice-us = 5");
        assert!(
            error.starts_with("slice-us: ") && error.contains("100..=1000000"),
            "{error}"
        );
    }

    #[test]
    fn values_have_the_options_types() {
        for text in [
            "partial = 1",
            "verbose = -1",
            "slice-us = true",
            "asym = [1]",
            "asym = {}",
            "wakeq = \"x\"",
        ] {
            error(text);
        }
    }

    #[test]
    fn the_command_line_wins() {
        let file = std::env::temp_dir().join(format!("heddle-config-{}.toml", std::process::id()));
        fs::write(&file, "slice-us = 500\nwakeq = \"off\"\nverbose = 2\n").unwrap();
        let args = ["scx_heddle", "--slice-us", "700", "-v"].map(OsString::from);
        let given = Options::command().get_matches_from(&args);
        let more = arguments(&file, &Options::command(), &given).unwrap();
        fs::remove_file(file).unwrap();
        let options = Options::parse_from(args.into_iter().chain(more));
        assert_eq!((options.slice_us(), options.verbose), (700, 1));
        assert_eq!(options.wakeq, crate::options::WakeQueue::Off);
    }

    proptest! {
        // Each case builds the whole command line anew.
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a file holds: settings, or one line.
        #[test]
        fn any_text_is_read_or_refused_in_one_line(text in "(?s).{0,200}") {
            if let Err(error) = parse(&text, &Options::command()) {
                prop_assert_eq!(format!("{error:#}").lines().count(), 1);
            }
        }

        /// The same with keys and values that are nearly right.
        #[test]
        fn any_setting_is_read_or_refused_in_one_line(
            key in "(slice-us|wakeq|asym|partial|verbose|stats|metrics|sis-node|cgroup|[a-z-]{1,8})",
            value in r#"("[^"\\\p{Cc}]{0,12}"|-?[0-9]{1,20}|true|false|[0-9]\.[0-9]|nan|\[\]|\{\})"#,
        ) {
            match parse(&format!("{key} = {value}"), &Options::command()) {
                Err(error) => prop_assert_eq!(format!("{error:#}").lines().count(), 1),
                Ok(settings) => {
                    let arguments = settings.into_iter().flat_map(|(_, arguments)| arguments);
                    let all = std::iter::once("scx_heddle".to_string()).chain(arguments);
                    prop_assert!(Options::try_parse_from(all).is_ok());
                }
            }
        }
    }
}

//! Commands: the programs accept each that a page shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use clap::error::ErrorKind;

use crate::page::pages;
use crate::{none, root};

/// Placeholders of arguments, each with a valid value.
const PLACEHOLDERS: [(&str, &str); 1] = [("SESSION", "10.1.0.5:40000>10.2.0.7:443")];

#[test]
fn every_command_is_understood() {
    let (mut checked, mut faults) = (0, Vec::new());
    for (name, page) in pages() {
        for (line, words) in page.commands() {
            let Some(fault) = refused(&words) else {
                continue;
            };
            checked += 1;
            if let Err(fault) = fault {
                faults.push(format!("{name}:{line}: {}\n{fault}", words.join(" ")));
            }
        }
        for (line, span) in &page.spans {
            if let Some(fault) = unknown(span) {
                faults.push(format!("{name}:{line}: `{span}`: {fault}"));
            }
        }
    }
    none(&faults);
    assert!(checked > 40, "{checked}");
}

/// Returns an error if one of our programs refuses a command; none if the program is not ours.
fn refused(words: &[String]) -> Option<Result<(), String>> {
    let program = Path::new(words.first()?).file_name()?.to_str()?;
    match program {
        "dyscoctl" => {
            let words = words.iter().map(|word| filled(word));
            let parsed = dysco_ctl::command().try_get_matches_from(words);
            Some(match parsed {
                Err(error) if !is_help(error.kind()) => Err(error.to_string()),
                _ => Ok(()),
            })
        }
        "dyscod" => Some(dyscod(&words[1..])),
        "cargo" if words.get(1)? == "xtask" => Some(xtask(&words[2..])),
        _ => None,
    }
}

fn is_help(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

/// Returns a word with a value in place of a placeholder.
fn filled(word: &str) -> &str {
    let found = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
    found.map_or(word, |(_, value)| value)
}

/// Returns the error of code within a sentence. It may omit arguments, but names only known
/// commands and options. `a|b` and `COMMAND` stand for several.
fn unknown(span: &str) -> Option<String> {
    let words = shlex::split(span).filter(|words| words.len() > 1)?;
    if span.contains('|') || words[1].chars().all(char::is_uppercase) {
        return None;
    }
    if words[0] != "dyscoctl" {
        let xtask = words[0] == "cargo" && words[1] == "xtask" && words.len() > 2;
        return xtask.then(|| self::xtask(&words[2..]).err()).flatten();
    }
    let error = dysco_ctl::command().try_get_matches_from(words);
    let error = error.err()?;
    let unknown = matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
    );
    unknown.then(|| error.to_string())
}

/// Returns an error unless the help of `dyscod` names each option; `dyscod` has only options.
fn dyscod(words: &[String]) -> Result<(), String> {
    let help = Command::new(env!("CARGO_BIN_EXE_dyscod"))
        .arg("--help")
        .output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    let known: BTreeSet<_> = help
        .split([' ', ',', '\n'])
        .filter(|word| word.starts_with('-'))
        .collect();
    let mut options = words.iter().filter(|word| word.starts_with('-'));
    match options.find(|word| !known.contains(word.split('=').next().unwrap())) {
        Some(word) => Err(format!("dyscod has no option {word}")),
        None => Ok(()),
    }
}

/// Returns an error unless the commands of `cargo xtask` and its demo are variants of their enums.
fn xtask(words: &[String]) -> Result<(), String> {
    let commands = variants("xtask/src/main.rs", "enum Command");
    let is_word = |word: &&String| !word.starts_with('-');
    let command = words.first().ok_or("no command")?;
    if !commands.contains(command) {
        return Err(format!("cargo xtask has no command {command}"));
    }
    let scenes = variants("xtask/src/demo/mod.rs", "enum Scene");
    match words.get(1).filter(is_word) {
        Some(scene) if command == "demo" && !scenes.contains(scene) => {
            Err(format!("the demo has no scene {scene}"))
        }
        _ => Ok(()),
    }
}

/// Returns the names that clap gives the variants of an enum.
fn variants(file: &str, name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let (_, body) = text.split_once(&format!("{name} {{\n")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let names = body.lines().filter_map(|line| line.trim().split_once('('));
    let names = names.map(|(name, _)| name.to_lowercase());
    let names: BTreeSet<_> = names.filter(|name| !name.contains(' ')).collect();
    assert!(!names.is_empty(), "{file} has no {name}");
    names
}

#[test]
fn a_command_that_is_wrong_is_found() {
    let words = |line: &str| shlex::split(line).unwrap();
    let is_refused = |line| refused(&words(line)).unwrap().is_err();
    assert!(!is_refused("dyscoctl drain haproxy --timeout 10m"));
    assert!(!is_refused("dyscoctl delta SESSION --to-server 20"));
    assert!(is_refused("dyscoctl drain haproxy --time 10m"));
    assert!(is_refused("dyscoctl drain"));
    assert!(is_refused("dyscoctl evacuate haproxy"));
    assert!(!is_refused("dyscod --check --config f"));
    assert!(is_refused("dyscod --verify"));
    assert!(!is_refused("cargo xtask demo chain --json"));
    assert!(is_refused("cargo xtask demonstrate"));
    assert!(is_refused("cargo xtask demo everything"));
    assert!(unknown("dyscoctl state move").is_none());
    assert!(unknown("dyscoctl state carry").is_some());
    assert!(unknown("dyscoctl state show|export").is_none());
    assert!(unknown("dyscoctl COMMAND --help").is_none());
}

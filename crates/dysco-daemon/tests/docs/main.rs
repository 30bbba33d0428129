//! Test of the documents: each link has a target, each page is in the book, and the programs accept
//! each command that a page shows.
//!
//! A command is a line of a fenced block. A line may begin with a prompt (`$ `, `# `, `host# `),
//! and end in a comment. A shell's pipes and redirections end a command.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod links;
mod page;
mod programs;
mod shell;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use dysco_common::counter::Counter;
use page::{Block, Page, pages};

/// Maximum number of words of the README.
const README_WORDS: usize = 900;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_counter_of_packets_is_explained() {
    let page = Page::read(&root().join("docs/counters.md"));
    let explained: BTreeSet<_> = page.spans.into_iter().map(|(_, span)| span).collect();
    let names = Counter::ALL.iter().map(|counter| counter.name());
    let missing: Vec<_> = names.filter(|name| !explained.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/counters.md lacks {missing:?}");
}

/// Each example in TOML or JSON can be parsed.
#[test]
fn every_example_can_be_parsed() {
    let mut faults = Vec::new();
    for (name, page) in pages() {
        for Block {
            line,
            language,
            text,
        } in &page.blocks
        {
            let fault = match language.as_str() {
                "toml" => toml::from_str::<toml::Table>(text)
                    .map(drop)
                    .err()
                    .map(|e| e.to_string()),
                "json" => serde_json::from_str::<serde_json::Value>(text)
                    .map(drop)
                    .err()
                    .map(|e| e.to_string()),
                _ => None,
            };
            faults.extend(fault.map(|fault| format!("{name}:{line}: {fault}")));
        }
    }
    none(&faults);
}

#[test]
fn the_readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let words = text.split_whitespace().count();
    assert!(words < README_WORDS, "{words} words");
}

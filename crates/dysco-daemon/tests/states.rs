//! Test of the states of an entry: the table of ARCHITECTURE.md is the one that user space takes
//! its answers from, and user space reads an entry's state only by its view.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::fs;
use std::path::{Path, PathBuf};

use dysco_common::view::Case;

/// Crates that read entries in user space.
const USER_SPACE: [&str; 4] = ["dysco-agent", "dysco-daemon", "dysco-ctl", "dysco-proxy"];
/// File that writes the state's word.
const WRITES: &str = "dysco-agent/src/memory.rs";
/// Header of the table in the document.
const HEADER: &str = "| state | if |";

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// Returns the rows of the document's table.
fn documented() -> Vec<String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.lines().skip_while(|line| !line.starts_with(HEADER));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(str::to_owned).collect()
}

fn row(case: Case) -> String {
    let meaning = case.meaning();
    let cells = meaning.cells().join(" | ");
    format!("| `{:?}` | {cells} |", meaning.state)
}

#[test]
fn the_documented_table_is_that_of_the_code() {
    let rows: Vec<_> = Case::ALL.iter().map(|case| row(*case)).collect();
    let documented = documented();
    assert!(
        documented == rows,
        "ARCHITECTURE.md has to have these rows:\n{}",
        rows.join("\n")
    );
}

/// Returns the files of a folder and the folders in it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    files.collect()
}

/// Returns true if a line reads a state's word. Tests write it, to make entries.
fn reads_state(line: &str) -> bool {
    let compares = ["==", "!=", "contains(", "match "];
    // Other types have states of their own, such as `NeighbourState`.
    let mut named = line.match_indices("State::");
    let ours = named.any(|(at, _)| !line[..at].ends_with(char::is_alphanumeric));
    let raw = line.contains(".state") && ours;
    line.contains("State::from_word")
        || raw && compares.iter().any(|word| line.contains(word))
        || line.contains("contains(&s.state)")
}

/// Returns true if a line reads the word that tells the state of a path's chain. Tests write it.
fn reads_chain(line: &str) -> bool {
    let after = line.split("two.chained").skip(1);
    let reads = ["==", "!=", "<", ">", "{", "&"];
    let mut after = after.map(str::trim_start);
    after.any(|rest| reads.iter().any(|read| rest.starts_with(read)))
}

#[test]
fn user_space_reads_a_state_only_by_its_view() {
    let crates = root().join("crates");
    let (mut checked, mut faults) = (0, Vec::new());
    for name in USER_SPACE {
        for path in sources(&crates.join(name).join("src")) {
            if path == crates.join(WRITES) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            checked += 1;
            for (at, line) in text.lines().enumerate() {
                if reads_state(line) || reads_chain(line) {
                    faults.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
                }
            }
        }
    }
    assert!(
        faults.is_empty(),
        "use Session::view() or chain_state():\n{}",
        faults.join("\n")
    );
    assert!(checked > 100, "{checked}");
}

#[test]
fn reading_a_word_is_distinguished_from_writing_it() {
    assert!(reads_state("if s.state == State::Tracked as u32 {"));
    assert!(reads_state("match State::from_word(s.state) {"));
    assert!(reads_state("        unused.contains(&s.state)"));
    assert!(!reads_state("s.state = State::Tracked as u32;"));
    assert!(!reads_state("state: State::Joining as u32,"));
    assert!(reads_chain(
        "    let opens = s.two.chained == 1 && s.is_current();"
    ));
    assert!(reads_chain("match s.two.chained {"));
    assert!(!reads_chain(
        "(s.state, s.two.chained) = (state as u32, chained);"
    ));
    assert!(!reads_chain("s.two.chained = 1;"));
    assert!(!reads_state("[NeighbourState::Stale].contains(&now.state)"));
}

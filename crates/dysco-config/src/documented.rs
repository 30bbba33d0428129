//! Tests that docs/configuration.md has every table and key of the file, with its default.

use std::collections::BTreeMap;
use std::path::Path;

use super::{check, schema, tests};

/// Tables that may occur several times.
const LISTS: [&str; 2] = ["track", "listener"];

/// Returns the document's rows by heading and key.
fn documented() -> BTreeMap<String, BTreeMap<String, String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut tables: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut table = String::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            table = heading.trim_matches('`').to_owned();
        }
        let key = line.strip_prefix("| `").and_then(|row| row.split_once('`'));
        if let Some((key, row)) = key {
            let rows = tables.entry(table.clone()).or_default();
            rows.insert(key.to_owned(), row.to_owned());
        }
    }
    tables
}

/// Returns the keys that are allowed at a place, taken from the error about an unknown key.
fn keys(text: &str) -> Vec<String> {
    let error = schema::parse(Path::new("f"), text).unwrap_err().to_string();
    let (_, expected) = error.split_once("expected ").expect(&error);
    let words = expected.split('`').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

#[test]
fn every_key_is_documented_and_no_other() {
    let documented = documented();
    let tables = keys("nothing_like_it = 1");
    assert!(tables.len() > 10, "{tables:?}");
    for table in tables {
        let heading = match LISTS.contains(&table.as_str()) {
            true => format!("[[{table}]]"),
            false => format!("[{table}]"),
        };
        let rows = documented.get(&heading);
        let rows = rows.unwrap_or_else(|| panic!("docs/configuration.md lacks {heading}"));
        let mut keys = keys(&format!("{heading}\nnothing_like_it = 1"));
        keys.sort();
        let there: Vec<_> = rows.keys().cloned().collect();
        assert_eq!(there, keys, "{heading} of docs/configuration.md");
    }
}

/// Compares with the defaults that `dyscod --check` prints.
#[test]
fn defaults_are_documented() {
    let text = tests::with("");
    let path = Path::new("f");
    let file = schema::parse(path, &text).unwrap();
    let config = check::check(path, &text, file, &tests::interfaces()).unwrap();
    let printed: toml::Table = config.to_toml().unwrap().parse().unwrap();
    let documented = documented();
    let mut compared = 0;
    for (table, keys) in printed.iter().filter(|(table, _)| *table != "host") {
        for (key, default) in keys.as_table().into_iter().flatten() {
            // The values of these keys derive from the directory in the text.
            if matches!(key.as_str(), "ca" | "cert" | "key" | "revoked") {
                continue;
            }
            let row = &documented[&format!("[{table}]")][key];
            let default = format!("`{default}`");
            assert!(row.contains(&default), "{table}.{key} is {default}: {row}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

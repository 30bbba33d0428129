//! Tables and numbers for people.

use std::net::IpAddr;

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{HumanBytes, HumanCount};
use serde_json::Value;

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// An empty table with these headings.
pub fn table<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(headings);
    table
}

/// A table of names and values.
pub fn list<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    table
}

/// A heading over a table, or nothing over an empty one.
pub fn section(heading: &str, table: &Table) -> String {
    match table.row_count() {
        0 => String::new(),
        _ => format!("\n{heading}\n{}\n", table.trim_fmt()),
    }
}

/// Another word for an outcome: what could be done is not to be taken for what was.
pub fn rename_outcomes(reports: &mut Value, done: &str, could: &str) {
    for report in reports.as_array_mut().into_iter().flatten() {
        if report["outcome"].as_str() == Some(done) {
            report["outcome"] = Value::from(could);
        }
    }
}

/// Bytes, such as 1.50 GiB.
pub fn bytes(n: u64) -> String {
    HumanBytes(n).to_string()
}

/// A count, such as 1,000.
pub fn number(n: u64) -> String {
    HumanCount(n).to_string()
}

/// A time, such as 1d 2h, 3m 4s or 0.5s.
pub fn seconds(s: f64) -> String {
    let whole = s.max(0.0) as u64;
    let (days, hours) = (whole / 86400, whole / 3600 % 24);
    let (minutes, rest) = (whole / 60 % 60, whole % 60);
    match whole {
        0..10 => format!("{:.1}s", s.max(0.0)),
        10..60 => format!("{rest}s"),
        60..3600 => format!("{minutes}m {rest}s"),
        3600..86400 => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Microseconds, such as 850 µs or 1.25 ms.
pub fn micros(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        1000..10_000_000 => format!("{:.2} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// A value that may be absent.
pub fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

/// Addresses in one cell.
pub fn addresses(addresses: &[IpAddr]) -> String {
    let words: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    words.join(", ")
}

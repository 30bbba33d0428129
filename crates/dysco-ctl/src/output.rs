//! Tables and numbers for people.

use comfy_table::{ColumnConstraint, ContentArrangement, Row, Table, Width, presets};
use dysco_explain::{Cause, tame};
use indicatif::{HumanBytes, HumanCount};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    /// A table.
    Table,
    /// JSON.
    Json,
}

/// Headings of columns with free text, which may take several lines. The cells of all other
/// columns are meant to be copied, and stay whole on a narrow terminal.
const WRAPS: [&str; 4] = ["WHY", "REMOVABLE", "WHAT", "PROGRAMS"];

/// Minimum width of free text. A column of single words is unreadable.
const READABLE: u16 = 40;

/// Returns an empty table with these headings.
pub(crate) fn table<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(headings);
    for (column, heading) in table.column_iter_mut().zip(headings) {
        if !WRAPS.contains(&heading) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// Returns a table of names and values.
pub(crate) fn list<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    table
}

/// Returns the text of a table. No word is broken, and no cell controls the terminal.
pub(crate) fn rendered(table: &Table) -> String {
    let mut table = table.clone();
    for row in table.row_iter_mut() {
        let cells: Vec<String> = row.cell_iter().map(|cell| tame(&cell.content())).collect();
        *row = Row::from(cells);
    }
    let contents = table.column_max_content_widths();
    for (index, content) in contents.into_iter().enumerate() {
        let cells = table.column_cells_with_header_iter(index).flatten();
        let words = cells.map(|cell| longest_word(&cell.content()));
        let longest = words.max().unwrap_or(0);
        let Some(column) = table.column_mut(index) else {
            continue;
        };
        if column.constraint().is_none() {
            let least = longest.max(content.min(READABLE));
            let least = least.saturating_add(column.padding_width());
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    table.trim_fmt()
}

fn longest_word(text: &str) -> u16 {
    let widths = text.split_whitespace().map(width);
    let longest = widths.max().unwrap_or(0);
    longest.try_into().unwrap_or(u16::MAX)
}

/// Returns the number of columns that a text takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// Returns a heading and a table, or nothing if the table is empty.
pub(crate) fn section(heading: &str, table: &Table) -> String {
    match table.row_count() {
        0 => String::new(),
        _ => format!("\n{heading}\n{}\n", rendered(table)),
    }
}

/// Returns all reasons for one cell, in their order.
pub(crate) fn every_reason(reasons: &[Cause]) -> String {
    let reasons: Vec<_> = reasons.iter().map(Cause::to_string).collect();
    reasons.join("; also: ")
}

/// Replaces an outcome by another word, so that a possible change is not mistaken for a completed
/// one.
pub(crate) fn rename_outcomes(reports: &mut Value, done: &str, could: &str) {
    for report in reports.as_array_mut().into_iter().flatten() {
        if report["outcome"].as_str() == Some(done) {
            report["outcome"] = Value::from(could);
        }
    }
}

/// Formats a number of bytes, such as 1.50 GiB.
pub(crate) fn bytes(n: u64) -> String {
    HumanBytes(n).to_string()
}

/// Formats a count, such as 1,000.
pub(crate) fn number(n: u64) -> String {
    HumanCount(n).to_string()
}

/// Formats a time, such as 1d 2h, 3m 4s or 0.5s.
pub(crate) fn seconds(s: f64) -> String {
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

/// Formats microseconds, such as 850 µs or 1.25 ms.
pub(crate) fn micros(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        1000..10_000_000 => format!("{:.2} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// Returns the value, or a dash if it is absent.
pub(crate) fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

/// Returns addresses, or elements of a chain, for one cell.
pub(crate) fn listed<T: ToString>(all: &[T]) -> String {
    let words: Vec<_> = all.iter().map(T::to_string).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: &str = "the middlebox is not proven byte-transparent from now on: neither \
                       direction is spliced endlessly yet; switch splicing on in the proxy";

    #[test]
    fn what_is_copied_stays_whole_on_a_narrow_terminal() {
        let cells = [
            "1bafa4400000013",
            "[fd00:1:2:3::1]:44000",
            "10.0.0.2:80",
            WHY,
        ];
        for width in [1, 40, 80, 120, 400] {
            let mut rows = table(["ID", "LOCAL", "REMOTE", "WHY"]);
            rows.add_row(cells);
            rows.set_width(width);
            let text = rendered(&rows);
            let words: Vec<_> = text.split_whitespace().collect();
            for word in cells.iter().flat_map(|cell| cell.split_whitespace()) {
                assert!(words.contains(&word), "{word} at {width}:\n{text}");
            }
            let line = text.lines().nth(1).unwrap_or_default();
            assert!(cells[..3].iter().all(|cell| line.contains(cell)), "{text}");
            // The text is wrapped only if there is no room.
            assert_eq!(text.lines().count() == 2, width == 400, "{text}");
        }
    }

    #[test]
    fn no_cell_controls_the_terminal_or_adds_a_row() {
        let name = "a\u{1b}[2J\nfake \u{202e}row";
        let mut rows = table(["PROCESS", "WHAT"]);
        rows.add_row([name, name]);
        for text in [rendered(&rows), rendered(&list([("process", name.into())]))] {
            let others = ['\u{1b}', '\u{202e}'];
            assert!(!text.contains(others), "{text:?}");
            assert!(text.contains(r"a\u{1b}[2J\nfake \u{202e}row"), "{text}");
        }
        assert_eq!(rendered(&rows).lines().count(), 2);
    }

    #[test]
    fn values_of_a_list_are_wrapped_between_words() {
        let id = "f".repeat(60);
        let mut rows = list([("id", id.clone()), ("removable", WHY.into())]);
        rows.set_width(30);
        let text = rendered(&rows);
        assert!(
            text.contains(&id) && text.contains("byte-transparent"),
            "{text}"
        );
        assert!(text.lines().count() > 2, "{text}");
    }
}

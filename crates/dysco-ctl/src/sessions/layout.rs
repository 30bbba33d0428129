//! Layout of a listing: the columns that a terminal has room for, and their widths.

use unicode_width::UnicodeWidthChar;

use super::columns::{Column, DROPPED};
use crate::output::width;

/// Number of blanks between two columns.
const GAP: usize = 2;
/// Minimum width of free text in favour of other columns.
const TEXT: usize = 12;
/// Minimum width of a column.
const LEAST: usize = 4;

/// The shown columns and their widths.
#[derive(Debug)]
pub(super) struct Layout {
    /// Indices of the shown columns among all columns.
    shown: Vec<usize>,
    widths: Vec<usize>,
    /// Width of the terminal, if the output is one.
    limit: Option<usize>,
}

impl Layout {
    /// Returns a layout for columns whose cells are as wide as in these first rows. All columns
    /// stay if the user named them (`named`).
    pub(super) fn new(
        columns: &[Column],
        rows: &[Vec<String>],
        limit: Option<usize>,
        named: bool,
    ) -> Layout {
        let widest = |(index, column): (usize, &Column)| {
            let cells = rows.iter().filter_map(|row| row.get(index));
            let cells = cells.map(|cell| width(cell)).max().unwrap_or(0);
            cells.max(width(column.heading()))
        };
        let content: Vec<usize> = columns.iter().enumerate().map(widest).collect();
        let mut shown: Vec<usize> = (0..columns.len()).collect();
        let needs = |index: &usize| match columns[*index].is_text() {
            true => content[*index].min(TEXT),
            false => content[*index],
        };
        let droppable = DROPPED.iter().filter(|_| !named);
        for column in droppable {
            if limit.is_none_or(|limit| total(shown.iter().map(needs)) <= limit) {
                break;
            }
            shown.retain(|index| columns[*index] != *column);
        }
        let mut widths: Vec<usize> = shown.iter().map(|index| content[*index]).collect();
        if let Some(limit) = limit {
            let text: Vec<bool> = shown.iter().map(|i| columns[*i].is_text()).collect();
            narrow(
                &mut widths,
                limit,
                |at| if text[at] { TEXT } else { usize::MAX },
            );
            narrow(&mut widths, limit, |_| LEAST);
        }
        Layout {
            shown,
            widths,
            limit,
        }
    }

    /// Returns a line of cells, one for each column. On a terminal the line is cut if it does not
    /// fit. Elsewhere the column becomes wider from this line on.
    pub(super) fn line(&mut self, cells: &[String]) -> String {
        let mut line = String::new();
        for (at, index) in self.shown.iter().enumerate() {
            let cell = cells.get(*index).cloned().unwrap_or_default();
            let cell = match self.limit {
                Some(_) => cut(&cell, self.widths[at]),
                None => cell,
            };
            let last = at + 1 == self.shown.len();
            let used = width(&cell);
            if !last {
                self.widths[at] = self.widths[at].max(used);
            }
            line.push_str(&cell);
            if !last {
                line.extend(std::iter::repeat_n(' ', self.widths[at] - used + GAP));
            }
        }
        match self.limit {
            Some(limit) => cut(line.trim_end(), limit),
            None => line.trim_end().to_owned(),
        }
    }
}

fn total(widths: impl ExactSizeIterator<Item = usize>) -> usize {
    let gaps = widths.len().saturating_sub(1) * GAP;
    widths.sum::<usize>() + gaps
}

/// Narrows the widest column above its minimum width, until all fit or none is left.
fn narrow(widths: &mut [usize], limit: usize, least: impl Fn(usize) -> usize) {
    while total(widths.iter().copied()) > limit {
        let wide = (0..widths.len()).filter(|at| widths[*at] > least(*at));
        let Some(at) = wide.max_by_key(|at| widths[*at]) else {
            return;
        };
        widths[at] -= 1;
    }
}

/// Returns a text that takes at most this number of columns.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let (mut kept, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used >= most {
            break;
        }
        kept.push(c);
    }
    kept.extend((most > 0).then_some('…'));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::columns::USUAL;

    fn row(why: &str) -> Vec<String> {
        let cells = [
            "1bafa4400000013",
            "10.0.2.1:8080",
            "10.0.1.1:40000",
            "middlebox",
            "tracked",
            "-",
            "-",
            "-",
            "3m 4s",
            "1.50 MiB",
            "20.00 KiB",
            why,
        ];
        cells.map(str::to_owned).to_vec()
    }

    fn long_row() -> Vec<String> {
        let mut row = row(&"why ".repeat(60));
        for end in [1, 2] {
            row[end] = "[fd00:1:2:3:4:5:6:7]:40000".into();
        }
        row[6] = "[fd00:1:2:3:4:5:6:7]:40000 > [fd00:1:2:3:4:5:6:7]:40000".into();
        row
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for named in [false, true] {
            for limit in (0..200).chain([400]) {
                let rows = [row("yes"), row("no: neither direction is spliced")];
                let mut layout = Layout::new(&USUAL, &rows, Some(limit), named);
                for row in rows.iter().chain([&long_row()]) {
                    let line = layout.line(row);
                    assert!(width(&line) <= limit, "{limit} {named}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_whole_addresses() {
        let rows = [row("no: neither direction is spliced endlessly yet")];
        let line = Layout::new(&USUAL, &rows, Some(80), false).line(&rows[0]);
        for kept in [
            "1bafa4400000013",
            "10.0.2.1:8080",
            "10.0.1.1:40000",
            "tracked",
        ] {
            assert!(line.contains(kept), "{kept}: {line}");
        }
        assert!(!line.contains("middlebox"), "{line}");
        assert!(line.contains("no: neither"), "{line}");
        assert!(line.ends_with('…'), "{line}");
        // Columns that the user named stay.
        let named = Layout::new(&USUAL, &rows, Some(80), true).line(&rows[0]);
        assert!(named.contains("midd"), "{named}");
        let wide = Layout::new(&USUAL, &rows, Some(200), false).line(&rows[0]);
        assert!(wide.ends_with("endlessly yet"), "{wide}");
    }

    #[test]
    fn what_is_piped_is_whole_and_columns_grow() {
        let mut layout = Layout::new(&USUAL, &[row("yes")], None, false);
        let first = layout.line(&row("yes"));
        let long = layout.line(&long_row());
        assert!(
            long.contains("[fd00:1:2:3:4:5:6:7]:40000 > [fd00"),
            "{long}"
        );
        assert!(long.ends_with("why") && !long.contains('…'), "{long}");
        let after = layout.line(&row("yes"));
        assert!(width(&after) > width(&first), "{after}");
    }

    /// A character may take two columns, or none.
    #[test]
    fn a_text_is_cut_at_a_column() {
        for (text, most, kept) in [
            ("日本語", 6, "日本語"),
            ("日本語", 5, "日本…"),
            ("日本語", 4, "日…"),
            ("日本語", 1, "…"),
            ("日本語", 0, ""),
            ("abc", 2, "a…"),
            ("e\u{301}a", 2, "e\u{301}a"),
        ] {
            assert_eq!(cut(text, most), kept, "{text} {most}");
            assert!(width(kept) <= most);
        }
        let rows = [vec!["日本".to_owned(), "a".to_owned()]];
        let columns = [Column::Proxy, Column::Label];
        let mut layout = Layout::new(&columns, &rows, None, false);
        let other = ["ab".to_owned(), "b".to_owned()];
        let lines = [layout.line(&rows[0]), layout.line(&other)];
        assert_eq!(width(&lines[0]), width(&lines[1]), "{lines:?}");
    }
}

//! Output of a listing: a table that is printed page by page, or a JSON array.

use std::io::{self, IsTerminal, Write};

use dysco_api::SessionReport;
use ratatui::crossterm::terminal;
use serde::ser::{SerializeSeq, Serializer};

use super::columns::{Column, cell};
use super::layout::Layout;
use crate::exit::CliError;
use crate::pages::{PAGE, Pages};

/// Columns and order of a listing.
#[derive(Debug)]
pub(super) struct Shape {
    /// Columns, in the order of output.
    pub columns: Vec<Column>,
    /// True if the user named the columns.
    pub named: bool,
    /// Column to sort by; true if the greatest value comes first.
    pub sort: Option<(Column, bool)>,
}

/// Returns the size of the terminal, in columns and lines, or `None` if the output is no
/// terminal.
pub(super) fn screen() -> Option<(usize, usize)> {
    let (columns, lines) = match io::stdout().is_terminal() {
        true => terminal::size().ok()?,
        false => return None,
    };
    Some((columns.into(), lines.into()))
}

/// Sorts sessions.
fn sort(sessions: &mut [SessionReport], (column, descending): (Column, bool)) {
    sessions.sort_by(|a, b| match descending {
        true => column.compare(b, a),
        false => column.compare(a, b),
    });
}

/// Returns the next sessions in the requested order: a page, or all of them if they are sorted.
/// Sorting takes memory for each session.
fn next(pages: &mut Option<Pages<'_>>, shape: &Shape) -> Result<Vec<SessionReport>, CliError> {
    let Some(mut left) = pages.take() else {
        return Ok(Vec::new());
    };
    if let Some(by) = shape.sort {
        let mut all = left.rest()?;
        sort(&mut all, by);
        return Ok(all);
    }
    let page = left.page()?.unwrap_or_default();
    *pages = Some(left).filter(|_| !page.is_empty());
    Ok(page)
}

/// Prints a table of at most this number of lines. `width` is that of the terminal.
pub(super) fn table(
    out: &mut impl Write,
    pages: Pages<'_>,
    shape: &Shape,
    width: Option<usize>,
    lines: Option<usize>,
) -> Result<(), CliError> {
    let mut pages = Some(pages);
    let mut page = next(&mut pages, shape)?;
    if page.is_empty() {
        writeln!(out, "no sessions")?;
        return Ok(out.flush()?);
    }
    // One line is the heading, and another may announce omitted sessions.
    let mut room = lines.map_or(usize::MAX, |lines| lines.saturating_sub(2));
    let mut layout = None;
    while !page.is_empty() {
        for chunk in page.chunks(PAGE as usize) {
            let row = |s: &SessionReport| shape.columns.iter().map(|c| cell(s, *c)).collect();
            let rows: Vec<Vec<String>> = chunk.iter().take(room).map(row).collect();
            if layout.is_none() {
                let mut new = Layout::new(&shape.columns, &rows, width, shape.named);
                let headings = shape.columns.iter().map(|c| c.heading().to_owned());
                writeln!(out, "{}", new.line(&headings.collect::<Vec<_>>()))?;
                layout = Some(new);
            }
            for row in &rows {
                if let Some(layout) = layout.as_mut() {
                    writeln!(out, "{}", layout.line(row))?;
                }
            }
            if rows.len() < chunk.len() {
                write!(out, "… and more")?;
                return Ok(out.flush()?);
            }
            room -= rows.len();
        }
        out.flush()?;
        page = next(&mut pages, shape)?;
    }
    Ok(out.flush()?)
}

/// Prints a JSON array.
pub(super) fn json(out: &mut impl Write, pages: Pages<'_>, shape: &Shape) -> Result<(), CliError> {
    let mut pages = Some(pages);
    // The first page is fetched before anything is printed, because an error is no array.
    let mut page = next(&mut pages, shape)?;
    let mut serializer = serde_json::Serializer::pretty(&mut *out);
    let mut array = serializer.serialize_seq(None)?;
    while !page.is_empty() {
        for session in &page {
            array.serialize_element(session)?;
        }
        page = next(&mut pages, shape)?;
    }
    array.end()?;
    writeln!(out)?;
    Ok(out.flush()?)
}

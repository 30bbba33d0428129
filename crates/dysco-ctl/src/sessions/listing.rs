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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use dysco_api::{Filter, Reply, Request, SessionId};

    use super::*;
    use crate::context::Context;
    use crate::output::Format;
    use crate::sessions::columns::USUAL;

    const PAGES: u32 = 5;
    /// The last page has one session.
    const ALL: u32 = (PAGES - 1) * PAGE + 1;

    /// Output that counts its lines.
    struct Out(Arc<AtomicUsize>);

    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
            self.0.fetch_add(lines, Ordering::SeqCst);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Answers all requests of a listing. Returns, for each, the number of sessions before it that
    /// were sent and not printed.
    fn daemon(listener: &UnixListener, printed: &AtomicUsize) -> Vec<usize> {
        let (mut sent, mut waiting) = (0, Vec::new());
        for _ in 0..PAGES {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            waiting.push((sent as usize).saturating_sub(printed.load(Ordering::SeqCst)));
            let Request::Sessions(listing) = serde_json::from_str(&line).unwrap() else {
                panic!("{line}");
            };
            assert_eq!(listing.after.map_or(0, |id| id.slot() + 1), sent);
            let end = ALL.min(sent + listing.limit.unwrap());
            let [local, remote] = [1, 2].map(|last| ([10, 0, 0, last], 80).into());
            for slot in sent..end {
                let one = SessionReport::tracked(SessionId::new(slot, 1), local, remote);
                let mut reply = serde_json::to_vec(&Reply::Session(Box::new(one))).unwrap();
                reply.push(b'\n');
                stream.write_all(&reply).unwrap();
            }
            let done = serde_json::to_string(&Reply::Done { summary: None }).unwrap();
            writeln!(stream, "{done}").unwrap();
            sent = end;
        }
        waiting
    }

    /// Returns the most sessions that a listing held when it asked for more.
    fn held(format: Format, sort: Option<(Column, bool)>) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dyscod.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let printed = Arc::new(AtomicUsize::new(0));
        let mut out = Out(Arc::clone(&printed));
        let context = Context::new(Some(socket), format);
        let pages = Pages::new(&context, Filter::default(), true);
        let shape = Shape {
            columns: USUAL.to_vec(),
            named: false,
            sort,
        };
        std::thread::scope(|scope| {
            let daemon = scope.spawn(|| daemon(&listener, &printed));
            match format {
                Format::Json => json(&mut out, pages, &shape).unwrap(),
                Format::Table => table(&mut out, pages, &shape, None, None).unwrap(),
            }
            assert!(printed.load(Ordering::SeqCst) >= ALL as usize);
            daemon.join().unwrap().into_iter().max().unwrap_or(0)
        })
    }

    #[test]
    fn a_page_is_printed_before_the_next_is_asked_for() {
        assert_eq!(held(Format::Table, None), 0);
        assert_eq!(held(Format::Json, None), 0);
        // An order needs all of them.
        let sorted = held(Format::Table, Some((Column::Age, false)));
        assert_eq!(sorted, ((PAGES - 1) * PAGE) as usize);
    }
}

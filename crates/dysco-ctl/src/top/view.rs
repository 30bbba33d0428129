//! The screen of `dyscoctl top`.

use dysco_api::{MonitorEvent, StatusReport};
use dysco_explain::{tame, tame_lines};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::app::{App, Goodput, Mode, Order, Row};
use crate::monitor;
use crate::output::{bytes, number, or_dash, width};
use crate::sessions::{Column, cell, cut};

const HELP: &str = "\
up, down, j, k          select a session
PgUp, PgDn, Home, End   move further
/                       filter: the words of 'dyscoctl sessions --filter'
Esc                     list all again
s                       sort by the next: goodput, age, in, out, remote, state, proxy
r                       turn the order round
d                       remove this host's middlebox from the selected session
D                       remove it from all that match the filter
q, Ctrl-C               leave

IN/s and OUT/s are the bytes that the local end received and sent for the
first time, in a second since the listing before. Any key closes this help.";

/// Number of lines of the events, with their border.
const EVENTS: u16 = 7;

/// Columns of the list. A narrow terminal omits the last ones.
const COLUMNS: [(&str, Cells); 10] = [
    ("ID", Cells::Of(Column::Id)),
    ("LOCAL", Cells::Of(Column::Local)),
    ("REMOTE", Cells::Of(Column::Remote)),
    ("IN/s", Cells::Received),
    ("OUT/s", Cells::Sent),
    ("STATE", Cells::Of(Column::State)),
    ("MODE", Cells::Of(Column::Mode)),
    ("PROXY", Cells::Of(Column::Proxy)),
    ("AGE", Cells::Of(Column::Age)),
    ("PATH", Cells::Of(Column::Path)),
];

/// Contents of a column.
#[derive(Clone, Copy)]
enum Cells {
    Of(Column),
    Received,
    Sent,
}

/// Draws the screen.
pub(super) fn draw(app: &App, frame: &mut Frame<'_>) {
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(EVENTS),
        Constraint::Length(1),
    ]);
    let [head, list, events, foot] = areas.areas(frame.area());
    frame.render_widget(Text::from(heading(app)), head);
    frame.render_widget(Text::from(table(app, list)), list);
    draw_events(app, frame, events);
    frame.render_widget(footer(app), foot);
    match &app.mode {
        Mode::Help => popup(frame, "Help", HELP),
        Mode::Confirm(question, _) => {
            popup(
                frame,
                "Remove",
                &format!("{question}\n\ny: remove   any other key: do not"),
            );
        }
        Mode::List | Mode::Filter(..) => {}
    }
}

fn heading(app: &App) -> Vec<Line<'static>> {
    let host = match &app.status {
        Some(status) => host(status, app.goodput),
        None => "waiting for dyscod".to_owned(),
    };
    let filter = match app.filter.is_empty() {
        true => "all".to_owned(),
        false => app.filter.to_string(),
    };
    let order = match app.order.0 {
        Order::Goodput => "goodput".to_owned(),
        Order::By(column) => column.heading().to_lowercase(),
    };
    let direction = if app.order.1 { "greatest" } else { "least" };
    let listed = number(app.rows.len() as u64);
    let line = format!("listed: {listed} of {filter}; sorted by {order}, {direction} first");
    vec![Line::from(host).bold(), Line::from(line)]
}

fn host(status: &StatusReport, goodput: Goodput) -> String {
    let sessions = &status.sessions;
    format!(
        "{}: {} sessions, {} changing, {} without proxy; in {}, out {}",
        status.host,
        number(sessions.live),
        number(sessions.changing),
        number(sessions.removed),
        rate(goodput.received),
        rate(goodput.sent),
    )
}

fn rate(bytes_a_second: f64) -> String {
    format!("{}/s", bytes(bytes_a_second as u64))
}

/// Returns the part of the list that fits, around the selected session.
fn table(app: &App, area: Rect) -> Vec<Line<'static>> {
    let room = usize::from(area.height).saturating_sub(1);
    let selected = app.selected();
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(room));
    let shown = app.rows.iter().skip(first).take(room);
    let rows: Vec<Vec<String>> = shown
        .map(|row| COLUMNS.iter().map(|(_, cells)| text(row, *cells)).collect())
        .collect();
    let headings: Vec<String> = COLUMNS
        .iter()
        .map(|(heading, _)| (*heading).into())
        .collect();
    let widths = widths(&headings, &rows, area.width.into());
    let mut lines = vec![line(&headings, &widths).reversed()];
    for (at, row) in rows.iter().enumerate() {
        let line = line(row, &widths);
        let is_selected = selected == Some(first + at);
        lines.push(if is_selected { line.reversed() } else { line });
    }
    lines
}

fn text(row: &Row, cells: Cells) -> String {
    match cells {
        Cells::Of(column) => cell(&row.session, column),
        Cells::Received => or_dash(row.goodput.map(|g| rate(g.received))),
        Cells::Sent => or_dash(row.goodput.map(|g| rate(g.sent))),
    }
}

/// Returns the widths of the columns that fit. The first column is always shown.
fn widths(headings: &[String], rows: &[Vec<String>], room: usize) -> Vec<usize> {
    let mut left = room;
    let mut widths = Vec::new();
    for (at, heading) in headings.iter().enumerate() {
        let cells = rows.iter().filter_map(|row| row.get(at)).chain([heading]);
        let widest = cells.map(|cell| width(cell)).max().unwrap_or(0);
        if widest > left && at > 0 {
            break;
        }
        widths.push(widest);
        left = left.saturating_sub(widest + 2);
    }
    widths
}

fn line(cells: &[String], widths: &[usize]) -> Line<'static> {
    let padded = cells.iter().zip(widths).map(|(cell, wide)| {
        let blanks = wide.saturating_sub(width(cell)) + 2;
        format!("{cell}{:blanks$}", "")
    });
    Line::from(padded.collect::<String>().trim_end().to_owned())
}

fn draw_events(app: &App, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::bordered().title("Changes");
    let room = usize::from(block.inner(area).height);
    // The list contains opened sessions too, which are no changes.
    let reported = app
        .events
        .iter()
        .rev()
        .filter(|event| event.kind != "opened");
    let mut lines: Vec<_> = reported.take(room).map(event_line).collect();
    lines.reverse();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn event_line(event: &MonitorEvent) -> Line<'static> {
    Line::from(monitor::line(event))
}

fn footer(app: &App) -> Line<'static> {
    match (&app.mode, &app.note) {
        (Mode::Filter(text, None), _) => Line::from(format!("filter: {text}_")).bold(),
        (Mode::Filter(text, Some(wrong)), _) => {
            Line::from(format!("filter: {text}_ ({wrong})")).bold()
        }
        (_, Some(note)) => Line::from(tame(note)).bold(),
        _ => Line::from("?: help  /: filter  s: sort  r: reverse  d: remove  q: quit"),
    }
}

/// Draws a text in the middle of the screen.
fn popup(frame: &mut Frame<'_>, title: &str, text: &str) {
    let text = tame_lines(text);
    let area = frame.area();
    let longest = text.lines().map(width).max().unwrap_or(0) as u16;
    let width = longest.saturating_add(4).min(area.width);
    let inner = usize::from(width.saturating_sub(2)).max(1);
    let wrapped = text.lines().map(|line| lines_of(line, inner));
    // Words are not broken, which may take an additional line.
    let height = (wrapped.sum::<usize>() as u16)
        .saturating_add(3)
        .min(area.height);
    let middle = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered().title(cut(title, inner));
    let text = Paragraph::new(text).wrap(Wrap { trim: false });
    frame.render_widget(Clear, middle);
    frame.render_widget(text.block(block).style(Style::new()), middle);
}

/// Returns the number of lines that a line takes in this width.
fn lines_of(line: &str, inner: usize) -> usize {
    width(line).div_ceil(inner).max(1)
}

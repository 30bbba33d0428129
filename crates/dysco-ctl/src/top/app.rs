//! State of `dyscoctl top`: takes inputs and returns effects; `view` draws it. Independent of
//! terminal, sockets and clocks.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use dysco_api::{Filter, MonitorEvent, SessionId, SessionReport, StatusReport};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::sessions::Column;

/// Maximum number of events that are kept.
const EVENTS: usize = 100;
/// Number of lines that a page key moves.
const PAGE: isize = 20;

/// An input of the program.
#[derive(Debug)]
pub(super) enum Input {
    /// A key was pressed.
    Key(KeyEvent),
    /// The host and the sessions that match, at a time since the start.
    Listed(Duration, Box<StatusReport>, Vec<SessionReport>),
    /// An event occurred.
    Happened(MonitorEvent),
    /// A removal that was requested here has ended with this result.
    Removal(String),
    /// The daemon does not answer.
    Lost(String),
    /// The terminal has another size.
    Resized,
}

/// An action of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Ends the program.
    Quit,
    /// Lists the sessions that match this filter, now and from now on.
    List(Filter),
    /// Removes this host's middlebox from a session.
    Remove(SessionId),
    /// Removes this host's middlebox from all sessions that match.
    RemoveAll(Filter),
}

/// Meaning of the keys.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// The keys act on the list.
    List,
    /// The keys edit a filter; the second text is the error in it.
    Filter(String, Option<String>),
    /// The keys answer a question. The effect follows a yes.
    Confirm(String, Effect),
    /// The keys close the help.
    Help,
}

/// Order of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Goodput of both directions.
    Goodput,
    /// Value of a column of `sessions`.
    By(Column),
}

/// Orders, in the sequence in which the key selects them.
const ORDERS: [Order; 7] = [
    Order::Goodput,
    Order::By(Column::Age),
    Order::By(Column::In),
    Order::By(Column::Out),
    Order::By(Column::Remote),
    Order::By(Column::State),
    Order::By(Column::Proxy),
];

/// Goodput in bytes a second, which two listings determine.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Goodput {
    /// Bytes received a second.
    pub received: f64,
    /// Bytes sent a second.
    pub sent: f64,
}

impl Goodput {
    fn sum(self) -> f64 {
        self.received + self.sent
    }
}

/// A line of the list.
#[derive(Debug)]
pub(super) struct Row {
    /// The session.
    pub session: SessionReport,
    /// Goodput since the previous listing, if that contained the session.
    pub goodput: Option<Goodput>,
}

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct App {
    /// Status of the host, once it has answered.
    pub status: Option<Box<StatusReport>>,
    /// Sessions in the selected order.
    pub rows: Vec<Row>,
    /// Goodput of all sessions.
    pub goodput: Goodput,
    /// Latest events, the newest last.
    pub events: VecDeque<MonitorEvent>,
    /// Filter of the listed sessions.
    pub filter: Filter,
    /// Order of the sessions; true if the greatest value comes first.
    pub order: (Order, bool),
    /// Meaning of the keys.
    pub mode: Mode,
    /// Result of the last removal, or the reason why the daemon does not answer.
    pub note: Option<String>,
    /// True if the daemon does not answer.
    pub lost: bool,
    selected: Option<SessionId>,
    at: Duration,
}

impl App {
    /// Returns the state before the first input.
    pub(super) fn new(filter: Filter) -> App {
        App {
            status: None,
            rows: Vec::new(),
            goodput: Goodput::default(),
            events: VecDeque::new(),
            filter,
            order: (Order::Goodput, true),
            mode: Mode::List,
            note: None,
            lost: false,
            selected: None,
            at: Duration::ZERO,
        }
    }

    /// Processes an input.
    pub(super) fn take(&mut self, input: Input) -> Option<Effect> {
        match input {
            Input::Key(key) => return self.key(key),
            Input::Listed(at, status, sessions) => self.listed(at, status, sessions),
            Input::Happened(event) => {
                self.events.push_back(event);
                while self.events.len() > EVENTS {
                    self.events.pop_front();
                }
            }
            Input::Removal(end) => self.note = Some(end),
            Input::Lost(why) => {
                self.lost = true;
                self.note = Some(why);
            }
            Input::Resized => {}
        }
        None
    }

    /// Returns the line of the selected session.
    pub(super) fn selected(&self) -> Option<usize> {
        let id = self.selected?;
        self.rows.iter().position(|row| row.session.id == id)
    }

    fn listed(&mut self, at: Duration, status: Box<StatusReport>, all: Vec<SessionReport>) {
        if std::mem::take(&mut self.lost) {
            self.note = None;
        }
        let position = self.selected().unwrap_or(0);
        let seconds = at.saturating_sub(self.at).as_secs_f64();
        self.at = at;
        let before: HashMap<SessionId, (u64, u64)> = self
            .rows
            .iter()
            .map(|row| {
                (
                    row.session.id,
                    (row.session.bytes_in, row.session.bytes_out),
                )
            })
            .collect();
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let goodput = |session: &SessionReport| {
            let (received, sent) = before.get(&session.id).filter(|_| seconds > 0.0)?;
            Some(Goodput {
                received: rate(session.bytes_in, *received),
                sent: rate(session.bytes_out, *sent),
            })
        };
        let row = |session| Row {
            goodput: goodput(&session),
            session,
        };
        self.rows = all.into_iter().map(row).collect();
        self.goodput = Goodput::default();
        for goodput in self.rows.iter().filter_map(|row| row.goodput) {
            self.goodput.received += goodput.received;
            self.goodput.sent += goodput.sent;
        }
        self.status = Some(status);
        self.sort();
        // If the selected session has ended, the session in its place is selected.
        if self.selected().is_none() {
            self.select(position);
        }
    }

    fn sort(&mut self) {
        let (order, descending) = self.order;
        self.rows.sort_by(|a, b| {
            let by = compare(order, a, b);
            let by = if descending { by.reverse() } else { by };
            by.then_with(|| a.session.id.cmp(&b.session.id))
        });
    }

    fn select(&mut self, position: usize) {
        let last = self.rows.len().saturating_sub(1);
        let row = self.rows.get(position.min(last));
        self.selected = row.map(|row| row.session.id);
    }

    fn step(&mut self, by: isize) {
        let position = self.selected().unwrap_or(0);
        self.select(position.saturating_add_signed(by));
    }

    fn key(&mut self, key: KeyEvent) -> Option<Effect> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Some(Effect::Quit);
        }
        match &mut self.mode {
            Mode::List => self.list_key(key.code),
            Mode::Help => {
                self.mode = Mode::List;
                None
            }
            Mode::Filter(..) => self.filter_key(key.code),
            // Only this key confirms.
            Mode::Confirm(_, effect) => {
                let effect = effect.clone();
                self.mode = Mode::List;
                let yes = key.code == KeyCode::Char('y');
                self.note = yes.then(|| "asked for the removal".to_owned());
                yes.then_some(effect)
            }
        }
    }

    fn list_key(&mut self, code: KeyCode) -> Option<Effect> {
        match code {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter(self.filter.to_string(), None),
            KeyCode::Char('s') => self.next_order(),
            KeyCode::Char('r') => {
                self.order.1 = !self.order.1;
                self.sort();
            }
            KeyCode::Char('d') => self.ask_about_one(),
            KeyCode::Char('D') => self.ask_about_all(),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-PAGE),
            KeyCode::PageDown => self.step(PAGE),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Esc => {
                self.note = None;
                if !self.filter.is_empty() {
                    return Some(self.list(Filter::default()));
                }
            }
            _ => {}
        }
        None
    }

    fn filter_key(&mut self, code: KeyCode) -> Option<Effect> {
        let Mode::Filter(text, wrong) = &mut self.mode else {
            return None;
        };
        match code {
            KeyCode::Esc => self.mode = Mode::List,
            KeyCode::Char(c) => {
                text.push(c);
                *wrong = None;
            }
            KeyCode::Backspace => {
                text.pop();
                *wrong = None;
            }
            KeyCode::Enter => match text.parse() {
                Ok(filter) => {
                    self.mode = Mode::List;
                    return Some(self.list(filter));
                }
                Err(error) => *wrong = Some(format!("{error}")),
            },
            _ => {}
        }
        None
    }

    fn list(&mut self, filter: Filter) -> Effect {
        self.filter = filter.clone();
        Effect::List(filter)
    }

    fn next_order(&mut self) {
        let at = ORDERS.iter().position(|order| *order == self.order.0);
        let next = at.map_or(0, |at| (at + 1) % ORDERS.len());
        let words = matches!(
            ORDERS[next],
            Order::By(Column::Remote | Column::State | Column::Proxy)
        );
        // For numbers the greatest comes first.
        self.order = (ORDERS[next], !words);
        self.sort();
    }

    fn ask_about_one(&mut self) {
        let Some(row) = self.selected().and_then(|at| self.rows.get(at)) else {
            return;
        };
        let s = &row.session;
        let question = format!(
            "Remove this host's middlebox from the session {} ({} > {})?",
            s.id, s.local, s.remote
        );
        self.mode = Mode::Confirm(question, Effect::Remove(s.id));
    }

    fn ask_about_all(&mut self) {
        let which = match self.filter.is_empty() {
            true => "all sessions".to_owned(),
            false => format!("all sessions that match {}", self.filter),
        };
        let question = format!(
            "Remove this host's middlebox from {which} that it can leave ({} listed)?",
            self.rows.len()
        );
        self.mode = Mode::Confirm(question, Effect::RemoveAll(self.filter.clone()));
    }
}

fn compare(order: Order, a: &Row, b: &Row) -> Ordering {
    let sum = |row: &Row| row.goodput.map_or(0.0, Goodput::sum);
    match order {
        Order::Goodput => sum(a).total_cmp(&sum(b)),
        Order::By(column) => column.compare(&a.session, &b.session),
    }
}

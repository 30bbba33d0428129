//! Tests that send inputs, and examine effects and the screen.

use std::time::Duration;

use dysco_api::{MonitorEvent, Relayer, Role, SessionId, SessionReport, StatusReport};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{App, Effect, Input, Mode};
use super::view;

fn session(id: u64, bytes_in: u64, bytes_out: u64) -> SessionReport {
    let local = ([10, 0, 2, 1], 8080).into();
    let remote = ([10, 0, 1, 1], 40_000 + id as u16).into();
    SessionReport {
        role: Role::Middlebox,
        since_s: 10.0 * id as f64,
        bytes_in,
        bytes_out,
        proxy: Some(Relayer {
            pid: 7,
            name: "haproxy".into(),
            unit: None,
            listener: local,
        }),
        ..SessionReport::tracked(SessionId(id), local, remote)
    }
}

fn listed(at: u64, sessions: Vec<SessionReport>) -> Input {
    let mut status = StatusReport {
        host: "proxy1".into(),
        ..StatusReport::default()
    };
    status.sessions.live = sessions.len() as u64;
    Input::Listed(Duration::from_secs(at), Box::new(status), sessions)
}

fn press(app: &mut App, code: KeyCode) -> Option<Effect> {
    app.take(Input::Key(code.into()))
}

fn write(app: &mut App, text: &str) {
    for c in text.chars() {
        assert_eq!(press(app, KeyCode::Char(c)), None);
    }
}

fn ids(app: &App) -> Vec<u64> {
    app.rows.iter().map(|row| row.session.id.0).collect()
}

/// Returns the screen, line by line.
fn screen(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(app, frame)).unwrap();
    terminal.backend().to_string()
}

/// Returns a state with two sessions, the second of which has the higher goodput since the
/// previous listing.
fn two() -> App {
    let mut app = App::new("".parse().unwrap());
    app.take(listed(1, vec![session(1, 5000, 0), session(2, 100, 100)]));
    app.take(listed(3, vec![session(1, 5000, 0), session(2, 2148, 4196)]));
    app
}

#[test]
fn goodput_is_the_difference_of_two_listings() {
    let mut app = App::new("".parse().unwrap());
    app.take(listed(1, vec![session(1, 5000, 0)]));
    assert_eq!(app.rows[0].goodput, None, "one listing tells of no time");
    let app = two();
    assert_eq!(ids(&app), [2, 1], "the one that carries most is the first");
    let shown = screen(&app, 120, 20);
    assert!(shown.contains("1.00 KiB/s  2.00 KiB/s"), "{shown}");
    assert!(shown.contains("proxy1: 2 sessions"), "{shown}");
    assert!(shown.contains("haproxy/7"), "{shown}");
}

#[test]
fn a_key_sorts_and_the_selected_session_stays_selected() {
    let mut app = two();
    assert_eq!(app.selected(), Some(1), "the first of the first listing");
    press(&mut app, KeyCode::Home);
    assert_eq!(app.rows[app.selected().unwrap()].session.id.0, 2);
    press(&mut app, KeyCode::Char('r'));
    assert_eq!((ids(&app), app.selected()), (vec![1, 2], Some(1)));
    // The order is by age, the oldest first.
    press(&mut app, KeyCode::Char('s'));
    assert_eq!((ids(&app), app.selected()), (vec![2, 1], Some(0)));
    assert!(screen(&app, 80, 20).contains("sorted by age, greatest first"));
    // The session has ended, and the session in its place is selected.
    app.take(listed(4, vec![session(1, 5000, 0)]));
    assert_eq!(app.selected(), Some(0));
    app.take(listed(5, Vec::new()));
    assert_eq!(app.selected(), None);
    assert_eq!(press(&mut app, KeyCode::Char('d')), None);
    assert_eq!(app.mode, Mode::List, "there is nothing to ask about");
}

#[test]
fn a_removal_is_asked_for_after_a_yes_alone() {
    let mut app = two();
    press(&mut app, KeyCode::Home);
    assert_eq!(press(&mut app, KeyCode::Char('d')), None);
    let shown = screen(&app, 120, 20);
    assert!(
        shown.contains("from the session 2 (10.0.2.1:8080"),
        "{shown}"
    );
    // The list is updated meanwhile, and the question still concerns the same session.
    app.take(listed(4, vec![session(1, 9999, 0), session(2, 2148, 4196)]));
    let yes = press(&mut app, KeyCode::Char('y'));
    assert_eq!(yes, Some(Effect::Remove(SessionId(2))));
    for key in [
        KeyCode::Enter,
        KeyCode::Char('n'),
        KeyCode::Esc,
        KeyCode::Char('d'),
    ] {
        press(&mut app, KeyCode::Char('d'));
        assert_eq!(press(&mut app, key), None, "{key:?}");
        assert_eq!(app.mode, Mode::List);
    }
    app.take(Input::Removal("1 refused: it speaks TLS".into()));
    assert!(screen(&app, 80, 20).contains("1 refused: it speaks TLS"));
}

#[test]
fn a_filter_is_written_and_wrong_ones_are_reported() {
    let mut app = two();
    press(&mut app, KeyCode::Char('/'));
    write(&mut app, "port=0");
    assert_eq!(press(&mut app, KeyCode::Enter), None);
    assert!(screen(&app, 80, 20).contains("use 1 to 65535"));
    // Letters belong to the filter, and are no commands.
    (0..6).for_each(|_| drop(press(&mut app, KeyCode::Backspace)));
    write(&mut app, "proxy=q");
    let listing = press(&mut app, KeyCode::Enter);
    let wanted = "proxy=q".parse().unwrap();
    assert_eq!(listing, Some(Effect::List(wanted)));
    // The removal of all sessions uses the same filter.
    press(&mut app, KeyCode::Char('D'));
    let shown = screen(&app, 120, 20);
    assert!(shown.contains("all sessions that match proxy=q"), "{shown}");
    let yes = press(&mut app, KeyCode::Char('y'));
    assert_eq!(yes, Some(Effect::RemoveAll("proxy=q".parse().unwrap())));
    drop(press(&mut app, KeyCode::Esc));
    let all = Some(Effect::List("".parse().unwrap()));
    app.filter = "port=1".parse().unwrap();
    assert_eq!(press(&mut app, KeyCode::Esc), all);
}

#[test]
fn changes_are_shown_as_they_happen_and_openings_are_none() {
    let mut app = two();
    let event = |kind: &str, text: &str| {
        Input::Happened(MonitorEvent {
            at_ms: 1_700_000_000_123,
            kind: kind.into(),
            session: Some(SessionId(0x2a)),
            change_id: None,
            text: text.into(),
        })
    };
    for n in 0..200 {
        app.take(event("removed", &format!("number {n}")));
    }
    app.take(event("opened", "nothing to see"));
    assert_eq!(app.events.len(), 100, "memory has a bound");
    let shown = screen(&app, 80, 20);
    assert!(
        shown.contains("22:13:20.123Z removed 2a: number 199"),
        "{shown}"
    );
    assert!(
        shown.contains("number 195") && !shown.contains("number 194"),
        "{shown}"
    );
    assert!(!shown.contains("nothing to see"), "{shown}");
}

#[test]
fn a_daemon_that_is_silent_is_reported_until_it_answers() {
    let mut app = two();
    app.take(Input::Lost("failed to reach dyscod".into()));
    let shown = screen(&app, 80, 20);
    assert!(shown.contains("failed to reach dyscod"), "{shown}");
    assert!(
        shown.contains("10.0.1.1:40001"),
        "what was known stays: {shown}"
    );
    app.take(listed(9, vec![session(1, 0, 0)]));
    assert!(!screen(&app, 80, 20).contains("failed to reach"));
}

#[test]
fn keys_help_and_leave() {
    let mut app = two();
    press(&mut app, KeyCode::Char('?'));
    assert!(screen(&app, 80, 24).contains("select a session"));
    assert_eq!(
        press(&mut app, KeyCode::Char('q')),
        None,
        "it closes the help"
    );
    assert_eq!(press(&mut app, KeyCode::Char('q')), Some(Effect::Quit));
    press(&mut app, KeyCode::Char('/'));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(app.take(Input::Key(interrupt)), Some(Effect::Quit));
}

#[test]
fn any_size_can_be_drawn_and_a_far_session_is_seen() {
    let mut app = App::new("".parse().unwrap());
    app.take(listed(1, (1..1000).map(|id| session(id, 0, 0)).collect()));
    press(&mut app, KeyCode::End);
    press(&mut app, KeyCode::Char('D'));
    for (width, height) in [(1, 1), (3, 2), (20, 5), (79, 11), (300, 100)] {
        screen(&app, width, height);
    }
    press(&mut app, KeyCode::Esc);
    assert!(
        screen(&app, 80, 24).contains("10.0.1.1:40999"),
        "the last by id"
    );
    press(&mut app, KeyCode::Char('?'));
    screen(&app, 1, 1);
}

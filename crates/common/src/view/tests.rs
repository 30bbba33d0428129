extern crate std;

use std::vec::Vec;

use super::*;
use crate::flow::FlowKey;
use crate::session::Alias;

fn all_states() -> impl Iterator<Item = State> {
    (0..=u32::from(u8::MAX)).filter_map(State::from_word)
}

fn entry(state: State, change: impl Fn(&mut Session)) -> Session {
    let mut s = Session {
        state: state as u32,
        ..Session::default()
    };
    change(&mut s);
    s
}

/// Returns an entry of each case.
fn entries() -> Vec<(Case, Session)> {
    let unflagged = |case, state| (case, entry(state, |_| {}));
    let two = |case, cut, muted| {
        let flags = |s: &mut Session| (s.two.cut_set, s.muted) = (cut, muted);
        (case, entry(State::TwoPaths, flags))
    };
    let chained = |case, state, relay| {
        let flags = |s: &mut Session| (s.two.chained, s.relay) = (2, relay);
        (case, entry(state, flags))
    };
    [
        unflagged(Case::Free, State::Free),
        unflagged(Case::Closed, State::Closed),
        unflagged(Case::Opening, State::Opening),
        unflagged(Case::Tracked, State::Tracked),
        unflagged(Case::Adopted, State::Adopted),
        two(Case::TwoPaths, 0, 0),
        two(Case::TwoPathsCut, 1, 0),
        two(Case::TwoPathsMuted, 1, 1),
        two(Case::TwoPathsRolledBack, 0, 1),
        unflagged(Case::RelayTwoPaths, State::RelayTwoPaths),
        unflagged(Case::Joining, State::Joining),
        unflagged(Case::Switching, State::Switching),
        unflagged(Case::Passing, State::Passing),
        unflagged(Case::Bypassed, State::NewPath),
        chained(Case::Chained, State::NewPath, 0),
        chained(Case::BesideRelay, State::NewPath, 5),
        unflagged(Case::Relayed, State::Relay),
        (
            Case::RelayedReturning,
            entry(State::Relay, |s| s.two.returns = 1),
        ),
        unflagged(Case::Returned, State::Return),
        unflagged(Case::Detoured, State::Detour),
        unflagged(Case::Held, State::Held),
        unflagged(Case::LeftByProxy, State::Tombstone),
        chained(Case::LeftByChain, State::Tombstone, 0),
    ]
    .into()
}

#[test]
fn the_table_has_each_state_and_each_case_once() {
    let mut states: Vec<_> = Case::ALL.iter().map(|case| case.meaning().state).collect();
    states.dedup();
    states.sort_by_key(|state| *state as u32);
    assert_eq!(states, all_states().collect::<Vec<_>>());
    for (case, s) in entries() {
        assert_eq!(s.view().case(), case);
        assert_eq!(case.meaning().state as u32, s.state, "{case:?}");
        let rows = Case::ALL.iter().filter(|other| **other == case);
        assert_eq!(rows.count(), 1, "{case:?}");
    }
    assert_eq!(entries().len(), Case::ALL.len());
}

#[test]
fn a_word_that_no_program_wrote_is_a_free_slots() {
    let unknown = Session {
        state: 1000,
        ..Session::default()
    };
    assert_eq!(unknown.view(), View::Free);
}

/// The predicates, by the states that user space distinguished by them one by one.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn predicates_distinguish_the_same_states_for_each_case() {
    use State::*;
    type Holds = fn(View) -> bool;
    let table: [(&str, Holds, &[State]); 9] = [
        ("unused", View::is_unused, &[Free, Closed]),
        ("unchanged", View::is_unchanged, &[Tracked, Adopted]),
        ("over", View::is_over, &[Free, Closed, Tombstone]),
        (
            "between paths",
            View::is_between_paths,
            &[TwoPaths, RelayTwoPaths, Switching, Passing],
        ),
        (
            "one path",
            View::takes_one_path,
            &[Tracked, Adopted, NewPath, Return, Detour, Held],
        ),
        (
            "redirects",
            View::redirects_packets,
            &[
                TwoPaths,
                NewPath,
                Tombstone,
                RelayTwoPaths,
                Relay,
                Return,
                Joining,
                Switching,
                Passing,
                Detour,
                Held,
            ],
        ),
        (
            "collected once silent",
            |view| view.meaning().collected == Collected::OnceSilent,
            &[
                TwoPaths,
                NewPath,
                RelayTwoPaths,
                Relay,
                Return,
                Switching,
                Passing,
                Detour,
            ],
        ),
        (
            "has a route",
            |view| view.route().is_some(),
            &[NewPath, Switching, Passing],
        ),
        (
            "has taken a route",
            |view| view.taken_route().is_some(),
            &[NewPath, Switching],
        ),
    ];
    for (name, holds, states) in table {
        for (case, s) in entries() {
            let expected = states.contains(&case.meaning().state);
            assert_eq!(holds(s.view()), expected, "{name}: {case:?}");
        }
    }
}

#[test]
fn a_session_that_a_proxy_has_left_stays_bypassed_behind_a_chain() {
    let name = FlowKey::new(
        ([10, 0, 1, 1], 40_000).into(),
        ([10, 0, 3, 1], 9_000).into(),
    );
    let left = |s: &mut Session| (s.two.chained, s.alias) = (2, Alias::of(&name));
    let path = entry(State::NewPath, left);
    assert_eq!(path.view().case(), Case::Bypassed);
    assert!(path.view().new_path().unwrap().bypassed);
    let tombstone = entry(State::Tombstone, left);
    assert_eq!(tombstone.view().case(), Case::LeftByProxy);
}

#[test]
fn values_are_those_of_the_entry() {
    let s = entry(State::NewPath, |s| {
        (s.two.chained, s.joined, s.other_path) = (1, 3, 8);
    });
    let route = s.view().new_path().unwrap();
    assert_eq!(route.chain, ChainState::Opening);
    assert!(!route.is_open() && !route.passes_on());
    assert_eq!((route.joined, route.other), (Some(2), Some(7)));
    let used = |armed, set, heard| {
        let s = entry(State::TwoPaths, |s| {
            (s.two.cut_armed, s.two.cut_set, s.two.new_received) = (armed, set, heard);
        });
        s.view().two_paths().unwrap().is_used()
    };
    assert!(!used(0, 0, 0));
    assert!(used(1, 0, 0) && used(1, 1, 0) && used(0, 0, 1));
    let relay = entry(State::Relay, |s| s.joined = 5);
    assert_eq!(relay.view().relayed_to(), Some(4));
}

#[test]
fn the_word_alone_tells_unused_entries() {
    for state in 0..32 {
        let entry = Session {
            state,
            ..Session::default()
        };
        assert_eq!(is_unused(state), entry.view().is_unused(), "word {state}");
    }
}

//! Acknowledgements on a new path on which not all data was announced yet.

use dysco_common::Path;
use dysco_common::tcp::{ACK, RST};
use dysco_common::two_paths::{self, Anchor};

use super::{CUT_IN, CUT_OUT, cut, near, segment, unannounced};

#[test]
fn the_new_path_gets_no_acknowledgement_of_what_it_has_not_announced() {
    let s = unannounced();
    // Data, a pure acknowledgement, and the copy of a reset.
    let data = near(&s, &segment(CUT_OUT, CUT_IN - 100, 50, ACK));
    assert_eq!((data.path, data.ack), (Path::New, CUT_IN - 300));
    // The edge stays the same: 200 bytes lower, 50 units of four bytes more.
    assert_eq!(data.window, 150);
    let sacks = two_paths::sacks(Anchor::Local, &s, Path::New);
    assert_eq!((sacks.limited, sacks.to), (true, CUT_IN - 300));
    let old = data.copy.unwrap();
    assert_eq!((old.path, old.ack, old.window), (Path::Old, 4500, 100));
    let ack = near(&s, &segment(CUT_OUT, CUT_IN - 100, 0, ACK));
    assert_eq!(
        (ack.path, ack.ack, ack.window),
        (Path::New, CUT_IN - 300, 150)
    );
    let reset = near(&s, &segment(CUT_OUT, CUT_IN - 100, 0, RST | ACK));
    let copy = reset.copy.unwrap();
    assert_eq!((copy.path, copy.ack), (Path::New, CUT_IN - 300));
    // Numbers that were announced on the path are acknowledged unchanged.
    let answer = near(&s, &segment(CUT_OUT, CUT_IN - 300, 0, ACK));
    assert_eq!((answer.ack, answer.window), (CUT_IN - 300, 100));
}

#[test]
fn once_all_is_announced_acknowledgements_are_unchanged() {
    let mut s = unannounced();
    assert!(!two_paths::has_announced_all(&s));
    assert!(
        !two_paths::record_announced(&mut s, CUT_IN),
        "it waits for its end too"
    );
    let out = near(&s, &segment(CUT_OUT, CUT_IN + 5, 50, ACK));
    assert_eq!((out.ack, out.window), (CUT_IN + 5, 100));
    assert!(!two_paths::sacks(Anchor::Local, &s, Path::New).limited);
    // The session waited only for that, once.
    let mut s = unannounced();
    s.two.drained = 1;
    assert!(!two_paths::record_announced(&mut s, CUT_IN - 1));
    assert!(two_paths::record_announced(&mut s, CUT_IN));
    assert!(!two_paths::record_announced(&mut s, CUT_IN + 1));
    // Late segments take nothing back.
    assert!(!two_paths::record_announced(&mut s, CUT_IN - 200));
    assert_eq!(s.peer_sent_max, CUT_IN + 1);
}

#[test]
fn the_old_path_hears_no_blocks_of_what_came_by_the_new() {
    let mut s = cut();
    assert!(!two_paths::sacks(Anchor::Local, &s, Path::Old).limited);
    s.two.new_data = 1;
    let sacks = two_paths::sacks(Anchor::Local, &s, Path::Old);
    assert_eq!((sacks.limited, sacks.to), (true, 4500));
}

#[test]
fn a_window_that_would_be_too_wide_saturates() {
    let mut s = unannounced();
    s.peer_sent_max = CUT_IN.wrapping_sub(1_000_000);
    let out = near(&s, &segment(CUT_OUT, CUT_IN - 100, 0, ACK));
    assert_eq!(out.window, u16::MAX);
}

//! The packets that open a new path.

use dysco_common::State;
use dysco_common::session::Session;
use dysco_common::tcp::{ACK, PSH, SYN, Segment};
use dysco_common::two_paths;

use super::{segment, unannounced};

#[test]
fn the_right_anchor_answers_what_opens_the_path() {
    let mut s = unannounced();
    (s.two, s.peer_sent_max, s.cut_out) = (Default::default(), 0, 0);
    s.snd_max = 5000;
    s.path.local_port = 1;
    let syn = segment(76, 0, 1400, SYN);
    assert!(!two_paths::record_opening(&mut s, &syn));
    assert_eq!((s.peer_sent_max, s.cut_out), (77, 5000));
    let e = two_paths::answer_opening(&s, &syn);
    assert_eq!((e.seq, e.ack, e.flags), (4999, 77, SYN | ACK));
    assert_eq!((e.window, e.wscale), (u16::MAX, 3), "its own scale, and 1");
    // The end has sent more since. The number of the opening stays.
    s.snd_max = 9000;
    let again = segment(76, 0, 0, SYN);
    two_paths::record_opening(&mut s, &again);
    let e = two_paths::answer_opening(&s, &again);
    assert_eq!((e.seq, e.ack, e.flags), (5000, 77, ACK | PSH));
    assert!(two_paths::opens_windows(&Segment {
        seq: e.seq,
        ack: e.ack,
        len: 0,
        window: e.window,
        flags: e.flags
    }));
    // After the cut it shows the cutoff.
    (s.two.cut_set, s.cut_out) = (1, 9000);
    let shows = segment(200, 5000, 0, ACK | PSH);
    two_paths::record_opening(&mut s, &shows);
    let e = two_paths::answer_opening(&s, &shows);
    assert_eq!((e.seq, e.ack, s.peer_sent_max), (9000, 200, 200));
    // Up to the window that the left end has announced, and later the rest.
    s.remote.wscale = 1;
    s.cut_out = 5000 + 200_000;
    let e = two_paths::answer_opening(&s, &shows);
    assert_eq!(e.seq, 5000 + 2 * 65_535);
    let e = two_paths::answer_opening(
        &s,
        &Segment {
            ack: e.seq,
            ..shows
        },
    );
    assert_eq!(e.seq, 5000 + 200_000);
}

/// Returns a path that is being opened. The other end has shown numbers up to 4500, in this end's
/// numbers.
fn being_opened() -> Session {
    let mut s = Session {
        state: State::Joining as u32,
        rcv_max: 4500,
        ..Session::default()
    };
    s.translation.seq_in = 1000;
    s
}

#[test]
fn the_length_is_heard_on_a_path_that_is_being_opened() {
    let long = |seq, len| segment(seq, 0, len, ACK | PSH);
    let widest = |seg| Segment {
        window: u16::MAX,
        ..seg
    };
    let shows = widest(long(3500 - 1 - 1448, 1448));
    let mut s = being_opened();
    assert!(!two_paths::has_length(&s));
    for other in [
        long(shows.seq, 1448),
        widest(segment(shows.seq, 0, 1448, ACK)),
        widest(long(3499, 0)),
        // The segment continues after the shown number.
        widest(long(3500 - 1448, 1448)),
    ] {
        assert!(!two_paths::record_length(&mut s, &other), "{other:?}");
        assert!(!two_paths::has_length(&s), "{other:?}");
    }
    assert!(two_paths::record_length(&mut s, &shows));
    assert!(two_paths::has_length(&s));
    // Again, and just after the path was taken. No other segment equals it.
    for state in [State::Joining, State::Switching] {
        s.state = state as u32;
        assert!(two_paths::record_length(&mut s, &shows));
        // The path may have become narrower since.
        let shorter = widest(long(3500 - 1 - 1400, 1400));
        assert!(two_paths::record_length(&mut s, &shorter));
        assert!(!two_paths::record_length(
            &mut s,
            &widest(long(3500 - 1448, 1448))
        ));
    }
    // A path that was already taken has not been opened here.
    let mut s = being_opened();
    s.state = State::Switching as u32;
    assert!(!two_paths::record_length(&mut s, &shows));
}

#[test]
fn what_opens_a_path_is_distinguished_from_what_takes_it() {
    let seg = |seq, len, window| Segment {
        window,
        ..segment(seq, 0, len, ACK | PSH)
    };
    assert!(two_paths::is_of_opening(&seg(9000, 0, u16::MAX), 4500));
    assert!(two_paths::is_of_opening(&seg(4000, 500, u16::MAX), 4500));
    assert!(!two_paths::is_of_opening(&seg(4000, 501, u16::MAX), 4500));
    assert!(!two_paths::is_of_opening(&seg(4000, 500, 64), 4500));
}

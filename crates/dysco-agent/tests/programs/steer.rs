//! Sessions that this host relays, with a chain on one side. Packets relayed to that side leave
//! by the entry of a path, and packets that arrive by the path are relayed.

use std::net::SocketAddr;

use dysco_common::session::{Life, Two, part};
use dysco_common::tcp::{ACK, FIN, PSH, RST, SYN};
use dysco_common::{Counter, EventKind, FlowKey, Path, Session, State, mark};

use crate::bench::{DROP, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{ALL_OPTIONS, Frame, Net, Options, mirror, nets, on, options as options_of};
use crate::relay::{
    BACK, GIVEN, OTHER, OUT, SENT, from_client, from_server, joined_in, to_client, to_server,
    with_limit,
};

/// The slot of the path's entry.
const NEXT: u32 = 4;

/// Returns the path of the server's side.
fn path(net: &Net) -> FlowKey {
    let local = SocketAddr::new(net.new_local.ip(), 61_004);
    let remote = SocketAddr::new(net.remote.ip(), net.new_remote.port());
    FlowKey::new(local, remote)
}

/// Returns a relayed session whose server's side has a path in this state.
fn steered(net: &Net, state: State) -> Programs {
    let mut p = joined_in(Programs::with_hints(64), net, State::Relay);
    let mut client = p.session(SLOT);
    client.relay = OTHER + 1;
    p.put(SLOT, &client);
    let before = p.session(OTHER);
    let taken = state != State::Joining;
    let s = Session {
        state: state as u32,
        path: path(net),
        joined: 0,
        relay: OTHER + 1,
        other_path: if state == State::NewPath {
            0
        } else {
            OTHER + 1
        },
        ifindex: 1,
        translation: Default::default(),
        two: Two {
            chained: 2,
            part: if taken { part::CURRENT } else { part::NEXT },
            ..Two::default()
        },
        ..before
    };
    p.put(NEXT, &s);
    p.flow(path(net), NEXT, Path::New);
    if taken {
        p.flow(net.path(), NEXT, Path::Old);
    }
    p
}

/// A packet that the server sends by the path.
fn by_path(net: &Net, frame: &Frame) -> Frame {
    on(mirror(path(net)), frame)
}

#[test]
fn what_is_relayed_leaves_by_the_path() {
    for net in nets() {
        let mut p = steered(&net, State::NewPath);
        for flags in [ACK, ACK | FIN] {
            for which in ALL_OPTIONS {
                let sent = Frame {
                    flags,
                    ..from_client(&net, SENT, GIVEN, 500, which)
                };
                let relayed = to_server(&net, &sent, which);
                let got = p.run(Way::In, &sent.bytes());
                assert_eq!(got, (REDIRECT, with_limit(&relayed, 63)));
                // Found in the map, and by a hint.
                for _ in 0..2 {
                    let left = p.run_with_mark(Way::Out, &relayed.bytes(), mark::STEERED);
                    assert_eq!(left, (REDIRECT, on(path(&net), &relayed).bytes()));
                }
            }
        }
        let s = p.session(NEXT);
        assert_eq!(s.snd_max, SENT + OUT + 501);
        assert_ne!(s.life.fin_out, 0);
    }
}

/// The proxy has left: packets of this host's stack no longer belong to the session.
#[test]
fn what_is_not_relayed_does_not_leave() {
    for net in nets() {
        for state in [State::NewPath, State::Switching, State::Joining] {
            let mut p = steered(&net, state);
            for flags in [ACK, RST, FIN | ACK] {
                let said = Frame {
                    flags,
                    ..net.new_sent()
                };
                p.drops(Way::Out, &said, Counter::DroppedLateOld);
            }
        }
        let mut p = steered(&net, State::NewPath);
        let opens = Frame {
            flags: SYN,
            ..net.new_sent()
        };
        p.drops(Way::Out, &opens, Counter::DroppedSyn);
    }
}

/// Before the path is taken all packets leave as without it, and show where it would begin.
#[test]
fn until_it_is_taken_the_numbers_are_kept() {
    for net in nets() {
        let mut p = steered(&net, State::Joining);
        let sent = from_client(&net, SENT, GIVEN, 500, Options::Timestamps);
        let relayed = to_server(&net, &sent, Options::Timestamps);
        let left = p.run_with_mark(Way::Out, &relayed.bytes(), mark::STEERED);
        assert_eq!(left, (PASS, relayed.bytes()));
        let s = p.session(OTHER);
        assert_eq!((s.snd_max, s.snd_ack), (SENT + OUT + 500, GIVEN - BACK));
        assert_eq!(s.tsval_out, 10 + 1000);
        // A reset is judged where it arrives.
        let reset = Frame {
            flags: RST,
            ..relayed
        };
        let left = p.run_with_mark(Way::Out, &reset.bytes(), mark::STEERED);
        assert_eq!(left, (PASS, reset.bytes()));
        assert_eq!(p.session(OTHER).life.reset, 0);
    }
}

#[test]
fn what_comes_by_the_path_is_relayed() {
    for net in nets() {
        for state in [State::NewPath, State::Switching] {
            let p = steered(&net, state);
            let sent = from_server(&net, GIVEN - BACK, SENT + OUT, 1000);
            let relayed = to_client(&net, &sent);
            let comes = by_path(&net, &sent);
            let got = p.run(Way::In, &comes.bytes());
            assert_eq!(got, (REDIRECT, with_limit(&relayed, 63)));
            for slot in [NEXT, OTHER] {
                assert_eq!(p.session(slot).rcv_max, GIVEN - BACK + 1000);
            }
            // A late packet on the path before.
            let late = p.run(Way::In, &sent.bytes());
            if state == State::Switching {
                assert_eq!(late, (REDIRECT, with_limit(&relayed, 63)));
            } else {
                assert_eq!(late.0, DROP);
                assert_eq!(p.count(Counter::DroppedLateOld), 1);
            }
        }
    }
}

/// A packet that opens windows is for no end. Once the path has been taken, neither is a late
/// one, nor one that shows the way back: it may acknowledge bytes that no stack has received.
#[test]
fn what_opens_the_path_is_not_relayed() {
    for net in nets() {
        for state in [State::Joining, State::Switching, State::NewPath] {
            let mut p = steered(&net, state);
            for options in [Options::None, Options::Timestamps] {
                let primer = Frame {
                    flags: ACK | PSH,
                    window: u16::MAX,
                    options: options_of(options, 1, 2, 0),
                    ..by_path(&net, &from_server(&net, GIVEN - BACK + 7, SENT + OUT, 0))
                };
                assert_eq!(p.run(Way::In, &primer.bytes()).0, DROP, "{state:?}");
                assert_eq!(p.session(NEXT).rcv_max, GIVEN - BACK + 7);
            }
            let reported = p.events();
            let primed = (EventKind::Primed, NEXT);
            // While the path opens, the first packet is reported with the one that shows the
            // length.
            let times = match state {
                State::Joining => 1,
                State::Switching => 2,
                _ => 0,
            };
            assert_eq!(reported, vec![primed; times]);
        }
    }
}

/// The far end takes the path: so do the packets that are relayed from now on.
#[test]
fn the_relay_follows_the_remote_end() {
    for net in nets() {
        let mut p = steered(&net, State::Joining);
        let sent = from_server(&net, GIVEN - BACK, SENT + OUT, 1000);
        // Not before both ends have shown the length of their segments.
        p.drops(Way::In, &by_path(&net, &sent), Counter::DroppedStray);
        let mut s = p.session(NEXT);
        s.two.new_data = 1;
        p.put(NEXT, &s);
        // Nor does a reset of another host there.
        let reset = Frame {
            flags: RST | ACK,
            payload: Vec::new(),
            ..by_path(&net, &sent)
        };
        assert_eq!(p.run(Way::In, &reset.bytes()).0, DROP);
        assert_eq!(p.events(), [(EventKind::Rejected, NEXT)]);
        assert_eq!([SLOT, OTHER].map(|slot| p.session(slot).life.reset), [0, 0]);
        let got = p.run(Way::In, &by_path(&net, &sent).bytes());
        assert_eq!(got, (REDIRECT, with_limit(&to_client(&net, &sent), 63)));
        let s = p.session(NEXT);
        assert_eq!(s.state, State::Switching as u32);
        assert_eq!(s.snd_max, p.session(OTHER).snd_max);
        assert_eq!(p.session(OTHER).state, State::Relay as u32);
        assert_eq!(p.find(&net.path()).unwrap().slot, NEXT);
    }
}

/// Bytes that the path has not carried are acknowledged by the path before, unchanged.
#[test]
fn an_acknowledgement_takes_the_path_of_what_it_acknowledges() {
    for net in nets() {
        let mut p = steered(&net, State::Switching);
        let has = p.session(NEXT).rcv_max;
        let ack = |ack: u32, len| Frame {
            ack,
            ..to_server(
                &net,
                &from_client(&net, SENT, GIVEN, len, Options::Timestamps),
                Options::Timestamps,
            )
        };
        let old = ack(has + 1, 0);
        let left = p.run_with_mark(Way::Out, &old.bytes(), mark::STEERED);
        assert_eq!(left, (PASS, old.bytes()));
        let new = ack(has, 0);
        let left = p.run_with_mark(Way::Out, &new.bytes(), mark::STEERED);
        assert_eq!(left, (REDIRECT, on(path(&net), &new).bytes()));
        let data = ack(has + 1, 100);
        let left = p.run_with_mark(Way::Out, &data.bytes(), mark::STEERED);
        assert_eq!(left, (REDIRECT, on(path(&net), &ack(has, 100)).bytes()));
    }
}

/// Anybody may send a reset on a path: the relay's own entry judges it.
#[test]
fn a_reset_ends_what_the_relay_believes() {
    for net in nets() {
        let p = steered(&net, State::NewPath);
        let reset = |seq| Frame {
            flags: RST,
            ..by_path(&net, &from_server(&net, seq, 0, 0))
        };
        let relay = reset((GIVEN - BACK).wrapping_add(1 << 30));
        assert_eq!(p.run(Way::In, &relay.bytes()).0, REDIRECT);
        for slot in [SLOT, OTHER, NEXT] {
            assert_eq!(p.session(slot).life.reset, 0);
        }
        let near = reset(GIVEN - BACK);
        assert_eq!(p.run(Way::In, &near.bytes()).0, REDIRECT);
        assert_eq!(
            [SLOT, OTHER].map(|slot| p.session(slot).life.reset & 1),
            [1, 1]
        );
        assert_eq!(p.session(NEXT).life.reset, 0);
    }
}

/// A path that was given up carries nothing.
#[test]
fn a_path_that_was_left_is_not_heard() {
    for net in nets() {
        let mut p = steered(&net, State::Tombstone);
        let sent = from_server(&net, GIVEN - BACK, SENT + OUT, 1000);
        p.drops(Way::In, &by_path(&net, &sent), Counter::DroppedStray);
    }
}

/// A packet that opens another session is not taken for one of this session.
#[test]
fn it_opened_here_and_follows_nobody() {
    for net in nets() {
        let mut p = steered(&net, State::Joining);
        let mut s = p.session(NEXT);
        s.life = Life {
            opened_here: 1,
            ..s.life
        };
        p.put(NEXT, &s);
        let sent = from_server(&net, GIVEN - BACK, SENT + OUT, 1000);
        p.run(Way::In, &by_path(&net, &sent).bytes());
        assert_eq!(p.session(NEXT).state, State::Joining as u32);
        assert_eq!(p.find(&net.path()).unwrap().slot, OTHER);
    }
}

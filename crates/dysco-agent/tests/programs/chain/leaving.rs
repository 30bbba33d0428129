//! An end of a session that has taken its next path, while the path before still has data for
//! it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use dysco_common::seq::before;
use dysco_common::session::{Two, offer, part};
use dysco_common::tcp::{ACK, PSH, RST};
use dysco_common::two_paths::LAST_WINDOW;
use dysco_common::{Counter, EventKind, FlowKey, Path, Session, State, mark};

use crate::bench::{DROP, OK, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Net, Options, mirror, nets, on, options};

/// The slot of the next path.
const NEXT: u32 = SLOT + 1;
const SENT: u32 = 100_000;
/// The end of the data that the next path has carried to this end, and the number that the far
/// end had reached on the other path.
const CARRIED: u32 = 0xffff_fff0;
const CUT_IN: u32 = CARRIED.wrapping_add(5000);

/// Kind of the session's path before.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Before {
    Direct,
    Chain,
}

struct End {
    p: Programs,
    net: Net,
    before: Before,
}

fn ends() -> Vec<End> {
    let both = |net| [Before::Direct, Before::Chain].map(|before| End::new(net, before));
    nets().into_iter().flat_map(both).collect()
}

impl End {
    fn new(net: Net, before: Before) -> End {
        let mut end = End {
            p: Programs::load(),
            net,
            before,
        };
        let (state, path) = match before {
            Before::Direct => (State::Tracked, net.key()),
            Before::Chain => (State::NewPath, end.path_before()),
        };
        let s = Session {
            key: net.key(),
            ifindex: 1,
            snd_max: SENT,
            ..Session::default()
        };
        end.p.put(
            SLOT,
            &Session {
                state: state as u32,
                path,
                other_path: NEXT + 1,
                two: Two {
                    part: part::BEFORE,
                    ..Two::default()
                },
                ..s
            },
        );
        end.p.put(
            NEXT,
            &Session {
                state: State::Switching as u32,
                path: net.path(),
                rcv_max: CARRIED,
                cut_in: CUT_IN,
                other_path: SLOT + 1,
                two: Two {
                    chained: 2,
                    part: part::CURRENT,
                    cut_in_set: 1,
                    ..Two::default()
                },
                ..s
            },
        );
        end.p.flow(net.key(), NEXT, Path::Old);
        end.p.flow(net.path(), NEXT, Path::New);
        if before == Before::Chain {
            end.p.flow(path, SLOT, Path::New);
        }
        end
    }

    fn path_before(&self) -> FlowKey {
        let path = self.net.path();
        let local = SocketAddr::new(path.local().ip(), 61_999);
        FlowKey::new(local, path.remote())
    }

    fn sent(&self, ack: u32, len: usize) -> Frame {
        Frame {
            seq: SENT,
            ack,
            payload: vec![7; len],
            options: options(Options::Timestamps, 1, 2, 0),
            ..self.net.sent()
        }
    }

    /// Returns the packet unchanged as the path before has it, and its verdict.
    fn goes_back(&self, frame: &Frame) -> (u32, Vec<u8>) {
        match self.before {
            Before::Direct => (PASS, frame.bytes()),
            Before::Chain => (REDIRECT, on(self.path_before(), frame).bytes()),
        }
    }
}

#[test]
fn what_the_next_path_has_not_carried_is_acknowledged_on_the_one_before() {
    for mut end in ends() {
        let next = end.net.path();
        let ack = end.sent(CARRIED + 1, 0);
        let got = end.p.run(Way::Out, &ack.bytes());
        assert_eq!(got, end.goes_back(&ack), "{:?}", end.before);

        // Mostly for data: its own acknowledgement may come by the next path.
        for (sent, copies) in [(2, 1), (2, 1), (1, 1), (3, 2)] {
            let data = end.sent(CARRIED.wrapping_add(sent), 1000);
            let want = Frame {
                ack: CARRIED,
                ..data.clone()
            };
            end.p.becomes(Way::Out, &data, REDIRECT, &on(next, &want));
            assert_eq!(end.p.count(Counter::Split), copies);
        }
    }
}

#[test]
fn data_take_the_path_before_where_the_other_end_still_uses_that() {
    for mut end in ends() {
        let next = end.net.path();
        let ahead = CARRIED.wrapping_add(100_000);
        let data = end.sent(ahead, 1000);
        let got = end.p.run(Way::Out, &data.bytes());
        assert_eq!(got, end.goes_back(&data), "{:?}", end.before);
        assert_eq!(end.p.count(Counter::Split), 0);
        // Within a window of this size the packet may only be late.
        let mut s = end.p.session(NEXT);
        (s.local.flags, s.remote.flags) = (offer::WSCALE, offer::WSCALE);
        s.local.wscale = 8;
        end.p.put(NEXT, &s);
        let want = Frame {
            ack: CARRIED,
            ..data.clone()
        };
        end.p.becomes(Way::Out, &data, REDIRECT, &on(next, &want));
    }
}

/// The other end has taken the path before again, and no message notifies this end. Numbers may
/// wrap around meanwhile.
#[test]
fn the_path_before_may_carry_more_than_numbers_tell() {
    for end in ends() {
        for quarters in 1..=9u32 {
            let ack = CARRIED.wrapping_add(quarters.wrapping_mul(1 << 29));
            for len in [0, 1000] {
                let frame = end.sent(ack, len);
                let got = end.p.run(Way::Out, &frame.bytes());
                assert_eq!(got, end.goes_back(&frame), "{:?}, {quarters}", end.before);
            }
        }
    }
}

#[test]
fn what_the_next_path_has_carried_is_acknowledged_there() {
    for mut end in ends() {
        let next = end.net.path();
        for len in [0, 1000] {
            let frame = end.sent(CARRIED, len);
            end.p.becomes(Way::Out, &frame, REDIRECT, &on(next, &frame));
        }
        let s = end.p.session(NEXT);
        let rcv_max = CUT_IN;
        end.p.put(NEXT, &Session { rcv_max, ..s });
        for len in [0, 1000] {
            let frame = end.sent(CUT_IN, len);
            end.p.becomes(Way::Out, &frame, REDIRECT, &on(next, &frame));
        }
        assert_eq!(end.p.count(Counter::Split), 0);
        // The other end may have sent more by the path before since.
        let ack = end.sent(CUT_IN.wrapping_add(9), 0);
        let got = end.p.run(Way::Out, &ack.bytes());
        assert_eq!(got, end.goes_back(&ack), "{:?}", end.before);
    }
}

/// The other anchor may not know yet that the change is done. A host inside the chain is no end
/// of the session: its firewall sees these packets.
#[test]
fn no_stack_hears_late_what_is_for_firewalls() {
    for (joined, late) in [(0, DROP), (SLOT + 1, OK)] {
        for end in ends() {
            let mut p = end.p;
            let s = p.session(NEXT);
            p.put(
                NEXT,
                &Session {
                    state: State::NewPath as u32,
                    other_path: 0,
                    joined,
                    ..s
                },
            );
            let announced = Frame {
                seq: CUT_IN,
                ack: SENT,
                window: u16::MAX,
                flags: ACK | PSH,
                options: options(Options::Timestamps, 1, 2, 0),
                ..end.net.new_received()
            };
            assert_eq!(
                p.run(Way::In, &announced.bytes()).0,
                late,
                "joined {joined}"
            );
        }
    }
}

/// The other end leaves a path, or gives one up, and shows that to the firewalls there.
#[test]
fn the_end_of_a_path_is_nobodys_here() {
    let states = [
        State::Joining,
        State::Switching,
        State::NewPath,
        State::Passing,
        State::Tombstone,
    ];
    for end in ends() {
        let by = [end.net.path(), end.net.key(), end.path_before()];
        let mut p = end.p;
        let next = p.session(NEXT);
        for (state, joined) in states.iter().flat_map(|s| [(*s, 0), (*s, SLOT + 1)]) {
            let s = Session {
                state: state as u32,
                joined,
                ..next
            };
            p.put(NEXT, &s);
            let by = &by[..2 + usize::from(end.before == Before::Chain)];
            for flags in [ACK | PSH, RST | ACK | PSH] {
                for path in by {
                    let ends = Frame {
                        seq: CARRIED,
                        ack: SENT,
                        window: LAST_WINDOW,
                        flags,
                        options: options(Options::Timestamps, 1, 2, 0),
                        ..on(mirror(*path), &end.net.received())
                    };
                    assert_eq!(p.run(Way::In, &ends.bytes()).0, DROP, "{state:?} {flags}");
                }
            }
            for slot in [SLOT, NEXT] {
                let s = p.session(slot);
                assert_eq!((s.life.reset, s.new_in), (0, 0), "{state:?}");
            }
            assert_eq!(p.session(NEXT).rcv_max, CARRIED);
            assert_eq!(p.events(), []);
        }
    }
}

/// This end does so by the session's own five-tuple.
#[test]
fn what_no_stack_has_routed_takes_no_path_of_its_session() {
    for mut end in ends() {
        let ends = Frame {
            window: LAST_WINDOW,
            flags: RST | ACK | PSH,
            ..end.sent(CARRIED, 0)
        };
        let out = end.p.run_with_mark(Way::Out, &ends.bytes(), mark::UNROUTED);
        assert_eq!(out, (REDIRECT, ends.bytes()));
        let out = end.p.run_with_mark(Way::Out, &ends.bytes(), mark::RELAYED);
        assert_eq!(out, (PASS, ends.bytes()));
        let reset = [SLOT, NEXT].map(|slot| end.p.session(slot).life.reset);
        assert_eq!((reset, end.p.events()), ([0, 0], vec![]));
    }
}

#[test]
fn a_reset_of_the_session_ends_it() {
    for end in ends() {
        for (path, slot) in [(end.net.path(), NEXT), (end.path_before(), SLOT)] {
            if slot == SLOT && end.before == Before::Direct {
                continue;
            }
            let mut p = End::new(end.net, end.before).p;
            let reset = Frame {
                seq: p.session(slot).rcv_max,
                ack: SENT,
                window: 0,
                flags: RST | ACK,
                ..on(mirror(path), &end.net.received())
            };
            assert_eq!(p.run(Way::In, &reset.bytes()).0, OK);
            assert_eq!(p.session(slot).life.reset & 1, 1);
            assert_eq!(p.events(), [(EventKind::Reset, slot)]);
        }
    }
}

/// The firewalls of the path before are told its end.
#[test]
fn what_takes_the_path_before_is_known_of_that() {
    for end in ends() {
        for (behind, sent) in [(0, SENT), (1, SENT), (100_000, SENT + 1000)] {
            let data = end.sent(CARRIED.wrapping_add(behind), 1000);
            end.p.run(Way::Out, &data.bytes());
            assert_eq!(end.p.session(SLOT).snd_max, sent, "{behind} behind");
        }
    }
}

/// Otherwise the acknowledgement would take the path before, which may be gone then.
#[test]
fn what_comes_on_two_processors_at_once_is_carried() {
    const SEGMENTS: u32 = 20_000;
    for end in ends() {
        let next = AtomicU32::new(0);
        let take_in = || {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= SEGMENTS {
                    return;
                }
                let frame = Frame {
                    seq: CARRIED.wrapping_add(n),
                    ack: SENT,
                    payload: vec![7],
                    options: options(Options::Timestamps, 1, 2, 0),
                    ..end.net.new_received()
                };
                assert_eq!(end.p.run(Way::In, &frame.bytes()).0, OK);
                let carried = end.p.session(NEXT).rcv_max;
                let sent = CARRIED.wrapping_add(n + 1);
                assert!(!before(carried, sent), "{carried} after {sent}");
            }
        };
        thread::scope(|s| {
            s.spawn(take_in);
            s.spawn(take_in);
        });
    }
}

#[test]
fn the_copy_takes_the_path_before() {
    for mut end in ends() {
        let ack = CARRIED.wrapping_add(77);
        let data = end.sent(ack, 999);
        let copy = Frame {
            payload: vec![],
            ..data.clone()
        };
        let got = end.p.run_copy(&data.bytes(), SENT, ack, Path::Old, ACK);
        assert_eq!(got, end.goes_back(&copy), "{:?}", end.before);
    }
}

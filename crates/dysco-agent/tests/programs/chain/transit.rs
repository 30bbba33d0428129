//! A host that stays in a chain while the chain changes, and a host that only forwards.

use std::net::SocketAddr;

use dysco_common::chain::{Chain, Token, WireElement};
use dysco_common::session::part;
use dysco_common::tcp::{ACK, PSH, RST};
use dysco_common::{Counter, FlowKey, State, mark};

use super::*;
use crate::bench::{DROP, OK, PASS, Programs, REDIRECT, Way, stamped};
use crate::frame::{Frame, mirror, on};

const TOKEN: Token = [1, 2];
/// The slots of the other path.
const THIRD: u32 = 7;
const FOURTH: u32 = 8;
/// Initial numbers of the SYN that opens the other path, and of its answer.
const NEXT_ISN: u32 = 70_000;
const NEXT_ANSWER: u32 = 80_000;

/// A session that passes the host, with its paths there.
struct Passing {
    p: Programs,
    left: [FlowKey; 2],
    right: [FlowKey; 2],
}

impl Hosts {
    fn right(&self, slot: u32) -> FlowKey {
        let local = SocketAddr::new(self.net.new_remote.ip(), 61_000 + slot as u16);
        FlowKey::new(local, self.net.remote)
    }

    fn proven(&self, subsession: FlowKey, last: WireElement) -> Vec<u8> {
        let mut payload = self.payload(subsession, &[]);
        payload.set_rest(&Chain::of(&[self.middlebox]).unwrap(), &last);
        payload.mac = payload.proof(KEY);
        payload.to_bytes().to_vec()
    }

    /// Returns a session with one path.
    fn passing(&self) -> Passing {
        let mut p = self.middlebox();
        p.hop(self.net.remote.ip().into(), &self.hop(self.net.new_remote));
        let left = [FIRST as u16, 3000].map(|slot| self.subsession(slot));
        let right = [SECOND, FOURTH].map(|slot| self.right(slot));
        p.run(Way::In, &self.steered(b"", &[]).bytes());
        p.run(Way::Out, &self.syn(b"").bytes());
        p.run(Way::In, &on(mirror(right[0]), &self.syn_ack()).bytes());
        p.run(Way::Out, &self.syn_ack().bytes());
        p.events();
        Passing { p, left, right }
    }

    fn next_syn(&self) -> Frame {
        Frame {
            seq: NEXT_ISN,
            ..self.syn(b"")
        }
    }

    fn next_answer(&self) -> Frame {
        Frame {
            seq: NEXT_ANSWER,
            ack: NEXT_ISN + 1,
            ..self.syn_ack()
        }
    }

    /// Returns a packet of the client with data.
    fn data(&self) -> Frame {
        Frame {
            seq: NEXT_ISN + 1,
            ack: NEXT_ANSWER + 1,
            payload: b"hello".to_vec(),
            ..self.net.sent()
        }
    }

    /// Returns a packet of the server with data.
    fn back(&self) -> Frame {
        Frame {
            src: self.net.remote,
            dst: self.net.local,
            seq: NEXT_ANSWER + 1,
            ack: NEXT_ISN + 1,
            ..self.data()
        }
    }
}

impl Passing {
    /// Checks that a packet which opens a path goes on past the stack, which knows the session.
    fn goes_past(&mut self, comes: &Frame, slot: u32, frame: &Frame, leaves: &Frame) {
        self.p.becomes(Way::In, comes, REDIRECT, frame);
        let mark = mark::of_slot(slot).unwrap();
        let out = self.p.run_with_mark(Way::Out, &frame.bytes(), mark);
        let leaves = stamped(leaves, &out.1);
        assert_eq!(out, (REDIRECT, leaves.bytes()));
    }

    /// Opens the other path, which differs only in the numbers.
    fn open(&mut self, h: &Hosts) {
        let live = WireElement::live(TOKEN);
        let with = |path, frame: Frame| Frame {
            payload: h.proven(path, live),
            ..on(path, &frame)
        };
        let (arrives, leaves) = (
            with(self.left[1], h.next_syn()),
            with(self.right[1], h.next_syn()),
        );
        // A retransmission makes no third path.
        for _ in 0..2 {
            self.goes_past(&arrives, THIRD, &h.next_syn(), &leaves);
        }
        let answer = on(mirror(self.right[1]), &h.next_answer());
        let returned = on(mirror(self.left[1]), &h.next_answer());
        for _ in 0..2 {
            self.goes_past(&answer, FOURTH, &h.next_answer(), &returned);
        }
        let entries = [FIRST, SECOND, THIRD, FOURTH].map(|slot| self.p.session(slot));
        assert!(entries.iter().all(|s| s.state == State::Passing as u32));
        let others = entries.map(|s| s.other_path);
        assert_eq!(others, [THIRD + 1, FOURTH + 1, FIRST + 1, SECOND + 1]);
    }

    /// Checks that a packet which came by `slot` continues on `path`.
    fn goes(&mut self, frame: &Frame, slot: Option<u32>, path: FlowKey) {
        let mark = slot.and_then(mark::of_slot).unwrap_or(0);
        let (verdict, out) = self.p.run_with_mark(Way::Out, &frame.bytes(), mark);
        assert_eq!((verdict, out), (REDIRECT, on(path, frame).bytes()));
    }
}

#[test]
fn a_packet_leaves_by_the_path_that_it_came_by() {
    for h in all() {
        let mut w = h.passing();
        w.open(&h);
        let (data, back) = (h.data(), h.back());
        // Neither end has taken the other path yet.
        w.goes(&data, None, w.right[0]);
        w.goes(&back, None, mirror(w.left[0]));
        for (slot, path) in [(FIRST, w.right[0]), (THIRD, w.right[1])] {
            w.goes(&data, Some(slot), path);
        }
        for (slot, path) in [(SECOND, w.left[0]), (FOURTH, w.left[1])] {
            w.goes(&back, Some(slot), mirror(path));
        }
        // Another session's mark, or a mark of no session.
        w.goes(&data, Some(9), w.right[0]);

        w.p.becomes(Way::In, &on(w.left[1], &data), OK, &data);
        w.goes(&data, None, w.right[1]);
        w.goes(&data, Some(FIRST), w.right[0]);
        // The server has not taken the path.
        w.goes(&back, None, mirror(w.left[0]));
        let parts = [SECOND, FOURTH].map(|slot| w.p.session(slot).two.part);
        assert_eq!(parts, [part::BEFORE, part::CURRENT]);
    }
}

/// Without an entry to continue by, the packet has the Ethernet addresses of the host before.
#[test]
fn what_goes_past_the_stack_leaves_by_a_path_or_not_at_all() {
    for h in all() {
        let mut w = h.passing();
        w.open(&h);
        let (src, dst) = (h.net.local, SocketAddr::new(h.net.remote.ip(), 9));
        let stray = Frame {
            src,
            dst,
            seq: NEXT_ISN + 9,
            ..h.syn(b"")
        };
        let marked = |slot| mark::of_slot(slot).unwrap();
        for (mark, verdict) in [(marked(THIRD), DROP), (marked(9), PASS), (0, PASS)] {
            let (got, _) = w.p.run_with_mark(Way::Out, &stray.bytes(), mark);
            assert_eq!(got, verdict);
        }
    }
}

/// A packet that opens a path continues on that path, marked or not: no stack may receive it.
#[test]
fn what_opens_the_other_path_takes_it() {
    for h in all() {
        let mut w = h.passing();
        w.open(&h);
        let primer = Frame {
            flags: ACK | dysco_common::tcp::PSH,
            window: u16::MAX,
            payload: Vec::new(),
            ..h.data()
        };
        w.p.becomes(Way::In, &on(w.left[1], &primer), OK, &primer);
        w.goes(&primer, None, w.right[1]);
        w.goes(&primer, Some(THIRD), w.right[1]);
        w.goes(&h.data(), None, w.right[0]);
    }
}

/// The session continues through this host's firewall, even if one of its neighbours has left a
/// path.
#[test]
fn the_end_of_a_path_goes_no_further() {
    for h in all() {
        let mut w = h.passing();
        let mut paths = vec![(w.left[0], h.data()), (mirror(w.right[0]), h.back())];
        for is_open in [false, true] {
            if is_open {
                w.open(&h);
                paths.extend([(w.left[1], h.data()), (mirror(w.right[1]), h.back())]);
            }
            for (path, frame) in &paths {
                for flags in [ACK | PSH, RST | ACK | PSH] {
                    let ends = Frame {
                        flags,
                        window: dysco_common::two_paths::LAST_WINDOW,
                        payload: Vec::new(),
                        ..on(*path, frame)
                    };
                    let (verdict, _) = w.p.run(Way::In, &ends.bytes());
                    assert_eq!(verdict, DROP, "{flags}, another path: {is_open}");
                }
            }
            let slots = &[FIRST, SECOND, THIRD, FOURTH][..paths.len()];
            assert!(slots.iter().all(|slot| w.p.session(*slot).life.reset == 0));
            let parts = slots.iter().map(|slot| w.p.session(*slot).two.part);
            assert_eq!(
                parts.collect::<Vec<_>>(),
                [part::CURRENT, part::CURRENT, part::NEXT, part::NEXT][..paths.len()]
            );
        }
    }
}

/// The same holds for the packet that shows the length of segments, both ways. Other data takes
/// the path in use.
#[test]
fn the_longest_segment_of_the_opening_takes_the_other_path_as_well() {
    for h in all() {
        let mut w = h.passing();
        w.open(&h);
        let long = |of: Frame, before: u32| Frame {
            seq: before - 1400,
            flags: ACK | dysco_common::tcp::PSH,
            window: u16::MAX,
            payload: vec![0; 1400],
            ..of
        };
        let there = long(h.data(), NEXT_ISN);
        w.p.becomes(Way::In, &on(w.left[1], &there), OK, &there);
        w.goes(&there, None, w.right[1]);
        w.goes(&there, Some(THIRD), w.right[1]);
        let back = long(h.back(), NEXT_ANSWER);
        w.p.becomes(Way::In, &on(mirror(w.right[1]), &back), OK, &back);
        w.goes(&back, None, mirror(w.left[1]));
        w.goes(&back, Some(FOURTH), mirror(w.left[1]));
        let data = h.data();
        w.goes(&data, None, w.right[0]);
        w.goes(&h.back(), None, mirror(w.left[0]));

        let data = long(data, NEXT_ISN + 1402);
        w.goes(&data, None, w.right[0]);
        w.p.becomes(Way::In, &on(w.left[1], &data), OK, &data);
        w.goes(&data, None, w.right[1]);
    }
}

/// A SYN on its way to another host of a chain is not for this host.
#[test]
fn a_host_that_forwards_leaves_a_chains_syn_alone() {
    for h in all() {
        let mut p = Programs::load();
        p.free(FIRST..FIRST + 4);
        p.passes(Way::In, &h.steered(b"", &[]));
        assert_eq!(p.count(Counter::ChainKey), 0);
    }
}

//! A host of a chain has no socket that judges the end of a session: a segment that no end can
//! believe ends nothing there either.

use std::net::SocketAddr;

use dysco_common::session::Life;
use dysco_common::tcp::{ACK, FIN, PSH, RST};
use dysco_common::{Addr, FlowKey};

use super::*;
use crate::bench::{OK, Programs, REDIRECT, Way};
use crate::frame::{Frame, mirror, on};

/// State at the middlebox of a session whose ends have sent some bytes.
struct Between {
    p: Programs,
    left: FlowKey,
    right: FlowKey,
}

/// Bytes that the client has sent, and bytes that the server has acknowledged.
const SENT: u32 = 1000;
const ACKED: u32 = 400;

impl Hosts {
    fn opening(&self) -> Between {
        let next = Addr::from(self.net.remote.ip());
        let mut p = self.middlebox();
        p.hop(next, &self.hop(self.net.new_remote));
        let at = |a: SocketAddr, port| SocketAddr::new(a.ip(), port);
        let right = FlowKey::new(
            at(self.net.new_remote, 61_000 + SECOND as u16),
            self.net.remote,
        );
        p.run(Way::In, &self.steered(b"", &[]).bytes());
        p.run(Way::Out, &self.syn(b"").bytes());
        let left = p.session(FIRST).path;
        Between { p, left, right }
    }

    fn between_ends(&self) -> Between {
        let mut between = self.opening();
        between.back(&self.syn_ack());
        between.forth(&self.client_says(0, ACK | PSH, SENT as usize));
        between.back(&self.server_says(0, ACK, ACKED));
        between
    }

    fn client_says(&self, past: u32, flags: u8, len: usize) -> Frame {
        Frame {
            seq: ISN.wrapping_add(1).wrapping_add(past),
            ack: 5001,
            flags,
            payload: vec![0; len],
            ..self.net.sent()
        }
    }

    fn server_says(&self, past: u32, flags: u8, acked: u32) -> Frame {
        Frame {
            src: self.net.remote,
            dst: self.net.local,
            seq: 5001_u32.wrapping_add(past),
            ack: ISN.wrapping_add(1 + acked),
            flags,
            payload: Vec::new(),
            ..self.net.sent()
        }
    }
}

impl Between {
    /// Forwards a frame of the client.
    fn forth(&mut self, frame: &Frame) {
        self.p
            .becomes(Way::In, &on(mirror(self.left), frame), OK, frame);
        self.p
            .becomes(Way::Out, frame, REDIRECT, &on(self.right, frame));
    }

    /// Forwards a frame of the server.
    fn back(&mut self, frame: &Frame) {
        self.p
            .becomes(Way::In, &on(mirror(self.right), frame), OK, frame);
        self.p
            .becomes(Way::Out, frame, REDIRECT, &on(self.left, frame));
    }

    fn lives(&self) -> [Life; 2] {
        [FIRST, SECOND].map(|slot| self.p.session(slot).life)
    }
}

#[test]
fn a_reset_that_no_end_believes_ends_nothing() {
    for h in all() {
        let mut b = h.between_ends();
        let reset = |b: &Between| b.lives().map(|life| life.reset & 1);
        for past in [ACKED - 1, SENT + 1, SENT + (1 << 31), u32::MAX] {
            b.forth(&h.client_says(past, RST, 0));
            assert_eq!(reset(&b), [0, 0], "{past}");
        }
        for past in [1, 1 << 20, 1 << 31, u32::MAX] {
            b.back(&h.server_says(past, RST, ACKED));
            assert_eq!(reset(&b), [0, 0], "{past}");
        }
    }
}

#[test]
fn a_reset_that_an_end_may_believe_ends_the_session() {
    for h in all() {
        for past in [ACKED, SENT] {
            let mut b = h.between_ends();
            b.forth(&h.client_says(past, RST, 0));
            assert_eq!(b.lives().map(|life| life.reset & 1), [1, 1]);
        }
        let mut b = h.between_ends();
        b.back(&h.server_says(0, RST | ACK, ACKED));
        assert_eq!(b.lives().map(|life| life.reset & 1), [1, 1]);
    }
}

#[test]
fn a_fin_that_no_end_takes_closes_nothing() {
    const WINDOW: u32 = 65_535 << 7;
    for h in all() {
        let mut b = h.between_ends();
        // Nor is its number recorded, so that another segment would fit it.
        let most = SENT + WINDOW + 1;
        for past in [ACKED - 2, most, most, 1 << 31] {
            b.forth(&h.client_says(past, FIN | ACK, 0));
            let [left, right] = b.lives();
            assert_eq!((left.fin_in, right.fin_out), (0, 0), "{past}");
        }
        let mut b = h.between_ends();
        for past in [WINDOW + 1, 1 << 31, u32::MAX - 1] {
            b.back(&h.server_says(past, FIN | ACK, ACKED));
            let [left, right] = b.lives();
            assert_eq!((left.fin_out, right.fin_in), (0, 0), "{past}");
        }
    }
}

/// Also if the data before it has been lost on its way here.
#[test]
fn a_fin_closes_its_half() {
    for h in all() {
        for past in [ACKED - 1, SENT, SENT + 100_000] {
            let mut b = h.between_ends();
            b.forth(&h.client_says(past, FIN | ACK, 0));
            let [left, right] = b.lives();
            assert_eq!((left.fin_in, right.fin_out), (1, 1), "{past}");
            b.back(&h.server_says(0, FIN | ACK, ACKED));
            let reported = b.lives().map(|life| life.fin_in & life.fin_out);
            assert_eq!(reported, [1, 1]);
        }
    }
}

/// Anybody who knows the five-tuple may acknowledge any number.
#[test]
fn numbers_that_are_nobodys_are_not_judged_by() {
    for h in all() {
        let mut b = h.between_ends();
        b.back(&h.server_says(0, ACK, 1 << 30));
        b.forth(&h.client_says(1 << 30, RST, 0));
        assert_eq!(b.lives().map(|life| life.reset & 1), [0, 0]);
        b.forth(&h.client_says(SENT, FIN | ACK, 0));
        assert_eq!(b.lives().map(|life| life.fin_in), [1, 0]);
        b.forth(&h.client_says(SENT, RST, 0));
        assert_eq!(b.lives().map(|life| life.reset & 1), [1, 1]);
    }
}

/// A server that still has a session with that name answers with an ACK. The client resets it.
#[test]
fn before_the_answer_there_is_nothing_to_judge_by() {
    for h in all() {
        let mut b = h.opening();
        b.back(&h.server_says(77, ACK, 90_000));
        b.forth(&h.client_says(90_000, RST, 0));
        assert_eq!(b.lives().map(|life| life.reset & 1), [1, 1]);
    }
}

/// The last host before a server without an agent has no entry behind it.
#[test]
fn the_last_host_judges_what_comes_by_the_chain() {
    for h in all() {
        for (past, believed) in [(SENT, 1), (SENT + 1, 0), (1 << 31, 0)] {
            let mut p = h.middlebox();
            p.run(Way::In, &h.steered(b"", &[]).bytes());
            let left = p.session(FIRST).path;
            p.run(Way::Out, &h.syn_ack().bytes());
            let data = h.client_says(0, ACK | PSH, SENT as usize);
            for frame in [&data, &h.client_says(past, RST, 0)] {
                p.becomes(Way::In, &on(mirror(left), frame), OK, frame);
            }
            assert_eq!(p.session(FIRST).joined, 0);
            assert_eq!(p.session(FIRST).life.reset & 1, believed, "{past}");
        }
    }
}

/// A middlebox may refuse to forward.
#[test]
fn a_middleboxs_own_reset_ends_its_side() {
    for h in all() {
        let mut b = h.between_ends();
        let reset = h.server_says(0, RST, ACKED);
        b.p.becomes(Way::Out, &reset, REDIRECT, &on(b.left, &reset));
        assert_eq!(b.lives().map(|life| life.reset & 1), [1, 0]);
    }
}

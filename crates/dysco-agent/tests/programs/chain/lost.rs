//! A neighbour that has lost its sessions without notice, in a power failure, and uses its
//! subsessions again from the first. User space asks it about the sessions here.

use std::net::SocketAddr;

use dysco_common::chain::{Chain, WireElement};
use dysco_common::{Counter, EventKind, FlowKey, State};

use super::*;
use crate::bench::{OK, Way};
use crate::frame::Frame;

impl Hosts {
    /// Returns a SYN of a session from a port. It comes by the subsession of one slot, and says
    /// that it was sent by that of another.
    fn syn_by(&self, port: u16, [slot, said]: [u16; 2], last: WireElement) -> Frame {
        let session = FlowKey::new(SocketAddr::new(self.net.local.ip(), port), self.net.remote);
        let path = self.subsession(slot);
        let mut payload = self.payload_of(session, self.subsession(said), &[]);
        payload.origin = session;
        payload.set_rest(&Chain::of(&[self.middlebox]).unwrap(), &last);
        payload.mac = payload.proof(KEY);
        Frame {
            src: path.local(),
            dst: path.remote(),
            payload: payload.to_bytes().to_vec(),
            ..self.syn(b"")
        }
    }
}

const SLOT: u16 = FIRST as u16;
const OTHER: u16 = SLOT + 7;

#[test]
fn a_subsession_that_is_given_again_is_reported() {
    for h in all() {
        let plain = WireElement::default();
        for (port, by, last, reported) in [
            (40_001, [SLOT, SLOT], plain, true),
            (40_000, [OTHER, OTHER], plain, true),
            // A NAT has changed the subsession: the neighbour knows it by another name.
            (40_001, [SLOT, OTHER], plain, false),
            (40_000, [OTHER, SLOT], plain, false),
            // Another path of a live session is no new session.
            (40_001, [SLOT, SLOT], WireElement::live([1, 2]), false),
        ] {
            let mut p = h.middlebox();
            let first = h.syn_by(40_000, [SLOT, SLOT], plain);
            assert_eq!(p.run(Way::In, &first.bytes()).0, OK);
            let syn = h.syn_by(port, by, last);
            p.drops(Way::In, &syn, Counter::ChainTaken);
            let want = [(EventKind::Taken, FIRST)];
            assert_eq!(p.events(), want[usize::from(!reported)..], "{port} {by:?}");
            assert_eq!(p.session(FIRST).state, State::NewPath as u32);
        }
    }
}

//! Replays: a host that has seen a payload may send it again, at any time and from anywhere.

use std::net::SocketAddr;

use dysco_common::fresh::FRESH;
use dysco_common::{Counter, FlowKey};

use super::*;
use crate::bench::{DROP, OK, Way};
use crate::frame::{Frame, on};

/// A tick of the neighbour's clock, long before or after this host's present one.
const THEN: u32 = 0x8000_0000;

impl Hosts {
    /// Returns the SYN of the opener's nth session, sent at this tick of its clock.
    fn sent_at(&self, nth: u16, sent: u32) -> Frame {
        let subsession = self.subsession(nth);
        let from = SocketAddr::new(self.net.local.ip(), 30_000 + nth);
        let session = FlowKey::new(from, self.net.remote);
        let mut payload = self.payload_of(session, subsession, &[]);
        (payload.origin, payload.sent) = (session, sent.to_be());
        payload.mac = payload.proof(KEY);
        let payload = payload.to_bytes().to_vec();
        on(
            subsession,
            &Frame {
                payload,
                ..self.syn(b"")
            },
        )
    }
}

#[test]
fn a_copy_of_long_ago_is_refused() {
    for h in all() {
        let p = h.middlebox();
        let takes = |nth, sent| {
            let refused = p.count(Counter::ChainReplayed);
            let verdict = p.run(Way::In, &h.sent_at(nth, sent).bytes()).0;
            let refused = p.count(Counter::ChainReplayed) - refused;
            assert_eq!(
                (verdict, refused),
                if refused == 0 { (OK, 0) } else { (DROP, 1) }
            );
            refused == 0
        };
        assert!(takes(1, THEN));
        // This host's clock may advance by a tick meanwhile.
        assert!(!takes(2, THEN.wrapping_sub(FRESH + 1)));
        assert!(takes(2, THEN.wrapping_sub(FRESH - 2)));
        // The clock advances, and has wrapped around if it was started long ago.
        assert!(takes(3, THEN + 1000));
        assert!(!takes(4, THEN));
        assert!(!takes(4, THEN + 1000 - FRESH - 1));
        assert!(takes(4, THEN + 1000));
    }
}

/// The proof is checked first: a stranger's claim about a neighbour's clock is not believed.
#[test]
fn a_forgery_says_nothing_of_the_clock() {
    for h in all() {
        let mut p = h.middlebox();
        let mut forged = h.sent_at(1, THEN + 1000);
        *forged.payload.last_mut().unwrap() ^= 1;
        p.drops(Way::In, &forged, Counter::ChainProof);
        assert_eq!(p.run(Way::In, &h.sent_at(1, THEN).bytes()).0, OK);
        p.drops(Way::In, &forged, Counter::ChainProof);
        assert_eq!(p.run(Way::In, &h.sent_at(2, THEN).bytes()).0, OK);
    }
}

/// Both hosts have one key.
#[test]
fn what_this_host_has_sent_is_nobodys_word_to_it() {
    for h in all() {
        let mut p = h.middlebox();
        let syn = h.sent_at(1, THEN);
        p.own(syn.src.ip().into());
        p.drops(Way::In, &syn, Counter::ChainReplayed);
    }
}

/// A session is not opened again by its own SYN while its end is remembered.
#[test]
fn a_session_that_has_ended_is_not_opened_by_its_syn() {
    for h in all() {
        for (answered, isn, opens) in [
            (true, ISN, false),
            (true, ISN + 1, true),
            (false, ISN, true),
        ] {
            let mut p = h.middlebox();
            let syn = h.steered(b"", &[]);
            assert_eq!(p.run(Way::In, &syn.bytes()).0, OK);
            if answered {
                p.run(Way::Out, &h.syn_ack().bytes());
            }
            let mut ended = p.session(FIRST);
            ended.life.reset = 1;
            p.put(FIRST, &ended);
            let again = Frame { seq: isn, ..syn };
            match opens {
                true => assert_eq!(p.run(Way::In, &again.bytes()).0, OK),
                false => p.drops(Way::In, &again, Counter::ChainReplayed),
            }
        }
    }
}

//! A neighbour that has lost its sessions without a word, with its power: it begins anew
//! with the subsessions that it gives.

use super::*;

/// The key that the neighbour has since it is back.
const NEXT_ID: u64 = 0xbeef;
const LATER: u64 = u64::MAX;

impl Hosts {
    /// A SYN of a session from another port, on a subsession.
    fn syn_by(&self, port: u16, slot: u16, key: u64) -> (Frame, Frame) {
        let session = FlowKey::new(SocketAddr::new(self.net.local.ip(), port), self.net.remote);
        let path = self.subsession(slot);
        let mut payload = self.payload_of(session, path, &[]);
        payload.fill(key, &session, &session, &path);
        payload.mac = payload.proof(KEY);
        let steered = Frame {
            src: path.local(),
            dst: path.remote(),
            payload: payload.to_bytes().to_vec(),
            ..self.syn(b"")
        };
        let plain = Frame {
            src: session.local(),
            ..self.syn(b"")
        };
        (steered, plain)
    }

    /// The middlebox with a session that goes on to the server, and the neighbour's two keys.
    fn with_a_session(&self, slot: u16, since: u64) -> Programs {
        let mut p = self.middlebox();
        p.hop(self.net.remote.ip().into(), &self.hop(self.net.new_remote));
        let (steered, plain) = self.syn_by(40_000, slot, KEY_ID);
        p.becomes(Way::In, &steered, OK, &plain);
        assert_eq!(p.run(Way::Out, &plain.bytes()).0, REDIRECT);
        assert_eq!(p.session(SECOND).joined, FIRST + 1);
        p.key_since(NEXT_ID, KEY, since);
        p
    }
}

#[test]
fn a_neighbour_that_is_back_may_give_a_subsession_again() {
    for h in all() {
        let mut p = h.with_a_session(FIRST as u16, LATER);
        let (steered, plain) = h.syn_by(40_001, FIRST as u16, NEXT_ID);
        p.becomes(Way::In, &steered, OK, &plain);
        let path = mirror(h.subsession(FIRST as u16));
        assert_eq!(p.find(&path).unwrap().slot, SECOND + 1);
        // What the server still sends for the one before is no word of this one.
        assert_eq!(p.session(FIRST).state, State::Tombstone as u32);
        assert_eq!(p.session(SECOND).life.reset, 1);
        assert!(p.events().contains(&(EventKind::Reset, SECOND)));
        let back = Frame {
            src: h.net.remote,
            dst: h.net.local,
            ..h.net.sent()
        };
        p.drops(Way::Out, &back, Counter::DroppedTombstone);
        // The same SYN again is the new one's.
        p.becomes(Way::In, &steered, OK, &plain);
    }
}

#[test]
fn a_session_that_is_opened_again_may_have_another_subsession() {
    for h in all() {
        let mut p = h.with_a_session(FIRST as u16, LATER);
        let (steered, plain) = h.syn_by(40_000, FIRST as u16 + 7, NEXT_ID);
        p.becomes(Way::In, &steered, OK, &plain);
        assert_eq!(p.session(FIRST).state, State::Tombstone as u32);
        let session = FlowKey::new(h.net.remote, plain.src);
        assert_eq!(p.find(&session).unwrap().slot, SECOND + 1);
    }
}

/// Neither what is replayed, nor one neighbour by another's subsession.
#[test]
fn an_older_key_gives_nothing_again() {
    for h in all() {
        for slot in [FIRST as u16, FIRST as u16 + 7] {
            let mut p = h.with_a_session(FIRST as u16, 1);
            let port = if slot == FIRST as u16 { 40_001 } else { 40_000 };
            let (steered, _) = h.syn_by(port, slot, NEXT_ID);
            p.drops(Way::In, &steered, Counter::ChainTaken);
            assert_eq!(p.session(FIRST).state, State::NewPath as u32);
            assert_eq!(p.session(SECOND).life.reset, 0);
        }
        let mut p = h.with_a_session(FIRST as u16, LATER);
        let (mut steered, plain) = h.syn_by(40_000, FIRST as u16 + 7, NEXT_ID);
        let stranger = SocketAddr::new(h.net.remote.ip(), steered.src.port());
        let path = FlowKey::new(stranger, steered.dst);
        let session = FlowKey::new(plain.src, plain.dst);
        let mut payload = h.payload_of(session, path, &[]);
        payload.fill(NEXT_ID, &session, &session, &path);
        payload.mac = payload.proof(KEY);
        (steered.src, steered.payload) = (stranger, payload.to_bytes().to_vec());
        p.drops(Way::In, &steered, Counter::ChainTaken);
        assert_eq!(p.session(FIRST).state, State::NewPath as u32);
    }
}

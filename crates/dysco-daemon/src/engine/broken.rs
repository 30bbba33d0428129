//! A middlebox that ends a session between two paths, by dying or by closing its sockets: its
//! kernel has reset one end or none. Both ends get a reset, from this host if it acts for them.

use std::time::Duration;

use dysco_common::two_paths::{Anchor, closed_before, is_broken, undelivered};
use dysco_common::{FlowKey, Session};
use dysco_proto::{ChangeId, HostEvent};
use etherparse::TcpHeader;

use super::packets::packet_of;
use super::raw::send_past;
use super::{Plane, ProxyChanges, ThisHost};

/// Intervals after which an end gets another reset. An end accepts only the number that it expects,
/// and answers any other number with an acknowledgement that shows it.
const AGAIN: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(3),
];

impl ThisHost {
    /// Handles a program's event that the middlebox ended the session.
    pub(super) fn session_broken(&mut self, slot: u32) {
        let change = self
            .proxy_changes
            .held
            .iter()
            .find(|(_, h)| h.slots().any(|(s, _)| s == slot));
        let change = change.map(|(change, _)| *change);
        if !change.is_some_and(|change| self.proxy_changes.tell_broken(&mut self.plane, change)) {
            self.chain_updates
                .session_ended(&mut self.plane, slot, true);
        }
    }
}

impl ProxyChanges {
    /// Reports to a change that the middlebox has ended its session. Returns true if that is so.
    pub(super) fn tell_broken(&self, plane: &mut Plane, change: ChangeId) -> bool {
        let Some(at) = self.held.get(&change).map(|held| held.anchor()) else {
            return false;
        };
        let slots = self.slots_of(plane, change);
        let broken = |s: &Session| is_broken(s) || closed_before(at, s);
        let sessions: Vec<Session> = slots
            .iter()
            .map(|slot| plane.agent.session(*slot))
            .collect();
        if !sessions.iter().any(broken) {
            return false;
        }
        let bytes = sessions.iter().map(|s| undelivered(at, s)).max();
        plane.tell_machine(HostEvent::Broken {
            change,
            bytes: bytes.unwrap_or(0),
        });
        true
    }

    /// Resets the session for the ends that this host acts for.
    pub(super) fn reset_ends(&self, plane: &Plane, change: ChangeId) {
        let Some(held) = self.held.get(&change) else {
            return;
        };
        let (at, slots) = (held.anchor(), held.slots().collect::<Vec<_>>());
        for slot in self.slots_of(plane, change) {
            plane.agent.break_off(slot);
        }
        let agent = plane.agent.clone();
        let say = move || {
            for (slot, created_ns) in &slots {
                let s = agent.session(*slot);
                if s.created_ns == *created_ns {
                    reset_end(at, &s);
                }
            }
        };
        say();
        tokio::spawn(async move {
            for wait in AGAIN {
                tokio::time::sleep(wait).await;
                say();
            }
        });
    }
}

/// Sends a reset to the end that an entry acts for: to a socket of this host, as from the other
/// end, or to a remote end.
fn reset_end(at: Anchor, s: &Session) {
    let (from, seq, ack) = match at {
        Anchor::Local => (reversed(&s.key), s.snd_ack, s.snd_max),
        Anchor::Remote => (s.key, s.rcv_ack, s.rcv_max),
    };
    let to = from.remote();
    let mut tcp = TcpHeader::new(from.local().port(), to.port(), seq, 0);
    (tcp.rst, tcp.ack) = (true, true);
    tcp.acknowledgment_number = ack;
    if let Err(error) = send_past(&packet_of(&from, tcp, &[]), to) {
        tracing::warn!(%to, %error, "cannot reset a session whose middlebox has died");
    }
}

/// Returns the five-tuple as the other end has it.
fn reversed(key: &FlowKey) -> FlowKey {
    FlowKey::new(key.remote(), key.local())
}

//! Sessions that a neighbour has lost silently: it lost its power, or its message was lost. The
//! neighbour assigns their subsessions again, and a SYN of another session finds them taken here.
//! This host therefore asks the neighbour, and forgets the sessions that the neighbour no longer
//! holds.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_common::view::ChainState;
use dysco_common::{FlowKey, Session};
use dysco_control::Incoming;
use dysco_proto::Subsession;

use super::message::{Held, MANY, Message};
use crate::engine::{Chains, Plane, ThisHost, measure};

/// Minimum interval between questions to a neighbour about a session: anybody may repeat a SYN.
const AGAIN: Duration = Duration::from_secs(1);

/// Question about an entry.
pub(super) struct Asked {
    created_ns: u64,
    at: Instant,
}

/// Returns true if a neighbour has entered this session here by a chain, its path does not change,
/// and it has the name that the neighbour has for it.
fn entered(s: &Session) -> bool {
    let of_chain = s.view().new_path().is_some_and(|route| {
        route.chain != ChainState::None && route.other.is_none() && route.relay.is_none()
    });
    of_chain && s.is_current() && s.life.opened_here == 0 && s.renamed == 0
}

/// Returns true if there is an entry and it holds the session that a neighbour asks about. While
/// its SYN is not answered it may be the same session, opened again.
fn holds(entry: Option<&Session>, asked: &Held) -> bool {
    let Some(s) = entry else {
        return false;
    };
    let names = [Some(s.key), s.alias()];
    let mut names = names.iter().flatten().map(measure::opened);
    let same = names.any(|name| asked.names.contains(&name));
    let opens = s.chain_state() == ChainState::Opening && s.is_current();
    same && (!opens || s.local.isn == asked.isn)
}

impl Chains {
    /// Handles a SYN of another session that arrived by the subsession of this entry, or of this
    /// session by another subsession.
    pub(in crate::engine) fn subsession_taken(&mut self, plane: &Plane, slot: u32) {
        let s = plane.agent.session(slot);
        if !entered(&s) {
            return;
        }
        let now = Instant::now();
        let questioned = &mut self.questioned;
        if questioned.len() >= MANY {
            questioned.retain(|_, asked| now - asked.at < AGAIN);
        }
        let before = questioned
            .get(&slot)
            .filter(|a| a.created_ns == s.created_ns);
        if before.is_some_and(|asked| now - asked.at < AGAIN) || questioned.len() >= MANY {
            return;
        }
        let created_ns = s.created_ns;
        questioned.insert(
            slot,
            Asked {
                created_ns,
                at: now,
            },
        );
        let names = [Some(s.key), s.alias()];
        let held = Held {
            path: measure::accepted(&s.path),
            names: names.iter().flatten().map(measure::accepted).collect(),
            isn: s.remote.isn,
        };
        plane.send_about_chains(held.path.left.ip(), &Message::Has(held));
    }
}

impl Plane {
    /// Answers a neighbour that asks whether this host still holds a session.
    pub(super) fn is_held(&self, asked: &Held, incoming: &Incoming) {
        if !incoming.from.holds(asked.path.right.ip()) || !self.is_own(asked.path.left.ip()) {
            return;
        }
        let slot = self
            .agent
            .find_path(&FlowKey::new(asked.path.left, asked.path.right));
        let entry = slot.map(|slot| self.agent.session(slot));
        if !holds(entry.as_ref(), asked) {
            self.send_about_chains(incoming.via, &Message::HasNot(asked.path));
        }
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.config.host.addresses.contains(&address.to_canonical())
    }
}

impl ThisHost {
    /// Handles the answer that a neighbour no longer holds a session that it was asked about.
    pub(super) fn not_held(&mut self, path: Subsession, incoming: &Incoming) {
        if !incoming.from.holds(path.left.ip()) {
            return;
        }
        let Some(slot) = self
            .plane
            .agent
            .find_path(&FlowKey::new(path.right, path.left))
        else {
            return;
        };
        let s = self.plane.agent.session(slot);
        let asked = self.chains.questioned.remove(&slot);
        let its = asked.is_some_and(|asked| asked.created_ns == s.created_ns);
        let both = [Some(slot), self.plane.linked(slot, &s)];
        let mut both = both.iter().flatten();
        if !its || !entered(&s) || both.any(|slot| self.is_changing(*slot)) {
            return;
        }
        let id = self.plane.session_id(slot, &s);
        let text = format!("{:?} is held no more by {}", s.key, path.left.ip());
        self.plane.report("closed", Some(id), text);
        self.collect(slot, &s);
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::session::part;

    use super::*;

    fn of(own: &str, other: &str) -> FlowKey {
        FlowKey::new(own.parse().unwrap(), other.parse().unwrap())
    }

    #[test]
    fn what_a_neighbour_holds() {
        let key = of("10.0.0.1:40000", "10.0.1.1:80");
        let asked = Held {
            path: measure::opened(&of("10.0.0.1:61000", "10.0.2.1:80")),
            names: vec![measure::opened(&key)],
            isn: 7,
        };
        assert!(!holds(None, &asked));
        let mut s = Session {
            key,
            ..Session::default()
        };
        (s.two.chained, s.local.isn) = (2, 99);
        assert!(holds(Some(&s), &asked));
        // The session is being opened, or was opened again.
        s.two.chained = 1;
        assert!(!holds(Some(&s), &asked));
        s.local.isn = 7;
        assert!(holds(Some(&s), &asked));
        // An entry of another path of a live session has another number.
        (s.two.part, s.local.isn) = (part::NEXT, 99);
        assert!(holds(Some(&s), &asked));
        s.key.local_port ^= 1;
        assert!(!holds(Some(&s), &asked));
    }
}

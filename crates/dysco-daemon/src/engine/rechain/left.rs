//! Sessions that a middlebox has left in another way than the bypass: no other
//! host can come in, and why.

use std::net::IpAddr;

use dysco_common::{Session, State};

use crate::engine::Engine;
use crate::engine::neighbours::Known;
use crate::protocol::Reason;

const LOCAL: &str = "a middlebox has left it, and its host alone relays it (local): another host can come in only between two that run dyscod, one on each side of it";

impl Engine {
    /// Does this host stand where no other can come in beside it?
    pub(super) fn not_in_between(&self, s: &Session) -> Result<(), Reason> {
        let why = match State::from_word(s.state) {
            Some(State::TwoPaths | State::FarTwoPaths) => {
                "a middlebox is leaving it at this moment; ask again when it has".into()
            }
            Some(State::Relay) => format!("{LOCAL}; {}", self.instead(s)),
            Some(State::Return) => {
                let ends = "a middlebox has left it, and replies go straight to a client that need not run dyscod (return)";
                format!(
                    "{ends}: another host can come in only between two that run dyscod, one on each side of it; once the client's host does, 'dyscoctl remove-middlebox self --mode bypass' on the middlebox's, and then ask on the client's"
                )
            }
            Some(State::Tombstone) => {
                "a middlebox of this host has left it, and its packets pass this host by; ask on the host that opened it".into()
            }
            Some(
                State::Free
                | State::Opening
                | State::Tracked
                | State::NewPath
                | State::Closed
                | State::Adopted
                | State::Joining
                | State::Switching
                | State::Passing,
            )
            | None => return Ok(()),
        };
        Err(Reason::NoSuchChain(why))
    }

    /// What can be done with a relayed session instead, by who its ends are.
    fn instead(&self, s: &Session) -> String {
        let other = s.joined_to().map(|slot| self.agent.session(slot));
        let ends = [Some(s), other.as_ref()].map(|s| s.map(|s| s.key.remote.ip()));
        let known: Vec<IpAddr> = ends.into_iter().flatten().collect();
        for ip in &known {
            // For who asks again.
            if self.neighbours.worth_asking(*ip) {
                self.control.reach(*ip);
            }
        }
        let runs = |ip: &IpAddr| self.neighbours.know(*ip) == Known::Agent;
        let (agents, others): (Vec<_>, Vec<_>) = known.into_iter().partition(runs);
        match (agents.as_slice(), others.as_slice()) {
            ([_, _], []) => "both of its neighbours do: 'dyscoctl remove-middlebox self --mode bypass' there lets that host out of it, and then ask on the host that opened it".into(),
            ([agent], [other]) => format!(
                "{agent} does and {other} does not, as far as is known: between that host and {agent} this release puts none; once {other} runs dyscod, too, 'dyscoctl remove-middlebox self --mode bypass' there, and then ask on the host that opened it"
            ),
            (_, [one, other]) => format!(
                "neither {one} nor {other} does, as far as is known"
            ),
            _ => "what is beside it is not known".into(),
        }
    }
}

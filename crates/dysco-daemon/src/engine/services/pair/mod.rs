//! Services at both ends of a session: the hosts of both ends have a handler each, and the two
//! handlers have a connection to each other, the tunnel (`dysco_proto::pairs`).
//!
//! Nothing of the session changes before both handlers have it. From then on each host alone
//! decides the cutoff of what its end sends, and tells the other one.

mod alter;
mod invite;
mod message;
mod progress;
mod tunnel;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dysco_proto::marked::Marked;
use dysco_proto::pairs::{Change, Content, Message, PairId, Secret};
use dysco_runner::protocol::{self, End, PairName};

use super::{Serviced, Services, Stage};
use crate::engine::Plane;
use alter::{Asked, Expected};
pub(super) use tunnel::Door;

/// Time after which a message is repeated that was not answered.
const REPEAT: Duration = Duration::from_millis(200);
/// Time that the other host has to answer an invitation.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that the asker has until its handler has the session: it may have to start one, and the
/// kernel verifies programs for it.
const ASKERS_TIME: Duration = Duration::from_secs(60);

/// Number of ended pairs that are remembered at least.
const SPARE_PAIRS: usize = 64;

/// The other half of a session's services.
pub(super) struct Paired {
    pub id: PairId,
    /// Address of the other host: that of its end.
    pub peer: IpAddr,
    /// This host has asked the other one.
    asks: bool,
    secret: Secret,
    token: Secret,
    tunnel: Option<OwnedFd>,
    /// The asker connects, or has connected. Two connections could be taken for one.
    connects: bool,
    /// The asker's handler has the session.
    proceeds: bool,
    /// Change whose cutoff the other host was told.
    told: Option<Change>,
    /// Change that the other host was told to be over for what its end sends.
    told_done: Option<Change>,
    /// Change that is over for what this host's end sends, as the other host has told.
    done: Option<Change>,
    /// No data passes this host's handler any more, and the other host was told.
    told_out: bool,
    /// No data passes the other handler any more.
    out: bool,
    /// A change of some services that the other host was asked for, and has not answered.
    asked: Option<Asked>,
    /// The last change of some services that the other host has asked for.
    expected: Option<Expected>,
    /// Time of the next repetition.
    repeat: Instant,
}

impl Paired {
    fn new(id: PairId, peer: IpAddr, asks: bool, secret: Secret, token: Secret) -> Paired {
        Paired {
            id,
            peer,
            asks,
            secret,
            token,
            tunnel: None,
            connects: false,
            proceeds: false,
            told: None,
            told_done: None,
            done: None,
            told_out: false,
            out: false,
            asked: None,
            expected: None,
            repeat: Instant::now() + REPEAT,
        }
    }

    /// Returns the half of a session whose handler an earlier process has given it. Secrets are the
    /// handler's alone by now.
    pub(super) fn found(name: PairName) -> Paired {
        let none = Secret([0; 32]);
        Paired::new(PairId(name.id), name.peer, false, none, none)
    }

    /// Returns what the handler has to know of it.
    pub(super) fn for_handler(&self, opened_here: bool) -> protocol::Pair {
        protocol::Pair {
            id: self.id.0,
            peer: self.peer,
            beyond: if opened_here { End::Other } else { End::Opener },
            secret: self.secret.0,
        }
    }

    /// Returns true if this host has asked the other one.
    pub(super) fn asks(&self) -> bool {
        self.asks
    }

    /// Takes the connection to the other handler.
    pub(super) fn take_tunnel(&mut self) -> Option<OwnedFd> {
        self.tunnel.take()
    }

    /// True once each time that a repetition is due.
    fn is_due(&mut self) -> bool {
        let due = self.repeat <= Instant::now();
        if due {
            self.repeat = Instant::now() + REPEAT;
        }
        due
    }
}

impl Serviced {
    /// True if this host waits for a message of the other one.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.paired.as_ref().is_some_and(|pair| match self.stage {
            Stage::Invited | Stage::Accepted(..) => true,
            Stage::In => pair.done != Some(Change::Enter) || pair.asked.is_some(),
            _ => false,
        })
    }
}

impl Services {
    /// Remembers the session of a pair, and forgets pairs that have ended.
    pub(super) fn remember_pair(&mut self, pair: PairId, slot: u32) {
        self.pairs.insert(pair, slot);
        if self.pairs.len() > SPARE_PAIRS + 2 * self.sessions.len() {
            let sessions = &self.sessions;
            self.pairs.retain(|id, slot| {
                let paired = sessions.get(slot).and_then(|one| one.paired.as_ref());
                *id == pair || paired.is_some_and(|paired| paired.id == *id)
            });
        }
    }

    /// Returns the other hosts of the sessions with services at both ends.
    pub(in crate::engine) fn peers(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let paired = self.sessions.values().filter_map(|one| one.paired.as_ref());
        paired.map(|paired| paired.peer)
    }

    /// Returns the slot of the session of a pair.
    fn slot_of_pair(&self, pair: PairId) -> Option<u32> {
        let slot = *self.pairs.get(&pair)?;
        let paired = self.sessions.get(&slot)?.paired.as_ref()?;
        (paired.id == pair).then_some(slot)
    }

    /// Sends a message about the services of a session to the other host.
    fn say(&self, plane: &Plane, slot: u32, content: Content) {
        let paired = self.sessions.get(&slot).and_then(|one| one.paired.as_ref());
        if let Some(paired) = paired {
            send(plane, paired.peer, paired.id, content);
        }
    }

    /// Tells the other host that a session's services do not come in, or have ended.
    pub(super) fn abort(&self, plane: &Plane, slot: u32, why: &str) {
        self.say(plane, slot, Content::Abort(why.into()));
    }
}

fn send(plane: &Plane, peer: IpAddr, pair: PairId, content: Content) {
    if !plane.faults.pass(content.name()) {
        return;
    }
    match (Message { pair, content }).encode() {
        Ok(bytes) => plane.control.send(peer, bytes),
        Err(error) => tracing::error!(%peer, %error, "cannot encode a message about services"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_have_ended_are_forgotten() {
        let mut services = Services::default();
        for id in 0..1000_u128 {
            let id = PairId(id.to_be_bytes());
            services.remember_pair(id, 7);
            assert!(services.pairs.contains_key(&id));
        }
        assert!(services.pairs.len() <= SPARE_PAIRS + 1);
    }
}

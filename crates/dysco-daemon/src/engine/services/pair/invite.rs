//! The steps before a session changes: both handlers get it.

use std::net::SocketAddr;

use dysco_api::{ServiceOutcome, ServiceSpec};
use dysco_common::{FlowKey, View};
use dysco_control::Incoming;
use dysco_explain::Cause;
use dysco_proto::pairs::{Content, PairId, Secret};

use super::super::choice;
use super::super::done::Came;
use super::super::{Serviced, Services, Stage, words};
use super::{ASKERS_TIME, Door, PATIENCE, Paired, send, tunnel};
use crate::engine::Plane;

/// Request of another host to take part.
pub(super) struct Invitation {
    pub opener: SocketAddr,
    pub other: SocketAddr,
    pub services: Vec<String>,
    pub secret: Secret,
    pub token: Secret,
    pub silent: bool,
}

impl Services {
    /// Asks the host of a session's other end to put the same services into it.
    pub(in crate::engine::services) fn invite(
        &mut self,
        plane: &Plane,
        slot: u32,
        mut one: Serviced,
    ) {
        let [secret, token] = [rand::random(), rand::random()].map(Secret);
        let pair = PairId(rand::random());
        let paired = Paired::new(pair, one.key.remote().ip(), true, secret, token);
        one.stage = Stage::Invited;
        one.paired = Some(paired);
        self.sessions.insert(slot, one);
        self.remember_pair(pair, slot);
        self.say_invite(plane, slot);
    }

    fn say_invite(&self, plane: &Plane, slot: u32) {
        let Some(one) = self.sessions.get(&slot) else {
            return;
        };
        let Some(paired) = &one.paired else {
            return;
        };
        let (local, remote) = (one.key.local(), one.key.remote());
        let (opener, other) = match one.opened_here {
            true => (local, remote),
            false => (remote, local),
        };
        let content = Content::Invite {
            opener,
            other,
            services: one.services.iter().map(ToString::to_string).collect(),
            secret: paired.secret,
            token: paired.token,
            silent: one.silent,
        };
        self.say(plane, slot, content);
    }

    /// Another host asks for services at both ends.
    pub(super) fn invited(
        &mut self,
        plane: &mut Plane,
        incoming: &Incoming,
        pair: PairId,
        invitation: Invitation,
    ) {
        let Some(peer) = incoming.from.addresses.first().copied() else {
            return;
        };
        // It may be a repetition.
        let result = match self.slot_of_pair(pair) {
            Some(_) => Ok(true),
            None => self.join(plane, incoming, pair, invitation),
        };
        let door = match result {
            // The invitation comes again.
            Ok(false) => return,
            Ok(true) => self.door(plane),
            Err(cause) => Err(cause),
        };
        if let Err(cause) = &door {
            tracing::info!(%peer, "services of another host were refused: {cause}");
        }
        send(plane, peer, pair, Content::Invited(door));
    }

    /// Takes part in a pair, if the session can have the services. Returns false if it is too early to
    /// decide.
    fn join(
        &mut self,
        plane: &mut Plane,
        incoming: &Incoming,
        pair: PairId,
        invitation: Invitation,
    ) -> Result<bool, Cause> {
        if !plane.config.services.invitations {
            let cause = Cause::new("the host of its other end takes no invitations");
            return Err(cause.hint("set invitations = true in [services] there"));
        }
        let Invitation { opener, other, .. } = invitation;
        let keys = [(opener, other), (other, opener)];
        let own = |(local, _): &(SocketAddr, SocketAddr)| {
            plane.config.host.addresses.contains(&local.ip())
        };
        let key = keys.iter().find(|ends| own(ends));
        let key = key.map(|(local, remote)| FlowKey::new(*local, *remote));
        let slot = key.and_then(|key| plane.agent.find(&key));
        let slot = slot.ok_or_else(|| {
            Cause::new("the host of its other end does not know the session").hint(
                "look there with 'dyscoctl sessions'; a NAT between the hosts changes its name",
            )
        })?;
        let s = plane.agent.session(slot);
        if !incoming.from.holds(s.key.remote().ip()) {
            return Err("the host that asks does not have an end of the session".into());
        }
        // The host that asks has forgotten the earlier services of both. Its message about that comes
        // again, and may be late.
        if self.is_paired(slot) && self.is_leaving(slot) && self.is_out(plane, slot) {
            self.out(plane, slot);
        }
        if !self.forget_earlier_invitation(slot) {
            return Ok(false);
        }
        let services = invitation.services.iter();
        let services = services.map(|text| text.parse::<ServiceSpec>().map_err(Cause::new));
        let services = services.collect::<Result<Vec<_>, _>>()?;
        let held = (s.view() == View::Held).then(words::has_its_own);
        let refusals = || choice::refusals(plane, self, slot, &services);
        if let Some(cause) = held.or_else(|| refusals().into_iter().next()) {
            return Err(Cause {
                why: format!("the host of its other end refuses: {}", cause.why),
                ..cause
            });
        }
        let Invitation {
            secret,
            token,
            silent,
            ..
        } = invitation;
        let mut one = Serviced::new(plane, slot, &s, services);
        one.silent = silent;
        one.stage = Stage::Invited;
        one.paired = Some(Paired::new(pair, s.key.remote().ip(), false, secret, token));
        // The operator there has decided anew.
        self.resting.remove(&slot);
        self.sessions.insert(slot, one);
        self.remember_pair(pair, slot);
        Ok(true)
    }

    /// Forgets services that the other host has asked for, and that it has not let begin. It asks anew:
    /// its `dyscod` was restarted, and the earlier invitation is no longer known there. Nothing of the
    /// session has changed yet. Returns false while the handler has not answered the earlier offer: its
    /// answer would be taken for that to the next one.
    fn forget_earlier_invitation(&mut self, slot: u32) -> bool {
        let Some(one) = self.sessions.get(&slot) else {
            return true;
        };
        let invited = one.paired.as_ref().is_some_and(|paired| !paired.asks);
        match one.stage {
            Stage::Offered(..) if invited => return false,
            Stage::Invited | Stage::Sockets if invited => {}
            Stage::Accepted(..) if invited => self.release(slot),
            _ => return true,
        }
        self.waiting.retain(|waits| *waits != slot);
        self.sessions.remove(&slot);
        true
    }

    /// Returns the TCP port on which connections of other hosts arrive.
    fn door(&mut self, plane: &Plane) -> Result<u16, Cause> {
        if let Some(door) = &self.door {
            return Ok(door.port);
        }
        let addresses = plane.control.local_addresses();
        let door = Door::open(&addresses, &plane.control, &plane.answers).map_err(|error| {
            Cause::new(format!(
                "the host of its other end cannot listen on the TCP port of its control channel: {error}"
            ))
        })?;
        let port = door.port;
        self.door = Some(door);
        Ok(port)
    }

    /// The other host has answered the invitation.
    pub(super) fn answered_invitation(
        &mut self,
        plane: &mut Plane,
        slot: u32,
        answer: Result<u16, Cause>,
    ) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let paired = one.paired.as_mut().filter(|pair| pair.asks);
        let (Stage::Invited, Some(paired)) = (one.stage, paired) else {
            return;
        };
        match answer {
            // It answers a repetition as well.
            Ok(_) if paired.connects => {}
            Ok(port) => {
                paired.connects = true;
                let answers = plane.answers.clone();
                tunnel::connect(paired.id, paired.peer, port, paired.token, answers);
            }
            Err(cause) => self.refuse(plane, slot, cause),
        }
    }

    /// The connection between the two handlers has come, or could not be made.
    pub(in crate::engine::services) fn came(&mut self, plane: &mut Plane, came: Came) {
        let (slot, tunnel) = match came {
            Came::Made(pair, made) => (self.slot_of_pair(pair), made),
            Came::Accepted(token, fd) => {
                let waits = |one: &Serviced| {
                    let paired = one.paired.as_ref();
                    paired.is_some_and(|pair| !pair.asks && pair.token == token)
                };
                let mut all = self.sessions.iter();
                let found = all.find(|(_, one)| waits(one));
                (found.map(|(slot, _)| *slot), Ok(fd))
            }
        };
        let Some(slot) = slot else {
            return;
        };
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let (Stage::Invited, Some(paired)) = (one.stage, &mut one.paired) else {
            return;
        };
        match tunnel {
            Ok(fd) => {
                paired.tunnel = Some(fd);
                one.stage = Stage::Sockets;
                self.waiting.push(slot);
                self.go_on(plane);
            }
            Err(error) => {
                let cause = Cause::new(format!(
                    "the host of its other end takes no TCP connection for services: {error}"
                ));
                self.abort(plane, slot, "no connection between the handlers");
                self.refuse(
                    plane,
                    slot,
                    cause.hint("let TCP pass to the port of its control channel"),
                );
            }
        }
    }

    /// This host's handler has accepted a session.
    pub(in crate::engine::services) fn accepted_here(&mut self, plane: &mut Plane, slot: u32) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let (Stage::Offered(start, link), Some(paired)) = (one.stage, &one.paired) else {
            return;
        };
        one.stage = Stage::Accepted(start, link);
        if paired.asks {
            self.say(plane, slot, Content::Proceed);
        } else if paired.proceeds {
            self.order(plane, slot);
        }
    }

    /// Both handlers have the session: what this host's end sends enters from now on.
    pub(super) fn order(&mut self, plane: &mut Plane, slot: u32) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let (Stage::Accepted(start, link), Some(paired)) = (one.stage, &one.paired) else {
            return;
        };
        let asks = paired.asks;
        match one.enter(plane, slot, &start, &link) {
            Ok(()) => {
                if !asks {
                    self.say(plane, slot, Content::Ready);
                }
                self.begun(plane, slot, ServiceOutcome::Entering);
                self.step(plane, slot);
            }
            Err(cause) => {
                self.abort(plane, slot, &cause.why);
                self.release(slot);
                self.refuse(plane, slot, cause);
            }
        }
    }

    /// Repeats what the other host has not answered, or gives up, before a session has changed.
    pub(in crate::engine::services) fn wait_for_peer(&mut self, plane: &mut Plane, slot: u32) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let waited = one.since.elapsed();
        let Some(paired) = &mut one.paired else {
            return;
        };
        let (due, asks) = (paired.is_due(), paired.asks);
        let late = waited > if asks { PATIENCE } else { ASKERS_TIME };
        match one.stage {
            Stage::Accepted(..) if asks && due => self.say(plane, slot, Content::Proceed),
            // The other host may have begun: only the connection tells its end.
            Stage::Accepted(..) if asks => {}
            Stage::Invited | Stage::Accepted(..) if late => {
                let cause = Cause::new("the host of its other end does not answer")
                    .hint("look there whether dyscod runs, and is of this release");
                self.abort(plane, slot, "no answer in time");
                if one_has_handler(self, slot) {
                    self.release(slot);
                }
                self.refuse(plane, slot, cause);
            }
            Stage::Invited if asks && due => self.say_invite(plane, slot),
            Stage::In => self.wait_for_alteration(plane, slot),
            _ => {}
        }
    }

    /// A host is not reachable: sessions that wait for its answer do not get their services, or keep
    /// those that they have.
    pub(in crate::engine) fn peer_gone(
        &mut self,
        plane: &mut Plane,
        peer: std::net::IpAddr,
        why: &dyn std::fmt::Display,
    ) {
        let waits = |one: &Serviced| {
            let paired = one.paired.as_ref().filter(|pair| pair.peer == peer);
            paired.is_some_and(|pair| {
                pair.asks && one.stage == Stage::Invited || pair.asked.is_some()
            })
        };
        let slots = self.sessions.iter().filter(|(_, one)| waits(one));
        let slots: Vec<(u32, Stage)> = slots.map(|(slot, one)| (*slot, one.stage)).collect();
        for (slot, stage) in slots {
            let cause = Cause::new(format!(
                "services at both ends need dyscod on the host of its other end, which is not reachable: {why}"
            ))
            .hint("run dyscod there as well");
            match stage {
                Stage::Invited => self.refuse(plane, slot, cause),
                _ => self.give_up(plane, slot, cause),
            }
        }
    }
}

fn one_has_handler(services: &Services, slot: u32) -> bool {
    let one = services.sessions.get(&slot);
    one.is_some_and(|one| matches!(one.stage, Stage::Accepted(..)))
}

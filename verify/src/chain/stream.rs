//! The two streams of a session whose chain changes: the sockets at its ends, the
//! segments that pass its paths, and the firewalls there.
//!
//! One packet at a time is in flight, until it reaches the other end or a firewall drops it. One
//! packet may be late: it has left its end, and arrives at any later moment.

use std::collections::BTreeMap;

use dysco_common::State;
use dysco_common::seq::{after, max};
use dysco_common::tcp::Segment;
use dysco_proto::ChangeId;

use super::configuration::{Configuration, LEFT, RIGHT};
use super::entry::Entry;
use super::host::{Host, Route};
use super::lines::other;
use super::passed::Passed;
use super::place::{LEFTWARDS, RIGHTWARDS};
use super::streams::{BEGIN, Delivery, SIDES, Streams, UnderWay, sender};
use super::world::{Broken, World};
use crate::nature::{Nature, reset};
use crate::parts::digest;
use crate::plane::Packet;
use crate::socket::{Base, Harm, Say};

impl World {
    /// Begins the streams: the session is open, and nothing has been sent yet.
    pub(super) fn begin_streams(&mut self, config: &Configuration) {
        if !config.has_streams() {
            return;
        }
        let path = [&[LEFT], config.first, &[RIGHT]].concat();
        let mut base = BEGIN;
        let mut seen = BTreeMap::new();
        for host in &path[..path.len() - 1] {
            let delta = self.host(*host).delta;
            base.out = base.out.wrapping_add(delta.to_server);
            base.into = base.into.wrapping_sub(delta.to_client);
            seen.insert((None, *host), [base.out, base.into]);
        }
        let there = Base {
            out: base.into,
            into: base.out,
        };
        let chained = !config.first.is_empty();
        self.streams = Some(Streams {
            sockets: Default::default(),
            bases: [BEGIN, there],
            seen,
            late: None,
            repeated: false,
            split: false,
        });
        for place in 0..config.hosts {
            let back = Base {
                out: BEGIN.into,
                into: BEGIN.out,
            };
            self.edit(place, |h| {
                let (side, base) = match place {
                    LEFT => (RIGHTWARDS, BEGIN),
                    RIGHT => (LEFTWARDS, there),
                    _ => {
                        h.passed = Some([BEGIN, back].map(|base| Passed::nothing(&base)));
                        return;
                    }
                };
                let entry = Entry::opened(&base, side == RIGHTWARDS, chained);
                h.entries.insert((side, None), entry);
            });
        }
    }

    /// Records that the handshake of a new path has passed it: both anchors, and the filters on the
    /// path, know how far both ends have sent.
    pub(super) fn shake_hands(&mut self, change: ChangeId) {
        let Some(path) = self.of(change).map(|a| a.path.clone()) else {
            return;
        };
        let ends = [path.first(), path.last()].map(|at| at.copied().unwrap_or_default());
        let route = Some(change);
        for (side, at) in SIDES.into_iter().zip(ends) {
            self.edit(at, |h| h.refresh(side, route));
        }
        let announced = [0, 1].map(|i| {
            let entry = self.host(ends[i]).entries.get(&(SIDES[i], route));
            entry.map(|e| e.s.sent_on_wire(e.s.snd_max))
        });
        let (Some(streams), [Some(there), Some(back)]) = (&mut self.streams, announced) else {
            return;
        };
        for host in &path[..path.len() - 1] {
            streams.seen.insert((route, *host), [there, back]);
        }
        for (side, at) in SIDES.into_iter().zip(ends) {
            let came = if side == RIGHTWARDS { back } else { there };
            self.edit(at, |h| h.hears_opening(side, route, came));
        }
    }

    /// True if an end has reason to send such a segment.
    pub(crate) fn can_say(&self, config: &Configuration, side: usize, say: Say) -> bool {
        let Some(streams) = &self.streams else {
            return false;
        };
        let (available, bytes) = config.units(side);
        let mut socket = streams.sockets[sender(side)];
        let base = &streams.bases[sender(side)];
        socket.say(say, base, available, bytes).is_some()
    }

    /// True if no end has anything new to send or to acknowledge.
    pub fn is_still(&self, config: &Configuration) -> bool {
        let says = |side| [Say::New, Say::Ack].map(|say| self.can_say(config, side, say));
        !SIDES.map(says).as_flattened().contains(&true)
    }

    /// True if one more segment may be late.
    pub(crate) fn can_be_late(&self) -> bool {
        self.streams.as_ref().is_some_and(|s| s.late.is_none())
    }

    /// Makes an end send a segment. Returns false if there was no reason for one.
    pub fn say(&mut self, config: &Configuration, side: usize, say: Say, fate: Delivery) -> bool {
        let end = sender(side);
        let Some(streams) = &mut self.streams else {
            return false;
        };
        let (available, bytes) = config.units(side);
        let base = streams.bases[end];
        let Some(packet) = streams.sockets[end].say(say, &base, available, bytes) else {
            return false;
        };
        let switched = self.is_switched(end);
        let mut sent = self.edit(end, |h| h.leaves(side, packet));
        if let Some(streams) = &mut self.streams {
            streams.split |= sent.len() > 1;
            streams.repeated |= switched && matches!(say, Say::Again | Say::AllAgain);
            if fate == Delivery::Late
                && let Some((route, packet)) = sent.pop()
            {
                streams.late = Some(UnderWay {
                    side,
                    from: end,
                    route,
                    packet,
                });
            }
        }
        if fate != Delivery::Lost {
            self.all_go(config, side, end, sent);
        }
        true
    }

    /// True if an end takes a new path and still receives on the path before.
    fn is_switched(&self, end: usize) -> bool {
        let host = self.host(end);
        let plane = &host.planes[SIDES[end]];
        plane.other.is_some_and(|o| o.before)
    }

    /// Delivers the late segment.
    pub(crate) fn comes_late(&mut self, config: &Configuration) {
        let late = self.streams.as_mut().and_then(|s| s.late.take());
        if let Some(u) = late {
            self.go(config, u.side, u.from, u.route, u.packet);
        }
    }

    fn all_go(
        &mut self,
        config: &Configuration,
        side: usize,
        from: usize,
        sent: Vec<(Route, Packet)>,
    ) {
        for (route, packet) in sent {
            self.go(config, side, from, route, packet);
        }
    }

    /// Forwards a segment along a path, as far as the segment gets.
    fn go(
        &mut self,
        config: &Configuration,
        side: usize,
        from: usize,
        route: Route,
        packet: Packet,
    ) {
        let Some(at) = self.hop(config, side, from, route, &packet.seg) else {
            return;
        };
        let left = if side == RIGHTWARDS { from } else { at };
        let packet = match route {
            Some(_) if left == LEFT => config.nature.changed(side == RIGHTWARDS, packet),
            _ => packet,
        };
        if at != sender(other(side)) {
            let sent = self.edit(at, |h| h.passes(side, route, packet));
            self.followed |= self.edit(at, |h| std::mem::take(&mut h.followed));
            return self.all_go(config, side, at, sent);
        }
        let heard = self.edit(at, |h| h.arrives(other(side), route, packet));
        self.followed |= self.edit(at, |h| std::mem::take(&mut h.followed));
        if let (Some(packet), Some(streams)) = (heard, &mut self.streams)
            && let Err(harm) = streams.sockets[at].hear(&packet, &streams.bases[at])
        {
            self.broken = Some(Broken::Tcp(harm));
        }
    }

    /// Places at which a reset answers the packet that opens a new path, with the number that the
    /// end expects.
    pub(crate) fn rejections(&self, config: &Configuration) -> Vec<(usize, usize, Route, u32)> {
        if config.nature != Nature::Rejects {
            return Vec::new();
        }
        let at = |h: &Host| -> Vec<_> {
            let all = h.entries.iter().filter(|((_, route), _)| route.is_some());
            let next = |e: &Entry| e.s.received_on_wire(e.s.snd_ack);
            all.map(|((side, route), e)| (h.place, *side, *route, next(e)))
                .collect()
        };
        self.hosts().flat_map(at).collect()
    }

    /// Delivers such a reset. Returns false if it has no effect.
    pub fn reject(&mut self, (place, side, route, next): (usize, usize, Route, u32)) -> bool {
        let before = digest(self);
        let heard = self.edit(place, |h| h.arrives(side, route, reset(next)));
        self.followed |= self.edit(place, |h| std::mem::take(&mut h.followed));
        if heard.is_some() {
            self.broken = Some(Broken::Tcp(Harm::Rejected));
        }
        digest(self) != before
    }

    /// Returns the next host, if the filter before it lets the segment pass. A strict filter drops
    /// a segment that acknowledges data that the filter never saw.
    fn hop(
        &mut self,
        config: &Configuration,
        side: usize,
        from: usize,
        route: Route,
        seg: &Segment,
    ) -> Option<usize> {
        let mut path = self.path(config, route);
        if side == LEFTWARDS {
            path.reverse();
        }
        let here = path.iter().position(|h| *h == from)?;
        let at = *path.get(here + 1)?;
        if self.is_dead(route) {
            return None;
        }
        let left = if side == RIGHTWARDS { from } else { at };
        let seen = self.streams.as_mut()?.seen.get_mut(&(route, left))?;
        if after(seg.ack, seen[other(side)]) {
            if self.pure {
                self.broken = Some(Broken::Invalid);
            }
            return None;
        }
        seen[side] = max(seen[side], seg.end());
        Some(at)
    }

    /// Paths whose firewalls are shown how far a host's end has sent, if that is news to anyone.
    pub fn primers(&self, config: &Configuration) -> Vec<(usize, usize, Route)> {
        if self.streams.is_none() {
            return Vec::new();
        }
        let hosts = self.hosts().filter(|h| h.machine.is_some());
        let mut all: Vec<_> = hosts
            .flat_map(|h| h.announced().map(|(side, route)| (h.place, side, route)))
            .collect();
        let now = digest(self);
        all.retain(|(place, side, route)| {
            let mut then = self.clone();
            then.prime(config, *place, *side, *route);
            digest(&then) != now
        });
        all
    }

    /// Shows the firewalls of a path how far the host's end has sent.
    pub fn prime(&mut self, config: &Configuration, place: usize, side: usize, route: Route) {
        if let Some(entry) = self.host(place).entries.get(&(side, route)) {
            let packet = entry.primer();
            self.go(config, side, place, route, packet);
        }
    }

    /// Sends what a host shows in the step in which it goes back to a path.
    pub(super) fn prime_at_once(&mut self, config: &Configuration, place: usize) {
        if self.host(place).primes.is_empty() {
            return;
        }
        for (side, route) in self.edit(place, |h| std::mem::take(&mut h.primes)) {
            self.prime(config, place, side, route);
        }
    }

    /// True if both ends have received both streams completely, and know it.
    pub fn is_carried(&self, config: &Configuration) -> bool {
        let Some(streams) = &self.streams else {
            return true;
        };
        let all = SIDES.map(|side| config.units(side).0);
        let done = |end: usize| streams.sockets[end].finished(all[end], all[1 - end]);
        done(LEFT) && done(RIGHT)
    }

    /// True if the streams are closed: nothing more is sent of the session.
    pub(crate) fn has_closed(&self, config: &Configuration) -> bool {
        config.closes == [true; 2] && !self.gone() && self.is_carried(config)
    }

    /// True if the streams are closed and both ends' hosts know, so that only the collection of
    /// their entries remains.
    pub(crate) fn is_collectable(&self, config: &Configuration) -> bool {
        let knows = |(end, side): (usize, usize)| {
            let host = self.host(end);
            let entry = host.entries.get(&(side, host.planes[side].current));
            entry.is_none_or(|e| e.s.has_ended())
        };
        let ends = [(LEFT, RIGHTWARDS), (RIGHT, LEFTWARDS)];
        self.has_closed(config) && ends.into_iter().all(knows)
    }

    /// True if both FINs have passed while an end took a new path and received on the path before.
    pub(crate) fn has_closed_between(&self) -> bool {
        let over = |h: &Host| {
            let between = |e: &&Entry| e.is(State::Switching);
            let mut entries = h.entries.values().filter(between);
            entries.any(|e| e.s.life.fin_in & e.s.life.fin_out != 0)
        };
        self.hosts().any(over)
    }

    /// True if data planes or ends still have something to do that takes no time.
    pub(super) fn streams_move(&self, config: &Configuration) -> bool {
        let late = self.streams.as_ref().is_some_and(|s| s.late.is_some());
        let acks = SIDES.iter().any(|s| self.can_say(config, *s, Say::Ack));
        late || acks || !self.primers(config).is_empty()
    }

    /// Sends everything that the ends have to send, the late segment, and what firewalls are shown.
    /// Returns false if that changes nothing.
    pub(super) fn stream(&mut self, config: &Configuration) -> bool {
        if self.streams.is_none() {
            return false;
        }
        let before = digest(self);
        self.comes_late(config);
        for (place, side, route) in self.primers(config) {
            self.prime(config, place, side, route);
        }
        for side in SIDES {
            for say in [Say::New, Say::Again, Say::Ack] {
                self.say(config, side, say, Delivery::Arrives);
            }
        }
        digest(self) != before
    }
}

impl Host {
    /// Paths on which the host shows how far its end has sent: new paths that it takes, until the
    /// other end has confirmed the receipt, and the paths that it went back to.
    fn announced(&self) -> impl Iterator<Item = (usize, Route)> + '_ {
        let takes = |(change, h): (&ChangeId, &super::host::Held)| {
            let route = Some(*change);
            let taken = h.second_path == route && self.planes[h.side].current == route;
            taken.then_some((h.side, route))
        };
        let back = self.shows.iter().copied();
        let back = back.filter(|(side, route)| self.planes[*side].current == *route);
        let unheard = |(side, route): &(usize, Route)| {
            let entry = self.entries.get(&(*side, *route));
            entry.is_some_and(|e| !e.is_heard())
        };
        self.held
            .iter()
            .filter_map(takes)
            .chain(back)
            .filter(unheard)
    }
}

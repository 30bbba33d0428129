//! Entries of an anchor's paths: one for each path on which it sends or receives.

use dysco_common::delta::Reach;
use dysco_common::seq::max;
use dysco_common::session::part;
use dysco_common::tcp::{FIN, Segment};
use dysco_common::two_paths::may_end_late;
use dysco_common::{Delta, State};
use dysco_proto::ChangeId;

use super::entry::{Entry, Sent};
use super::host::{Host, Later, Route};
use super::place::{LEFTWARDS, RIGHTWARDS};
use super::seed;
use crate::plane::Packet;
use crate::socket::Base;

/// Opposite side of a host.
pub(super) fn other(side: usize) -> usize {
    LEFTWARDS + RIGHTWARDS - side
}

impl Host {
    /// Entry of the path that is taken on one side.
    fn taken(&mut self, side: usize) -> Option<&mut Entry> {
        let route = self.planes[side].current;
        self.entries.get_mut(&(side, route))
    }

    /// Returns an entry, and a copy of the entry of the other path.
    fn both(&mut self, side: usize, one: Route, other: Route) -> Option<(&mut Entry, Entry)> {
        let other = self.entries.get(&(side, other))?.clone();
        Some((self.entries.get_mut(&(side, one))?, other))
    }

    /// Turns a host of the chain into an anchor. The host has had entries all the time.
    pub(super) fn begin_entries(&mut self, side: usize) {
        let Some(passed) = self.passed else {
            return;
        };
        let (out, into) = (passed[side], passed[other(side)]);
        let base = Base {
            out: out.end,
            into: into.end,
        };
        let mut entry = Entry::opened(&base, side == RIGHTWARDS, true);
        (entry.s.snd_ack, entry.s.rcv_ack) = (out.ack, into.ack);
        let route = self.planes[side].current;
        self.entries.entry((side, route)).or_insert(entry);
    }

    /// Numbers up to which its end has sent and received, as the wire has them.
    pub(super) fn reach(&self, side: usize) -> Reach {
        let route = self.planes[side].current;
        let entry = self.entries.get(&(side, route));
        entry.map_or(Reach::default(), |e| e.s.reach())
    }

    pub(super) fn add_entry(&mut self, side: usize, change: ChangeId) {
        if let Some(first) = self.taken(side) {
            let second_path = first.beside();
            first.s.two.new_received = 1;
            self.entries.insert((side, Some(change)), second_path);
        }
    }

    pub(super) fn lead_beyond(&mut self, change: ChangeId, delta: &Delta) {
        let second_path = self.entries.get_mut(&(RIGHTWARDS, Some(change)));
        if let Some(second_path) = second_path.filter(|_| !seed::moves_nothing(self.seed)) {
            second_path.lead_beyond(delta);
        }
    }

    /// Models `Agent::switch_path`, if the programs have not switched yet, and `dysco_follow`,
    /// which shares nothing.
    pub(super) fn switch_entry(
        &mut self,
        side: usize,
        second_path: Route,
        first: Route,
        shares: bool,
    ) {
        if let Some((entry, before)) = self.both(side, second_path, first) {
            entry.take_over(&before);
            if shares {
                entry.share_life(&before);
            }
            entry.s.state = State::Switching as u32;
            entry.s.two.part = part::CURRENT;
        }
        if let Some(before) = self.entries.get_mut(&(side, first)) {
            before.s.two.part = part::BEFORE;
        }
    }

    /// Models `Agent::refresh_path`.
    pub(super) fn refresh(&mut self, side: usize, second_path: Route) {
        let first = self.planes[side].current;
        if let Some((entry, from)) = self.both(side, second_path, first)
            && entry.s.two.part == part::NEXT
        {
            entry.take_over(&from);
        }
    }

    /// Records how far the other end has sent and received, as the packet that opens a path states
    /// it.
    pub(super) fn hears_opening(&mut self, side: usize, route: Route, end: u32) {
        if let Some(Entry { s }) = self.entries.get_mut(&(side, route)) {
            s.rcv_max = max(s.rcv_max, s.received_off_wire(end));
            s.rcv_ack = s.snd_max;
            s.two.new_data = 1;
        }
    }

    /// Sequence number up to which the local end had sent at that time, as the wire has it.
    pub(super) fn cutoff(&self, side: usize, second_path: Route) -> Option<u32> {
        let s = &self.entries.get(&(side, second_path))?.s;
        Some(s.sent_on_wire(s.snd_max))
    }

    /// Models `Agent::switch_back`.
    pub(super) fn switch_entry_back(&mut self, side: usize, second_path: Route, first: Route) {
        if let Some((entry, from)) = self.both(side, first, second_path) {
            entry.take_over(&from);
            entry.share_life(&from);
            entry.s.two.part = part::CURRENT;
        }
        if let Some(next) = self.entries.get_mut(&(side, second_path)) {
            next.s.two.part = part::NEXT;
        }
    }

    /// Models `way_back`: the path was taken once, perhaps before a daemon died.
    pub(super) fn announce_way_back(&mut self, side: usize, second_path: Route) {
        let first = self.planes[side].current;
        let next = self.entries.get(&(side, second_path));
        let shows = !seed::shows_nothing(self.seed);
        if shows && first != second_path && next.is_some_and(|e| e.is(State::Switching)) {
            self.shows.insert((side, first));
            self.primes.push((side, first));
        }
    }

    /// Models `Agent::drop_path_before` or `drop_next_path`: removes the entries of paths that are
    /// neither taken nor heard.
    pub(super) fn tidy_entries(&mut self) {
        for side in [RIGHTWARDS, LEFTWARDS] {
            let plane = self.planes[side];
            let stays = |route: Route| {
                plane.current == route || plane.other.is_some_and(|o| o.route == route)
            };
            let gone: Vec<Route> = (self.entries.keys())
                .filter(|(at, route)| *at == side && !stays(*route))
                .map(|(_, route)| *route)
                .collect();
            for route in gone {
                let gone = self.entries.remove(&(side, route));
                let keeps = seed::keeps_ends(self.seed);
                let gone = gone.filter(|e| e.s.two.part == part::BEFORE || !keeps);
                if let (Some(gone), Some(entry)) = (gone, self.taken(side)) {
                    entry.share_life(&gone);
                }
            }
            if plane.other.is_none()
                && let Some(entry) = self.taken(side)
            {
                entry.remain();
            }
        }
    }

    /// Returns true if the path has carried all that it has to. `peer_cutoff` is the other
    /// anchor's, as the wire has it.
    pub(super) fn settles(&self, side: usize, change: ChangeId, peer_cutoff: u32) -> Option<bool> {
        let mut entry = self.entries.get(&(side, Some(change)))?.clone();
        let peer_cutoff = entry.s.received_off_wire(peer_cutoff);
        Some(entry.settles(peer_cutoff) || seed::settles_early(self.seed))
    }

    /// Paths and packets for what the host's end, or its stack, sends to one side.
    pub(super) fn leaves(&mut self, side: usize, packet: Packet) -> Vec<(Route, Packet)> {
        let plane = self.planes[side];
        let unseen = seed::acks_unseen(self.seed);
        let Some(entry) = self.taken(side) else {
            return Vec::new();
        };
        let sent = match (entry.sends(packet), unseen) {
            (sent, false) => sent,
            (_, true) => Sent::Taken(entry.translated(packet)),
        };
        let closed = entry.has_closed() && entry.is(State::Tracked);
        if closed && self.machine.is_some() {
            self.events.push(Later::Closed);
        }
        let other = plane.other.filter(|o| o.before).map(|o| o.route);
        let before = |packet: Packet| {
            let route = other.unwrap_or(plane.current);
            let entry = self.entries.get(&(side, route));
            entry.map(|e| (route, e.translated(packet)))
        };
        let taken = |packet| (plane.current, packet);
        match sent {
            Sent::Taken(packet) => vec![taken(packet)],
            Sent::Before(packet) => before(packet).into_iter().collect(),
            Sent::Both(copy, packet) => {
                let copy = copy.and_then(before).into_iter();
                copy.chain([taken(packet)]).collect()
            }
        }
    }

    /// Returns the part of a packet on a path that is for the host's end or its stack, if the path
    /// is heard.
    pub(super) fn arrives(&mut self, came: usize, route: Route, packet: Packet) -> Option<Packet> {
        if !self.hears(came, route) {
            return None;
        }
        let current = self.planes[came].current;
        let unopened = seed::hears_unopened(self.seed);
        let entry = self.entries.get_mut(&(came, route))?;
        if !entry.is_live(&packet) && !unopened {
            return None;
        }
        let primer = dysco_common::two_paths::opens_windows(&packet.seg);
        if route != current && entry.is(State::Tracked) && !primer {
            self.ends_late(came, &packet);
            return Some(packet);
        }
        if route != current && entry.may_follow() && !primer {
            self.take(came, route, current, false);
            self.followed = true;
        }
        let passes_on = !self.is_anchor();
        self.entries
            .get_mut(&(came, route))?
            .hears(packet, passes_on)
    }

    /// Models `second_path::late`: a packet on the direct path of a session that takes another.
    fn ends_late(&mut self, came: usize, packet: &Packet) {
        let seen = !seed::misses_late_ends(self.seed);
        if let Some(entry) = self.taken(came).filter(|_| seen)
            && packet.seg.has(FIN)
            && may_end_late(&entry.s, &packet.seg)
        {
            entry.s.life.fin_in = 1;
        }
    }

    /// Forwards to one side what arrives on a path at a host of the chain.
    pub(super) fn passes(
        &mut self,
        side: usize,
        route: Route,
        packet: Packet,
    ) -> Vec<(Route, Packet)> {
        let came = other(side);
        let heard = self.planes[came].active && self.hears(came, route);
        let packet = match heard {
            true => self.arrives(came, route, packet),
            false => Some(packet),
        };
        let Some(mut packet) = packet else {
            return Vec::new();
        };
        let Some(next) = self.goes_on(route, side) else {
            return Vec::new();
        };
        if let Some(passed) = &mut self.passed {
            passed[side].note(&packet.seg);
        }
        if route.is_none() {
            self.change_size(side, &mut packet.seg);
        }
        let leaves = self.planes[side].active && self.planes[side].current == next;
        match leaves && (heard || self.knows.first() == Some(&route)) {
            true => self.leaves(side, packet),
            false => vec![(next, packet)],
        }
    }

    /// Applies the bytes that the host's middlebox has inserted on the path that the session began
    /// with.
    fn change_size(&self, side: usize, seg: &mut Segment) {
        let Delta {
            to_server,
            to_client,
        } = self.delta;
        let (with, against) = match side {
            RIGHTWARDS => (to_server, to_client),
            _ => (to_client, to_server),
        };
        seg.seq = seg.seq.wrapping_add(with);
        seg.ack = seg.ack.wrapping_sub(against);
    }
}

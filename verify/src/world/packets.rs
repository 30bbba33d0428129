//! Segments in flight: they pass the programs of the hosts and reach a socket, or are lost.

use dysco_common::tcp::{ACK, FIN, PSH, RST, SYN, Segment};
use dysco_common::two_paths::{Anchor, Fins};
use dysco_common::{Path, State};
use dysco_proto::{ChangeId, HostEvent, Reason, Subsession};

use super::{Broken, Lost, World};
use crate::config::Configuration;
use crate::host::{Answer, Host};
use crate::nature::{Nature, reset};
use crate::parts::digest;
use crate::place::{self, Side};
use crate::plane::relay::{self, Goes};
use crate::plane::{Entry, Notice, Packet};
use crate::seed;
use crate::socket::{Harm, Say};

impl World {
    /// Sends a segment of a socket, which arrives or is lost. Returns false if there was no reason
    /// for one.
    pub fn packet(
        &mut self,
        config: &Configuration,
        place: usize,
        side: Side,
        say: Say,
        lost: Lost,
    ) -> bool {
        let Some(base) = place::base(place, side, config.hosts) else {
            return false;
        };
        let (available, bytes) = self.given(config, place, side);
        let sent = self.edit(place, |h| {
            let packet = h.sockets[side as usize].say(say, &base, available, bytes)?;
            Some(leave(h, side, packet))
        });
        let Some((packets, path)) = sent else {
            return false;
        };
        // If nothing passes the relaying host, nothing is lost after it.
        let mut sense = lost != Lost::Beyond;
        for (way, packet) in packets {
            let target = match way {
                _ if lost == Lost::AtOnce => None,
                // A new path continues to the segment's destination.
                Path::New if self.dead[usize::from(side == Side::Left)] => None,
                Path::New if config.nature == Nature::Rejects => {
                    self.answered_by_reset(config, place, side, packet.seg.ack);
                    None
                }
                Path::Old => place::opposite(place, side),
                Path::New => path.and_then(|path| self.end_of(&path, place)),
            };
            let packet = match way {
                Path::Old => packet,
                Path::New => config.nature.changed(side == Side::Right, packet),
            };
            if let Some((to, at)) = target {
                match config.alone && config.has_daemon(to) {
                    true => sense |= self.comes(config, (to, at), packet, lost),
                    false => self.arrive(config, to, at, way, packet),
                }
            }
        }
        sense
    }

    /// Returns the other end of a new path, if a data plane hears the path there.
    fn end_of(&self, path: &Subsession, from: usize) -> Option<(usize, Side)> {
        let ends = [path.left.ip(), path.right.ip()];
        let mut to = ends.into_iter().filter_map(place::place_of);
        let to = to.rfind(|to| *to != from)?;
        let host = self.host(to);
        let here = |s: &Side| host.entry(*s).is_some_and(|e| e.path == Some(*path));
        Side::BOTH.into_iter().find(here).map(|side| (to, side))
    }

    fn arrive(
        &mut self,
        config: &Configuration,
        place: usize,
        side: Side,
        way: Path,
        packet: Packet,
    ) {
        let Some(base) = place::base(place, side, config.hosts) else {
            return;
        };
        let cut = self.cut;
        let heard = self.edit(place, |h| {
            let mut tell = Vec::new();
            let (seed, said) = (h.seed, packet);
            let packet = match (h.entry_mut(side), way) {
                (Some(entry), Path::Old) => {
                    let mut delivered = entry.ingress_old(packet, &mut tell);
                    delivered
                        .iter_mut()
                        .for_each(|t| seed::stays_behind(seed, &said, t));
                    seed::tells_proxys_end(seed, &said, delivered)
                }
                (Some(entry), Path::New) if seed::hears_unopened(seed) => {
                    entry.ingress_any(packet, &mut tell)
                }
                (Some(entry), Path::New) => entry.ingress_new(packet, &mut tell),
                (None, Path::Old) => Some(packet),
                (None, Path::New) => None,
            };
            notices(h, side, tell);
            h.sweep_returns();
            let rejected = |p: &Packet| p.seg.has(RST) && way == Path::New && config.rejects();
            packet.map_or(Ok(()), |p| {
                if rejected(&p) {
                    return Err(Harm::Rejected);
                }
                let socket = &mut h.sockets[side as usize];
                socket.hear(&p, &base)?;
                // A socket that was reset receives nothing any more.
                match cut && !socket.dead && is_short(config, place, side, &p) {
                    true => Err(Harm::CutShort),
                    false => Ok(()),
                }
            })
        });
        if let Err(harm) = heard {
            self.broken = Some(Broken::Tcp(harm));
        }
        self.acks(config, place, side);
    }

    /// Answers an anchor's packet on a new path with a reset of a device on that path. The reset
    /// has the number that the packet acknowledges, as the wire has it. Returns false if the reset
    /// has no effect.
    pub(crate) fn answered_by_reset(
        &mut self,
        config: &Configuration,
        place: usize,
        side: Side,
        ack: u32,
    ) -> bool {
        let before = digest(self);
        self.arrive(config, place, side, Path::New, reset(ack));
        digest(self) != before
    }

    /// Sides of hosts whose data plane hears a new path, with the number that the end expects
    /// there.
    pub(crate) fn hearing(&self) -> Vec<(usize, Side, u32)> {
        let all = self.hosts().flat_map(|h| Side::BOTH.map(|side| (h, side)));
        let hears = all.filter_map(|(h, side)| {
            let entry = h.entry(side)?;
            let next = entry.s.received_on_wire(entry.s.snd_ack);
            entry.path.map(|_| (h.place, side, next))
        });
        hears.collect()
    }

    /// Makes the left anchor at this place show on its new path how far its end has sent; the right
    /// anchor answers in the same way. Returns false if neither packet is news, or arrives.
    pub fn announce(&mut self, place: usize) -> bool {
        let host = self.host(place);
        let entry = host.entry(Side::Right).filter(|_| host.machine.is_some());
        let Some((announcement, path)) = entry.and_then(|e| Some((e.announcement()?, e.path?)))
        else {
            return false;
        };
        let Some((to, at)) = self.end_of(&path, place).filter(|_| !self.dead[0]) else {
            return false;
        };
        let shown = |w: &World| {
            [(place, Side::Right), (to, at)]
                .map(|(p, s)| w.host(p).entry(s).map(|e| e.s.peer_sent_max))
        };
        let before = shown(self);
        let answer = self
            .with_notices(to, at, |e, tell| {
                e.receive_announcement(&announcement, tell)
            })
            .flatten();
        if let Some(answer) = answer.filter(|_| !self.dead[1]) {
            self.with_notices(place, Side::Right, |e, tell| e.is_answered(&answer, tell));
        }
        shown(self) != before
    }

    /// Exchanges the packets that open a new path, if this event of a left anchor is to report
    /// that it is open. Returns true if the answer is on its way, and the event does not happen
    /// yet.
    pub(super) fn opens(&mut self, config: &Configuration, place: usize, index: usize) -> bool {
        let event = self.host(place).events.get(index);
        let Some(&HostEvent::Tried {
            change,
            result: Ok(_),
        }) = event
        else {
            return false;
        };
        let answer = self.host(place).answer.filter(|a| a.change == change);
        let result = match answer.map_or_else(|| self.asked(place, change), Asked::Answered) {
            Asked::UnderWay(answer) => {
                self.edit(place, |h| h.answer = Some(answer));
                return true;
            }
            Asked::Answered(answer) => Ok(seed::compares(config.seed, self.is_open(place, answer))),
            Asked::Before => Ok(Default::default()),
            Asked::Closed => Err(Reason::Closing),
            Asked::Silent => Err(Reason::NewPathUnusable(String::new().into())),
        };
        self.edit(place, |h| {
            h.answer = None;
            h.events[index] = HostEvent::Tried { change, result };
        });
        false
    }

    /// Models `Engine::try_path`, and the answer of the right anchor's data plane.
    fn asked(&mut self, place: usize, change: ChangeId) -> Asked {
        let Some(entry) = self.host(place).entry(Side::Right) else {
            return Asked::Closed;
        };
        let path = match (entry.state(), entry.path) {
            (State::TwoPaths, Some(path)) if entry.s.two.cut_set == 0 => path,
            (State::TwoPaths | State::NewPath, Some(_)) => return Asked::Before,
            _ => return Asked::Closed,
        };
        let syn = Segment {
            seq: entry.s.sent_on_wire(entry.s.snd_max).wrapping_sub(1),
            ack: 0,
            len: 0,
            window: u16::MAX,
            flags: SYN,
        };
        let Some((to, at)) = self.end_of(&path, place).filter(|_| !self.dead[0]) else {
            return Asked::Silent;
        };
        let answer = self.with_notices(to, at, |e, tell| {
            let seq = e.receive_announcement(&syn, tell)?.seq;
            let fins = Fins::of(Anchor::Local, &e.s);
            Some(Answer { change, seq, fins })
        });
        let answer = answer.flatten().filter(|_| !self.dead[1]);
        answer.map_or(Asked::Silent, Asked::UnderWay)
    }

    /// Makes a left anchor receive the answer, and returns the FINs that both anchors have seen.
    fn is_open(&mut self, place: usize, answer: Answer) -> [Fins; 2] {
        let announcement = Segment {
            seq: answer.seq,
            ack: 0,
            len: 0,
            window: u16::MAX,
            flags: ACK | PSH,
        };
        let own = self.with_notices(place, Side::Right, |e, tell| {
            e.is_answered(&announcement, tell);
            Fins::of(Anchor::Local, &e.s)
        });
        [own.unwrap_or_default(), answer.fins]
    }

    /// Sends the resets by which a host that is both anchors ends its session for both ends.
    pub(super) fn reset_ends(&mut self, place: usize) {
        if !self.edit(place, |h| std::mem::take(&mut h.resets)) {
            return;
        }
        for side in Side::BOTH {
            if let Some((to, at)) = place::opposite(place, side) {
                self.edit(to, |h| h.sockets[at as usize].is_reset());
            }
        }
    }

    /// Lets a data plane process something, and passes its notices to its host.
    fn with_notices<T>(
        &mut self,
        place: usize,
        side: Side,
        hears: impl FnOnce(&mut Entry, &mut Vec<Notice>) -> T,
    ) -> Option<T> {
        self.edit(place, |h| {
            let mut tell = Vec::new();
            let heard = hears(h.entry_mut(side)?, &mut tell);
            notices(h, side, tell);
            Some(heard)
        })
    }

    fn acks(&mut self, config: &Configuration, place: usize, side: Side) {
        if config.acks_at_once {
            self.packet(config, place, side, Say::Ack, Lost::Nowhere);
        }
    }

    /// Delivers an end's segment to the host that is both anchors. Returns true if a part of the
    /// segment was lost after that host.
    fn comes(
        &mut self,
        config: &Configuration,
        (place, side): (usize, Side),
        packet: Packet,
        lost: Lost,
    ) -> bool {
        let Some(base) = place::base(place, side, config.hosts) else {
            return false;
        };
        let mut was = false;
        let comes = self.edit(place, |h| {
            let comes = relay::comes(&mut h.entries, side, packet);
            comes.tell.iter().for_each(|(s, n)| h.notice(*s, *n));
            comes
        });
        for (goes, packet) in comes.out {
            match goes {
                Goes::Stack => {
                    let heard = self.edit(place, |h| h.sockets[side as usize].hear(&packet, &base));
                    if let Err(harm) = heard {
                        self.broken = Some(Broken::Tcp(harm));
                    }
                    self.acks(config, place, side);
                }
                Goes::Other if lost == Lost::Beyond => was = true,
                Goes::Other => {
                    if let Some((to, at)) = place::opposite(place, side.other()) {
                        self.arrive(config, to, at, Path::Old, packet);
                    }
                }
            }
        }
        was
    }
}

/// State of a new path that a left anchor opens.
enum Asked {
    /// The right anchor has answered, and the answer is on its way.
    UnderWay(Answer),
    /// The answer arrives.
    Answered(Answer),
    /// The path has carried packets before.
    Before,
    /// The session is in another state.
    Closed,
    /// Nothing answers.
    Silent,
}

/// Passes a packet through the programs of its own host.
fn leave(host: &mut Host, side: Side, packet: Packet) -> (Vec<(Path, Packet)>, Option<Subsession>) {
    let mut tell = Vec::new();
    let mut out = Vec::with_capacity(2);
    let mut path = None;
    let seed = host.seed;
    match host.entry_mut(side) {
        Some(entry) => {
            entry.egress(packet, &mut tell, &mut |way, p| out.push((way, p)));
            for (_, delivered) in &mut out {
                seed::local::believes(seed, entry, &packet, delivered);
            }
            path = entry.path;
        }
        None => out.push((Path::Old, packet)),
    }
    notices(host, side, tell);
    (out, path)
}

fn notices(host: &mut Host, side: Side, tell: Vec<Notice>) {
    for notice in tell {
        host.notice(side, notice);
    }
}

/// True if an end of the whole session receives a FIN before the stream has ended.
fn is_short(config: &Configuration, place: usize, side: Side, packet: &Packet) -> bool {
    let direction = match (place, side) {
        (0, Side::Right) => 1,
        (_, Side::Left) if place + 1 == config.hosts => 0,
        _ => return false,
    };
    let seg = &packet.seg;
    let at = packet.first + seg.len as u8;
    let ended = config.closes[direction] && at == config.bytes[direction];
    seg.has(FIN) && !seg.has(RST) && !ended
}

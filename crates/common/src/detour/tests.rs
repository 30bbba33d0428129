//! Two ends, two sockets and a handler that changes bytes, over a network that loses and reorders.

extern crate std;

mod paired;
mod rules;
mod tcp;

use std::collections::VecDeque;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Detour, End, FromEnd, Way, cut, from_end, from_socket, keep_in_window, phase};
use crate::tcp::{ACK, FIN, Segment};
use tcp::{MSS, Packet, Tcp};

/// A handler of one direction: inverts bytes and adds one after each fifth, until it has left.
#[derive(Clone, Copy, Default)]
struct Handler {
    seen: usize,
    added: u32,
    left: bool,
}

impl Handler {
    fn handle(&mut self, from: &mut Tcp, to: &mut Tcp) {
        for byte in &from.got[from.read..] {
            if self.left {
                to.sends.push(*byte);
                continue;
            }
            to.sends.push(!byte);
            self.seen += 1;
            if self.seen.is_multiple_of(5) {
                to.sends.push(b'+');
                self.added += 1;
            }
        }
        from.read = from.got.len();
        to.ends |= from.has_ended();
    }
}

/// The expected stream of a receiver, if the handler was in the session from byte `from` to `to`.
fn handled(sent: &[u8], parts: &[(usize, usize)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, byte) in sent.iter().enumerate() {
        let part = parts.iter().find(|(from, to)| (*from..*to).contains(&i));
        match part {
            Some((from, _)) => {
                out.push(!byte);
                if (i - from + 1).is_multiple_of(5) {
                    out.push(b'+');
                }
            }
            None => out.push(*byte),
        }
    }
    out
}

struct Net {
    seed: u64,
    loss: u64,
    /// Ends, by [`End`].
    ends: [Tcp; 2],
    /// Sockets, by the end that they speak with.
    sockets: [Tcp; 2],
    handlers: [Handler; 2],
    detour: Detour,
    /// Packets to an end, and to the socket that speaks with it.
    wire: [VecDeque<Packet>; 4],
    /// Bytes of each direction that the handler had, as ranges of the sender's.
    parts: [Vec<(usize, usize)>; 2],
    first: [u32; 2],
}

const ENDS: [End; 2] = [End::Local, End::Remote];

impl Net {
    fn new(seed: u64, loss: u64, lengths: [usize; 2]) -> Net {
        let first = [u32::MAX - 30, 7];
        let mut ends = [Tcp::new(first[0], first[1]), Tcp::new(first[1], first[0])];
        for (end, length) in ends.iter_mut().zip(lengths) {
            end.sends = (0..length).map(|i| (i % 97) as u8).collect();
            end.ends = true;
        }
        let way = |first| Way {
            phase: phase::DIRECT,
            ..Way::entering(0, 0, first, first)
        };
        Net {
            seed,
            loss,
            ends,
            sockets: Default::default(),
            handlers: Default::default(),
            detour: Detour {
                out: way(first[0]),
                back: way(first[1]),
                ..Detour::default()
            },
            wire: Default::default(),
            parts: Default::default(),
            first,
        }
    }

    fn random(&mut self, n: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 33) % n
    }

    fn way(&mut self, i: usize) -> &mut Way {
        self.detour.ways(ENDS[i]).0
    }

    fn put(&mut self, place: usize, packet: Packet) {
        let lossy = place == 1 || place == 0;
        if lossy && self.random(100) < self.loss {
            return;
        }
        let queue = self.wire[place].len() as u64;
        let at = queue
            - if self.random(4) == 0 {
                self.random(queue + 1)
            } else {
                0
            };
        self.wire[place].insert(at as usize, packet);
    }

    fn end_sends(&mut self, i: usize, p: Packet) {
        let way = self.way(i);
        if way.changes() && way.cut_set == cut::UNSET {
            way.set_cut();
            way.cut_set = cut::SET;
            let (at, leaves) = (way.cut, way.phase == phase::LEAVING);
            let at = at.wrapping_sub(self.first[i]) as usize;
            // A FIN has a number as well, and is no byte of the stream.
            let at = at.min(self.ends[i].sends.len());
            if !leaves {
                self.parts[i].push((at, usize::MAX));
            }
        }
        let mut out = FromEnd::default();
        from_end(&mut self.detour, ENDS[i], &p.seg, 0, &mut out);
        keep_in_window(&mut self.detour, ENDS[i], &p.seg, 0, &mut out);
        if out.dropped {
            return;
        }
        let mut main = p.clone();
        if let Some(keep) = out.keep {
            main.data.truncate(keep as usize);
            main.seg.len = keep;
            main.seg.flags &= !FIN;
        }
        (main.seg.seq, main.seg.ack) = (out.main.seq, out.main.ack);
        main.seg.window = out.main.window;
        self.put(if out.to_socket { 2 + i } else { 1 - i }, main);
        if out.copied {
            let header = out.copy;
            let seg = Segment {
                seq: header.seq,
                ack: header.ack,
                len: 0,
                window: header.window,
                flags: ACK,
            };
            let place = if out.to_socket { 1 - i } else { 2 + i };
            self.put(
                place,
                Packet {
                    seg,
                    data: Vec::new(),
                },
            );
        }
    }

    fn socket_sends(&mut self, i: usize, mut p: Packet) {
        if let Some(out) = from_socket(&mut self.detour, ENDS[i], &p.seg, 0) {
            (p.seg.seq, p.seg.ack) = (out.seq, out.ack);
            p.seg.window = out.window;
            self.put(i, p);
        }
    }

    fn sends(&mut self, place: usize, p: Packet) {
        if place < 2 {
            self.end_sends(place, p);
        } else {
            self.socket_sends(place - 2, p);
        }
    }

    fn tcp(&mut self, place: usize) -> &mut Tcp {
        if place < 2 {
            &mut self.ends[place]
        } else {
            &mut self.sockets[place - 2]
        }
    }

    fn step(&mut self) {
        let place = self.random(4) as usize;
        match self.random(8) {
            0..4 => {
                if let Some(p) = self.wire[place].pop_front()
                    && let Some(answer) = self.tcp(place).take(&p)
                {
                    self.sends(place, answer);
                }
            }
            4..7 => {
                let size = 1 + self.random(2 * MSS as u64) as usize;
                if let Some(p) = self.tcp(place).send(size) {
                    self.sends(place, p);
                }
            }
            _ if self.random(3) == 0 => {
                let packet = self.tcp(place).time_out();
                self.sends(place, packet);
            }
            _ => {
                let [near, far] = &mut self.sockets;
                self.handlers[0].handle(near, far);
                self.handlers[1].handle(far, near);
                let [local, remote] = &mut self.ends;
                (local.read, remote.read) = (local.got.len(), remote.got.len());
            }
        }
        for i in 0..2 {
            let way = self.way(i);
            if way.is_done() {
                way.shift = way.next_shift;
                way.phase = if way.phase == phase::ENTERING {
                    phase::THROUGH
                } else {
                    phase::DIRECT
                };
            }
        }
    }

    fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.is_done() && end.has_ended())
    }

    fn phases(&self) -> [u32; 2] {
        [self.detour.out.phase, self.detour.back.phase]
    }

    fn enter(&mut self) {
        let start = [1000, u32::MAX - 3];
        self.sockets = [Tcp::new(start[1], start[0]), Tcp::new(start[0], start[1])];
        self.handlers = Default::default();
        self.wire[2].clear();
        self.wire[3].clear();
        for (i, start) in start.into_iter().enumerate() {
            let way = self.way(i);
            *way = Way::entering(start, way.shift, way.sent, way.shown);
        }
    }

    /// Lets both directions enter with their first byte. No end has been offered a window. Each
    /// socket then probes its end.
    fn enter_silent(&mut self) {
        self.detour.silent = 1;
        for end in &mut self.ends {
            end.edge = end.first;
        }
        let start = [1000, u32::MAX - 3];
        self.sockets = [Tcp::new(start[1], start[0]), Tcp::new(start[0], start[1])];
        for (i, start) in start.into_iter().enumerate() {
            let way = self.way(i);
            *way = Way::from_first_byte(start, way.shift, way.sent);
            self.parts[i].push((0, usize::MAX));
        }
        for i in 0..2 {
            let mut probe = self.sockets[i].bare();
            probe.seg.seq = probe.seg.seq.wrapping_sub(1);
            self.socket_sends(i, probe);
        }
    }

    fn leave(&mut self) {
        for i in 0..2 {
            self.handlers[i].left = true;
            let had = self.sockets[i].got.len();
            if let Some(part) = self.parts[i].last_mut() {
                part.1 = part.0 + self.handlers[i].seen;
            }
            assert!(had >= self.handlers[i].seen);
            let added = self.handlers[i].added;
            let way = self.way(i);
            way.next_shift = way.shift.wrapping_add(added);
            way.begin_to_leave(false);
            way.cut_set = cut::UNSET;
            way.phase = phase::LEAVING;
        }
    }

    /// Runs until the phases of both ways are `phase`, or all is over.
    fn until(&mut self, phase: u32) {
        for _ in 0..200_000 {
            if self.phases() == [phase; 2] || self.is_done() {
                return;
            }
            self.step();
        }
        panic!("stalls in {:?}, {:?}", self.phases(), self.detour);
    }

    fn finish(&mut self) {
        for _ in 0..400_000 {
            if self.is_done() {
                break;
            }
            self.step();
        }
        assert!(self.is_done(), "stalls: {:?}", self.detour);
        for i in 0..2 {
            let expected = handled(&self.ends[i].sends, &self.parts[i]);
            assert_eq!(self.ends[1 - i].got, expected, "direction {i}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_handler_that_comes_and_goes_changes_exactly_its_bytes(
        seed: u64,
        loss in 0u64..20,
        lengths in (0usize..600, 0usize..600),
        steps in prop::collection::vec(0usize..400, 6),
    ) {
        let mut net = Net::new(seed, loss, [lengths.0, lengths.1]);
        for pair in steps.chunks(2) {
            for _ in 0..pair[0] { net.step(); }
            if net.is_done() { break; }
            net.enter();
            net.until(phase::THROUGH);
            for _ in 0..pair[1] { net.step(); }
            if net.phases() != [phase::THROUGH; 2] { break; }
            net.leave();
            net.until(phase::DIRECT);
            if net.phases() != [phase::DIRECT; 2] { break; }
        }
        net.finish();
    }

    #[test]
    fn a_handler_that_is_there_first_has_every_byte(
        seed: u64,
        loss in 0u64..20,
        lengths in (0usize..600, 0usize..600),
        steps in prop::option::of(0usize..600),
    ) {
        let mut net = Net::new(seed, loss, [lengths.0, lengths.1]);
        net.enter_silent();
        net.until(phase::THROUGH);
        if let Some(steps) = steps {
            for _ in 0..steps { net.step(); }
            if net.phases() == [phase::THROUGH; 2] {
                net.leave();
                net.until(phase::DIRECT);
            }
        }
        net.finish();
    }
}

/// A stack takes no window from a packet with an old number: see `tcp_validate_incoming`,
/// net/ipv4/tcp_input.c.
#[test]
fn the_first_probe_of_a_socket_opens_the_window_of_its_end() {
    let mut net = Net::new(1, 0, [100, 100]);
    net.enter_silent();
    for i in 0..2 {
        let other = net.first[1 - i];
        let probe = &net.wire[i][0].seg;
        assert_eq!((probe.seq, probe.ack), (other, net.first[i]));
        assert!(probe.window > 0);
        // A later one is no news: it has the number of its socket.
        net.wire[i].clear();
        let sent = net.sockets[i].packet(net.sockets[i].next, std::vec![7; 3], false);
        net.socket_sends(i, sent);
        let mut later = net.sockets[i].bare();
        later.seg.seq = later.seg.seq.wrapping_add(2);
        net.socket_sends(i, later);
        assert_eq!(net.wire[i][1].seg.seq, other.wrapping_add(2));
    }
}

//! Two ends on two hosts, with a detour on each. The handlers have a connection to each other, on
//! which no byte is what it was; the direct route loses and reorders packets.

extern crate std;

use std::collections::VecDeque;
use std::vec::Vec;

use proptest::prelude::*;

use super::tcp::{MSS, Packet, Tcp};
use super::{Detour, End, FromEnd, Way, cut, from_end, from_socket, phase};
use crate::tcp::{ACK, FIN, Segment};

/// Message between the daemons of the two hosts.
#[derive(Clone, Copy)]
enum Message {
    /// The sender has ordered its side to enter.
    Enter,
    /// The sender wants to leave, and takes what comes directly.
    Leave,
    /// The sender takes it as well, and has ordered its own direction to leave.
    Leaving,
    /// Cutoff of what the sender's end sends.
    Cut(u32, u32),
    /// The sender's end has all data before the cutoff.
    Done(u32),
}

/// A host with an end, a handler and a data plane.
struct Host {
    end: Tcp,
    near: Tcp,
    detour: Detour,
    /// Bytes from the other handler, and whether they are all.
    tunnel: VecDeque<u8>,
    tunnel_ended: bool,
    /// Bytes that the other handler was given.
    given: usize,
    messages: VecDeque<Message>,
    /// Phase whose cutoff the other host was told.
    told: u32,
    /// The other host's bytes may pass the near socket.
    open: bool,
}

struct Net {
    seed: u64,
    loss: u64,
    hosts: [Host; 2],
    /// Packets to each host's end, its near socket, and its interface.
    wire: [[VecDeque<Packet>; 3]; 2],
}

/// Places of `wire`.
const TO_END: usize = 0;
const TO_NEAR: usize = 1;
const TO_HOST: usize = 2;

impl Net {
    fn new(seed: u64, loss: u64, lengths: [usize; 2]) -> Net {
        let first = [u32::MAX - 30, 7];
        let host = |i: usize| {
            let mut end = Tcp::new(first[i], first[1 - i]);
            end.sends = (0..lengths[i]).map(|n| (n % 97) as u8).collect();
            end.ends = true;
            let way = |first| Way {
                phase: phase::DIRECT,
                ..Way::entering(0, 0, first, first)
            };
            Host {
                end,
                near: Tcp::default(),
                detour: Detour {
                    out: way(first[i]),
                    back: way(first[1 - i]),
                    paired: 1,
                    ..Detour::default()
                },
                tunnel: VecDeque::new(),
                tunnel_ended: false,
                given: 0,
                messages: VecDeque::new(),
                told: phase::DIRECT,
                open: false,
            }
        };
        Net {
            seed,
            loss,
            hosts: [host(0), host(1)],
            wire: Default::default(),
        }
    }

    fn random(&mut self, n: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 33) % n
    }

    fn put(&mut self, host: usize, place: usize, packet: Packet) {
        if place == TO_HOST && self.random(100) < self.loss {
            return;
        }
        let queue = self.wire[host][place].len() as u64;
        let back = match self.random(4) {
            0 => self.random(queue + 1),
            _ => 0,
        };
        self.wire[host][place].insert((queue - back) as usize, packet);
    }

    /// A packet of the local end (`from` is `Local`), or of the other one.
    fn passes(&mut self, host: usize, from: End, p: Packet) {
        let d = &mut self.hosts[host].detour;
        if from == End::Local && d.out.changes() && d.out.cut_set == cut::UNSET {
            d.out.set_cut();
            d.out.cut_set = cut::SET;
        }
        let mut out = FromEnd::default();
        from_end(d, from, &p.seg, 0, &mut out);
        if out.dropped {
            return;
        }
        let direct = match from {
            End::Local => (1 - host, TO_HOST),
            End::Remote => (host, TO_END),
        };
        let mut main = p;
        if let Some(keep) = out.keep {
            main.data.truncate(keep as usize);
            main.seg.len = keep;
            main.seg.flags &= !FIN;
        }
        (main.seg.seq, main.seg.ack) = (out.main.seq, out.main.ack);
        main.seg.window = out.main.window;
        let near = (host, TO_NEAR);
        assert!(from == End::Local || !out.to_socket && !out.copied);
        let (here, there) = if out.to_socket {
            (near, direct)
        } else {
            (direct, near)
        };
        self.put(here.0, here.1, main);
        if out.copied {
            let seg = Segment {
                seq: out.copy.seq,
                ack: out.copy.ack,
                len: 0,
                window: out.copy.window,
                flags: ACK,
            };
            let data = Vec::new();
            self.put(there.0, there.1, Packet { seg, data });
        }
    }

    fn near_sends(&mut self, host: usize, mut p: Packet) {
        let d = &mut self.hosts[host].detour;
        if let Some(out) = from_socket(d, End::Local, &p.seg, 0) {
            (p.seg.seq, p.seg.ack) = (out.seq, out.ack);
            p.seg.window = out.window;
            self.put(host, TO_END, p);
        }
    }

    fn sends(&mut self, host: usize, near: bool, p: Packet) {
        if near {
            self.near_sends(host, p);
        } else {
            self.passes(host, End::Local, p);
        }
    }

    fn tcp(&mut self, host: usize, near: bool) -> &mut Tcp {
        match near {
            true => &mut self.hosts[host].near,
            false => &mut self.hosts[host].end,
        }
    }

    fn step(&mut self) {
        let (host, near) = (self.random(2) as usize, self.random(2) == 1);
        match self.random(12) {
            0..4 => {
                let place = if near { TO_NEAR } else { TO_END };
                if let Some(p) = self.wire[host][place].pop_front()
                    && let Some(answer) = self.tcp(host, near).take(&p)
                {
                    self.sends(host, near, answer);
                }
            }
            4..6 => {
                if let Some(p) = self.wire[host][TO_HOST].pop_front() {
                    self.passes(host, End::Remote, p);
                }
            }
            6..9 => {
                let size = 1 + self.random(2 * MSS as u64) as usize;
                if let Some(p) = self.tcp(host, near).send(size) {
                    self.sends(host, near, p);
                }
            }
            9 if self.random(3) == 0 => {
                let packet = self.tcp(host, near).time_out();
                self.sends(host, near, packet);
            }
            9 => self.handle(host),
            10 => self.hear(host),
            _ => self.look(host),
        }
    }

    /// The handler of a host moves bytes.
    fn handle(&mut self, host: usize) {
        let [first, second] = &mut self.hosts;
        let (here, there) = match host {
            0 => (first, second),
            _ => (second, first),
        };
        here.end.read = here.end.got.len();
        for byte in &here.near.got[here.near.read..] {
            there.tunnel.push_back(!byte);
            here.given += 1;
        }
        here.near.read = here.near.got.len();
        there.tunnel_ended |= here.near.has_ended();
        if here.open {
            here.near
                .sends
                .extend(here.tunnel.drain(..).map(|byte| !byte));
            here.near.ends |= here.tunnel_ended;
        }
    }

    /// The daemon of a host takes a message.
    fn hear(&mut self, host: usize) {
        let Some(message) = self.hosts[host].messages.pop_front() else {
            return;
        };
        let here = &mut self.hosts[host];
        match message {
            Message::Enter => self.enter(host),
            Message::Leave => {
                assert_eq!(self.settled(host), [phase::THROUGH; 2]);
                self.leave(host, true);
                self.leave(host, false);
                self.hosts[1 - host].messages.push_back(Message::Leaving);
            }
            Message::Leaving => self.leave(host, false),
            Message::Cut(of, at) => {
                let way = &mut here.detour.back;
                // A program may have found it, and the change may be over.
                if way.phase == of && way.cut_set == cut::UNSET {
                    way.cut_at(at);
                    way.cut_set = cut::SET;
                }
                assert_eq!(way.cut, at);
                assert!(way.phase == of || of == phase::LEAVING);
                here.open = true;
            }
            Message::Done(of) => {
                if here.detour.out.phase == of {
                    here.detour.out.confirm();
                }
            }
        }
    }

    /// The daemon of a host looks at its record.
    fn look(&mut self, host: usize) {
        self.settled(host);
        let here = &mut self.hosts[host];
        let out = &here.detour.out;
        if out.changes() && out.cut_set == cut::SET && here.told != out.phase {
            here.told = out.phase;
            let message = Message::Cut(out.phase, out.cut);
            self.hosts[1 - host].messages.push_back(message);
        }
    }

    /// Ends the changes that are complete. Returns the phases.
    fn settled(&mut self, host: usize) -> [u32; 2] {
        // A change that ends has been told before.
        let d = &self.hosts[host].detour;
        if d.out.is_done() && self.hosts[host].told != d.out.phase {
            let message = Message::Cut(d.out.phase, d.out.cut);
            self.hosts[host].told = d.out.phase;
            self.hosts[1 - host].messages.push_back(message);
        }
        let d = &mut self.hosts[host].detour;
        let mut done = None;
        if d.back.is_done() {
            done = Some(Message::Done(d.back.phase));
        }
        for way in [&mut d.out, &mut d.back] {
            if way.is_done() {
                way.phase = match way.phase {
                    phase::ENTERING => phase::THROUGH,
                    _ => phase::DIRECT,
                };
            }
        }
        let phases = [d.out.phase, d.back.phase];
        self.hosts[1 - host].messages.extend(done);
        phases
    }

    fn enter(&mut self, host: usize) {
        self.wire[host][TO_NEAR].clear();
        let here = &mut self.hosts[host];
        let start = [1000, u32::MAX - 3];
        here.near = Tcp::new(start[1], start[0]);
        here.open = false;
        (here.tunnel_ended, here.told) = (false, phase::DIRECT);
        let d = &mut here.detour;
        d.out = Way::entering(start[0], 0, d.out.sent, d.out.shown);
        d.back = Way::entering(start[1], 0, d.back.sent, d.back.shown);
    }

    /// Lets a direction leave: that in which the host's end receives (`back`), or sends.
    fn leave(&mut self, host: usize, back: bool) {
        let d = &mut self.hosts[host].detour;
        let way = if back { &mut d.back } else { &mut d.out };
        assert_eq!(way.phase, phase::THROUGH);
        way.begin_to_leave(back);
        way.cut_set = cut::UNSET;
        way.phase = phase::LEAVING;
    }

    /// Both handlers forget the session.
    fn release(&mut self) {
        for (host, wire) in self.hosts.iter_mut().zip(&mut self.wire) {
            host.near = Tcp::default();
            host.open = false;
            wire[TO_NEAR].clear();
        }
    }

    fn is_done(&self) -> bool {
        let ended = |host: &Host| host.end.is_done() && host.end.has_ended();
        self.hosts.iter().all(ended)
    }

    /// Runs until all phases are `phase`, or all is over.
    fn until(&mut self, phase: u32) -> bool {
        for _ in 0..400_000 {
            let is = |host: &Host| {
                let d = &host.detour;
                d.out.phase == phase && d.back.phase == phase && host.messages.is_empty()
            };
            if self.hosts.iter().all(is) {
                return true;
            }
            if self.is_done() {
                return false;
            }
            self.step();
        }
        let shown = self.hosts.each_ref().map(|host| host.detour);
        panic!("stalls before {phase}: {shown:?}");
    }

    fn finish(&mut self) {
        for _ in 0..400_000 {
            if self.is_done() {
                break;
            }
            self.step();
        }
        let shown = self.hosts.each_ref().map(|host| host.detour);
        assert!(self.is_done(), "stalls: {shown:?}");
        for i in 0..2 {
            let (here, there) = (&self.hosts[i], &self.hosts[1 - i]);
            assert_eq!(here.end.sends, there.end.got);
            // The next change begins with it.
            assert_eq!(here.detour.out.sent, there.detour.back.sent);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn handlers_at_both_ends_come_and_go_at_the_same_byte(
        seed: u64,
        loss in 0u64..20,
        lengths in (0usize..600, 0usize..600),
        steps in prop::collection::vec(0usize..600, 6),
    ) {
        let mut net = Net::new(seed, loss, [lengths.0, lengths.1]);
        for pair in steps.chunks(2) {
            for _ in 0..pair[0] { net.step(); }
            if net.is_done() { break; }
            net.enter(1);
            net.hosts[0].messages.push_back(Message::Enter);
            if !net.until(phase::THROUGH) { break; }
            for _ in 0..pair[1] { net.step(); }
            let leaves = net.random(2) as usize;
            net.leave(leaves, true);
            net.hosts[1 - leaves].messages.push_back(Message::Leave);
            if !net.until(phase::DIRECT) { break; }
            net.release();
        }
        net.finish();
    }
}

//! Packets in flight. They pass the programs of the hosts, which apply the shipped decisions as
//! `dysco-ebpf/src/detour.rs` does.

use dysco_common::detour::{End, FromEnd, Header, Way, cut, from_end, from_socket, keep_in_window};
use dysco_common::tcp::{ACK, FIN, RST};

use super::config::{Configuration, Seen};
use super::network::{Late, Mishap, Place, To, Twist};
use super::seed::{self, Seed};
use super::tcp::{Packet, Say};
use super::world::{Broken, FIRST, World};

impl World {
    /// Makes a socket send a segment. Returns false if there is no reason for one, or if the step
    /// causes fewer packets than the fault needs.
    pub fn say(
        &mut self,
        config: &Configuration,
        place: Place,
        what: Say,
        twist: Option<Twist>,
    ) -> bool {
        let socket = match place {
            Place::End(i) => Some(&mut self.ends[i]),
            Place::Socket(host, which) => {
                let handler = self.hosts[host].handler.as_mut();
                handler.and_then(|handler| handler.sockets[which].as_mut())
            }
        };
        let Some(packet) = socket.and_then(|socket| socket.say(what)) else {
            return false;
        };
        let mut twist = twist;
        self.leaves(config, place, packet, &mut twist);
        twist.is_none()
    }

    /// Sends a packet of a socket.
    pub fn leaves(
        &mut self,
        config: &Configuration,
        place: Place,
        packet: Packet,
        twist: &mut Option<Twist>,
    ) {
        match place {
            Place::End(i) if i < self.hosts.len() => {
                self.end_sends(config, i, End::Local, packet, twist);
            }
            Place::End(_) => self.transmit(config, To::Host(0), packet, twist),
            Place::Socket(host, which) => self.socket_sends(config, host, which, packet, twist),
        }
    }

    fn transmit(
        &mut self,
        config: &Configuration,
        to: To,
        packet: Packet,
        twist: &mut Option<Twist>,
    ) {
        match twist {
            Some(Twist { at: 0, what }) => {
                let what = *what;
                *twist = None;
                if what != Mishap::Lost {
                    let packet = packet.clone();
                    self.late.push(Late { to, packet });
                }
                if what != Mishap::Twice {
                    return;
                }
            }
            Some(twist) => twist.at -= 1,
            None => {}
        }
        self.lands(config, to, packet, twist);
    }

    /// Delivers a packet.
    pub(crate) fn lands(
        &mut self,
        config: &Configuration,
        to: To,
        packet: Packet,
        twist: &mut Option<Twist>,
    ) {
        let heard = match to {
            To::Host(host) => return self.end_sends(config, host, End::Remote, packet, twist),
            To::End(i) => self.ends[i].hear(&packet),
            To::Socket(host, which) => {
                let handler = self.hosts[host].handler.as_mut();
                let socket = handler.and_then(|handler| handler.sockets[which].as_mut());
                let heard = socket.map_or(Ok(()), |socket| socket.hear(&packet));
                self.handle(config, host);
                heard
            }
        };
        if let Err(harm) = heard {
            self.broken.get_or_insert(Broken::Tcp(harm));
        }
    }

    /// Makes the handler of a host move the bytes that have arrived.
    pub fn handle(&mut self, config: &Configuration, host: usize) {
        let Some(handler) = &mut self.hosts[host].handler else {
            return;
        };
        if !config.pair {
            handler.relay(0);
            return handler.relay(1);
        }
        let (bytes, end) = handler.encrypt();
        handler.decrypt();
        if let Some(tunnel) = handler.tunnel {
            self.through_tunnel(host, tunnel, bytes, end);
        }
    }

    /// `cut_if_due` of the programs.
    fn cut(config: &Configuration, way: &mut Way) {
        if way.changes() && way.cut_set == cut::UNSET {
            way.set_cut();
            seed::cuts(config.seed, way);
            way.cut_set = cut::SET;
        }
    }

    /// Decides the route of a packet of an end on a host.
    fn route(
        &mut self,
        config: &Configuration,
        host: usize,
        from: End,
        packet: &Packet,
    ) -> FromEnd {
        let before = self.hosts[host].record.clone();
        let d = &mut self.hosts[host].record.0;
        if !config.pair || from == End::Local {
            Self::cut(config, d.ways(from).0);
        }
        let mut out = FromEnd::default();
        from_end(d, from, &packet.segment(), 0, &mut out);
        keep_in_window(d, from, &packet.segment(), 0, &mut out);
        if from == End::Local {
            seed::routes(config.seed, &d.out, &mut out);
        }
        let inferred = config.pair && before.0.back.cut_set != d.back.cut_set;
        self.note_cuts(config, host, &before);
        if inferred {
            self.saw(Seen::Inferred);
        }
        if out.keep.is_some() {
            self.saw(Seen::Divided);
        }
        out
    }

    /// Sends a packet of an end on from a host.
    fn end_sends(
        &mut self,
        config: &Configuration,
        host: usize,
        from: End,
        packet: Packet,
        twist: &mut Option<Twist>,
    ) {
        let out = self.route(config, host, from, &packet);
        if out.dropped {
            return;
        }
        let direct = match from {
            End::Local if config.pair => To::Host(1 - host),
            End::Local => To::End(1),
            End::Remote => To::End(host),
        };
        let socket = To::Socket(host, usize::from(from == End::Remote));
        let (here, there) = match out.to_socket {
            true => (socket, direct),
            false => (direct, socket),
        };
        let mut main = packet;
        if let Some(keep) = out.keep {
            main.bytes.truncate(keep as usize);
            if config.seed != Some(Seed::KeepsFin) {
                main.flags &= !FIN;
            }
        }
        if config.pair && from == End::Local && !out.to_socket {
            self.check_plain(host, &main);
        }
        set(&mut main, &out.main);
        self.transmit(config, here, main, twist);
        if out.copied {
            let mut copy = Packet {
                seq: 0,
                ack: 0,
                window: 0,
                flags: ACK,
                bytes: Vec::new(),
            };
            set(&mut copy, &out.copy);
            self.transmit(config, there, copy, twist);
        }
    }

    /// Checks that no byte between two cutoffs leaves the host unchanged. Bytes that were
    /// acknowledged to the end do not count: the end retransmits them if that packet was lost.
    fn check_plain(&mut self, host: usize, packet: &Packet) {
        let shown = self.hosts[host].record.0.out.shown;
        for (i, byte) in (0..).zip(&packet.bytes) {
            let number = packet.seq.wrapping_add(i);
            let at = number.wrapping_sub(FIRST[host]) as u8;
            debug_assert_eq!(at, *byte);
            if self.covers(host, at) && !dysco_common::seq::before(number, shown) {
                self.broken.get_or_insert(Broken::Plain);
            }
        }
    }

    /// Judges a packet of a handler's socket.
    fn socket_sends(
        &mut self,
        config: &Configuration,
        host: usize,
        which: usize,
        mut packet: Packet,
        twist: &mut Option<Twist>,
    ) {
        let (to, place) = match which {
            0 => (End::Local, To::End(host)),
            _ => (End::Remote, To::End(1)),
        };
        let before = self.hosts[host].record.clone();
        let d = &mut self.hosts[host].record.0;
        let segment = packet.segment();
        if !config.pair && segment.span() > 0 {
            Self::cut(config, d.ways(to).1);
        }
        let header = from_socket(d, to, &segment, 0);
        self.note_cuts(config, host, &before);
        if let Some(header) = header {
            set(&mut packet, &header);
            self.transmit(config, place, packet, twist);
        }
    }

    /// Resets the sockets of a handler. Each sends a RST to its end.
    pub fn resets(&mut self, config: &Configuration, host: usize) {
        for which in 0..2 {
            let handler = self.hosts[host].handler.as_mut();
            let socket = handler.and_then(|handler| handler.sockets[which].as_mut());
            if let Some(socket) = socket.filter(|socket| !socket.dead) {
                let packet = socket.reset();
                debug_assert!(packet.flags & RST != 0);
                self.leaves(config, Place::Socket(host, which), packet, &mut None);
            }
        }
    }
}

fn set(packet: &mut Packet, header: &Header) {
    packet.seq = header.seq;
    packet.ack = header.ack;
    packet.window = header.window;
}

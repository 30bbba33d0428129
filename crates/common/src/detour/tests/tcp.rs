//! The part of a TCP stack that matters to a detour.

extern crate std;

use std::collections::BTreeMap;
use std::vec::Vec;

use crate::tcp::{ACK, FIN, Segment};

pub(super) const MSS: usize = 7;
const ROOM: u32 = 60;

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub seg: Segment,
    pub data: Vec<u8>,
}

/// The part of a TCP stack that matters: cumulative acknowledgements, windows, retransmission, and
/// bytes out of order.
#[derive(Clone, Default)]
pub(super) struct Tcp {
    pub first: u32,
    una: u32,
    pub next: u32,
    highest: u32,
    pub edge: u32,
    pub sends: Vec<u8>,
    pub ends: bool,
    rcv_first: u32,
    pub rcv_next: u32,
    early: BTreeMap<u32, u8>,
    pub got: Vec<u8>,
    got_end: Option<u32>,
    pub read: usize,
}

impl Tcp {
    pub(super) fn new(first: u32, rcv_first: u32) -> Tcp {
        let at = |n| (n, n, n, n);
        let (first, una, next, highest) = at(first);
        Tcp {
            first,
            una,
            next,
            highest,
            edge: first.wrapping_add(ROOM),
            rcv_first,
            rcv_next: rcv_first,
            ..Tcp::default()
        }
    }

    pub(super) fn packet(&self, seq: u32, data: Vec<u8>, fin: bool) -> Packet {
        let waits = (self.got.len() - self.read) as u32;
        let seg = Segment {
            seq,
            ack: self.rcv_next,
            len: data.len() as u32,
            window: ROOM.saturating_sub(waits) as u16,
            flags: if fin { ACK | FIN } else { ACK },
        };
        Packet { seg, data }
    }

    pub(super) fn bare(&self) -> Packet {
        self.packet(self.next, Vec::new(), false)
    }

    /// Sends one segment, if the window allows it.
    pub(super) fn send(&mut self, size: usize) -> Option<Packet> {
        let at = self.next.wrapping_sub(self.first) as usize;
        let room = self.edge.wrapping_sub(self.next).cast_signed().max(0) as usize;
        let rest = self.sends.len().saturating_sub(at);
        let len = size.min(room).min(rest);
        let data = self.sends.get(at..at + len).unwrap_or_default().to_vec();
        let fin = self.ends && at <= self.sends.len() && at + len == self.sends.len() && room > len;
        if len == 0 && !fin {
            return None;
        }
        let packet = self.packet(self.next, data, fin);
        self.next = packet.seg.end();
        if crate::seq::after(self.next, self.highest) {
            self.highest = self.next;
        }
        Some(packet)
    }

    /// Sends from the oldest byte again. Returns the packet of the timer. The probe of a closed window
    /// carries no data, and the number before the next (`tcp_xmit_probe_skb`, net/ipv4/tcp_output.c).
    pub(super) fn time_out(&mut self) -> Packet {
        self.next = self.una;
        let sent = self.una.wrapping_sub(self.first) as usize;
        let rest = sent < self.sends.len() || self.ends && sent == self.sends.len();
        if rest && self.edge == self.una {
            return self.packet(self.una.wrapping_sub(1), Vec::new(), false);
        }
        self.bare()
    }

    /// Takes in a packet. Returns an answer, if one is due.
    pub(super) fn take(&mut self, p: &Packet) -> Option<Packet> {
        let Segment { ack, window, .. } = p.seg;
        assert!(
            !crate::seq::after(ack, self.highest),
            "acknowledges what was not sent: {} of {}",
            ack.wrapping_sub(self.first),
            self.highest.wrapping_sub(self.first)
        );
        // The acknowledgement of an old packet is not looked at (`tcp_validate_incoming`,
        // net/ipv4/tcp_input.c).
        let old = p.seg.span() == 0 && crate::seq::before(p.seg.seq, self.rcv_next);
        if !old && !crate::seq::before(ack, self.una) {
            self.una = ack;
            self.next = crate::seq::max(self.next, ack);
            self.edge = ack.wrapping_add(u32::from(window));
        }
        for (i, byte) in p.data.iter().enumerate() {
            let at = p
                .seg
                .seq
                .wrapping_sub(self.rcv_first)
                .wrapping_add(i as u32);
            if at as usize >= self.got.len() + 100_000 {
                continue; // Before the first byte, or far beyond the window.
            }
            // A receiver does not look at bytes that it has delivered already. Such bytes may be
            // others: the sender repeats them after the handler has left.
            let had = self.early.get(&at);
            assert!(
                had.is_none_or(|had| had == byte),
                "two bytes for one number"
            );
            if at as usize >= self.got.len() {
                self.early.insert(at, *byte);
            }
        }
        if p.seg.flags & FIN != 0 {
            let at = p.seg.end().wrapping_sub(1).wrapping_sub(self.rcv_first);
            assert!(self.got_end.is_none_or(|had| had == at), "two ends");
            self.got_end = Some(at);
        }
        while let Some(byte) = self.early.remove(&(self.got.len() as u32)) {
            self.got.push(byte);
        }
        let ended = self.got_end == Some(self.got.len() as u32);
        let taken = self.got.len() as u32 + u32::from(ended);
        self.rcv_next = self.rcv_first.wrapping_add(taken);
        (p.seg.span() > 0 || p.seg.seq != self.rcv_next).then(|| self.bare())
    }

    pub(super) fn has_ended(&self) -> bool {
        self.got_end == Some(self.got.len() as u32)
    }

    pub(super) fn is_done(&self) -> bool {
        let all = self.first.wrapping_add(self.sends.len() as u32 + 1);
        self.ends && self.una == all
    }
}

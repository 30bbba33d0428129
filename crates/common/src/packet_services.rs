//! Services that act on a session's packets, in eBPF and without a process: they count the packets
//! of a direction, limit its rate, and delay it.
//!
//! A rate is kept by departure times where a queueing discipline of the interface sends each packet
//! at its time (`fq`), and else by a token bucket, which drops packets. Either follows one clock per
//! direction, the time at which all bytes so far have passed at the rate. This is the generic cell
//! rate algorithm (ITU-T I.371), for packets of different sizes.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC. Pure functions. Each word is consistent by itself; two
//! processors that judge packets of one direction at the same time may count one of them twice, or
//! let both pass at the price of one.

use crate::flow::FlowKey;

/// Number of sessions of a host that may have these services at a time.
pub const MAX_PACKET_SERVICES: u32 = 16_384;

/// Bits of [`PacketServices::services`].
pub mod service {
    /// Both directions are counted, and the counts can be asked for.
    pub const COUNT: u32 = 1;
    /// The rate is limited.
    pub const SHAPE: u32 = 2;
    /// Packets that leave are delayed.
    pub const LATENCY: u32 = 4;
}

/// Furthest departure time, from now. `fq` drops packets that are more than ten seconds early
/// (`horizon`, net/sched/sch_fq.c). A rate of which so much is waiting is not kept by waiting.
pub const HORIZON: u64 = 2_000_000_000;

/// Longest delay of `latency`, in nanoseconds. With [`HORIZON`] before it, a packet leaves half a second
/// before `fq` would drop it.
pub const MAX_DELAY: u64 = 10_000_000_000 - HORIZON - 500_000_000;

/// Time for which a direction may have been unused and make up for it. A token bucket that is
/// smaller than what a sender has under way drops more than the rate asks for.
pub const BURST: u64 = 50_000_000;
/// The same with departure times, by which nothing is dropped.
const BURST_TIMED: u64 = 2_000_000;

const NANOS: u64 = 1_000_000_000;

/// Services of a session, and the state of their directions. User space maps the record.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketServices {
    /// The session as the local socket has it.
    pub key: FlowKey,
    /// [`service`] bits; 0 if the record is free.
    pub services: u32,
    /// Time at which the session opened: `Session::created_ns`.
    pub created_ns: u64,
    /// 1 if the interface sends packets at their departure time.
    pub timed: u32,
    /// Packets that the local end sends.
    pub out: Lane,
    /// Packets that the local end receives.
    pub back: Lane,
}

/// One direction.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lane {
    /// Limit in bits per second, headers from IP on included; 0 for none.
    pub rate: u64,
    /// Nanoseconds by which each packet is late. Only with departure times.
    pub delay_ns: u64,
    /// Time at which all bytes so far have passed at the rate.
    pub due: u64,
    /// Number of packets that have passed.
    pub packets: u64,
    /// Bytes of payload of these packets, also if they were sent before.
    pub bytes: u64,
    /// Number of packets that were dropped.
    pub dropped: u64,
}

/// Treatment of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// It passes now.
    Now,
    /// It leaves at this time.
    At(u64),
    /// It is dropped.
    Never,
}

/// A packet, which may be several that the stack has not divided yet, or has joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Number of packets on the wire, at least 1.
    pub packets: u32,
    /// Bytes of the IP and TCP headers of one.
    pub headers: u32,
    /// Bytes of payload of all.
    pub payload: u32,
}

impl Lane {
    /// Judges a packet of this direction, and counts it. `timed` says that it can leave later.
    #[inline(always)]
    pub fn judge(&mut self, now: u64, size: Size, timed: bool) -> Departure {
        let departure = self.departure(now, size, timed);
        if let Departure::Never = departure {
            self.dropped = self.dropped.wrapping_add(size.packets as u64);
        } else {
            self.packets = self.packets.wrapping_add(size.packets as u64);
            self.bytes = self.bytes.wrapping_add(size.payload as u64);
        }
        departure
    }

    #[inline(always)]
    fn departure(&mut self, now: u64, size: Size, timed: bool) -> Departure {
        let mut at = now;
        if self.rate != 0 {
            let burst = if timed { BURST_TIMED } else { BURST };
            let earliest = now.saturating_sub(burst);
            let start = if self.due > earliest {
                self.due
            } else {
                earliest
            };
            let limit = if timed { now + HORIZON } else { now };
            if start > limit {
                return Departure::Never;
            }
            self.due = start + self.cost(size);
            at = if start > now { start } else { now };
        }
        if timed {
            at += self.delay_ns;
        }
        if at > now {
            Departure::At(at)
        } else {
            Departure::Now
        }
    }

    /// Nanoseconds that a packet takes at the rate. The kernel's packets have less than 2^20 bytes,
    /// so that the product fits.
    #[inline(always)]
    fn cost(&self, size: Size) -> u64 {
        let bytes = size.payload as u64 + size.packets as u64 * size.headers as u64;
        bytes * (8 * NANOS) / self.rate
    }
}

#[cfg(test)]
mod tests;

//! A session whose bytes take a detour through a handler process, as they come into it and leave
//! it while data flows.
//!
//! The handler has two sockets: the *near* one speaks with the local end, the *far* one with the
//! remote end. Each direction of the session is a [`Way`] from its sender to its receiver, and has
//! two routes: *direct*, and *through* the two sockets. A change of the route has a cutoff, in the
//! sender's numbers. Data before it takes the old route, and data from it on takes the new one.
//!
//! Two rules make a change safe, whichever route is the old one:
//!
//! - The sender hears nobody who acknowledges data from the cutoff on, before it has heard that
//!   all data before the cutoff has been received. Otherwise it would forget data that is lost on
//!   the old route.
//! - The last sender of the new route (a socket, or the end itself) hears of the receiver that the
//!   data before the cutoff is acknowledged, because it has not sent that data.
//!
//! The sockets are made before the cutoff is known. Their numbers therefore differ from those of
//! the ends by constants, which the program computes with the cutoff.
//!
//! A detour may be *paired*: the other end has one as well, on its own host, and the two handlers
//! have a connection to each other. Each host then has a near socket alone. What the local end
//! sends after the cutoff goes to the other handler, and by its near socket to the other end; the
//! host of the other end is told the cutoff ([`Way::cut_at`]). Old data still goes directly.
//!
//! Pure functions. All numbers are modulo 2^32, in host order. Each word of a [`Detour`] has one
//! writer at a time, or may be written by several in any order.

mod from_end;
mod from_socket;
mod heard;
#[cfg(test)]
mod tests;
mod window;

pub use from_end::{FromEnd, Header, Weighed, choose_route, from_end, hear, write_headers};
pub use from_socket::{Spoken, admit, from_socket, listen, speak};
pub use window::keep_in_window;

use crate::seq::{after, before};
use crate::session::Session;

/// Number of sessions of a host that may have a detour at a time.
pub const MAX_DETOURS: u32 = 4096;

/// Indices of the programs for sessions with a detour.
pub mod program {
    /// Continues the egress program.
    pub const EGRESS: u32 = 0;
    /// Continues the ingress program.
    pub const INGRESS: u32 = 1;
}

/// Ethernet addresses of the link to the handlers' namespace: of its end there, and of its end on
/// this host. Locally administered.
pub const HANDLER_ADDRESS: [u8; 12] = [0x02, 0xd7, 0x5c, 0, 0, 2, 0x02, 0xd7, 0x5c, 0, 0, 1];

/// An end of the session, and the socket that speaks with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The end on this host.
    Local,
    /// The other end.
    Remote,
}

impl End {
    /// Returns the other end.
    #[inline(always)]
    pub const fn other(self) -> End {
        match self {
            End::Local => End::Remote,
            End::Remote => End::Local,
        }
    }
}

/// Routes of a direction. Values of [`Way::phase`], which only user space writes.
pub mod phase {
    /// All data goes directly to the receiver, with other numbers.
    pub const DIRECT: u32 = 0;
    /// The direct route is the old one, and the route through the sockets is the new one.
    pub const ENTERING: u32 = 1;
    /// All data goes through the sockets.
    pub const THROUGH: u32 = 2;
    /// The route through the sockets is the old one, and the direct route is the new one.
    pub const LEAVING: u32 = 3;
}

/// Values of [`Way::cut_set`].
pub mod cut {
    /// No packet has met the change of the route yet.
    pub const UNSET: u32 = 0;
    /// The cutoff and the constants are valid.
    pub const SET: u32 = 1;
    /// A program is about to set them.
    pub const BUSY: u32 = 2;
    /// User space has taken the change back before a packet met it.
    pub const REVOKED: u32 = 3;
}

/// Values of [`Way::late_set`].
pub mod late {
    /// Nothing is kept.
    pub const NONE: u32 = 0;
    /// `late` is valid, and `late_edge` is the right edge of the window that goes with it.
    pub const ACK: u32 = 1;
    /// `late_edge` is the right edge of the receiver's window, in its numbers. Kept while the direction
    /// goes through the sockets, and until its receiver has all of that data.
    pub const EDGE: u32 = 2;
}

/// One direction of a session with a detour.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Way {
    /// A value of [`phase`].
    pub phase: u32,
    /// A value of [`cut`].
    pub cut_set: u32,
    /// First number of the new route, in the sender's numbers.
    pub cut: u32,
    /// Receiver's number of a byte less the sender's, on the direct route.
    pub shift: u32,
    /// The same, on the direct route to which a detour returns.
    pub next_shift: u32,
    /// Number with which both sockets begin.
    pub start: u32,
    /// The first socket's number of a byte less the sender's.
    pub to_socket: u32,
    /// The receiver's number of a byte less the last socket's.
    pub from_socket: u32,
    /// Number after the highest that the sender has sent.
    pub sent: u32,
    /// Number after the highest that was sent to the receiver, in the receiver's numbers.
    pub delivered: u32,
    /// Highest acknowledgement that the sender has been shown.
    pub shown: u32,
    /// Right edge of the window that goes with `shown`; valid if `edge_set` is not 0.
    pub edge: u32,
    /// `edge` is valid.
    pub edge_set: u32,
    /// Highest acknowledgement of the new route's first receiver, which the sender has not been
    /// shown yet; valid by `late_set`.
    pub late: u32,
    /// Right edge of a window, as `late_set` says.
    pub late_edge: u32,
    /// A value of [`late`].
    pub late_set: u32,
    /// Highest acknowledgement that the last socket has been shown, in the receiver's numbers. Before
    /// the cutoff is set: `start`, as `from_socket` is 0.
    pub told: u32,
    /// Number after the highest that the last socket has sent, in the receiver's numbers. Valid once
    /// a cutoff was set.
    pub through: u32,
    /// Not 0 once the sender has heard that all data before the cutoff is received.
    pub released: u32,
    /// Not 0 once the receiver has acknowledged all data before the cutoff.
    pub received: u32,
}

/// A session with a detour. The entry of the session's own five-tuple has the state `Detour`, or the flag
/// `translation::DETOUR`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Detour {
    /// From the local end to the remote end.
    pub out: Way,
    /// From the remote end to the local end.
    pub back: Way,
    /// Interface that leads to the sockets; 0 if there are none.
    pub handler: u32,
    /// Interface by which the session's packets come and go.
    pub interface: u32,
    /// Ethernet address of that interface, in memory order.
    pub address: [u8; 8],
    /// Slot of the session's entry, plus 1; 0 if the record is unused.
    pub slot: u32,
    /// Not 0 if the other end has a detour as well, and there is no far socket.
    pub paired: u16,
    /// Not 0 if the detour began before the first byte, and the ends had no window to send in.
    pub silent: u16,
}

// The kernel rounds the elements of an array to a multiple of 8.
const _: () = assert!(size_of::<Detour>().is_multiple_of(8));

impl Detour {
    /// True if packets of this end have no socket here, and all go directly to the other end.
    #[inline(always)]
    const fn has_no_socket(&self, end: End) -> bool {
        self.paired != 0 && matches!(end, End::Remote)
    }

    /// True if this end may still wait for a window: the detour began before its first byte, and it
    /// has sent none.
    #[inline(always)]
    const fn awaits_window(&self, end: End) -> bool {
        let way = match end {
            End::Local => &self.out,
            End::Remote => &self.back,
        };
        // The first cutoff.
        self.silent != 0 && way.sent == way.start.wrapping_sub(way.to_socket)
    }

    /// Returns the direction in which this end sends, and the one in which it receives.
    #[inline(always)]
    pub const fn ways(&mut self, of: End) -> (&mut Way, &mut Way) {
        match of {
            End::Local => (&mut self.out, &mut self.back),
            End::Remote => (&mut self.back, &mut self.out),
        }
    }
}

impl Way {
    /// Returns a direction that is about to take the route through two sockets that begin with the
    /// number `start`. So far the sender has sent up to `sent`, and was shown the acknowledgement
    /// `shown`.
    pub const fn entering(start: u32, shift: u32, sent: u32, shown: u32) -> Way {
        Way {
            phase: phase::ENTERING,
            cut_set: cut::UNSET,
            cut: 0,
            shift,
            next_shift: shift,
            start,
            to_socket: 0,
            from_socket: 0,
            sent,
            delivered: sent.wrapping_add(shift),
            shown,
            edge: 0,
            edge_set: 0,
            late: 0,
            late_edge: 0,
            late_set: late::NONE,
            told: start,
            through: start,
            released: 0,
            received: 0,
        }
    }

    /// Returns a direction that takes the route through the sockets from its first byte on. Nothing
    /// was sent before `sent` but the SYN, which the other end has answered.
    pub const fn from_first_byte(start: u32, shift: u32, sent: u32) -> Way {
        let mut way = Way::entering(start, shift, sent, sent);
        way.set_cut();
        way.cut_set = cut::SET;
        way
    }

    /// Sets what a change to the direct route begins with, before its phase is written. `released` says
    /// that the sender may hear the new route at once. The receiver's window stays known.
    pub const fn begin_to_leave(&mut self, released: bool) {
        self.released = released as u32;
        self.received = 0;
        if self.late_set != late::EDGE {
            self.late_set = late::NONE;
        }
    }

    /// True while the direction has two routes.
    #[inline(always)]
    pub const fn changes(&self) -> bool {
        self.phase == phase::ENTERING || self.phase == phase::LEAVING
    }

    /// True once the change of the route is complete.
    #[inline(always)]
    pub const fn is_done(&self) -> bool {
        self.changes() && self.cut_set == cut::SET && self.released != 0 && self.received != 0
    }

    /// True if the cutoff of a change under way is known.
    #[inline(always)]
    const fn is_cut(&self) -> bool {
        self.cut_set == cut::SET
    }

    /// True if no data was sent that the receiver has not acknowledged.
    pub const fn is_still(&self) -> bool {
        !after(self.sent, self.shown)
    }

    /// Sets the cutoff at the highest number that the sender has sent, and the constants. If all of
    /// it is acknowledged already, nobody will acknowledge it again.
    #[inline(always)]
    pub const fn set_cut(&mut self) {
        self.cut_at(self.sent);
    }

    /// Sets the cutoff, and the constants.
    #[inline(always)]
    pub const fn cut_at(&mut self, cut: u32) {
        self.cut = cut;
        self.released |= !before(self.shown, self.cut) as u32;
        if self.phase == phase::LEAVING {
            let end = self.cut.wrapping_add(self.next_shift);
            self.received = !before(self.told, end) as u32;
        } else {
            self.received = self.released;
            self.to_socket = self.start.wrapping_sub(self.cut);
            self.from_socket = self.cut.wrapping_add(self.shift).wrapping_sub(self.start);
            self.told = self.cut.wrapping_add(self.shift);
            self.through = self.told;
        }
    }

    /// Records that the receiver has all data before the cutoff, as its host has told.
    pub const fn confirm(&mut self) {
        self.received = 1;
        if self.phase == phase::ENTERING {
            self.released = 1;
        }
    }

    /// True if the sender has sent all data before the cutoff of a direction that leaves, and the
    /// receiver does not have it: the last sockets still send it. A packet without data has their
    /// number then, and not that of the sender. It may be beyond the receiver's window, for which the
    /// receiver, and a firewall on the way, would ignore what it acknowledges (RFC 9293, 3.10.7.4).
    #[inline(always)]
    const fn has_overtaken(&self, next: u32) -> bool {
        self.phase == phase::LEAVING
            && self.is_cut()
            && self.received == 0
            && !before(next, self.cut)
    }

    /// Returns the routes that count. Comparisons with a cutoff end with the change: user space may
    /// be away for so long that the numbers exceed the range of comparison.
    #[inline(always)]
    const fn effective(&self) -> u32 {
        if self.is_done() {
            return if self.phase == phase::ENTERING {
                phase::THROUGH
            } else {
                phase::DIRECT
            };
        }
        if self.phase == phase::ENTERING && self.cut_set == cut::REVOKED {
            return phase::DIRECT;
        }
        self.phase
    }

    /// Returns the receiver's number of the cutoff.
    #[inline(always)]
    const fn cut_received(&self) -> u32 {
        self.cut.wrapping_add(self.direct_shift())
    }

    /// Receiver's number of a byte of the direct route less the sender's.
    #[inline(always)]
    const fn direct_shift(&self) -> u32 {
        if self.phase == phase::LEAVING && self.is_cut() {
            self.next_shift
        } else {
            self.shift
        }
    }

    /// Shows the sender an acknowledgement, unless it was shown a higher one. Returns true if it
    /// is news.
    #[inline(always)]
    fn show(&mut self, ack: u32, edge: u32) -> bool {
        let news = after(ack, self.shown);
        if news {
            self.shown = ack;
        }
        if !before(ack, self.shown) {
            self.edge = edge;
            self.edge_set = 1;
        }
        news
    }

    /// Keeps an acknowledgement of the new route's first receiver until the sender may be shown it.
    #[inline(always)]
    fn keep(&mut self, ack: u32, edge: u32) {
        if self.late_set != late::ACK || !before(ack, self.late) {
            self.late = ack;
            self.late_edge = edge;
            self.late_set = late::ACK;
        }
    }

    /// The sender has heard that all data before the cutoff is received: shows it what the new
    /// route's first receiver has acknowledged.
    #[inline(always)]
    fn release(&mut self) {
        self.released = 1;
        if self.late_set == late::ACK {
            let (late, edge) = (self.late, self.late_edge);
            self.show(late, edge);
        }
    }

    /// Returns the window that goes with `shown`. `edge` is that of the packet at hand, for a
    /// sender that has been shown nothing.
    #[inline(always)]
    const fn window(&self, edge: u32, scale: u8) -> u16 {
        let edge = if self.edge_set != 0 { self.edge } else { edge };
        scaled(edge.wrapping_sub(self.shown), scale)
    }
}

/// Returns a number that is at least the one after all data that an end has sent without a detour,
/// in the numbers of this end, as far as the entry has it. For a direction that is about to change
/// its route.
#[inline(always)]
pub const fn highest(s: &Session, d: &Detour, of: End) -> u32 {
    match of {
        End::Remote => s.rcv_max,
        End::Local if !s.detours_before_path() => s.snd_max,
        // The entry has the numbers of the other side of the services.
        End::Local if d.out.phase == phase::ENTERING => s.snd_max.wrapping_sub(d.out.shift),
        End::Local => d.out.sent,
    }
}

/// Returns a window of this many bytes as it is sent. A window that was taken back is none.
#[inline(always)]
const fn scaled(bytes: u32, scale: u8) -> u16 {
    if bytes > u32::MAX / 2 {
        return 0;
    }
    let units = bytes >> (scale & 15);
    if units > u16::MAX as u32 {
        u16::MAX
    } else {
        units as u16
    }
}

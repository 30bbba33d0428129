//! A session's entry in the data plane of a host.

pub mod alias;
pub mod life;
mod state;

use core::mem::offset_of;

use crate::flow::{FlowKey, ShortKey};

pub use alias::Alias;
pub use life::Life;
pub use state::State;

/// Options that one end offered in its SYN or SYN-ACK.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Offer {
    /// Initial sequence number.
    pub isn: u32,
    /// Announced MSS in bytes; 536 (1220 in IPv6) if the option was absent.
    pub mss: u16,
    /// Window scale; 0 if the option was absent.
    pub wscale: u8,
    /// [`offer`] bits.
    pub flags: u8,
}

/// Bits of [`Offer::flags`].
pub mod offer {
    /// Window scale option present.
    pub const WSCALE: u8 = 1;
    /// SACK-permitted option present.
    pub const SACK: u8 = 2;
    /// Timestamps option present.
    pub const TIMESTAMPS: u8 = 4;
    /// ECN offered (SYN: ECE and CWR) or accepted (SYN-ACK: ECE).
    pub const ECN: u8 = 8;
    /// An option that binds the session to its five-tuple, whatever the other end offers: MD5,
    /// TCP-AO.
    pub const FOREIGN: u8 = 16;
    /// This end's offer has been seen.
    pub const SEEN: u8 = 32;
    /// TCP Fast Open option present: a SYN's data may be its own (RFC 7413).
    pub const FAST_OPEN: u8 = 64;
    /// An option that no translation supports if both ends have it: MPTCP (RFC 8684, 3.1), AccECN
    /// (RFC 9768, 3.1). An end whose peer answers without it continues in plain TCP.
    pub const UNTRANSLATED: u8 = 128;

    /// Returns true if the session of these two offers uses an option that no translation supports.
    #[inline(always)]
    pub const fn are_foreign(one: u8, other: u8) -> bool {
        (one | other) & FOREIGN | one & other & UNTRANSLATED != 0
    }
}

/// Differences between the headers of the two sessions, from the local end's side. Identity (all
/// zero, scales equal) at the anchor whose session the wire uses.
///
/// Outgoing: `seq += seq_out`, `ack -= seq_in`, `tsval += ts_out`, `tsecr -= ts_in`.
/// Incoming: `seq += seq_in`, `ack -= seq_out`, `tsval += ts_in`, `tsecr -= ts_out`.
/// SACK blocks change like the acknowledgement number. All modulo 2^32.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Translation {
    /// Added to the sequence numbers that the local end sends.
    pub seq_out: u32,
    /// Added to the sequence numbers that the local end receives.
    pub seq_in: u32,
    /// Added to the timestamps that the local end sends.
    pub ts_out: u32,
    /// Added to the timestamps that the local end receives.
    pub ts_in: u32,
    /// Scale of the windows that the local end sends.
    pub wscale_local: u8,
    /// Scale that the far end applies to windows it receives.
    pub wscale_local_at_peer: u8,
    /// Scale of the windows that the far end sends.
    pub wscale_remote_at_peer: u8,
    /// Scale that the local end applies to windows it receives.
    pub wscale_remote: u8,
    /// [`translation`] bits.
    pub flags: u32,
}

/// Bits of [`Translation::flags`].
pub mod translation {
    /// Only one side negotiated timestamps: overwrite the option with NOPs.
    pub const STRIP_TIMESTAMPS: u32 = 1;
    /// Only one side negotiated ECN: clear ECT, CE, ECE and CWR.
    pub const STRIP_ECN: u32 = 2;
    /// SACK blocks keep the other session's numbers: a fault, for the test that shows the value of
    /// their translation.
    pub const LEAVE_SACK: u32 = 4;
    /// The session has services between the local end and the path: its packets take a detour
    /// (`crate::detour`) before they take the path, and after they have left it. Entry and path have
    /// the numbers of the remote end's side of the detour.
    pub const DETOUR: u32 = 8;
}

/// The entry of a session. User space maps the array and writes single words. The programs write
/// the fields under "learnt".
///
/// Egress and ingress of one session run on different CPUs at the same time. On a host with many
/// sessions, an entry is rarely in a processor's cache when its next packet arrives. The fields are
/// therefore grouped by cache lines. A packet of a session with one path needs two: the line of its
/// direction, and [`LINE`] bytes that both directions only read.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    // First line, of egress. Learnt, in the local end's own sequence spaces:
    /// Bytes first sent by the local end.
    pub bytes_out: u64,
    /// End of the highest segment the local end sent.
    pub snd_max: u32,
    /// Highest ack the local end sent.
    pub snd_ack: u32,
    /// Last TSval the local end sent.
    pub tsval_out: u32,
    /// Packets sent on the new path.
    pub new_out: u32,
    // Used:
    /// Subsession of the new path, as on the wire.
    pub path: FlowKey,
    /// Interface of the new path.
    pub ifindex: u32,

    // Second line, of both directions: read for each packet, written only at events.
    /// A [`State`].
    pub state: u32,
    /// Window that the old path may announce, scaled as it is sent; 0 for no limit.
    pub clamp: u16,
    /// Limit like `clamp` for the window that this host's stack announces, if the end is remote.
    pub clamp_remote: u16,
    /// Flags of events in the session's life.
    pub life: Life,
    /// Short key of `key`; zeros if no hint may lead here any more.
    pub short: ShortKey,
    /// Differences of the headers between the two sessions.
    pub translation: Translation,
    /// Slot of the entry that this one is joined to, plus 1; 0 for none.
    pub joined: u32,
    /// Slot of a relay's entry, plus 1, if a session that this host relays has a chain on one side.
    /// The entry is the one for that side. It is set in the entries of the chain's paths, and in
    /// the relay's entry for the other side, whose packets go there.
    pub relay: u32,
    /// Slot of the session's other entry, plus 1, while the session's path changes.
    pub other_path: u32,

    // Third line, of ingress. Used:
    /// The session as the local socket has it.
    pub key: FlowKey,
    /// Short key of `path`; zeros if no hint may lead here any more.
    pub short_path: ShortKey,
    // Learnt:
    /// End of the highest segment received, in the numbers of the session's own five-tuple.
    pub rcv_max: u32,
    /// Packets received on the new path.
    pub new_in: u32,
    /// Bytes first received by the local end.
    pub bytes_in: u64,

    // Fourth line. Learnt at ingress, for a session that is only tracked:
    /// Highest ack received on the session's own five-tuple.
    pub rcv_ack: u32,
    /// Last TSval received on the session's own five-tuple.
    pub tsval_in: u32,
    /// Last value of `snd_max` that ingress has seen: the least number that may be acknowledged.
    pub snd_seen: u32,
    // Two paths:
    /// Written at ingress: number up to which the other end has announced, on the new path, to have
    /// sent (local end's space); 0 before the path has opened.
    pub peer_sent_max: u32,
    /// First byte sent on the new path (local end's space). Before `cut_set`: the number with which
    /// the right anchor has opened the path.
    pub cut_out: u32,
    /// First byte received on the new path (local end's space).
    pub cut_in: u32,
    /// Highest right window edge that the far end announced on the new path (local end's space).
    pub edge: u32,
    /// Highest ack received on the new path (local end's space).
    pub peer_ack: u32,
    /// Lowest number of data received on the new path, once `new_data` is set. It stands for the
    /// cutoff until the other anchor has sent that. In a chain's session before its SYN is
    /// answered: the place where that SYN is remembered.
    pub new_low: u32,
    /// Highest ack that went to the old path in the two-path phase.
    pub old_ack: u32,
    /// Highest ack that went to the new path.
    pub new_ack: u32,
    /// Offer of the local end.
    pub local: Offer,
    /// Offer of the remote end.
    pub remote: Offer,
    /// Origin of the path of a chain's session. At the host that opened the session by a rule: that
    /// rule (`policy::rule_name`). If its program runs with services: that run (`policy::run_name`).
    /// `policy::unheld` marks the name if the session does not wait. If a change of the chain laid the
    /// path: its number ([`path_number`](crate::chain::path_number)). 0 for none of them.
    pub laid_by: u32,

    // Fifth line.
    /// Neighbour on the new path as it was last learnt: the upper 16 bits are the time, the rest is
    /// its Ethernet address. 0 if it is not known.
    pub hop: u64,
    /// Ethernet address of this host on that link, if XDP relays packets.
    pub own_address: u64,
    /// CLOCK_BOOTTIME at the SYN, nanoseconds.
    pub created_ns: u64,
    /// Flags of the two-path phase.
    pub two: Two,
    /// Name of the session on other hosts, from this host's side, if it differs from `key`. If a
    /// middlebox has left the session, each end has another five-tuple, and this is the one on
    /// which the ends met. If a NAT of its chain changed the five-tuple on the way here, this is
    /// the one that it was opened by.
    pub alias: Alias,
    /// Written by user space in the two-path phase: nothing is received on the new path. Without a
    /// cutoff everything takes the old path again.
    pub muted: u8,
    /// The subsession was changed on its way here: the neighbour has it under another five-tuple.
    pub renamed: u8,
    /// Learnt at the left anchor: number of answers of the right anchor on the new path, modulo
    /// 65,536.
    pub answers: u16,
}

/// Returns true if the last packet of a session's handshake has passed, which acknowledges the
/// SYN-ACK.
#[inline(always)]
pub const fn is_established(s: &Session) -> bool {
    if s.life.opened_here != 0 {
        s.snd_ack == s.rcv_max
    } else {
        s.rcv_ack == s.snd_max
    }
}

/// Bytes of a cache line.
pub const LINE: usize = 64;
const _: () = {
    assert!(offset_of!(Session, ifindex) + size_of::<u32>() == LINE);
    assert!(offset_of!(Session, state) == LINE && offset_of!(Session, key) == 2 * LINE);
    assert!(offset_of!(Session, rcv_ack) == 3 * LINE && offset_of!(Session, hop) == 4 * LINE);
    assert!(size_of::<Session>() == 5 * LINE);
};

impl Session {
    /// Returns the scale of the windows that arrive on the session's own five-tuple: the remote
    /// end's offer, or 0 unless both ends offered one (RFC 7323, 2.2).
    #[inline(always)]
    pub const fn remote_wscale(&self) -> u8 {
        if self.local.flags & self.remote.flags & offer::WSCALE != 0 {
            self.remote.wscale
        } else {
            0
        }
    }

    /// Returns the scale of the windows that leave on the session's own five-tuple.
    #[inline(always)]
    pub const fn local_wscale(&self) -> u8 {
        if self.local.flags & self.remote.flags & offer::WSCALE != 0 {
            self.local.wscale
        } else {
            0
        }
    }

    /// Returns true if the session has ended, as far as its packets were seen.
    #[inline(always)]
    pub const fn has_ended(&self) -> bool {
        self.life.reset != 0 || self.life.fin_in & self.life.fin_out != 0
    }

    /// Returns true if the session has passed a NAT of its chain on its way here, which changed the
    /// five-tuple that it was opened by.
    #[inline(always)]
    pub const fn is_behind_nat(&self) -> bool {
        self.alias.flags & alias::NAT != 0
    }

    /// Returns the slot of the entry that this one is joined to.
    #[inline(always)]
    pub const fn joined_to(&self) -> Option<u32> {
        self.joined.checked_sub(1)
    }

    /// Returns the slot of the session's other entry, while its path changes.
    #[inline(always)]
    pub const fn other_path(&self) -> Option<u32> {
        self.other_path.checked_sub(1)
    }

    /// Returns true if this is a path of a session that this host relays, and not the relay's own
    /// entry.
    #[inline(always)]
    pub const fn is_beside_relay(&self) -> bool {
        self.relay != 0 && self.state != State::Relay as u32
    }

    /// Returns the slot of the relay's entry for the other end of this path.
    #[inline(always)]
    pub const fn relayed_by(&self) -> Option<u32> {
        if self.is_beside_relay() {
            self.relay.checked_sub(1)
        } else {
            None
        }
    }

    /// Returns true if its packets take a detour before they take a path of other addresses.
    #[inline(always)]
    pub const fn detours_before_path(&self) -> bool {
        self.translation.flags & translation::DETOUR != 0
    }

    /// Returns true if its packets take a detour.
    #[inline(always)]
    pub const fn has_detour(&self) -> bool {
        self.state == State::Detour as u32 || self.detours_before_path()
    }

    /// Returns true if the session is older than the data plane, which saw no SYN of it.
    pub const fn is_adopted(&self) -> bool {
        self.state == State::Adopted as u32 || self.life.seen_out | self.life.seen_in != 0
    }
}

/// Flags of the two-path phase, and of the paths after it. Bytes, as [`Life`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Two {
    /// Written by user space: the next packet shall set the cutoff. A packet received on the new
    /// path has the same effect, because the other anchor has cut.
    pub cut_armed: u8,
    /// `cut_out` is valid.
    pub cut_set: u8,
    /// Written by user space: `cut_in` is valid, and possibly `two_paths::CLOSES`.
    pub cut_in_set: u8,
    /// The local end has acknowledged everything before `cut_in`.
    pub drained: u8,
    /// A packet other than a reset was received on the new path, or on that of another chain. In a
    /// session that takes the direct path: it once had another path. Firewalls on the direct path
    /// may be shown how far an end has sent, by packets that no stack may receive.
    pub new_received: u8,
    /// `edge` and `peer_ack` are valid.
    pub edge_set: u8,
    /// `old_ack` is valid, and possibly more: `two_paths::{VALID, ASKED}`.
    pub old_ack_set: u8,
    /// `new_ack` is valid, and possibly more: `two_paths::{VALID, REFUSES}`. Written where the
    /// end's segments are.
    pub new_ack_set: u8,
    /// `new_low` is valid.
    pub new_data: u8,
    /// Written by user space, for a relayed session: replies bypass this host.
    pub returns: u8,
    /// The session was steered through a chain from its SYN on, so that its own five-tuple was
    /// never on the wire: 1, and 2 once the SYN has been answered.
    pub chained: u8,
    /// A [`part`]: role of this entry among a session's two, while its path changes.
    pub part: u8,
}

/// Values of [`Two::part`].
pub mod part {
    /// The session's only entry, or the entry of the path that it takes.
    pub const CURRENT: u8 = 0;
    /// The entry of a path that is being opened.
    pub const NEXT: u8 = 1;
    /// The entry of the earlier path.
    pub const BEFORE: u8 = 2;
}

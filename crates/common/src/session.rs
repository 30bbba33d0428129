//! One session as a host's data plane holds it.

use core::mem::offset_of;

use crate::flow::{Addr, FlowKey, ShortKey};

/// What the data plane does with a session's packets. One word, written
/// atomically by user space; every value leaves the session working, so that
/// a daemon may die in any of them.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum State {
    /// The slot is nobody's.
    Free = 0,
    /// A SYN was seen, the SYN-ACK not yet.
    Opening = 1,
    /// Passing, and learnt from.
    Tracked = 2,
    /// Two paths: data before the cutoff on the old, from it on the new; acks
    /// to the path whose data they acknowledge. Without a cutoff set, all
    /// outgoing data still takes the old path and the new one is only heard.
    TwoPaths = 3,
    /// All packets take the new path.
    NewPath = 4,
    /// The proxy has left: packets of both kinds are dropped.
    Tombstone = 5,
    /// Collected: nobody's, until no program can hold it any more.
    Closed = 6,
    /// Two paths, at the proxy's host: the end is the remote one, the old path
    /// is this host's stack, the new one goes through the entry that this one
    /// is joined to.
    FarTwoPaths = 7,
    /// The same with the new path alone: what the remote end sends is relayed,
    /// and the stack has no part in it.
    Relay = 8,
    /// Replies go straight to the client, as the relaying host would have sent
    /// them; what is heard comes by that host. FINs and resets go by it, too: it
    /// is to see the end.
    Return = 9,
    /// Entered from what the kernel knew of its socket, and not yet heard both
    /// ways: nothing says so far that its packets pass here under this
    /// five-tuple.
    Adopted = 10,
    /// The entry of a second path of a session that has another entry: it is
    /// being opened, and heard; nothing is sent on it.
    Joining = 11,
    /// The path of the session since a moment ago: what acknowledges only what
    /// this path has carried takes it, the rest the path before.
    Switching = 12,
    /// Of a host that a session passes before and after its chain changes, which
    /// has entries for both paths meanwhile: a packet leaves by the path that it
    /// came by.
    Passing = 13,
}

impl State {
    /// The state of a word read from the map; `None` for a word no program wrote.
    pub const fn from_word(w: u32) -> Option<State> {
        Some(match w {
            0 => State::Free,
            1 => State::Opening,
            2 => State::Tracked,
            3 => State::TwoPaths,
            4 => State::NewPath,
            5 => State::Tombstone,
            6 => State::Closed,
            7 => State::FarTwoPaths,
            8 => State::Relay,
            9 => State::Return,
            10 => State::Adopted,
            11 => State::Joining,
            12 => State::Switching,
            13 => State::Passing,
            _ => return None,
        })
    }
}

/// What one end offered in its SYN or SYN-ACK.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Offer {
    /// Initial sequence number.
    pub isn: u32,
    /// Announced MSS in bytes; 536 (1220 in IPv6) where the option was absent.
    pub mss: u16,
    /// Window scale; 0 where the option was absent.
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
    /// Something that ties the session to its five-tuple, whatever the other end says:
    /// MD5, TCP-AO.
    pub const FOREIGN: u8 = 16;
    /// This end has been heard.
    pub const SEEN: u8 = 32;
    /// TCP Fast Open option present: a SYN's data may be its own (RFC 7413).
    pub const FAST_OPEN: u8 = 64;
    /// Something that no translation knows once both ends have it: MPTCP (RFC 8684, 3.1),
    /// AccECN (RFC 9768, 3.1). An end that is answered without goes on in plain TCP.
    pub const UNTRANSLATED: u8 = 128;

    /// Does the session of these two offers use what no translation knows?
    #[inline(always)]
    pub const fn are_foreign(one: u8, other: u8) -> bool {
        (one | other) & FOREIGN | one & other & UNTRANSLATED != 0
    }
}

/// How the two sessions' headers differ, from the local end's side. Identity
/// (all zero, scales equal) at the anchor whose session the wire speaks.
///
/// Outgoing: `seq += seq_out`, `ack -= seq_in`, `tsval += ts_out`,
/// `tsecr -= ts_in`. Incoming: `seq += seq_in`, `ack -= seq_out`,
/// `tsval += ts_in`, `tsecr -= ts_out`. SACK blocks go with the ack. All
/// modulo 2^32.
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
    pub wscale_local_far: u8,
    /// Scale of the windows that the far end sends.
    pub wscale_remote_far: u8,
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
    /// SACK blocks keep the other session's numbers: a fault, for the test that
    /// shows what their translation is worth.
    pub const LEAVE_SACK: u32 = 4;
}

/// The entry of a session. User space maps the array and writes single words;
/// the programs write the fields under "learnt".
///
/// Egress and ingress of one session run on different CPUs at the same time, and of
/// a host with many sessions hardly any entry is in a processor's cache when its next
/// packet comes. So the fields lie by cache lines: a packet of a session with one path
/// needs two, the one of its direction and [`LINE`] bytes that both only read.
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
    /// The new subsession, as the wire has it.
    pub path: FlowKey,
    /// The interface of the new path.
    pub ifindex: u32,

    // Second line, of both: read with each packet, written when something happens.
    /// A [`State`].
    pub state: u32,
    /// Window that the old path may announce, scaled as it is sent; 0 for no limit.
    pub clamp: u16,
    /// The same for what this host's stack announces, where the end is remote.
    pub clamp_far: u16,
    /// Flags of the session's life.
    pub life: Life,
    /// The short key of `key`; zeros where a hint must not lead here any more.
    pub short: ShortKey,
    /// How headers differ between the two.
    pub translation: Translation,
    /// The slot that this one is joined to, and 1; 0 for none.
    pub joined: u32,
    /// Where a session that this host relays has a chain on one side: the slot, and
    /// 1, of the relay's entry for that side. The entries of the chain's paths have
    /// it, and the relay's entry for the other side, whose packets go there.
    pub relay: u32,
    /// While the session's path changes: the slot of its other entry, and 1.
    pub other_path: u32,

    // Third line, of ingress. Used:
    /// The session as the local socket knows it.
    pub key: FlowKey,
    /// The short key of `path`; zeros likewise.
    pub short_path: ShortKey,
    // Learnt:
    /// End of the highest segment received, in the numbers of the session's own
    /// five-tuple.
    pub rcv_max: u32,
    /// Packets received on the new path.
    pub new_in: u32,
    /// Bytes first received by the local end.
    pub bytes_in: u64,

    // Fourth line. Learnt at ingress, of a session that is only tracked:
    /// Highest ack received on the session's own five-tuple.
    pub rcv_ack: u32,
    /// Last TSval received on the session's own five-tuple.
    pub tsval_in: u32,
    /// `snd_max` as ingress saw it last: what may be acknowledged at least.
    pub snd_seen: u32,
    // Two paths:
    /// Written at ingress: up to where the other end has shown, on the new path, to
    /// have sent (local end's space); 0 before that has opened.
    pub shown: u32,
    /// First byte sent on the new path (local end's space). Before `cut_set`: the
    /// number with which the right anchor has opened it.
    pub cut_out: u32,
    /// First byte received on the new path (local end's space).
    pub cut_in: u32,
    /// Highest right window edge that the far end announced on the new path
    /// (local end's space).
    pub edge: u32,
    /// Highest ack received on the new path (local end's space).
    pub far_ack: u32,
    /// Lowest number of data received on the new path, once `new_data` is set:
    /// what the cutoff is taken for until the far anchor has told it. Of a chain's
    /// session, before its SYN is answered: where that is remembered.
    pub new_low: u32,
    /// Highest ack that went to the old path in the two-path phase.
    pub old_ack: u32,
    /// Highest ack that went to the new path.
    pub new_ack: u32,
    /// What the local end offered.
    pub local: Offer,
    /// What the remote end offered.
    pub remote: Offer,
    /// What laid the path of a chain's session. At the host that opened the session by a
    /// rule, that rule (`policy::rule_name`); where a change of the chain laid the path,
    /// its number ([`path_number`](crate::chain::path_number)); 0 for neither.
    pub laid_by: u32,

    // Fifth line.
    /// The neighbour on the new path as it was learnt last: the upper 16 bits say
    /// when, the rest is its Ethernet address. 0 if it is not known.
    pub hop: u64,
    /// This host's own Ethernet address there, if packets are relayed by XDP.
    pub own_address: u64,
    /// CLOCK_BOOTTIME at the SYN, nanoseconds.
    pub created_ns: u64,
    /// Flags of the two-path phase.
    pub two: Two,
    /// What other hosts call the session, from this host's side, where that is not
    /// `key`. Either a middlebox has left it, each end knows it by another five-tuple,
    /// and this is the one that they met on. Or a NAT of its chain gave it another on
    /// its way here, and this is the one that it was opened by.
    pub alias: Alias,
    /// By user space, in the two-path phase: nothing is heard on the new path. Without a
    /// cutoff everything takes the old path again.
    pub deaf: u8,
    /// The subsession that it came by was changed on its way here: its neighbour knows that by
    /// another five-tuple.
    pub renamed: u8,
    /// Learnt, at the left anchor: how often the right one has answered on the new path,
    /// modulo 65,536.
    pub answers: u16,
}

/// Another five-tuple of a session, which differs from its own in the address of one
/// end at most. Ports in network byte order, zeros for none.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Alias {
    /// Address of one end; the other's is that of the session's own.
    pub address: Addr,
    /// Port of this host's end.
    pub local_port: u16,
    /// Port of the other end.
    pub remote_port: u16,
    /// [`alias`] bits.
    pub flags: u32,
}

/// Bits of [`Alias::flags`].
pub mod alias {
    /// The address is that of this host's end, and not of the other.
    pub const LOCAL: u32 = 1;
    /// A NAT made the difference, which leaves the numbers as they are.
    pub const NAT: u32 = 2;
}

impl Alias {
    /// Of a session that a middlebox has left, whose five-tuple here has the same local
    /// address.
    #[inline(always)]
    pub const fn of(name: &FlowKey) -> Alias {
        Alias {
            address: name.remote,
            local_port: name.local_port,
            remote_port: name.remote_port,
            flags: 0,
        }
    }

    /// Of a session that has passed a NAT: none where it is called as here, or where
    /// both addresses have become others.
    #[inline(always)]
    pub fn behind_nat(key: &FlowKey, name: &FlowKey) -> Alias {
        let (near, far) = (key.local == name.local, key.remote == name.remote);
        let same = near && far;
        let ports = key.local_port == name.local_port && key.remote_port == name.remote_port;
        if same && ports || !near && !far {
            return Alias::default();
        }
        Alias {
            address: if near { name.remote } else { name.local },
            local_port: name.local_port,
            remote_port: name.remote_port,
            flags: if near {
                alias::NAT
            } else {
                alias::NAT | alias::LOCAL
            },
        }
    }

    /// The same from the other end's side.
    #[inline(always)]
    pub const fn mirrored(self) -> Alias {
        Alias {
            local_port: self.remote_port,
            remote_port: self.local_port,
            flags: if self.is_none() {
                0
            } else {
                self.flags ^ alias::LOCAL
            },
            ..self
        }
    }

    /// The whole five-tuple, where `key` is the session's own.
    #[inline(always)]
    pub const fn whole(&self, key: &FlowKey) -> FlowKey {
        let (local, remote) = if self.flags & alias::LOCAL != 0 {
            (self.address, key.remote)
        } else {
            (key.local, self.address)
        };
        FlowKey {
            local,
            remote,
            local_port: self.local_port,
            remote_port: self.remote_port,
        }
    }

    /// Is there none? No port is 0.
    #[inline(always)]
    pub const fn is_none(&self) -> bool {
        self.local_port == 0
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
    /// Scale of the windows that arrive on the session's own five-tuple: the
    /// remote end's offer, or 0 unless both ends offered one (RFC 7323, 2.2).
    #[inline(always)]
    pub const fn remote_wscale(&self) -> u8 {
        if self.local.flags & self.remote.flags & offer::WSCALE != 0 {
            self.remote.wscale
        } else {
            0
        }
    }

    /// Scale of the windows that leave on the session's own five-tuple.
    #[inline(always)]
    pub const fn local_wscale(&self) -> u8 {
        if self.local.flags & self.remote.flags & offer::WSCALE != 0 {
            self.local.wscale
        } else {
            0
        }
    }

    /// Has it ended, by all that was seen?
    #[inline(always)]
    pub const fn has_ended(&self) -> bool {
        self.life.reset != 0 || self.life.fin_in & self.life.fin_out != 0
    }

    /// Has it passed a NAT of its chain on its way here, which gave it another five-tuple
    /// than that by which it was opened?
    #[inline(always)]
    pub const fn is_behind_nat(&self) -> bool {
        self.alias.flags & alias::NAT != 0
    }

    /// The slot of the session that this one is joined to.
    #[inline(always)]
    pub const fn joined_to(&self) -> Option<u32> {
        self.joined.checked_sub(1)
    }

    /// The slot of the session's other entry, while its path changes.
    #[inline(always)]
    pub const fn other_path(&self) -> Option<u32> {
        self.other_path.checked_sub(1)
    }

    /// Is it the path of a session that this host relays, and not the relay's own?
    #[inline(always)]
    pub const fn is_beside_relay(&self) -> bool {
        self.relay != 0 && self.state != State::Relay as u32
    }

    /// The relay's entry for the end that is at the other end of this path.
    #[inline(always)]
    pub const fn relayed_by(&self) -> Option<u32> {
        if self.is_beside_relay() {
            self.relay.checked_sub(1)
        } else {
            None
        }
    }

    /// Was it there before the data plane, which saw no SYN of it?
    pub const fn is_adopted(&self) -> bool {
        self.state == State::Adopted as u32 || self.life.heard_out | self.life.heard_in != 0
    }
}

/// Bits of what has happened to a session, in [`Life`].
pub mod life {
    /// It was seen.
    pub const SEEN: u8 = 1;
    /// Of a FIN: it passed on the session's own five-tuple.
    pub const OLD_PATH: u8 = 2;
    /// Of a FIN: the number before the end's cutoff is its own. Before the cut it was lost,
    /// and only the numbers of what came after it were seen.
    pub const AT_CUTOFF: u8 = 4;
    /// Of a reset: the middlebox ended the session between two paths.
    pub const BY_MIDDLEBOX: u8 = 2;
    /// Of a reset: it was sent by the end that the entry's anchor acts for.
    pub const BY_END: u8 = 4;
}

/// What has happened to a session. A byte each, only ever set: programs on two
/// CPUs and user space write them without a lock, and a byte cannot be torn.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Life {
    /// The local end opened the session (sent the SYN).
    pub opened_here: u8,
    /// The local end sent its FIN: bits of [`life`].
    pub fin_out: u8,
    /// The remote end's FIN was seen: bits of [`life`].
    pub fin_in: u8,
    /// A reset was seen, either way: bits of [`life`].
    pub reset: u8,
    /// User space has been told of the end.
    pub told: u8,
    /// The session's five-tuple is IPv6.
    pub v6: u8,
    /// A packet of the local end was seen since the session was adopted.
    pub heard_out: u8,
    /// One of the remote end was.
    pub heard_in: u8,
}

/// What holds in the two-path phase, and of the paths after it. Bytes, as [`Life`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Two {
    /// By user space: the cutoff shall be where the next packet finds it. So it
    /// is, too, once the new path is heard: the other anchor has cut.
    pub cut_armed: u8,
    /// `cut_out` is valid.
    pub cut_set: u8,
    /// By user space: `cut_in` is valid, and more: `two_paths::CLOSES`.
    pub cut_in_set: u8,
    /// The local end has acknowledged everything before `cut_in`.
    pub drained: u8,
    /// Something but a reset was received on the new path, also on that of another chain. Of a
    /// session that goes direct: it has been given another path once, and firewalls on the direct one may be shown how far an
    /// end has sent, which is for no stack.
    pub new_heard: u8,
    /// `edge` and `far_ack` are valid.
    pub edge_set: u8,
    /// `old_ack` is valid, and more: `two_paths::{VALID, ASKED}`.
    pub old_ack_set: u8,
    /// `new_ack` is valid.
    pub new_ack_set: u8,
    /// `new_low` is valid.
    pub new_data: u8,
    /// By user space, of a relayed session: replies pass this host by.
    pub returns: u8,
    /// It has been steered through a chain since its SYN, its own five-tuple was
    /// never on the wire: 1, and 2 once the SYN has been answered.
    pub chained: u8,
    /// A [`part`]: which of a session's two entries this is, while its path
    /// changes.
    pub part: u8,
}

/// Values of [`Two::part`].
pub mod part {
    /// The session's only entry, or that of the path it takes.
    pub const CURRENT: u8 = 0;
    /// That of a path which is being opened.
    pub const NEXT: u8 = 1;
    /// That of the path before.
    pub const BEFORE: u8 = 2;
}

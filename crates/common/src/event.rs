//! What the programs tell user space, through a ring buffer.

/// What happened.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EventKind {
    /// A tracked session is established.
    Opened = 1,
    /// Everything of the old path has been acknowledged by the local end.
    Drained = 2,
    /// Both FINs have been seen; they may not have arrived yet.
    Closed = 3,
    /// A reset passed.
    Reset = 4,
    /// A SYN found no room: no free slot, or a full flow map.
    NoRoom = 5,
    /// The far end of a new path has answered a SYN.
    PathOpen = 6,
    /// An adopted session has been heard both ways.
    Heard = 7,
    /// A chain's SYN has come to a slot, and the next host, or the server's, is
    /// not known to have an agent. Where a NAT has chosen the server it is the slot by which
    /// the session goes there.
    Stranger = 8,
    /// A SYN came on a path that is awaited: it wants an answer.
    Joins = 9,
    /// An acknowledgement came that opens a firewall's windows (see
    /// `two_paths::opens_windows`). The first on a path that is being opened is told with
    /// what shows the length behind it.
    Primed = 10,
    /// A chain's SYN came for another session by the subsession of this one, or for this one
    /// by another.
    Taken = 11,
    /// The middlebox has ended a session between two paths, perhaps with bytes that it had
    /// not delivered.
    Broken = 12,
    /// A reset came on a path that is being opened, or that nothing of the session has come
    /// by yet. The session does not hear it.
    Rejected = 13,
    /// A packet that opens a path has come: the record is a [`crate::probe::Arrival`].
    Arrived = 14,
}

impl EventKind {
    /// The kind of a word out of the ring; `None` for one no program wrote.
    pub const fn from_word(w: u32) -> Option<EventKind> {
        Some(match w {
            1 => EventKind::Opened,
            2 => EventKind::Drained,
            3 => EventKind::Closed,
            4 => EventKind::Reset,
            5 => EventKind::NoRoom,
            6 => EventKind::PathOpen,
            7 => EventKind::Heard,
            8 => EventKind::Stranger,
            9 => EventKind::Joins,
            10 => EventKind::Primed,
            11 => EventKind::Taken,
            12 => EventKind::Broken,
            13 => EventKind::Rejected,
            14 => EventKind::Arrived,
            _ => return None,
        })
    }
}

/// One record of the ring.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// An [`EventKind`].
    pub kind: u32,
    /// The session's slot.
    pub slot: u32,
}

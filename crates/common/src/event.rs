//! Events that the programs report to user space, through a ring buffer.

/// Kind of an event.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EventKind {
    /// A tracked session is established.
    Opened = 1,
    /// The local end has acknowledged all data of the old path.
    Drained = 2,
    /// Both FINs have been seen. They may not have arrived yet.
    Closed = 3,
    /// A reset passed.
    Reset = 4,
    /// A SYN found no room: no free slot, or a full flow map.
    NoRoom = 5,
    /// The far end of a new path has answered a SYN.
    PathOpen = 6,
    /// Packets of an adopted session have been seen in both directions.
    Heard = 7,
    /// The SYN of a chain has arrived at a slot, and the next host, or the server's, is not known
    /// to have an agent. If a NAT has chosen the server, the slot is the one by which the session
    /// leaves.
    Stranger = 8,
    /// A SYN has arrived on an awaited path, and needs an answer.
    Joins = 9,
    /// An acknowledgement has arrived that opens a firewall's windows (see
    /// `two_paths::opens_windows`). On a path that is being opened, the first one is reported
    /// together with the packet that shows the length behind it.
    Primed = 10,
    /// The SYN of a chain has arrived for another session on this session's subsession, or for this
    /// session on another subsession.
    Taken = 11,
    /// The middlebox has ended a session between two paths, possibly with bytes that it had not
    /// delivered.
    Broken = 12,
    /// A reset has arrived on a path that is being opened, or that has carried nothing of the
    /// session yet. The session does not receive it.
    Rejected = 13,
    /// A packet that opens a path has arrived. The record is a [`crate::probe::Arrival`].
    Arrived = 14,
    /// A direction of a session with a detour has completed a change of its route.
    Rerouted = 15,
    /// A session that a rule or a run gives services has none yet. Either it is held and established,
    /// or it is not held and its SYN was answered.
    Unserved = 16,
    /// A SYN of a program that runs with services, or its answer to one, was dropped, because a rule or a
    /// chain would take the place of these services. The slot is a word of [`crate::policy::Contested`].
    Contested = 17,
}

impl EventKind {
    /// Returns the kind of a word from the ring, or `None` for a word that no program wrote.
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
            15 => EventKind::Rerouted,
            16 => EventKind::Unserved,
            17 => EventKind::Contested,
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
    /// Slot of the session.
    pub slot: u32,
}

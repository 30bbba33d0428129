//! The states of an entry.

/// Treatment of a session's packets by the data plane. One word, which user space writes
/// atomically. Every value leaves the session working, so that a daemon may die in any of these
/// states.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum State {
    /// The slot is unused.
    Free = 0,
    /// A SYN was seen, but not yet the SYN-ACK.
    Opening = 1,
    /// Packets pass, and the entry learns from them.
    Tracked = 2,
    /// Two paths: data before the cutoff takes the old path, and data from the cutoff on takes the
    /// new one. Acknowledgements take the path whose data they acknowledge. Without a cutoff all
    /// outgoing data takes the old path, and the new path only receives.
    TwoPaths = 3,
    /// All packets take the new path.
    NewPath = 4,
    /// The proxy has left: packets of both kinds are dropped.
    Tombstone = 5,
    /// The slot was collected. It stays unused until no program can hold it any more.
    Closed = 6,
    /// Two paths at the proxy's host. The end is the remote one. The old path is this host's stack,
    /// and the new path goes through the entry that this entry is joined to.
    RelayTwoPaths = 7,
    /// As `RelayTwoPaths`, with the new path alone: packets of the remote end are relayed, and this
    /// host's stack takes no part.
    Relay = 8,
    /// Replies go directly to the client, with the headers that the relaying host would have sent.
    /// Packets of the client arrive by that host. FINs and resets also go by that host, so that it
    /// sees the end of the session.
    Return = 9,
    /// Entered from the kernel's data of the socket, before packets have passed both ways. Nothing
    /// proves yet that the session passes here with this five-tuple.
    Adopted = 10,
    /// The entry of a second path of a session that has another entry. The path is being opened,
    /// and only receives.
    Joining = 11,
    /// The entry of the path that the session has just been switched to. An acknowledgement takes
    /// this path if it covers only data of this path. All other acknowledgements take the earlier
    /// path.
    Switching = 12,
    /// An entry on a host that the session passes before and after its chain changes. The host has
    /// entries for both paths meanwhile. A packet leaves by the path that it arrived on.
    Passing = 13,
    /// Services are in the session, or were, and have added bytes. Its record in the map of detours
    /// has the routes of its data (see [`crate::detour`]).
    Detour = 14,
    /// The session was opened by a rule with services, which have not come in yet. Data and FINs are
    /// dropped, and acknowledgements offer no window, so that neither end sends any.
    Held = 15,
}

impl State {
    /// Returns the state of a word of the map, or `None` for a word that no program wrote.
    pub const fn from_word(w: u32) -> Option<State> {
        Some(match w {
            0 => State::Free,
            1 => State::Opening,
            2 => State::Tracked,
            3 => State::TwoPaths,
            4 => State::NewPath,
            5 => State::Tombstone,
            6 => State::Closed,
            7 => State::RelayTwoPaths,
            8 => State::Relay,
            9 => State::Return,
            10 => State::Adopted,
            11 => State::Joining,
            12 => State::Switching,
            13 => State::Passing,
            14 => State::Detour,
            15 => State::Held,
            _ => return None,
        })
    }
}

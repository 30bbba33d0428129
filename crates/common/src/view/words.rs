//! Words of the table of states, as ARCHITECTURE.md and the programs have them.

use super::{Accepts, Collected, Meaning, Need, Removal, Sends};

impl Sends {
    /// Returns the words that complete "the local end's data goes".
    pub const fn words(self) -> &'static str {
        match self {
            Sends::Unchanged => "out unchanged",
            Sends::OldPath => "by the old path",
            Sends::Cutoff => "by the new path from the cutoff on, before it by the old one",
            Sends::NewPath => "by the new path",
            Sends::Switched => {
                "by the new path; acknowledgements of earlier data go by the path before"
            }
            Sends::OtherEntry => "by the path of the other entry",
            Sends::ArrivalPath => "on by the path that it arrived on",
            Sends::RelayedFromCutoff => {
                "to the other neighbour from the cutoff on, before it to the proxy"
            }
            Sends::Relayed => "to the other neighbour",
            Sends::Client => "directly to the client; FINs and resets by the relaying host",
            Sends::Handler => {
                "to its services; directly before they are in and after they have left"
            }
            Sends::Later => "nowhere until its services are in; acknowledgements offer no window",
            Sends::Nowhere => "nowhere",
        }
    }
}

impl Accepts {
    /// Returns the words that complete "packets are accepted from".
    pub const fn words(self) -> &'static str {
        match self {
            Accepts::Own => "the session's own five-tuple",
            Accepts::Both => "both paths",
            Accepts::OldPath => "the old path",
            Accepts::NewPath => "the new path",
            Accepts::NewPathAlone => "the new path; late packets of the old one are dropped",
            Accepts::BothSides => "both sides",
            Accepts::Nothing => "neither",
        }
    }
}

impl Collected {
    /// Returns the words that complete "the entry is collected".
    pub const fn words(self) -> &'static str {
        match self {
            Collected::Unused => "–",
            Collected::Unanswered => "if no SYN-ACK comes",
            Collected::SoonAfterEnd => "2 s after the end",
            Collected::AfterEnd => "two MSL after the end",
            Collected::OnceSilent => "two MSL after the end, once it is silent",
            Collected::Tombstone => "after two MSL",
        }
    }
}

impl Need {
    /// Returns the reason, as `dyscoctl uninstall` states it.
    pub const fn words(self) -> &'static str {
        match self {
            Need::Changing => "its path is being changed",
            Need::Chained => "it passes a chain",
            Need::Bypassed => "its proxy has left (bypass)",
            Need::Relayed => "its proxy has left (local)",
            Need::Returned => "its proxy has left (return)",
            Need::Services => "services are in it, come in, or have added bytes to it",
        }
    }
}

impl Removal {
    /// Returns the name of the mode.
    pub const fn words(self) -> &'static str {
        match self {
            Removal::Bypass => "bypass",
            Removal::Local => "local",
            Removal::Return => "return",
        }
    }
}

impl Meaning {
    /// Returns the row as it is written: the flags that make the case, then one word or phrase a
    /// column.
    pub fn cells(&self) -> [&'static str; 7] {
        [
            self.when,
            self.sends.words(),
            self.accepts.words(),
            self.collected.words(),
            self.need.map_or("–", Need::words),
            self.listed,
            self.mode.map_or("–", Removal::words),
        ]
    }
}

//! Sessions that this host relays, with a chain on one side.

use dysco_common::Session;
use dysco_common::delta::Reach;

use crate::Agent;

impl Agent {
    /// Prepares another path for the session of a slot. If this host relays the session, packets
    /// relayed to that side take the entries of its paths from now on. Returns the value of
    /// `Session::relay` for these entries.
    pub(crate) fn steer(&self, slot: u32) -> u32 {
        let s = self.session(slot);
        let Some(other) = s.view().relayed_to() else {
            return s.relay;
        };
        let relay = slot + 1;
        if self.session(other).relay != relay {
            // No numbers of relayed packets have been recorded so far; there may be more bytes
            // than numbers can tell.
            self.memory().set_sent(slot, &self.sent_by(other));
            self.memory().set_relay(other, relay);
            let meanwhile = self.sent_by(other);
            let s = self.session(slot);
            let raised = Session {
                snd_max: meanwhile.snd_max,
                snd_ack: meanwhile.snd_ack,
                ..s
            };
            self.memory().raise(slot, &raised);
        }
        relay
    }

    /// Returns what a relay's entry has sent, in the numbers of the entry that it is joined to.
    fn sent_by(&self, other: u32) -> Session {
        let o = self.session(other);
        Session {
            bytes_out: o.bytes_in,
            snd_max: o.sent_on_wire(o.rcv_max),
            snd_ack: o.rcv_ack.wrapping_sub(o.translation.seq_in),
            ..o
        }
    }

    /// Returns the highest numbers that a session's end has sent and received, as they are on
    /// the wire here. If this host relays the session, that end is the relay, of which only the
    /// received number is kept.
    pub fn reach(&self, slot: u32) -> Reach {
        let s = self.session(slot);
        match s.view().relayed_to() {
            Some(other) => Reach {
                sent: self.sent_by(other).snd_max,
                heard: s.rcv_max,
            },
            None => s.reach(),
        }
    }

    /// Ends the steering for a path that is given up and was not taken: if there is no other,
    /// relayed packets leave directly again.
    pub(crate) fn steer_no_more(&self, path: &Session) {
        let before = path.other_path().map(|first| (first, self.session(first)));
        if let Some((first, s)) = before
            && path.relayed_by() == Some(first)
            && let Some(other) = s.joined_to()
            && self.session(other).relay == path.relay
        {
            self.memory().set_relay(other, 0);
        }
    }

    /// Returns the path that a relayed session takes, by the slot of the relay's entry; `None`
    /// if it is the relay's own.
    pub fn path_of_relay(&self, relay: u32) -> Option<u32> {
        let slot = self.find(&self.session(relay).key)?;
        (self.session(slot).relayed_by() == Some(relay)).then_some(slot)
    }

    /// Ends the path of a relayed session that has ended.
    pub fn end_with_relay(&self, relay: u32) {
        if let Some(path) = self.path_of_relay(relay) {
            self.memory().share_life(path, relay);
        }
    }

    /// True if this relayed session has a path of its own on one side, or is being given one.
    pub fn is_steered(&self, relays: [u32; 2]) -> bool {
        relays.iter().any(|slot| self.session(*slot).relay != 0)
    }

    /// Undoes the steering that a process began and did not complete before it ended.
    pub fn undo_steering(&self, relay: u32) {
        let s = self.session(relay);
        let Some(other) = s.view().relayed_to() else {
            return;
        };
        // Most relays have nothing to undo, and a search for paths reads the whole table.
        if self.session(other).relay != relay + 1 {
            return;
        }
        if self.path_of_relay(relay).is_none() && self.second_path(relay).is_none() {
            self.memory().set_relay(other, 0);
        }
    }
}

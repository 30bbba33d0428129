//! A session as the hosts on its path have it. A middlebox that has left had two sessions, or had
//! changed the size of the stream. Each end keeps its own numbers. One of the two hosts translates
//! between them, and devices between the two hosts see the numbers of the wire.

use crate::flow::FlowKey;
use crate::session::{Session, State, offer, translation};

impl Session {
    /// Returns true if a middlebox has left the session, and its packets go directly between the
    /// two hosts.
    #[inline(always)]
    const fn is_bypassed(&self) -> bool {
        self.state == State::NewPath as u32 && self.two.chained == 0
    }

    /// Returns the session's name on other hosts, if it differs from its own five-tuple. The name
    /// is constant over changes of the chain, so that hosts that stay in the chain know the
    /// session.
    pub const fn alias(&self) -> Option<FlowKey> {
        if !self.alias.is_none() {
            Some(self.alias.whole(&self.key))
        } else if self.is_bypassed() {
            Some(self.path)
        } else {
            None
        }
    }

    /// Returns true if a middlebox has left the session, whatever its chain is now.
    pub const fn was_bypassed(&self) -> bool {
        self.alias().is_some() && !self.is_behind_nat()
    }

    /// Returns the session's name on other hosts, from this host's side.
    pub fn name(&self) -> FlowKey {
        self.alias().unwrap_or(self.key)
    }

    /// Converts a number that the local end sends to the wire's numbers.
    #[inline(always)]
    pub const fn sent_on_wire(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.translation.seq_out)
    }

    /// Converts a number from the remote end on the wire to the local end's numbers.
    #[inline(always)]
    pub const fn received_off_wire(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.translation.seq_in)
    }

    /// Converts a number that the local end has received to the wire's numbers.
    #[inline(always)]
    pub const fn received_on_wire(&self, seq: u32) -> u32 {
        seq.wrapping_sub(self.translation.seq_in)
    }

    /// Converts an acknowledgement on the wire to the local end's numbers.
    #[inline(always)]
    pub const fn acked_off_wire(&self, ack: u32) -> u32 {
        ack.wrapping_sub(self.translation.seq_out)
    }

    /// Returns the entry as the next host's stack would have it: with the five-tuple, numbers,
    /// clocks and options of the wire. If the wire uses the end's own numbers, the entry is
    /// unchanged.
    ///
    /// In the result each end offers a window scale, 0 if there is none. This has the same meaning
    /// (RFC 7323, 2.2), and is the value in the translation.
    pub fn on_wire(&self) -> Session {
        match self.alias() {
            Some(name) if !self.is_behind_nat() => self.on_wire_of(name),
            _ if self.is_shifted() => self.numbers_on_wire(self.key),
            _ => *self,
        }
    }

    fn numbers_on_wire(&self, name: FlowKey) -> Session {
        let t = &self.translation;
        let mut s = *self;
        s.key = name;
        s.snd_max = self.sent_on_wire(self.snd_max);
        s.snd_ack = self.snd_ack.wrapping_sub(t.seq_in);
        s.rcv_max = self.rcv_max.wrapping_sub(t.seq_in);
        s.rcv_ack = self.sent_on_wire(self.rcv_ack);
        s.tsval_out = self.tsval_out.wrapping_add(t.ts_out);
        s.tsval_in = self.tsval_in.wrapping_sub(t.ts_in);
        s.local.isn = self.sent_on_wire(self.local.isn);
        s.remote.isn = self.remote.isn.wrapping_sub(t.seq_in);
        s
    }

    /// Returns the entry of a session whose wire has this five-tuple and another session's options.
    pub fn on_wire_of(&self, name: FlowKey) -> Session {
        let t = &self.translation;
        let mut s = self.numbers_on_wire(name);
        s.local.wscale = rescaled(self.local_wscale(), t.wscale_local, t.wscale_local_at_peer);
        s.remote.wscale = rescaled(
            self.remote_wscale(),
            t.wscale_remote,
            t.wscale_remote_at_peer,
        );
        s.local.flags |= offer::WSCALE;
        s.remote.flags |= offer::WSCALE;
        // One of the two sessions has timestamps, and the other has none.
        if t.flags & translation::STRIP_TIMESTAMPS != 0 {
            if self.local.flags & self.remote.flags & offer::TIMESTAMPS != 0 {
                s.local.flags &= !offer::TIMESTAMPS;
                s.remote.flags &= !offer::TIMESTAMPS;
            } else {
                s.local.flags |= offer::TIMESTAMPS;
                s.remote.flags |= offer::TIMESTAMPS;
            }
        }
        s
    }
}

/// Converts a window scale of an end to the wire's. A host that does not translate has the same
/// scale twice in its translation, whatever its value is.
const fn rescaled(own: u8, near: u8, peer: u8) -> u8 {
    own.wrapping_sub(near).wrapping_add(peer)
}

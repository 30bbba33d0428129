//! A session as those know it that are on its path. A middlebox that has left it
//! had two, or had changed the size of its stream: each end keeps its own numbers,
//! one of the two hosts translates between them, and what comes between the two
//! hosts sees what is on the wire.

use crate::flow::FlowKey;
use crate::session::{Session, State, offer, translation};

impl Session {
    /// Has a middlebox left it, and do its packets go straight from host to host?
    #[inline(always)]
    const fn is_bypassed(&self) -> bool {
        self.state == State::NewPath as u32 && self.two.chained == 0
    }

    /// What other hosts call it, where that is not its own five-tuple. It stays the
    /// same however often the chain changes, so that hosts that stay in it know the
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

    /// Has a middlebox left it, whatever chain it has now?
    pub const fn was_bypassed(&self) -> bool {
        self.alias().is_some() && !self.is_behind_nat()
    }

    /// What other hosts call it, from this host's side.
    pub fn name(&self) -> FlowKey {
        self.alias().unwrap_or(self.key)
    }

    /// A number that the local end sends, as the wire has it.
    #[inline(always)]
    pub const fn sent_on_wire(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.translation.seq_out)
    }

    /// A number of the wire that comes from the remote end, as the local end has it.
    #[inline(always)]
    pub const fn received_off_wire(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.translation.seq_in)
    }

    /// A number that the local end has received, as the wire has it.
    #[inline(always)]
    pub const fn received_on_wire(&self, seq: u32) -> u32 {
        seq.wrapping_sub(self.translation.seq_in)
    }

    /// What the wire acknowledges to the local end, in that one's numbers.
    #[inline(always)]
    pub const fn acked_off_wire(&self, ack: u32) -> u32 {
        ack.wrapping_sub(self.translation.seq_out)
    }

    /// The entry as the next host's stack would have it: the five-tuple, numbers,
    /// clocks and options of the wire. A session whose wire speaks the end's own
    /// numbers is as it is.
    ///
    /// Each end offers a window scale then, 0 where there is none, which means the
    /// same (RFC 7323, 2.2) and is what the translation has of it.
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

    /// The same of a session whose wire has this five-tuple and another's options.
    pub fn on_wire_of(&self, name: FlowKey) -> Session {
        let t = &self.translation;
        let mut s = self.numbers_on_wire(name);
        s.local.wscale = rescaled(self.local_wscale(), t.wscale_local, t.wscale_local_far);
        s.remote.wscale = rescaled(self.remote_wscale(), t.wscale_remote, t.wscale_remote_far);
        s.local.flags |= offer::WSCALE;
        s.remote.flags |= offer::WSCALE;
        // One of the two sessions has timestamps, the other has none.
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

/// A window scale of the end as the wire has it: the host that does not translate
/// has the same scale twice in its translation, whatever it is.
const fn rescaled(own: u8, near: u8, far: u8) -> u8 {
    own.wrapping_sub(near).wrapping_add(far)
}

//! Two joined sessions of this host, which is the anchor of both their remote ends.

use dysco_common::seq::after;
use dysco_common::two_paths::{Anchor, Cutoff, NO_EDGE, stored_edge};
use dysco_common::{FlowKey, State, Translation};

use crate::Agent;
use crate::error::AgentError;
use crate::maps::{lock, map_error};

/// Two sessions and the translation between them.
#[derive(Clone, Copy, Debug)]
pub struct Joint {
    /// The slot of the session that this host accepted.
    pub a: u32,
    /// The slot of the session that this host opened.
    pub b: u32,
    /// Translation of headers from the remote end of `a`.
    pub translation: Translation,
    /// The interface towards the remote end of `a`.
    pub ifindex_a: u32,
    /// The interface towards the remote end of `b`.
    pub ifindex_b: u32,
}

impl Agent {
    /// Bounds the window that this host's stack announces to the remote end, scaled as it is
    /// sent. 0 removes the bound.
    pub fn clamp_remote(&self, slot: u32, window: u16) {
        self.memory().set_clamp_remote(slot, window);
    }

    /// Forgets the window that a remote end has offered this host's stack. The programs record
    /// its later offers, once [`Agent::clamp_remote`] has bounded its session.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn forget_edge(&self, slot: u32) -> Result<(), AgentError> {
        let mut edges = lock(&self.edges);
        edges
            .set(slot, NO_EDGE, 0)
            .map_err(map_error("write", "EDGES"))
    }

    /// Records up to which number a remote end lets this host's stack send, as the stack's
    /// socket knows it. Does not lower an edge that the programs have recorded since. The
    /// programs may raise the edge between the read and the store; the end's next segment
    /// corrects that.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn set_edge(&self, slot: u32, edge: u32) -> Result<(), AgentError> {
        let mut edges = lock(&self.edges);
        let known = edges.get(&slot, 0).map_err(map_error("read", "EDGES"))?;
        if known != NO_EDGE && !after(edge, known) {
            return Ok(());
        }
        edges
            .set(slot, stored_edge(edge), 0)
            .map_err(map_error("write", "EDGES"))
    }

    /// Joins the two, so that each receives from the other, with nothing new to receive yet.
    pub fn join(&self, joint: &Joint) {
        let t = joint.translation;
        self.aim(joint.a, joint.b, joint.ifindex_b, t);
        self.aim(joint.b, joint.a, joint.ifindex_a, t.mirrored());
        self.memory().set_state(joint.a, State::RelayTwoPaths);
        self.memory().set_state(joint.b, State::RelayTwoPaths);
    }

    fn aim(&self, slot: u32, other: u32, ifindex: u32, translation: Translation) {
        let path = self.session(other).key;
        self.memory().write(slot, |s| {
            s.path = path;
            s.ifindex = ifindex;
            s.translation = translation;
            s.two = Default::default();
            (s.hop, s.new_out, s.new_in, s.peer_sent_max, s.muted) = (0, 0, 0, 0, 0);
            s.joined = other + 1;
        });
    }

    /// Undoes a join. Only if nothing was relayed.
    pub fn unjoin(&self, slot: u32) {
        self.memory().set_state(slot, State::Tracked);
        self.clamp_remote(slot, 0);
        self.memory().write(slot, |s| {
            s.path = FlowKey::default();
            s.joined = 0;
        });
    }

    /// Relays new data from here on, and gives each entry the other's cutoff. Returns the cutoff
    /// of `a`, in its remote end's space, and true if both ends have acknowledged all earlier
    /// bytes already. Otherwise a `Drained` event follows for each end that has not.
    pub fn cut_pair(&self, a: u32, b: u32) -> (Cutoff, bool) {
        let t = self.session(a).translation;
        let memory = self.memory();
        let (out, back) = (memory.cut(a, Anchor::Remote), memory.cut(b, Anchor::Remote));
        let right = memory.set_cut_in(b, out.moved(t.seq_out), Anchor::Remote);
        let left = memory.set_cut_in(a, back.moved(t.seq_in), Anchor::Remote);
        (out, left && right)
    }

    /// Records whether the replies of a relayed session's other end bypass this host.
    pub fn set_returns(&self, slot: u32, returns: bool) {
        self.memory().set_returns(slot, returns);
    }

    /// Relays all packets of the remote end, and drops those of the stack.
    pub fn relay(&self, slot: u32) {
        self.memory().set_state(slot, State::Relay);
    }
}

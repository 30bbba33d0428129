//! The end that an anchor acts for, and the words of an entry that belong to that end.

use crate::session::Session;

/// The end that the anchor acts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// The end on this host.
    Local,
    /// The remote end, one hop away.
    Remote,
}

impl Anchor {
    /// Returns the end of the highest segment that the end sent.
    #[inline(always)]
    pub const fn snd_max(self, s: &Session) -> u32 {
        match self {
            Anchor::Local => s.snd_max,
            Anchor::Remote => s.rcv_max,
        }
    }

    /// Returns the end of the highest segment that the old path sent to the end.
    #[inline(always)]
    pub(super) const fn rcv_max(self, s: &Session) -> u32 {
        match self {
            Anchor::Local => s.rcv_max,
            Anchor::Remote => s.snd_max,
        }
    }

    /// Returns the highest acknowledgement that the old path sent to the end.
    #[inline(always)]
    pub(super) const fn rcv_ack(self, s: &Session) -> u32 {
        match self {
            Anchor::Local => s.rcv_ack,
            Anchor::Remote => s.snd_ack,
        }
    }

    /// Returns the highest acknowledgement that the end sent.
    #[inline(always)]
    pub(super) const fn acked(self, s: &Session) -> u32 {
        match self {
            Anchor::Local => s.snd_ack,
            Anchor::Remote => s.rcv_ack,
        }
    }

    /// Returns whether a FIN for the end was seen: bits of [`crate::session::life`].
    #[inline(always)]
    pub(super) const fn fin_received(self, s: &Session) -> u8 {
        match self {
            Anchor::Local => s.life.fin_in,
            Anchor::Remote => s.life.fin_out,
        }
    }

    /// Returns whether the end's FIN was seen: bits of [`crate::session::life`].
    #[inline(always)]
    pub(super) const fn fin_sent(self, s: &Session) -> u8 {
        match self {
            Anchor::Local => s.life.fin_out,
            Anchor::Remote => s.life.fin_in,
        }
    }

    /// Returns the last TSval that the end sent.
    #[inline(always)]
    pub const fn tsval(self, s: &Session) -> u32 {
        match self {
            Anchor::Local => s.tsval_out,
            Anchor::Remote => s.tsval_in,
        }
    }

    /// Returns the last TSval that the old path sent to the end.
    #[inline(always)]
    pub const fn tsval_received(self, s: &Session) -> u32 {
        match self {
            Anchor::Local => s.tsval_in,
            Anchor::Remote => s.tsval_out,
        }
    }

    /// Returns the scale of the windows that are sent to the end.
    #[inline(always)]
    pub const fn wscale(self, s: &Session) -> u8 {
        match self {
            Anchor::Local => s.remote_wscale(),
            Anchor::Remote => s.local_wscale(),
        }
    }

    /// Returns the scale of the windows that the end sends.
    #[inline(always)]
    pub(super) const fn own_wscale(self, s: &Session) -> u8 {
        match self {
            Anchor::Local => s.local_wscale(),
            Anchor::Remote => s.remote_wscale(),
        }
    }

    /// Returns the limit of the window that the old path may send to the end, unscaled; 0 for none.
    #[inline(always)]
    pub(super) const fn clamp(self, s: &Session) -> u32 {
        match self {
            Anchor::Local => s.clamp as u32,
            Anchor::Remote => s.clamp_remote as u32,
        }
    }
}

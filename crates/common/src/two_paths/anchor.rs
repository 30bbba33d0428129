//! Whose end an anchor acts for, and which words of an entry are that end's.

use crate::session::Session;

/// Whose end the anchor acts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// This host's.
    Near,
    /// The remote one, one hop away.
    Far,
}

impl Anchor {
    /// End of the highest segment that the end sent.
    #[inline(always)]
    pub const fn snd_max(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.snd_max,
            Anchor::Far => s.rcv_max,
        }
    }

    /// End of the highest segment that the old path sent it.
    #[inline(always)]
    pub(super) const fn rcv_max(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.rcv_max,
            Anchor::Far => s.snd_max,
        }
    }

    /// Highest ack that the old path sent it.
    #[inline(always)]
    pub(super) const fn rcv_ack(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.rcv_ack,
            Anchor::Far => s.snd_ack,
        }
    }

    /// Highest ack that the end sent.
    #[inline(always)]
    pub(super) const fn acked(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.snd_ack,
            Anchor::Far => s.rcv_ack,
        }
    }

    /// Whether the FIN was seen of what is sent to the end: bits of [`crate::session::life`].
    #[inline(always)]
    pub(super) const fn fin_heard(self, s: &Session) -> u8 {
        match self {
            Anchor::Near => s.life.fin_in,
            Anchor::Far => s.life.fin_out,
        }
    }

    /// Whether the end's FIN was seen: bits of [`crate::session::life`].
    #[inline(always)]
    pub(super) const fn fin_sent(self, s: &Session) -> u8 {
        match self {
            Anchor::Near => s.life.fin_out,
            Anchor::Far => s.life.fin_in,
        }
    }

    /// Last TSval that the end sent.
    #[inline(always)]
    pub const fn tsval(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.tsval_out,
            Anchor::Far => s.tsval_in,
        }
    }

    /// Last TSval that the old path sent it.
    #[inline(always)]
    pub const fn tsval_heard(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.tsval_in,
            Anchor::Far => s.tsval_out,
        }
    }

    /// Scale of the windows that the end is told.
    #[inline(always)]
    pub const fn wscale(self, s: &Session) -> u8 {
        match self {
            Anchor::Near => s.remote_wscale(),
            Anchor::Far => s.local_wscale(),
        }
    }

    /// Bound of the window that the old path may tell it, as it is sent; 0 for none.
    #[inline(always)]
    pub(super) const fn clamp(self, s: &Session) -> u32 {
        match self {
            Anchor::Near => s.clamp as u32,
            Anchor::Far => s.clamp_far as u32,
        }
    }
}

//! Events in a session's life. The constants are bits of them, in [`Life`].

/// The event was seen.
pub const SEEN: u8 = 1;
/// Of a FIN: the FIN passed on the session's own five-tuple.
pub const OLD_PATH: u8 = 2;
/// Of a FIN: the number before the end's cutoff is that of its FIN. The FIN was lost before the
/// cut, and only the numbers after it were seen.
pub const AT_CUTOFF: u8 = 4;
/// Of a reset: the middlebox ended the session between two paths.
pub const BY_MIDDLEBOX: u8 = 2;
/// Of a reset: the end that the entry's anchor acts for sent it.
pub const BY_END: u8 = 4;

/// Events in a session's life. Each is a byte that is only ever set. Programs on two CPUs and user
/// space write them without a lock, because a byte cannot be torn.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Life {
    /// The local end opened the session (sent the SYN).
    pub opened_here: u8,
    /// The local end sent its FIN: bits of this module.
    pub fin_out: u8,
    /// The remote end's FIN was seen: bits of this module.
    pub fin_in: u8,
    /// A reset was seen, in either direction: bits of this module.
    pub reset: u8,
    /// User space has been notified of the end.
    pub notified: u8,
    /// The session's five-tuple is IPv6.
    pub v6: u8,
    /// A packet of the local end was seen since the session was adopted.
    pub seen_out: u8,
    /// A packet of the remote end was seen since the session was adopted.
    pub seen_in: u8,
}

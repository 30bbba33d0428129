//! Reports of the shim to the daemon of its host: fixed-size datagrams on a unix socket. Native
//! byte order, because both ends are on one machine.
//!
//! The daemon listens on a path, and on the abstract address of the same name (a NUL byte, then the
//! path; unix(7)). A program that has changed its root finds only the latter.

/// First word of each datagram.
pub const MAGIC: u32 = 0x6479_7363;
/// Version of this layout.
pub const VERSION: u16 = 2;

/// Kind of a [`Report`].
#[repr(u16)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportKind {
    /// A process has the shim loaded. No descriptors.
    Hello = 1,
    /// The pair is relayed according to the flags.
    Paired = 2,
    /// The report on the pair is not valid any more.
    Revoked = 3,
    /// The program itself called `dysco_splice` for the direction from in to out.
    Called = 4,
}

impl ReportKind {
    /// Returns the kind of a received word, or `None` if it is unknown.
    pub const fn from_word(w: u16) -> Option<ReportKind> {
        Some(match w {
            1 => ReportKind::Hello,
            2 => ReportKind::Paired,
            3 => ReportKind::Revoked,
            4 => ReportKind::Called,
            _ => return None,
        })
    }
}

/// Bits of [`Report::flags`].
pub mod report {
    /// Bytes read from `fd_in` are spliced to `fd_out` endlessly, delta steady.
    pub const FORWARD_ENDLESS: u32 = 1;
    /// Bytes read from `fd_out` are spliced to `fd_in` endlessly, delta steady.
    pub const REVERSE_ENDLESS: u32 = 2;
    /// `fd_in` was accepted (not connected) by this process.
    pub const IN_ACCEPTED: u32 = 4;
}

/// One datagram. The sender's process comes from the socket's credentials. The descriptors may be
/// other sockets' when the datagram is read. The cookies identify the sockets.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// A [`ReportKind`].
    pub kind: u16,
    /// [`report`] bits.
    pub flags: u32,
    /// Descriptor from which the forward direction reads.
    pub fd_in: i32,
    /// Descriptor to which the forward direction writes.
    pub fd_out: i32,
    /// Read end of the pipe last used forward, or -1.
    pub pipe_forward: i32,
    /// Read end of the pipe last used in reverse, or -1.
    pub pipe_reverse: i32,
    /// Zero.
    pub reserved: u32,
    /// Bytes written to `fd_out` less bytes read from `fd_in`, pipe counted.
    pub delta_forward: i64,
    /// Bytes written to `fd_in` less bytes read from `fd_out`, pipe counted.
    pub delta_reverse: i64,
    /// Cookie of the socket `fd_in` (`SO_COOKIE`), 0 if it is not known.
    pub cookie_in: u64,
    /// Cookie of the socket `fd_out`, 0 if it is not known.
    pub cookie_out: u64,
}

impl Report {
    /// Size of a datagram in bytes.
    pub const SIZE: usize = size_of::<Report>();

    /// Returns the report as a datagram.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        b[0..4].copy_from_slice(&self.magic.to_ne_bytes());
        b[4..6].copy_from_slice(&self.version.to_ne_bytes());
        b[6..8].copy_from_slice(&self.kind.to_ne_bytes());
        b[8..12].copy_from_slice(&self.flags.to_ne_bytes());
        b[12..16].copy_from_slice(&self.fd_in.to_ne_bytes());
        b[16..20].copy_from_slice(&self.fd_out.to_ne_bytes());
        b[20..24].copy_from_slice(&self.pipe_forward.to_ne_bytes());
        b[24..28].copy_from_slice(&self.pipe_reverse.to_ne_bytes());
        b[32..40].copy_from_slice(&self.delta_forward.to_ne_bytes());
        b[40..48].copy_from_slice(&self.delta_reverse.to_ne_bytes());
        b[48..56].copy_from_slice(&self.cookie_in.to_ne_bytes());
        b[56..64].copy_from_slice(&self.cookie_out.to_ne_bytes());
        b
    }

    /// Returns the report in a datagram, or `None` if the length, magic or version does not match.
    /// The kind is not checked here.
    pub fn from_bytes(b: &[u8]) -> Option<Report> {
        let b: &[u8; Self::SIZE] = b.try_into().ok()?;
        let word = |i: usize| u32::from_ne_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let half = |i: usize| u16::from_ne_bytes([b[i], b[i + 1]]);
        let long = |i: usize| u64::from(word(i + 4)) << 32 | u64::from(word(i));
        let long = |i: usize| {
            if cfg!(target_endian = "little") {
                long(i)
            } else {
                long(i).rotate_left(32)
            }
        };
        (word(0) == MAGIC && half(4) == VERSION).then(|| Report {
            magic: MAGIC,
            version: VERSION,
            kind: half(6),
            flags: word(8),
            fd_in: word(12) as i32,
            fd_out: word(16) as i32,
            pipe_forward: word(20) as i32,
            pipe_reverse: word(24) as i32,
            reserved: 0,
            delta_forward: long(32) as i64,
            delta_reverse: long(40) as i64,
            cookie_in: long(48),
            cookie_out: long(56),
        })
    }
}

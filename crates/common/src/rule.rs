//! Tracking rules, which are compared with a SYN's destination.

use crate::flow::{Addr, FlowKey};

/// Maximum number of rules.
pub const MAX_RULES: usize = 16;

/// A destination prefix and a range of ports, including both ends of the range.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// Prefix, host bits zero.
    pub prefix: Addr,
    /// Mask of the prefix.
    pub mask: Addr,
    /// First port, host order.
    pub first_port: u16,
    /// Last port, host order.
    pub last_port: u16,
}

/// The rules in force. Without any, every session is tracked.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Number of valid `rules`.
    pub len: u32,
    /// The rules. The first match decides.
    pub rules: [Rule; MAX_RULES],
}

impl Rule {
    /// Returns true if a SYN to this destination (port in host order) matches.
    #[inline(always)]
    pub fn matches(&self, dst: &Addr, port: u16) -> bool {
        dst.masked(&self.mask) == self.prefix && port >= self.first_port && port <= self.last_port
    }
}

/// Returns true if the rules include this session. They are compared with the end that accepted it.
/// Without rules every session is included.
pub fn wanted(rules: &[Rule], key: &FlowKey, opened_here: bool) -> bool {
    let (addr, port) = if opened_here {
        (&key.remote, key.remote_port)
    } else {
        (&key.local, key.local_port)
    };
    let port = u16::from_be(port);
    rules.is_empty() || rules.iter().any(|r| r.matches(addr, port))
}

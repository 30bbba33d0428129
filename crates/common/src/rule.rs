//! What is tracked: rules that a SYN's destination is held against.

use crate::flow::{Addr, FlowKey};

/// How many rules there may be.
pub const MAX_RULES: usize = 16;

/// A destination prefix and a range of ports. Both ends of the range count.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// The prefix, host bits zero.
    pub prefix: Addr,
    /// The mask of the prefix.
    pub mask: Addr,
    /// First port, host order.
    pub first_port: u16,
    /// Last port, host order.
    pub last_port: u16,
}

/// The rules in force. With none, every session is tracked.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// How many of `rules` count.
    pub len: u32,
    /// The rules; the first that matches decides.
    pub rules: [Rule; MAX_RULES],
}

impl Rule {
    /// Does a SYN to this destination (port in host order) match?
    #[inline(always)]
    pub fn matches(&self, dst: &Addr, port: u16) -> bool {
        dst.masked(&self.mask) == self.prefix && port >= self.first_port && port <= self.last_port
    }
}

/// Do the rules want this session? They are held against the end that was
/// opened to; with none, every session is wanted.
pub fn wanted(rules: &[Rule], key: &FlowKey, opened_here: bool) -> bool {
    let (addr, port) = if opened_here {
        (&key.remote, key.remote_port)
    } else {
        (&key.local, key.local_port)
    };
    let port = u16::from_be(port);
    rules.is_empty() || rules.iter().any(|r| r.matches(addr, port))
}

//! Elements of chains, and the paths between them.

use crate::flow::Addr;

/// Maximum number of elements of a chain, without the two ends.
pub const MAX_CHAIN: usize = 8;

/// Kind of an element of a chain.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ElementKind {
    /// A host that the session passes.
    Host = 1,
    /// In the last place of a payload: the SYN opens another path of a live session. The element
    /// contains the secret by which the session's other end awaits the path, and no host.
    Live = 2,
}

/// The secret by which the other end of a live session awaits a path. Its lowest bits are the
/// path's number: see [`path_number`].
pub type Token = [u64; 2];

/// Returns the number of the path that a SYN with this secret opens. The host that opened a session
/// numbers its paths. 0 is the path that the session began with. Each attempt to lay another path
/// gets the next number, whether it succeeds or not. Any host of the chain can therefore tell which
/// of two paths is later, and can name either of them to the host that knows which one is in use.
#[inline(always)]
pub const fn path_number(token: &Token) -> u32 {
    token[1] as u32
}

/// Returns a secret that contains the number of its path.
pub const fn numbered(secret: Token, number: u32) -> Token {
    let [a, b] = secret;
    [a, b & !(u32::MAX as u64) | number as u64]
}

/// One element of a chain, as on the wire and in maps.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WireElement {
    /// An [`ElementKind`]; 0 after the chain's end.
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// The host.
    pub host: Addr,
}

impl WireElement {
    /// An element after a chain's end.
    pub(super) const NONE: WireElement = WireElement {
        kind: 0,
        reserved: [0; 3],
        host: Addr::new([0; 16]),
    };

    /// Returns the element of a host.
    pub const fn host(host: Addr) -> Self {
        WireElement {
            kind: ElementKind::Host as u8,
            reserved: [0; 3],
            host,
        }
    }

    /// Returns the element of a live session, with the secret.
    pub const fn live(token: Token) -> Self {
        let [a, b] = [token[0].to_ne_bytes(), token[1].to_ne_bytes()];
        let mut bytes = [0; 16];
        let mut i = 0;
        while i < 8 {
            (bytes[i], bytes[8 + i]) = (a[i], b[i]);
            i += 1;
        }
        WireElement {
            kind: ElementKind::Live as u8,
            reserved: [0; 3],
            host: Addr::new(bytes),
        }
    }

    /// Returns true if the element marks a live session.
    #[inline(always)]
    pub const fn is_live(&self) -> bool {
        self.kind == ElementKind::Live as u8
    }

    /// Returns the secret, if this is the element of a live session.
    #[inline(always)]
    pub const fn token(&self) -> Token {
        let [a, b, c, d] = self.host.words();
        if cfg!(target_endian = "little") {
            [a as u64 | (b as u64) << 32, c as u64 | (d as u64) << 32]
        } else {
            [b as u64 | (a as u64) << 32, d as u64 | (c as u64) << 32]
        }
    }
}

impl From<Addr> for WireElement {
    fn from(host: Addr) -> WireElement {
        WireElement::host(host)
    }
}

/// The remaining elements of a chain, the nearest first.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Chain {
    /// Number of valid `elements`.
    pub len: u32,
    /// The elements, followed by zeros.
    pub elements: [WireElement; MAX_CHAIN],
}

impl Chain {
    /// Returns a chain of these elements, or `None` if there are too many.
    pub fn of<E: Copy + Into<WireElement>>(elements: &[E]) -> Option<Chain> {
        let mut chain = Chain {
            len: elements.len() as u32,
            ..Chain::default()
        };
        if elements.len() > MAX_CHAIN {
            return None;
        }
        for (place, element) in chain.elements.iter_mut().zip(elements) {
            *place = (*element).into();
        }
        Some(chain)
    }

    /// Returns the valid elements.
    pub fn elements(&self) -> &[WireElement] {
        &self.elements[..(self.len as usize).min(MAX_CHAIN)]
    }
}

/// The chain of a session, as the host that opened the session records it, and the numbers of the
/// paths along the chain.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Given {
    /// The chain.
    pub chain: Chain,
    /// Number of the path before each host of the chain, and behind the last one.
    pub paths: [u32; MAX_CHAIN + 1],
    /// Highest number of any path of the session.
    pub highest: u32,
}

impl Given {
    /// Returns the valid numbers: one more than the chain has hosts.
    pub fn paths(&self) -> &[u32] {
        &self.paths[..=self.chain.elements().len()]
    }
}

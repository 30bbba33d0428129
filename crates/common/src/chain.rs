//! The payload that the SYN of a chain's session carries from one host to the next: the session,
//! the subsession of the SYN, the rest of the chain, and a proof.
//!
//! The payload follows any data of the SYN's own (TCP Fast Open). It always has the same length, so
//! that a program finds and checks it with fixed offsets.

use core::mem::{offset_of, size_of};

use crate::flow::{Addr, FlowKey};
use crate::fresh::Clock;
use crate::siphash::{Key, SipHash};

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
    const NONE: WireElement = WireElement {
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

/// Version of the payload's layout.
pub const VERSION: u8 = 3;
/// First word of a payload.
pub const MAGIC: u32 = u32::from_ne_bytes(*b"\xd7sco");
/// Bytes of a payload.
pub const PAYLOAD: usize = size_of::<Payload>();
/// Words of a payload that the proof covers: all but the proof.
pub const PROVEN: usize = offset_of!(Payload, mac) / 8;

/// The payload of a SYN. Addresses and ports are in packet order. `local` is the side that opened
/// the session.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u8,
    /// Number of valid elements of `rest`.
    pub hosts: u8,
    /// Bytes of the whole payload, network order.
    pub length: u16,
    /// Identifier of the key of the proof.
    pub key_id: u64,
    /// The session, as the host before the sender's subsession has it.
    pub session: FlowKey,
    /// The subsession as its sender has it. If it differs on arrival, a NAT changed it.
    pub subsession: FlowKey,
    /// The session as the host that opened it has it. If it differs from `session`, the session has
    /// passed a NAT.
    pub origin: FlowKey,
    /// The hosts after the receiver.
    pub rest: [WireElement; MAX_CHAIN],
    /// Time of sending, in [`ticks`](crate::fresh::ticks) of the sender's clock, network order.
    pub sent: u32,
    /// SipHash-2-4 of all fields before this one.
    pub mac: u64,
}

const _: () = {
    assert!(size_of::<Payload>() == 296);
    // There are no gaps: the proof covers each byte.
    assert!(offset_of!(Payload, session) == 16 && offset_of!(Payload, rest) == 124);
    assert!(offset_of!(Payload, sent) == 284 && offset_of!(Payload, mac) == PAYLOAD - 8);
};

/// Reason why a payload is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// The version is unknown, or the length is not that version's.
    Layout,
    /// No sender of this version writes this content.
    Content,
    /// The proof is wrong.
    Proof,
}

impl Payload {
    /// Fills in a payload that is sent at this tick of the clock, except for the chain and the
    /// proof.
    #[inline(always)]
    pub fn fill(
        &mut self,
        key_id: u64,
        session: &FlowKey,
        origin: &FlowKey,
        subsession: &FlowKey,
        sent: u32,
    ) {
        self.magic = MAGIC;
        self.version = VERSION;
        self.length = (PAYLOAD as u16).to_be();
        self.key_id = key_id;
        self.session = *session;
        self.subsession = *subsession;
        self.origin = *origin;
        self.sent = sent.to_be();
    }

    /// Sets the rest of the chain to the elements after its first one. `last` is the element in the
    /// last place, which no chain needs for a host.
    #[inline(always)]
    pub fn set_rest(&mut self, chain: &Chain, last: &WireElement) {
        self.hosts = chain.len.saturating_sub(1) as u8;
        let mut i = 0;
        while i + 1 < MAX_CHAIN {
            self.rest[i] = chain.elements[i + 1];
            i += 1;
        }
        self.rest[MAX_CHAIN - 1] = *last;
    }

    #[inline(always)]
    fn words(&self) -> &[u64; PAYLOAD / 8] {
        // SAFETY: bytes without gaps, aligned to eight. Any bit pattern is a number.
        unsafe { &*(&raw const *self).cast() }
    }

    /// Returns the proof of the content.
    #[inline(always)]
    pub fn proof(&self, key: Key) -> u64 {
        let words = self.words();
        let mut hash = SipHash::new(key);
        let mut i = 0;
        while i < PROVEN {
            hash = hash.word(u64::from_le(words[i]));
            i += 1;
        }
        hash.finish(PROVEN as u64).to_le()
    }

    /// Checks that this version knows the layout. To be called before the key is looked up.
    #[inline(always)]
    pub fn check_layout(&self) -> Result<(), Unfit> {
        if self.magic != MAGIC
            || self.version != VERSION
            || self.length != (PAYLOAD as u16).to_be()
            || self.hosts as usize >= MAX_CHAIN
        {
            return Err(Unfit::Layout);
        }
        Ok(())
    }

    /// Checks that a holder of the key made the payload, and that the content is possible.
    #[inline(always)]
    pub fn check(&self, key: Key) -> Result<(), Unfit> {
        if self.proof(key) != self.mac {
            return Err(Unfit::Proof);
        }
        let family = self.session.local.is_v6();
        let mut i = 0;
        while i < MAX_CHAIN {
            let element = &self.rest[i];
            let counts = i < self.hosts as usize;
            if counts && (element.kind != ElementKind::Host as u8 || element.host.is_v6() != family)
            {
                return Err(Unfit::Content);
            }
            i += 1;
        }
        if self.session.remote.is_v6() != family
            || self.origin.local.is_v6() != family
            || self.origin.remote.is_v6() != family
            || self.origin.local_port == 0
            || self.origin.remote_port == 0
        {
            return Err(Unfit::Content);
        }
        Ok(())
    }

    /// Returns the element in the last place.
    #[inline(always)]
    pub const fn last(&self) -> &WireElement {
        &self.rest[MAX_CHAIN - 1]
    }

    /// Returns true if the SYN opens another path of a live session.
    #[inline(always)]
    pub const fn is_live(&self) -> bool {
        self.last().is_live()
    }

    /// Writes the remaining hosts to `to`.
    #[inline(always)]
    pub fn chain(&self, to: &mut Chain) {
        to.len = self.hosts as u32;
        to.elements = self.rest;
        // The last place never contains a host.
        to.elements[MAX_CHAIN - 1] = WireElement::NONE;
    }

    /// Returns the bytes of the payload on the wire.
    pub fn to_bytes(&self) -> [u8; PAYLOAD] {
        let mut bytes = [0; PAYLOAD];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Returns the payload of these bytes, unchecked.
    pub fn from_bytes(bytes: &[u8; PAYLOAD]) -> Payload {
        // SAFETY: the number of bytes is the same, and any bit pattern is a payload.
        unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) }
    }
}

/// A key that proves a neighbour's payloads.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shared {
    /// The key.
    pub key: Key,
    /// Knowledge of the neighbour's clock, from these payloads.
    pub clock: Clock,
}

impl Shared {
    /// Updates the clock by the time of sending of a payload that arrives now, in
    /// [`ticks`](crate::fresh::ticks). Returns false if it is a copy of a payload that arrived long
    /// ago.
    #[inline(always)]
    pub fn hears(&mut self, payload: &Payload, now: u32) -> bool {
        match self.clock.hears(now, u32::from_be(payload.sent)) {
            Some(clock) => {
                self.clock = clock;
                true
            }
            None => false,
        }
    }
}

/// A neighbour to which SYNs with a payload may be sent.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop {
    /// Identifier of `key` at both ends.
    pub key_id: u64,
    /// Key that proves the sender.
    pub key: Key,
    /// Address of this host towards the neighbour.
    pub local: Addr,
    /// Interface towards the neighbour.
    pub ifindex: u32,
    /// Zero.
    pub reserved: u32,
}

/// Record of a SYN on its way through this host. The program that forwards the SYN finds the next
/// host here.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// The session. `local` is the side that opened it.
    pub session: FlowKey,
    /// The session as the host that opened it has it.
    pub origin: FlowKey,
    /// Slot of the subsession that the SYN arrived on, plus 1; 0 at the host that opened the
    /// session.
    pub left: u32,
    /// Initial sequence number of the SYN on arrival.
    pub isn: u32,
    /// The remaining hosts, the next one first.
    pub chain: Chain,
    /// The element in the payload's last place.
    pub last: WireElement,
}

const _: () = assert!(size_of::<Pending>() == 264);

impl Pending {
    /// Copies another record, word by word. LLVM would otherwise take as much of a BPF stack as the
    /// record is long.
    #[inline(always)]
    pub fn set(&mut self, from: &Pending) {
        let (from, to) = (
            (&raw const *from).cast::<u64>(),
            (&raw mut *self).cast::<u64>(),
        );
        let mut i = 0;
        while i < size_of::<Pending>() / 8 {
            // SAFETY: both have this number of words, are aligned and have no gaps.
            unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
            i += 1;
        }
    }
}

/// Returns the ports of a slot's subsession. No two slots of a host have the same ports. The source
/// port counts the slots, within the ports that the kernel keeps free. The destination port is the
/// session's own, so that firewalls with rules for ports treat both alike. If there are more slots
/// than ports, the destination port of the others is a reserved one too.
#[inline(always)]
pub const fn ports(slot: u32, first: u16, count: u16, remote: u16) -> (u16, u16) {
    let count = if count == 0 { 1 } else { count };
    let (round, place) = (slot / count as u32, slot % count as u32);
    let source = first + place as u16;
    let destination = if round == 0 {
        remote
    } else {
        first + ((round - 1) % count as u32) as u16
    };
    (source, destination)
}

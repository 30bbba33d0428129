//! What the SYN of a chain's session carries from one host to the next: the
//! session, the subsession it travels on, the rest of the chain, and a proof.
//!
//! It lies behind whatever data the SYN has of its own (TCP Fast Open), always
//! as many bytes, so that a program finds and checks it with fixed offsets.

use core::mem::{offset_of, size_of};

use crate::flow::{Addr, FlowKey};
use crate::fresh::Clock;
use crate::siphash::{Key, SipHash};

/// The most hosts of a chain, the two ends not counted.
pub const MAX_CHAIN: usize = 8;

/// What an element of a chain is.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ElementKind {
    /// A host that the session passes.
    Host = 1,
    /// In the last place of a payload: the SYN opens another path of a session
    /// that lives. Instead of a host, the secret by which its other end awaits it.
    Live = 2,
}

/// The secret by which the other end of a live session awaits a path. Its lowest bits are
/// the path's number: see [`path_number`].
pub type Token = [u64; 2];

/// Number of the path that a SYN with this secret opens. The host that opened a session
/// numbers its paths: 0 is the one that the session began with, and each attempt to lay
/// another gets the next number, whether it succeeds or not. So of two paths of a session
/// any host of the chain can tell the later one, and names either to the host that knows
/// which of them is in use.
#[inline(always)]
pub const fn path_number(token: &Token) -> u32 {
    token[1] as u32
}

/// A secret with the number of its path in it.
pub const fn numbered(secret: Token, number: u32) -> Token {
    let [a, b] = secret;
    [a, b & !(u32::MAX as u64) | number as u64]
}

/// One element of a chain, as the wire has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Element {
    /// An [`ElementKind`]; 0 behind the chain's end.
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// The host.
    pub host: Addr,
}

impl Element {
    /// Behind a chain's end.
    const NONE: Element = Element {
        kind: 0,
        reserved: [0; 3],
        host: Addr::new([0; 16]),
    };

    /// A host.
    pub const fn host(host: Addr) -> Self {
        Element {
            kind: ElementKind::Host as u8,
            reserved: [0; 3],
            host,
        }
    }

    /// That the session lives, and the secret.
    pub const fn live(token: Token) -> Self {
        let [a, b] = [token[0].to_ne_bytes(), token[1].to_ne_bytes()];
        let mut bytes = [0; 16];
        let mut i = 0;
        while i < 8 {
            (bytes[i], bytes[8 + i]) = (a[i], b[i]);
            i += 1;
        }
        Element {
            kind: ElementKind::Live as u8,
            reserved: [0; 3],
            host: Addr::new(bytes),
        }
    }

    /// Does it say that the session lives?
    #[inline(always)]
    pub const fn is_live(&self) -> bool {
        self.kind == ElementKind::Live as u8
    }

    /// The secret, where this is of a live session.
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

/// The hosts that are still to come, the nearest first.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Chain {
    /// How many of `elements` count.
    pub len: u32,
    /// They, and then zeros.
    pub elements: [Element; MAX_CHAIN],
}

impl Chain {
    /// A chain of hosts; `None` for too many.
    pub fn of(hosts: &[Addr]) -> Option<Chain> {
        let mut chain = Chain {
            len: hosts.len() as u32,
            ..Chain::default()
        };
        if hosts.len() > MAX_CHAIN {
            return None;
        }
        for (element, host) in chain.elements.iter_mut().zip(hosts) {
            *element = Element::host(*host);
        }
        Some(chain)
    }

    /// The elements that count.
    pub fn elements(&self) -> &[Element] {
        &self.elements[..(self.len as usize).min(MAX_CHAIN)]
    }
}

/// The chain that a session was given, as the host has it that opened the session, and the
/// numbers of the paths that lead along it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Given {
    /// The chain.
    pub chain: Chain,
    /// Number of the path before each host of the chain, and behind the last one.
    pub paths: [u32; MAX_CHAIN + 1],
    /// The highest number that a path of the session was given.
    pub highest: u32,
}

impl Given {
    /// The numbers that count: one more than hosts.
    pub fn paths(&self) -> &[u32] {
        &self.paths[..=self.chain.elements().len()]
    }
}

/// Version of the layout below.
pub const VERSION: u8 = 3;
/// What a payload begins with.
pub const MAGIC: u32 = u32::from_ne_bytes(*b"\xd7sco");
/// Bytes of a payload.
pub const PAYLOAD: usize = size_of::<Payload>();
/// Words of it that the proof covers: all but itself.
pub const PROVEN: usize = offset_of!(Payload, mac) / 8;

/// What a SYN carries. Addresses and ports are as packets have them, and
/// `local` is the side that opened the session.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u8,
    /// How many elements of `rest` count.
    pub hosts: u8,
    /// Bytes of the whole, network order.
    pub length: u16,
    /// Which key the proof was made with.
    pub key_id: u64,
    /// The session, as the host before the sender's subsession knows it.
    pub session: FlowKey,
    /// The subsession as its sender sees it: another one on arrival is the work
    /// of a NAT.
    pub subsession: FlowKey,
    /// The session as the host knows it that opened it: another one than `session` is
    /// the work of a NAT that it has passed.
    pub origin: FlowKey,
    /// The hosts after the one that gets this.
    pub rest: [Element; MAX_CHAIN],
    /// When it was sent, in [`ticks`](crate::fresh::ticks) of the sender's clock, network order.
    pub sent: u32,
    /// SipHash-2-4 of all before.
    pub mac: u64,
}

const _: () = {
    assert!(size_of::<Payload>() == 296);
    // No gaps: each byte of it is proven.
    assert!(offset_of!(Payload, session) == 16 && offset_of!(Payload, rest) == 124);
    assert!(offset_of!(Payload, sent) == 284 && offset_of!(Payload, mac) == PAYLOAD - 8);
};

/// Why a payload is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// Another version, or a length that is not that version's.
    Layout,
    /// It says what no sender of this version says.
    Content,
    /// Its proof is wrong.
    Proof,
}

impl Payload {
    /// A payload without its proof and the chain, sent at this tick of the clock.
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

    /// Makes the rest of the chain what comes after its first element. `last` is
    /// the element in the last place, which no chain has a host for.
    #[inline(always)]
    pub fn set_rest(&mut self, chain: &Chain, last: &Element) {
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
        // SAFETY: bytes without gaps, aligned to eight, of which any bit
        // pattern is a number.
        unsafe { &*(&raw const *self).cast() }
    }

    /// The proof that belongs to the content.
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

    /// Is this the layout that this version knows? To be asked before a key is
    /// looked for.
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

    /// Is it the key holder's, and does it make sense?
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

    /// The element in the last place.
    #[inline(always)]
    pub const fn last(&self) -> &Element {
        &self.rest[MAX_CHAIN - 1]
    }

    /// Does it open another path of a session that lives?
    #[inline(always)]
    pub const fn is_live(&self) -> bool {
        self.last().is_live()
    }

    /// The hosts that are still to come.
    #[inline(always)]
    pub fn chain(&self, to: &mut Chain) {
        to.len = self.hosts as u32;
        to.elements = self.rest;
        // The last place is no host's.
        to.elements[MAX_CHAIN - 1] = Element::NONE;
    }

    /// The bytes as they go on the wire.
    pub fn to_bytes(&self) -> [u8; PAYLOAD] {
        let mut bytes = [0; PAYLOAD];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// The payload of these bytes, unchecked.
    pub fn from_bytes(bytes: &[u8; PAYLOAD]) -> Payload {
        // SAFETY: as many bytes, and any bit pattern is a payload.
        unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) }
    }
}

/// A key by which a neighbour's payloads are believed.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shared {
    /// The key.
    pub key: Key,
    /// What they have said of the neighbour's clock.
    pub clock: Clock,
}

impl Shared {
    /// Takes in when a payload was sent that has come now, in
    /// [`ticks`](crate::fresh::ticks). False if it is a copy of one that came long ago.
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

/// A neighbour that SYNs with a payload may be sent to.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop {
    /// Names `key` at both ends.
    pub key_id: u64,
    /// What proves the sender.
    pub key: Key,
    /// This host's address towards it.
    pub local: Addr,
    /// The interface towards it.
    pub ifindex: u32,
    /// Zero.
    pub reserved: u32,
}

/// What is remembered of a SYN on its way through this host: what passes it on finds
/// here where to.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// The session, `local` being the side that opened it.
    pub session: FlowKey,
    /// The same as the host knows it that opened it.
    pub origin: FlowKey,
    /// The slot of the subsession that the SYN came by, and 1; 0 at the host
    /// that opened the session.
    pub left: u32,
    /// Its initial sequence number, as it came.
    pub isn: u32,
    /// The hosts to come, the next one first.
    pub chain: Chain,
    /// What the payload's last place has.
    pub last: Element,
}

const _: () = assert!(size_of::<Pending>() == 264);

impl Pending {
    /// Makes it a copy of another, word by word: LLVM would take as much of a BPF stack
    /// as it is long.
    #[inline(always)]
    pub fn set(&mut self, from: &Pending) {
        let (from, to) = (
            (&raw const *from).cast::<u64>(),
            (&raw mut *self).cast::<u64>(),
        );
        let mut i = 0;
        while i < size_of::<Pending>() / 8 {
            // SAFETY: so many words of both, which are aligned and have no gaps.
            unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
            i += 1;
        }
    }
}

/// Where the subsession of a slot has its ports, so that no two slots of a host
/// have the same: the source port counts the slots, within the ports that the
/// kernel keeps free. The destination port is the session's own, so that
/// firewalls that go by ports agree; only where there are more slots than ports
/// it is one of the reserved as well.
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

//! The payload, and its checks.

use core::mem::{offset_of, size_of};

use super::element::{Chain, ElementKind, MAX_CHAIN, WireElement};
use crate::flow::FlowKey;
use crate::siphash::{Key, SipHash};

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

//! Attributes of an entry that the library does not decode.

pub(super) const HELPER: u16 = 5;
pub(super) const NAT_SOURCE: u16 = 6;
pub(super) const NAT_DESTINATION: u16 = 13;
pub(super) const MASTER: u16 = 14;
pub(super) const SEQUENCE_ORIGINAL: u16 = 15;
pub(super) const SEQUENCE_REPLY: u16 = 16;
pub(super) const ZONE: u16 = 18;
pub(super) const SECURITY: u16 = 19;
pub(super) const LABELS: u16 = 22;
pub(super) const SYNPROXY: u16 = 24;
pub(super) const FILTER: u16 = 25;
/// Inside a tuple.
pub(super) const TUPLE_ZONE: u16 = 3;

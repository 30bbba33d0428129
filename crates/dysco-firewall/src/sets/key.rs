//! Keys of sets: those that a session can have, and their form in the kernel.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Seen;

/// A field of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Field {
    /// An address.
    Address(IpAddr),
    /// A port.
    Port(u16),
    /// A protocol: 6, which is TCP.
    Protocol(u8),
}

/// The type of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FieldType {
    /// `ipv4_addr`
    Ipv4,
    /// `ipv6_addr`
    Ipv6,
    /// `inet_service`
    Port,
    /// `inet_proto`
    Protocol,
}

/// The protocol number of TCP.
const TCP: u8 = 6;
/// Number of bits of each field's type in the type of a concatenation.
const TYPE_BITS: u32 = 6;
/// Alignment of a concatenation's fields, in bytes.
const ALIGN: usize = 4;
/// Greatest number of fields. A session has no values for a key with more.
const MOST_FIELDS: usize = 5;

impl FieldType {
    /// Returns the types of a key, from the number by which nftables knows them; `None` if no
    /// session has a value of one of them.
    pub(super) fn of(key_type: u32) -> Option<Vec<FieldType>> {
        let mut rest = key_type;
        let mut types = Vec::new();
        while rest != 0 {
            types.insert(0, FieldType::one(rest & ((1 << TYPE_BITS) - 1))?);
            rest >>= TYPE_BITS;
        }
        let address = |t: &FieldType| matches!(t, FieldType::Ipv4 | FieldType::Ipv6);
        (types.iter().any(address) && types.len() <= MOST_FIELDS).then_some(types)
    }

    fn one(number: u32) -> Option<FieldType> {
        match number {
            7 => Some(FieldType::Ipv4),
            8 => Some(FieldType::Ipv6),
            12 => Some(FieldType::Protocol),
            13 => Some(FieldType::Port),
            _ => None,
        }
    }

    /// True if the field has this type.
    pub(super) fn takes(self, field: Field) -> bool {
        match field {
            Field::Address(IpAddr::V4(_)) => self == FieldType::Ipv4,
            Field::Address(IpAddr::V6(_)) => self == FieldType::Ipv6,
            Field::Port(_) => self == FieldType::Port,
            Field::Protocol(_) => self == FieldType::Protocol,
        }
    }

    fn values(self, ends: &[SocketAddr]) -> Vec<Field> {
        let mut values = Vec::new();
        let each = ends.iter().map(|end| match self {
            FieldType::Ipv4 | FieldType::Ipv6 => Field::Address(end.ip()),
            FieldType::Port => Field::Port(end.port()),
            FieldType::Protocol => Field::Protocol(TCP),
        });
        for value in each.filter(|&value| self.takes(value)) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }
}

fn ends(seen: &Seen) -> Vec<SocketAddr> {
    let both = [seen.session.ends(), seen.translated.ends()];
    both.concat()
}

/// Returns every key of these types that consists of the session's values.
pub(super) fn candidates(types: &[FieldType], seen: &Seen) -> Vec<Vec<Field>> {
    let ends = ends(seen);
    types.iter().fold(vec![Vec::new()], |keys, field_type| {
        let values = field_type.values(&ends);
        let longer = |key: &Vec<Field>| {
            let key = key.clone();
            let with = move |value: &Field| [key.as_slice(), &[*value]].concat();
            values.iter().map(with).collect::<Vec<_>>()
        };
        keys.iter().flat_map(longer).collect()
    })
}

/// True if the key consists of the session's values, with an address among them.
pub(super) fn of_session(key: &[Field], seen: &Seen) -> bool {
    let ends = ends(seen);
    let known = |field: &Field| match field {
        Field::Address(address) => ends.iter().any(|end| end.ip() == *address),
        Field::Port(port) => ends.iter().any(|end| end.port() == *port),
        Field::Protocol(protocol) => *protocol == TCP,
    };
    let address = |field: &Field| matches!(field, Field::Address(_));
    key.len() <= MOST_FIELDS && key.iter().all(known) && key.iter().any(address)
}

/// True if no other session can have this key: it contains the address and the port of the end
/// that opened the session.
pub(super) fn its_own(key: &[Field], seen: &Seen) -> bool {
    [seen.session.source, seen.translated.source]
        .iter()
        .any(|end| {
            key.contains(&Field::Address(end.ip())) && key.contains(&Field::Port(end.port()))
        })
}

/// Returns the bytes of a key in the kernel.
pub(super) fn bytes(key: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in key {
        match field {
            Field::Address(IpAddr::V4(address)) => bytes.extend(address.octets()),
            Field::Address(IpAddr::V6(address)) => bytes.extend(address.octets()),
            Field::Port(port) => bytes.extend(port.to_be_bytes()),
            Field::Protocol(protocol) => bytes.push(*protocol),
        }
        if key.len() > 1 {
            bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{plain, translated};

    #[test]
    fn a_concatenation_has_its_first_type_in_the_highest_bits() {
        use FieldType::{Ipv4, Ipv6, Port, Protocol};
        assert_eq!(FieldType::of(7), Some(vec![Ipv4]));
        assert_eq!(FieldType::of(7 << 6 | 13), Some(vec![Ipv4, Port]));
        let all = Some(vec![Ipv6, Protocol, Port]);
        assert_eq!(FieldType::of(8 << 12 | 12 << 6 | 13), all);
        for none_of_ours in [0, 13, 9, 7 << 6 | 19] {
            assert_eq!(FieldType::of(none_of_ours), None, "{none_of_ours}");
        }
    }

    #[test]
    fn a_session_has_every_combination_of_its_own_values() {
        let types = [FieldType::Ipv4, FieldType::Port];
        assert_eq!(candidates(&types, &plain()).len(), 4);
        // One more address and one more port.
        let seen = translated();
        let keys = candidates(&types, &seen);
        assert_eq!(keys.len(), 9);
        assert!(keys.iter().all(|key| of_session(key, &seen)));
        assert_eq!(
            candidates(&[FieldType::Ipv6], &seen),
            Vec::<Vec<Field>>::new()
        );
    }

    #[test]
    fn keys_of_others_are_distinguished() {
        let seen = plain();
        let [source, destination] = seen.session.ends();
        let stranger = Field::Address(IpAddr::from([192, 0, 2, 1]));
        let own = [Field::Address(source.ip()), Field::Port(source.port())];
        assert!(of_session(&own, &seen) && its_own(&own, &seen));
        let shared = [Field::Address(source.ip()), Field::Port(destination.port())];
        assert!(of_session(&shared, &seen) && !its_own(&shared, &seen));
        for key in [
            vec![stranger],
            vec![Field::Address(source.ip()), Field::Port(1)],
            vec![Field::Address(source.ip()), Field::Protocol(17)],
            vec![Field::Port(source.port())],
            vec![],
        ] {
            assert!(!of_session(&key, &seen), "{key:?}");
        }
    }

    #[test]
    fn fields_are_padded_only_beside_others() {
        assert_eq!(bytes(&[Field::Port(0x1234)]), [0x12, 0x34]);
        let key = [
            Field::Address(IpAddr::from([10, 0, 0, 1])),
            Field::Protocol(6),
            Field::Port(80),
        ];
        assert_eq!(bytes(&key), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
    }
}

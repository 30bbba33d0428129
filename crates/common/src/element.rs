//! The elements of a chain, as every layer above the wire names them. A kind of element is added
//! here: its text, its host, and its form on the wire.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use crate::chain::{ElementKind, WireElement};

/// An element of a chain: what a session passes there.
///
/// The policy, the command line and JSON have it as its text. Between daemons, and in records, it
/// is a variant with its content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(remote = "Self"))]
pub enum Element {
    /// A host, which forwards the session.
    Host(IpAddr),
}

impl Element {
    /// Forms of text that name an element, for messages.
    pub const FORMS: &str = "a host's address, like 10.0.2.1 or 2001:db8::1";

    /// Returns the host at which the element stands.
    pub const fn host(&self) -> IpAddr {
        match self {
            Element::Host(host) => *host,
        }
    }

    /// Returns the same element at another address of its host.
    pub const fn at(&self, host: IpAddr) -> Element {
        match self {
            Element::Host(_) => Element::Host(host),
        }
    }

    /// Returns the element of the wire's form, or `None` if this version does not know its kind.
    pub fn of_wire(element: &WireElement) -> Option<Element> {
        let host = element.host.ip();
        (element.kind == ElementKind::Host as u8).then_some(Element::Host(host))
    }
}

impl From<Element> for WireElement {
    fn from(element: Element) -> WireElement {
        match element {
            Element::Host(host) => WireElement::host(host.into()),
        }
    }
}

/// An error for a text that names no element of a known kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownElement;

impl fmt::Display for UnknownElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no element of a chain; write {}", Element::FORMS)
    }
}

impl core::error::Error for UnknownElement {}

impl FromStr for Element {
    type Err = UnknownElement;

    fn from_str(s: &str) -> Result<Self, UnknownElement> {
        let host: Result<IpAddr, _> = s.parse();
        host.map(|host| Element::Host(host.to_canonical()))
            .map_err(|_| UnknownElement)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Host(host) => host.fmt(f),
        }
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use serde::de::{Error, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Element, fmt};

    impl Serialize for Element {
        fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
            match s.is_human_readable() {
                true => s.collect_str(self),
                false => Element::serialize(self, s),
            }
        }
    }

    impl<'de> Deserialize<'de> for Element {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            match d.is_human_readable() {
                true => d.deserialize_str(Text),
                false => Element::deserialize(d),
            }
        }
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = Element;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(Element::FORMS)
        }

        fn visit_str<E: Error>(self, s: &str) -> Result<Element, E> {
            s.parse()
                .map_err(|why| E::custom(format_args!("'{s}' is {why}")))
        }
    }
}

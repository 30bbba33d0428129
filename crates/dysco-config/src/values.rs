//! Values with their own notation. Deserializing fails on a bad value, so that its place in the
//! file is reported.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use dysco_api::ServiceSpec;
use dysco_common::rule::Rule;
use dysco_common::{Addr, Element};
use dysco_explain::Cause;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The address of a host. Names are not resolved here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address(pub IpAddr);

/// An element of a chain. Names of hosts are not resolved here.
pub(crate) enum ChainElement {
    /// A host.
    Host(Element),
    /// A service, after a `+` or with parentheses.
    Service(ServiceSpec),
}

/// A destination prefix, host bits zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Address of the prefix.
    pub address: IpAddr,
    /// Number of significant bits.
    pub len: u8,
}

/// A range of ports, both ends included; never contains port 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

/// One port, one range, or a list of both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortList(pub Vec<PortRange>);

impl Prefix {
    /// The prefix of every IPv6 address, which includes every IPv4-mapped address.
    pub const ALL: Prefix = Prefix {
        address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        len: 0,
    };

    /// Returns the address if the prefix covers only one.
    pub fn host(&self) -> Option<IpAddr> {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        (self.len == bits).then_some(self.address)
    }

    /// Returns the data plane's rule for this prefix and these ports.
    pub fn rule(&self, first_port: u16, last_port: u16) -> Rule {
        let mapped = if self.address.is_ipv4() { 96 } else { 0 };
        Rule {
            prefix: Addr::from(self.address),
            mask: mask(self.len + mapped),
            first_port,
            last_port,
        }
    }
}

fn mask(len: u8) -> Addr {
    let bits = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
    Addr::new(bits.to_be_bytes())
}

impl PortRange {
    /// Every port.
    pub const ALL: PortRange = PortRange {
        first: 1,
        last: u16::MAX,
    };

    /// Returns the number of ports in the range.
    pub fn count(&self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// Returns true if the range contains this port.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for Address {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        s.parse().map(Address).map_err(|_| {
            Cause::new(format!(
                "'{s}' is no IP address, and names are not looked up"
            ))
            .hint("write it like 10.0.2.1 or 2001:db8::1")
        })
    }
}

impl FromStr for ChainElement {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        if let Some(service) = s.strip_prefix('+') {
            return service.parse().map(ChainElement::Service);
        }
        if let Some(service) = ServiceSpec::from_call(s) {
            return service.map(ChainElement::Service);
        }
        s.parse().map(ChainElement::Host).map_err(|_| {
            Cause::new(format!(
                "'{s}' is no element of a chain, and names are not looked up"
            ))
            .hint(format!(
                "write {}, or +NAME or NAME(KEY=VALUE) for a service",
                Element::FORMS
            ))
        })
    }
}

impl FromStr for Prefix {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let example = "write it like 10.0.0.0/8 or 2001:db8::/32";
        let (address, len) = match s.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (s, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| Cause::new(format!("'{s}' is no prefix")).hint(example))?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let len = match len.map(str::parse::<u8>) {
            None => max,
            Some(Ok(len)) if len <= max => len,
            Some(_) => {
                let why = format!("'{s}' has no length of 0 to {max}");
                return Err(Cause::new(why).hint(example));
            }
        };
        // Sessions by IPv4 have no other form.
        let prefix = match (address, len.checked_sub(96)) {
            (IpAddr::V6(v6), Some(len)) if v6.to_ipv4_mapped().is_some() => Prefix {
                address: address.to_canonical(),
                len,
            },
            _ => Prefix { address, len },
        };
        let rule = prefix.rule(0, 0);
        let network = rule.prefix.masked(&rule.mask);
        if network != rule.prefix {
            let (network, len) = (network.ip(), prefix.len);
            return Err(Cause::new(format!("'{s}' has host bits set"))
                .hint(format!("did you mean {network}/{len}?")));
        }
        Ok(prefix)
    }
}

impl FromStr for PortRange {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let bad =
            || Cause::new(format!("'{s}' is no port or range")).hint("write 80 or \"8000-8100\"");
        let port = |s: &str| s.trim().parse::<u16>().map_err(|_| bad());
        let (first, last) = match s.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(s)?, port(s)?),
        };
        if first == 0 {
            return Err(Cause::new(format!("'{s}' holds port 0")).hint("begin at 1"));
        }
        if first > last {
            return Err(
                Cause::new(format!("'{s}' is empty")).hint(format!("did you mean {last}-{first}?"))
            );
        }
        Ok(PortRange { first, last })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return self.first.fmt(f);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

thread_local! {
    static REFUSED: RefCell<Option<Cause>> = const { RefCell::new(None) };
}

/// Returns the error for a value that cannot be used. Serde keeps only the text of an error:
/// [`cause_of`] finds the cause again.
pub(crate) fn refuse<E: de::Error>(cause: Cause) -> E {
    let error = E::custom(&cause);
    REFUSED.set(Some(cause));
    error
}

/// Returns the cause of an error that the parser reports.
pub(crate) fn cause_of(error: &toml::de::Error) -> Cause {
    match REFUSED.take() {
        Some(cause) if cause.to_string() == error.message().trim_end() => cause,
        _ => Cause::new(error.message().trim_end().replace('\n', ", ")),
    }
}

/// Visitor that parses a value from a string. In a list, the error has the place of the bad
/// element.
struct Parsed<T>(PhantomData<T>);

impl<T: FromStr<Err = Cause>> Visitor<'_> for Parsed<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, s: &str) -> Result<T, E> {
        s.parse().map_err(refuse)
    }
}

/// Parses a value from a string.
pub(crate) fn parsed<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = Cause>,
{
    d.deserialize_str(Parsed(PhantomData))
}

macro_rules! as_string {
    ($($t:ty),*) => {$(
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                parsed(d)
            }
        }
    )*};
}

as_string!(Address, Prefix, PortRange);

impl<'de> Deserialize<'de> for ChainElement {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_str(Parsed(PhantomData))
    }
}

impl<'de> Deserialize<'de> for PortList {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Ports)
    }
}

/// An element of a list of ports: a number or a string.
struct OneOfPorts(PortRange);

impl<'de> Deserialize<'de> for OneOfPorts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let list = PortList::deserialize(d)?;
        match list.0[..] {
            [range] => Ok(OneOfPorts(range)),
            _ => Err(refuse("a list of ports holds no further list".into())),
        }
    }
}

struct Ports;

impl<'de> Visitor<'de> for Ports {
    type Value = PortList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port, a range such as \"8000-8100\", or a list of them")
    }

    fn visit_i64<E: de::Error>(self, port: i64) -> Result<PortList, E> {
        self.visit_str(&port.to_string())
    }

    fn visit_str<E: de::Error>(self, s: &str) -> Result<PortList, E> {
        s.parse().map(|r| PortList(vec![r])).map_err(refuse)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PortList, A::Error> {
        let mut ranges = Vec::new();
        while let Some(OneOfPorts(range)) = seq.next_element()? {
            ranges.push(range);
        }
        if ranges.is_empty() {
            return Err(refuse(
                Cause::new("no port in the list").hint("leave it out for all"),
            ));
        }
        Ok(PortList(ranges))
    }
}

/// Serializes a duration as whole seconds.
pub(crate) fn as_secs<S: Serializer>(time: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(time.as_secs())
}

/// Serializes a duration as whole milliseconds.
pub(crate) fn as_millis<S: Serializer>(time: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(time.as_millis().try_into().unwrap_or(u64::MAX))
}

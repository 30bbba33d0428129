//! The elements of a rule's chain.

use std::collections::HashSet;
use std::net::IpAddr;

use dysco_api::ServiceSpec;
use dysco_common::Element;
use dysco_common::chain::MAX_CHAIN;
use dysco_explain::Cause;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::values::{ChainElement, refuse};

/// Maximum number of services of a rule.
pub const MAX_SERVICES: usize = 8;

/// Elements of the sessions of a rule: hosts, and services of the host that opens the session. A list
/// of texts in the file: an address is a host, and a word that begins with `+` or has parentheses is a
/// service. The services are between the program and the first host, wherever they stand in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    /// The hosts, in order from this one.
    pub hosts: Vec<Element>,
    /// The services, in order from the program.
    pub services: Vec<ServiceSpec>,
}

impl Elements {
    /// Returns a chain of hosts.
    pub const fn of_hosts(hosts: Vec<Element>) -> Elements {
        Elements {
            hosts,
            services: Vec::new(),
        }
    }
}

impl Serialize for Elements {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let hosts = self.hosts.iter().map(ToString::to_string);
        let services = self.services.iter().map(|service| format!("+{service}"));
        s.collect_seq(hosts.chain(services))
    }
}

/// Reads and checks a chain. The check is part of deserializing, so that an error has a place.
impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Elements, D::Error> {
        let mut read = Elements::default();
        for element in Vec::<ChainElement>::deserialize(d)? {
            match element {
                ChainElement::Host(host) => read.hosts.push(host),
                ChainElement::Service(service) => read.services.push(service),
            }
        }
        check(&read).map_err(refuse)?;
        Ok(read)
    }
}

fn check(elements: &Elements) -> Result<(), Cause> {
    let Elements { hosts, services } = elements;
    if services.len() > MAX_SERVICES {
        let len = services.len();
        let why = format!("the chain has {len} services, and {MAX_SERVICES} are the most");
        return Err(Cause::new(why).hint("leave some out"));
    }
    check_hosts(hosts)
}

fn check_hosts(chain: &[Element]) -> Result<(), Cause> {
    if chain.len() > MAX_CHAIN {
        let len = chain.len();
        let why = format!("the chain has {len} hosts, and {MAX_CHAIN} are the most");
        return Err(Cause::new(why).hint("leave some out"));
    }
    let mut seen = HashSet::new();
    let mut hosts = chain.iter().map(Element::host);
    if let Some(twice) = hosts.find(|host| !seen.insert(*host)) {
        let why = format!("the chain holds {twice} twice, and a session passes a host once");
        return Err(Cause::new(why).hint("leave one out"));
    }
    let bad = |host: &IpAddr| host.is_unspecified() || host.is_multicast();
    match chain.iter().map(Element::host).find(bad) {
        Some(bad) => Err(Cause::new(format!("{bad} is no host's address")).hint("name one host")),
        None => Ok(()),
    }
}

//! `[host]`: addresses, interfaces and name of this host.

use std::net::IpAddr;
use std::ops::Range;

use dysco_explain::Cause;
use nix::unistd::gethostname;
use toml::Spanned;

use super::super::error::ConfigError;
use super::super::{Host, Instance, Interface, schema};
use super::{Checker, is_host};
use crate::Address;

/// Returns the first interface whose packets also pass another interface of the list, and the
/// name of the latter.
fn twice(these: &[Interface]) -> Option<(&Interface, &str)> {
    these.iter().find_map(|upper| {
        let listed = |name: &&String| these.iter().any(|i| i.name == **name);
        let lower = upper.below.iter().find(listed)?;
        Some((upper, lower.as_str()))
    })
}

fn system_name() -> Option<String> {
    let name = gethostname().ok()?.into_string().ok()?;
    Some(name).filter(|name| !name.is_empty())
}

impl Checker<'_> {
    pub(super) fn host(
        &self,
        host: Option<Spanned<schema::Host>>,
        all: &[Interface],
    ) -> Result<Host, ConfigError> {
        let Some(host) = host else {
            let why = Cause::new("there is no [host]").hint("begin with it, and with this host's addresses in it, as in addresses = [\"10.0.2.1\"]");
            return Err(self.error_of_file(why));
        };
        let at = host.span();
        let host = host.into_inner();
        let Some(listed) = host.addresses else {
            let why = Cause::new("[host] has no addresses").hint(
                "give this host's, as its certificate names them, as in addresses = [\"10.0.2.1\"]",
            );
            return Err(self.error(at, why));
        };
        let mut span = listed.span();
        let addresses = self.addresses(listed)?;
        let interfaces = match host.interfaces {
            Some(names) => {
                span = names.span();
                self.named(names, all)?
            }
            None => self.holding(&addresses, span.clone(), all)?,
        };
        if let Some((upper, lower)) = twice(&interfaces) {
            let (name, kind) = (&upper.name, &upper.kind);
            let why = Cause::new(format!("{name} is a {kind} over {lower}, so that a packet passes both and would be changed twice")).hint("list one of the two in [host] interfaces, best the one that has the address");
            return Err(self.error(span, why));
        }
        let name = match host.name {
            Some(name) if name.get_ref().is_empty() => {
                return Err(self.error(
                    name.span(),
                    Cause::new("name is empty").hint("leave it out for the system's"),
                ));
            }
            Some(name) => name.into_inner(),
            None => system_name().unwrap_or_else(|| addresses[0].to_string()),
        };
        Ok(Host {
            name,
            addresses,
            interfaces,
            namespaces: host.namespaces,
        })
    }

    /// Returns the host's part of an instance: the addresses of its network namespace, and the
    /// interfaces that have them. Those of the file are the host's own.
    pub(super) fn host_of(
        &self,
        instance: &Instance,
        host: Option<Spanned<schema::Host>>,
        all: &[Interface],
    ) -> Result<Host, ConfigError> {
        let inner = all.iter().filter(|interface| interface.name != "lo");
        let addresses: Vec<IpAddr> = inner
            .flat_map(|interface| interface.addresses.iter().copied())
            .filter(|address| is_host(*address))
            .collect();
        if addresses.is_empty() {
            return Err(ConfigError::NoAddress(instance.name.clone()));
        }
        let interfaces = self.holding(&addresses, 0..0, all)?;
        if let Some((upper, lower)) = twice(&interfaces) {
            let (name, kind) = (&upper.name, &upper.kind);
            let why = format!(
                "in the network namespace {}, {name} is a {kind} over {lower} and both have addresses, so that a packet passes both and would be changed twice",
                instance.name
            );
            return Err(self.error_of_file(Cause::new(why).hint(format!(
                "take the address off {lower}, or run a dyscod of its own there"
            ))));
        }
        let name = host.and_then(|host| host.into_inner().name);
        let name = name.map(Spanned::into_inner).or_else(system_name);
        let name = name.unwrap_or_else(|| addresses[0].to_string());
        Ok(Host {
            name: format!("{name}/{}", instance.name),
            addresses,
            interfaces,
            namespaces: None,
        })
    }

    /// Returns this host's addresses, each once.
    fn addresses(
        &self,
        listed: Spanned<Vec<Spanned<Address>>>,
    ) -> Result<Vec<IpAddr>, ConfigError> {
        let whole = listed.span();
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in listed.into_inner() {
            let span = address.span();
            let address = address.into_inner().0.to_canonical();
            if address.is_unspecified() || address.is_multicast() {
                let why = format!("{address} is no address of a host");
                return Err(self.error(span, why));
            }
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            let why = Cause::new("addresses is empty")
                .hint("give this host's addresses, as its certificate names them");
            return Err(self.error(whole, why));
        }
        Ok(addresses)
    }

    /// Returns the interfaces listed by name or address.
    fn named(
        &self,
        names: Spanned<Vec<Spanned<String>>>,
        all: &[Interface],
    ) -> Result<Vec<Interface>, ConfigError> {
        if names.get_ref().is_empty() {
            let why = Cause::new("interfaces is empty")
                .hint("leave it out for all that have one of the addresses");
            return Err(self.error(names.span(), why));
        }
        let mut found: Vec<Interface> = Vec::new();
        for name in names.into_inner() {
            let address: Option<IpAddr> = name.get_ref().parse().ok();
            let wanted = |interface: &&Interface| match address {
                Some(address) => interface.addresses.contains(&address.to_canonical()),
                None => interface.name == *name.get_ref(),
            };
            let Some(interface) = all.iter().find(wanted) else {
                let names: Vec<_> = all.iter().map(|i| i.name.as_str()).collect();
                let names = names.join(", ");
                let why = Cause::new(format!("this host has no interface '{}'", name.get_ref()))
                    .hint(format!("name one that it has: {names}"));
                return Err(self.error(name.span(), why));
            };
            if !found.contains(interface) {
                found.push(interface.clone());
            }
        }
        Ok(found)
    }

    /// Returns the interfaces that have one of the host's addresses.
    fn holding(
        &self,
        addresses: &[IpAddr],
        span: Range<usize>,
        all: &[Interface],
    ) -> Result<Vec<Interface>, ConfigError> {
        let missing = addresses
            .iter()
            .find(|address| !all.iter().any(|i| i.addresses.contains(address)));
        if let Some(address) = missing {
            let why = Cause::new(format!(
                "no interface of this host has the address {address}"
            ))
            .hint("correct it, or list the interfaces in [host] interfaces");
            return Err(self.error(span, why));
        }
        let holds = |i: &&Interface| i.addresses.iter().any(|a| addresses.contains(a));
        Ok(all.iter().filter(holds).cloned().collect())
    }
}

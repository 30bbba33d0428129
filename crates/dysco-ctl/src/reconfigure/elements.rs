//! Elements of a chain on the command line.

use std::str::FromStr;

use dysco_api::{ElementName, ServiceSpec};
use dysco_explain::Cause;

use super::WORDS;
use crate::service::SERVICE;

/// Elements of a chain, separated by commas. So are the arguments of a service: after a service with
/// `+`, a word with `=` belongs to it, since no host has one in its name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Elements {
    /// The hosts, in order.
    pub hosts: Vec<ElementName>,
    /// The services, in order from the end that opened the session.
    pub services: Vec<ServiceSpec>,
}

impl FromStr for Elements {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (mut hosts, mut services) = (Vec::new(), Vec::<String>::new());
        for word in words(s).filter(|word| !word.is_empty()) {
            if let Some(service) =
                ServiceSpec::from_call(word).filter(|_| !word.starts_with(SERVICE))
            {
                services.push(service?.to_string());
                continue;
            }
            match (word.strip_prefix(SERVICE), services.last_mut()) {
                (Some(service), _) => services.push(service.to_owned()),
                (None, Some(service)) if word.contains('=') => {
                    service.push(WORDS);
                    service.push_str(word);
                }
                (None, _) => hosts.push(word.parse()?),
            }
        }
        let services = services.iter().map(|service| service.parse());
        Ok(Elements {
            hosts,
            services: services.collect::<Result<_, _>>()?,
        })
    }
}

/// Splits a list at the commas that are not in parentheses.
fn words(s: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    let words = s.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == WORDS && depth == 0
    });
    words.map(str::trim)
}

/// One element of a chain on the command line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HostOrService {
    /// A host.
    Host(ElementName),
    /// A service.
    Service(ServiceSpec),
}

impl FromStr for HostOrService {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        if let Some(service) = ServiceSpec::from_call(s).filter(|_| !s.starts_with(SERVICE)) {
            return service.map(HostOrService::Service);
        }
        match s.strip_prefix(SERVICE) {
            Some(service) => service.parse().map(HostOrService::Service),
            None => s.parse().map(HostOrService::Host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_element_is_a_host_or_a_service() {
        let host = "fw1".parse().unwrap();
        assert_eq!("fw1".parse(), Ok(HostOrService::Host(host)));
        let service = "shape=up=5M,down=off".parse().unwrap();
        assert_eq!(
            "+shape=up=5M,down=off".parse(),
            Ok(HostOrService::Service(service))
        );
        let service = "shape=rate=20M".parse().unwrap();
        assert_eq!(
            "shape(rate=20M)".parse(),
            Ok(HostOrService::Service(service))
        );
        for bad in ["+", "", "fw1,fw2", "shape(rate)", "+count,fw1"] {
            assert!(bad.parse::<HostOrService>().is_err(), "{bad}");
        }
    }

    fn elements(text: &str) -> (Vec<String>, Vec<String>) {
        let all: Elements = text.parse().unwrap();
        let hosts = all.hosts.iter().map(ToString::to_string);
        let services = all.services.iter().map(ToString::to_string);
        (hosts.collect(), services.collect())
    }

    #[test]
    fn hosts_and_services_are_told_apart() {
        let none = || Vec::<String>::new();
        assert_eq!(elements(""), (none(), none()));
        assert_eq!(
            elements("10.0.0.9, fw2"),
            (vec!["10.0.0.9".into(), "fw2".into()], none())
        );
        let (hosts, services) = elements("fw1,+shape=up=5M,down=off,+count,fw2");
        assert_eq!(hosts, ["fw1", "fw2"]);
        assert_eq!(services, ["shape=up=5M,down=off", "count"]);
        let (hosts, services) = elements("fw1, shape(up=5M, down=off), count(), fw2");
        assert_eq!(hosts, ["fw1", "fw2"]);
        assert_eq!(services, ["shape=up=5M,down=off", "count"]);
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in ["a=b", "+", "fw1,10.0.0.1/24", "shape(rate=1", "fw1)"] {
            assert!(bad.parse::<Elements>().is_err(), "{bad}");
        }
    }
}

//! The policy, which assigns chains to sessions: an ordered list of rules in a TOML file. The
//! first rule that matches decides.
//!
//! ```toml
//! [[rule]]
//! name = "web"
//! source = "10.1.0.0/16"
//! destination = "10.2.0.0/16"
//! ports = [80, "8000-8100"]
//! chain = ["10.3.0.1", "10.3.0.2"]
//! otherwise = "refuse"
//!
//! [[rule]]
//! destination = "10.4.0.0/16"
//! chain = ["+compress", "+crypt"]
//! ```

mod compile;
mod elements;
mod opener;

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use dysco_common::policy::{MAX_RULES, Otherwise};
use dysco_common::{Element, FlowKey};
use dysco_explain::{Cause, Explain, Explanation, display_explained};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::values::cause_of;
use crate::{Place, PortList, PortRange, Prefix};
pub use elements::{Elements, MAX_SERVICES};
pub use opener::{GroupPath, Known, Opener, UserName};

/// A policy that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read or written.
    File {
        /// Operation that failed, for the message.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The host had a policy, and its file no longer exists.
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// A fault at a place in the file.
    At {
        /// Place in the file.
        place: Place,
        /// The fault.
        cause: Cause,
    },
}

display_explained!(PolicyError);

impl Explain for PolicyError {
    fn explain(&self) -> Explanation {
        match self {
            PolicyError::File { what, path, source } => {
                Explanation::new(format!("{what} the policy {}", path.display()), source)
                    .hint(hint_of(source))
            }
            PolicyError::Gone { path } => {
                Explanation::new(format!("read the policy {}", path.display()), "it is gone")
                    .hint("put it back, or 'dyscoctl policy apply /dev/null' for one without rules")
            }
            PolicyError::At { place, cause } => place.explain("use the policy", cause),
        }
    }
}

/// Returns the hint for a file that cannot be read or written.
fn hint_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "name a file that is there, or write it (/usr/share/doc/dysco/chains.md)"
        }
        io::ErrorKind::PermissionDenied => "run as root, or give the file other rights",
        io::ErrorKind::InvalidData => "name a text file",
        _ => "see that it is a file, and its file system in order",
    }
}

/// A rule, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the rule. A rule without a name is called by its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Source prefix of the sessions; any source if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Prefix>,
    /// Destination prefix of the sessions; any destination if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Prefix>,
    /// Destination ports; all ports if empty.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "ports"
    )]
    pub ports: Vec<PortRange>,
    /// User whose programs open the sessions; any user if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserName>,
    /// cgroup whose programs, or those of the cgroups below it, open the sessions; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<GroupPath>,
    /// Elements that the sessions pass, in order. Sessions go direct if the list is empty.
    pub chain: Elements,
    /// Treatment of sessions while one of the hosts is unavailable, or if they cannot have the
    /// services.
    #[serde(default)]
    pub otherwise: Otherwise,
}

impl Rule {
    /// Returns the programs that the rule is about.
    pub fn opener(&self) -> Opener {
        Opener {
            user: self.user.clone(),
            cgroup: self.cgroup.clone(),
        }
    }
}

fn ports<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<PortRange>, D::Error> {
    PortList::deserialize(d).map(|list| list.0)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Spanned<Rule>>,
}

/// A checked policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// Reads the policy of the host with these addresses. Returns `None` if the file does not
    /// exist.
    pub fn load(path: &Path, own: &[IpAddr]) -> Result<Option<Policy>, PolicyError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Policy::of_host(path, &text, own).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(PolicyError::File {
                what: "read",
                path: path.into(),
                source,
            }),
        }
    }

    /// Reads and checks a text. `path` appears in the places of errors.
    pub fn parse(path: &Path, text: &str) -> Result<Policy, PolicyError> {
        let fail = |start: Option<usize>, cause: Cause| PolicyError::At {
            place: Place::of(path, text, start),
            cause,
        };
        let file: File = toml::from_str(text)
            .map_err(|error| fail(error.span().map(|span| span.start), cause_of(&error)))?;
        let mut places = 0;
        let mut rules = Vec::new();
        for rule in file.rule {
            let start = rule.span().start;
            let rule = rule.into_inner();
            check(&rule).map_err(|cause| fail(Some(start), cause))?;
            places += rule.ports.len().max(1);
            if places > MAX_RULES {
                let why = format!("more than {MAX_RULES} rules, each range of ports counted");
                let cause = Cause::new(why).hint("join prefixes or ranges");
                return Err(fail(Some(start), cause));
            }
            rules.push(rule);
        }
        Ok(Policy { rules })
    }

    /// Reads and checks a text for the host with these addresses.
    pub fn of_host(path: &Path, text: &str, own: &[IpAddr]) -> Result<Policy, PolicyError> {
        let policy = Policy::parse(path, text)?;
        let checked = policy.check_host(own);
        checked.map_err(|cause| PolicyError::At {
            place: Place::of(path, text, None),
            cause,
        })?;
        Ok(policy)
    }

    /// Reads and checks a text that all hosts of a fleet share. On a host with these addresses, a
    /// chain that has the host itself consists of the others.
    pub fn of_fleet(place: &Path, text: &str, own: &[IpAddr]) -> Result<Policy, PolicyError> {
        let mut policy = Policy::parse(place, text)?;
        for rule in &mut policy.rules {
            let hosts = &mut rule.chain.hosts;
            hosts.retain(|element| !own.contains(&element.host()));
        }
        Ok(policy)
    }

    /// Refuses chains that lead through the opening host itself.
    fn check_host(&self, own: &[IpAddr]) -> Result<(), Cause> {
        for (rule, name) in self.rules.iter().zip(self.names()) {
            let mut hosts = rule.chain.hosts.iter().map(Element::host);
            if let Some(host) = hosts.find(|host| own.contains(host)) {
                let why =
                    format!("the chain of rule {name} leads through this host itself, {host}");
                return Err(Cause::new(why).hint("leave it out"));
            }
        }
        Ok(())
    }

    /// Returns the name of each rule.
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        let numbered = self.rules.iter().zip(1..);
        numbered.map(|(rule, n)| rule.name.clone().unwrap_or_else(|| format!("#{n}")))
    }

    /// Returns the index of the rule for a session that a program opens, if one matches. A rule about
    /// some programs matches only if `opener` says that the program is one of them.
    pub fn find(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        opener: &Opener,
    ) -> Option<usize> {
        let session = FlowKey::new(source, destination);
        let matches = |rule: &Rule| {
            let mut parts = rule.compile().into_iter();
            rule.opener().includes(opener) && parts.any(|part| part.matches(&session))
        };
        self.rules.iter().position(matches)
    }

    /// True if a rule is about some programs: then its form for the data plane changes with the users
    /// and cgroups of the host.
    pub fn has_openers(&self) -> bool {
        self.rules.iter().any(|rule| !rule.opener().is_any())
    }

    /// True if a rule is about the programs of a cgroup.
    pub fn has_groups(&self) -> bool {
        self.rules.iter().any(|rule| rule.cgroup.is_some())
    }

    /// Returns the pairs of hosts that should know each other: each host of a chain and the host
    /// after it, and the last host and the server if a rule's destination is a single address.
    pub fn acquaintances(&self) -> HashSet<(IpAddr, IpAddr)> {
        let mut all = HashSet::new();
        for rule in &self.rules {
            let server = rule.destination.and_then(|prefix| prefix.host());
            let hosts = || rule.chain.hosts.iter().map(Element::host);
            all.extend(hosts().zip(hosts().skip(1).chain(server)));
        }
        all
    }
}

fn check(rule: &Rule) -> Result<(), Cause> {
    let prefixes = [rule.source, rule.destination].into_iter().flatten();
    let hosts = rule.chain.hosts.iter().map(Element::host);
    let mut addresses = hosts.chain(prefixes.map(|p| p.address));
    let first = addresses.next().map(|a| a.is_ipv4());
    if addresses.any(|a| Some(a.is_ipv4()) != first) {
        return Err(Cause::new("it mixes IPv4 and IPv6").hint("write a rule for each"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

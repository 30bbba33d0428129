//! Filters that select sessions for a listing: `key=value` words, all of which must match.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use dysco_common::Element;
use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use super::mode::Mode;
use super::process::ProcessName;
use super::session::{Removable, SessionReport};

/// States of a session, as listings print them.
pub const STATES: [&str; 13] = [
    "opening",
    "tracked",
    "adopted",
    "two-paths",
    "new-path",
    CHAINED,
    "relayed",
    "return",
    "service",
    "held",
    "tombstone",
    "closed",
    ENDED,
];
/// State of a session on a path through the hosts of a chain.
const CHAINED: &str = "chained";
/// State that listings print instead of another once a session is over.
pub const ENDED: &str = "ended";

/// Description of the filters, for `--help`.
pub const HELP: &str = "\
Filters are words separated by commas, all of which must match:
  host=ADDRESS      an end of the session, or of its path on the wire
  port=NUMBER       a port of the session, or of its path: once its proxy has left, or in
                    a chain, that has another port than the session
  state=WORD        opening, tracked, adopted, two-paths, new-path, chained, relayed, return,
                    service, held, tombstone, closed or ended
  mode=WORD         the way by which its proxy has left or is leaving: bypass, return or
                    local; none while no proxy has
  chain=ADDRESS     a host of the chain that it was opened with here; or yes or no: does
                    it pass any
  proxy=PROCESS     the proxy of this host that relays it, as far as a shim or a removal
                    has told: a pid, a name, a unit, or a listener such as :8080
  peer=ADDRESS      the other end of the session, or of its path on the wire
  removable=yes|no  can this host's middlebox leave it
  tuned=yes|no      has 'dyscoctl tune' set options of its socket on this host
  services=yes|no   are services in it on this host, or have left and added bytes";

/// A filter that selects the sessions to show. An empty filter selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Filter(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Host(IpAddr),
    Port(u16),
    State(&'static str),
    /// Mode of removal; `None` selects sessions that no proxy has left.
    Mode(Option<Mode>),
    Chain(Hop),
    Proxy(ProcessName),
    Peer(IpAddr),
    Removable(bool),
    Tuned(bool),
    Services(bool),
}

/// Condition on the elements of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    Any,
    None,
    Element(Element),
}

impl Filter {
    /// Returns true if the filter selects all sessions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Restricts the filter to sessions with tuned sockets.
    pub fn only_tuned(mut self) -> Filter {
        self.0.push(Term::Tuned(true));
        self
    }

    /// Returns true if the filter selects this session.
    pub fn matches(&self, session: &SessionReport) -> bool {
        self.0.iter().all(|term| term.matches(session))
    }
}

impl Term {
    fn matches(&self, session: &SessionReport) -> bool {
        let names = || session.path.iter().chain(&session.opened_as);
        let remotes = || names().map(|p| p.remote).chain([session.remote]);
        let ends = || {
            let locals = names().map(|p| p.local).chain([session.local]);
            locals.chain(remotes())
        };
        match self {
            Term::Host(ip) => ends().any(|end: SocketAddr| end.ip() == *ip),
            Term::Port(port) => ends().any(|end: SocketAddr| end.port() == *port),
            Term::Peer(ip) => remotes().any(|end| end.ip() == *ip),
            Term::State(state) if session.ended => *state == ENDED,
            Term::State(state) => session.state == *state,
            Term::Mode(mode) => session.mode == *mode,
            Term::Chain(hop) => hop.matches(session),
            Term::Proxy(name) => {
                let proxy = session.proxy.as_ref();
                proxy.is_some_and(|proxy| proxy.is_called(name))
            }
            Term::Removable(yes) => (session.removable == Removable::Yes) == *yes,
            Term::Tuned(yes) => session.tuned.is_empty() != *yes,
            Term::Services(yes) => session.services == *yes,
        }
    }
}

impl Hop {
    fn matches(self, session: &SessionReport) -> bool {
        let elements = session.chain.as_deref().unwrap_or_default();
        match self {
            Hop::Element(element) => elements.contains(&element),
            Hop::Any => session.state == CHAINED || !elements.is_empty(),
            Hop::None => !Hop::Any.matches(session),
        }
    }
}

/// Joins filters into one that selects what all of them select.
impl FromIterator<Filter> for Filter {
    fn from_iter<T: IntoIterator<Item = Filter>>(filters: T) -> Self {
        Filter(filters.into_iter().flat_map(|filter| filter.0).collect())
    }
}

impl FromStr for Filter {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let words = s.split([',', ' ']).filter(|word| !word.is_empty());
        let terms: Result<_, _> = words.map(str::parse).collect();
        terms.map(Filter)
    }
}

impl FromStr for Term {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let bad = || {
            Cause::new(format!("'{s}' filters nothing")).hint(
                "use host=ADDRESS, port=NUMBER, state=WORD, mode=WORD, chain=ADDRESS|yes|no, proxy=PROCESS, peer=ADDRESS, removable=yes|no, tuned=yes|no or services=yes|no, separated by commas",
            )
        };
        let no_port = || Cause::new(format!("'{s}' is out of range")).hint("use 1 to 65535");
        let (key, value) = s.split_once('=').ok_or_else(bad)?;
        let address = |ip: &str| {
            let ip = ip.parse().map(|ip: IpAddr| ip.to_canonical());
            ip.map_err(|_| bad())
        };
        match (key, value) {
            ("host", ip) => address(ip).map(Term::Host),
            ("peer", ip) => address(ip).map(Term::Peer),
            ("chain", "yes") => Ok(Term::Chain(Hop::Any)),
            ("chain", "no") => Ok(Term::Chain(Hop::None)),
            ("chain", element) => {
                let element = element.parse().map_err(|_| bad())?;
                Ok(Term::Chain(Hop::Element(element)))
            }
            ("proxy", name) => name.parse().map(Term::Proxy).map_err(|_| bad()),
            ("mode", "none") => Ok(Term::Mode(None)),
            ("mode", word) => {
                let left = [Mode::Bypass, Mode::Return, Mode::Local];
                let known = left.into_iter().find(|mode| mode.to_string() == word);
                let none = || {
                    Cause::new(format!("'{word}' is no way by which a proxy has left"))
                        .hint("use bypass, return, local or none")
                };
                known.map(|mode| Term::Mode(Some(mode))).ok_or_else(none)
            }
            ("port", port) => match port.parse() {
                Ok(0) => Err(no_port()),
                Ok(port) => Ok(Term::Port(port)),
                Err(_) if is_number(port) => Err(no_port()),
                Err(_) => Err(bad()),
            },
            ("state", state) => {
                let known = STATES
                    .iter()
                    .find(|known| known.eq_ignore_ascii_case(state));
                let none = || {
                    Cause::new(format!("'{state}' is no state of a session"))
                        .hint(format!("use one of {}", STATES.join(", ")))
                };
                known.map(|known| Term::State(known)).ok_or_else(none)
            }
            ("removable", "yes") => Ok(Term::Removable(true)),
            ("removable", "no") => Ok(Term::Removable(false)),
            ("tuned", "yes") => Ok(Term::Tuned(true)),
            ("tuned", "no") => Ok(Term::Tuned(false)),
            ("services", "yes") => Ok(Term::Services(true)),
            ("services", "no") => Ok(Term::Services(false)),
            _ => Err(bad()),
        }
    }
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match term {
                Term::Host(ip) => write!(f, "host={ip}")?,
                Term::Port(port) => write!(f, "port={port}")?,
                Term::State(state) => write!(f, "state={state}")?,
                Term::Mode(Some(mode)) => write!(f, "mode={mode}")?,
                Term::Mode(None) => f.write_str("mode=none")?,
                Term::Chain(Hop::Any) => f.write_str("chain=yes")?,
                Term::Chain(Hop::None) => f.write_str("chain=no")?,
                Term::Chain(Hop::Element(element)) => write!(f, "chain={element}")?,
                Term::Proxy(name) => write!(f, "proxy={name}")?,
                Term::Peer(ip) => write!(f, "peer={ip}")?,
                Term::Removable(true) => f.write_str("removable=yes")?,
                Term::Removable(false) => f.write_str("removable=no")?,
                Term::Tuned(true) => f.write_str("tuned=yes")?,
                Term::Tuned(false) => f.write_str("tuned=no")?,
                Term::Services(true) => f.write_str("services=yes")?,
                Term::Services(false) => f.write_str("services=no")?,
            }
        }
        Ok(())
    }
}

impl From<Filter> for String {
    fn from(filter: Filter) -> String {
        filter.to_string()
    }
}

impl TryFrom<String> for Filter {
    type Error = Cause;

    fn try_from(s: String) -> Result<Self, Cause> {
        s.parse()
    }
}

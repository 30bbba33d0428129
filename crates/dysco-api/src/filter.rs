//! Which sessions a listing shows: `key=value` words, all of which must match.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::session::{Removable, SessionReport};

/// The states of a session, as listings have them.
pub const STATES: [&str; 11] = [
    "opening",
    "tracked",
    "adopted",
    "two-paths",
    "new-path",
    "chained",
    "relayed",
    "return",
    "tombstone",
    "closed",
    ENDED,
];
/// Listed instead of another word once a session is over.
const ENDED: &str = "ended";

/// What a filter may say, for `--help`.
pub const HELP: &str = "\
Filters are words separated by commas, all of which must match:
  host=ADDRESS      an end of the session, or of its path on the wire
  port=NUMBER       a port of the session, or of its path: once its proxy has left, or in
                    a chain, that has another port than the session
  state=WORD        opening, tracked, adopted, two-paths, new-path, chained, relayed, return,
                    tombstone, closed or ended
  removable=yes|no  can this host's middlebox leave it";

/// Which sessions to show; the empty one shows all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Filter(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Host(IpAddr),
    Port(u16),
    State(&'static str),
    Removable(bool),
}

/// Not a filter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadFilter {
    /// No word of one.
    #[error(
        "'{0}' filters nothing: use host=ADDRESS, port=NUMBER, state=WORD or removable=yes|no, separated by commas"
    )]
    Word(String),
    /// No port.
    #[error("'{0}' is out of range: ports are 1 to 65535")]
    Port(String),
    /// No session is ever in it.
    #[error("'{0}' is no state of a session: use one of {states}", states = STATES.join(", "))]
    State(String),
}

impl Filter {
    /// Does it show all?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Is this session to be shown?
    pub fn matches(&self, session: &SessionReport) -> bool {
        self.0.iter().all(|term| term.matches(session))
    }
}

impl Term {
    fn matches(&self, session: &SessionReport) -> bool {
        let names = session.path.iter().chain(&session.opened_as);
        let ends = names.flat_map(|p| [p.local, p.remote]);
        let mut ends = [session.local, session.remote].into_iter().chain(ends);
        match self {
            Term::Host(ip) => ends.any(|end: SocketAddr| end.ip() == *ip),
            Term::Port(port) => ends.any(|end: SocketAddr| end.port() == *port),
            Term::State(state) if session.ended => *state == ENDED,
            Term::State(state) => session.state == *state,
            Term::Removable(yes) => (session.removable == Removable::Yes) == *yes,
        }
    }
}

impl FromStr for Filter {
    type Err = BadFilter;

    fn from_str(s: &str) -> Result<Self, BadFilter> {
        let words = s.split([',', ' ']).filter(|word| !word.is_empty());
        let terms: Result<_, _> = words.map(str::parse).collect();
        terms.map(Filter)
    }
}

impl FromStr for Term {
    type Err = BadFilter;

    fn from_str(s: &str) -> Result<Self, BadFilter> {
        let bad = || BadFilter::Word(s.to_owned());
        let (key, value) = s.split_once('=').ok_or_else(bad)?;
        match (key, value) {
            ("host", ip) => ip
                .parse()
                .map(|ip: IpAddr| Term::Host(ip.to_canonical()))
                .map_err(|_| bad()),
            ("port", port) => match port.parse() {
                Ok(0) => Err(BadFilter::Port(s.to_owned())),
                Ok(port) => Ok(Term::Port(port)),
                Err(_) if is_number(port) => Err(BadFilter::Port(s.to_owned())),
                Err(_) => Err(bad()),
            },
            ("state", state) => {
                let known = STATES
                    .iter()
                    .find(|known| known.eq_ignore_ascii_case(state));
                let none = || BadFilter::State(state.to_owned());
                known.map(|known| Term::State(known)).ok_or_else(none)
            }
            ("removable", "yes") => Ok(Term::Removable(true)),
            ("removable", "no") => Ok(Term::Removable(false)),
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
                Term::Removable(true) => f.write_str("removable=yes")?,
                Term::Removable(false) => f.write_str("removable=no")?,
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
    type Error = BadFilter;

    fn try_from(s: String) -> Result<Self, BadFilter> {
        s.parse()
    }
}

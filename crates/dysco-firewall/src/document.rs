//! The form in which state travels, and the checks before its content is read.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use dysco_explain::Cause;
use dysco_proto::KindName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Seen;
use super::error::{Fault, StateError};

/// Version of the documents.
pub const VERSION: u32 = 1;
/// Greatest number of documents of one session.
pub(crate) const MAX_DOCUMENTS: usize = 64;
/// Greatest number of bytes of all documents of one session, as JSON.
pub(crate) const MAX_BYTES: usize = 32 * 1024;

/// A TCP session's five-tuple, from the end that opened it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FiveTuple {
    /// The end that opened it.
    pub source: SocketAddr,
    /// The other end.
    pub destination: SocketAddr,
}

/// One thing that a middlebox holds for a session.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Version of this layout: 1.
    pub version: u32,
    /// The session, as the end that opened it has it.
    pub session: FiveTuple,
    /// The session as the other end has it: the middlebox may translate
    /// addresses and ports of either end.
    pub translated: FiveTuple,
    /// What kind of state it is.
    pub kind: KindName,
    /// The state, in the form of its kind.
    pub state: Value,
}

impl FiveTuple {
    /// Returns the five-tuple from the other end.
    pub const fn reversed(self) -> FiveTuple {
        FiveTuple {
            source: self.destination,
            destination: self.source,
        }
    }

    /// Returns its two ends.
    pub const fn ends(&self) -> [SocketAddr; 2] {
        [self.source, self.destination]
    }

    /// True if both name the same session, from either end.
    pub fn same(&self, other: &FiveTuple) -> bool {
        self == other || *self == other.reversed()
    }

    /// True if a TCP session can have this five-tuple.
    fn possible(&self) -> bool {
        let end = |end: SocketAddr| {
            let ip = end.ip();
            end.port() != 0 && !ip.is_unspecified() && !ip.is_multicast()
        };
        self.source.is_ipv4() == self.destination.is_ipv4()
            && end(self.source)
            && end(self.destination)
    }
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.source, self.destination)
    }
}

impl FromStr for FiveTuple {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let bad = || {
            Cause::new(format!("'{s}' names no session"))
                .hint("give SOURCE>DESTINATION such as '10.0.0.2:40000>10.0.0.1:80'")
        };
        let (source, destination) = s.split_once('>').ok_or_else(bad)?;
        let end = |end: &str| end.trim().parse().map_err(|_| bad());
        Ok(FiveTuple {
            source: end(source)?,
            destination: end(destination)?,
        })
    }
}

impl Document {
    /// Makes a document of a session on this host.
    pub(super) fn new(seen: &Seen, kind: KindName, state: &impl Serialize) -> Document {
        Document {
            version: VERSION,
            session: seen.session,
            translated: seen.translated,
            kind,
            // The state types have string keys and no maps: they always encode.
            state: serde_json::to_value(state).unwrap_or(Value::Null),
        }
    }

    /// Returns the session of the document.
    pub fn seen(&self) -> Seen {
        Seen {
            session: self.session,
            translated: self.translated,
        }
    }

    /// Decodes the state as that of one kind.
    pub(super) fn state<T: for<'de> Deserialize<'de>>(&self) -> Result<T, StateError> {
        T::deserialize(&self.state)
            .map_err(|error| self.refused(Fault::Malformed(error.to_string())))
    }

    /// Returns an error about this document.
    pub(super) fn refused(&self, fault: Fault) -> StateError {
        StateError::Refused {
            kind: self.kind,
            session: self.session,
            fault: Box::new(fault),
        }
    }

    /// Checks that the document has this version and belongs to this session.
    pub(super) fn check_header(&self, session: &FiveTuple) -> Result<(), StateError> {
        if self.version != VERSION {
            return Err(self.refused(Fault::Version(self.version)));
        }
        if !self.session.same(session) && !self.translated.same(session) {
            return Err(self.refused(Fault::Foreign(*session)));
        }
        let possible = self.session.possible() && self.translated.possible();
        if !possible || self.session.source.is_ipv4() != self.translated.source.is_ipv4() {
            return Err(self.refused(Fault::Impossible));
        }
        Ok(())
    }
}

/// Reads the documents from a JSON value. Does not read documents of another version.
pub fn read(json: &Value) -> Result<Vec<Document>, StateError> {
    let unreadable = |why: String| StateError::Unreadable(why);
    let all = json.as_array().ok_or(unreadable("it is no list".into()))?;
    let read = |json: &Value| match json["version"].as_u64() {
        Some(version) if version != u64::from(VERSION) => {
            let versions = format!("it is of version {version}, and this is {VERSION}");
            Err(unreadable(
                versions + ": run the same release on both hosts",
            ))
        }
        _ => Document::deserialize(json).map_err(|error| unreadable(error.to_string())),
    };
    all.iter().map(read).collect()
}

/// Checks that the documents are neither too many nor too long.
pub(super) fn check_size(documents: &[Document]) -> Result<(), StateError> {
    let bytes = serde_json::to_vec(documents).map_or(usize::MAX, |json| json.len());
    if documents.len() > MAX_DOCUMENTS || bytes > MAX_BYTES {
        return Err(StateError::Oversized {
            documents: documents.len(),
            bytes,
        });
    }
    Ok(())
}

/// Returns the JSON schema of documents: docs/state.schema.json.
pub fn schema() -> Value {
    let mut generator = schemars::SchemaGenerator::default();
    super::kinds()
        .iter()
        .for_each(|kind| kind.describe(&mut generator));
    let root = generator.into_root_schema_for::<Vec<Document>>();
    serde_json::to_value(root).unwrap_or(Value::Null)
}

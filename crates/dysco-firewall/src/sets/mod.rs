//! Elements of nftables sets that contain the session's addresses and ports, such as those that
//! rules add for clients that they have seen.
//!
//! A set counts if its key consists of addresses, ports and protocols, with an address among
//! them. Sets of a single rule, constant sets, intervals and maps belong to the ruleset, not to
//! a session. The other host must have a set of the same family, table, name and type.

mod kernel;
mod key;

use std::time::Duration;

use dysco_proto::KindName;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::document::Document;
use super::error::{Fault, StateError};
use super::{Here, Kind, Seen, Undo};

pub(crate) use key::Field;

/// The kind of state that nftables holds in sets.
pub(crate) struct Sets;

/// An element of an nftables set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetElement {
    /// The table's family.
    pub family: TableFamily,
    /// The table.
    pub table: String,
    /// The set.
    pub set: String,
    /// The element; several fields are a concatenation.
    pub key: Vec<Field>,
    /// Its time-out in milliseconds, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Rest of the time-out in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// A table's family.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TableFamily {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Both.
    Inet,
}

/// Greatest length of the name of a table or set.
const LONGEST_NAME: usize = 255;
/// Longest time-out. A longer one is cut to this.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl SetElement {
    /// Returns the set's name, for messages.
    fn name(&self) -> String {
        let family = self.family.word();
        format!("{family} {} {}", self.table, self.set)
    }

    /// Returns the fault of the element that holds on any host, if there is one.
    fn fault(&self, seen: &Seen) -> Option<Fault> {
        let name =
            |name: &str| !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains('\0');
        if !name(&self.table) || !name(&self.set) {
            return Some(Fault::Malformed("it names no set".into()));
        }
        if !key::of_session(&self.key, seen) {
            return Some(Fault::ForeignElement(self.name()));
        }
        let longest = LONGEST.as_millis() as u64;
        let times = [self.timeout_ms, self.expires_ms].into_iter().flatten();
        if times.clone().any(|ms| ms == 0 || ms > longest) {
            return Some(Fault::Malformed("its time-out is none".into()));
        }
        match (self.timeout_ms, self.expires_ms) {
            (None, Some(_)) => Some(Fault::Malformed("it expires without a time-out".into())),
            (Some(timeout), Some(left)) if left > timeout => {
                Some(Fault::Malformed("it expires after its time-out".into()))
            }
            _ => None,
        }
    }
}

impl TableFamily {
    fn word(self) -> &'static str {
        match self {
            TableFamily::Ip => "ip",
            TableFamily::Ip6 => "ip6",
            TableFamily::Inet => "inet",
        }
    }
}

/// Greatest number of elements that are looked up at once.
const FEW: usize = 16;

/// True if the elements that a session may have here are known, and few.
pub(crate) fn are_few(session: &Seen) -> bool {
    let candidates = |sets: Vec<kernel::Set>| {
        let all = sets.iter();
        all.map(|set| key::candidates(&set.types, session).len())
            .sum::<usize>()
    };
    kernel::known().map(candidates).is_some_and(|n| n <= FEW)
}

impl Kind for Sets {
    fn name(&self) -> KindName {
        KindName::SetElement
    }

    fn describe(&self, schema: &mut SchemaGenerator) {
        schema.subschema_for::<SetElement>();
    }

    fn export(&self, here: &Here) -> Result<Vec<Document>, StateError> {
        let mut documents = Vec::new();
        for set in kernel::sets()? {
            for key in key::candidates(&set.types, &here.seen) {
                if let Some(element) = kernel::element(&set, key)? {
                    documents.push(Document::new(&here.seen, self.name(), &element));
                }
            }
        }
        Ok(documents)
    }

    fn check(&self, document: &Document) -> Result<(), StateError> {
        judged(document).map(drop)
    }

    fn install(&self, document: &Document) -> Result<Undo, StateError> {
        let (element, set) = judged(document)?;
        let there = kernel::element(&set, element.key.clone())?.is_some();
        kernel::add(&set, &element).map_err(|error| match error {
            StateError::Kernel { source, .. } if source.raw_os_error() != Some(libc::EPERM) => {
                document.refused(Fault::Kernel(source.to_string()))
            }
            error => error,
        })?;
        if there {
            return Ok(Undo::none());
        }
        Ok(Undo::new(move || {
            if let Err(error) = kernel::delete(&set, &element.key) {
                tracing::warn!(%error, set = element.name(), "cannot take back an element of a set");
            }
        }))
    }

    /// Removes only elements with the port of the end that opened the session: other elements may
    /// also serve other sessions.
    fn remove(&self, here: &Here) -> Result<usize, StateError> {
        let session = &here.seen;
        let mut removed = 0;
        for set in kernel::sets()? {
            for key in key::candidates(&set.types, session) {
                if key::its_own(&key, session) && kernel::element(&set, key.clone())?.is_some() {
                    kernel::delete(&set, &key)?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}

/// Returns the element of a document, if it is valid on any host, and its set on this host.
fn judged(document: &Document) -> Result<(SetElement, kernel::Set), StateError> {
    let element: SetElement = document.state()?;
    if let Some(fault) = element.fault(&document.seen()) {
        return Err(document.refused(fault));
    }
    match kernel::set_of(&element)? {
        Some(set) => Ok((element, set)),
        None => Err(document.refused(Fault::NoSet(element.name()))),
    }
}

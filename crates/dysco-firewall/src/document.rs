//! Form in which state travels, and the checks before its content is read.

use dysco_proto::KindName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Seen;
use super::error::{Fault, StateError};
use super::five_tuple::FiveTuple;
use super::limits::{MAX_BYTES, MAX_DOCUMENTS, VERSION};

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
    /// Kind of the state.
    pub kind: KindName,
    /// The state, in the form of its kind.
    pub state: Value,
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

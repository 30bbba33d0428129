//! The time at which a firewall first saw a session. No kernel has it.

use dysco_proto::KindName;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::document::Document;
use super::error::{Fault, StateError};
use super::{Here, Kind, Undo};

/// The time.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct FirstSeenState {
    /// In seconds since 1970.
    at: u64,
}

pub(super) struct FirstSeen;

impl Kind for FirstSeen {
    fn name(&self) -> KindName {
        KindName::FirstSeen
    }

    fn describe(&self, schema: &mut SchemaGenerator) {
        schema.subschema_for::<FirstSeenState>();
    }

    fn export(&self, _: &Here) -> Result<Vec<Document>, StateError> {
        Ok(Vec::new())
    }

    fn check(&self, document: &Document) -> Result<(), StateError> {
        Err(document.refused(Fault::Kernel("it has no place for this".into())))
    }

    fn install(&self, document: &Document) -> Result<Undo, StateError> {
        self.check(document).map(|()| Undo::none())
    }

    fn remove(&self, _: &Here) -> Result<usize, StateError> {
        Ok(0)
    }
}

//! Notes about a session, for an example of a kind of state. No host has any.

use schemars::SchemaGenerator;

use crate::{Document, Here, Kind, KindName, StateError, Undo};

pub struct Notes;

impl Kind for Notes {
    fn name(&self) -> KindName {
        KindName::Note
    }

    fn describe(&self, schema: &mut SchemaGenerator) {
        schema.subschema_for::<String>();
    }

    fn export(&self, _: &Here) -> Result<Vec<Document>, StateError> {
        Ok(Vec::new())
    }

    fn check(&self, document: &Document) -> Result<(), StateError> {
        document.state::<String>().map(drop)
    }

    fn install(&self, document: &Document) -> Result<Undo, StateError> {
        self.check(document).map(|()| Undo::none())
    }

    fn remove(&self, _: &Here) -> Result<usize, StateError> {
        Ok(0)
    }
}

//! Commands about the records from which a later process continues.

#[cfg(doc)]
use super::super::event::HostEvent;

/// A command about the record of a change.
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantNames)]
pub enum Journal {
    /// Writes this record before any later command is carried out and before any message is sent.
    /// If this fails, the host reports [`HostEvent::PersistFailed`] at once.
    Persist {
        /// The record, which `Machine::restore` gets after a restart.
        record: Vec<u8>,
    },
    /// Removes the record, and ends the change on this host.
    Erase,
}

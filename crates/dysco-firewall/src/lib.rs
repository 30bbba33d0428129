//! State that a middlebox's kernel holds of a session: exported from one firewall and installed
//! on another. This crate knows netlink and nothing of the protocol. It uses only the names of
//! the kinds of state from `dysco-proto`, and depends on no runtime.
//!
//! A kind of state is a [`Kind`]: [`conntrack`] entries, and elements of nftables [`sets`]. The
//! state travels as [`Document`]s (docs/state.md). All functions ask the kernel of the calling
//! thread's network namespace, wait for its answer, and take well under a millisecond.
//!
//! A host that replaces a middlebox calls, in this order:
//!
//! 1. [`export`] on the old host. The session continues there.
//! 2. [`install`] on the new host, and its answer, before a packet of the new path can arrive
//!    there. A failure leaves nothing behind and ends the change: the old path was not touched.
//! 3. The switch. The new entry learns the TCP windows, which the kernel does not report, from
//!    the first packets. Until then it does not judge them.
//! 4. [`Installed::settling`], from time to time, until it has settled. From then on windows are
//!    judged as in any other entry.
//! 5. [`remove`] on the old host once its path is drained. If the change was rolled back,
//!    [`remove`] on the new host.
//!
//! [`transfer`] performs steps 1 and 2 between hosts, for a host that has an end of the session.
//! The change's id names the transfer.

pub mod conntrack;
mod document;
mod error;
mod five_tuple;
mod limits;
mod netlink;
mod sets;
#[cfg(test)]
mod tests;
pub mod transfer;

pub use document::{Document, read, schema};
pub use error::{Fault, StateError};
pub use five_tuple::FiveTuple;

use dysco_proto::KindName;
use schemars::SchemaGenerator;

use conntrack::{Conntrack, Settling};
use sets::Sets;

/// One kind of state.
trait Kind {
    /// Its name.
    fn name(&self) -> KindName;

    /// Adds the form of its state to the schema of documents.
    fn describe(&self, schema: &mut SchemaGenerator);

    /// Returns the documents of this kind that this host has for a session.
    fn export(&self, here: &Here) -> Result<Vec<Document>, StateError>;

    /// Checks that the document could be installed. Changes nothing.
    fn check(&self, document: &Document) -> Result<(), StateError>;

    /// Installs the document, or updates the state that is there. Returns how to undo that.
    fn install(&self, document: &Document) -> Result<Undo, StateError>;

    /// Removes the state that belongs to this session alone. Returns the number of states
    /// removed.
    fn remove(&self, here: &Here) -> Result<usize, StateError>;
}

/// A session as a host knows it: its five-tuple from the end that opened it, before and after
/// translation of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The five-tuple at the end that opened the session.
    pub session: FiveTuple,
    /// The five-tuple at the other end; the same if nothing is translated.
    pub translated: FiveTuple,
}

/// A session on this host, as connection tracking had it at the time of the question.
struct Here {
    /// Its five-tuples.
    seen: Seen,
    /// Its entries.
    entries: Vec<conntrack::Entry>,
}

/// Undoes an installation.
pub struct Undo {
    /// True if the state was there before: then nothing is taken back.
    pub updated: bool,
    /// The handle that reports when the entry has settled.
    pub settling: Option<Settling>,
    back: Box<dyn FnOnce() + Send>,
}

/// Result of an installation.
#[derive(Debug, Default)]
pub struct Installed {
    /// Number of states that were not there before.
    pub new: usize,
    /// Number of states that were there.
    pub updated: usize,
    /// Entries that do not judge windows yet.
    pub settling: Vec<Settling>,
}

/// Returns all kinds, in the order of installation: a kind that packets can match by itself
/// comes last.
fn kinds() -> Vec<Box<dyn Kind>> {
    vec![Box::new(Sets), Box::new(Conntrack)]
}

/// Returns this host's state of these kinds for a session; of all kinds if none is named.
pub fn export(session: &FiveTuple, only: &[KindName]) -> Result<Vec<Document>, StateError> {
    Here::find(session)?.export(only)
}

/// Returns the same if a few questions to the kernel suffice, and the kernel need neither search
/// nor load anything for them; else `None`.
pub fn export_at_once(
    session: &FiveTuple,
    only: &[KindName],
) -> Result<Option<Vec<Document>>, StateError> {
    if !conntrack::has_answered() {
        return Ok(None);
    }
    let Some(entry) = conntrack::in_zone_0(session)? else {
        return Ok(None);
    };
    let here = Here::of(session, vec![entry]);
    match is_wanted(KindName::SetElement, only) && !sets::are_few(&here.seen) {
        true => Ok(None),
        false => here.export(only).map(Some),
    }
}

/// True if these documents can be installed with a few questions to the kernel (see
/// [`export_at_once`]).
pub fn is_at_once(documents: &[Document]) -> bool {
    let of_conntrack = |document: &Document| document.kind == KindName::Conntrack;
    conntrack::has_answered() && documents.len() <= 2 && documents.iter().all(of_conntrack)
}

fn is_wanted(kind: KindName, only: &[KindName]) -> bool {
    only.is_empty() || only.contains(&kind)
}

/// Checks that the documents contain each kind that was named.
pub fn has_each(
    session: &FiveTuple,
    kinds: &[KindName],
    documents: &[Document],
) -> Result<(), StateError> {
    let there = |kind: KindName| documents.iter().any(|d| d.kind == kind);
    let none = kinds.iter().copied().find(|kind| !there(*kind));
    none.map_or(Ok(()), |kind| {
        let session = *session;
        Err(StateError::Nothing { kind, session })
    })
}

/// Checks that these documents could be installed for this session. Changes nothing.
pub fn check(session: &FiveTuple, documents: &[Document]) -> Result<(), StateError> {
    check_headers(session, documents)?;
    let mut all = documents.iter();
    all.try_for_each(|document| kind(document.kind).check(document))
}

fn check_headers(session: &FiveTuple, documents: &[Document]) -> Result<(), StateError> {
    document::check_size(documents)?;
    let mut all = documents.iter();
    all.try_for_each(|document| document.check_header(session))
}

/// Installs all of these documents, or none. A second call updates the state.
pub fn install(session: &FiveTuple, documents: &[Document]) -> Result<Installed, StateError> {
    match documents {
        // A single document leaves nothing to undo.
        [_] => check_headers(session, documents)?,
        _ => check(session, documents)?,
    }
    let mut done: Vec<Undo> = Vec::new();
    for kind in kinds() {
        for document in documents.iter().filter(|d| d.kind == kind.name()) {
            match kind.install(document) {
                Ok(undo) => done.push(undo),
                Err(error) => {
                    done.into_iter().rev().for_each(Undo::run);
                    return Err(error);
                }
            }
        }
    }
    let updated = done.iter().filter(|u| u.updated).count();
    Ok(Installed {
        new: done.len() - updated,
        updated,
        settling: done.into_iter().filter_map(|u| u.settling).collect(),
    })
}

/// Removes this host's state of a session. State that other sessions share remains. Returns the
/// number of states removed.
pub fn remove(session: &FiveTuple, only: &[KindName]) -> Result<usize, StateError> {
    Here::find(session)?.remove(only)
}

/// Removes all state of a session if connection tracking has its entry in zone 0, where nearly
/// all are. Returns false, and does nothing, otherwise.
pub fn remove_known(session: &FiveTuple) -> Result<bool, StateError> {
    match conntrack::in_zone_0(session)? {
        Some(entry) => Here::of(session, vec![entry]).remove(&[]).map(|_| true),
        None => Ok(false),
    }
}

/// Removes all state of these sessions, in any zone. Continues after an error, and returns the
/// last one.
pub fn remove_many(sessions: &[FiveTuple]) -> Result<(), StateError> {
    let found = conntrack::find_many(sessions)?;
    let mut result = Ok(());
    for (session, entries) in sessions.iter().zip(found) {
        let removed = Here::of(session, entries).remove(&[]).map(|_| ());
        result = removed.and(result);
    }
    result
}

fn kind(name: KindName) -> Box<dyn Kind> {
    match name {
        KindName::Conntrack => Box::new(Conntrack),
        KindName::SetElement => Box::new(Sets),
    }
}

impl Seen {
    /// Returns a session whose addresses are not translated.
    pub const fn plain(session: FiveTuple) -> Seen {
        Seen {
            session,
            translated: session,
        }
    }
}

impl Here {
    /// Finds the session, which any of its ends may have named.
    fn find(session: &FiveTuple) -> Result<Here, StateError> {
        conntrack::find(session).map(|entries| Here::of(session, entries))
    }

    fn of(session: &FiveTuple, entries: Vec<conntrack::Entry>) -> Here {
        let first = entries.first();
        let seen = first.map_or(Seen::plain(*session), |entry| entry.seen());
        Here { seen, entries }
    }

    fn remove(&self, only: &[KindName]) -> Result<usize, StateError> {
        let mut removed = 0;
        for kind in kinds() {
            if is_wanted(kind.name(), only) {
                removed += kind.remove(self)?;
            }
        }
        Ok(removed)
    }

    fn export(&self, only: &[KindName]) -> Result<Vec<Document>, StateError> {
        let mut all = Vec::new();
        for kind in kinds() {
            if is_wanted(kind.name(), only) {
                all.extend(kind.export(self)?);
            }
        }
        document::check_size(&all)?;
        Ok(all)
    }
}

impl Undo {
    /// Undoes the installation of something that was not there before.
    fn new(back: impl FnOnce() + Send + 'static) -> Undo {
        Undo {
            updated: false,
            settling: None,
            back: Box::new(back),
        }
    }

    /// Undoes nothing: the state was there before.
    fn none() -> Undo {
        Undo {
            updated: true,
            settling: None,
            back: Box::new(|| {}),
        }
    }

    fn run(self) {
        (self.back)();
    }
}

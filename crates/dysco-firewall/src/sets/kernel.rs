//! Sets and their elements, read and changed in the kernel.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_netfilter::nftables::{
    DataAttribute, GenAttribute, GenMessage, ListAttribute, NfTablesMessage, SetAttribute,
    SetElementAttribute, SetElementList, SetElementMessage, SetFlags, SetMessage,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};

use super::key::{self, Field, FieldType};
use super::{SetElement, TableFamily};
use crate::error::StateError;
use crate::netlink::Netfilter;

/// A set that can contain something of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Set {
    family: TableFamily,
    table: String,
    name: String,
    /// The types of its key's fields.
    pub types: Vec<FieldType>,
    /// Time-out of an element that has none of its own, in milliseconds.
    timeout_ms: Option<u64>,
    /// True if an element may have its own time-out.
    timed: bool,
}

const FAMILIES: [TableFamily; 3] = [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet];

/// Sets of a ruleset and the ruleset's generation, by network namespace.
type Read = BTreeMap<u64, (u32, Vec<Set>)>;

static READ: Mutex<Read> = Mutex::new(BTreeMap::new());

fn read() -> MutexGuard<'static, Read> {
    // The map is consistent after any panic: the lock guards single map operations.
    READ.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the calling thread's network namespace.
fn namespace() -> Option<u64> {
    let own = fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some(own.ino())
}

/// Returns all sets that can contain something of a session. Lists them again if the ruleset has
/// changed.
pub(super) fn sets() -> Result<Vec<Set>, StateError> {
    let generation = generation();
    if let Some(sets) = listed(generation) {
        return Ok(sets);
    }
    let sets = list()?;
    if let (Some(namespace), Some(generation)) = (namespace(), generation) {
        read().insert(namespace, (generation, sets.clone()));
    }
    Ok(sets)
}

/// Returns the sets of the ruleset in force, if they were listed before.
pub(super) fn known() -> Option<Vec<Set>> {
    listed(generation())
}

fn listed(generation: Option<u32>) -> Option<Vec<Set>> {
    let (generation, namespace) = (generation?, namespace()?);
    match read().get(&namespace) {
        Some((of, sets)) if *of == generation => Some(sets.clone()),
        _ => None,
    }
}

/// Generation of the ruleset in force; `None` if the kernel does not report it.
fn generation() -> Option<u32> {
    let question = NfTablesMessage::GetGen(GenMessage { attributes: vec![] });
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let message = NetfilterMessage::new(header, question);
    let answers = Netfilter::with(|netfilter| netfilter.get(message)).ok()?;
    answers.into_iter().find_map(|answer| match answer {
        NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(message)) => {
            let mut attributes = message.attributes.into_iter();
            attributes.find_map(|attribute| match attribute {
                GenAttribute::Id(id) => Some(id),
                _ => None,
            })
        }
        _ => None,
    })
}

fn list() -> Result<Vec<Set>, StateError> {
    let mut all = Vec::new();
    for family in FAMILIES {
        let question = NfTablesMessage::GetSet(SetMessage { attributes: vec![] });
        let message = NetfilterMessage::new(header(family), question);
        let answers = Netfilter::with(|netfilter| netfilter.dump(message));
        let answers = answers.map_err(failed("list the sets of nftables"))?;
        all.extend(answers.into_iter().filter_map(|a| Set::read(family, a)));
    }
    Ok(all)
}

/// Returns the set of an element, if this host has it with the same type.
pub(crate) fn set_of(element: &SetElement) -> Result<Option<Set>, StateError> {
    let same = |set: &Set| {
        let name =
            set.family == element.family && set.table == element.table && set.name == element.set;
        let types = set.types.len() == element.key.len()
            && set.types.iter().zip(&element.key).all(|(t, f)| t.takes(*f));
        name && types && (set.timed || element.timeout_ms.is_none())
    };
    Ok(sets()?.into_iter().find(same))
}

/// Returns the element with this key, if the set has it.
pub(super) fn element(set: &Set, key: Vec<Field>) -> Result<Option<SetElement>, StateError> {
    let asked = vec![SetElementAttribute::Key(DataAttribute::Value(key::bytes(
        &key,
    )))];
    let question = NfTablesMessage::GetSetElement(set.list(asked));
    let message = NetfilterMessage::new(header(set.family), question);
    let answers = Netfilter::with(|netfilter| netfilter.get(message));
    let answers = answers.map_err(failed("look up an element of a set"))?;
    let found = answers.into_iter().find_map(attributes_of);
    Ok(found.map(|attributes| set.element(key, &attributes)))
}

/// Adds an element, or sets the time that it has left.
pub(super) fn add(set: &Set, element: &SetElement) -> Result<(), StateError> {
    let mut attributes = vec![SetElementAttribute::Key(DataAttribute::Value(key::bytes(
        &element.key,
    )))];
    attributes.extend(element.timeout_ms.map(SetElementAttribute::Timeout));
    attributes.extend(element.expires_ms.map(SetElementAttribute::Expiration));
    let message = NfTablesMessage::NewSetElement(set.list(attributes));
    act(set, message, NLM_F_CREATE, "add an element to a set")
}

/// Deletes an element.
pub(super) fn delete(set: &Set, key: &[Field]) -> Result<(), StateError> {
    let attributes = vec![SetElementAttribute::Key(DataAttribute::Value(key::bytes(
        key,
    )))];
    let message = NfTablesMessage::DeleteSetElement(set.list(attributes));
    match act(set, message, 0, "delete an element of a set") {
        // The element expired meanwhile.
        Err(StateError::Kernel { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
            Ok(())
        }
        done => done,
    }
}

fn act(
    set: &Set,
    message: NfTablesMessage,
    flags: u16,
    what: &'static str,
) -> Result<(), StateError> {
    let message = NetfilterMessage::new(header(set.family), message);
    let done = Netfilter::with(|netfilter| netfilter.transaction(vec![(message, flags)]));
    done.map_err(failed(what))
}

impl Set {
    fn read(family: TableFamily, message: NetfilterMessageInner) -> Option<Set> {
        let NetfilterMessageInner::NfTables(NfTablesMessage::NewSet(message)) = message else {
            return None;
        };
        let (mut table, mut name, mut types) = (None, None, None);
        let (mut flags, mut timeout_ms) = (SetFlags::empty(), None);
        for attribute in message.attributes {
            match attribute {
                SetAttribute::Table(text) => table = Some(text),
                SetAttribute::Name(text) => name = Some(text),
                SetAttribute::Flags(bits) => flags = bits,
                SetAttribute::KeyType(number) => types = FieldType::of(number),
                SetAttribute::Timeout(ms) => timeout_ms = (ms != 0).then_some(ms),
                _ => {}
            }
        }
        let not_ours = SetFlags::Anonymous
            | SetFlags::Constant
            | SetFlags::Interval
            | SetFlags::Map
            | SetFlags::Object;
        if flags.intersects(not_ours) {
            return None;
        }
        Some(Set {
            family,
            table: table?,
            name: name?,
            types: types?,
            timeout_ms,
            timed: flags.contains(SetFlags::Timeout),
        })
    }

    fn list(&self, element: Vec<SetElementAttribute>) -> SetElementMessage {
        let attributes = vec![
            SetElementList::Table(self.table.clone()),
            SetElementList::Set(self.name.clone()),
            SetElementList::Elements(vec![ListAttribute::Element(element)]),
        ];
        SetElementMessage { attributes }
    }

    fn element(&self, key: Vec<Field>, attributes: &[SetElementAttribute]) -> SetElement {
        let longest = super::LONGEST.as_millis() as u64;
        let mut timeout_ms = self.timeout_ms;
        let mut expires_ms = None;
        for attribute in attributes {
            match attribute {
                SetElementAttribute::Timeout(ms) => timeout_ms = (*ms != 0).then_some(*ms),
                SetElementAttribute::Expiration(ms) => expires_ms = Some(*ms),
                _ => {}
            }
        }
        let timeout_ms = timeout_ms.map(|ms| ms.min(longest));
        let left = |ms: u64| expires_ms.unwrap_or(ms).clamp(1, ms);
        SetElement {
            family: self.family,
            table: self.table.clone(),
            set: self.name.clone(),
            key,
            timeout_ms,
            expires_ms: timeout_ms.map(left),
        }
    }
}

fn attributes_of(message: NetfilterMessageInner) -> Option<Vec<SetElementAttribute>> {
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewSetElement(message)) = message else {
        return None;
    };
    message
        .attributes
        .into_iter()
        .find_map(|attribute| match attribute {
            SetElementList::Elements(list) => list.into_iter().find_map(|item| match item {
                ListAttribute::Element(attributes) => Some(attributes),
                _ => None,
            }),
            _ => None,
        })
}

fn header(family: TableFamily) -> NetfilterHeader {
    let family = match family {
        TableFamily::Ip => NetfilterProtoFamily::IPv4,
        TableFamily::Ip6 => NetfilterProtoFamily::IPv6,
        TableFamily::Inet => NetfilterProtoFamily::Inet,
    };
    NetfilterHeader::new(family, 0, 0)
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> StateError {
    move |source| StateError::Kernel { what, source }
}

//! Entries of the kernel's connection tracking.
//!
//! The kernel reports an entry's TCP state, flags and window scales. It does not report the
//! sequence numbers and windows by which it judges packets. A new entry has no numbers: it
//! learns them from the first packet of each direction. If data is under way on the old path
//! meanwhile, the learnt number may be too low, and the kernel would call an acknowledgement of
//! bytes on the old path invalid.
//!
//! An entry is therefore installed with the kernel's flag not to judge windows, which concerns
//! no other entry. `settle` removes the flag once the kernel has found its numbers. The kernel
//! may never find them if the two directions diverge while both carry data: each end's packets
//! are then beyond the numbers learnt of the other, and the kernel learns nothing from such
//! packets. If a path carries only the data from a cutoff on, the first packets suffice.

mod attribute;
mod decode;
mod entry;
mod settle;
mod write;

use dysco_proto::KindName;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::document::Document;
use super::error::{Fault, StateError};
use super::five_tuple::FiveTuple;
use super::netlink::Netfilter;
use super::{Here, Kind, Seen, Undo};

pub use entry::{Entry, find, translated};
pub(crate) use entry::{find_many, has_answered, in_zone_0};
pub use settle::{Settled, Settling};

/// The kind of state that connection tracking holds.
pub struct Conntrack;

/// An entry of the kernel's connection tracking. Counters of packets and bytes
/// and the kernel's time of its beginning stay behind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConntrackState {
    /// The zone it is in.
    #[serde(default)]
    pub zone: Zone,
    /// It is kept when the table is full.
    pub assured: bool,
    /// Packets were seen from both ends.
    pub seen_reply: bool,
    /// Seconds until it ends by itself. The next packet sets the time-out that
    /// the new host has for the state.
    #[schemars(range(min = 1))]
    pub timeout_s: u32,
    /// Its mark.
    pub mark: u32,
    /// Its labels: 32 hexadecimal digits as memory has them, or nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = "^([0-9a-f]{32})?$"))]
    pub labels: String,
    /// State of TCP.
    pub tcp: TcpState,
}

/// A zone of connection tracking.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Its number.
    pub id: u16,
    /// Direction of the packets that are in the zone.
    #[serde(default)]
    pub direction: ZoneDirection,
}

/// Direction of the packets that are in a zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ZoneDirection {
    /// Both.
    #[default]
    Both,
    /// Packets of the end that opened the session.
    Original,
    /// Packets of the other end.
    Reply,
}

/// State of a TCP session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TcpState {
    /// Its state.
    pub state: TcpStateName,
    /// State of the end that opened the session.
    pub original: TcpEnd,
    /// State of the other end.
    pub reply: TcpEnd,
    /// The host does not judge windows yet, because the session was moved to it. Ignored by the
    /// host that installs the state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsettled: bool,
}

/// State of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TcpEnd {
    /// Its window scale; absent if it did not offer the option, which is not
    /// the same as a scale of 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 14))]
    pub window_scale: Option<u8>,
    /// It offered selective acknowledgements.
    pub sack: bool,
    /// It closed first.
    pub close_first: bool,
    /// Its windows are not judged, for the session's life.
    pub liberal: bool,
}

/// The states in which a session can be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TcpStateName {
    /// Open.
    Established,
    /// One end has closed.
    FinWait,
    /// The other has acknowledged that.
    CloseWait,
    /// Both have closed.
    LastAck,
    /// Both have acknowledged.
    TimeWait,
}

impl TcpStateName {
    const ALL: [TcpStateName; 5] = [
        TcpStateName::Established,
        TcpStateName::FinWait,
        TcpStateName::CloseWait,
        TcpStateName::LastAck,
        TcpStateName::TimeWait,
    ];

    /// The kernel's number for the state.
    const fn number(self) -> u8 {
        match self {
            TcpStateName::Established => 3,
            TcpStateName::FinWait => 4,
            TcpStateName::CloseWait => 5,
            TcpStateName::LastAck => 6,
            TcpStateName::TimeWait => 7,
        }
    }

    fn of(number: u8) -> Option<TcpStateName> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }
}

impl ConntrackState {
    /// Returns the fault of the state that holds on any host, if there is one.
    fn fault(&self) -> Option<Fault> {
        let wrong = |what: &str| Some(Fault::Malformed(what.to_owned()));
        let ends = [self.tcp.original, self.tcp.reply];
        if ends
            .iter()
            .any(|end| end.window_scale.is_some_and(|scale| scale > 14))
        {
            return wrong("a window scale is more than 14");
        }
        if self.timeout_s == 0 {
            return wrong("its time-out is over");
        }
        if self.label_bytes().is_none() {
            return wrong("its labels are not 32 hexadecimal digits");
        }
        if self.zone.id == 0 && self.zone.direction != ZoneDirection::Both {
            return wrong("zone 0 has no direction");
        }
        None
    }

    /// Returns the labels as the kernel has them, empty if there are none.
    fn label_bytes(&self) -> Option<Vec<u8>> {
        let bytes = hex::decode(&self.labels).ok()?;
        matches!(bytes.len(), 0 | 16).then_some(bytes)
    }
}

impl Kind for Conntrack {
    fn name(&self) -> KindName {
        KindName::Conntrack
    }

    fn describe(&self, schema: &mut SchemaGenerator) {
        schema.subschema_for::<ConntrackState>();
    }

    fn export(&self, here: &Here) -> Result<Vec<Document>, StateError> {
        here.entries
            .iter()
            .map(|entry| {
                let mut state = entry.state()?;
                if let Some(own) = settle::own_liberal(entry.original, entry.zone) {
                    [state.tcp.original.liberal, state.tcp.reply.liberal] = own;
                    state.tcp.unsettled = true;
                }
                Ok(Document::new(&entry.seen(), self.name(), &state))
            })
            .collect()
    }

    fn check(&self, document: &Document) -> Result<(), StateError> {
        let state = judged(document)?;
        there(document, state.zone).map(drop)
    }

    fn install(&self, document: &Document) -> Result<Undo, StateError> {
        let state = judged(document)?;
        let undo = match create(document, &state)? {
            Created::New => {
                let undo = Undo::new(take_back(document.session, state.zone));
                if let Err(error) = kept(document, &state) {
                    undo.run();
                    return Err(error);
                }
                undo
            }
            Created::WasThere => {
                update(document, &state)?;
                Undo::none()
            }
        };
        Ok(undo.settling(Settling::new(document.session, &state)))
    }

    fn remove(&self, here: &Here) -> Result<usize, StateError> {
        for entry in &here.entries {
            delete(&entry.original, entry.zone)?;
        }
        Ok(here.entries.len())
    }
}

/// Returns the state of a document, if it is valid on any host.
fn judged(document: &Document) -> Result<ConntrackState, StateError> {
    let state: ConntrackState = document.state()?;
    match state.fault() {
        Some(fault) => Err(document.refused(fault)),
        None => Ok(state),
    }
}

/// Returns the entry that is there, which must be of the same session.
fn there(document: &Document, zone: Zone) -> Result<Option<Entry>, StateError> {
    match entry::at(&document.session, zone)? {
        Some(entry) if entry.seen() != document.seen() => {
            Err(document.refused(Fault::Taken(entry.original)))
        }
        there => Ok(there),
    }
}

enum Created {
    New,
    /// One of its tuples has an entry.
    WasThere,
}

/// Creates an entry without a lookup: in most cases none is there.
fn create(document: &Document, state: &ConntrackState) -> Result<Created, StateError> {
    let flags = netlink_packet_core::NLM_F_CREATE | netlink_packet_core::NLM_F_EXCL;
    match act(write::create(&document.seen(), state), flags) {
        Ok(()) => Ok(Created::New),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(Created::WasThere),
        Err(error) => Err(not_done(document, error)),
    }
}

/// Updates the entry that is there.
fn update(document: &Document, state: &ConntrackState) -> Result<(), StateError> {
    if there(document, state.zone)?.is_none() {
        return Err(document.refused(Fault::Taken(document.translated)));
    }
    // The kernel accepts translations of new entries only.
    act(write::update(&document.seen(), state), 0).map_err(|error| not_done(document, error))?;
    kept(document, state)
}

const GONE: Fault = Fault::NotKept(
    "entry",
    "raise nf_conntrack_max, or look for who deletes entries",
);

/// Checks that the kernel kept the translation and the labels, which it may omit without an
/// error.
fn kept(document: &Document, state: &ConntrackState) -> Result<(), StateError> {
    if document.seen() == Seen::plain(document.session) && state.labels.is_empty() {
        return Ok(());
    }
    match entry::at(&document.session, state.zone)? {
        Some(entry) => entry.keeps(document, state),
        None => Err(document.refused(GONE)),
    }
}

fn take_back(session: FiveTuple, zone: Zone) -> impl FnOnce() {
    move || {
        if let Err(error) = delete(&session, zone) {
            tracing::warn!(%error, %session, "cannot take back an entry of connection tracking");
        }
    }
}

impl Undo {
    fn settling(mut self, settling: Settling) -> Undo {
        self.settling = Some(settling);
        self
    }
}

fn delete(session: &FiveTuple, zone: Zone) -> Result<(), StateError> {
    match act(write::delete(session, zone), 0) {
        // The entry ended by itself meanwhile.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        done => done.map_err(failed("delete an entry of connection tracking")),
    }
}

fn act(message: netlink_packet_netfilter::NetfilterMessage, flags: u16) -> std::io::Result<()> {
    Netfilter::with(|netfilter| netfilter.act(message, flags))
}

/// Returns the reason why an entry was not installed.
fn not_done(document: &Document, error: std::io::Error) -> StateError {
    match error.raw_os_error() {
        Some(libc::EEXIST | libc::EBUSY) => document.refused(Fault::Taken(document.translated)),
        Some(libc::EPERM) => failed("install an entry of connection tracking")(error),
        // The table is full.
        Some(libc::ENOMEM) => document.refused(GONE),
        _ => document.refused(Fault::Kernel(error.to_string())),
    }
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> StateError {
    move |source| StateError::Kernel { what, source }
}

//! Reads entries of connection tracking.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use dysco_proto::KindName;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, ConntrackMessageType, ProtoInfo, ProtoInfoTCP, Status,
    Tuple,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};

use super::attribute;
use super::decode::{five_tuple, is_empty, number, value};
use super::write::{flag, nest, tuple, zone_attributes};
use super::{ConntrackState, TcpEnd, TcpState, TcpStateName, Zone, ZoneDirection, failed};
use crate::Seen;
use crate::document::Document;
use crate::error::{Fault, StateError};
use crate::five_tuple::FiveTuple;
use crate::netlink::{Netfilter, family};

/// An entry, as the kernel holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The five-tuple of packets from the end that opened the session.
    pub original: FiveTuple,
    /// The five-tuple of packets from the other end.
    pub reply: FiveTuple,
    /// The zone of the entry.
    pub zone: Zone,
    /// Its TCP flags: of the end that opened the session, and of the other end.
    pub(super) flags: [u8; 2],
    scales: [u8; 2],
    tcp: Option<u8>,
    status: Status,
    timeout_s: u32,
    mark: u32,
    labels: Vec<u8>,
    unmovable: Option<&'static str>,
}

static ANSWERED: AtomicBool = AtomicBool::new(false);

/// True if the kernel has answered before. The first question may make it load a module.
pub(crate) fn has_answered() -> bool {
    ANSWERED.load(Ordering::Relaxed)
}

/// Returns the entries of a session, which either end may have named, before or after
/// translation. Reads zone 0 first, and all other zones only if zone 0 has no entry.
pub fn find(session: &FiveTuple) -> Result<Vec<Entry>, StateError> {
    if let Some(entry) = in_zone_0(session)? {
        return Ok(vec![entry]);
    }
    let named = [*session, session.reversed()];
    let mut found: Vec<Entry> = Vec::new();
    for name in &named {
        for reply in [false, true] {
            for entry in in_any_zone(name, reply)? {
                if !found.contains(&entry) {
                    found.push(entry);
                }
            }
        }
    }
    Ok(found)
}

/// Returns the entries of many sessions. For more than a few, asks the kernel once for all its
/// entries: each question searches the whole table.
pub(crate) fn find_many(sessions: &[FiveTuple]) -> Result<Vec<Vec<Entry>>, StateError> {
    const FEW: usize = 2;
    if sessions.len() <= FEW {
        return sessions.iter().map(find).collect();
    }
    let mut found = Vec::with_capacity(sessions.len());
    for session in sessions {
        found.push(Vec::from_iter(in_zone_0(session)?));
    }
    let mut missing = HashMap::new();
    for (at, session) in sessions.iter().enumerate() {
        if found[at].is_empty() {
            missing.extend([(*session, at), (session.reversed(), at)]);
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    for entry in all()? {
        let at = |tuple| missing.get(tuple).copied();
        if let Some(at) = at(&entry.original).or_else(|| at(&entry.reply)) {
            found[at].push(entry);
        }
    }
    Ok(found)
}

/// Returns all entries, of both families.
fn all() -> Result<Vec<Entry>, StateError> {
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let question = NetfilterMessage::new(header, ConntrackMessage::Get(Vec::new()));
    ask(|netfilter| netfilter.dump(question))
}

/// Returns the entry of a session in zone 0, where nearly all are. The kernel looks it up
/// without a search.
pub(crate) fn in_zone_0(session: &FiveTuple) -> Result<Option<Entry>, StateError> {
    match at(session, Zone::default())? {
        None => at(&session.reversed(), Zone::default()),
        found => Ok(found),
    }
}

/// Returns the five-tuple under which packets of a socket of this host leave it, if a NAT of
/// this host translates them. `socket` is the five-tuple of packets that the socket sends.
pub fn translated(socket: &FiveTuple) -> Result<Option<FiveTuple>, StateError> {
    let Some(entry) = at(socket, Zone::default())? else {
        return Ok(None);
    };
    let other = match entry.original == *socket {
        true => entry.reply,
        false => entry.original,
    };
    let outside = other.reversed();
    Ok((outside != *socket).then_some(outside))
}

/// Returns the entry that has this tuple, in either direction.
pub(super) fn at(session: &FiveTuple, zone: Zone) -> Result<Option<Entry>, StateError> {
    let mut attributes = vec![ConntrackAttribute::CtaTupleOrig(tuple(
        session, zone, false,
    ))];
    attributes.extend(zone_attributes(zone));
    let found = ask(|netfilter| netfilter.get(get(session, attributes)))?;
    Ok(found.into_iter().next())
}

/// Returns the entries with these ports and addresses. The kernel filters by the ports, and this
/// function by the addresses: kernels compare IPv6 addresses incorrectly.
fn in_any_zone(session: &FiveTuple, reply: bool) -> Result<Vec<Entry>, StateError> {
    /// The protocol and both ports.
    const PORTS: u32 = 0b11_1000;
    let (kind, flags) = if reply {
        (2, [0, PORTS])
    } else {
        (1, [PORTS, 0])
    };
    let flags: Vec<DefaultNla> = flags
        .iter()
        .zip(1..)
        .map(|(flags, kind)| DefaultNla::new(kind, flags.to_ne_bytes().to_vec()))
        .collect();
    let name = nest(kind, &tuple(session, Zone::default(), reply));
    // Attributes that the library does not know lose their nested flag inside its own
    // attributes.
    let question = ConntrackMessage::Other {
        message_type: ConntrackMessageType::Get.into(),
        attributes: vec![name, nest(attribute::FILTER, &flags)],
    };
    let header = NetfilterHeader::new(family(session.source.ip()), 0, 0);
    let mut entries = ask(|netfilter| netfilter.dump(NetfilterMessage::new(header, question)))?;
    entries.retain(|entry| match reply {
        true => entry.reply == *session,
        false => entry.original == *session,
    });
    Ok(entries)
}

fn get(session: &FiveTuple, attributes: Vec<ConntrackAttribute>) -> NetfilterMessage {
    let header = NetfilterHeader::new(family(session.source.ip()), 0, 0);
    NetfilterMessage::new(header, ConntrackMessage::Get(attributes))
}

fn ask(
    question: impl FnOnce(&mut Netfilter) -> std::io::Result<Vec<NetfilterMessageInner>>,
) -> Result<Vec<Entry>, StateError> {
    let answers = Netfilter::with(question);
    let answers = answers.map_err(failed("read connection tracking"))?;
    ANSWERED.store(true, Ordering::Relaxed);
    Ok(answers.into_iter().filter_map(Entry::read).collect())
}

impl Entry {
    /// Reads the entry of a message; `None` if it is not of a TCP session.
    fn read(message: NetfilterMessageInner) -> Option<Entry> {
        let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = message else {
            return None;
        };
        let mut entry = Entry::empty();
        let (mut original, mut reply) = (None, None);
        for attribute in attributes {
            match attribute {
                ConntrackAttribute::CtaTupleOrig(parts) => {
                    original = five_tuple(&parts);
                    entry.read_zone(&parts, ZoneDirection::Original);
                }
                ConntrackAttribute::CtaTupleReply(parts) => {
                    reply = five_tuple(&parts);
                    entry.read_zone(&parts, ZoneDirection::Reply);
                }
                ConntrackAttribute::CtaProtoInfo(infos) => entry.read_tcp(&infos),
                ConntrackAttribute::CtaStatus(status) => entry.status = status,
                ConntrackAttribute::CtaTimeout(seconds) => entry.timeout_s = seconds,
                ConntrackAttribute::CtaMark(mark) => entry.mark = mark,
                ConntrackAttribute::Other(other) => entry.read_other(&other),
                _ => {}
            }
        }
        (entry.original, entry.reply) = (original?, reply?);
        Some(entry)
    }

    fn empty() -> Entry {
        let nobody = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0);
        let nothing = FiveTuple {
            source: nobody,
            destination: nobody,
        };
        Entry {
            original: nothing,
            reply: nothing,
            zone: Zone::default(),
            flags: [0; 2],
            scales: [0; 2],
            tcp: None,
            status: Status::empty(),
            timeout_s: 0,
            mark: 0,
            labels: Vec::new(),
            unmovable: None,
        }
    }

    fn read_tcp(&mut self, infos: &[ProtoInfo]) {
        for info in infos {
            let ProtoInfo::TCP(parts) = info else {
                continue;
            };
            for part in parts {
                match part {
                    ProtoInfoTCP::State(state) => self.tcp = Some(*state),
                    ProtoInfoTCP::OriginalWindowScale(scale) => self.scales[0] = *scale,
                    ProtoInfoTCP::ReplyWindowScale(scale) => self.scales[1] = *scale,
                    ProtoInfoTCP::OriginalFlags(flags) => self.flags[0] = flags.flags,
                    ProtoInfoTCP::ReplyFlags(flags) => self.flags[1] = flags.flags,
                    _ => {}
                }
            }
        }
    }

    fn read_zone(&mut self, parts: &[Tuple], direction: ZoneDirection) {
        for part in parts {
            if let Tuple::Other(nla) = part
                && nla.kind() == attribute::TUPLE_ZONE
                && let Some(id) = number(nla)
            {
                self.zone = Zone { id, direction };
            }
        }
    }

    fn read_other(&mut self, nla: &DefaultNla) {
        let unmovable = match nla.kind() & netlink_packet_core::NLA_TYPE_MASK {
            attribute::ZONE => {
                self.zone.id = number(nla).unwrap_or_default();
                None
            }
            attribute::LABELS => {
                self.labels = value(nla);
                None
            }
            attribute::HELPER => Some("a session with a helper (such as for FTP)"),
            attribute::MASTER => Some("a session that belongs to another"),
            attribute::SEQUENCE_ORIGINAL | attribute::SEQUENCE_REPLY => {
                Some("a session whose sequence numbers the firewall changes")
            }
            // A new entry may have this attribute, without a value.
            attribute::SYNPROXY if is_empty(nla) => None,
            attribute::SYNPROXY => Some("a session that a SYN proxy opened"),
            attribute::SECURITY => Some("a security mark"),
            _ => None,
        };
        self.unmovable = self.unmovable.or(unmovable);
    }

    /// Returns the session's two five-tuples.
    pub fn seen(&self) -> Seen {
        Seen {
            session: self.original,
            translated: self.reply.reversed(),
        }
    }

    /// Returns the part of the entry that can travel.
    pub(super) fn state(&self) -> Result<ConntrackState, StateError> {
        let unmovable = |what| StateError::Unmovable {
            kind: KindName::Conntrack,
            session: self.original,
            what,
        };
        if let Some(what) = self.unmovable {
            return Err(unmovable(what));
        }
        let state = self.tcp.and_then(TcpStateName::of);
        let state = state.ok_or(unmovable("a session that is not open yet, or was reset"))?;
        let labels = match self.labels.iter().any(|&byte| byte != 0) {
            true => hex::encode(&self.labels),
            false => String::new(),
        };
        Ok(ConntrackState {
            zone: self.zone,
            assured: self.status.contains(Status::Assured),
            seen_reply: self.status.contains(Status::SeenReply),
            timeout_s: self.timeout_s.max(1),
            mark: self.mark,
            labels,
            tcp: TcpState {
                state,
                original: self.end(0),
                reply: self.end(1),
                unsettled: false,
            },
        })
    }

    fn end(&self, at: usize) -> TcpEnd {
        let has = |bit| self.flags[at] & bit != 0;
        TcpEnd {
            window_scale: has(flag::WINDOW_SCALE).then_some(self.scales[at]),
            sack: has(flag::SACK),
            close_first: has(flag::CLOSE_FIRST),
            liberal: has(flag::LIBERAL),
        }
    }

    /// Checks that the entry is the one that was to be installed.
    pub(super) fn keeps(
        &self,
        document: &Document,
        state: &ConntrackState,
    ) -> Result<(), StateError> {
        if self.seen() != document.seen() {
            return Err(document.refused(Fault::Taken(document.translated)));
        }
        let labels = state.label_bytes().unwrap_or_default();
        if !labels.is_empty() && self.labels != labels {
            return Err(document.refused(Fault::NotKept(
                "labels",
                "load the same ruleset on both firewalls: a kernel keeps labels only if a rule names one",
            )));
        }
        Ok(())
    }
}

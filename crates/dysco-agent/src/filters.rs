//! The tc filters of an interface, in the order in which the kernel runs them.

use std::io;

use aya::programs::TcAttachType;
use netlink_packet_core::Nla;
use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcHeader, TcMessage, TcOption};

use crate::netlink;

/// The parents of the filters of a clsact qdisc (`TC_H_CLSACT` with `TC_H_MIN_INGRESS` and
/// `TC_H_MIN_EGRESS`, linux/pkt_sched.h).
const MAJOR: u16 = 0xffff;
const INGRESS: u16 = 0xfff2;
const EGRESS: u16 = 0xfff3;
/// The attribute with the name of a program (`TCA_BPF_NAME`, linux/pkt_cls.h).
const BPF_NAME: u16 = 7;

/// A tc filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Filter {
    /// The preference: filters with a lower one run first.
    pub priority: u16,
    /// Names a filter among those of the same preference.
    pub handle: u32,
    /// Its program's name, or its kind, such as `flower`.
    pub name: String,
}

/// Returns the filters of one side of an interface, those that run first in front.
///
/// # Errors
/// If the kernel does not list them.
pub(crate) fn filters(interface: &str, side: TcAttachType) -> io::Result<Vec<Filter>> {
    let index = if_nametoindex(interface)?;
    let minor = match side {
        TcAttachType::Egress => EGRESS,
        TcAttachType::Ingress | TcAttachType::Custom(_) => INGRESS,
    };
    let parent = TcHandle {
        major: MAJOR,
        minor,
    };
    let mut request = TcMessage::default();
    request.header.index = index.cast_signed();
    request.header.parent = parent;
    let answers = netlink::list(RouteNetlinkMessage::GetTrafficFilter(request))?;
    let filters = answers.iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewTrafficFilter(message) => read(message),
        _ => None,
    });
    Ok(filters.collect())
}

/// Reads a filter; `None` for the message that only announces the filters of a preference.
fn read(message: &TcMessage) -> Option<Filter> {
    let TcHeader { info, handle, .. } = message.header;
    let handle = u32::from(handle);
    let attributes = message.attributes.iter();
    let kind = attributes.clone().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.clone()),
        _ => None,
    });
    let name = attributes.flat_map(options).find_map(program);
    (handle != 0).then(|| Filter {
        priority: (info >> 16) as u16,
        handle,
        name: name.or(kind).unwrap_or_default(),
    })
}

fn options(attribute: &TcAttribute) -> &[TcOption] {
    match attribute {
        TcAttribute::Options(options) => options,
        _ => &[],
    }
}

/// Returns a program's name: bytes up to a zero.
fn program(option: &TcOption) -> Option<String> {
    let TcOption::Other(attribute) = option else {
        return None;
    };
    (attribute.kind() == BPF_NAME).then(|| {
        let mut value = vec![0; attribute.value_len()];
        attribute.emit_value(&mut value);
        let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    })
}

//! The tc filters of an interface, in the order in which the kernel runs them.

use std::io;

use aya::programs::TcAttachType;
use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{
    TcAttribute, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption,
};

use crate::netlink;

/// The parents of the filters of a clsact qdisc (`TC_H_CLSACT` with `TC_H_MIN_INGRESS` and
/// `TC_H_MIN_EGRESS`, linux/pkt_sched.h).
const MAJOR: u16 = 0xffff;
const INGRESS: u16 = 0xfff2;
const EGRESS: u16 = 0xfff3;

/// A tc filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Filter {
    /// The preference: filters with a lower one run first.
    pub priority: u16,
    /// Names a filter among those of the same preference.
    pub handle: u32,
    /// Its program's name, or its kind, such as `flower`.
    pub name: String,
    /// The kernel's number of its program, if it has one.
    pub program: Option<u32>,
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
    let options = attributes.flat_map(options);
    let name = options.clone().find_map(|option| match option {
        TcFilterBpfOption::ProgName(name) => Some(name.clone()),
        _ => None,
    });
    let program = options.clone().find_map(|option| match option {
        TcFilterBpfOption::ProgId(id) => Some(*id),
        _ => None,
    });
    (handle != 0).then(|| Filter {
        priority: (info >> 16) as u16,
        handle,
        name: name.or(kind).unwrap_or_default(),
        program,
    })
}

/// Returns the options of a filter that runs a program.
fn options(attribute: &TcAttribute) -> impl Iterator<Item = &TcFilterBpfOption> + Clone {
    let all = match attribute {
        TcAttribute::Options(options) => options.as_slice(),
        _ => &[],
    };
    all.iter().filter_map(|option| match option {
        TcOption::Bpf(option) => Some(option),
        _ => None,
    })
}

//! Queueing disciplines of interfaces.

use std::io;

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use crate::netlink;

/// The discipline that sends each packet at its departure time.
const ON_TIME: &str = "fq";
/// The discipline of interfaces with several queues, each of which has a discipline of its own.
const SEVERAL: &str = "mq";

/// Returns true if all queues of an interface send packets at their departure times.
///
/// # Errors
/// If the kernel does not list its queueing disciplines.
pub(crate) fn sends_on_time(interface: u32) -> io::Result<bool> {
    let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
    let answers = netlink::list(request)?;
    let all: Vec<Qdisc> = answers
        .iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewQueueDiscipline(message) => Some(message),
            _ => None,
        })
        .filter(|message| message.header.index.cast_unsigned() == interface)
        .map(read)
        .collect();
    Ok(on_time(&all))
}

/// A queueing discipline.
struct Qdisc {
    kind: String,
    handle: TcHandle,
    parent: TcHandle,
}

fn read(message: &TcMessage) -> Qdisc {
    let mut attributes = message.attributes.iter();
    let kind = attributes.find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.clone()),
        _ => None,
    });
    Qdisc {
        kind: kind.unwrap_or_default(),
        handle: message.header.handle,
        parent: message.header.parent,
    }
}

fn on_time(all: &[Qdisc]) -> bool {
    let Some(root) = all.iter().find(|qdisc| qdisc.parent == TcHandle::ROOT) else {
        return false;
    };
    if root.kind != SEVERAL {
        return root.kind == ON_TIME;
    }
    let mut queues = all
        .iter()
        .filter(|qdisc| qdisc.parent.major == root.handle.major && qdisc.parent != TcHandle::ROOT)
        .peekable();
    queues.peek().is_some() && queues.all(|queue| queue.kind == ON_TIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qdisc(kind: &str, handle: (u16, u16), parent: (u16, u16)) -> Qdisc {
        let of = |(major, minor)| TcHandle { major, minor };
        Qdisc {
            kind: kind.into(),
            handle: of(handle),
            parent: of(parent),
        }
    }

    const ROOT: (u16, u16) = (0xffff, 0xffff);

    #[test]
    fn only_fq_sends_on_time() {
        assert!(on_time(&[qdisc("fq", (1, 0), ROOT)]));
        assert!(!on_time(&[qdisc("fq_codel", (1, 0), ROOT)]));
        assert!(!on_time(&[]));
        let filters = qdisc("clsact", (0xffff, 0), (0xffff, 0xfff1));
        assert!(!on_time(&[filters]), "a place for filters has no queue");
    }

    #[test]
    fn all_queues_of_an_interface_have_to() {
        let mq = || qdisc("mq", (0x8001, 0), ROOT);
        let queue = |kind, minor| qdisc(kind, (0, 0), (0x8001, minor));
        assert!(on_time(&[mq(), queue("fq", 1), queue("fq", 2)]));
        assert!(!on_time(&[mq(), queue("fq", 1), queue("pfifo_fast", 2)]));
        assert!(!on_time(&[mq()]));
    }

    #[test]
    fn the_loopback_interface_has_no_queue() {
        let index = nix::net::if_::if_nametoindex("lo").unwrap();
        assert!(!sends_on_time(index).unwrap());
    }
}

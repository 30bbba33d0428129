//! The new path is opened before it is used: the left anchor sends a SYN on
//! it, which the right anchor's data plane answers. A path that does not carry
//! it is refused while nothing has changed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dysco_common::session::offer;
use dysco_common::{FlowKey, Session, State};
use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader, TcpOptionElement};
use socket2::{Domain, Protocol, Socket, Type};

use super::{Answer, Engine};
use crate::protocol::{ChangeId, HostId, Message, Reason};

/// When SYNs are sent after the first, and when the path is given up.
const REPEAT: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(500),
];
/// IPPROTO_RAW: the header is ours, and nothing is received.
const RAW: i32 = 255;
pub(super) const HOP_LIMIT: u8 = 64;

/// A `SetUpAck` that waits for the path to open.
pub(super) struct Probe {
    from: Vec<HostId>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Engine {
    /// The right anchor is prepared: its word counts once the path has opened.
    pub(super) fn probe(&mut self, change: ChangeId, from: &[HostId]) {
        let now = self.now();
        let ready = Message::SetUpAck { change };
        let Some((slot, key)) = self.unopened(change) else {
            return self.machine.handle_message(now, from, ready);
        };
        if self.held.get(&change).is_some_and(|h| h.probe.is_some()) {
            return;
        }
        let syn = syn(&self.agent.session(slot), &key);
        let answers = self.answers.clone();
        let task = tokio::spawn(async move {
            for wait in REPEAT {
                if let Err(error) = send(&syn, key.remote()) {
                    tracing::warn!(path = ?key, %error, "cannot send a SYN on a new path");
                }
                tokio::time::sleep(wait).await;
            }
            let _ = answers.send(Answer::Unopened(change));
        });
        if let Some(held) = self.held.get_mut(&change) {
            held.probe = Some(Probe {
                from: from.to_vec(),
                task,
            });
        }
    }

    /// The slot and new path of a change that is prepared here and not opened.
    fn unopened(&self, change: ChangeId) -> Option<(u32, FlowKey)> {
        let held = self.held.get(&change)?;
        let slot = self.slot_of(change)?;
        let s = self.agent.session(slot);
        let waits = s.state == State::TwoPaths as u32 && s.two.cut_set == 0 && !held.opened;
        waits.then_some((slot, held.new?))
    }

    /// The far end has answered on the new path of this slot's session.
    pub(super) fn path_open(&mut self, slot: u32) {
        let here = |h: &&mut super::Held| h.slot.is_some_and(|(s, _)| s == slot);
        let found = self
            .held
            .iter_mut()
            .map(|(c, h)| (*c, h))
            .find(|(_, h)| here(h));
        let Some((change, held)) = found else { return };
        held.opened = true;
        if let Some(probe) = held.probe.take() {
            let now = self.now();
            self.machine
                .handle_message(now, &probe.from, Message::SetUpAck { change });
        }
    }

    /// No answer came.
    pub(super) fn path_unopened(&mut self, change: ChangeId) {
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        let Some(probe) = held.probe.take() else {
            return;
        };
        let path = held.new.map_or(String::new(), |key| format!("{key:?}"));
        let reason = Reason::NewPathUnusable(format!(
            "no answer to a SYN on {path}: something between the anchors drops it"
        ));
        let now = self.now();
        self.machine
            .handle_message(now, &probe.from, Message::SetUpNack { change, reason });
    }
}

/// A SYN as the session would have sent it, with its numbers and options of
/// now: firewalls on the path then know the scale of the windows that follow.
fn syn(s: &Session, key: &FlowKey) -> Vec<u8> {
    let mut tcp = TcpHeader::new(
        key.local().port(),
        key.remote().port(),
        s.snd_max
            .wrapping_add(s.translation.seq_out)
            .wrapping_sub(1),
        u16::MAX,
    );
    tcp.syn = true;
    let has = |flag| s.local.flags & s.remote.flags & flag != 0;
    let mut options = vec![TcpOptionElement::MaximumSegmentSize(s.local.mss)];
    if has(offer::WSCALE) {
        options.push(TcpOptionElement::WindowScale(
            s.translation.wscale_local_far,
        ));
    }
    if has(offer::SACK) {
        options.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
    }
    if has(offer::TIMESTAMPS) {
        let tsval = s.tsval_out.wrapping_add(s.translation.ts_out);
        options.push(TcpOptionElement::Timestamp(tsval, 0));
    }
    // Twenty bytes at most, of forty.
    let _ = tcp.set_options(&options);
    // As long as the longest segment that will come, and comes back so: a path
    // too narrow for that is refused, since no router's word about it would
    // find its socket. The MSS counts neither header (RFC 6691).
    let options = tcp.header_len() - TcpHeader::MIN_LEN;
    let longest = usize::from(s.local.mss.min(s.remote.mss)).saturating_sub(options);
    match (key.local().ip(), key.remote().ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => packet(
            PacketBuilder::ipv4(from.octets(), to.octets(), HOP_LIMIT).tcp_header(tcp),
            longest,
        ),
        (from, to) => {
            let octets = |ip: IpAddr| dysco_common::Addr::from(ip).octets();
            packet(
                PacketBuilder::ipv6(octets(from), octets(to), HOP_LIMIT).tcp_header(tcp),
                longest,
            )
        }
    }
}

pub(super) fn packet(builder: PacketBuilderStep<TcpHeader>, payload: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(builder.size(payload));
    // Writing into a vector does not fail; an empty packet is not sent.
    if builder.write(&mut bytes, &vec![0; payload]).is_err() {
        bytes.clear();
    }
    bytes
}

pub(super) fn send(packet: &[u8], to: SocketAddr) -> io::Result<()> {
    send_by(packet, to, None)
}

/// The same, by one interface and no other.
pub(super) fn send_by(packet: &[u8], to: SocketAddr, interface: Option<&str>) -> io::Result<()> {
    let domain = if to.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    // In a raw IPv6 address a port would name a protocol.
    socket
        .send_to(packet, &SocketAddr::new(to.ip(), 0).into())
        .map(drop)
}

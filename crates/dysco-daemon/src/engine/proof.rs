//! Proof, before replies go directly to a client, that they would arrive. The server's host sends
//! the client, under this host's address, a segment that the client has acknowledged before. A
//! client that receives it discards it and acknowledges at once, to the apparent sender, with a
//! D-SACK block of exactly those numbers (RFC 2883). Nothing else makes the client send that block.
//!
//! No rate limit applies to such answers, as it does to those to segments without data. A client
//! without D-SACK proves nothing.

use std::io::{self, Read};

use dysco_common::session::offer;
use dysco_common::{FlowKey, Session};
use dysco_explain::Cause;
use dysco_proto::{ChangeId, HostEvent, Probe, Reason, Subsession, Watched};
use etherparse::{LaxSlicedPacket, TcpOptionElement, TransportSlice};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::measure::{accepted, facts, known, opened};
use super::{Answer, Plane, ProxyChanges, Returns};

/// Number of bytes of options of a segment with timestamps.
const TIMESTAMPS: u16 = 12;
/// Number of bytes that are looked at of a packet; its headers are shorter.
const SNAP: usize = 256;

/// Task that waits for the client's answer. Dropping it ends the wait.
pub(super) struct ClientWatch(tokio::task::JoinHandle<()>);

impl Drop for ClientWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ProxyChanges {
    /// Begins to watch for the client's answer, before anything is sent to the client.
    pub(super) fn watch_client(&mut self, plane: &mut Plane, change: ChangeId, sub: &Subsession) {
        let result = self.watch_for_answer(plane, change, sub);
        plane.tell_machine(HostEvent::Watching { change, result });
    }

    fn watch_for_answer(
        &mut self,
        plane: &Plane,
        change: ChangeId,
        sub: &Subsession,
    ) -> Result<Watched, Reason> {
        let relay = plane.relay_of(sub);
        relay.map_or(Ok(()), |slots| plane.has_none_beside(slots))?;
        let (slot, a, b) = match relay {
            Some([a, b]) => (a, plane.agent.session(a), plane.agent.session(b)),
            None => {
                let (pair, ..) = plane.measurable(sub, true)?;
                let of = |key| plane.agent.find(key).ok_or(Reason::NotTracked(*sub));
                let (slot, other) = (of(&pair.a.key)?, of(&pair.b.key)?);
                (slot, plane.agent.session(slot), plane.agent.session(other))
            }
        };
        let (sub_a, sub_b) = (accepted(&a.key), opened(&b.key));
        let of = if relay.is_some() {
            |s: &Session, _: &Subsession| known(s)
        } else {
            facts
        };
        of(&a, &sub_a)?;
        of(&b, &sub_b)?;
        if a.local.flags & a.remote.flags & offer::SACK == 0 {
            let why =
                "the client has not agreed to SACK, so that it cannot report what it receives";
            return Err(Reason::NotProven(why.into()));
        }
        let probe = probe(&a, &b, relay.is_some());
        let client_watch = plane.watch_for_client(change, a.key, &probe);
        let client_watch = client_watch.map_err(|e| Reason::Failed(Cause::new(e)))?;
        let held = self.held.entry(change).or_default();
        held.slot = Some((slot, a.created_ns));
        held.own = Some(sub_a);
        held.client_watch = Some(client_watch);
        Ok(Watched {
            subsession_a: sub_a,
            subsession_b: sub_b,
            probe,
            relay: relay.map(|_| b.translation),
        })
    }
}

impl Plane {
    fn watch_for_client(
        &self,
        change: ChangeId,
        client: FlowKey,
        probe: &Probe,
    ) -> io::Result<ClientWatch> {
        let tap = Tap::open(&client)?;
        // SAFETY: the tap closes its socket when it is dropped, and not before.
        let socket = unsafe { AsyncFd::register_with_interest(tap, Interest::READABLE) }?;
        let (answers, block) = (self.answers.clone(), block(probe));
        let task = tokio::spawn(async move {
            if answered(&socket, &client, block).await.is_ok() {
                let _ = answers.send(Answer::Event(HostEvent::Proved { change }));
            }
        });
        Ok(ClientWatch(task))
    }
}

impl Returns {
    /// Records that replies of this session bypass this host from now on.
    pub(super) fn returned(&mut self, plane: &Plane, sub: &Subsession) {
        if let Some([a, b]) = plane.relay_of(sub) {
            plane.agent.set_returns(a, true);
            self.passed_by(b, &plane.agent.session(b));
        }
    }
}

/// Returns the numbers of a segment that the client has acknowledged already. It is as long as the
/// longest that will follow: a path too narrow for that proves nothing.
fn probe(a: &Session, b: &Session, relays: bool) -> Probe {
    let timestamps = a.local.flags & a.remote.flags & offer::TIMESTAMPS != 0;
    let options = if timestamps { TIMESTAMPS } else { 0 };
    let longest = b.local.mss.min(a.remote.mss);
    // Number that the server has acknowledged, in the client's numbers.
    let relayed = b.rcv_ack.wrapping_sub(b.translation.seq_in);
    Probe {
        end: a.rcv_ack,
        ack: if relays { relayed } else { a.snd_ack },
        clock: timestamps.then_some((a.tsval_out, a.tsval_in)),
        len: longest.saturating_sub(options).max(1),
    }
}

/// Returns the D-SACK block that answers the probe.
fn block(probe: &Probe) -> (u32, u32) {
    let begin = probe.end.wrapping_sub(u32::from(probe.len));
    (begin, probe.end)
}

async fn answered(tap: &AsyncFd<Tap>, client: &FlowKey, block: (u32, u32)) -> io::Result<()> {
    let mut packet = [0; SNAP];
    loop {
        let mut ready = tap.readable().await?;
        match ready.try_io(|tap| tap.get_ref().read(&mut packet)) {
            Ok(Ok(len)) if answers(packet.get(..len).unwrap_or_default(), client, block) => {
                return Ok(());
            }
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
        }
    }
}

/// Returns true if the packet is the client's report that it received those numbers a second time.
fn answers(packet: &[u8], client: &FlowKey, block: (u32, u32)) -> bool {
    let Ok(packet) = LaxSlicedPacket::from_ip(packet) else {
        return false;
    };
    let (from, to) = match &packet.net {
        Some(etherparse::LaxNetSlice::Ipv4(ip)) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        Some(etherparse::LaxNetSlice::Ipv6(ip)) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        _ => return false,
    };
    let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
        return false;
    };
    let ports = (tcp.source_port(), tcp.destination_port());
    let (remote, local) = (client.remote(), client.local());
    if (from, to) != (remote.ip(), local.ip()) || ports != (remote.port(), local.port()) {
        return false;
    }
    // The first block is the duplicate.
    tcp.options_iterator().flatten().any(|option| {
        matches!(option, TcpOptionElement::SelectiveAcknowledgement(first, _) if first == block)
    })
}

/// Socket that gets a copy of a client's packets, limited to those with options.
struct Tap(Option<Socket>);

impl Tap {
    fn open(client: &FlowKey) -> io::Result<Tap> {
        // A tap of one protocol would come after the data plane, which takes a relayed packet away.
        let every = libc::ETH_P_ALL as u16;
        let protocol = Protocol::from(i32::from(every.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol))?;
        socket.attach_filter(&filter(client))?;
        socket.set_nonblocking(true)?;
        Ok(Tap(Some(socket)))
    }

    fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            Some(socket) => (&*socket).read(packet),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl std::os::fd::AsRawFd for Tap {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_ref().map_or(-1, std::os::fd::AsRawFd::as_raw_fd)
    }
}

impl Drop for Tap {
    /// Closes the socket on a thread: the kernel waits until no processor uses it any more.
    fn drop(&mut self) {
        let socket = self.0.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(socket));
        }
    }
}

/// Returns a classic BPF filter: TCP with options between the two, offsets from the IP header.
fn filter(client: &FlowKey) -> Vec<SockFilter> {
    let ports = u32::from(client.remote().port()) << 16 | u32::from(client.local().port());
    let (words, header) = addresses(client);
    let load = |size: u32, from: u32, at: u32| {
        SockFilter::new((libc::BPF_LD | size | from) as u16, 0, 0, at)
    };
    // Each test is two instructions, and fails to the last one.
    let tests = words.len() + 2;
    let mut code = Vec::new();
    let mut left = tests;
    let mut test =
        |code: &mut Vec<SockFilter>, load: SockFilter, how: u32, value: u32, extra: u8| {
            left -= 1;
            let to_end = (2 * left) as u8 + 1 + extra;
            code.push(load);
            code.push(SockFilter::new(
                (libc::BPF_JMP | how | libc::BPF_K) as u16,
                0,
                to_end,
                value,
            ));
        };
    let shift = u8::from(header.is_none());
    for (at, word) in words {
        test(
            &mut code,
            load(libc::BPF_W, libc::BPF_ABS, at),
            libc::BPF_JEQ,
            word,
            shift,
        );
    }
    let from = match header {
        Some(_) => libc::BPF_ABS,
        None => {
            // The length of an IPv4 header.
            let length = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
            code.push(SockFilter::new(length, 0, 0, 0));
            libc::BPF_IND
        }
    };
    let at = header.unwrap_or(0);
    test(
        &mut code,
        load(libc::BPF_W, from, at),
        libc::BPF_JEQ,
        ports,
        0,
    );
    // A header of more than five words.
    test(
        &mut code,
        load(libc::BPF_B, from, at + 12),
        libc::BPF_JGE,
        0x60,
        0,
    );
    code.push(SockFilter::new(libc::BPF_RET as u16, 0, 0, SNAP as u32));
    code.push(SockFilter::new(libc::BPF_RET as u16, 0, 0, 0));
    code
}

/// Returns the words of the two addresses in the IP header, with their offsets, and the length of
/// the header; `None` if its length is in the packet.
fn addresses(client: &FlowKey) -> (Vec<(u32, u32)>, Option<u32>) {
    match (client.remote().ip(), client.local().ip()) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
            (vec![(12, from.into()), (16, to.into())], None)
        }
        (from, to) => {
            let from = words(from).into_iter().zip(0..);
            let to = words(to).into_iter().zip(4..);
            let at = |(word, i): (u32, u32)| (8 + 4 * i, word);
            (from.chain(to).map(at).collect(), Some(40))
        }
    }
}

fn words(ip: std::net::IpAddr) -> [u32; 4] {
    let bytes = dysco_common::Addr::from(ip).octets();
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |w, b| w << 8 | u32::from(*b));
    }
    words
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn client() -> FlowKey {
        let (local, remote) = (([10, 0, 2, 1], 8080), ([10, 0, 1, 1], 40_000));
        FlowKey::new(local.into(), remote.into())
    }

    fn ack(from: u8, port: u16, blocks: &[TcpOptionElement]) -> Vec<u8> {
        let tcp = PacketBuilder::ipv4([10, 0, from, 1], [10, 0, 2, 1], 64)
            .tcp(port, 8080, 7, 1000)
            .ack(500)
            .options(blocks)
            .unwrap();
        let mut packet = Vec::new();
        tcp.write(&mut packet, &[]).unwrap();
        packet
    }

    #[test]
    fn only_the_clients_own_duplicate_is_an_answer() {
        let sack = |first, rest| TcpOptionElement::SelectiveAcknowledgement(first, rest);
        let none = [None, None, None];
        let clock = TcpOptionElement::Timestamp(1, 2);
        let block = (u32::MAX - 99, 400);
        let reported = [clock.clone(), sack(block, none)];
        assert!(answers(&ack(1, 40_000, &reported), &client(), block));
        assert!(!answers(&ack(3, 40_000, &reported), &client(), block));
        assert!(!answers(&ack(1, 40_001, &reported), &client(), block));
        assert!(!answers(&ack(1, 40_000, &[clock]), &client(), block));
        // A separate hole, which happens to end there.
        let hole = [sack((300, 400), [Some(block), None, None])];
        assert!(!answers(&ack(1, 40_000, &hole), &client(), block));
        assert!(!answers(&[0x45, 0, 1], &client(), block));
    }
}

//! Questions to the kernel's netfilter, and its answers.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::TimeVal;

/// Seconds to wait for an answer. The kernel answers at once; a longer time means that an answer
/// was lost.
const PATIENCE_S: i64 = 2;
/// Greatest number of bytes in a datagram of answers.
const BUFFER: usize = 64 * 1024;
/// Subsystem number that a transaction of nftables carries.
const NFTABLES: u16 = 10;

thread_local! {
    static KEPT: Cell<Option<Netfilter>> = const { Cell::new(None) };
}

/// A socket for questions and transactions, one at a time.
pub(crate) struct Netfilter {
    socket: Socket,
    sequence: u32,
    /// Buffer of the last datagram received. A new buffer each time would make the allocator
    /// tidy up.
    received: Vec<u8>,
}

impl Netfilter {
    /// Works with the calling thread's socket. The socket is in the network namespace that the
    /// thread was in at its first question. After an error another socket is opened, because
    /// answers may be left in this one.
    pub(crate) fn with<T>(work: impl FnOnce(&mut Netfilter) -> io::Result<T>) -> io::Result<T> {
        let mut netfilter = match KEPT.take() {
            Some(kept) => kept,
            None => Netfilter::open()?,
        };
        let done = work(&mut netfilter)?;
        KEPT.set(Some(netfilter));
        Ok(done)
    }

    fn open() -> io::Result<Netfilter> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(PATIENCE_S, 0))?;
        Ok(Netfilter {
            socket,
            sequence: 0,
            received: Vec::with_capacity(BUFFER),
        })
    }

    /// Asks for the objects that match; returns none if there is none.
    pub(crate) fn get(
        &mut self,
        message: NetfilterMessage,
    ) -> io::Result<Vec<NetfilterMessageInner>> {
        match self.ask(message, NLM_F_ACK) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
            answer => answer,
        }
    }

    /// Asks for all objects.
    pub(crate) fn dump(
        &mut self,
        message: NetfilterMessage,
    ) -> io::Result<Vec<NetfilterMessageInner>> {
        self.ask(message, NLM_F_DUMP)
    }

    /// Performs a change.
    pub(crate) fn act(&mut self, message: NetfilterMessage, flags: u16) -> io::Result<()> {
        self.ask(message, NLM_F_ACK | flags).map(drop)
    }

    /// Performs all of these changes, or none.
    pub(crate) fn transaction(&mut self, messages: Vec<(NetfilterMessage, u16)>) -> io::Result<()> {
        let mark = |message| {
            let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, NFTABLES);
            NetfilterMessage::new::<ControlMessage>(header, message)
        };
        let mut bytes = self.encode(mark(ControlMessage::BatchBegin), 0);
        let awaited = messages.len();
        for (message, flags) in messages {
            bytes.extend(self.encode(message, NLM_F_ACK | flags));
        }
        bytes.extend(self.encode(mark(ControlMessage::BatchEnd), 0));
        self.socket.send(&bytes, 0)?;
        let mut done = 0;
        while done < awaited {
            for answer in self.receive()? {
                if let NetlinkPayload::Error(error) = answer.payload {
                    match error.code {
                        None => done += 1,
                        Some(_) => return Err(error.to_io()),
                    }
                }
            }
        }
        Ok(())
    }

    fn ask(
        &mut self,
        message: NetfilterMessage,
        flags: u16,
    ) -> io::Result<Vec<NetfilterMessageInner>> {
        let bytes = self.encode(message, flags);
        self.socket.send(&bytes, 0)?;
        let mut found = Vec::new();
        loop {
            for answer in self.receive()? {
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => found.push(message.inner),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(found),
                    _ => {}
                }
            }
        }
    }

    fn encode(&mut self, message: NetfilterMessage, flags: u16) -> Vec<u8> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        bytes
    }

    fn receive(&mut self) -> io::Result<Vec<NetlinkMessage<NetfilterMessage>>> {
        self.received.clear();
        self.socket.recv(&mut self.received, 0)?;
        let mut rest = self.received.as_slice();
        let mut answers = Vec::new();
        while !rest.is_empty() {
            let answer = NetlinkMessage::<NetfilterMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            let length = (answer.header.length as usize).next_multiple_of(4);
            answers.push(answer);
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok(answers)
    }
}

/// Returns the family of an address.
pub(crate) fn family(address: IpAddr) -> NetfilterProtoFamily {
    match address {
        IpAddr::V4(_) => NetfilterProtoFamily::IPv4,
        IpAddr::V6(_) => NetfilterProtoFamily::IPv6,
    }
}

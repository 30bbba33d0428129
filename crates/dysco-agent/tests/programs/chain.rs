//! Sessions that are steered through a chain from their SYN on.

mod crossing;
mod ended;
mod fast_open;
mod held;
mod leaving;
mod lost;
mod natted;
mod remembered;
mod replayed;
mod run;
mod syn;
mod transit;

use std::net::SocketAddr;

use dysco_common::chain::{Chain, Hop, Payload, WireElement};
use dysco_common::policy::{Families, Otherwise, PolicyRule};
use dysco_common::siphash::Key;
use dysco_common::tcp::{ACK, SYN};
use dysco_common::{Addr, FlowKey};

use crate::bench::Programs;
use crate::frame::{Frame, Net, nets};

pub(crate) const KEY: Key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
const KEY_ID: u64 = 0xfeed;
/// Time of a payload's sending by the neighbour, in ticks of its clock.
const SENT: u32 = 7;
const LINUX: [u8; 20] = [
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];
const ISN: u32 = 0xffff_ff00;
/// The slot that the first session gets.
const FIRST: u32 = 5;
const SECOND: u32 = 6;

/// The hosts of a chain: opener, middlebox and server. The session is from `net.local` to
/// `net.remote`, and the middlebox has `net.new_remote`.
struct Hosts {
    net: Net,
    middlebox: Addr,
}

fn all() -> [Hosts; 2] {
    nets().map(|net| Hosts {
        net,
        middlebox: net.new_remote.ip().into(),
    })
}

impl Hosts {
    fn hop(&self, local: SocketAddr) -> Hop {
        Hop {
            key_id: KEY_ID,
            key: KEY,
            local: local.ip().into(),
            ifindex: 1,
            reserved: 0,
        }
    }

    fn rule(&self, hosts: &[Addr], otherwise: Otherwise) -> PolicyRule {
        let key = self.net.key();
        PolicyRule {
            destination: key.remote,
            destination_mask: Addr::new([0xff; 16]),
            first_port: 8000,
            last_port: 8100,
            families: Families::Both as u8,
            otherwise: otherwise as u8,
            chain: Chain::of(hosts).unwrap(),
            ..PolicyRule::default()
        }
    }

    /// The opening host.
    fn opener(&self, chain: &[Addr]) -> Programs {
        let mut p = Programs::load();
        p.free(FIRST..FIRST + 4);
        p.policy(256, &[self.rule(chain, Otherwise::Refuse)]);
        for host in chain {
            p.hop(*host, &self.hop(self.net.new_local));
        }
        p
    }

    /// The middlebox's host.
    fn middlebox(&self) -> Programs {
        self.host_at(self.middlebox)
    }

    /// A host that a neighbour may steer to.
    fn host_at(&self, address: Addr) -> Programs {
        let mut p = Programs::load();
        p.free(FIRST..FIRST + 4);
        p.key(KEY_ID, KEY);
        p.own(address);
        p
    }

    fn syn(&self, data: &[u8]) -> Frame {
        Frame {
            seq: ISN,
            flags: SYN,
            options: LINUX.to_vec(),
            payload: data.to_vec(),
            ..self.net.sent()
        }
    }

    fn syn_ack(&self) -> Frame {
        Frame {
            src: self.net.remote,
            dst: self.net.local,
            seq: 5000,
            ack: ISN.wrapping_add(1),
            flags: SYN | ACK,
            ..self.syn(&[])
        }
    }

    /// Returns the subsession of a slot of the opener, from its side.
    fn subsession(&self, slot: u16) -> FlowKey {
        let port = |a: SocketAddr, port| SocketAddr::new(a.ip(), port);
        FlowKey::new(
            port(self.net.new_local, 61_000 + slot),
            port(self.net.new_remote, self.net.remote.port()),
        )
    }

    fn payload(&self, subsession: FlowKey, rest: &[Addr]) -> Payload {
        self.payload_of(self.net.key(), subsession, rest)
    }

    /// Returns the payload of a session whose name a NAT has changed from the opener's.
    fn payload_of(&self, session: FlowKey, subsession: FlowKey, rest: &[Addr]) -> Payload {
        let mut payload = Payload::default();
        payload.fill(KEY_ID, &session, &self.net.key(), &subsession, SENT);
        let mut whole = vec![self.middlebox];
        whole.extend(rest);
        payload.set_rest(&Chain::of(&whole).unwrap(), &WireElement::default());
        payload.mac = payload.proof(KEY);
        payload
    }

    /// Returns the SYN on its subsession.
    fn steered(&self, data: &[u8], rest: &[Addr]) -> Frame {
        let subsession = self.subsession(FIRST as u16);
        let payload = self.payload(subsession, rest);
        Frame {
            src: subsession.local(),
            dst: subsession.remote(),
            payload: [data, &payload.to_bytes()].concat(),
            ..self.syn(data)
        }
    }
}

//! A host of the world: its daemon, which may die, and its data plane, which stays.

use std::net::IpAddr;

use dysco_proto::{Facts, HostId, Machine, Report, Subsession};

use crate::plane::{Plane, Session, State, offer_of};

pub(crate) struct Host {
    pub addresses: Vec<HostId>,
    pub machine: Option<Machine>,
    pub plane: Plane,
    pub reports: Vec<Report>,
    pub(super) life: u64,
    pub(super) steps: u64,
    /// True while its messages wait for later inputs.
    pub(super) holds: bool,
}

impl Host {
    pub(super) fn new(
        i: usize,
        links: &[Subsession],
        address: impl Fn(usize, u8) -> IpAddr,
    ) -> Host {
        let mut plane = Plane {
            deltas: (28, -3),
            ..Plane::default()
        };
        let session = |link: usize, local: bool| {
            let ends = [0x1000_0000, 0xf000_0000u32]
                .map(|base| offer_of(base + 0x0111_1111 * link as u32, 7 + link as u8));
            let (l, r) = if local { (0, 1) } else { (1, 0) };
            let facts = Facts {
                local: ends[l],
                remote: ends[r],
                tsval_out: 100 * (link as u32 + 1),
                ..Facts::default()
            };
            Session {
                fins: Default::default(),
                facts,
                state: State::Tracked,
                cut_out: None,
                cut_in: None,
                reset: false,
                drained: false,
                gone: false,
                muted: false,
                translation: Default::default(),
            }
        };
        if i > 0 {
            plane.sessions.insert(links[i - 1], session(i - 1, false));
        }
        if let Some(link) = links.get(i) {
            plane.sessions.insert(*link, session(i, true));
        }
        if i > 0 && i < links.len() {
            plane.pair = Some((links[i - 1], links[i]));
        }
        Host {
            addresses: vec![address(i, 1), address(i, 2)],
            machine: None,
            plane,
            reports: Vec::new(),
            holds: false,
            life: 0,
            steps: 0,
        }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }
}

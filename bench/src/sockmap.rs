//! A rival: a relay whose two sockets hand their data to each other inside the
//! kernel, by a sockmap.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::SockHash;
use aya::programs::SkSkb;
use dysco_netns::Host;

/// The programs of rivals.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/rivals"));

/// A relay on a host. Dropping it closes its sockets, and so ends its sessions.
pub struct Relay {
    ebpf: Ebpf,
    listener: TcpListener,
    to: SocketAddr,
    sockets: Vec<TcpStream>,
}

impl Relay {
    /// Listens at `at`, and relays to `to`.
    pub fn start(host: &Host, at: SocketAddr, to: SocketAddr) -> Result<Relay> {
        let mut ebpf = Ebpf::load(OBJECT).context("failed to load the sockmap's program")?;
        let map = peers(&mut ebpf)?.fd().try_clone()?;
        let program = ebpf.program_mut("hand_over").context("no program")?;
        let program: &mut SkSkb = program.try_into()?;
        program
            .load()
            .context("failed to load the sockmap's program")?;
        program
            .attach(&map)
            .context("failed to attach to the sockmap")?;
        let listener = host.run(move || TcpListener::bind(at));
        Ok(Relay {
            ebpf,
            listener: listener.with_context(|| format!("failed to listen on {at}"))?,
            to,
            sockets: Vec::new(),
        })
    }

    /// Joins the next session that arrives to one to the server, from `host`.
    pub fn join(&mut self, host: &Host) -> Result<()> {
        let to = self.to;
        let (left, _) = self.listener.accept().context("failed to accept")?;
        let right = host.run(move || TcpStream::connect(to));
        let right = right.with_context(|| format!("failed to connect to {to}"))?;
        let mut peers = peers(&mut self.ebpf)?;
        for (at, other) in [(&left, &right), (&right, &left)] {
            let ports = [at.peer_addr()?.port(), at.local_addr()?.port()].map(u32::from);
            peers
                .insert(ports, other.as_raw_fd(), 0)
                .context("failed to enter a socket into the sockmap")?;
        }
        self.sockets.extend([left, right]);
        Ok(())
    }
}

fn peers(ebpf: &mut Ebpf) -> Result<SockHash<&mut aya::maps::MapData, [u32; 2]>> {
    Ok(ebpf.map_mut("PEERS").context("no map")?.try_into()?)
}

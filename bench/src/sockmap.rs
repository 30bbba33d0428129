//! A rival: a relay whose two sockets hand their data to each other inside the kernel, through a
//! sockmap.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::SockHash;
use aya::programs::SkSkb;
use dysco_netns::{Host, wait};
use nix::sys::socket::sockopt::{ReceiveTimeout, ReusePort};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::apart::own_files;

/// Programs of rivals.
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/rivals"));

const PATIENCE: Duration = Duration::from_secs(30);

/// A relay on a host. Dropping it closes its sockets, and thereby ends its sessions.
pub(crate) struct Relay {
    joined: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    hands: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Listens at `at`, and relays to `to`. Each of the threads has its own table of open files and
    /// its own sockmap.
    pub(crate) fn start(
        host: &Host,
        at: SocketAddr,
        to: SocketAddr,
        hands: usize,
    ) -> Result<Relay> {
        let mut relay = Relay {
            joined: Arc::default(),
            ended: Arc::default(),
            hands: Vec::new(),
        };
        for _ in 0..hands {
            let (joined, ended) = (relay.joined.clone(), relay.ended.clone());
            let (tell, reported) = channel();
            let hand = host.thread("sockmap", move || {
                let mut hand = match Hand::start(at, to) {
                    Ok(hand) => hand,
                    Err(error) => return drop(tell.send(Err(error))),
                };
                let _ = tell.send(Ok(()));
                if let Err(error) = hand.serve(&joined, &ended) {
                    eprintln!("the sockmap's relay broke off: {error:#}");
                }
            })?;
            relay.hands.push(hand);
            reported.recv().context("the sockmap's relay died")??;
        }
        Ok(relay)
    }

    /// Waits until the relay has joined this number of sessions since its start. Data that is sent
    /// before stays in the sockets.
    pub(crate) fn wait(&self, count: usize) -> Result<()> {
        wait::until("the sockmap's relay", PATIENCE, || {
            (self.joined.load(Ordering::SeqCst) >= count).then_some(())
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        for hand in self.hands.drain(..) {
            let _ = hand.join();
        }
    }
}

/// One thread of the relay.
struct Hand {
    ebpf: Ebpf,
    listener: TcpListener,
    to: SocketAddr,
    sockets: Vec<TcpStream>,
}

impl Hand {
    fn start(at: SocketAddr, to: SocketAddr) -> Result<Hand> {
        own_files()?;
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
        Ok(Hand {
            ebpf,
            listener: shared(at).with_context(|| format!("failed to listen on {at}"))?,
            to,
            sockets: Vec::new(),
        })
    }

    fn serve(&mut self, joined: &AtomicUsize, ended: &AtomicBool) -> Result<()> {
        while !ended.load(Ordering::SeqCst) {
            // The call waits at most a twentieth of a second.
            if let Ok((left, _)) = self.listener.accept() {
                self.join(left)?;
                joined.fetch_add(1, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Joins a session that has arrived to a session to the server.
    fn join(&mut self, left: TcpStream) -> Result<()> {
        let to = self.to;
        let right = TcpStream::connect(to);
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

/// Returns a listener on a port that other listeners share.
fn shared(at: SocketAddr) -> Result<TcpListener> {
    let (family, flags) = (AddressFamily::Inet, SockFlag::SOCK_CLOEXEC);
    let own = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&own, ReusePort, &true)?;
    setsockopt(&own, ReceiveTimeout, &TimeVal::milliseconds(50))?;
    bind(own.as_raw_fd(), &SockaddrStorage::from(at))?;
    listen(&own, Backlog::new(4096)?)?;
    Ok(TcpListener::from(own))
}

fn peers(ebpf: &mut Ebpf) -> Result<SockHash<&mut aya::maps::MapData, [u32; 2]>> {
    Ok(ebpf.map_mut("PEERS").context("no map")?.try_into()?)
}

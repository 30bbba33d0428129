//! The network namespace of a handler, and the link that leads there.
//!
//! A thread of this process lives in the namespace. It makes the link, and later the sockets: a
//! socket belongs to the namespace of the thread that makes it.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;

use dysco_common::detour::HANDLER_ADDRESS;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::packet_route::rule::RuleAction;
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::Owner;
use super::error::Failed;
use super::process::{self, Process};
use super::sockets::{Sockets, Wanted};

/// Beginning of the names of the links. Their other ends have the same name with a `p`.
pub(super) const LINK: &str = "dysco-s";
/// Number of links of a host.
const LINKS: u32 = 1000;
/// Packets of any size pass: the sockets keep to the segment size of their session.
const MTU: u32 = 65_535;
/// Routing table in which every address is the namespace's own, for packets that come by the link.
const OWN: u32 = 100;

/// A namespace with its link and its thread.
pub(crate) struct Place {
    /// This host's end of the link.
    pub link: String,
    /// Index of that end.
    pub index: u32,
    /// The one whose sessions alone have sockets there.
    pub owner: Owner,
    work: mpsc::Sender<Work>,
}

/// Work of the thread.
enum Work {
    Sockets(Box<Wanted>, oneshot::Sender<io::Result<Sockets>>),
    Start(
        Owner,
        OwnedFd,
        OwnedFd,
        oneshot::Sender<io::Result<Process>>,
    ),
}

impl Place {
    /// Makes a namespace for the handler of an owner, and its link.
    ///
    /// # Errors
    /// If the kernel refuses a step.
    pub(crate) async fn make(owner: Owner) -> Result<Place, Failed> {
        let (work, work_in) = mpsc::channel();
        let (ready, made) = oneshot::channel();
        let spawned = thread::Builder::new()
            .name("handler".into())
            .spawn(move || {
                let made = inside();
                let lives = made.is_ok();
                if ready.send(made).is_ok() && lives {
                    serve(&work_in);
                }
            });
        spawned.map_err(Failed::of("start a thread"))?;
        let link = made.await.map_err(Failed::of("make a namespace"))??;
        let index = if_nametoindex(link.as_str()).map_err(Failed::of("find the link"))?;
        Ok(Place {
            link,
            index,
            owner,
            work,
        })
    }

    /// Enters the namespace of a handler that an earlier `dyscod` started.
    ///
    /// # Errors
    /// If the handler or its link is gone.
    pub(crate) fn enter(link: &str, pid: u32, owner: Owner) -> Result<Place, Failed> {
        let index = if_nametoindex(link).map_err(Failed::of("find the link"))?;
        let namespace = File::open(format!("/proc/{pid}/ns/net"));
        let namespace = namespace.map_err(Failed::of("open its network namespace"))?;
        let (work, work_in) = mpsc::channel();
        let lives = move || match setns(namespace, CloneFlags::CLONE_NEWNET) {
            Ok(()) => serve(&work_in),
            Err(error) => tracing::error!(%error, "cannot enter the namespace of a handler"),
        };
        let thread = thread::Builder::new().name("handler".into());
        thread.spawn(lives).map_err(Failed::of("start a thread"))?;
        Ok(Place {
            link: link.to_owned(),
            index,
            owner,
            work,
        })
    }

    /// Makes two sockets in the middle of a session.
    ///
    /// # Errors
    /// If the kernel refuses a step.
    pub(crate) async fn sockets(&self, wanted: Wanted) -> io::Result<Sockets> {
        let (done, made) = oneshot::channel();
        self.ask(Work::Sockets(Box::new(wanted), done), made).await
    }

    /// Starts the handler process in the namespace. It gets its end of the connection to `dyscod`,
    /// and the socket on which it listens for a later one.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub(crate) async fn start(&self, control: OwnedFd, listener: OwnedFd) -> io::Result<Process> {
        let (done, started) = oneshot::channel();
        let start = Work::Start(self.owner, control, listener, done);
        self.ask(start, started).await
    }

    async fn ask<T>(&self, work: Work, answer: oneshot::Receiver<io::Result<T>>) -> io::Result<T> {
        let gone = || io::Error::other("the thread of the namespace has ended");
        self.work.send(work).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// Carries out requests until the place is dropped. A receiver that has left needs no answer.
fn serve(work: &mpsc::Receiver<Work>) {
    while let Ok(work) = work.recv() {
        match work {
            Work::Sockets(wanted, done) => drop(done.send(Sockets::make(&wanted))),
            Work::Start(owner, control, listener, done) => {
                drop(done.send(process::start(owner, control, listener)));
            }
        }
    }
}

/// Makes the namespace and the link, and enters the namespace. Returns the name of the link.
fn inside() -> Result<String, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failed::of("start a runtime"))?;
    let host = connect(&runtime)?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(Failed::of("make a network namespace"))?;
    let here = connect(&runtime)?;
    let namespace =
        File::open("/proc/thread-self/ns/net").map_err(Failed::of("open the network namespace"))?;
    let link = runtime
        .block_on(make_link(&host, &namespace))
        .map_err(Failed::of("make a link to the namespace"))?;
    let made = configure(&runtime, &here, &format!("{link}p"));
    if made.is_err() {
        // Takes the other end with it.
        let _ = runtime.block_on(remove(&host, &link));
    }
    made.map(|()| link)
}

fn connect(runtime: &Runtime) -> Result<Handle, Failed> {
    let _entered = runtime.enter();
    let (connection, handle, _) =
        rtnetlink::new_connection().map_err(Failed::of("speak with the kernel"))?;
    runtime.spawn(connection);
    Ok(handle)
}

/// Makes the link under the first name that is free, and moves its other end.
async fn make_link(host: &Handle, namespace: &File) -> Result<String, rtnetlink::Error> {
    let mut last = rtnetlink::Error::RequestFailed;
    for number in 0..LINKS {
        let name = format!("{LINK}{number}");
        let peer = format!("{name}p");
        let link = LinkVeth::new(&name, &peer)
            .address(HANDLER_ADDRESS[6..].to_vec())
            .mtu(MTU)
            .up();
        match host.link().add(link.build()).execute().await {
            Ok(()) => {
                let moved = LinkUnspec::new_with_name(&peer)
                    .setns_by_fd(namespace.as_raw_fd())
                    .build();
                host.link().set(moved).execute().await?;
                return Ok(name);
            }
            Err(rtnetlink::Error::NetlinkError(error))
                if error.raw_code() == -nix::libc::EEXIST =>
            {
                last = rtnetlink::Error::NetlinkError(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

async fn remove(host: &Handle, link: &str) -> Result<(), rtnetlink::Error> {
    if let Ok(index) = if_nametoindex(link) {
        host.link().del(index).execute().await?;
    }
    Ok(())
}

/// Lets the namespace receive packets for any address by the link, and send all others there.
fn configure(runtime: &Runtime, here: &Handle, peer: &str) -> Result<(), Failed> {
    let off = [
        "ipv4/conf/all/rp_filter",
        "ipv4/conf/default/rp_filter",
        &format!("ipv4/conf/{peer}/rp_filter"),
        "ipv6/conf/all/disable_ipv6",
        &format!("ipv6/conf/{peer}/disable_ipv6"),
        &format!("ipv6/conf/{peer}/accept_dad"),
        &format!("ipv6/conf/{peer}/accept_ra"),
    ];
    let on = [
        // A socket whose handler has forgotten it does not try for minutes to end its connection.
        ("ipv4/tcp_orphan_retries", "1"),
        // An ICMP message about a packet that is too big reaches the local end's socket, and not
        // that of the handler: it finds out by itself (RFC 4821), for IPv6 as well, 600 ms after its
        // first retransmission. Where that was an outage, its segments must not get ever shorter.
        ("ipv4/tcp_mtu_probing", "1"),
        ("ipv4/tcp_retries1", "1"),
        ("ipv4/tcp_mtu_probe_floor", "256"),
    ];
    for (name, value) in off.map(|name| (name, "0")).into_iter().chain(on) {
        // A kernel without IPv6 has only some of them.
        if let Err(source) = fs::write(format!("/proc/sys/net/{name}"), value)
            && source.kind() != io::ErrorKind::NotFound
        {
            return Err(Failed::of("configure the namespace")(source));
        }
    }
    runtime
        .block_on(lead(here, peer))
        .map_err(Failed::of("lead packets to the namespace"))
}

async fn lead(here: &Handle, peer: &str) -> Result<(), rtnetlink::Error> {
    let link = LinkUnspec::new_with_name(peer)
        .address(HANDLER_ADDRESS[..6].to_vec())
        .mtu(MTU)
        .arp(false)
        .up();
    here.link().set(link.build()).execute().await?;
    let loopback = LinkUnspec::new_with_name("lo").up().build();
    here.link().set(loopback).execute().await?;
    let (index, lo) = (index(peer)?, index("lo")?);
    let rule = || {
        here.rule()
            .add()
            .input_interface(peer)
            .table_id(OWN)
            .priority(OWN)
            .action(RuleAction::ToTable)
    };
    rule().v4().execute().await?;
    let default = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(index);
    here.route().add(default.build()).execute().await?;
    let own = RouteMessageBuilder::<Ipv4Addr>::new()
        .output_interface(lo)
        .table_id(OWN)
        .scope(RouteScope::Host)
        .kind(RouteType::Local);
    here.route().add(own.build()).execute().await?;
    if !has_ipv6() {
        return Ok(());
    }
    rule().v6().execute().await?;
    let default = RouteMessageBuilder::<Ipv6Addr>::new().output_interface(index);
    here.route().add(default.build()).execute().await?;
    let own = RouteMessageBuilder::<Ipv6Addr>::new()
        .output_interface(lo)
        .table_id(OWN)
        .kind(RouteType::Local);
    here.route().add(own.build()).execute().await
}

fn has_ipv6() -> bool {
    fs::exists("/proc/sys/net/ipv6").unwrap_or(false)
}

fn index(name: &str) -> Result<u32, rtnetlink::Error> {
    if_nametoindex(name).map_err(|_| rtnetlink::Error::RequestFailed)
}

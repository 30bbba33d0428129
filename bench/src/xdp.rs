//! Would relaying in XDP be faster? The most that it could win: a program that
//! does nothing but send packets back, against the stack's plain forwarding by
//! the same host. It sees no super-packets, so their senders must not make any.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use aya::Ebpf;
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use dysco_netns::{Family, Lab, Role};

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::Figure;
use crate::local::through_the_proxys_host;
use crate::pair::{Listener, Pair, stay};
use crate::ping::Ping;
use crate::sockmap::OBJECT;
use crate::stage::server;
use crate::turns::{RUN_IN, Turns};

const FORWARDED: usize = 0;
const XDP: usize = 1;
const KINDS: usize = 2;
const _: () = assert!(FORWARDED == crate::turns::BASE);

type Kinds = Turns<KINDS>;

/// Bytes of a small packet's payload.
const SMALL: usize = 18;
const PORT: u16 = 9002;

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let [mut bulk, mut ping, mut small] = [(); 3].map(|()| Kinds::new("forwarding"));
    let rounds = effort.pick(6, 1);
    for round in 1..=rounds {
        effort.say(&format!("  round {round} of {rounds}"));
        measure(effort, &mut bulk, &mut ping, &mut small)?;
    }
    Ok(vec![
        small.figure("xdp_packets_vs_forwarding".into(), XDP, 1e6, "million/s"),
        bulk.figure("xdp_goodput_vs_forwarding".into(), XDP, 1e9, "Gbit/s"),
        ping.figure("xdp_latency_p50_vs_forwarding".into(), XDP, 1.0, "µs"),
    ])
}

fn measure(effort: &Effort, bulk: &mut Kinds, ping: &mut Kinds, small: &mut Kinds) -> Result<()> {
    let labs = [lab("forwarding")?, lab("xdp")?];
    let turning = attach(&labs[XDP])?;
    let listeners = [
        Listener::start(&labs[FORWARDED], server())?,
        Listener::start(&labs[XDP], server())?,
    ];
    let open = |kind: usize| listeners[kind].open(&labs[kind], server());
    let streams = |pair: Result<Pair>| Bulk::new(pair?, Way::Down);
    let streams = [streams(open(FORWARDED))?, streams(open(XDP))?];
    bulk.bulk(&streams, effort.turn(), || Ok(Duration::ZERO))?;
    drop(streams);
    let requests = [Ping::new(open(FORWARDED)?)?, Ping::new(open(XDP)?)?];
    ping.requests(&requests, effort.turn())?;
    drop(requests);
    let floods = [Flood::new(&labs[FORWARDED])?, Flood::new(&labs[XDP])?];
    small.each(|kind| floods[kind].measure(effort.turn()))?;
    drop((floods, listeners, turning));
    labs.into_iter().try_for_each(|lab| lab.finish(()))
}

fn lab(name: &str) -> Result<Lab> {
    let lab = Lab::builder(name).build()?;
    through_the_proxys_host(&lab)?;
    Ok(lab)
}

/// Puts the program on the proxy's host, in the driver.
fn attach(lab: &Lab) -> Result<Ebpf> {
    // A device that a program sends back to must take packets in batches.
    lab.router
        .output("ethtool", &["-K", "proxy", "gro", "on"])?;
    lab.proxy.run(|| {
        let mut ebpf = Ebpf::load(OBJECT).context("failed to load the program")?;
        let program = ebpf.program_mut("turn_round").context("no program")?;
        let program: &mut Xdp = program.try_into()?;
        program.load().context("failed to load the program")?;
        let attached = program.attach("eth0", XdpMode::Driver);
        attached.context("failed to attach in the driver")?;
        Ok(ebpf)
    })
}

/// Small packets, as many as go.
struct Flood {
    on: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    fn new(lab: &Lab) -> Result<Flood> {
        let to = Role::Server.at(Family::V4, PORT);
        let bind = |host: &dysco_netns::Host, at| {
            host.run(move || UdpSocket::bind(at)).context("no socket")
        };
        let server = bind(&lab.server, to)?;
        let client = bind(&lab.client, Role::Client.at(Family::V4, PORT))?;
        client.connect(to).context("failed to connect")?;
        server
            .set_read_timeout(Some(Duration::from_millis(50)))
            .context("failed to set up a socket")?;
        let [on, ended] = [(); 2].map(|()| Arc::<AtomicBool>::default());
        let arrived = Arc::<AtomicU64>::default();
        let (sends, ends, counts, until) =
            (on.clone(), ended.clone(), arrived.clone(), ended.clone());
        let sending = std::thread::spawn(move || {
            stay(0);
            while !ends.load(Ordering::Relaxed) {
                if sends.load(Ordering::Relaxed) {
                    let _ = client.send(&[1; SMALL]);
                } else {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            }
        });
        let receiving = std::thread::spawn(move || {
            stay(1);
            let mut bytes = [0; 64];
            while !until.load(Ordering::Relaxed) {
                if server.recv(&mut bytes).is_ok() {
                    counts.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Flood {
            on,
            ended,
            arrived,
            threads: vec![sending, receiving],
        })
    }

    /// Packets a second that arrive.
    fn measure(&self, time: Duration) -> Result<f64> {
        self.on.store(true, Ordering::Relaxed);
        std::thread::sleep(RUN_IN);
        let (from, start) = (self.arrived.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(time);
        let (to, took) = (self.arrived.load(Ordering::Relaxed), start.elapsed());
        self.on.store(false, Ordering::Relaxed);
        std::thread::sleep(RUN_IN);
        if to == from {
            return Err(anyhow!("no packet arrives"));
        }
        Ok((to - from) as f64 / took.as_secs_f64())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

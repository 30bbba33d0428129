//! One session over 1 Gbit/s leaves a proxy whose links are slower by 20 ms:
//! does it stumble, with selective acknowledgements and without?

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dysco_netns::delay::Delay;
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::{Lab, Role};

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::{Figure, median};
use crate::pair::Listener;
use crate::plot::{Line, Panel, Plot};
use crate::stage::{proxied, server};

/// What each packet to and from the proxy waits: twice that a round trip.
const DELAY: Duration = Duration::from_millis(10);
const RATE: &str = "1gbit";
const STEP: Duration = Duration::from_millis(20);
const LISTENER: &str = "[[listener]]\naddress = \":8080\"\ntransparent = true\n";

/// A moment, its time counted from the request.
struct Moment {
    at: f64,
    mbps: f64,
    window: f64,
}

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let phase = Duration::from_millis(effort.pick(3_000, 1_500));
    let mut figures = Vec::new();
    let mut lines = (Vec::new(), Vec::new());
    for (name, sack) in [("sack", true), ("no_sack", false)] {
        let mut lowest = Vec::new();
        for round in 1..=effort.pick(6, 1) {
            effort.say(&format!("  {name}, round {round}"));
            let (moments, again) = measure(sack, phase)?;
            lowest.push(dip(&moments));
            if round == 1 {
                let line = |of: fn(&Moment) -> f64| Line {
                    label: name.replace('_', " "),
                    points: moments.iter().map(|m| (m.at, of(m))).collect(),
                };
                lines.0.push(line(|m| m.mbps));
                lines.1.push(line(|m| m.window));
                figures.push(Figure::new(
                    format!("disruption_sent_again_{name}"),
                    "segments",
                    again,
                ));
            }
        }
        figures.push(Figure::median(
            format!("disruption_lowest_goodput_{name}"),
            "",
            lowest,
        ));
    }
    effort.plot(Plot {
        name: "disruption".into(),
        panels: vec![
            Panel::new(
                "goodput, Mbit/s; the proxy is asked to leave at 0",
                "s",
                lines.0,
            ),
            Panel::new("congestion window, segments", "s", lines.1),
        ],
    });
    Ok(figures)
}

/// The least goodput within half a second of the request, by what it was before.
fn dip(moments: &[Moment]) -> f64 {
    let goodput = |wanted: &dyn Fn(f64) -> bool| -> Vec<f64> {
        let moments = moments.iter().filter(|m| wanted(m.at));
        moments.map(|m| m.mbps).collect()
    };
    let before = median(&goodput(&|at| (-1.0..0.0).contains(&at)));
    let after = goodput(&|at| (0.0..0.5).contains(&at));
    after.into_iter().fold(f64::MAX, f64::min) / before
}

/// What was seen, and how many segments were sent again after the request.
fn measure(sack: bool, phase: Duration) -> Result<(Vec<Moment>, f64)> {
    let lab = Lab::builder("disruption").hosts(|h| h.sack(sack)).build()?;
    let fleet = Fleet::new(&lab)?;
    let start = |role| fleet.start(&lab, role, LISTENER);
    let daemons: Vec<Daemon> = Role::ALL.into_iter().map(start).collect::<Result<_>>()?;
    let config = Config::tcp(proxied(), server());
    let haproxy = config.start(&lab.proxy, |haproxy| fleet.under_shim(haproxy))?;
    Delay::limit(&lab, RATE)?;
    let delay = Delay::of_proxy(&lab, DELAY)?;
    let listener = Listener::start(&lab, server())?;
    let pair = listener.open(&lab, proxied())?;
    let sender = pair
        .client
        .try_clone()
        .context("failed to share a socket")?;
    let bulk = Bulk::new(pair, Way::Up)?;
    bulk.start();
    let mut moments = Vec::new();
    let asked = Instant::now() + phase;
    watch(&bulk, &sender, asked, asked, &mut moments)?;
    let before = info(&sender)?.tcpi_total_retrans;
    let words = [
        "remove-middlebox",
        "self",
        "--all",
        "--mode",
        "bypass",
        "--wait",
    ];
    let asked = Instant::now();
    let ran = std::thread::scope(|scope| {
        let leaving = scope.spawn(|| fleet.try_dyscoctl(&lab.proxy, &words));
        watch(&bulk, &sender, asked, asked + phase, &mut moments)?;
        leaving
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p))
    })?;
    ensure!(
        ran.code == Some(0),
        "HAProxy did not leave: {} {}",
        ran.stdout,
        ran.stderr
    );
    let again = info(&sender)?.tcpi_total_retrans - before;
    drop((bulk, sender, listener, haproxy, delay));
    lab.finish(daemons)?;
    Ok((moments, f64::from(again)))
}

fn watch(
    bulk: &Bulk,
    sender: &TcpStream,
    asked: Instant,
    until: Instant,
    moments: &mut Vec<Moment>,
) -> Result<()> {
    let mut last = (bulk.received(), Instant::now());
    while Instant::now() < until {
        std::thread::sleep(STEP);
        let now = (bulk.received(), Instant::now());
        let at = now.1.saturating_duration_since(asked).as_secs_f64()
            - asked.saturating_duration_since(now.1).as_secs_f64();
        moments.push(Moment {
            at,
            mbps: (now.0 - last.0) as f64 * 8e-6 / (now.1 - last.1).as_secs_f64(),
            window: f64::from(info(sender)?.tcpi_snd_cwnd),
        });
        last = now;
    }
    Ok(())
}

fn info(socket: &TcpStream) -> Result<libc::tcp_info> {
    // SAFETY: a structure of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    let (fd, at) = (socket.as_raw_fd(), (&raw mut info).cast());
    // SAFETY: the kernel writes no more than `len` bytes.
    let done = unsafe { libc::getsockopt(fd, libc::SOL_TCP, libc::TCP_INFO, at, &mut len) };
    ensure!(
        done == 0,
        "failed to ask for a session's window: {}",
        std::io::Error::last_os_error()
    );
    Ok(info)
}

//! A session over 1 Gbit/s leaves a proxy whose links add 20 ms of round-trip time. The benchmark
//! measures the dip in its goodput, with selective acknowledgements and without.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dysco_netns::delay::Delay;
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::{Lab, Role};
use serde_json::Value;

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::{Figure, median};
use crate::pair::{Listener, fix_buffers};
use crate::plot::{Line, Panel, Plot};
use crate::stage::{proxied, server};
use crate::turns::order;

/// Delay of each packet to and from the proxy: a round trip takes twice this time.
const DELAY: Duration = Duration::from_millis(10);
const RATE: &str = "1gbit";
/// Bytes of each buffer of the ends. The kernel doubles them, and the proxy's buffers may grow to
/// the same size. The window is then 5 MB. At this rate 2.5 MB are in flight along the proxy, so
/// that the links are full, and the rest waits in their queues, which have room for it.
const BUFFER: u32 = 4 << 20;
/// Upper limit, in Mbit/s, of the goodput of a session whose window is still growing.
const FULL: f64 = 880.0;
/// Maximum time for the growth of the window before the measurement.
const RUN_IN: Duration = Duration::from_secs(12);
/// Interval between two looks at the received data. At full rate a step is 2.5 MB, or 38 of the
/// largest packets, so that it does not depend on the arrival of single packets.
const STEP: Duration = Duration::from_millis(20);
/// Time after the request, in seconds, in which the dip is searched.
const AROUND: f64 = 0.5;
const LISTENER: &str = "[[listener]]\naddress = \":8080\"\ntransparent = true\n";

/// A measurement, with its time relative to the request.
struct Moment {
    at: f64,
    mbps: f64,
    window: f64,
}

/// Observations of a round.
struct Seen {
    moments: Vec<Moment>,
    /// Time from the request to the new path, in milliseconds.
    switch_ms: f64,
    /// Number of segments retransmitted after the request.
    again: f64,
}

/// All rounds with selective acknowledgements, or all rounds without.
struct Kind {
    name: &'static str,
    sack: bool,
    rounds: Vec<Seen>,
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let phase = Duration::from_millis(effort.pick(3_000, 1_500));
    let mut kinds = [("sack", true), ("no_sack", false)].map(|(name, sack)| Kind {
        name,
        sack,
        rounds: Vec::new(),
    });
    for round in 0..effort.pick(6, 1) {
        for at in order::<2>(round % 2) {
            let kind = &mut kinds[at];
            effort.say(&format!("  {}, round {}", kind.name, round + 1));
            kind.rounds.push(measure(kind.sack, phase)?);
        }
    }
    effort.plot(plot(&kinds));
    Ok(kinds.iter().flat_map(Kind::figures).collect())
}

impl Kind {
    fn figures(&self) -> [Figure; 5] {
        let figure = |what: &str, unit, of: &dyn Fn(&Seen) -> f64| {
            let name = format!("disruption_{what}_{}", self.name);
            Figure::median(name, unit, self.rounds.iter().map(of).collect())
        };
        let after = |seen: &Seen| {
            let last = seen.moments.last().map_or(0.0, |m| m.at);
            goodput(&seen.moments, last - 1.0, last) / 1e3
        };
        let after: Vec<_> = self.rounds.iter().map(after).collect();
        let switch: Vec<_> = self.rounds.iter().map(|seen| seen.switch_ms).collect();
        let again = self.rounds.iter().map(|seen| seen.again);
        [
            figure("before_gbps", "Gbit/s", &|seen| {
                goodput(&seen.moments, -1.0, 0.0) / 1e3
            })
            .aside("in the last second after, Gbit/s", median(&after)),
            figure("lowest_goodput", "", &|seen| dip(&seen.moments, 0.0))
                .aside("from request to new path, ms", median(&switch)),
            figure("unchanged_lowest_goodput", "", &|seen| {
                dip(&seen.moments, -1.0)
            }),
            figure("goodput_around", "", &|seen| around(&seen.moments)),
            figure("sent_again", "segments", &|seen| seen.again)
                .aside("in all rounds", again.sum()),
        ]
    }
}

/// Plots the first round of each kind.
fn plot(kinds: &[Kind]) -> Plot {
    let lines = |of: fn(&Moment) -> f64| -> Vec<Line> {
        let firsts = kinds.iter().filter_map(|k| Some((k, k.rounds.first()?)));
        let line = |(kind, seen): (&Kind, &Seen)| Line {
            label: kind.name.replace('_', " "),
            points: seen.moments.iter().map(|m| (m.at, of(m))).collect(),
        };
        firsts.map(line).collect()
    };
    let mut goodput = Panel::new(
        "goodput in each 20 ms, Mbit/s; removal requested at 0",
        "s",
        lines(|m| m.mbps),
    );
    let firsts = kinds.iter().filter_map(|k| k.rounds.first());
    let mark = |seen: &Seen| (seen.switch_ms / 1e3, "new path".into());
    goodput.marks = firsts.map(mark).collect();
    Plot {
        name: "disruption".into(),
        panels: vec![
            goodput,
            Panel::new("congestion window, segments", "s", lines(|m| m.window)),
        ],
    }
}

/// Goodput values after one time and up to another.
fn within(moments: &[Moment], after: f64, until: f64) -> Vec<f64> {
    let some = moments.iter().filter(|m| m.at > after && m.at <= until);
    some.map(|m| m.mbps).collect()
}

/// Median goodput after one time and up to another.
fn goodput(moments: &[Moment], after: f64, until: f64) -> f64 {
    median(&within(moments, after, until))
}

/// Minimum goodput in the half second after a time, divided by the goodput in the second before the
/// request.
fn dip(moments: &[Moment], from: f64) -> f64 {
    let some = within(moments, from, from + AROUND).into_iter();
    some.fold(f64::MAX, f64::min) / goodput(moments, -1.0, 0.0)
}

/// Goodput in the half second after the request, divided by that in the second before. New data
/// shares the receiver's link with data that still arrives through the proxy, and waits there until
/// that data has arrived. The loss of one moment is therefore the gain of the next.
fn around(moments: &[Moment]) -> f64 {
    let some = moments.windows(2);
    let some = some.filter(|pair| pair[1].at > 0.0 && pair[1].at <= AROUND);
    let (mut megabits, mut seconds) = (0.0, 0.0);
    for pair in some {
        let took = pair[1].at - pair[0].at;
        megabits += pair[1].mbps * took;
        seconds += took;
    }
    megabits / seconds / goodput(moments, -1.0, 0.0)
}

/// Measures one round.
fn measure(sack: bool, phase: Duration) -> Result<Seen> {
    let most = BUFFER * 2;
    let sending = format!("4096 16384 {most}");
    let lab = Lab::builder("disruption").hosts(|host| {
        let host = host.sack(sack).receive_buffer(most);
        host.sysctl("net.ipv4.tcp_wmem", &sending)
    });
    let lab = lab.build()?;
    let fleet = Fleet::new(&lab)?;
    let start = |role| fleet.start(&lab, role, LISTENER);
    let daemons: Vec<Daemon> = Role::ALL.into_iter().map(start).collect::<Result<_>>()?;
    let config = Config::tcp(proxied(), server());
    let haproxy = config.start(&lab.proxy, |haproxy| fleet.under_shim(haproxy))?;
    Delay::limit(&lab, RATE)?;
    let delay = Delay::of_proxy(&lab, DELAY)?;
    let listener = Listener::start(&lab, server())?;
    let pair = listener.open(&lab, proxied())?;
    for end in [&pair.client, &pair.server] {
        fix_buffers(end, BUFFER as usize).context("failed to set up a session")?;
    }
    let sender = pair.client.try_clone();
    let sender = sender.context("failed to share a socket")?;
    let bulk = Bulk::new(pair, Way::Up)?;
    bulk.start();
    run_in(&bulk);
    let seen = leave(&lab, &fleet, (&bulk, &sender), phase)?;
    drop((bulk, sender, listener, haproxy, delay));
    lab.finish(daemons)?;
    Ok(seen)
}

/// Returns when the session is as fast as the links, or will not become so.
fn run_in(bulk: &Bulk) {
    let until = Instant::now() + RUN_IN;
    let mut full = 0;
    // A single look may see data that had waited in a queue.
    while full < 3 && Instant::now() < until {
        let (before, begin) = (bulk.received(), Instant::now());
        std::thread::sleep(STEP * 10);
        let bits = (bulk.received() - before) as f64 * 8e-6;
        let mbps = bits / begin.elapsed().as_secs_f64();
        full = if mbps < FULL { 0 } else { full + 1 };
    }
}

/// Removes the proxy, and observes the session before and after for the time of a phase.
fn leave(
    lab: &Lab,
    fleet: &Fleet,
    (bulk, sender): (&Bulk, &TcpStream),
    phase: Duration,
) -> Result<Seen> {
    let begin = Instant::now();
    let mut moments = Vec::new();
    watch(bulk, sender, (begin, phase), &mut moments)?;
    let before = info(sender)?.tcpi_total_retrans;
    let words = ["remove-middlebox", "self", "--all"];
    let how = ["--mode", "bypass", "--wait", "-o", "json"];
    let asked = begin.elapsed().as_secs_f64();
    let ran = std::thread::scope(|scope| {
        let leaving = scope.spawn(|| fleet.try_dyscoctl(&lab.proxy, &[&words[..], &how].concat()));
        watch(bulk, sender, (begin, phase), &mut moments)?;
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
    let done: Value = serde_json::from_str(&ran.stdout).context("dyscoctl printed no JSON")?;
    let switch = done["removals"][0]["request_to_switch_us"].as_f64();
    moments.iter_mut().for_each(|moment| moment.at -= asked);
    Ok(Seen {
        moments,
        switch_ms: switch.context("a removal has no time")? / 1e3,
        again: f64::from(info(sender)?.tcpi_total_retrans - before),
    })
}

/// Watches the session for this time. Times are relative to `begin`.
fn watch(
    bulk: &Bulk,
    sender: &TcpStream,
    (begin, time): (Instant, Duration),
    moments: &mut Vec<Moment>,
) -> Result<()> {
    let mut last = (bulk.received(), Instant::now());
    let until = last.1 + time;
    while last.1 < until {
        std::thread::sleep(STEP);
        let now = (bulk.received(), Instant::now());
        moments.push(Moment {
            at: (now.1 - begin).as_secs_f64(),
            mbps: (now.0 - last.0) as f64 * 8e-6 / (now.1 - last.1).as_secs_f64(),
            window: f64::from(info(sender)?.tcpi_snd_cwnd),
        });
        last = now;
    }
    Ok(())
}

fn info(socket: &TcpStream) -> Result<libc::tcp_info> {
    // SAFETY: the structure consists of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    let (fd, at) = (socket.as_raw_fd(), (&raw mut info).cast());
    // SAFETY: the kernel writes at most `len` bytes.
    let done = unsafe { libc::getsockopt(fd, libc::SOL_TCP, libc::TCP_INFO, at, &mut len) };
    ensure!(
        done == 0,
        "failed to ask for a session's window: {}",
        std::io::Error::last_os_error()
    );
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that is slower in two steps: shortly before the request, and more so after it.
    /// Later changes do not count.
    #[test]
    fn a_dip_is_the_least_of_what_it_had_before() {
        let moment = |n: i32| {
            let mbps = match n {
                -40 => 800.0,
                -100 | 30 => 100.0,
                10 => 400.0,
                _ => 1_000.0,
            };
            Moment {
                at: f64::from(n) * STEP.as_secs_f64(),
                mbps,
                window: 0.0,
            }
        };
        let moments: Vec<_> = (-150..=150).map(moment).collect();
        assert_eq!(goodput(&moments, -1.0, 0.0), 1_000.0);
        assert_eq!(dip(&moments, 0.0), 0.4);
        // One step of the 25 had 0.6 less.
        assert!((around(&moments) - 0.976).abs() < 1e-9);
        assert_eq!(dip(&moments, -1.0), 0.8);
    }
}

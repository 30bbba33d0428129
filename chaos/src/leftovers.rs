//! Remains after all sessions have ended: entries, held ports, sockets, processes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dysco_netns::{Host, counters};
use serde_json::Value;

use crate::daemons::Daemons;
use crate::world::World;

/// Time after which killed processes are gone.
const LIMIT: Duration = Duration::from_secs(6);
/// Number of seconds for which an entry may stay for late packets: two MSL, while the kernel still
/// lists the socket, and one more minute. The daemon looks every thirty seconds, and the socket has
/// to be missing twice.
const LATE: u64 = 125;
/// Number of seconds for which entries may stay after a kill. The hosts there may not have received
/// the end of a session: a timer of four minutes and a look at the sockets collect it.
pub(crate) const KILLED: u64 = 280;
/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// Lists entries and ports of sessions that have ended, after `patience` seconds, or after `killed`
/// seconds if that is more.
pub(crate) fn entries(
    world: &World,
    daemons: &Daemons,
    (patience, killed): (u64, u64),
) -> Vec<String> {
    let limit = Duration::from_secs(patience.max(killed));
    let begun = Instant::now();
    loop {
        let hosts = daemons.hosts();
        let left: Vec<_> = hosts
            .flat_map(|n| held(world, daemons, n, patience >= LATE))
            .collect();
        if left.is_empty() || begun.elapsed() > limit {
            return left;
        }
        std::thread::sleep(LOOK);
    }
}

fn held(world: &World, daemons: &Daemons, number: u8, late: bool) -> Vec<String> {
    let Ok(host) = world.host(number) else {
        return Vec::new();
    };
    let ask = |what: &str| daemons.fleet.json(host, &[what]);
    let (listed, status) = match (ask("sessions"), ask("status")) {
        (Ok(listed), Ok(status)) => (listed, status),
        (Err(error), _) | (_, Err(error)) => return vec![format!("h{number}: {error:#}")],
    };
    let mut left: Vec<_> = listings(&listed, late)
        .map(|s| format!("h{number}: the entry {s}"))
        .collect();
    let ports = status["counters"]["ports_held"].as_u64().unwrap_or(0);
    if ports > 0 {
        left.push(format!("h{number}: {ports} ports are held"));
    }
    left
}

/// Sessions in a listing. Entries that exist only for late packets are among them if `late` is
/// true.
fn listings(listed: &Value, late: bool) -> impl Iterator<Item = String> + '_ {
    let all = listed["sessions"].as_array().or(listed.as_array());
    let counts = move |s: &&Value| late || (s["ended"] != true && s["state"] != "tombstone");
    all.into_iter().flatten().filter(counts).map(|s| {
        let text = |key: &str| s[key].as_str().unwrap_or("?").to_owned();
        format!("{} > {} ({})", text("local"), text("remote"), text("state"))
    })
}

/// Processes on hosts whose programs have all been ended, after killed processes are gone.
pub(crate) fn processes(world: &World) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let hosts = world.hosts.values().chain([&world.router]);
        let left: Vec<_> = hosts.flat_map(|host| counters::processes(host)).collect();
        if left.is_empty() || begun.elapsed() > LIMIT {
            return left;
        }
        std::thread::sleep(LOOK);
    }
}

/// Remote ends of a host's established sockets, from the kernel's own table.
pub(crate) fn established(host: &Host) -> Vec<SocketAddr> {
    host.run(|| {
        let tables = ["tcp", "tcp6"].into_iter();
        let text = tables.map(|t| std::fs::read_to_string(format!("/proc/thread-self/net/{t}")));
        let text: String = text.map(Result::unwrap_or_default).collect();
        text.lines().filter_map(remote).collect()
    })
}

/// Remote end of an established socket in a line of `/proc/net/tcp`.
fn remote(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(2);
    let (remote, state) = (words.next()?, words.next()?);
    let (address, port) = remote.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    if state != "01" {
        return None;
    }
    // The words have 32 bits, in this machine's byte order.
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let ip: IpAddr = match address.len() {
        8 => word(0)?.to_ne_bytes().into(),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at * 8)?.to_ne_bytes());
            }
            IpAddr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_read() {
        let line =
            "   1: 0102000A:1F90 0101000A:9C40 01 00000000:00000000 00:00000000 00000000 0 0 1";
        assert_eq!(remote(line), "10.0.1.1:40000".parse().ok());
        let listens =
            "   0: 0102000A:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0";
        assert_eq!(remote(listens), None);
        let mapped = "   1: 0:1F90 0000000000000000FFFF00000101000A:9C40 01 0:0";
        assert_eq!(remote(mapped), "10.0.1.1:40000".parse().ok());
    }

    #[test]
    fn ended_sessions_are_no_leftovers() {
        let listed = serde_json::json!({"sessions": [
            {"local": "a", "remote": "b", "state": "tracked", "ended": true},
            {"local": "c", "remote": "d", "state": "relay", "ended": false}]});
        assert_eq!(
            listings(&listed, false).collect::<Vec<_>>(),
            ["c > d (relay)"]
        );
        assert_eq!(listings(&listed, true).count(), 2);
    }
}

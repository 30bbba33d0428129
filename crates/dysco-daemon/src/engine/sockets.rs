//! Sessions whose socket is gone without a FIN or reset passing (a peer that
//! died, a time-out): looked for from time to time, so that their entries go.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use std::{fs, io};

use dysco_common::{FlowKey, State};

use super::{Answer, Engine, collect};

/// How often is looked.
const EVERY: Duration = Duration::from_secs(30);
/// A session younger than this may not have its socket listed yet.
const YOUNG: Duration = Duration::from_secs(10);

/// What the last look found.
#[derive(Default)]
pub(super) struct Sockets {
    last: Option<Instant>,
    /// Slots and sessions that had a socket, some time. Others never do: where
    /// addresses are translated, or the socket is in another namespace.
    seen: HashSet<(u32, u64)>,
    /// Those of them without one, the last time.
    missing: HashSet<(u32, u64)>,
}

impl Sockets {
    /// Had this session a socket when it was last looked?
    pub fn listed(&self, slot: u32, created_ns: u64) -> bool {
        let session = (slot, created_ns);
        self.seen.contains(&session) && !self.missing.contains(&session)
    }
}

impl Engine {
    /// Collects sessions that had no socket the last two times.
    pub(super) fn sweep_sockets(&mut self) {
        if self.sockets.last.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.sockets.last = Some(Instant::now());
        let answers = self.answers.clone();
        // Milliseconds on a host with a large table: not in the engine's time.
        tokio::task::spawn_blocking(move || {
            let _ = answers.send(Answer::Sockets(open_sockets()));
        });
    }

    /// Goes on with what was listed.
    pub(super) fn sockets_listed(&mut self, open: io::Result<HashSet<FlowKey>>) {
        let open = match open {
            Ok(open) => open,
            Err(error) => return tracing::warn!(%error, "cannot list this host's sockets"),
        };
        let now = collect::boot_time();
        let local =
            |s: &dysco_common::Session| self.config.host.addresses.contains(&s.key.local.ip());
        let (mut seen, mut missing) = (HashSet::new(), HashSet::new());
        for (slot, s) in self.agent.sessions() {
            let session = (slot, s.created_ns);
            let age = now.saturating_sub(Duration::from_nanos(s.created_ns));
            let ours = matches!(
                State::from_word(s.state),
                Some(State::Tracked | State::NewPath)
            );
            if !ours || age < YOUNG || !local(&s) {
                continue;
            }
            let listed = open.contains(&s.key);
            if listed || self.sockets.seen.contains(&session) {
                seen.insert(session);
            }
            if !listed && seen.contains(&session) {
                missing.insert(session);
            }
        }
        for (slot, created) in self.sockets.missing.intersection(&missing) {
            let s = self.agent.session(*slot);
            if s.created_ns == *created {
                self.collector.abandoned(*slot, &s);
            }
        }
        self.sockets.missing = missing;
        self.sockets.seen = seen;
    }
}

/// All TCP connections of this network namespace.
fn open_sockets() -> io::Result<HashSet<FlowKey>> {
    let mut open = HashSet::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = match fs::read_to_string(file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // no IPv6 here
            text => text?,
        };
        open.extend(text.lines().skip(1).filter_map(connection));
    }
    Ok(open)
}

/// `sl local_address rem_address …`, each as words of memory and a port, in
/// hexadecimal (`get_tcp4_sock` in the kernel's net/ipv4/tcp_ipv4.c).
fn connection(line: &str) -> Option<FlowKey> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
    Some(FlowKey::new(local, remote))
}

fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |i: usize| {
        u32::from_str_radix(ip.get(8 * i..8 * i + 8)?, 16)
            .ok()
            .map(u32::to_ne_bytes)
    };
    if ip.len() == 8 {
        return Some(SocketAddr::new(Ipv4Addr::from(word(0)?).into(), port));
    }
    let mut bytes = [0; 16];
    for i in 0..4 {
        bytes[4 * i..4 * i + 4].copy_from_slice(&word(i)?);
    }
    Some(SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_of_this_process_is_listed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let a = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let key = FlowKey::new(a.local_addr().unwrap(), a.peer_addr().unwrap());
        assert!(open_sockets().unwrap().contains(&key));
        drop(a);
        assert!(!open_sockets().unwrap().contains(&FlowKey {
            local_port: 0,
            ..key
        }));
    }

    #[test]
    fn lines_of_both_families_are_read() {
        let line = "   0: 0100007F:1F90 0200007F:D431 01 00000000:00000000 00:00000000";
        let key = connection(line).unwrap();
        assert_eq!(key.local().to_string(), "127.0.0.1:8080");
        assert_eq!(key.remote().to_string(), "127.0.0.2:54321");
        let v6 = "000000FD000000000000000001000000:0050";
        assert_eq!(address(v6).unwrap().to_string(), "[fd00::1]:80");
        assert!(connection("  sl  local_address").is_none());
    }
}

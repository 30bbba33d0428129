//! HAProxy's description of its sessions: the frontend that each came in by and the server that
//! it went to. Used for listings only; without it only the names are missing.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dysco_api::Label;
use dysco_explain::tame;

use super::HaproxySocket;
use super::listener::{address, answer, pid_of};

const QUESTION: &[u8] = b"show info;show sess\n";
/// Time for which sessions are queried after a label was last requested.
const WANTED: Duration = Duration::from_secs(30);

/// Labels of sessions by HAProxy process and client address.
#[derive(Default)]
pub(crate) struct Labels {
    of: HashMap<i32, HashMap<SocketAddr, Label>>,
    wanted: Option<Instant>,
}

impl Labels {
    /// Returns true if a label was requested recently.
    pub(crate) fn wanted(&self) -> bool {
        self.wanted.is_some_and(|at| at.elapsed() < WANTED)
    }

    /// Returns the process's label of the session from this client, and records the request.
    pub(crate) fn find(&mut self, pid: i32, client: &SocketAddr) -> Option<Label> {
        self.wanted = Some(Instant::now());
        self.of.get(&pid)?.get(client).cloned()
    }

    /// Stores an answer, and removes processes that no longer exist.
    pub(crate) fn put(&mut self, pid: i32, labels: HashMap<SocketAddr, Label>) {
        // SAFETY: signal 0 sends nothing.
        self.of.retain(|pid, _| unsafe { libc::kill(*pid, 0) } == 0);
        self.of.insert(pid, labels);
    }
}

/// Queries one runtime socket for the process and its sessions.
pub(crate) async fn ask(socket: &HaproxySocket) -> io::Result<(i32, HashMap<SocketAddr, Label>)> {
    let text = answer(socket, QUESTION).await?;
    let pid = pid_of(&text).ok_or(io::ErrorKind::InvalidData)?;
    Ok((pid, parse(&text)))
}

/// Parses lines of `key=value` words. Their number depends on HAProxy's version.
fn parse(text: &str) -> HashMap<SocketAddr, Label> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<(SocketAddr, Label)> {
    let word = |key: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|w| w.strip_prefix(key))
    };
    let named = |key| {
        word(key)
            .filter(|w| !w.starts_with('<'))
            .unwrap_or_default()
    };
    let client = address(word("src="))?;
    let label = Label {
        frontend: tame(word("fe=")?),
        backend: tame(named("be=")),
        server: tame(named("srv=")),
        mode: String::new(),
    };
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    Some((client, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "Pid: 7\n\
        0x55aa: proto=tcpv4 src=127.0.0.1:46290 fe=relay be=relay srv=one ts=00 age=1s\n\
        0x55ab: proto=tcpv6 src=fd00::1:4629 fe=web be=<NONE> srv=<none> new=words\n\
        0x55ac: proto=unix_stream src=unix:1 fe=GLOBAL be=<NONE> srv=<none>\n\
        nonsense\n";

    #[test]
    fn sessions_are_named_by_their_clients() {
        let all = parse(ANSWER);
        assert_eq!(all.len(), 2);
        let relay = &all[&"127.0.0.1:46290".parse().unwrap()];
        assert_eq!((&*relay.frontend, &*relay.server), ("relay", "one"));
        let web = &all[&"[fd00::1]:4629".parse().unwrap()];
        assert_eq!((&*web.frontend, &*web.backend), ("web", ""));
    }
}

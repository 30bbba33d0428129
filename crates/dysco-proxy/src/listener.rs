//! Evidence that a listener is transparent: the operator's configuration, or HAProxy's report on
//! its runtime socket that the frontend is in mode tcp.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::HaproxySocket;

/// Maximum length of an answer in bytes.
const MAX_ANSWER: u64 = 16 << 20;
/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Commands for the runtime socket. `show stat` lists listeners at level operator; `show fd`
/// lists ports.
const QUESTION: &[u8] = b"show info;show stat;show fd\n";

/// Returns true if a declared address includes this one.
pub(crate) fn stands_for(declared: &SocketAddr, actual: &SocketAddr) -> bool {
    if declared.port() != actual.port() {
        return false;
    }
    match (declared.ip().to_canonical(), actual.ip().to_canonical()) {
        // `::` accepts IPv4 too, unless the socket has IPV6_V6ONLY, which is not known here.
        (IpAddr::V6(d), _) if d.is_unspecified() => true,
        (IpAddr::V4(d), IpAddr::V4(_)) if d.is_unspecified() => true,
        (d, a) => d == a,
    }
}

/// Returns true if the operator declared this listener.
pub(crate) fn declared(listeners: &[SocketAddr], actual: &SocketAddr) -> bool {
    listeners.iter().any(|l| stands_for(l, actual))
}

/// A frontend's mode, as HAProxy reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mode {
    /// Name of the frontend.
    pub frontend: String,
    /// "tcp" or "http".
    pub mode: String,
    /// Listening address.
    pub address: SocketAddr,
}

/// The frontends of HAProxy processes. An old process keeps its answer when a new one takes over
/// the runtime socket.
#[derive(Default)]
pub(crate) struct Modes(HashMap<i32, Vec<Mode>>);

impl Modes {
    /// Returns the mode of the listener in that process. If several frontends fit, an exact
    /// address takes precedence, and then a frontend that is not in mode tcp.
    pub(crate) fn of(&self, pid: i32, actual: &SocketAddr) -> Option<&Mode> {
        let all = self.0.get(&pid)?;
        let fits: Vec<&Mode> = all
            .iter()
            .filter(|m| stands_for(&m.address, actual))
            .collect();
        let exact: Vec<&Mode> = fits
            .iter()
            .copied()
            .filter(|m| m.address.ip().to_canonical() == actual.ip().to_canonical())
            .collect();
        let fits = if exact.is_empty() { fits } else { exact };
        let parsed = fits.iter().copied().find(|m| m.mode != "tcp");
        parsed.or_else(|| fits.first().copied())
    }

    /// Returns the mode of a frontend in that process.
    pub(crate) fn named(&self, pid: i32, frontend: &str) -> Option<&str> {
        let all = self.0.get(&pid)?;
        let found = all.iter().find(|m| m.frontend == frontend);
        found.map(|m| m.mode.as_str())
    }

    /// Stores an answer, and removes processes that no longer exist.
    pub(crate) fn put(&mut self, pid: i32, modes: Vec<Mode>) {
        // SAFETY: signal 0 sends nothing.
        self.0.retain(|pid, _| unsafe { libc::kill(*pid, 0) } == 0);
        self.0.insert(pid, modes);
    }
}

/// Queries one runtime socket for the process and the modes of its frontends.
pub(crate) async fn ask(socket: &HaproxySocket) -> io::Result<(i32, Vec<Mode>)> {
    let answer = answer(socket, QUESTION).await?;
    parse(&answer, &socket.frontends).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "no process number and statistics in the answer",
        )
    })
}

/// Returns the answer to a question on a runtime socket. Time and length are limited.
pub(crate) async fn answer(socket: &HaproxySocket, question: &[u8]) -> io::Result<String> {
    let asking = async {
        let mut s = UnixStream::connect(&socket.path).await?;
        s.write_all(question).await?;
        let mut answer = Vec::new();
        s.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer"))?
}

/// Returns the pid of the process that answered `show info`.
pub(crate) fn pid_of(answer: &str) -> Option<i32> {
    let line = answer.lines().find_map(|l| l.strip_prefix("Pid: "))?;
    line.trim().parse().ok()
}

/// Parses the answers to the three commands, which follow each other.
fn parse(answer: &str, named: &[(String, SocketAddr)]) -> Option<(i32, Vec<Mode>)> {
    let pid = pid_of(answer)?;
    let head = answer.lines().find(|l| l.starts_with("# pxname,"))?;
    let names: Vec<&str> = head.trim_start_matches("# ").split(',').collect();
    let at = |name| names.iter().position(|n| *n == name);
    let (name, kind, mode) = (at("pxname")?, at("type")?, at("mode")?);
    let addr = at("addr");
    let mut of_frontend: HashMap<&str, &str> = HashMap::new();
    let mut modes = Vec::new();
    for line in answer.lines() {
        let cells: Vec<&str> = line.split(',').collect();
        let (Some(f), Some(m)) = (cells.get(name), cells.get(mode)) else {
            continue;
        };
        match cells.get(kind) {
            Some(&"0") => drop(of_frontend.insert(f, m)),
            Some(&"3") => modes
                .extend(address(addr.and_then(|i| cells.get(i).copied())).map(|a| at_(f, m, a))),
            _ => {}
        }
    }
    let by_name = |f: &str, a| of_frontend.get(f).map(|m| at_(f, m, a));
    modes.extend(named.iter().filter_map(|(f, a)| by_name(f, *a)));
    for line in answer.lines().filter(|l| l.contains("(sock_accept_iocb)")) {
        if let Some((f, a)) = listening(line)
            && !modes
                .iter()
                .any(|m| m.frontend == f && m.address.port() == a.port())
        {
            modes.extend(by_name(f, a));
        }
    }
    Some((pid, modes))
}

fn at_(frontend: &str, mode: &str, address: SocketAddr) -> Mode {
    Mode {
        frontend: frontend.to_owned(),
        mode: mode.to_owned(),
        address,
    }
}

/// Parses an address in HAProxy's notation.
pub(crate) fn address(cell: Option<&str>) -> Option<SocketAddr> {
    let cell = cell?;
    // HAProxy writes IPv6 addresses without brackets.
    cell.parse().ok().or_else(|| {
        let (ip, port) = cell.rsplit_once(':')?;
        let ip: Ipv6Addr = ip.trim_matches(['[', ']']).parse().ok()?;
        Some(SocketAddr::new(ip.into(), port.parse().ok()?))
    })
}

/// Parses `… fe=NAME fam=ipv4 lport=PORT` into the frontend and the port with the unspecified
/// address of the family.
fn listening(line: &str) -> Option<(&str, SocketAddr)> {
    let word = |key: &str| line.split(' ').find_map(|w| w.strip_prefix(key));
    let any: IpAddr = match word("fam=")? {
        "ipv4" => Ipv4Addr::UNSPECIFIED.into(),
        "ipv6" => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    Some((
        word("fe=")?,
        SocketAddr::new(any, word("lport=")?.trim().parse().ok()?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "Name: HAProxy\nPid: 77\n\n\
        # pxname,svname,type,addr,mode,\n\
        web,FRONTEND,0,,http,\nweb,sock-1,3,127.0.0.1:81,http,\n\
        raw,FRONTEND,0,,tcp,\nb,BACKEND,1,,tcp,\n\n\
              5 : st=0x1 iocb=0x5(sock_accept_iocb) l.st=RDY fe=web fam=ipv4 lport=81\n\
              6 : st=0x1 iocb=0x5(sock_accept_iocb) l.st=RDY fe=raw fam=ipv6 lport=82\n";

    fn modes() -> Modes {
        let (pid, m) = parse(ANSWER, &[("raw".into(), "10.0.0.1:83".parse().unwrap())]).unwrap();
        assert_eq!(pid, 77);
        let mut modes = Modes::default();
        modes.put(pid, m);
        modes
    }

    #[test]
    fn a_frontend_is_found_by_address_name_or_port() {
        let modes = modes();
        let of = |a: &str| modes.of(77, &a.parse().unwrap()).map(|m| m.mode.clone());
        assert_eq!(of("127.0.0.1:81").as_deref(), Some("http"));
        assert_eq!(
            of("10.0.0.2:81"),
            None,
            "the address is known to be another"
        );
        assert_eq!(of("[fd00::1]:82").as_deref(), Some("tcp"));
        assert_eq!(of("10.0.0.1:83").as_deref(), Some("tcp"));
        assert_eq!(of("10.0.0.1:84"), None);
        assert_eq!(
            modes.of(78, &"127.0.0.1:81".parse().unwrap()),
            None,
            "another process"
        );
    }

    #[test]
    fn a_port_shared_with_a_parsed_frontend_is_parsed() {
        let any = |mode: &str| at_("f", mode, "0.0.0.0:80".parse().unwrap());
        let mut modes = Modes::default();
        modes.put(1, vec![any("tcp"), any("http")]);
        assert_eq!(
            modes.of(1, &"10.0.0.1:80".parse().unwrap()).unwrap().mode,
            "http"
        );
    }

    #[test]
    fn an_unspecified_address_stands_for_its_port() {
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        assert!(declared(&[at("0.0.0.0:80")], &at("10.0.0.1:80")));
        assert!(!declared(&[at("0.0.0.0:80")], &at("[fd00::1]:80")));
        assert!(declared(&[at("[::]:80")], &at("10.0.0.1:80")));
        assert!(!declared(&[at("[::]:80")], &at("10.0.0.1:81")));
        assert!(!declared(&[at("10.0.0.2:80")], &at("10.0.0.1:80")));
    }

    #[test]
    fn no_answer_vouches_for_nothing() {
        assert_eq!(parse("Permission denied\n", &[]), None);
        assert_eq!(parse("Pid: x\n# pxname,svname,type,addr,mode\n", &[]), None);
    }
}

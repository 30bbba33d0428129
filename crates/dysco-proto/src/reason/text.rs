//! The text of each reason, for an operator: the cause, and what to do.

use std::fmt;

use dysco_explain::{Cause, tame};

use super::Reason;

impl Reason {
    /// Returns the cause and the hint. Text of another host is escaped.
    #[expect(
        clippy::too_many_lines,
        reason = "a table, with an arm for each variant"
    )]
    pub fn cause(&self) -> Cause {
        match self {
            Reason::NoAgent(host) => Cause::new(format!(
                "no dyscod answers at {host}: it is not running, its control port is closed, or another authority issued its certificate"
            ))
            .hint("start dyscod there, open its control port, or issue its keys by this authority"),
            Reason::NotTracked(session) => Cause::new(format!(
                "a host does not track {session}: no tracking rule matches it, the session table was full, or it could not be adopted"
            ))
            .hint("widen the tracking rules or raise max_sessions there, and restart dyscod there"),
            Reason::NotSeen => Cause::new(
                "a host has not seen both SYNs of the session: it was opened while dyscod started, or it does not pass that host",
            )
            .hint("wait for a new connection"),
            Reason::LockedByAnother(change) => {
                Cause::new(format!("the session is locked by change {change}"))
                    .hint("wait until that change ends, then ask again")
            }
            Reason::NotTransparent(cause) => because(
                "the middlebox is not proven byte-transparent from now on: ",
                cause,
                Some("let it relay in TCP mode with splicing, or declare its listener transparent"),
            ),
            Reason::DeltaMoved {
                before_forward,
                after_forward,
                before_reverse,
                after_reverse,
            } => Cause::new(format!(
                "the middlebox changed its byte count while the anchors locked (forward {before_forward} to {after_forward}, reverse {before_reverse} to {after_reverse}): it still rewrites the stream"
            ))
            .hint("ask again when it only relays"),
            Reason::SackMismatch => Cause::new(
                "SACK is negotiated on one side of the middlebox only, and SACK blocks cannot be invented",
            )
            .hint("set net.ipv4.tcp_sack to the same value on all three hosts, and wait for a new connection"),
            Reason::MssMismatch {
                from,
                sends,
                accepts,
            } => Cause::new(format!(
                "the {from} end sends segments of up to {sends} bytes, and the other end accepts {accepts}"
            ))
            .hint("give both sides of the middlebox the same MTU, or clamp the MSS, and wait for a new connection"),
            Reason::WindowTooSmall { end, window, needs } => Cause::new(format!(
                "the {end} end offers windows of {window} bytes, and the other end sends nothing into windows of less than {needs}, because its segments are longer than the middlebox's"
            ))
            .hint(format!(
                "give the {end} end a larger receive buffer and wait for a new connection, or keep the middlebox"
            )),
            Reason::Foreign => Cause::new(
                "the session uses MD5, TCP-AO, MPTCP or AccECN, which bind it to its five-tuple or cannot be translated",
            )
            .hint("switch that option off for such sessions, or keep the middlebox"),
            Reason::Rewritten(session) => Cause::new(format!(
                "a device between the two hosts of {session} rewrites its sequence numbers, timestamps or options"
            ))
            .hint("take that device out, or keep the middlebox"),
            Reason::PortsExhausted => {
                Cause::new("all source ports for new paths to that server are in use").hint(
                    "widen ports under [removal] on the left anchor's host, or wait until sessions end",
                )
            }
            Reason::NoRoute(host) => Cause::new(format!("there is no route to {host}"))
                .hint("let the anchors' hosts reach each other without the middlebox"),
            Reason::NewPathUnusable(cause) => because(
                "the new path cannot be used: ",
                cause,
                Some("let the anchors' hosts reach each other on it, or keep the middlebox"),
            ),
            Reason::PathMeddles { way, does } => Cause::new(format!("a device {way} {does}")).hint(
                "let the session pass there unchanged, or keep the hosts that it passes now",
            ),
            Reason::NewPathSilent(host) => Cause::new(format!(
                "{host} stopped answering on the new path after both anchors had switched to it; the session is on the old path again"
            ))
            .hint("repair the path between the two hosts, or keep the middlebox"),
            Reason::MiddleboxDied(bytes) => Cause::new(format!(
                "the middlebox died, or closed the session, before the old path had drained: {}, so both ends got a reset",
                undelivered(*bytes)
            ))
            .hint("see the middlebox's own log"),
            Reason::SameHost(host) => Cause::new(format!(
                "client and server are both on the host {host}, and this mode needs a host at each end"
            ))
            .hint("use --mode local"),
            Reason::TimedOut(phase) => Cause::new(format!(
                "no answer in time while {phase}: the control channel or a data plane is stuck"
            ))
            .hint("see `dyscoctl status` on the hosts of the session, then ask again"),
            Reason::Closing => Cause::new("the session is closing or gone: nothing is left to change"),
            Reason::Cancelled => Cause::new("cancelled by the operator"),
            Reason::Restarted => {
                Cause::new("the daemon of an anchor was restarted during the change").hint("ask again")
            }
            Reason::UnknownChange => Cause::new(
                "a host does not know this change: the change has ended, or the host's daemon was restarted",
            )
            .hint("ask again if the middlebox is still there"),
            Reason::Busy(host) => Cause::new(format!(
                "the host {host} has as many changes in progress as it accepts"
            ))
            .hint("ask again later"),
            Reason::NoRecord(error) => Cause::new(format!(
                "the record of the change cannot be written: {}",
                tame(error)
            ))
            .hint("free space in the state directory"),
            Reason::Inconsistent(message) => Cause::new(format!(
                "the message {message} does not fit the change that it names"
            ))
            .hint("run the same release of dyscod on all hosts of the session"),
            Reason::NotProven(cause) => because(
                "it is not proven that replies from the server's host reach the client under the proxy's address: ",
                cause,
                Some("allow such packets on the way to the client, or use mode local"),
            ),
            Reason::AlreadyOut => Cause::new("the middlebox has left this session already").hint(
                "if its host still relays the packets (local, return), ask for mode bypass to take that host out too",
            ),
            // A cause with a hint is an obstacle that the user can remove, and no failure of the host.
            Reason::Failed(cause) if cause.hint.is_some() => because("", cause, None),
            Reason::Failed(cause) => {
                because("a host failed: ", cause, Some("see the log of its dyscod"))
            }
            Reason::NoSuchChain(cause) => because("the session cannot have that chain: ", cause, None),
            Reason::StateNotMoved(cause) => because(
                "the old middlebox's state of the session could not be moved: ",
                cause,
                None,
            ),
            Reason::ChainUnusable(cause) => because(
                "the new chain does not carry the session: ",
                cause,
                Some("check that its hosts forward the session and its firewalls accept it"),
            ),
            Reason::ChainTooNarrow { way, bytes } => Cause::new(format!(
                "the new chain is too narrow for the session: packets of {bytes} bytes, which this end may send, do not pass {}, or the longest packets of the other end do not pass back",
                tame(way)
            ))
            .hint(
                "give its links the MTU that the session was opened with, or clamp the MSS there and wait for a new connection",
            ),
            Reason::DeltaContradicted(numbers) => Cause::new(format!(
                "the delta that a middlebox reported contradicts the sequence numbers: {}",
                tame(numbers)
            ))
            .hint(
                "report its delta again ('dyscoctl delta' on its host), or leave it in the chain",
            ),
            Reason::DeltaNotDeclared(numbers) => Cause::new(format!(
                "the stream's size differs at its two ends, and no middlebox has reported a delta: {}",
                tame(numbers)
            ))
            .hint(
                "report the middlebox's delta ('dyscoctl delta' on its host) once it changes nothing any more, or leave it in the chain",
            ),
            Reason::DeltaUnconfirmed(numbers) => Cause::new(format!(
                "the delta of a middlebox cannot be confirmed yet: {}",
                tame(numbers)
            ))
            .hint("ask again in a moment, or once the session is less busy"),
            Reason::DeltaBehind(host) => Cause::new(format!(
                "{host} stays in the chain, and a middlebox on that host or behind it has changed the size of the stream: {host} would see other sequence numbers than before"
            ))
            .hint("take that host out as well, and insert it again afterwards"),
            Reason::NotHeard(session) => Cause::new(format!(
                "{session} began before dyscod ran on a host of it, and that host has not seen packets of it in both directions since"
            ))
            .hint(
                "ask again once data was sent on it; if it stays so, its packets do not pass that host's dyscod, or a device there translates them (NAT, SYNPROXY)",
            ),
            Reason::Translated(session) => Cause::new(format!(
                "NAT on this host rewrites the addresses or ports of {session}; relaying would bypass the NAT"
            ))
            .hint("exclude these sessions from the NAT rules, or keep the proxy in those that are open"),
            Reason::NoAnswer(host) => Cause::new(format!(
                "{host} has not answered in time: no dyscod runs there, it is not reachable or not trusted, or the session does not pass that host"
            ))
            .hint("check the peers in 'dyscoctl status', then ask again"),
            Reason::PathDied(host) => Cause::new(format!(
                "a new path to {host} died under another session in the last five minutes"
            ))
            .hint(
                "repair the path between the two hosts and wait five minutes, ask with --mode bypass, or keep the middlebox",
            ),
            Reason::BorrowedAddress(host) => Cause::new(format!(
                "the proxy uses the address {host}, which is not this host's (TPROXY; in HAProxy `usesrc` or `bind ... transparent`): only rules of this host bring packets for that address to the proxy, and a removal would bypass them"
            ))
            .hint("let the proxy use an address of this host, or keep the middlebox"),
            Reason::EndAtMiddlebox(host) => Cause::new(format!(
                "the client or the server is on the middlebox's own host {host}, and no mode supports that"
            ))
            .hint("run the middlebox on another host than its client and server, or keep it"),
        }
    }

    /// Returns the cause alone.
    pub fn why(&self) -> String {
        self.cause().why
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<String> {
        self.cause().hint
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

/// Returns a cause that a host has found. Its own hint is more specific than `hint`.
fn because(about: &str, cause: &Cause, hint: Option<&str>) -> Cause {
    let own = cause.hint.as_deref().map(tame);
    Cause {
        why: format!("{about}{}", tame(&cause.why)),
        hint: own.or_else(|| hint.map(str::to_owned)),
    }
}

fn undelivered(bytes: u32) -> String {
    match bytes {
        0 => "what it held was not delivered".into(),
        1 => "it held 1 byte that it had taken and not delivered".into(),
        _ => format!("it held {bytes} bytes that it had taken and not delivered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostId, Phase};

    #[test]
    fn a_reason_has_one_hint() {
        let listener = "declare its listener transparent";
        let of = |cause: Cause| Reason::NotTransparent(cause).cause();
        // A semicolon is no sign of a hint.
        let none = of("the configuration says so; really".into());
        assert!(none.why.ends_with("says so; really"), "{none}");
        assert!(none.hint.is_some_and(|hint| hint.ends_with(listener)));
        let own = of(Cause::new("no shim has reported it").hint("name its listener"));
        assert_eq!(own.hint.as_deref(), Some("name its listener"));
        let text = own.to_string();
        assert!(
            text.ends_with(": no shim has reported it; name its listener"),
            "{text}"
        );
    }

    #[test]
    fn an_obstacle_with_a_remedy_is_no_failure() {
        let obstacle = Cause::new("services are in it").hint("take them out");
        assert_eq!(
            Reason::Failed(obstacle).to_string(),
            "services are in it; take them out"
        );
        let failed = Reason::Failed("it is gone".into()).to_string();
        assert_eq!(
            failed,
            "a host failed: it is gone; see the log of its dyscod"
        );
    }

    #[test]
    fn quotes_stay_and_what_a_terminal_obeys_does_not() {
        let text = "the proxy's \"relay\", see 'dyscoctl sessions' – \u{1b}[2J\n";
        let because = Reason::Failed(Cause::new(text).hint("\u{1b}")).to_string();
        let quoted = "the proxy's \"relay\", see 'dyscoctl sessions' – ";
        assert!(because.contains(quoted), "{because}");
        assert!(because.contains("\\u{1b}[2J\\n"), "{because}");
        assert!(!because.contains(char::is_control), "{because}");
    }

    #[test]
    fn a_hint_is_an_instruction_and_no_part_of_the_cause() {
        let host = HostId::from([10, 0, 0, 1]);
        for reason in [
            Reason::NoAgent(host),
            Reason::PortsExhausted,
            Reason::TimedOut(Phase::Preparing),
        ] {
            let (why, hint) = (reason.why(), reason.hint().unwrap_or_default());
            assert!(!hint.is_empty() && !why.contains(&hint), "{reason}");
            assert_eq!(reason.to_string(), format!("{why}; {hint}"));
        }
    }
}

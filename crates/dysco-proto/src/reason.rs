//! Reasons why a change was refused or rolled back. Each text names the problem, its cause and the
//! remedy, for an operator.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::meddling::{Meddling, Way};
use super::message::{ChangeId, HostId, Subsession};

/// Progress of a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The middlebox measures itself.
    Measuring,
    /// The middlebox has asked its neighbours to be the anchors.
    Leaving,
    /// The left anchor is locked. The right anchor, or the middlebox's proof, is awaited.
    Locking,
    /// The middlebox's part is settled; the anchors act.
    Locked,
    /// The left anchor prepares the new path.
    Preparing,
    /// Both anchors prepare the new path. It is tried afterwards.
    SettingUp,
    /// The left anchor cuts. From here on the change cannot be rolled back, unless the new path
    /// dies.
    Cutting,
    /// The left anchor has cut. The right one has not answered.
    Switching,
    /// Both anchors have cut. Old data drains.
    Draining,
    /// All old data has drained. The anchors and the middlebox release the old path.
    Completing,
    /// The middlebox closes its sockets.
    Closing,
    /// Rolling back.
    Cancelling,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Measuring => "measuring",
            Phase::Leaving => "asking the neighbours",
            Phase::Locking => "locking",
            Phase::Locked => "waiting for the anchors",
            Phase::Preparing => "preparing the new path",
            Phase::SettingUp => "setting up the new path",
            Phase::Cutting => "cutting",
            Phase::Switching => "switching",
            Phase::Draining => "draining",
            Phase::Completing => "completing",
            Phase::Closing => "closing the middlebox's sockets",
            Phase::Cancelling => "rolling back",
        })
    }
}

/// Reason of a refusal or a rollback. Text of another host is escaped when it is displayed. The
/// name in counters is the variant's.
#[derive(
    Clone,
    PartialEq,
    Eq,
    Hash,
    Debug,
    Serialize,
    Deserialize,
    thiserror::Error,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// No daemon answers at this host.
    #[error(
        "no dyscod answers at {0}: it is not running there, its control port is closed, or its certificate is of another authority; mend that, or leave this session alone"
    )]
    NoAgent(HostId),
    /// The data plane has not seen the session's SYN.
    #[error(
        "a host does not track {0}: no rule covers it, the table was full, or it was opened before dyscod ran there and could not be adopted; widen the tracking rules or max_sessions and restart dyscod there"
    )]
    NotTracked(Subsession),
    /// At least one host did not see both SYNs.
    #[error(
        "the opening of the session was not seen whole: it was opened when dyscod was started, or passes a host by; wait for a new connection"
    )]
    NotSeen,
    /// Another change has locked the session.
    #[error("the session is locked by change {0}: wait until that one ends, then ask again")]
    LockedByAnother(ChangeId),
    /// The middlebox still changes bytes.
    #[error(
        "the middlebox is not proven byte-transparent from now on: {}{}",
        tame(.0),
        unless_mended(.0, "; let it relay in TCP mode with splicing, or declare its listener transparent")
    )]
    NotTransparent(String),
    /// The middlebox added or removed bytes between two measurements.
    #[error(
        "the middlebox changed its byte count while the lock was taken (forward {before_forward} to {after_forward}, reverse {before_reverse} to {after_reverse}): it still rewrites; ask again when it only relays"
    )]
    DeltaMoved {
        /// First measurement.
        before_forward: i64,
        /// Second measurement.
        after_forward: i64,
        /// First measurement.
        before_reverse: i64,
        /// Second measurement.
        after_reverse: i64,
    },
    /// SACK is negotiated on one session only.
    #[error(
        "SACK is negotiated on one side of the middlebox only: SACK blocks cannot be invented; set net.ipv4.tcp_sack alike on all three hosts and wait for a new connection"
    )]
    SackMismatch,
    /// One end would send longer segments than the other end has agreed to accept.
    #[error(
        "segments of up to {sends} bytes from the {from} end would meet an end that takes {accepts}: give both sides of the middlebox the same MTU, or clamp the MSS, and wait for a new connection"
    )]
    MssMismatch {
        /// End that sends.
        from: End,
        /// MSS that was announced to this end.
        sends: u16,
        /// MSS that the other end announced.
        accepts: u16,
    },
    /// The window of one end is smaller than the other end needs in order to send.
    #[error(
        "the {end} end offers windows of {window} bytes, and the other end would send nothing into less than {needs}: the middlebox sends shorter segments than that one does; give the {end} end a larger receive buffer and wait for a new connection, or keep the middlebox"
    )]
    WindowTooSmall {
        /// End that offers the window.
        end: End,
        /// Widest known window of this end, in bytes.
        window: u32,
        /// Smallest sufficient window, in bytes.
        needs: u32,
    },
    /// The session uses MD5 or TCP-AO, or both ends agreed on MPTCP or AccECN.
    #[error(
        "the session uses MD5, TCP-AO, MPTCP or AccECN, which bind it to its five-tuple or which no translation knows: switch that option off for it, or keep the middlebox"
    )]
    Foreign,
    /// The anchor and the middlebox saw different openings.
    #[error(
        "{0} arrives changed at its other end (sequence numbers, clocks or options): something between the two hosts rewrites it; take that out, or keep the middlebox"
    )]
    Rewritten(Subsession),
    /// No source port is free.
    #[error(
        "all source ports for new paths to that server are taken: widen ports under [removal] on the left anchor's host, or wait until sessions end"
    )]
    PortsExhausted,
    /// The anchors cannot reach each other.
    #[error("there is no route to {0}: the anchors must reach each other without the middlebox")]
    NoRoute(HostId),
    /// The new path would not carry the session.
    #[error(
        "the new path cannot be used: {}; let the anchors' hosts reach each other on it, or keep the middlebox",
        tame(.0)
    )]
    NewPathUnusable(String),
    /// The path changes packets in a way that the session would not survive.
    #[error(
        "something {way} {does}; let the session pass there unchanged, or keep the hosts that it passes now"
    )]
    PathMeddles {
        /// Position of the change on the path.
        way: Way,
        /// Kind of the change.
        does: Meddling,
    },
    /// The new path has died after both anchors had taken it.
    #[error(
        "{0} does not answer any more on the new path, which both hosts had taken: the session is on the old one again; mend what lies between the two hosts, or keep the middlebox"
    )]
    NewPathSilent(HostId),
    /// The middlebox ended its sockets between two paths.
    #[error(
        "the middlebox died, or closed the session, before its removal had drained: {}, so both ends got a reset; see the middlebox's own log",
        undelivered(*.0)
    )]
    MiddleboxDied(u32),
    /// Two of the three hosts are the same.
    #[error(
        "two of client, middlebox and server are on the host {0}: this way of leaving needs three hosts; use another mode"
    )]
    SameHost(HostId),
    /// No answer arrived in time.
    #[error(
        "no answer in time while {0}: the control channel or a data plane is stuck; see `dyscoctl status` on the hosts of the session, then ask again"
    )]
    TimedOut(Phase),
    /// The session is ending.
    #[error("the session is closing or gone: nothing is left to change")]
    Closing,
    /// The operator cancelled the change.
    #[error("cancelled by the operator")]
    Cancelled,
    /// An anchor's daemon was restarted during the change.
    #[error("the daemon of an anchor was restarted in the middle of it: ask again")]
    Restarted,
    /// A host has no record of the change.
    #[error(
        "a host knows nothing of this change: it ended or its daemon started anew; ask again if the middlebox is still there"
    )]
    UnknownChange,
    /// The host has too many changes at once.
    #[error("the host {0} has as many changes under way as it takes: ask again in a while")]
    Busy(HostId),
    /// The record that must outlive a crash cannot be written.
    #[error(
        "the record of the change cannot be written: {}; free space in the state directory",
        tame(.0)
    )]
    NoRecord(String),
    /// A message named items that do not belong together.
    #[error(
        "the message {0} does not fit the change it names: run the same release of dyscod on all hosts of the session"
    )]
    Inconsistent(MessageName),
    /// No test has shown that replies reach the client.
    #[error(
        "it is not proven that replies from the server's host reach the client under the proxy's address: {}; allow them on the way, or use mode local",
        tame(.0)
    )]
    NotProven(String),
    /// The middlebox has left this session before.
    #[error(
        "the middlebox has left this session already; where its host relays the packets since (local, return), ask for mode bypass to take that host out too"
    )]
    AlreadyOut,
    /// A host failed, for the reason in its own text.
    #[error("a host failed at it: {}; see the log of its dyscod", tame(.0))]
    Failed(String),
    /// The requested chain is not possible.
    #[error("the session cannot have that chain: {}", tame(.0))]
    NoSuchChain(String),
    /// The firewall's state of the session was not copied.
    #[error(
        "what the old middlebox knows of the session could not be moved: {}",
        tame(.0)
    )]
    StateNotMoved(String),
    /// The new chain did not carry the session.
    #[error(
        "the new chain does not carry the session: {}; see that its hosts forward it and its firewalls accept it",
        tame(.0)
    )]
    ChainUnusable(String),
    /// The new chain does not carry the longest segments of the session.
    #[error(
        "the new chain is too narrow for the session: packets of {bytes} bytes, which this end may send, do not pass {}, or the longest of the other end not back; give its links the MTU that the session was opened with, or clamp the MSS there and wait for a new connection",
        tame(.way)
    )]
    ChainTooNarrow {
        /// The way of these packets, in words.
        way: String,
        /// The longest packet of the left end, with its headers.
        bytes: u16,
    },
    /// The delta that a middlebox declares is impossible.
    #[error(
        "what a middlebox says that it has added to the stream contradicts the sequence numbers: {}; have it say its delta anew ('dyscoctl delta' on its host), or leave it in the chain",
        tame(.0)
    )]
    DeltaContradicted(String),
    /// The stream has another size behind a middlebox, which has not said so.
    #[error(
        "the stream has another size at its two ends, and no middlebox has said by how much: {}; have it say its delta ('dyscoctl delta' on its host) once it changes nothing any more, or leave it in the chain",
        tame(.0)
    )]
    DeltaUntold(String),
    /// The delta cannot be confirmed, because the session has not come to rest.
    #[error(
        "a middlebox has said what it has added to the stream, and it cannot be confirmed yet: {}; ask again in a moment",
        tame(.0)
    )]
    DeltaUnconfirmed(String),
    /// A host that stays would see other numbers than before.
    #[error(
        "{0} stays in the chain, and a middlebox that has changed the size of the stream is on that host or behind it: the numbers would differ there from those it has seen; take that host out as well, and put it in again afterwards"
    )]
    DeltaBehind(HostId),
    /// The session was adopted, and possibly does not pass that host.
    #[error(
        "{0} began before dyscod ran on a host of it, and no packet of it has passed there both ways since: ask again, or once something was sent on it; if it stays so, its packets pass that host's dyscod by, or their addresses or sequence numbers are translated there (NAT, SYNPROXY)"
    )]
    NotHeard(Subsession),
    /// The packets have other addresses than their socket.
    #[error(
        "the addresses or ports of {0} are translated by this host itself (NAT), so that its packets are not called as its socket is, and relaying would pass the translation by: let the proxy listen, and send, where its clients and servers see it, or leave these sessions out of the rules for NAT; open ones keep the middlebox"
    )]
    Translated(Subsession),
    /// The host has not answered, so that it is unknown whether it runs and has the session.
    #[error(
        "{0} has not answered in time: no dyscod runs there, or it is not reached or trusted ('dyscoctl status' has it under Peers), or the session does not pass that host; mend that, then ask again"
    )]
    NoAnswer(HostId),
    /// A new path has died under another session.
    #[error(
        "a new path to {0} has died under another session in the last five minutes; mend what lies between the two hosts, then wait that long, or ask with --mode bypass; or keep the middlebox"
    )]
    PathDied(HostId),
    /// The proxy uses the address of another host.
    #[error(
        "the proxy uses the address {0}, which is not this host's (TPROXY; in HAProxy `usesrc` or `bind ... transparent`): packets to that address reach it by rules of this host alone, which no removal follows; let the proxy use an address of this host, or keep the middlebox"
    )]
    BorrowedAddress(HostId),
}

/// Returns another host's text without characters that control a terminal. Quotes and backslashes
/// stay as they are.
fn tame(text: &str) -> String {
    let mut tame = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' | '\\' => tame.push(c),
            _ => tame.extend(c.escape_debug()),
        }
    }
    tame
}

fn undelivered(bytes: u32) -> String {
    match bytes {
        0 => "what it held was not delivered".into(),
        1 => "it held 1 byte that it had taken and not delivered".into(),
        _ => format!("it held {bytes} bytes that it had taken and not delivered"),
    }
}

/// Returns this remedy, or nothing if the text contains a remedy already, which is more specific.
fn unless_mended(text: &str, mend: &'static str) -> &'static str {
    match text.contains("; ") {
        true => "",
        false => mend,
    }
}

impl Reason {
    /// Returns true if a time limit was the cause. The request may succeed later.
    pub fn is_of_time(&self) -> bool {
        matches!(self, Reason::TimedOut(_) | Reason::NoAnswer(_))
    }

    /// Returns true if the reason concerns only the part of the two neighbours. The proxy's host
    /// may then act alone.
    pub fn local_would_do(&self) -> bool {
        match self {
            Reason::NoAgent(_)
            | Reason::NoAnswer(_)
            | Reason::NotTracked(_)
            | Reason::NotSeen
            | Reason::NotHeard(_)
            | Reason::Rewritten(_)
            | Reason::PortsExhausted
            | Reason::NoRoute(_)
            | Reason::NewPathUnusable(_)
            | Reason::PathMeddles { .. }
            | Reason::NewPathSilent(_)
            | Reason::PathDied(_)
            | Reason::NotProven(_)
            | Reason::SameHost(_)
            | Reason::TimedOut(_)
            | Reason::NoRecord(_)
            | Reason::Inconsistent(_)
            | Reason::Failed(_) => true,
            Reason::LockedByAnother(_)
            | Reason::NotTransparent(_)
            | Reason::DeltaMoved { .. }
            | Reason::SackMismatch
            | Reason::MssMismatch { .. }
            | Reason::WindowTooSmall { .. }
            | Reason::Foreign
            | Reason::Closing
            | Reason::Cancelled
            | Reason::Restarted
            | Reason::UnknownChange
            | Reason::AlreadyOut
            | Reason::MiddleboxDied(_)
            | Reason::NoSuchChain(_)
            | Reason::StateNotMoved(_)
            | Reason::ChainUnusable(_)
            | Reason::ChainTooNarrow { .. }
            | Reason::DeltaContradicted(_)
            | Reason::DeltaUntold(_)
            | Reason::DeltaUnconfirmed(_)
            | Reason::DeltaBehind(_)
            | Reason::Translated(_)
            | Reason::BorrowedAddress(_)
            | Reason::Busy(_) => false,
        }
    }
}

/// One of a session's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum End {
    /// The end that opened the session.
    Left,
    /// The end that accepted the session.
    Right,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Left => "left",
            End::Right => "right",
        })
    }
}

/// Messages that can be inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum MessageName {
    /// `AckLock`.
    AckLock,
}

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_one_mend() {
        let told = |why: &str| Reason::NotTransparent(why.into()).to_string();
        let own = "no shim has reported it; name its listener";
        assert!(told(own).ends_with(own), "{}", told(own));
        let none = told("the configuration says `transparent = false` of it");
        assert!(
            none.ends_with("or declare its listener transparent"),
            "{none}"
        );
    }

    #[test]
    fn who_waited_in_vain_hears_of_the_time() {
        let host = HostId::from([10, 0, 0, 1]);
        for late in [Reason::NoAnswer(host), Reason::TimedOut(Phase::Preparing)] {
            assert!(late.is_of_time(), "{late}");
        }
        for other in [Reason::NoAgent(host), Reason::Closing, Reason::Cancelled] {
            assert!(!other.is_of_time(), "{other}");
        }
    }

    #[test]
    fn quotes_stay_and_what_a_terminal_obeys_does_not() {
        let text = "the proxy's \"relay\", see 'dyscoctl sessions' – \u{1b}[2J\n";
        let told = Reason::Failed(text.into()).to_string();
        let quoted = "the proxy's \"relay\", see 'dyscoctl sessions' – ";
        assert!(told.contains(quoted), "{told}");
        assert!(told.contains("\\u{1b}[2J\\n"), "{told}");
        assert!(!told.contains(char::is_control), "{told}");
    }
}

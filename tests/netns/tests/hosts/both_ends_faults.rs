//! Services at both ends while a message between the two hosts is lost, or while a daemon dies.

use std::time::Duration;

use Role::{Client, Server};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Role, fleet, wait};

use crate::both_ends::BothEnds;

const PATIENCE: Duration = Duration::from_secs(60);

/// A host, and a message or a step there.
type At = (Role, &'static str);

/// Messages and their senders while services come in by the client's host.
const COMING: [At; 8] = [
    (Client, "ServiceInvite"),
    (Server, "ServiceInvited"),
    (Client, "ServiceProceed"),
    (Server, "ServiceReady"),
    (Client, "ServiceCutIn"),
    (Server, "ServiceCutIn"),
    (Client, "ServiceDoneIn"),
    (Server, "ServiceDoneIn"),
];

/// The same while they leave.
const LEAVING: [At; 8] = [
    (Client, "ServiceLeave"),
    (Server, "ServiceLeaving"),
    (Client, "ServiceCutOut"),
    (Server, "ServiceCutOut"),
    (Client, "ServiceDoneOut"),
    (Server, "ServiceDoneOut"),
    (Client, "ServiceOut"),
    (Server, "ServiceOut"),
];

/// The same while one comes in beside another, or leaves it.
const ALTERING: [At; 2] = [(Client, "ServiceAlter"), (Server, "ServiceAltered")];

/// Points at which a daemon may die while services come in, before the session has changed.
const DIES_BEFORE: [At; 6] = [
    (Client, "ServiceInvite"),
    (Server, "ServiceInvited"),
    (Client, "ServiceOffer"),
    (Server, "ServiceOffer"),
    (Client, "ServiceAccepted"),
    (Server, "ServiceAccepted"),
];

/// The same between the orders of both hosts. The session may be reset.
const DIES_BETWEEN: [At; 4] = [
    (Client, "ServiceProceed"),
    (Server, "ServiceEnter"),
    (Server, "ServiceReady"),
    (Client, "ServiceEnter"),
];

/// The same after both orders.
const DIES_ENTERING: [At; 6] = [
    (Client, "ServiceCutIn"),
    (Server, "ServiceCutIn"),
    (Client, "ServiceDoneIn"),
    (Server, "ServiceDoneIn"),
    (Client, "ServiceIn"),
    (Server, "ServiceIn"),
];

/// The same while services leave.
const DIES_LEAVING: [At; 14] = [
    (Client, "ServiceLeaveBack"),
    (Client, "ServiceLeave"),
    (Server, "ServiceLeaveBack"),
    (Server, "ServiceLeaveOut"),
    (Server, "ServiceLeaving"),
    (Client, "ServiceLeaveOut"),
    (Client, "ServiceCutOut"),
    (Server, "ServiceCutOut"),
    (Client, "ServiceDoneOut"),
    (Server, "ServiceDoneOut"),
    (Client, "ServiceOut"),
    (Server, "ServiceOut"),
    (Client, "ServiceForget"),
    (Server, "ServiceForget"),
];

/// Makes a change during which each of these messages is lost once. `back` reverses the change.
fn each_is_lost(
    both: &BothEnds,
    group: &Group,
    messages: &[At],
    change: (&[&str], &str),
    back: (&[&str], &str),
) -> Result<()> {
    for (at, message) in messages {
        let told = || format!("{message} of {at:?} was lost");
        let host = both.here.lab.host(*at);
        let before = fleet::lost(host, message)?;
        both.set_faults(*at, &format!("drop:{message}"))?;
        both.here.change(change.0, change.1, 1).with_context(told)?;
        let lost = || (fleet::lost(host, message).ok()? > before).then_some(());
        wait::until("the message to be lost", PATIENCE, lost).with_context(told)?;
        both.set_faults(*at, "")?;
        group.wait_progress(100_000).with_context(told)?;
        settle(both).with_context(told)?;
        both.here.change(back.0, back.1, 1).with_context(told)?;
        settle(both).with_context(told)?;
        group.wait_progress(100_000).with_context(told)?;
    }
    Ok(())
}

/// Waits until no change is under way on either host, and both have the same services. Returns their
/// number of sessions with services.
fn settle(both: &BothEnds) -> Result<usize> {
    let mut seen = String::new();
    let settled = || {
        let [here, there] = [Client, Server].map(|role| both.list(role).ok());
        seen = format!("{here:#?}\n{there:#?}");
        let (here, there) = (here?, there?);
        let rests = here.iter().chain(&there).all(|row| row["state"] == "in");
        (rests && here.len() == there.len()).then_some(here.len())
    };
    wait::until("both hosts to come to rest", PATIENCE, settled).with_context(|| seen)
}

#[test]
fn each_message_is_lost_once() -> Result<()> {
    let both = BothEnds::failing("pairlost")?;
    let group = both.here.open(1, &Plan::gentle())?;
    let put: (&[&str], _) = (&["put", "+crypt"], "put");
    let take: (&[&str], _) = (&["take"], "taken");
    each_is_lost(&both, &group, &COMING, put, take)?;
    both.here.change(put.0, put.1, 1)?;
    settle(&both)?;
    each_is_lost(&both, &group, &LEAVING, take, put)?;
    let more: (&[&str], _) = (&["put", "+compress"], "put");
    let less: (&[&str], _) = (&["take", "+compress"], "taken");
    each_is_lost(&both, &group, &ALTERING, more, less)?;
    both.here.change(more.0, more.1, 1)?;
    each_is_lost(&both, &group, &ALTERING, less, more)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

/// A daemon dies at each of these points, each time with a new session, while services come in, or
/// while they leave. Once its successor runs, the session goes on, and can get services as before. A
/// session that `may_end` may be reset, and has no wrong byte and no clean end with bytes missing.
fn dies_at_each(name: &str, deaths: &[At], leaving: bool, may_end: bool) -> Result<()> {
    let mut both = BothEnds::failing(name)?;
    for (at, step) in deaths {
        let told = || format!("{at:?} died at {step}");
        let group = both.here.open(1, &Plan::gentle())?;
        let change: &[&str] = match leaving {
            true => {
                both.here.change(&["put", "+crypt"], "put", 1)?;
                settle(&both)?;
                &["take"]
            }
            false => &["put", "+crypt"],
        };
        both.set_faults(*at, &format!("die:{step}"))?;
        // The daemon that serves the command may die.
        let _ = (both.here).service(&[change, &["--filter", "port=9000"]].concat());
        both.succeed(*at).with_context(told)?;
        let served = settle(&both).with_context(told)?;
        let lives = group.wait_progress(1 << 18);
        if may_end && lives.is_err() {
            ensure!(served == 0, "{}: services without a session", told());
        } else {
            lives.with_context(told)?;
            if served == 0 {
                both.here
                    .change(&["put", "+crypt"], "put", 1)
                    .with_context(told)?;
                settle(&both).with_context(told)?;
            }
            both.here.change(&["take"], "taken", 1).with_context(told)?;
            ensure!(settle(&both)? == 0, "{}", told());
        }
        let ends = group.finish().with_context(told)?;
        match may_end && ends.iter().any(|end| end.client.error.is_some()) {
            true => {
                let wrong = ends.iter().flat_map(|o| [&o.client, &o.server]);
                let wrong = wrong.filter(|end| end.wrong_at.is_some() || end.error.is_none());
                ensure!(wrong.count() == 0, "{}: {ends:?}", told());
            }
            false => all_intact(&ends).with_context(told).map(drop)?,
        }
    }
    both.finish()
}

#[test]
fn a_daemon_dies_before_services_come_in() -> Result<()> {
    dies_at_each("pairdiesa", &DIES_BEFORE, false, false)
}

#[test]
fn a_daemon_dies_between_the_orders_of_both_hosts() -> Result<()> {
    dies_at_each("pairdiesb", &DIES_BETWEEN, false, true)
}

#[test]
fn a_daemon_dies_while_services_come_in() -> Result<()> {
    dies_at_each("pairdiesc", &DIES_ENTERING, false, true)
}

#[test]
fn a_daemon_dies_while_services_leave() -> Result<()> {
    dies_at_each("pairdiesd", &DIES_LEAVING, true, false)
}

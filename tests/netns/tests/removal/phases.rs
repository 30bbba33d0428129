//! Sessions end in each way while their removal is held in each phase.

use std::time::Duration;

use Role::{Client, Proxy, Server};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Group, Outcome, Reading, Side, all_intact};
use dysco_netns::{Family, Lab, Role, wait};

use crate::world::{DECLARED, World};

const LIMIT: Duration = Duration::from_secs(60);

/// All ways in which a session ends, except a close of both sides at the same time.
const WAYS: [Close; 4] = [
    Close::First(Side::Client),
    Close::First(Side::Server),
    Close::Reset(Side::Client),
    Close::Reset(Side::Server),
];

/// Builds a world whose logs contain all actions of the daemons, so that the phases are visible.
fn world(name: &str) -> Result<World> {
    let config = format!("{DECLARED}[log]\nfilter = \"dysco_daemon::engine=debug\"\n");
    let lab = Lab::builder(name);
    World::with(lab, Family::V4, &Role::ALL, &config, |c| c)
}

/// Begins the removal of all sessions and waits until the daemon of `role` has carried out
/// `command` for each.
fn hold(w: &mut World, groups: &[Group], role: Role, command: &str) -> Result<()> {
    hold_at(w, groups, role, &format!("{command} {{ change"), 1)
}

/// Begins the removal of all sessions and waits until the log contains `word` this many times for
/// each.
fn hold_at(w: &mut World, groups: &[Group], role: Role, word: &str, times: usize) -> Result<()> {
    let before = w.daemon(role)?.log().matches(word).count();
    for group in groups {
        w.begin(&w.ends(group)?[0])?;
    }
    let daemon = w.daemon(role)?;
    wait::until("the phase", LIMIT, || {
        let done = daemon.log().matches(word).count();
        (done >= before + times * groups.len()).then_some(())
    })
    .with_context(|| format!("{word} on {role:?}"))
}

/// Ends the sessions, and then lets the removals continue. Finally no host has anything left to do.
fn end(w: &World, groups: Vec<Group>, ways: &[Close]) -> Result<()> {
    end_by(w, groups, ways, all, &|_| Ok(()))
}

fn all(_: Close, outcomes: &[Outcome]) -> Result<()> {
    all_intact(outcomes).map(drop)
}

/// Ends the sessions in the same way. `judge` checks the sessions of each way to end, and `ended`
/// runs before the removals may continue.
fn end_by(
    w: &World,
    groups: Vec<Group>,
    ways: &[Close],
    judge: fn(Close, &[Outcome]) -> Result<()>,
    ended: &dyn Fn(&World) -> Result<()>,
) -> Result<()> {
    for group in &groups {
        group.stop();
        group.set_reading(Side::Server, Reading::Fast);
        group.set_reading(Side::Client, Reading::Fast);
    }
    for (group, way) in groups.into_iter().zip(ways) {
        let judged = group.finish().and_then(|o| judge(*way, &o));
        judged.with_context(|| format!("{way:?}\n{}", w.state()))?;
    }
    ended(w)?;
    Role::ALL.iter().try_for_each(|role| w.fault(*role, ""))?;
    let quiet = |role: &Role| {
        let counters = w.counters(*role);
        counters.is_ok_and(|c| c["changes_under_way"] == 0)
    };
    wait::until("all changes to end", LIMIT, || {
        Role::ALL.iter().all(quiet).then_some(())
    })
    .with_context(|| w.state())
}

#[test]
fn before_the_cut_and_with_one_cut_only() -> Result<()> {
    let mut w = world("cut")?;
    let held = w.open_to_end(&WAYS)?;
    w.fault(Role::Client, "lose:SetUp")?;
    hold(&mut w, &held, Role::Client, "Prepare")?;
    end(&w, held, &WAYS).context("before the cut")?;

    let ways = [&WAYS[..], &[Close::Together]].concat();
    let held = w.open_to_end(&ways)?;
    w.fault(Role::Client, "lose:Switched")?;
    hold(&mut w, &held, Role::Client, "Cut")?;
    // With the client's data the other end's new data takes the new path as well, and its FIN.
    for group in &held {
        group.wait_progress(200_000)?;
    }
    end(&w, held, &ways).context("with one cut only")?;
    w.finish()
}

/// The left anchor holds a FIN of the old path back until it knows the other end's cutoff.
#[test]
fn at_once_after_the_first_cut() -> Result<()> {
    let mut w = world("first")?;
    let ways = [&WAYS[..], &[Close::Together]].concat();
    let held = w.open_to_end(&ways)?;
    w.fault(Role::Client, "lose:Switched")?;
    hold(&mut w, &held, Role::Client, "Cut")?;
    for group in &held {
        group.stop();
    }
    w.fault(Role::Client, "")?;
    end(&w, held, &ways)?;
    w.finish()
}

#[test]
fn while_draining_and_before_done() -> Result<()> {
    let mut w = world("drain")?;
    let ways = [&WAYS[..], &[Close::Together]].concat();
    for paused in [Side::Server, Side::Client] {
        let held = w.open_to_end(&ways)?;
        for group in &held {
            group.set_reading(paused, Reading::Paused);
        }
        hold(&mut w, &held, Role::Client, "SetCutIn")?;
        end(&w, held, &ways).with_context(|| format!("draining to {paused:?}"))?;
    }

    let held = w.open_to_end(&ways)?;
    w.fault(Role::Client, "lose:Done")?;
    hold(&mut w, &held, Role::Client, "Complete")?;
    end(&w, held, &ways).context("before Done")?;
    w.finish()
}

/// Holds a removal in a phase: the faults of hosts, and the word in a host's log, with its number
/// per removal, that shows that the phase has been reached.
struct Hold {
    phase: &'static str,
    faults: &'static [(Role, &'static str)],
    seen: (Role, &'static str, usize),
}

const fn held(
    phase: &'static str,
    faults: &'static [(Role, &'static str)],
    seen: (Role, &'static str, usize),
) -> Hold {
    Hold {
        phase,
        faults,
        seen,
    }
}

/// Phases before the left anchor cuts over.
const EARLY: [Hold; 7] = [
    held(
        "measuring",
        &[(Proxy, "lose:Measure")],
        (Proxy, "Measure is lost", 1),
    ),
    // Both the claim and the proof are measurements.
    held(
        "asking the left anchor",
        &[(Proxy, "lose:Leave")],
        (Proxy, "Measure { change", 2),
    ),
    held(
        "with the left anchor locked",
        &[(Proxy, "lose:Introduce")],
        (Client, "Lock { change", 1),
    ),
    held(
        "with the left anchor's word lost",
        &[(Client, "lose:RequestLock")],
        (Server, "Lock { change", 1),
    ),
    held(
        "with the right anchor's word lost",
        &[(Server, "lose:Introduced")],
        (Server, "Lock { change", 1),
    ),
    held(
        "locked",
        &[(Proxy, "lose:AckLock")],
        (Proxy, "Persist { change", 1),
    ),
    held(
        "with the new path heard at the right anchor alone",
        &[(Server, "lose:SetUpAck,drop:SetUpNack")],
        (Server, "Prepare { change", 1),
    ),
];

/// The left anchor rolls back, after it has waited for the right anchor in vain.
const BACK: Hold = held(
    "taking it back",
    &[
        (Client, "lose:SetUp"),
        (Proxy, "lose:CancelAck"),
        (Server, "lose:CancelAck"),
    ],
    (Client, "Unprepare { change", 1),
);

/// Phases after both anchors have cut over.
const LATE: [Hold; 4] = [
    held(
        "with both cut, which the left anchor has not heard",
        &[(Server, "lose:Switched")],
        (Server, "Cut { change", 1),
    ),
    held(
        "drained",
        &[(Server, "lose:Drained")],
        (Server, "Drained is lost", 1),
    ),
    held(
        "with the new path alone at the right anchor",
        &[(Server, "lose:DoneAck")],
        (Server, "Complete { change", 1),
    ),
    held(
        "with the proxy's sockets closed",
        &[(Proxy, "lose:DoneAck")],
        (Proxy, "Close { change", 1),
    ),
];

/// Checks that all bytes arrived. After a close of both sides at the same time, HAProxy itself may
/// cut off the rest, but the bytes that arrived must be correct.
fn through_haproxy(close: Close, outcomes: &[Outcome]) -> Result<()> {
    if close != Close::Together {
        return all_intact(outcomes).map(drop);
    }
    for o in outcomes {
        let right = [(&o.client, &o.server), (&o.server, &o.client)]
            .iter()
            .all(|(from, to)| to.wrong_at.is_none() && to.received <= from.sent);
        ensure!(right, "{o:?}");
    }
    Ok(())
}

/// Number of removals that ended because their session ended, and not because of a time-out.
fn ended_by_close(w: &World) -> Result<u64> {
    let counters = w.counters(Proxy)?;
    Ok(counters["changes_not_done_closing"].as_u64().unwrap_or(0))
}

/// Ends sessions in each way in this phase.
fn ends_in(
    w: &mut World,
    hold: &Hold,
    judge: fn(Close, &[Outcome]) -> Result<()>,
    ended: &dyn Fn(&World) -> Result<()>,
) -> Result<()> {
    let ways = [&WAYS[..], &[Close::Together]].concat();
    let groups = w.open_to_end(&ways)?;
    for (role, words) in hold.faults {
        w.fault(*role, words)?;
    }
    let (role, word, times) = hold.seen;
    hold_at(w, &groups, role, word, times)?;
    end_by(w, groups, &ways, judge, ended)
}

#[test]
fn while_it_is_measured_and_while_anchors_lock() -> Result<()> {
    let mut w = world("early")?;
    for hold in &EARLY {
        let goal = ended_by_close(&w)? + WAYS.len() as u64 + 1;
        let ended = |w: &World| {
            wait::until("removals to end with their sessions", LIMIT, || {
                (ended_by_close(w).ok()? == goal).then_some(())
            })
            .with_context(|| w.state())
        };
        ends_in(&mut w, hold, through_haproxy, &ended).context(hold.phase)?;
    }
    ends_in(&mut w, &BACK, through_haproxy, &|_| Ok(())).context(BACK.phase)?;
    let lost = w.lost(Server, "SetUpNack")?;
    ensure!(lost == 1, "SetUpNack was lost {lost} times");
    w.finish()
}

#[test]
fn after_both_have_cut() -> Result<()> {
    let mut w = world("late")?;
    for hold in &LATE {
        ends_in(&mut w, hold, all, &|_| Ok(())).context(hold.phase)?;
    }
    w.finish()
}

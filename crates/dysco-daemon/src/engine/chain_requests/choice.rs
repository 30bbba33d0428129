//! The sessions that a request for another chain concerns, and the change of each.

use std::time::Instant;

use dysco_api::{ChainChange, ElementName, Failure, FailureCode, HostName, Reconfigure, Which};
use dysco_common::{Element, View};
use dysco_proto::asks::ChainWish;
use dysco_proto::{KindName, Margins, Order, Reason, Subsession};

use super::fits::{fits, is_whole, live, pairs};
use super::task::{Task, Whose, failure};
use crate::engine::chain_updates::opener::opens;
use crate::engine::core::Core;
use crate::engine::listing::{named, shows};
use crate::engine::{Plane, measure};

/// Returns the change with the addresses of all hosts; this host may have any of its own
/// addresses.
pub(super) fn resolved(here: &Plane, chain: &ChainChange) -> Result<ChainWish, Failure> {
    let own = || {
        let why = "this host has no address".into();
        failure(
            FailureCode::BadRequest,
            why,
            "name hosts by their addresses",
        )
    };
    let first = here.config.host.addresses.first().copied();
    let ip = |host: &HostName| match host {
        HostName::Address(ip) => Ok(*ip),
        _ => here.resolve(host)?.or(first).ok_or_else(own),
    };
    let element = |name: &ElementName| match name {
        ElementName::Host(host) => ip(host).map(Element::Host),
    };
    Ok(match chain {
        ChainChange::Become(all) => {
            ChainWish::Become(all.iter().map(element).collect::<Result<_, _>>()?)
        }
        ChainChange::Insert(new) => ChainWish::Insert(element(new)?),
        ChainChange::Replace { old, new } => ChainWish::Replace(element(old)?, element(new)?),
        ChainChange::Remove(old) => ChainWish::Remove(element(old)?),
    })
}

/// Returns the slots that a request concerns.
pub(super) fn chosen(
    here: &Plane,
    request: &Reconfigure,
    wish: &ChainWish,
) -> Result<Vec<u32>, Failure> {
    let through = match &request.which {
        Which::Sessions(names) => return named(here, names),
        Which::Through(host) => match here.resolve(host)? {
            Some(host) => Some(host),
            None => return Ok(here.passing_here()),
        },
        Which::Filter(_) | Which::All => None,
    };
    let mut all = here.agent.sessions();
    all.retain(|(_, s)| opens(s));
    // If an element is to leave chains, the sessions are those that pass its host, whichever host
    // opened them.
    let leaves = |old: Element| here.config.host.addresses.contains(&old.host());
    let leaves_here = wish.leaves().is_some_and(leaves);
    if leaves_here {
        let passing = here.passing_here().into_iter();
        let passing = passing.map(|slot| (slot, here.agent.session(slot)));
        match &request.which {
            Which::All => return Ok(passing.map(|(slot, _)| slot).collect()),
            Which::Filter(_) => all = passing.collect(),
            Which::Through(_) | Which::Sessions(_) => {}
        }
    }
    Ok(all
        .into_iter()
        .filter(|(slot, s)| {
            let now = here.chain_now(*slot, s);
            let meant = leaves_here || wish.makes_sense(&now);
            match &request.which {
                Which::Filter(filter) => meant && shows(here, *slot, filter),
                Which::Through(_) => {
                    through.is_some_and(|host| now.iter().any(|e| e.host() == host))
                }
                // A session that is opening does not yet count. A session that was adopted and
                // not heard since counts, and is refused for that reason.
                _ => meant && (live(s) || s.view() == View::Adopted),
            }
        })
        .map(|(slot, _)| slot)
        .collect())
}

/// Returns one session's part of a request, and the objection to it.
pub(super) fn chain_task(
    core: &Core,
    whose: Whose,
    slot: u32,
    wish: &ChainWish,
    state: &[KindName],
) -> (Task, Result<(), Reason>) {
    let s = core.host.plane.agent.session(slot);
    let before = core.host.plane.chain_now(slot, &s);
    let after = wish.apply(&before);
    let mut task = task_of_chain(
        &core.host.plane,
        whose,
        slot,
        measure::opened(&s.name()),
        wish,
    );
    task.order.before = before.clone();
    task.order.after = after.clone().unwrap_or_default();
    let judged = after.and_then(|after| {
        fits(core, &s, &before, &after)?;
        if !state.is_empty() {
            task.kinds = state.to_vec();
            task.order.state = pairs(&before, &after)?;
        }
        if wish.is_about_one() && is_whole(&s) {
            task.order.margins = Margins::between(&before, &after);
        }
        Ok(())
    });
    (task, judged)
}

/// Returns a change whose result is not known yet.
pub(super) fn task_of_chain(
    here: &Plane,
    whose: Whose,
    slot: u32,
    session: Subsession,
    wish: &ChainWish,
) -> Task {
    let s = here.agent.session(slot);
    let order = Order {
        session,
        before: Vec::new(),
        after: Vec::new(),
        margins: Margins::default(),
        state: Vec::new(),
        paths: Vec::new(),
        number: 0,
    };
    Task {
        whose,
        session: here.session_id(slot, &s),
        local: s.key.local(),
        remote: s.key.remote(),
        order,
        wish: wish.clone(),
        whole: is_whole(&s),
        kinds: Vec::new(),
        dry: false,
        asked: Instant::now(),
        begun: None,
    }
}

//! A batch that holds sessions that are refused, that end meanwhile and that are being changed
//! already, besides others.

use dysco_netns::stream::{Amount, Close, Side};

use super::*;

/// Port of a listener for which nobody vouches.
const UNDECLARED: u16 = 8081;

fn running(w: &World, port: u16, count: usize, plan: &Plan) -> Result<(Group, Vec<Ends>)> {
    let group = w.open_at(port, count, plan)?;
    let goals = group.goals(Side::Client, 1_000);
    group.run();
    group.wait_goals(Side::Client, &goals)?;
    let ends = w.ends(&group)?;
    Ok((group, ends))
}

/// Waits until the proxy's host has this many changes in progress.
fn wait_under_way(w: &World, count: usize) -> Result<()> {
    wait::until("changes in progress", SETTLED, || {
        let counters = w.counters(Proxy).ok()?;
        (counters["changes_under_way"].as_u64()? >= count as u64).then_some(())
    })
}

#[test]
#[ignore = "has not run to its end yet: it waits in its preparation or in its batch"]
fn each_session_of_a_mixed_batch_is_reported_once_and_truly() -> Result<()> {
    let config = format!("{}[removal]\nconcurrency = 64\n", crate::world::DECLARED);
    let w = World::with(
        Lab::builder("mixed"),
        Family::V4,
        &Role::ALL,
        &config,
        |c| c,
    )?;
    let undeclared = w.proxy("undeclared", UNDECLARED, |c| c)?;
    let few = (many() / 10).min(40);
    // Nothing is ever spliced in the direction of requests, and nobody vouches for it.
    let download = Plan {
        up: Amount::Bytes(0),
        close: Close::First(Side::Server),
        ..slow()
    };
    let (refused, refused_ends) = running(&w, UNDECLARED, few, &download)?;
    let (busy, busy_ends) = running(&w, crate::world::PROXY_PORT, few, &slow())?;
    let (closing, _) = running(&w, crate::world::PROXY_PORT, few, &slow())?;
    let (good, good_ends) = running(&w, crate::world::PROXY_PORT, many(), &slow())?;
    closing.rest()?;

    // Until the message comes through, these changes stay at their lock.
    w.fault(Role::Server, "lose:Introduced")?;
    let names: Vec<_> = busy_ends.iter().map(Ends::name).collect();
    let mut words = vec!["remove-middlebox", "self", "--mode", w.mode];
    words.extend(names.iter().flat_map(|name| ["--session", name]));
    w.fleet.dyscoctl(&w.lab.proxy, &words)?;
    wait_under_way(&w, few)?;
    let batch = begun(&w, "batch")?;
    wait_under_way(&w, few + 1)?;
    closing.stop();
    w.fault(Role::Server, "")?;

    let done = ended(batch)?;
    let said = outcomes(&done)?;
    let all_of = |ends: &[Ends], outcome: &str| {
        let other = ends
            .iter()
            .find(|e| said.get(&e.client).is_none_or(|o| o != outcome));
        ensure!(other.is_none(), "not {outcome}: {other:?} {done:#}");
        Ok(())
    };
    all_of(&good_ends, "removed")?;
    all_of(&refused_ends, "refused")?;
    all_of(&busy_ends, "refused")?;
    all_intact(&closing.finish()?)?;
    let all = [&good_ends[..], &refused_ends].concat();
    true_of(&all, &w.settle(&all)?, &said)?;
    // The request that came first removes those.
    let fates = w.settle(&busy_ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Removed), "{fates:?}");

    refused.rest()?;
    for group in [good, busy, refused] {
        all_intact(&group.finish()?)?;
    }
    w.no_resets()?;
    drop(undeclared);
    w.finish()
}

//! A batch of sessions that differ.

use dysco_netns::counters;

use super::*;

/// Number of sessions of each kind.
const EACH: usize = 30;

/// Runs `dyscoctl service` on the client's host.
fn service(w: &World, words: &[&str]) -> Result<Value> {
    let words = [&["service"], words, &["--wait"]].concat();
    w.fleet.json(&w.lab.client, &words)
}

/// Some sessions are refused, some are in another batch, and some close meanwhile. The others lose
/// their proxy all the same.
#[test]
fn each_session_of_a_batch_has_its_own_fate() -> Result<()> {
    let w = World::new(Lab::builder("mixed"), Family::V4)?;
    let (group, ends) = opened(&w, 3 * EACH)?;
    let closing = w.open(EACH, &slow())?;
    closing.run();
    closing.wait_progress(1_000)?;
    let closing_ends = w.ends(&closing)?;
    let (served, rest) = ends.split_at(EACH);
    let (busy, plain) = rest.split_at(EACH);

    let names = served.iter().map(|e| format!("{}>{}", e.client, e.listen));
    let names: Vec<_> = names.collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let put = service(&w, &[&["put", "+null"], &names[..]].concat())?;
    ensure!(put["summary"]["put"] == EACH, "{put:#}");

    let names: Vec<_> = busy.iter().map(Ends::name).collect();
    let which: Vec<_> = names.iter().flat_map(|n| ["--session", n]).collect();
    let some = begun_of(&w, "some", &which)?;
    let all = begun(&w, "all")?;
    all_intact(&closing.finish()?)?;
    let (some, all) = (ended(some)?, ended(all)?);

    let of_some = outcomes(&some)?;
    let of_all = outcomes(&all)?;
    let in_all = |e: &Ends| of_all.get(&e.client).map(String::as_str);
    for e in plain {
        ensure!(in_all(e) == Some("removed"), "{e:?}: {all:#}");
    }
    for e in busy {
        let both = [of_some.get(&e.client).map(String::as_str), in_all(e)];
        let removed = both.iter().filter(|o| **o == Some("removed")).count();
        ensure!(removed == 1, "{e:?} was removed {removed} times: {both:?}");
    }
    let removals = all["removals"].as_array().context("no removals")?;
    for e in served {
        let kept = matches!(in_all(e), Some("refused" | "rolled_back"));
        let own = removals.iter().find(|r| r["remote"] == *e.client);
        let why = own.map(|r| r["reason"].to_string()).unwrap_or_default();
        ensure!(kept && why.contains("services"), "{e:?}: {own:#?}");
    }
    // A session that closes may have lost its proxy before.
    let strangers = of_all.keys().filter(|remote| {
        let known = ends.iter().chain(&closing_ends);
        !known.map(|e| &e.client).any(|c| c == *remote)
    });
    ensure!(strangers.count() == 0, "{all:#}");

    let taken = service(&w, &["take", "--all"])?;
    ensure!(taken["summary"]["taken"] == EACH, "{taken:#}");
    let w = finish_sessions(w, group, &ends)?;
    // An end that has closed meanwhile may answer the acknowledgement of its FIN, which the other
    // end repeats by the new path, with a reset. No end is there any more to receive it.
    for host in [&w.lab.client, &w.lab.server] {
        let reset = counters::sessions_reset(host)?;
        ensure!(reset == 0, "{reset} sessions were reset\n{}", w.state());
    }
    w.finish()
}

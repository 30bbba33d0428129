//! Services come into sessions that pass firewalls, and leave them.

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Group, Plan, Side, all_intact};
use dysco_netns::{Family, wait};
use serde_json::Value;

use crate::steered::policy::rule;
use crate::steered::ways::nothing_refused;
use crate::steered::{At, PATIENCE, Steered};

const COUNT: usize = 4;

/// Runs `dyscoctl service` for all sessions to the server, and waits for the end.
fn service(world: &Steered, at: At, words: &[&str]) -> Result<Vec<Value>> {
    let filter = ["--filter", "port=9000", "--wait"];
    let done = world.try_json(at, &[&["service"], words, &filter].concat())?;
    let all = done["sessions"].as_array().cloned();
    all.with_context(|| format!("{words:?}: {done:#}\n{}", world.logs()))
}

/// The same, for a change that all sessions must take part in.
fn change(world: &Steered, at: At, words: &[&str], outcome: &str) -> Result<()> {
    let done = service(world, at, words)?;
    let fit = done.iter().all(|one| one["outcome"] == outcome);
    ensure!(fit && done.len() == COUNT, "{done:#?}\n{}", world.logs());
    Ok(())
}

/// Returns a lab with sessions that pass these firewalls.
fn in_chain(family: Family, chain: &[At]) -> Result<(Steered, Group)> {
    let world = Steered::new(family)?;
    let group = world.open(COUNT, &Plan::gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    for local in group.locals() {
        world.update_chain(&world.name(local), chain)?;
    }
    Ok((world, group))
}

/// Returns the number of a host's sessions that a filter selects.
fn count(world: &Steered, at: At, filter: &str) -> Result<usize> {
    let listed = world.json(at, &["sessions", "--filter", filter])?;
    listed.as_array().map(Vec::len).context("no list")
}

/// The firewalls see the session as long as the services are in it, and after they have left.
fn come_and_leave(family: Family, at: At) -> Result<()> {
    let (world, group) = in_chain(family, &[At::Fw1, At::Fw2])?;
    for _ in 0..2 {
        change(&world, at, &["put", "+count"], "put")?;
        group.wait_more(1_000_000, PATIENCE)?;
        world.wait_only_through(&[At::Fw1, At::Fw2])?;
        ensure!(count(&world, at, "services=yes,chain=yes")? == COUNT);
        change(&world, at, &["take"], "taken")?;
        ensure!(count(&world, at, "services=yes")? == 0);
        group.wait_more(1_000_000, PATIENCE)?;
        world.wait_only_through(&[At::Fw1, At::Fw2])?;
    }
    nothing_refused(&world)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn they_come_and_leave_at_the_clients_end() -> Result<()> {
    come_and_leave(Family::V4, At::Client)
}

#[test]
fn they_come_and_leave_at_the_servers_end_v6() -> Result<()> {
    come_and_leave(Family::V6, At::Server)
}

/// Waits until all sessions are listed with their services at the client's end.
fn wait_listed(world: &Steered) -> Result<()> {
    wait::until("sessions with services", PATIENCE, || {
        let listed = world.json(At::Client, &["service", "list"]).ok()?;
        let fit = |row: &&Value| row["state"] == "in" && row["services"][0] == "count";
        (listed.as_array()?.iter().filter(fit).count() == COUNT).then_some(())
    })
    .with_context(|| world.logs())
}

/// Returns the number of packets that went to the handlers of a host so far.
fn to_handlers(world: &Steered, at: At) -> Result<u64> {
    let status = world.json(at, &["status"])?;
    let counted = status["counters"]["packets_to_handlers"].as_u64();
    counted.context("no such counter")
}

/// Sessions that a policy has led through a firewall from their SYN on. Both ends get services.
#[test]
fn both_ends_of_steered_sessions_get_services() -> Result<()> {
    let world = Steered::with_policy(Family::V4, &rule(Family::V4, &[At::Fw1]))?;
    world.wait_neighbours(&[At::Fw1])?;
    let group = world.open(COUNT, &Plan::gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = [At::Client, At::Server];
    for at in ends {
        change(&world, at, &["put", "+count"], "put")?;
    }
    let before = ends.map(|at| to_handlers(&world, at).unwrap_or(u64::MAX));
    group.wait_more(1_000_000, PATIENCE)?;
    for (at, before) in ends.into_iter().zip(before) {
        let now = to_handlers(&world, at)?;
        ensure!(now > before + 100, "{at:?}: {before} to {now} packets");
    }
    world.wait_only_through(&[At::Fw1])?;
    for at in ends {
        change(&world, at, &["take"], "taken")?;
    }
    let after = ends.map(|at| to_handlers(&world, at).unwrap_or(0));
    group.wait_more(1_000_000, PATIENCE)?;
    let now = ends.map(|at| to_handlers(&world, at).unwrap_or(u64::MAX));
    ensure!(
        now == after,
        "packets still pass the handlers: {after:?} to {now:?}"
    );
    all_intact(&group.finish()?)?;
    world.finish()
}

/// No packet passes while the routes change: the ends alone know what was acknowledged.
#[test]
fn sessions_that_are_silent_get_services() -> Result<()> {
    let (world, group) = in_chain(Family::V4, &[At::Fw1])?;
    group.rest()?;
    for words in [&["put", "+count"][..], &["take"]] {
        let outcome = if words[0] == "put" { "put" } else { "taken" };
        change(&world, At::Client, words, outcome)?;
    }
    group.run();
    group.wait_more(1_000_000, PATIENCE)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Adds services to a policy's chains.
fn with_services(policy: &str, services: &str) -> String {
    policy.replace("chain = [", &format!("chain = [{services}, "))
}

/// The services come in once the sessions are open, and leave as those of a request do.
#[test]
fn a_rule_may_have_hosts_and_services() -> Result<()> {
    let policy = with_services(&rule(Family::V4, &[At::Fw1, At::Fw2]), "\"+count\"");
    let world = Steered::with_policy(Family::V4, &policy)?;
    world.wait_neighbours(&[At::Fw1, At::Fw2])?;
    let group = world.open(COUNT, &Plan::gentle())?;
    group.run();
    wait_listed(&world)?;
    group.wait_more(1_000_000, PATIENCE)?;
    ensure!(to_handlers(&world, At::Client)? > 100, "{}", world.logs());
    world.wait_only_through(&[At::Fw1, At::Fw2])?;
    let events = world.host(At::Client).dir().join("dyscod.log");
    let events = std::fs::read_to_string(events)?;
    ensure!(events.contains("by rule #1 of the policy"), "{events}");
    change(&world, At::Client, &["take"], "taken")?;
    group.wait_more(300_000, PATIENCE)?;
    nothing_refused(&world)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// One request changes the chain and puts services in. What the services refuse stays as it is.
#[test]
fn a_new_chain_may_have_services() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let group = world.open(COUNT, &Plan::gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    let fw1 = world.ip(At::Fw1);
    let asks = |services: &str, more: &[&str]| {
        let chain = format!("{fw1},{services}");
        let words = ["reconfigure", "--all", "--chain", &chain];
        world.try_json(At::Client, &[&words, more].concat())
    };
    let outcomes = |done: &Value| {
        let of = |all: &Value| {
            let all = all.as_array().into_iter().flatten();
            all.map(|one| one["outcome"].clone()).collect::<Vec<_>>()
        };
        (of(&done["changes"]), of(&done["services"]["sessions"]))
    };
    let all = |word: &str| vec![Value::from(word); COUNT];
    let dry = asks("+count", &["--dry-run"])?;
    ensure!(
        outcomes(&dry) == (all("changeable"), all("possible")),
        "{dry:#}"
    );
    let refused = asks("+crypt", &[])?;
    ensure!(
        outcomes(&refused) == (vec![], all("refused")),
        "{refused:#}"
    );
    world.wait_only_through(&[])?;
    let done = asks("+count", &[])?;
    ensure!(
        outcomes(&done) == (all("changed"), all("put")),
        "{done:#}\n{}",
        world.logs()
    );
    group.wait_more(300_000, PATIENCE)?;
    world.wait_only_through(&[At::Fw1])?;
    wait_listed(&world)?;
    change(&world, At::Client, &["take"], "taken")?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_service_is_inserted_as_a_host_is() -> Result<()> {
    let (world, group) = in_chain(Family::V4, &[At::Fw1])?;
    let insert = |more: &[&str]| {
        let words = ["insert-middlebox", "+count", "--filter", "port=9000"];
        let done = world.try_json(At::Client, &[&words, more].concat())?;
        let all = done["sessions"].as_array().into_iter().flatten();
        Ok::<_, anyhow::Error>(all.map(|one| one["outcome"].clone()).collect::<Vec<_>>())
    };
    let all = |word: &str| vec![Value::from(word); COUNT];
    let dry = insert(&["--dry-run"])?;
    ensure!(dry == all("possible"), "{dry:?}");
    ensure!(insert(&["--wait"])? == all("put"), "{}", world.logs());
    wait_listed(&world)?;
    group.wait_more(300_000, PATIENCE)?;
    world.wait_only_through(&[At::Fw1])?;
    for (about_hosts, why) in [
        (&["--through", "self"][..], "--through is about hosts"),
        (&["--all", "--rate", "5"], "without a rate"),
        (&["--all", "--state", "conntrack"], "takes no state"),
    ] {
        let words = [&["insert-middlebox", "+count"], about_hosts].concat();
        let ran = world.try_ctl(At::Client, &words)?;
        let said = ran.code == Some(2) && ran.stderr.contains(why);
        ensure!(said, "{words:?}: {ran:?}");
    }
    change(&world, At::Client, &["take"], "taken")?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A policy whose services would speak past its hosts is refused, and the former one stays.
#[test]
fn a_rule_with_hosts_has_no_services_at_both_ends() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let policy = with_services(&rule(Family::V4, &[At::Fw1]), "\"+crypt\"");
    let refused = world.apply_policy(&policy).expect_err("it is in force");
    let why = format!("{refused:#}");
    ensure!(why.contains("past them"), "{why}");
    world.finish()
}

fn lossy(world: &Steered) -> Result<()> {
    let rules = "add table inet lossy\n\
        add chain inet lossy forward { type filter hook forward priority 0; }\n\
        add rule inet lossy forward numgen random mod 100 < 1 drop\n";
    world.router.input("nft", &["-f", "-"], rules).map(drop)
}

#[test]
fn a_lossy_path_costs_no_byte() -> Result<()> {
    let (world, group) = in_chain(Family::V4, &[At::Fw1])?;
    lossy(&world)?;
    for _ in 0..3 {
        change(&world, At::Client, &["put", "+count"], "put")?;
        group.wait_more(50_000, PATIENCE)?;
        change(&world, At::Client, &["take"], "taken")?;
        group.wait_more(50_000, PATIENCE)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn sessions_end_through_their_services_and_their_chain() -> Result<()> {
    let world = Steered::with_policy(Family::V4, &rule(Family::V4, &[At::Fw1]))?;
    world.wait_neighbours(&[At::Fw1])?;
    let ends = [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Together,
        Close::Reset(Side::Client),
        Close::Reset(Side::Server),
    ];
    for close in ends {
        let group = world.open(COUNT, &Plan::paced(8_000_000, close))?;
        group.run();
        group.wait_progress(100_000)?;
        change(&world, At::Client, &["put", "+count"], "put")?;
        group.wait_more(200_000, PATIENCE)?;
        all_intact(&group.finish()?).with_context(|| format!("{close:?}"))?;
        wait::until("an empty list", PATIENCE, || {
            let listed = world.json(At::Client, &["service", "list"]).ok()?;
            listed.as_array()?.is_empty().then_some(())
        })?;
    }
    world.finish()
}

/// The services stay in force, the chain as well, and the next daemon takes them out.
#[test]
fn the_next_daemon_knows_them() -> Result<()> {
    let (mut world, group) = in_chain(Family::V4, &[At::Fw1])?;
    change(&world, At::Client, &["put", "+count"], "put")?;
    world.kill(At::Client)?;
    group.wait_more(300_000, PATIENCE)?;
    world.restart(At::Client)?;
    wait_listed(&world)?;
    change(&world, At::Client, &["take"], "taken")?;
    group.wait_more(300_000, PATIENCE)?;
    world.wait_only_through(&[At::Fw1])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The hosts of a chain see all bytes of a session: services that speak past them are refused. So is
/// another chain, at either end, as long as services are in the session.
#[test]
fn what_cannot_be_beside_them_is_refused() -> Result<()> {
    let (world, group) = in_chain(Family::V4, &[At::Fw1])?;
    let refused = service(&world, At::Client, &["put", "+crypt"])?;
    ensure!(
        refused.len() == COUNT && refused[0].to_string().contains("speak past them"),
        "{refused:#?}"
    );
    let at_firewall = service(&world, At::Fw1, &["put", "+count"])?;
    ensure!(
        at_firewall[0].to_string().contains("has no end of it"),
        "{at_firewall:#?}"
    );
    for at in [At::Client, At::Server] {
        change(&world, at, &["put", "+count"], "put")?;
        let name = world.name(group.locals()[0]);
        let done = world.reconfigure(&name, &[At::Fw2], &[])?;
        ensure!(
            done["outcome"] != "changed"
                && done.to_string().contains("services are in the session"),
            "with services at the {at:?}: {done:#}"
        );
        change(&world, at, &["take"], "taken")?;
    }
    world.update_chain(&world.name(group.locals()[0]), &[At::Fw2])?;
    group.wait_more(300_000, PATIENCE)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Sessions that their proxy has left, whose path has other addresses and other numbers.
#[test]
fn sessions_without_their_proxy_get_services() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "")?;
    let (group, _) = world.left("bypass", COUNT, &Plan::gentle())?;
    for _ in 0..2 {
        change(&world, At::Client, &["put", "+count"], "put")?;
        group.wait_more(300_000, PATIENCE)?;
        change(&world, At::Client, &["take"], "taken")?;
        group.wait_more(300_000, PATIENCE)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

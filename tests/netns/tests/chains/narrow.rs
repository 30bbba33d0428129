//! The path of another chain is narrower than the session's segments may be: the change is refused,
//! with the reason, and data continues as before. No socket learns of the packets that would be
//! lost there.

use crate::steered::beside::{Beside, Relayed};
use crate::steered::ways::{Ways, busy, get_on, nothing_refused, takes_only};
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::{Group, Plan, all_intact};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Smallest MTU that is useful here for each family.
const fn narrow(family: Family) -> u32 {
    match family {
        Family::V4 => 1400,
        Family::V6 => 1280,
    }
}

/// Rules that count SYNs and SYN-ACKs through a firewall.
const OPENINGS: &str = "
table inet openings {
  chain forward {
    type filter hook forward priority -1
    tcp flags & syn == syn counter
  }
}
";

/// Number of SYNs and SYN-ACKs that have passed the first firewall.
fn openings_of(world: &Steered) -> Result<u64> {
    let words = ["list", "table", "inet", "openings"];
    let table = world.host(At::Fw1).output("nft", &words)?;
    let mut words = table
        .split_whitespace()
        .skip_while(|word| *word != "packets");
    let count = words.nth(1).context("no counter")?;
    Ok(count.parse()?)
}

/// Checks that the change is rolled back, for this reason.
fn is_refused(done: &Value) -> Result<()> {
    let reason = done["reason"].to_string();
    let words = ["too narrow", "bytes", "MTU", "MSS"];
    let told = words.iter().all(|word| reason.contains(word));
    ensure!(done["outcome"] == "rolled_back" && told, "{done:#}");
    Ok(())
}

/// Checks that the session cannot have this chain, and stays on its path.
fn refuses(world: &Steered, group: &Group, session: &str, chain: &[At]) -> Result<()> {
    let before = world.chain_of(session)?;
    is_refused(&world.reconfigure(session, chain, &[])?).with_context(|| world.logs())?;
    get_on(world, group)?;
    ensure!(world.chain_of(session)? == before);
    nothing_refused(world)
}

/// Checks that the session gets this chain, and that its data takes it.
fn takes(world: &Steered, group: &Group, session: &str, chain: &[At]) -> Result<()> {
    world.update_chain(session, chain)?;
    let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
    ensure!(world.chain_of(session)? == json!(hosts));
    takes_only(world, group, chain)?;
    nothing_refused(world)
}

/// Drops longer packets between two hosts in one direction, without an error.
fn swallow(world: &Steered, from: At, to: At, bytes: u32) -> Result<()> {
    let [from, to] = [from, to].map(|at| world.ip(at));
    let rule = format!(
        "table inet narrow {{\n chain forward {{\n type filter hook forward priority 0\n \
         ip saddr {from} ip daddr {to} meta l4proto tcp meta length > {bytes} drop\n }}\n}}\n"
    );
    world.router.input("nft", &["-f", "-"], &rule).map(drop)
}

fn swallow_no_more(world: &Steered) -> Result<()> {
    let words = ["delete", "table", "inet", "narrow"];
    world.router.output("nft", &words).map(drop)
}

/// Checks that no session can have another chain, and that all stay on their paths.
fn refuse(ways: &Ways, words: &[&str], chain: &[At]) -> Result<()> {
    for done in ways.asked(words)? {
        is_refused(&done).with_context(|| ways.world.logs())?;
    }
    ways.go_on(chain)
}

/// A middlebox neither enters nor replaces another. Once its link is wide enough, it does.
fn comes_in(family: Family) -> Result<()> {
    let ways = Ways::new(family)?;
    let world = &ways.world;
    let [one, two] = At::FIREWALLS.map(|fw| world.ip(fw));
    let [before, behind] = [format!("{two},{one}"), format!("{one},{two}")];
    for fw in At::FIREWALLS {
        world.set_mtu(fw, narrow(family))?;
    }
    let insert = ["insert-middlebox", &one, "--all"];
    refuse(&ways, &insert, &[])?;
    world.wait_forgotten(At::Fw1)?;
    world.set_mtu(At::Fw1, 1500)?;
    world.host(At::Fw1).input("nft", &["-f", "-"], OPENINGS)?;
    ways.take(&insert, &[At::Fw1])?;
    let openings = openings_of(world)?;
    ensure!(openings > 0, "it is not seen that it comes in");
    let replace = [
        "replace-middlebox",
        &one,
        "--with",
        &two,
        "--state",
        "conntrack",
    ];
    refuse(&ways, &replace, &[At::Fw1])?;
    for chain in [&before, &behind] {
        let words = ["reconfigure", "--through", &one, "--chain", chain];
        refuse(&ways, &words, &[At::Fw1])?;
    }
    // The handshake of the other path bypasses the firewall that is in both chains.
    let now = openings_of(world)?;
    ensure!(now == openings, "{now} of {openings}");
    world.wait_forgotten(At::Fw2)?;
    world.set_mtu(At::Fw2, 1500)?;
    ways.take(&replace, &[At::Fw2])?;
    let leave = ["reconfigure", "--through", &two, "--chain", ""];
    ways.take(&leave, &[])?;
    ways.finish()
}

#[test]
fn a_middlebox_behind_a_narrow_link_does_not_come_in() -> Result<()> {
    comes_in(Family::V4)
}

#[test]
fn a_middlebox_behind_a_narrow_link_does_not_come_in_v6() -> Result<()> {
    comes_in(Family::V6)
}

/// The narrow link is on each part of the path in turn, in one direction only.
#[test]
fn each_part_of_the_way_is_tried_both_ways() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    // The rule must count packets as they are on the wire, and not super-packets.
    for at in At::ALL {
        let words = ["-K", "eth0", "tso", "off", "gso", "off", "gro", "off"];
        world.host(at).output("ethtool", &words)?;
    }
    let (group, session) = busy(&world, &Plan::gentle())?;
    let parts = [
        (At::Client, At::Fw1),
        (At::Fw1, At::Server),
        (At::Server, At::Fw1),
        (At::Fw1, At::Client),
    ];
    for (from, to) in parts {
        swallow(&world, from, to, 1499)?;
        refuses(&world, &group, &session, &[At::Fw1])
            .with_context(|| format!("{from:?} to {to:?}"))?;
        swallow_no_more(&world)?;
        // A limit of one more byte is just sufficient.
        swallow(&world, from, to, 1500)?;
        takes(&world, &group, &session, &[At::Fw1])?;
        takes(&world, &group, &session, &[])?;
        swallow_no_more(&world)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The direct path is narrower than the path through the middlebox, which stays.
#[test]
fn a_middlebox_does_not_leave_where_the_direct_way_is_narrower() -> Result<()> {
    for ends in [[At::Client, At::Server], [At::Server, At::Client]] {
        let world = Steered::new(Family::V4)?;
        let (group, session) = busy(&world, &Plan::gentle())?;
        takes(&world, &group, &session, &[At::Fw1])?;
        let [from, to] = ends;
        swallow(&world, from, to, 1400)?;
        refuses(&world, &group, &session, &[])?;
        swallow_no_more(&world)?;
        takes(&world, &group, &session, &[])?;
        all_intact(&group.finish()?)?;
        world.finish()?;
    }
    Ok(())
}

/// The ends have announced an MSS that fits the narrow link.
#[test]
fn short_segments_pass_a_narrow_link() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let world = Steered::new(family)?;
        world.set_mtu(At::Client, narrow(family))?;
        let (group, session) = busy(&world, &Plan::gentle())?;
        world.set_mtu(At::Fw1, narrow(family))?;
        takes(&world, &group, &session, &[At::Fw1])?;
        takes(&world, &group, &session, &[])?;
        all_intact(&group.finish()?)?;
        world.finish()?;
    }
    Ok(())
}

/// An end may send longer segments than it has announced to accept.
#[test]
fn what_an_end_announces_is_not_what_it_sends() -> Result<()> {
    for (family, option) in [(Family::V4, "-4"), (Family::V6, "-6")] {
        let world = Steered::new(family)?;
        let routes = world.host(At::Client).output("ip", &[option, "route"])?;
        let default = routes.lines().find(|line| line.starts_with("default"));
        let default = default.context("no default route")?.trim();
        let change = format!("{option} route change {default} advmss 1000");
        let words: Vec<_> = change.split_whitespace().collect();
        world.host(At::Client).output("ip", &words)?;
        let (group, session) = busy(&world, &Plan::gentle())?;
        world.set_mtu(At::Fw1, narrow(family))?;
        refuses(&world, &group, &session, &[At::Fw1])?;
        world.set_mtu(At::Fw1, 1500)?;
        takes(&world, &group, &session, &[At::Fw1])?;
        all_intact(&group.finish()?)?;
        world.finish()?;
    }
    Ok(())
}

/// The MTU is nine thousand bytes on all hosts except one.
#[test]
fn jumbo_frames() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    for at in [At::Client, At::Server, At::Fw1] {
        world.set_mtu(at, 9000)?;
    }
    let (group, session) = busy(&world, &Plan::gentle())?;
    refuses(&world, &group, &session, &[At::Fw2])?;
    takes(&world, &group, &session, &[At::Fw1])?;
    refuses(&world, &group, &session, &[At::Fw2])?;
    takes(&world, &group, &session, &[])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A packet of a path that is being opened may be lost. That does not show that the path is narrow.
#[test]
fn where_packets_are_lost() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let lossy = "table inet narrow {\n chain forward {\n type filter hook forward priority 0\n \
                 meta l4proto tcp numgen random mod 100 < 5 drop\n }\n}\n";
    world.router.input("nft", &["-f", "-"], lossy)?;
    let chains = [&[At::Fw1][..], &[At::Fw2], &[]];
    for chain in chains.into_iter().cycle().take(6) {
        world.update_chain(&session, chain)?;
    }
    swallow_no_more(&world)?;
    get_on(&world, &group)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The numbers are those of the wire, and the options are those of the session there.
#[test]
fn a_session_that_its_proxy_has_left() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "send-proxy-v2")?;
    let (group, names) = world.left("bypass", 1, &Plan::gentle())?;
    let session = &names[0];
    world.set_mtu(At::Fw1, 1400)?;
    refuses(&world, &group, session, &[At::Fw1])?;
    takes(&world, &group, session, &[At::Fw2])?;
    refuses(&world, &group, session, &[At::Fw1])?;
    world.set_mtu(At::Fw1, 1500)?;
    takes(&world, &group, session, &[At::Fw1])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_session_that_a_host_relays() -> Result<()> {
    for beside in [Beside::Client, Beside::Server] {
        let r = Relayed::new(Family::V4, beside, &[], (1, &Plan::gentle()))?;
        let session = r.only()?;
        r.world.set_mtu(At::Fw1, 1400)?;
        is_refused(&r.try_update_chain(&session, &[At::Fw1])?).with_context(|| r.world.logs())?;
        r.get_on(4 * MIB)?;
        r.takes_only(&[])?;
        r.world.set_mtu(At::Fw1, 1500)?;
        r.update_chain(&session, &[At::Fw1])?;
        r.takes_only(&[At::Fw1])?;
        r.nothing_refused()?;
        r.finish()?;
    }
    Ok(())
}

/// Each end's link becomes narrower while the session passes a firewall. The router reports the
/// segments between two hosts of the chain, and the end behind the firewall sends shorter ones.
fn becomes_narrow(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    world.update_chain(&session, &[At::Fw1])?;
    takes_only(&world, &group, &[At::Fw1])?;
    for (end, sender) in [(At::Server, At::Client), (At::Client, At::Server)] {
        let (to, port) = (world.ip(end), end.name());
        let route = ["route", "replace", &to, "dev", port, "mtu", "lock", "1300"];
        world.router.output("ip", &route)?;
        get_on(&world, &group).with_context(|| format!("narrow to {end:?}"))?;
        let status = world.json(sender, &["status"])?;
        let translated = status["counters"]["icmp_errors_translated"].as_u64();
        ensure!(translated > Some(0), "{sender:?}: {status:#}");
    }
    takes_only(&world, &group, &[At::Fw1])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_chain_whose_links_become_narrow() -> Result<()> {
    becomes_narrow(Family::V4)
}

#[test]
fn a_chain_whose_links_become_narrow_v6() -> Result<()> {
    becomes_narrow(Family::V6)
}

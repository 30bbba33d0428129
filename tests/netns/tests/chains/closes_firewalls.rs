//! An unannounced strict firewall stands between all hosts. Its entry for a path ends when the
//! session leaves the path, as on the hosts of the chain.

use std::time::Duration;

use crate::steered::ways::Ways;
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Host, strict, wait};

const PATIENCE: Duration = Duration::from_secs(30);

fn guarded(family: Family) -> Result<Steered> {
    let world = Steered::new(family)?;
    strict::guard(&world.router)?;
    Ok(world)
}

/// Connections that are established according to connection tracking.
fn established(host: &Host, family: Family) -> Result<Vec<String>> {
    let family = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    let words = ["-L", "-p", "tcp", "--state", "ESTABLISHED", "-f", family];
    let list = host.output("conntrack", &words)?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// Waits until the router's firewall has the subsessions of this chain for this number of sessions,
/// and no others. The firewalls of the chain have each session once.
fn has_only(world: &Steered, sessions: usize, chain: &[At]) -> Result<()> {
    let mut left = Vec::new();
    wait::until("the paths before to end", PATIENCE, || {
        left = established(&world.router, world.family).ok()?;
        (left.len() == sessions * (chain.len() + 1)).then_some(())
    })
    .with_context(|| format!("{}\n{}", left.join("\n"), world.logs()))?;
    for fw in chain {
        let lives = established(world.host(*fw), world.family)?;
        let ours = |line: &&String| {
            let ends = [At::Client, At::Server].map(|at| world.ip(at));
            let [src, dst] = [format!("src={} ", ends[0]), format!("dst={} ", ends[1])];
            line.contains(&src) && line.contains(&dst)
        };
        let lives = lives.iter().filter(ours).count();
        ensure!(lives == sessions, "{fw:?} has {lives}\n{}", world.logs());
    }
    Ok(())
}

/// Changes chains: a firewall enters, is replaced, gets a second one after it, all leave, both
/// enter together, and one of them leaves.
fn chains_change(family: Family) -> Result<()> {
    let ways = Ways::of(guarded(family)?)?;
    let world = &ways.world;
    let [one, two] = At::FIREWALLS.map(|fw| world.ip(fw));
    let replace = ["replace-middlebox", &one, "--with", &two];
    let state = ["--state", "conntrack"];
    let both = format!("{two},{one}");
    let changes: [(&[&str], &[At]); 6] = [
        (&["insert-middlebox", &one, "--all"], &[At::Fw1]),
        (&[&replace[..], &state[..]].concat(), &[At::Fw2]),
        (&["insert-middlebox", &one, "--all"], &[At::Fw2, At::Fw1]),
        (&["reconfigure", "--all", "--chain", ""], &[]),
        (
            &["reconfigure", "--all", "--chain", &both],
            &[At::Fw2, At::Fw1],
        ),
        (&["reconfigure", "--all", "--without", &two], &[At::Fw1]),
    ];
    for (words, chain) in changes {
        let each = || -> Result<()> {
            ways.take(words, chain)?;
            has_only(world, ways.groups.len(), chain)?;
            // The session continues through the firewalls that it still passes.
            ways.go_on(chain)?;
            has_only(world, ways.groups.len(), chain)?;
            let refused = strict::refused(&world.router)?;
            ensure!(refused == 0, "{refused} refused\n{}", world.logs());
            Ok(())
        };
        each().with_context(|| format!("{words:?}"))?;
    }
    ways.finish()
}

#[test]
fn paths_that_are_left_end_ipv4() -> Result<()> {
    chains_change(Family::V4)
}

#[test]
fn paths_that_are_left_end_ipv6() -> Result<()> {
    chains_change(Family::V6)
}

/// The path opens, but segments do not pass: the session stays on its path.
#[test]
fn a_path_that_is_given_up_ends() -> Result<()> {
    let world = guarded(Family::V4)?;
    let group = world.open(2, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    for fw in At::FIREWALLS {
        world.set_mtu(fw, 1400)?;
    }
    for local in group.locals() {
        let session = world.name(local);
        let done = world.reconfigure(&session, &At::FIREWALLS, &[])?;
        let why = done["reason"].to_string();
        let narrow = done["outcome"] == "rolled_back" && why.contains("narrow");
        ensure!(narrow, "{done:#}\n{}", world.logs());
    }
    has_only(&world, 2, &[])?;
    group.wait_progress(4 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The proxy has left the session: the path from host to host is a path like any other.
#[test]
fn a_bypass_that_is_left_ends() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let mut world = Steered::with_proxy(family, &[], "")?;
        strict::guard(&world.router)?;
        let (group, names) = world.left("bypass", 2, &Plan::default())?;
        has_only(&world, 2, &[])?;
        for chain in [&[At::Fw1][..], &[At::Fw2]] {
            for session in &names {
                world.update_chain(session, chain)?;
            }
            has_only(&world, 2, chain)?;
            group.wait_progress(4 << 20)?;
        }
        all_intact(&group.finish()?)?;
        world.finish()?;
    }
    Ok(())
}

/// Rule by which a host's own firewall follows connections that end there.
const FOLLOWS: &str = "
table inet own {
  chain comes {
    type filter hook input priority 0
    ct state established counter
  }
  chain leaves {
    type filter hook output priority 0
    ct state established counter
  }
}
";

/// The direct path has the session's own five-tuple, which the ends' connection tracking has had
/// all the time. Little data is in flight, so that the numbers have not changed much.
#[test]
fn the_ends_own_firewalls_keep_the_session() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let world = guarded(family)?;
        let ends = [At::Client, At::Server].map(|at| world.host(at));
        for end in ends {
            end.input("nft", &["-f", "-"], FOLLOWS)?;
            end.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
        }
        let plan = Plan {
            rate: Some(2048),
            write: 1024,
            after_close: 1024,
            ..Plan::default()
        };
        let group = world.open(1, &plan)?;
        group.run();
        group.wait_progress(2048)?;
        let local = group.locals()[0];
        world.update_chain(&world.name(local), &[At::Fw1])?;
        has_only(&world, 1, &[At::Fw1])?;
        group.wait_progress(2048)?;
        for end in ends {
            let port = format!("sport={} ", local.port());
            let lives = established(end, family)?;
            let has = lives.iter().any(|line| line.contains(&port));
            ensure!(has, "{}\n{}", lives.join("\n"), world.logs());
        }
        all_intact(&group.finish()?)?;
        world.finish()?;
    }
    Ok(())
}

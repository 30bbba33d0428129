//! Sessions that their proxy has left, and that its host relays, get firewalls beside
//! it: strict ones, which see one connection of that host with the session's end.

mod steered;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Group, Plan, Side, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};
use steered::{At, Steered};

const PATIENCE: Duration = Duration::from_secs(60);

/// The side of the relaying host that gets firewalls.
#[derive(Clone, Copy)]
enum Beside {
    Client,
    Server,
}

impl Beside {
    /// Who has opened the session there, and its port at the end that accepted it.
    fn opened(self) -> (At, u16) {
        match self {
            Beside::Client => (At::Client, 8080),
            Beside::Server => (At::Proxy, 9000),
        }
    }

    /// Who has accepted it.
    fn accepted(self) -> At {
        match self {
            Beside::Client => At::Proxy,
            Beside::Server => At::Server,
        }
    }

    /// The host that has nothing to do with it.
    fn other_end(self) -> At {
        match self {
            Beside::Client => At::Server,
            Beside::Server => At::Client,
        }
    }
}

struct Relayed {
    world: Steered,
    beside: Beside,
    group: Group,
}

impl Relayed {
    /// Sessions that are busy both ways and relayed. At the far end nothing runs.
    fn new(
        family: Family,
        beside: Beside,
        settings: &[(At, &str, &str)],
        (count, plan): (usize, &Plan),
    ) -> Result<Relayed> {
        let mut world = Steered::with_proxy(family, settings, "send-proxy-v2")?;
        world.kill(beside.other_end())?;
        let (group, _) = world.left("local", count, plan)?;
        Ok(Relayed {
            world,
            beside,
            group,
        })
    }

    /// What the sessions are called where chains are asked for.
    fn names(&self) -> Result<Vec<String>> {
        let (at, port) = self.beside.opened();
        let port = format!(":{port}");
        let all = self.world.sessions(at)?;
        let word = |s: &Value, end: &str| s[end].as_str().unwrap_or_default().to_owned();
        let ours = all.iter().filter(|s| word(s, "remote").ends_with(&port));
        let name = |s| format!("{}>{}", word(s, "local"), word(s, "remote"));
        Ok(ours.map(name).collect())
    }

    fn only(&self) -> Result<String> {
        let mut all = self.names()?;
        ensure!(all.len() == 1, "{all:?}\n{}", self.world.logs());
        all.pop().context("none")
    }

    fn try_rechain(&self, session: &str, chain: &[At]) -> Result<Value> {
        let at = self.beside.opened().0;
        self.world.reconfigure_on(at, session, chain, &[])
    }

    fn rechain(&self, session: &str, chain: &[At]) -> Result<()> {
        let done = self.try_rechain(session, chain)?;
        let why = || format!("{chain:?}: {done:#}\n{}", self.world.logs());
        ensure!(done["outcome"] == "changed", "{}", why());
        Ok(())
    }

    /// What is not known of a host is asked with a request.
    fn is_refused(&self, session: &str, what: &str) -> Result<()> {
        let mut said = Value::Null;
        wait::until("the reason", PATIENCE, || {
            said = self.try_rechain(session, &[At::Fw1]).ok()?;
            said["reason"].as_str()?.contains(what).then_some(())
        })
        .with_context(|| format!("{what}: {said:#}\n{}", self.world.logs()))
    }

    fn get_on(&self, bytes: u64) -> Result<()> {
        let moved = self.group.wait_progress(bytes);
        moved.with_context(|| self.world.logs())
    }

    fn passed(&self) -> Result<[u64; 2]> {
        let [one, two] = At::FIREWALLS;
        let world = &self.world;
        Ok([world.counted(one, "passed")?, world.counted(two, "passed")?])
    }

    /// Waits until data takes this chain and no other.
    fn takes_only(&self, chain: &[At]) -> Result<()> {
        wait::until("the chain to carry it all", PATIENCE, || {
            let before = self.passed().ok()?;
            self.group.wait_progress(1 << 20).ok()?;
            let after = self.passed().ok()?;
            let each = At::FIREWALLS.iter().zip(before.iter().zip(after));
            let mut right = each.map(|(fw, (b, a))| chain.contains(fw) == (*b != a));
            right.all(|right| right).then_some(())
        })
        .with_context(|| self.world.logs())
    }

    fn nothing_refused(&self) -> Result<()> {
        for fw in At::FIREWALLS {
            let refused = self.world.refused(fw)?;
            ensure!(refused == 0, "{fw:?}: {refused}\n{}", self.world.logs());
        }
        Ok(())
    }

    /// Connections that a firewall has of the sessions.
    fn connections(&self, fw: At) -> Result<Vec<String>> {
        let all = (self.world.host(fw)).output("conntrack", &["-L", "-p", "tcp"])?;
        let port = format!("dport={}", self.beside.opened().1);
        let ours = all.lines().filter(|l| l.contains(&port));
        Ok(ours.map(str::to_owned).collect())
    }

    /// A firewall has one connection, between the two hosts beside it.
    fn is_known(&self, fw: At) -> Result<()> {
        let all = self.connections(fw)?;
        let ends = [self.beside.opened().0, self.beside.accepted()];
        let ends = ends.map(|at| self.world.ip(at));
        let opened = format!("src={} dst={} ", ends[0], ends[1]);
        let right = |line: &String| {
            let words = ["ESTABLISHED", opened.as_str(), "ASSURED"];
            words.iter().all(|word| line.contains(word)) && !line.contains("UNREPLIED")
        };
        ensure!(all.len() == 1 && all.iter().all(right), "{all:#?}");
        Ok(())
    }

    fn forgotten(&self, fw: At) -> Result<()> {
        wait::until("the host to forget", PATIENCE, || {
            let left = !self.connections(fw).ok()?.is_empty();
            let listed = !self.world.sessions(fw).ok()?.is_empty();
            (!left && !listed).then_some(())
        })
        .with_context(|| self.world.logs())
    }

    fn finish(self) -> Result<()> {
        all_intact(&self.group.finish()?).map(drop)
    }
}

/// In, replaced, two of them, and out again; nothing is left where it has been.
fn to_and_fro(family: Family, beside: Beside, settings: &[(At, &str, &str)]) -> Result<()> {
    let r = Relayed::new(family, beside, settings, (1, &Plan::default()))?;
    let session = r.only()?;
    let chains = [
        &[At::Fw1][..],
        &[At::Fw2],
        &[At::Fw2, At::Fw1],
        &[],
        &[At::Fw1],
        &[],
    ];
    for chain in chains {
        r.rechain(&session, chain)?;
        r.takes_only(chain)?;
        r.get_on(4 << 20)?;
        r.nothing_refused()?;
        for fw in chain {
            r.is_known(*fw)?;
        }
        ensure!(r.only()? == session);
    }
    for fw in At::FIREWALLS {
        r.forgotten(fw)?;
    }
    r.finish()
}

#[test]
fn a_firewall_comes_and_goes_beside_the_server() -> Result<()> {
    to_and_fro(Family::V4, Beside::Server, &[])
}

#[test]
fn a_firewall_comes_and_goes_beside_the_server_v6() -> Result<()> {
    to_and_fro(Family::V6, Beside::Server, &[])
}

#[test]
fn a_firewall_comes_and_goes_beside_the_client() -> Result<()> {
    to_and_fro(Family::V4, Beside::Client, &[])
}

#[test]
fn a_firewall_comes_and_goes_beside_the_client_v6() -> Result<()> {
    to_and_fro(Family::V6, Beside::Client, &[])
}

/// The relay rescales windows, and has timestamps on one side.
#[test]
fn only_the_server_has_timestamps() -> Result<()> {
    let settings = [
        (At::Client, "net.ipv4.tcp_timestamps", "0"),
        (At::Server, "net.ipv4.tcp_rmem", "4096 131072 16000000"),
    ];
    to_and_fro(Family::V4, Beside::Server, &settings)
}

/// Both sides of the relaying host have one.
#[test]
fn a_firewall_on_each_side() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "")?;
    let (group, names) = world.left("local", 1, &Plan::default())?;
    world.rechain(&names[0], &[At::Fw1])?;
    let r = Relayed {
        world,
        beside: Beside::Server,
        group,
    };
    let session = r.only()?;
    r.rechain(&session, &[At::Fw2])?;
    r.takes_only(&[At::Fw1, At::Fw2])?;
    r.world.rechain(&names[0], &[])?;
    r.takes_only(&[At::Fw2])?;
    r.rechain(&session, &[])?;
    r.takes_only(&[])?;
    r.nothing_refused()?;
    r.finish()
}

/// The entry of connection tracking goes along.
#[test]
fn a_firewall_takes_the_place_of_another_with_its_state() -> Result<()> {
    let r = Relayed::new(Family::V4, Beside::Server, &[], (1, &Plan::default()))?;
    let session = r.only()?;
    r.rechain(&session, &[At::Fw1])?;
    r.get_on(4 << 20)?;
    // The other lets nobody in that it does not know.
    r.world.lets_in_the_known(At::Fw2)?;
    let refused = r.try_rechain(&session, &[At::Fw2])?;
    ensure!(refused["outcome"] == "rolled_back", "{refused:#}");
    r.get_on(1 << 20)?;
    let before = r.world.refused(At::Fw2)?;
    (r.world).replace_with_state_on(At::Proxy, At::Fw1, At::Fw2)?;
    r.takes_only(&[At::Fw2])?;
    r.is_known(At::Fw2)?;
    r.forgotten(At::Fw1)?;
    ensure!(r.world.refused(At::Fw1)? == 0 && r.world.refused(At::Fw2)? == before);
    r.finish()
}

/// All that are relayed, at once; listed and counted as what they are, and not
/// changed in another way any more.
#[test]
fn many_at_once() -> Result<()> {
    let plan = Plan {
        rate: Some(2_000_000),
        ..Plan::default()
    };
    let r = Relayed::new(Family::V4, Beside::Server, &[], (8, &plan))?;
    let fw = r.world.ip(At::Fw1);
    let words = ["insert-middlebox", &fw, "--all", "--wait"];
    let done = r.world.try_json(At::Proxy, &words)?;
    let all = done["changes"].as_array().cloned().unwrap_or_default();
    let changed = |c: &Value| c["outcome"] == "changed";
    ensure!(all.len() == 8 && all.iter().all(changed), "{done:#}");
    r.get_on(200_000)?;
    let with_chain = |s: &&Value| s["chain"] == json!([fw]) && s["mode"] == "local";
    let listed = r.world.sessions(At::Proxy)?;
    ensure!(listed.len() == 16, "{listed:#?}");
    ensure!(listed.iter().filter(with_chain).count() == 8, "{listed:#?}");
    let counts = r.world.json(At::Proxy, &["status"])?["sessions"].clone();
    ensure!(counts["local"] == 8, "{counts:#}");
    let words = [
        "remove-middlebox",
        "self",
        "--all",
        "--mode",
        "bypass",
        "--wait",
    ];
    let refused = r.world.try_json(At::Proxy, &words)?;
    ensure!(
        refused["summary"]["refused"] == 8 && refused.to_string().contains("beside the host"),
        "{refused:#}"
    );
    r.nothing_refused()?;
    r.finish()
}

/// Where nothing runs no host comes in, and the reason says so.
#[test]
fn none_comes_in_where_no_end_runs_an_agent() -> Result<()> {
    let mut r = Relayed::new(Family::V4, Beside::Server, &[], (1, &Plan::default()))?;
    let session = r.only()?;
    let client = r.group.locals()[0];
    let near = format!("{}:8080>{client}", r.world.ip(At::Proxy));
    let server = r.world.ip(At::Server);
    r.is_refused(&near, &format!("{server} does and"))?;
    r.world.kill(At::Server)?;
    for name in [&session, &near] {
        r.is_refused(name, "neither")?;
    }
    r.get_on(1 << 20)?;
    r.finish()
}

/// Ends in order, and by a reset from either end: the firewall hears it.
#[test]
fn the_end_is_heard_by_the_firewall() -> Result<()> {
    for close in [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Reset(Side::Client),
        Close::Reset(Side::Server),
    ] {
        let plan = Plan {
            close,
            ..Plan::default()
        };
        let r = Relayed::new(Family::V4, Beside::Server, &[], (1, &plan))?;
        r.rechain(&r.only()?, &[At::Fw1])?;
        r.get_on(1 << 20)?;
        let Relayed { world, group, .. } = r;
        let outcomes = group.finish()?;
        if !matches!(close, Close::Reset(_)) {
            all_intact(&outcomes)?;
        }
        wait::until("the firewall to hear of the end", PATIENCE, || {
            let all = (world.host(At::Fw1)).output("conntrack", &["-L", "-p", "tcp"]);
            let all = all.ok()?;
            let lives = |l: &str| l.contains("dport=9000") && l.contains("ESTABLISHED");
            (!all.lines().any(lives)).then_some(())
        })
        .with_context(|| format!("{close:?}\n{}", world.logs()))?;
    }
    Ok(())
}

/// A daemon dies in the middle: data goes on, and both sides agree.
fn deaths(beside: Beside, deaths: &[(At, &'static str)]) -> Result<()> {
    let mut r = Relayed::new(Family::V4, beside, &[], (1, &Plan::default()))?;
    let session = r.only()?;
    let asked = beside.opened().0;
    for (at, fault) in deaths {
        r.world.set_faults(*at, fault)?;
        let fw = r.world.ip(At::Fw1);
        // Its own daemon may die under it.
        let _ = (r.world).try_ctl(asked, &["reconfigure", &session, "--chain", &fw])?;
        r.world.wait_dead(*at)?;
        r.get_on(1 << 20).context(*fault)?;
        r.world.set_faults(*at, "")?;
        r.world.restart(*at)?;
        r.get_on(1 << 20).context(*fault)?;
        wait::until("the session to be free", PATIENCE, || {
            let done = r.try_rechain(&session, &[At::Fw2]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{fault}\n{}", r.world.logs()))?;
        r.get_on(1 << 20).context(*fault)?;
        r.rechain(&session, &[])?;
    }
    r.finish()
}

#[test]
fn a_daemon_dies_in_the_middle_beside_the_server() -> Result<()> {
    deaths(
        Beside::Server,
        &[
            (At::Proxy, "die:Extend"),
            (At::Proxy, "die:Cut"),
            (At::Proxy, "die:Switched"),
            (At::Proxy, "die:Complete"),
            (At::Server, "die:Extended"),
            (At::Server, "die:Cut"),
            (At::Server, "die:Settled"),
            (At::Fw1, "die:Enlisted"),
        ],
    )
}

#[test]
fn a_daemon_dies_in_the_middle_beside_the_client() -> Result<()> {
    deaths(
        Beside::Client,
        &[
            (At::Client, "die:Cut"),
            (At::Client, "die:Complete"),
            (At::Proxy, "die:Extended"),
            (At::Proxy, "die:Cut"),
            (At::Proxy, "die:Settled"),
        ],
    )
}

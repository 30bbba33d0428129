//! Services that come into live sessions at both ends, at the same byte, and leave them so.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::Daemon;
use dysco_netns::stream::{Close, Plan, Reading, Side, all_intact};
use dysco_netns::{Family, Lab, Role, capture, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::services::OneEnd;

/// A lab with `dyscod` on the hosts of both ends.
pub(crate) struct BothEnds {
    pub here: OneEnd,
    there: Daemon,
}

impl BothEnds {
    pub(crate) fn new(name: &str, family: Family) -> Result<BothEnds> {
        BothEnds::over(Lab::builder(name).build()?, family)
    }

    fn over(lab: Lab, family: Family) -> Result<BothEnds> {
        BothEnds::of(OneEnd::over(lab, family)?)
    }

    /// The same, with daemons that fail on purpose.
    pub(crate) fn failing(name: &str) -> Result<BothEnds> {
        BothEnds::of(OneEnd::failing(Lab::builder(name).build()?, Family::V4)?)
    }

    fn of(here: OneEnd) -> Result<BothEnds> {
        let there = here.fleet.start(&here.lab, Role::Server, "")?;
        Ok(BothEnds { here, there })
    }

    /// Waits until the other host lists this number of sessions with services.
    pub(crate) fn wait_there(&self, count: usize) -> Result<()> {
        let listed = || {
            let rows = self.list(Role::Server).ok()?;
            let all_in = rows.iter().all(|row| row["state"] == "in");
            (rows.len() == count && all_in).then_some(())
        };
        wait::until(
            "the list of the other host",
            Duration::from_secs(30),
            listed,
        )
    }

    /// Waits until all sessions of the other host have these services, and their number is this one.
    pub(crate) fn wait_services(&self, services: &[&str], count: usize) -> Result<()> {
        let have = || {
            let rows = self.list(Role::Server).ok()?;
            let has = rows.iter().all(|row| row["services"] == json!(services));
            (rows.len() == count && has).then_some(())
        };
        wait::until("services of the other host", Duration::from_secs(30), have)
            .with_context(|| format!("{services:?}: {:#?}", self.list(Role::Server)))
    }

    /// Sets the faults of a host's daemon and its successors.
    pub(crate) fn set_faults(&self, role: Role, words: &str) -> Result<()> {
        let host = self.here.lab.host(role);
        self.here.fleet.set_faults(host, words)
    }

    /// Waits until the daemon of a host has died, and starts the next one.
    pub(crate) fn succeed(&mut self, role: Role) -> Result<()> {
        let here = &mut self.here;
        let daemon = match role {
            Role::Client => &mut here.daemon,
            _ => &mut self.there,
        };
        let dies = || (!daemon.process.runs()).then_some(());
        wait::until("dyscod to die", Duration::from_secs(30), dies)?;
        here.fleet.set_faults(here.lab.host(role), "")?;
        let file = here.lab.host(role).dir().join("dyscod.toml");
        *daemon = here.fleet.restart(&here.lab, role, &file)?;
        Ok(())
    }

    pub(crate) fn list(&self, role: Role) -> Result<Vec<Value>> {
        let host = self.here.lab.host(role);
        let listed = self.here.fleet.json(host, &["service", "list"])?;
        listed.as_array().cloned().context("no list")
    }

    /// Asks the service `compress` of the other host's only session for its numbers.
    pub(crate) fn call_there(&self) -> Result<Value> {
        let rows = self.list(Role::Server)?;
        let session = rows.first().and_then(|row| row["session"].as_str());
        let session = session.context("no session")?;
        let words = ["service", "call", session, "compress", "read"];
        self.here
            .fleet
            .json(self.here.lab.host(Role::Server), &words)
    }

    fn handler(&self, role: Role) -> Result<Pid> {
        let rows = self.list(role)?;
        let pid = rows.first().and_then(|row| row["handler"].as_i64());
        Ok(Pid::from_raw(pid.context("no handler")? as i32))
    }

    pub(crate) fn finish(self) -> Result<()> {
        let there = self.list(Role::Server)?;
        let pid = there.first().and_then(|row| row["handler"].as_i64());
        drop(self.there);
        let done = self.here.finish();
        if let Some(pid) = pid {
            // An error means that it has ended.
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        done
    }
}

fn come_and_leave(
    name: &str,
    family: Family,
    services: &[&str],
    plan: &Plan,
    count: usize,
) -> Result<()> {
    let both = BothEnds::new(name, family)?;
    let here = &both.here;
    let group = here.open(count, plan)?;
    here.change(&[&["put"], services].concat(), "put", count)?;
    both.wait_there(count)?;
    group.wait_progress(1_000_000)?;
    let rows = both.list(Role::Client)?;
    let other = Role::Server.at(family, 0).ip().to_string();
    ensure!(
        rows.len() == count && rows.iter().all(|row| row["peer"] == json!(other)),
        "{rows:#?}"
    );
    here.change(&["take"], "taken", count)?;
    both.wait_there(0)?;
    group.wait_progress(1_000_000)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

#[test]
fn crypt_comes_into_a_busy_session_and_leaves_it() -> Result<()> {
    come_and_leave("pair4", Family::V4, &["+crypt"], &Plan::default(), 1)
}

/// Reports of the two handlers about the services that have left may arrive after the next request.
#[test]
fn the_next_services_come_in_as_soon_as_the_last_have_left() -> Result<()> {
    const COUNT: usize = 8;
    let both = BothEnds::new("pairnext", Family::V4)?;
    let here = &both.here;
    let group = here.open(COUNT, &Plan::gentle())?;
    for services in ["+crypt", "+crypt", "+count", "+crypt", "+crypt", "+count"] {
        here.change(&["put", services], "put", COUNT)?;
        here.change(&["take"], "taken", COUNT)?;
    }
    group.wait_progress(1_000_000)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

#[test]
fn busy_directions_get_new_keys_and_keep_all_bytes() -> Result<()> {
    let both = BothEnds::new("pairkeys", Family::V4)?;
    let here = &both.here;
    let group = here.open(2, &Plan::gentle())?;
    here.change(&["put", "+crypt"], "put", 2)?;
    both.wait_there(2)?;
    let call = |role: Role, verb: &str| -> Result<Value> {
        let rows = both.list(role)?;
        let session = rows[0]["session"].as_str().context("no session")?;
        let words = ["service", "call", session, "crypt", verb];
        Ok(here.fleet.json(here.lab.host(role), &words)?["answer"].take())
    };
    for role in [Role::Client, Role::Server, Role::Client] {
        let rekeyed = call(role, "rekey")?;
        ensure!(rekeyed == json!({"rekeyed": true}), "{rekeyed:#}");
        group.wait_more(200_000, Duration::from_secs(60))?;
    }
    // The other host answers the last request with a key of its own a moment later.
    let all_new = || {
        let read = call(Role::Client, "read").ok()?;
        let keys = ["sealed", "opened"].map(|way| read[way]["keys"].as_u64());
        (keys == [Some(3); 2]).then_some(())
    };
    wait::until(
        "the keys of both directions",
        Duration::from_secs(60),
        all_new,
    )?;
    here.change(&["take"], "taken", 2)?;
    both.wait_there(0)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

#[test]
fn two_services_come_into_ipv6_sessions_and_leave_them() -> Result<()> {
    let services = ["+compress", "+crypt"];
    come_and_leave("pair6", Family::V6, &services, &Plan::gentle(), 4)
}

#[test]
fn they_come_and_leave_ten_times_by_either_host() -> Result<()> {
    let both = BothEnds::new("pairten", Family::V4)?;
    let here = &both.here;
    let group = here.open(3, &Plan::paced(20_000_000, Close::First(Side::Server)))?;
    for round in 0..10 {
        here.change(&["put", "+crypt", "+count"], "put", 3)?;
        both.wait_there(3)?;
        group.wait_more(100_000, Duration::from_secs(30))?;
        if round % 2 == 0 {
            here.change(&["take"], "taken", 3)?;
        } else {
            let words = ["service", "take", "--filter", "port=9000", "--wait"];
            here.fleet.json(&here.lab.server, &words)?;
            here.wait_for_none()?;
        }
        both.wait_there(0)?;
        group.wait_more(100_000, Duration::from_secs(30))?;
    }
    all_intact(&group.finish()?)?;
    both.finish()
}

#[test]
fn a_lossy_network_and_a_slow_reader_lose_nothing() -> Result<()> {
    let lab = Lab::builder("pairloss").loss(1.0).build()?;
    let both = BothEnds::over(lab, Family::V4)?;
    let here = &both.here;
    let group = here.open(4, &Plan::gentle())?;
    for _ in 0..3 {
        here.change(&["put", "+compress", "+crypt"], "put", 4)?;
        group.wait_more(100_000, Duration::from_secs(30))?;
        here.change(&["take"], "taken", 4)?;
        group.wait_more(100_000, Duration::from_secs(30))?;
    }
    group.set_reading(Side::Server, Reading::Slow(500_000));
    here.change(&["put", "+crypt"], "put", 4)?;
    group.set_reading(Side::Server, Reading::Fast);
    here.change(&["take"], "taken", 4)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

#[test]
fn sessions_end_through_the_services_of_both_hosts() -> Result<()> {
    let both = BothEnds::new("pairends", Family::V4)?;
    let here = &both.here;
    let ends = [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Together,
        Close::Reset(Side::Client),
        Close::Reset(Side::Server),
    ];
    for close in ends {
        let group = here.open(2, &Plan::paced(8_000_000, close))?;
        here.change(&["put", "+crypt"], "put", 2)?;
        group.wait_more(200_000, Duration::from_secs(30))?;
        all_intact(&group.finish()?).with_context(|| format!("{close:?}"))?;
        both.wait_there(0)?;
        here.wait_for_none()?;
    }
    both.finish()
}

#[test]
fn a_handler_that_dies_ends_the_session_at_both_ends() -> Result<()> {
    for role in [Role::Client, Role::Server] {
        let both = BothEnds::new(&format!("pairkill{}", role as u8), Family::V4)?;
        let here = &both.here;
        let group = here.open(1, &Plan::gentle())?;
        here.change(&["put", "+crypt"], "put", 1)?;
        both.wait_there(1)?;
        kill(both.handler(role)?, Signal::SIGKILL)?;
        let outcome = group.finish()?;
        let (client, server) = (&outcome[0].client, &outcome[0].server);
        ensure!(
            client.error.is_some() && server.error.is_some(),
            "an end takes the session for complete: {outcome:?}"
        );
        ensure!(client.wrong_at.is_none() && server.wrong_at.is_none());
        both.finish()?;
    }
    Ok(())
}

#[test]
fn the_next_daemons_take_out_what_the_last_ones_put_in() -> Result<()> {
    let mut both = BothEnds::new("pairdies", Family::V4)?;
    let group = both.here.open(3, &Plan::gentle())?;
    both.here
        .change(&["put", "+compress", "+crypt"], "put", 3)?;
    both.wait_there(3)?;
    let (here, there) = (&mut both.here, &mut both.there);
    here.next_daemon(|_| {
        there.process.kill()?;
        group.wait_more(300_000, Duration::from_secs(30))
    })?;
    let file = here.lab.server.dir().join("dyscod.toml");
    *there = here.fleet.restart(&here.lab, Role::Server, &file)?;
    both.wait_there(3)?;
    both.here.change(&["take"], "taken", 3)?;
    both.wait_there(0)?;
    group.wait_more(300_000, Duration::from_secs(30))?;
    both.here.change(&["put", "+crypt"], "put", 3)?;
    group.wait_more(300_000, Duration::from_secs(30))?;
    all_intact(&group.finish()?)?;
    both.finish()
}

#[test]
fn two_hundred_sessions_are_encrypted_at_once() -> Result<()> {
    let both = BothEnds::new("pairmany", Family::V4)?;
    let here = &both.here;
    let plan = Plan::paced(300_000, Close::First(Side::Client));
    let group = here.open(200, &plan)?;
    here.change(&["put", "+crypt"], "put", 200)?;
    group.wait_more(30_000, Duration::from_secs(60))?;
    here.change(&["take"], "taken", 200)?;
    both.wait_there(0)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

#[test]
fn without_dyscod_at_the_other_end_the_refusal_says_so() -> Result<()> {
    let here = OneEnd::new("pairalone", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    let done = here.change(&["put", "+crypt"], "refused", 1)?;
    let reason = done["sessions"][0]["reason"].to_string();
    ensure!(
        done["exit"] == 5 && reason.contains("needs dyscod") || reason.contains("need dyscod"),
        "{done:#}"
    );
    group.wait_progress(300_000)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

/// No line that is sent after the services are in is readable between the hosts.
#[test]
fn no_plain_text_is_between_the_hosts() -> Result<()> {
    let both = BothEnds::new("pairplain", Family::V4)?;
    let here = &both.here;
    // On a host with an end, a capture also has what the handler delivers.
    let capture = capture::start(&here.lab.router, "server")?;
    let at = Role::Server.at(Family::V4, 9001);
    let (listener, client) = {
        let listener = here.lab.server.run(move || TcpListener::bind(at))?;
        let client = here.lab.client.run(move || TcpStream::connect(at))?;
        (listener, client)
    };
    let (server, _) = listener.accept()?;
    let say = |word: &str| -> Result<()> {
        for (mut from, mut to) in [(&client, &server), (&server, &client)] {
            from.write_all(word.as_bytes())?;
            let mut got = vec![0; word.len()];
            to.read_exact(&mut got)?;
            ensure!(got == word.as_bytes(), "{got:?}");
        }
        Ok(())
    };
    say("the first word is plain")?;
    let filter = ["--filter", "port=9001", "--wait"];
    here.service(&[&["put", "+crypt"][..], &filter].concat())?;
    both.wait_there(1)?;
    say("nobody may read this one")?;
    here.service(&[&["take"][..], &filter].concat())?;
    both.wait_there(0)?;
    say("the last one is plain again")?;
    drop((client, server));
    let has = |word| here.has_captured(word);
    let captured = || has("the last one is plain again").then_some(());
    wait::until("the last word", Duration::from_secs(30), captured)?;
    drop(capture);
    ensure!(has("the first word is plain"), "not captured");
    ensure!(!has("nobody may read"), "it was readable");
    both.finish()
}

/// The host that has put the services in decides about some of them, and needs the other one for it.
#[test]
fn some_services_change_with_the_other_host_alone() -> Result<()> {
    let mut both = BothEnds::new("pairsome", Family::V4)?;
    let group = both.here.open(1, &Plan::gentle())?;
    both.here.change(&["put", "+crypt"], "put", 1)?;
    both.wait_there(1)?;
    let there = both.here.lab.host(Role::Server);
    let words = [
        "service",
        "put",
        "+compress",
        "--wait",
        "--filter",
        "services=yes",
    ];
    let refused = both.here.fleet.try_dyscoctl(there, &words)?;
    ensure!(refused.code == Some(5), "{refused:?}");
    ensure!(refused.stdout.contains("ask there"), "{refused:?}");

    both.there.process.kill()?;
    for words in [&["put", "+compress"][..], &["put", "+compress", "+count"]] {
        let refused = both.here.change(words, "refused", 1)?.to_string();
        let why = [
            "is not reachable",
            "does not answer",
            "by a request of their own",
        ];
        ensure!(why.iter().any(|why| refused.contains(why)), "{refused}");
    }
    group.wait_more(300_000, Duration::from_secs(30))?;
    let file = both.here.lab.server.dir().join("dyscod.toml");
    both.there = both
        .here
        .fleet
        .restart(&both.here.lab, Role::Server, &file)?;
    both.wait_there(1)?;
    both.here.change(&["put", "+compress"], "put", 1)?;
    both.wait_services(&["compress", "crypt"], 1)?;
    group.wait_more(300_000, Duration::from_secs(30))?;
    // Without it `compress` alone would rest.
    both.here.change(&["put", "+count"], "put", 1)?;
    both.here.change(&["take", "+crypt"], "taken", 1)?;
    both.wait_services(&["compress"], 1)?;
    both.here.change(&["take"], "taken", 1)?;
    both.wait_there(0)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

/// Programs that read nothing keep further services from coming in, and all can leave all the same.
#[test]
fn all_services_leave_while_others_come_in() -> Result<()> {
    let both = BothEnds::new("pairstuck", Family::V4)?;
    let here = &both.here;
    let group = here.open(1, &Plan::default())?;
    here.change(&["put", "+crypt"], "put", 1)?;
    both.wait_there(1)?;
    for side in [Side::Client, Side::Server] {
        group.set_reading(side, Reading::Paused);
    }
    let filter = ["--filter", "port=9000"];
    let put = here.service(&[&["put", "+compress"][..], &filter].concat())?;
    ensure!(put["sessions"][0]["outcome"] == "entering", "{put:#}");
    let take = here.service(&[&["take"][..], &filter].concat())?;
    ensure!(take["sessions"][0]["outcome"] == "leaving", "{take:#}");
    for side in [Side::Client, Side::Server] {
        group.set_reading(side, Reading::Fast);
    }
    here.wait_for_none()?;
    both.wait_there(0)?;
    group.wait_progress(500_000)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

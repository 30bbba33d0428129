//! The test harness itself, without `dyscod`: its statements about traffic must be true before it
//! judges anything.

use std::time::Duration;

use anyhow::Result;
use dysco_netns::haproxy::Config;
use dysco_netns::nginx::Nginx;
use dysco_netns::stream::{Amount, Close, Group, Plan, Reading, Server, Side, all_intact};
use dysco_netns::{Family, HostOptions, Lab, Role, capture, counters, http, wait};
use dysco_pattern::Pattern;

const LIMIT: Duration = Duration::from_secs(30);

fn relayed(lab: &Lab, family: Family, plan: &Plan, count: usize, close: bool) -> Result<u64> {
    let server = Server::start(&lab.server, Role::Server.at(family, 9000))?;
    let (listen, to) = (Role::Proxy.at(family, 8080), Role::Server.at(family, 9000));
    let _haproxy = Config::tcp(listen, to).start(&lab.proxy, |p| p)?;
    let group = Group::open(&lab.client, &server, listen, count, plan)?;
    group.run();
    if close {
        group.wait_progress(200_000)?;
        group.rest()?;
    } else {
        // Such a small number of bytes may have arrived before the first look.
        let began = || (group.received(Side::Server) > 0).then_some(());
        wait::until("the first bytes", LIMIT, began)?;
    }
    all_intact(&group.finish()?)
}

#[test]
fn bytes_pass_haproxy_both_ways_in_either_family() -> Result<()> {
    let lab = Lab::builder("families").build()?;
    for family in [Family::V4, Family::V6] {
        assert!(relayed(&lab, family, &Plan::default(), 5, true)? > 2_000_000);
    }
    assert!(lab.proxy_packets()? > 0);
    lab.finish(())
}

#[test]
fn a_capture_of_resets_has_those_of_its_port_alone() -> Result<()> {
    let lab = Lab::builder("resets").build()?;
    let resets = capture::Resets::start(&lab.client, 9000)?;
    // Nobody listens.
    for port in [9001, 9000] {
        let to = Role::Server.at(Family::V4, port);
        let refused = lab.client.run(move || std::net::TcpStream::connect(to));
        assert!(refused.is_err());
    }
    let some = || {
        let seen = resets.seen(&lab.client).ok()?;
        (!seen.is_empty()).then_some(seen)
    };
    let seen = wait::until("the reset", LIMIT, some)?;
    assert_eq!(seen.len(), 1, "{seen:?}");
    drop(resets);
    lab.finish(())
}

#[test]
fn every_way_of_closing_is_heard() -> Result<()> {
    let lab = Lab::builder("closing").build()?;
    for side in [Side::Client, Side::Server] {
        for close in [Close::First(side), Close::Reset(side)] {
            let plan = Plan {
                close,
                ..Plan::default()
            };
            relayed(&lab, Family::V4, &plan, 3, true)?;
        }
    }
    let at = Role::Server.at(Family::V4, 9000);
    let server = Server::start(&lab.server, at)?;
    let plan = Plan {
        close: Close::Together,
        ..Plan::default()
    };
    let group = Group::open(&lab.client, &server, at, 3, &plan)?;
    group.run();
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    lab.finish(())
}

#[test]
fn fixed_amounts_end_by_themselves_and_silence_is_possible() -> Result<()> {
    let lab = Lab::builder("amounts").build()?;
    let plan = Plan {
        up: Amount::Bytes(1_000),
        down: Amount::Bytes(3_000_000),
        ..Plan::default()
    };
    assert_eq!(relayed(&lab, Family::V4, &plan, 2, false)?, 2 * 3_101_000);
    lab.finish(())
}

#[test]
fn a_thousand_sessions_are_open_at_once() -> Result<()> {
    let lab = Lab::builder("thousand").build()?;
    let plan = Plan {
        rate: Some(100_000),
        write: 4096,
        ..Plan::default()
    };
    relayed(&lab, Family::V4, &plan, 1000, true)?;
    lab.finish(())
}

#[test]
fn a_reader_that_pauses_stops_its_sender_and_nothing_is_lost() -> Result<()> {
    let lab = Lab::builder("pausing").build()?;
    let at = Role::Server.at(Family::V4, 9000);
    let server = Server::start(&lab.server, at)?;
    let plan = Plan {
        receive_buffer: Some(16 << 10),
        ..Plan::default()
    };
    let group = Group::open(&lab.client, &server, at, 1, &plan)?;
    group.set_reading(Side::Client, Reading::Paused);
    group.run();
    let zero = || {
        let counters = counters::tcp(&lab.client).unwrap_or_default();
        counters["TcpExt.TCPWantZeroWindowAdv"] + counters["TcpExt.TCPToZeroWindowAdv"] > 0
    };
    let closed = wait::until("a closed window", LIMIT, || {
        (zero() && group.received(Side::Server) > 1 << 20).then_some(())
    });
    closed?;
    group.set_reading(Side::Client, Reading::Slow(1 << 20));
    group.wait_progress(100_000)?;
    group.set_reading(Side::Client, Reading::Fast);
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    lab.finish(())
}

#[test]
fn options_of_the_hosts_reach_the_wire() -> Result<()> {
    let lab = Lab::builder("options")
        .hosts(|host: HostOptions| host.offload(false).mtu(1400))
        .host(Role::Client, |host| {
            host.sack(false).timestamps(false).advmss(900)
        })
        .loss(1.0)
        .build()?;
    let tcpdump = capture::start(&lab.client, "eth0")?;
    relayed(&lab, Family::V4, &Plan::default(), 2, true)?;
    let retransmitted = counters::tcp(&lab.proxy)?["Tcp.RetransSegs"];
    assert!(retransmitted > 0, "no packet was lost");
    let file = lab
        .client
        .dir()
        .join("eth0.pcap0")
        .to_string_lossy()
        .into_owned();
    let dump = ["-nr", &file, "-c", "1", "tcp[tcpflags] & tcp-syn != 0"];
    let syn = wait::until("a SYN in the capture", LIMIT, || {
        lab.client
            .output("tcpdump", &dump)
            .ok()
            .filter(|line| line.contains("mss"))
    })?;
    assert!(
        syn.contains("mss 900") && !syn.contains("sackOK") && !syn.contains("TS "),
        "{syn}"
    );
    lab.finish(tcpdump)
}

#[test]
fn nginx_serves_stores_and_answers_through_haproxy() -> Result<()> {
    let lab = Lab::builder("nginx").build()?;
    let nginx = Nginx::start(&lab.server, 80)?;
    let listen = Role::Proxy.at(Family::V4, 8080);
    let haproxy = Config::tcp(listen, Role::Server.at(Family::V4, 80));
    let haproxy = haproxy.start(&lab.proxy, |p| p)?;
    let before = counters::resets(&lab.client)? + counters::resets(&lab.server)?;
    let down = http::download(&lab.client, listen, "download")?;
    let up = http::upload(&lab.client, listen, "one", 5, 20 << 20)?;
    let requests = http::requests(&lab.client, listen, "requests")?;
    let enough = || down.gauge.bytes() > 100 << 20 && up.gauge.bytes() > 5 << 20;
    wait::until("traffic", LIMIT, || {
        (enough() || down.ended() || up.ended()).then_some(())
    })?;
    let resets = counters::resets(&lab.client)? + counters::resets(&lab.server)?;
    assert_eq!(resets, before);
    assert!(!requests.gauge.take_latencies().is_empty());
    requests.finish()?;
    down.finish()?;
    let stored = up.finish()?;
    let hash = Nginx::verify(&lab.server, "one", Pattern::new(5), stored)?;
    assert_eq!(hash.len(), 64);
    let wrong = Nginx::verify(&lab.server, "one", Pattern::new(6), stored);
    assert!(
        wrong.is_err(),
        "another pattern was taken for what was stored"
    );
    lab.finish((nginx, haproxy))
}

#[test]
fn a_changed_byte_is_noticed() -> Result<()> {
    let lab = Lab::builder("changed").build()?;
    let at = Role::Server.at(Family::V4, 9000);
    let server = Server::start(&lab.server, at)?;
    let group = Group::open(&lab.client, &server, at, 1, &Plan::default())?;
    // The kernel recomputes the checksum, so that TCP accepts the new byte as data.
    lab.add_rule("tcp dport 9000 meta length > 1000 @ih,800,8 set 0x5a")?;
    group.run();
    group.wait_progress(1 << 20)?;
    let outcomes = group.finish()?;
    assert!(outcomes[0].server.wrong_at.is_some());
    assert!(all_intact(&outcomes).is_err());
    lab.finish(())
}

#[test]
fn a_program_that_does_not_start_says_why() -> Result<()> {
    let lab = Lab::builder("failing").build()?;
    let listen = Role::Proxy.at(Family::V4, 8080);
    let broken = Config::tcp(listen, listen).line("no such keyword");
    let error = broken
        .start(&lab.proxy, |p| p)
        .err()
        .map(|e| format!("{e:#}"));
    assert!(error.is_some_and(|e| e.contains("no such keyword") || e.contains("unknown keyword")));
    lab.finish(())
}

//! HAProxy is removed from live sessions, end to end. Both directions carry data all the time;
//! every byte is checked, and both streams' SHA-256.

use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Amount, Close, Plan, Reading, Side, all_intact};
use dysco_netns::{Builder, Family, HostOptions, Lab, Role};

/// Busy sessions lose the proxy, and continue for some time without it.
fn busy(builder: Builder, family: Family, count: usize, plan: &Plan) -> Result<()> {
    let w = World::new(builder, family)?;
    busy_in(w, count, plan, 1 << 20)
}

fn busy_in(w: World, count: usize, plan: &Plan, progress: u64) -> Result<()> {
    let group = w.open(count, plan)?;
    group.run();
    group.wait_progress(progress)?;
    // The data that the proxy holds drains slowly if packets are lost.
    let done = w.remove(&["--all", "--timeout", "120s"])?;
    assert_eq!(done["summary"]["removed"], count, "{done:#}\n{}", w.state());
    let before = w.lab.proxy_packets()?;
    group.wait_progress(2 * progress)?;
    let after = w.lab.proxy_packets()?;
    assert!(
        after - before < 50,
        "the proxy still sees packets: {}",
        after - before
    );
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn one_busy_session_ipv4() -> Result<()> {
    busy(Lab::builder("one4"), Family::V4, 1, &Plan::default())
}

#[test]
fn one_busy_session_ipv6() -> Result<()> {
    busy(Lab::builder("one6"), Family::V6, 1, &Plan::default())
}

#[test]
fn twenty_busy_sessions() -> Result<()> {
    busy(Lab::builder("twenty"), Family::V4, 20, &Plan::default())
}

#[test]
fn without_offloads() -> Result<()> {
    let lab = Lab::builder("offload").hosts(|h| h.offload(false));
    busy(lab, Family::V4, 4, &Plan::default())
}

#[test]
fn without_offloads_ipv6() -> Result<()> {
    let lab = Lab::builder("offload6").hosts(|h| h.offload(false));
    busy(lab, Family::V6, 4, &Plan::default())
}

#[test]
fn with_one_percent_loss() -> Result<()> {
    let w = World::new(Lab::builder("loss1").loss(1.0), Family::V4)?;
    busy_in(w, 4, &Plan::default(), 200_000)
}

#[test]
fn with_five_percent_loss() -> Result<()> {
    let w = World::new(Lab::builder("loss5").loss(5.0), Family::V4)?;
    busy_in(w, 4, &Plan::default(), 50_000)
}

/// Returns a lab in which one host lacks an option.
fn without(role: Role, change: impl Fn(HostOptions) -> HostOptions) -> Builder {
    Lab::builder("options").host(role, change)
}

#[test]
fn without_timestamps_at_the_client() -> Result<()> {
    busy(
        without(Role::Client, |h| h.timestamps(false)),
        Family::V4,
        2,
        &Plan::default(),
    )
}

#[test]
fn without_timestamps_at_the_server() -> Result<()> {
    busy(
        without(Role::Server, |h| h.timestamps(false)),
        Family::V4,
        2,
        &Plan::default(),
    )
}

#[test]
fn without_timestamps_and_sack_anywhere() -> Result<()> {
    let lab = Lab::builder("bare").hosts(|h| h.timestamps(false).sack(false));
    busy(lab, Family::V4, 2, &Plan::default())
}

#[test]
fn without_window_scaling_at_the_server() -> Result<()> {
    // A faster session is refused: see `strict_firewall`.
    let plan = Plan {
        rate: Some(1 << 20),
        ..Plan::default()
    };
    busy(
        without(Role::Server, |h| h.window_scaling(false)),
        Family::V4,
        2,
        &plan,
    )
}

#[test]
fn a_side_without_sack_is_refused_and_says_so() -> Result<()> {
    for role in [Role::Client, Role::Server] {
        let w = World::new(without(role, |h| h.sack(false)), Family::V4)?;
        refused(w, 1, "SACK", Some("SACK"))?;
    }
    Ok(())
}

/// Checks that all removals are refused for this reason, and that the sessions continue. A dry run
/// reports what this host can know in advance.
fn refused(w: World, count: usize, why: &str, known: Option<&str>) -> Result<()> {
    let group = w.open(count, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let dry = w.remove(&["--all", "--dry-run"])?;
    let reason = dry["removals"][0]["reason"]["why"].as_str();
    let told = known.map_or(reason.is_none(), |known| {
        reason.is_some_and(|reason| reason.contains(known))
    });
    assert!(told, "{dry:#}");
    let done = w.remove_all()?;
    for removal in done["removals"].as_array().into_iter().flatten() {
        let reason = removal["reason"].to_string();
        assert!(reason.contains(why), "{done:#}");
    }
    assert_eq!(done["summary"]["removed"], 0, "{done:#}");
    assert!(
        done["summary"]["refused"] == count || done["summary"]["rolled_back"] == count,
        "{done:#}"
    );
    group.wait_progress(1 << 20)?;
    group.rest()?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_smaller_mss_at_the_server_is_refused_and_says_so() -> Result<()> {
    let w = World::new(without(Role::Server, |h| h.advmss(900)), Family::V4)?;
    refused(w, 1, "segments of up to", Some("segments of up to"))
}

#[test]
fn a_smaller_mss_towards_the_proxy_is_bridged() -> Result<()> {
    // The proxy's own MSS announcement limits the ends, not its ability.
    let lab = Lab::builder("mss").host(Role::Proxy, |h| h.advmss(900));
    busy(lab, Family::V4, 1, &Plan::default())
}

#[test]
fn a_peer_without_a_daemon_is_refused_and_says_so() -> Result<()> {
    let w = World::with(
        Lab::builder("noagent"),
        Family::V4,
        &[Role::Client, Role::Proxy],
        "",
        |c| c,
    )?;
    let known = "no dyscod at 10.0.3.1";
    refused(w, 1, "no dyscod answers at 10.0.3.1", Some(known))
}

#[test]
fn a_new_path_that_drops_packets_is_refused_and_says_so() -> Result<()> {
    let w = World::new(Lab::builder("dropping"), Family::V4)?;
    w.lab
        .add_rule("ip saddr 10.0.1.1 ip daddr 10.0.3.1 tcp dport 9000 drop")?;
    refused(w, 1, "no answer to a SYN", None)
}

#[test]
fn a_new_path_too_narrow_for_full_segments_is_refused() -> Result<()> {
    for direction in [
        "ip saddr 10.0.1.1 ip daddr 10.0.3.1",
        "ip saddr 10.0.3.1 ip daddr 10.0.1.1",
    ] {
        let w = World::new(Lab::builder("narrow"), Family::V4)?;
        w.lab.add_rule(&format!(
            "{direction} meta l4proto tcp meta length > 1200 drop"
        ))?;
        refused(w, 1, "no answer to a SYN", None)?;
    }
    Ok(())
}

#[test]
fn a_slow_reader_loses_its_proxy_too() -> Result<()> {
    let w = World::new(Lab::builder("slow"), Family::V4)?;
    let group = w.open(2, &Plan::default())?;
    group.set_reading(Side::Server, Reading::Slow(20 << 20));
    group.run();
    group.wait_progress(4 << 20)?;
    // The data that the proxy holds has to be read first.
    let done = w.remove(&["--all", "--timeout", "300s"])?;
    assert_eq!(done["summary"]["removed"], 2, "{done:#}\n{}", w.state());
    group.wait_progress(4 << 20)?;
    group.set_reading(Side::Server, Reading::Fast);
    group.wait_progress(10 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_download_is_removed_by_the_operators_word_alone() -> Result<()> {
    let plan = Plan {
        up: Amount::Bytes(0),
        close: Close::First(Side::Server),
        ..Plan::default()
    };
    let silent = |config: &str| -> Result<(World, usize)> {
        let roles = [Role::Client, Role::Proxy, Role::Server];
        let w = World::with(Lab::builder("download"), Family::V4, &roles, config, |c| c)?;
        let group = w.open(1, &plan)?;
        group.run();
        dysco_netns::wait::until("data", std::time::Duration::from_secs(20), || {
            (group.received(Side::Client) > 4 << 20).then_some(())
        })?;
        let done = w.remove_all()?;
        let removed = done["summary"]["removed"].as_u64().unwrap_or(0) as usize;
        if removed == 0 {
            let reason = done["removals"][0]["reason"].to_string();
            assert!(reason.contains("not been spliced yet"), "{done:#}");
        }
        let at = group.received(Side::Client);
        dysco_netns::wait::until("data", std::time::Duration::from_secs(20), || {
            (group.received(Side::Client) > at + (4 << 20)).then_some(())
        })?;
        all_intact(&group.finish()?)?;
        Ok((w, removed))
    };
    let (w, removed) = silent("")?;
    assert_eq!(removed, 0);
    w.finish()?;
    let (w, removed) = silent(DECLARED)?;
    assert_eq!(removed, 1);
    w.finish()
}

/// Sessions end in this way after the removal.
fn closing(close: Close) -> Result<()> {
    let w = World::new(Lab::builder("closing"), Family::V4)?;
    let plan = Plan {
        close,
        ..Plan::default()
    };
    let group = w.open(3, &plan)?;
    group.run();
    group.wait_progress(1 << 20)?;
    w.remove_all_of(3)?;
    group.wait_progress(1 << 20)?;
    let ended = || {
        let all = w.sessions(Role::Client)?;
        Ok::<_, anyhow::Error>(all.iter().filter(|s| s["ended"] == true).count())
    };
    ensure!(ended()? == 0, "{}", w.state());
    all_intact(&group.finish()?)?;
    let limit = std::time::Duration::from_secs(20);
    dysco_netns::wait::until("the list to say so", limit, || {
        ended().is_ok_and(|ended| ended == 3).then_some(())
    })
    .with_context(|| w.state())?;
    w.finish()
}

#[test]
fn the_client_closes_first() -> Result<()> {
    closing(Close::First(Side::Client))
}

#[test]
fn the_server_closes_first() -> Result<()> {
    closing(Close::First(Side::Server))
}

#[test]
fn both_close_together() -> Result<()> {
    closing(Close::Together)
}

#[test]
fn the_client_resets() -> Result<()> {
    closing(Close::Reset(Side::Client))
}

#[test]
fn the_server_resets() -> Result<()> {
    closing(Close::Reset(Side::Server))
}

/// The services of the packet plane see the session on whichever path it takes.
#[test]
fn services_of_the_packet_plane_stay_when_the_proxy_leaves() -> Result<()> {
    let w = World::new(Lab::builder("packstay"), Family::V4)?;
    let client = &w.lab.client;
    let group = w.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let put = ["service", "put", "+count=plane=packet", "--all"];
    w.fleet.dyscoctl(client, &put)?;
    w.remove_all_of(1)?;
    let counted = || -> Result<[u64; 2]> {
        let listed = w.fleet.json(client, &["service", "list"])?;
        let session = listed[0]["session"].as_str().context("no services")?;
        let read = ["service", "call", session, "count", "read"];
        let answer = w.fleet.json(client, &read)?["answer"].take();
        let bytes = |way: &str| answer[way]["bytes"].as_u64().context("no count");
        Ok([bytes("up")?, bytes("down")?])
    };
    let before = counted()?;
    group.wait_progress(2 << 20)?;
    let after = counted()?;
    for (after, before) in after.into_iter().zip(before) {
        ensure!(after > before + 100_000, "{before} and then {after} bytes");
    }
    all_intact(&group.finish()?)?;
    w.finish()
}

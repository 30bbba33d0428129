//! A device on the path of another chain answers with resets, or changes packets, as firewalls do:
//! no session takes that chain, and no end notices anything. Once the device is gone, the session
//! takes the chain.

use crate::steered::beside::{Beside, Relayed};
use crate::steered::ways::{busy, get_on, nothing_refused};
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::Family;
use dysco_netns::meddler::{Does, Meddler};
use dysco_netns::stream::{Group, Plan, all_intact};

fn ends_of(parts: [At; 2]) -> [(&'static str, std::net::IpAddr); 2] {
    parts.map(|at| (at.name(), at.address(Family::V4)))
}

/// Checks that the session cannot have this chain, for this reason, and stays on its path.
fn refuses(world: &Steered, group: &Group, session: &str, why: &str) -> Result<()> {
    let before = world.chain_of(session)?;
    let done = world.reconfigure(session, &[At::Fw1], &[])?;
    let reason = done["reason"].to_string();
    let told = done["outcome"] == "rolled_back" && reason.contains(why);
    ensure!(told, "{why}: {done:#}\n{}", world.logs());
    get_on(world, group)?;
    ensure!(world.chain_of(session)? == before);
    nothing_refused(world)
}

fn reject(world: &Steered, from: At, to: At) -> Result<()> {
    let [from, to] = [from, to].map(|at| world.ip(at));
    let rule = format!(
        "table inet rejects {{\n chain forward {{\n type filter hook forward priority 0\n \
         ip saddr {from} ip daddr {to} meta l4proto tcp reject with tcp reset\n }}\n}}\n"
    );
    world.router.input("nft", &["-f", "-"], &rule).map(drop)
}

fn reject_no_more(world: &Steered) -> Result<()> {
    let words = ["delete", "table", "inet", "rejects"];
    world.router.output("nft", &words).map(drop)
}

/// The device stands on each part of the path in turn.
#[test]
fn a_chain_that_answers_by_resets_is_not_taken() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let parts = [(At::Client, At::Fw1), (At::Server, At::Fw1)];
    for (from, to) in parts {
        reject(&world, from, to)?;
        refuses(&world, &group, &session, "answers with a reset")
            .with_context(|| format!("{from:?} to {to:?}"))?;
        reject_no_more(&world)?;
    }
    world.update_chain(&session, &[At::Fw1])?;
    get_on(&world, &group)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Rules that answer each SYN between two hosts in the server's name, and open a connection to the
/// server once the client has acknowledged that answer.
fn synproxy(world: &Steered, from: At, to: At) -> Result<()> {
    let [from, to] = [from, to].map(|at| world.ip(at));
    let pair = format!("ip saddr {from} ip daddr {to}");
    let rules = format!(
        "table inet cookies {{\n chain early {{\n type filter hook prerouting priority raw\n \
         {pair} tcp flags & (syn | ack) == syn notrack\n }}\n chain forward {{\n \
         type filter hook forward priority 0\n \
         {pair} ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm\n }}\n}}\n"
    );
    let loose = "net.netfilter.nf_conntrack_tcp_loose";
    world.router.sysctl(loose, "0")?;
    world.router.input("nft", &["-f", "-"], &rules).map(drop)
}

/// The numbers of such an answer are random.
#[test]
fn no_connection_is_made_by_a_device_that_answers_for_the_server() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    synproxy(&world, At::Fw1, At::Server)?;
    for _ in 0..4 {
        let done = world.reconfigure(&session, &[At::Fw1], &[])?;
        let reason = done["reason"].to_string();
        ensure!(reason.contains("no answer to a SYN"), "{done:#}");
    }
    let sockets = world.host(At::Server).output("ss", &["-tan"])?;
    ensure!(!sockets.contains(&world.ip(At::Fw1)), "{sockets}");
    get_on(&world, &group)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_chain_that_changes_packets_is_not_taken() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let [near, far] = [[At::Client, At::Fw1], [At::Fw1, At::Server]];
    let cases = [
        (
            near,
            Does::Numbers(0x1020_3040, 0x5566_7788),
            "rewrites sequence numbers",
        ),
        (
            far,
            Does::Numbers(7, 0),
            "rewrites sequence numbers (by +7)",
        ),
        (
            far,
            Does::Numbers(0, 7),
            "rewrites acknowledgement numbers (by -7)",
        ),
        (
            near,
            Does::Clocks(0xff00_0000, 0xff00_0000),
            "shifts timestamps",
        ),
        (far, Does::StripsSack, "strips or alters SACK permitted"),
        (near, Does::LowersMss(1000), "lowers the MSS to 1000"),
    ];
    for (parts, does, why) in cases {
        let meddler = Meddler::start(&world.router, ends_of(parts), does)?;
        refuses(&world, &group, &session, why).with_context(|| format!("{does:?}"))?;
        drop(meddler);
    }
    world.update_chain(&session, &[At::Fw1])?;
    get_on(&world, &group)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A device on the path to a relaying host shifts clocks, and the path of the new chain does not:
/// the ends would discard all of its segments.
#[test]
fn a_relayed_session_with_shifted_clocks_keeps_its_path() -> Result<()> {
    for beside in [Beside::Client, Beside::Server] {
        let mut world = Steered::with_proxy(Family::V4, &[], "send-proxy-v2")?;
        world.kill(beside.other_end())?;
        let parts = [beside.opened().0, beside.accepted()];
        let clocks = Does::Clocks(0x1000_0000, 0x0765_0000);
        let _meddler = Meddler::start(&world.router, ends_of(parts), clocks)?;
        let (group, _) = world.left("local", 1, &Plan::gentle())?;
        let r = Relayed {
            world,
            beside,
            group,
        };
        r.is_refused(&r.only()?, "rewrites its sequence numbers, timestamps")?;
        r.get_on(1 << 20)?;
        r.finish()?;
    }
    Ok(())
}

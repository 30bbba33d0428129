//! A device on the path of another chain answers with resets, or changes packets, as firewalls do:
//! no session takes that chain, and no end notices anything. Once the device is gone, the session
//! takes the chain.

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
    let reason = done["reason"].as_str().unwrap_or_default();
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
    world.rechain(&session, &[At::Fw1])?;
    get_on(&world, &group)?;
    all_intact(&group.finish()?).map(drop)
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
            Does::Numbers(0, 7),
            "rewrites sequence numbers (by +7)",
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
    world.rechain(&session, &[At::Fw1])?;
    get_on(&world, &group)?;
    all_intact(&group.finish()?).map(drop)
}

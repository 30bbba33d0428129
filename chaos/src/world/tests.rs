//! Hosts whose links are cut.

use super::*;
use crate::boxes;
use crate::plan::{BoxKind, BoxPlan, Place, draw};

/// The longest packet that the router sends from one host to another.
fn mtu(world: &World, from: u8, to: u8, v6: bool) -> Result<String> {
    let [from_address, to] = [from, to].map(|n| address(n, v6).to_string());
    let port = format!("h{from}");
    let words = ["route", "get", &to, "from", &from_address, "iif", &port];
    world.router.output("ip", &words)
}

#[test]
fn a_narrow_path_is_narrow_after_its_link_was_down() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut plan = draw(1);
    plan.hosts.truncate(2);
    for host in &mut plan.hosts {
        (host.link, host.part, host.mtu) = (Link::Veth, Part::Client, 1500);
        host.sysctls.clear();
    }
    let world = World::build(&plan, dir.path())?;
    let placed = BoxPlan {
        number: 1,
        from_ms: 0,
        place: Place::Path { from: 1, to: 2 },
        kind: BoxKind::Narrow { mtu: 1300 },
    };
    let host = &plan.hosts[1];
    let narrow = |when: &str| -> Result<()> {
        for (from, to, v6) in [(1, 2, false), (2, 1, false), (1, 2, true), (2, 1, true)] {
            let route = mtu(&world, from, to, v6)?;
            anyhow::ensure!(route.contains("mtu lock 1300"), "{when}: {route}");
        }
        Ok(())
    };
    boxes::place(&world, &placed, 1)?;
    narrow("at first")?;
    world.set_link(host, false)?;
    world.set_link(host, true)?;
    narrow("after the link was down")?;
    // A path may become narrow while a link is down.
    world.set_link(host, false)?;
    let late = BoxPlan {
        place: Place::Path { from: 2, to: 1 },
        ..placed
    };
    let dir = tempfile::tempdir()?;
    let other = World::build(&plan, dir.path())?;
    other.set_link(host, false)?;
    assert!(boxes::place(&other, &late, 1).is_err());
    other.set_link(host, true)?;
    let route = mtu(&other, 1, 2, false)?;
    anyhow::ensure!(route.contains("mtu lock 1300"), "{route}");
    Ok(())
}

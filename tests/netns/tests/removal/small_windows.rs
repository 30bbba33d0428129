//! An end whose window is smaller than the segments that the other end would send: with the proxy
//! both make progress, and without it the sender would wait for its timers.

use crate::world::fates::SETTLED;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role, wait};
use serde_json::Value;

#[test]
fn a_window_below_a_segment_is_refused() -> Result<()> {
    for (mode, daemons) in [("bypass", &Role::ALL[..]), ("local", &[Role::Proxy][..])] {
        let lab = Lab::builder("smallwin").host(Role::Server, |host| {
            host.sysctl("net.ipv4.tcp_rmem", "2304 2304 2304")
        });
        let mut w = World::with(lab, Family::V4, daemons, DECLARED, |c| c)?;
        w.mode = mode;
        let plan = Plan {
            rate: Some(400_000),
            write: 4000,
            ..Plan::default()
        };
        let group = w.open(1, &plan)?;
        group.run();
        group.wait_progress(100_000)?;
        // A dry run reports it as well, as soon as no other reason exists.
        let reason = |done: &Value| {
            let reason = done["removals"][0]["reason"].as_str();
            reason.unwrap_or_default().to_owned()
        };
        let mut dry = Value::Null;
        wait::until("the dry run to tell of the window", SETTLED, || {
            dry = w.remove(&["--all", "--dry-run"]).ok()?;
            reason(&dry).contains("window").then_some(())
        })
        .with_context(|| format!("{dry:#}"))?;
        let done = w.remove_all()?;
        let reason = reason(&done);
        let told = ["right end", "window", "receive buffer"];
        let told = told.iter().all(|word| reason.contains(word));
        ensure!(
            done["summary"]["removed"] != 1 && told,
            "{done:#}\n{}",
            w.state()
        );
        // The session continues as before.
        group.wait_progress(200_000)?;
        group.rest()?;
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}

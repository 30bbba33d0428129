//! Cost of the shim: requests to nginx through HAProxy with the shim, compared with HAProxy without
//! it on the same host.

use anyhow::Result;
use dysco_netns::haproxy::Config;
use dysco_netns::nginx::Nginx;
use dysco_netns::{Family, Role};

use crate::Effort;
use crate::calls;
use crate::figure::Figure;
use crate::stage::{Stage, proxied, server};
use crate::turns::{Brought, Turns};
use crate::wrk;

/// HAProxy without the shim, another such process, and HAProxy with the shim.
const KINDS: usize = 3;
const CONTROL: usize = 1;
const SHIMMED: usize = 2;
/// Ports of the two processes without the shim.
const BARE: [u16; 2] = [8081, 8082];

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let [mut kept, mut opened] = [(); 2].map(|()| Turns::<KINDS>::new("no shim"));
    let stage = Stage::alone("shim", "")?;
    let nginx = Nginx::start(&stage.lab.server, server().port())?;
    let at = BARE.map(|port| Role::Proxy.at(Family::V4, port));
    // These processes differ from the one with the shim only by the shim. There are two, because
    // equal processes do not perform equally.
    let bare = |at, name| {
        let config = Config::tcp(at, server()).named(name);
        config.start(&stage.lab.proxy, |haproxy| haproxy)
    };
    let bare = [bare(at[0], "bare")?, bare(at[1], "control")?];
    let ask = |kind: usize, kept: bool| {
        let to = match kind {
            SHIMMED => proxied(),
            CONTROL => at[1],
            _ => at[0],
        };
        let value = wrk::ask(&stage.lab.client, to, wrk::PING, wrk::SESSIONS, kept)?;
        Ok(Brought {
            value,
            ..Brought::default()
        })
    };
    for _ in 0..effort.pick(4, 1) {
        kept.each(2, |kind| ask(kind, true))?;
        opened.each(2, |kind| ask(kind, false))?;
    }
    drop((bare, nginx));
    let mut figures = calls::figures(effort, &stage.lab.proxy)?;
    stage.end()?;
    for (turns, what) in [(&kept, "request"), (&opened, "connect")] {
        for (name, kind) in [("shim", SHIMMED), ("control_shim", CONTROL)] {
            let name = format!("{name}_{what}_ratio");
            figures.push(turns.figure(name, kind, 1.0, "requests/s"));
        }
    }
    Ok(figures)
}

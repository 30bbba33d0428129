//! Starts the proxies of a plan.

use anyhow::{Context, Result};
use dysco_netns::fleet::Fleet;
use dysco_netns::haproxy::Config;
use dysco_netns::{Host, Process, Program, relays};

use crate::plan::{ProxyKind, ProxyPlan};

/// Starts a proxy and waits until it listens. Without a fleet no shim is loaded.
pub(crate) fn start(host: &Host, plan: &ProxyPlan, fleet: Option<&Fleet>) -> Result<Process> {
    let shim = fleet.filter(|_| plan.shim);
    let wrap = |program: Program| match shim {
        Some(fleet) => fleet.under_shim(program),
        None => program,
    };
    let (listen, to) = (plan.listen(), plan.to());
    let haproxy = |splice: bool, words: &[&str]| {
        let config = Config::tcp(listen, to).splice(splice);
        // A kill ends the proxy: no reload waits for its sessions.
        config.start(host, |program| wrap(program.args(words.iter().copied())))
    };
    match plan.kind {
        ProxyKind::HaproxySplice => haproxy(true, &[]),
        ProxyKind::HaproxyCopy => haproxy(false, &[]),
        ProxyKind::HaproxyMaster => haproxy(true, &["-W"]),
        ProxyKind::NginxStream => relays::nginx_stream_by(host, listen, to, wrap),
        ProxyKind::Socat => relays::socat_by(host, listen, to, wrap),
        ProxyKind::Go => relays::go(host, listen, to),
        ProxyKind::Buffer { bytes } => own(host, plan, wrap, &["--buffer", &bytes.to_string()]),
        ProxyKind::Rewrite { from } => own(host, plan, wrap, &["--rewrite", &from.to_string()]),
    }
}

/// Starts a relay of this program.
fn own(
    host: &Host,
    plan: &ProxyPlan,
    wrap: impl FnOnce(Program) -> Program,
    words: &[&str],
) -> Result<Process> {
    let program = std::env::current_exe().context("failed to find this program's own path")?;
    let (listen, to) = (plan.listen().to_string(), plan.to().to_string());
    let program = Program::new(program).args(["relay", &listen, &to]);
    let program = program.args(words.iter().copied());
    let mut process = host.spawn(wrap(program).named("relay"))?;
    let port = plan.listen().port();
    process.wait_ready("the relay to listen", || host.listens(port))?;
    Ok(process)
}

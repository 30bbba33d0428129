//! Metrics as Prometheus itself reads them, and the common id of one change on all its hosts.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Process, Program, Role, wait};

use crate::world::{DECLARED, World};

const LIMIT: Duration = Duration::from_secs(60);
const HOSTS: [Role; 3] = [Role::Client, Role::Proxy, Role::Server];
const PORT: u16 = 9469;
/// Port of Prometheus' own API.
const API: u16 = 9090;
const SESSIONS: usize = 2;

fn world(name: &str) -> Result<World> {
    let config = format!("{DECLARED}\n[metrics]\nlisten = \"127.0.0.1:{PORT}\"\n");
    World::with(Lab::builder(name), Family::V4, &HOSTS, &config, |c| c)
}

fn packaged(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus");
    let path = path.join(name).canonicalize();
    let path = path.with_context(|| format!("packaging lacks {name}"))?;
    Ok(path.display().to_string())
}

/// Starts Prometheus on a host. It reads the metrics of the host's daemon each second.
fn prometheus(host: &Host) -> Result<Process> {
    let config = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
         rule_files: ['{}']\n\
         scrape_configs: [{{job_name: dysco, static_configs: [{{targets: ['127.0.0.1:{PORT}']}}]}}]\n",
        packaged("alerts.yml")?
    );
    let file = host.dir().join("prometheus.yml");
    fs::write(&file, config).context("failed to write the configuration of Prometheus")?;
    let data = host.dir().join("prometheus");
    let program = Program::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", data.display()))
        .arg(format!("--web.listen-address=127.0.0.1:{API}"));
    let mut process = host.spawn(program)?;
    process.wait_ready("Prometheus to listen", || host.listens(API))?;
    Ok(process)
}

/// Returns the current value of an expression in Prometheus, if it has one.
fn ask(host: &Host, expression: &str) -> Option<f64> {
    let api = format!("http://127.0.0.1:{API}");
    let answer = host.output("promtool", &["query", "instant", &api, expression]);
    let answer = answer.ok()?;
    let (_, value) = answer.trim().rsplit_once("=> ")?;
    value.split(' ').next()?.parse().ok()
}

/// Returns the page in the older format, which `promtool` reads.
fn page(host: &Host) -> Result<String> {
    host.run(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", PORT))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: dysco\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Ok(body.to_owned())
    })
}

#[test]
fn prometheus_reads_what_was_removed() -> Result<()> {
    let w = world("prometheus")?;
    let proxy = &w.lab.proxy;
    let reader = prometheus(proxy)?;
    let group = w.open(SESSIONS, &Plan::gentle())?;
    group.run();
    group.wait_progress(64 << 10)?;
    w.wait_removable(&w.ends(&group)?)?;
    w.remove_all_of(SESSIONS)?;

    let done = "{kind=\"removal\",mode=\"bypass\"";
    for (expression, value) in [
        ("up{job=\"dysco\"}".to_owned(), 1.0),
        (format!("dysco_changes_total{done},outcome=\"done\"}}"), 2.0),
        (format!("dysco_change_duration_seconds_count{done}}}"), 2.0),
        (format!("dysco_change_switch_seconds_count{done}}}"), 2.0),
        ("dysco_sessions_removed{mode=\"bypass\"}".into(), 2.0),
        ("min(dysco_peer_up)".into(), 1.0),
        ("dysco_interface_attached{interface=\"eth0\"}".into(), 1.0),
        // The certificates of a lab are valid for more than a day.
        (
            "min(dysco_certificate_expiry_timestamp_seconds) - time() >bool 86400".into(),
            1.0,
        ),
    ] {
        wait::until(&format!("{expression} to be {value}"), LIMIT, || {
            (ask(proxy, &expression)? == value).then_some(())
        })
        .with_context(|| w.fleet.dyscoctl(proxy, &["metrics"]).unwrap_or_default())?;
    }

    let printed = w.fleet.dyscoctl(proxy, &["metrics"])?;
    ensure!(printed.ends_with("# EOF\n"), "{printed}");
    proxy.input("promtool", &["check", "metrics"], &page(proxy)?)?;
    proxy.output("promtool", &["check", "rules", &packaged("alerts.yml")?])?;
    all_intact(&group.finish()?)?;
    drop(reader);
    w.finish()
}

#[test]
fn one_id_finds_a_change_on_all_its_hosts() -> Result<()> {
    let w = world("changeid")?;
    let monitors = HOSTS.map(|role| w.fleet.monitor(w.lab.host(role)));
    let monitors: Vec<_> = monitors.into_iter().collect::<Result<_>>()?;
    wait::until("monitors on all hosts", LIMIT, || {
        let group = w.open(1, &Plan::default()).ok()?;
        all_intact(&group.finish().ok()?).ok()?;
        let hears = |monitor: &Process| monitor.log().contains("\"opened\"");
        monitors.iter().all(hears).then_some(())
    })?;
    let group = w.open(1, &Plan::gentle())?;
    group.run();
    group.wait_progress(64 << 10)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    let done = w.remove_these(&ends)?;
    let id = done["removals"][0]["change_id"].as_str();
    let id = id.with_context(|| format!("no id: {done:#}"))?;
    for (role, monitor) in HOSTS.iter().zip(&monitors) {
        let host = w.lab.host(*role);
        let what = format!("the change on {}", role.name());
        let event = format!("\"change_id\":\"{id}\"");
        wait::until(&what, LIMIT, || {
            let log = fs::read_to_string(host.dir().join("dyscod.log")).ok()?;
            let logged = log.contains(&format!("change={id}"));
            (logged && monitor.log().contains(&event)).then_some(())
        })?;
        let sessions = w.fleet.json(host, &["sessions"])?;
        ensure!(sessions.to_string().contains(&event), "{sessions:#}");
    }
    all_intact(&group.finish()?)?;
    drop(monitors);
    w.finish()
}

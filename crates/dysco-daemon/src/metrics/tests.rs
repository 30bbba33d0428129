//! Tests of pages and of their readers: the reference, the alerts, the dashboard, and HTTP clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use dysco_api::{Mode, Outcome};
use dysco_common::Counter;
use dysco_control::PeerStatus;
use prometheus_client::metrics::MetricType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;

use super::page::Family;
use super::*;

const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";

/// Returns the snapshot of a host on which each counter of the data plane has a different value,
/// and two removals ended.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot {
        packets: (1..).zip(Counter::ALL).map(|(n, c)| (*c, n)).collect(),
        certificates: vec![Certificate {
            name: "host",
            not_after: 2_000_000_000,
        }],
        peers: vec![PeerStatus {
            address: [10, 0, 0, 2].into(),
            up: true,
            rtt: Some(Duration::from_micros(1500)),
            reason: None,
        }],
        ..Snapshot::default()
    };
    let ended = &mut snapshot.changes.ended;
    let local = ChangeKind::removal(Some(Mode::Local));
    let refused = End::of(Outcome::Refused).unwrap();
    ended.ends = [((local, End::Done), 2), ((ChangeKind::Chain, refused), 1)].into();
    ended.reasons = [("no_agent", 1)].into();
    for millis in [3, 300] {
        ended.to_end.observe(local, Duration::from_millis(millis));
    }
    snapshot
}

fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap()
}

/// Returns a line of the table in docs/metrics.md.
fn row(family: &Family) -> String {
    let name = match family.kind {
        // Its series differ by their suffixes.
        MetricType::Histogram => family.series()[1].trim_end_matches("_sum").to_owned(),
        _ => family.series()[0].clone(),
    };
    let labels = family.labels.iter().map(|label| format!("`{label}`"));
    let labels: Vec<_> = labels.collect();
    let (kind, labels) = (family.kind.as_str(), labels.join(", "));
    format!("| `{name}` | {kind} | {labels} | {} |", family.help)
}

#[test]
fn the_reference_has_each_metric_as_it_is_declared() {
    let text = file("docs/metrics.md");
    let there: Vec<_> = text
        .lines()
        .filter(|l| l.starts_with("| `dysco_"))
        .collect();
    let page = Snapshot::default().page();
    let rows: Vec<_> = page.families.iter().map(row).collect();
    let table = rows.join("\n");
    assert!(
        rows == there,
        "the table of docs/metrics.md has to be:\n{table}"
    );
}

/// A graph has a line for a state even while no session has it.
#[test]
fn each_state_of_a_session_has_a_value() {
    let mut counted = snapshot();
    counted.sessions.by_state = [("chained", 2)].into();
    let text = counted.page().write(Format::OpenMetrics).unwrap();
    let series = parse(&text);
    for state in dysco_api::STATES {
        let name = format!("dysco_sessions{{state=\"{state}\"}}");
        let expected = if state == "chained" { 2.0 } else { 0.0 };
        assert_eq!(series.get(&name), Some(&expected), "{name}");
    }
}

#[test]
fn the_alerts_and_the_dashboard_use_metrics_that_there_are() {
    let page = Snapshot::default().page();
    let series: BTreeSet<_> = page.families.iter().flat_map(Family::series).collect();
    for path in [
        "packaging/prometheus/alerts.yml",
        "packaging/grafana/dysco.json",
    ] {
        let text = file(path);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let used: BTreeSet<_> = words.filter(|word| word.starts_with("dysco_")).collect();
        assert!(used.len() > 5, "{path} uses {used:?}");
        let unknown: Vec<_> = used
            .iter()
            .filter(|name| !series.contains(**name))
            .collect();
        assert!(unknown.is_empty(), "{path} uses {unknown:?}");
    }
    serde_json::from_str::<serde_json::Value>(&file("packaging/grafana/dysco.json")).unwrap();
}

/// The counters that `status` lists keep their names.
#[test]
fn the_counters_of_status_have_their_names() {
    let listed = snapshot().listed();
    for (n, counter) in (1..).zip(Counter::ALL) {
        assert_eq!(listed[counter.name()], n, "{}", counter.name());
    }
    let others = [
        ("changes_done", 2),
        ("changes_refused", 1),
        ("changes_rolled_back", 0),
        ("changes_not_done_no_agent", 1),
        ("changes_under_way", 0),
        ("api_clients_turned_away", 0),
        ("ports_held", 0),
    ];
    for (name, n) in others {
        assert_eq!(listed.get(name), Some(&n), "{name}");
    }
    assert!(!listed.contains_key("changes_lost"), "there was none");
}

/// Returns the series of a page and their values; each belongs to the family declared above it.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    let (mut family, mut helped) = (String::new(), BTreeSet::new());
    let (body, end) = text.rsplit_once("# EOF\n").expect("no end");
    assert_eq!(end, "");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(!help.is_empty() && helped.insert(name), "{line}");
            family = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# ") {
            assert!(rest.split(' ').nth(1) == Some(&family), "{line}");
        } else {
            let (name, value) = line.rsplit_once(' ').expect(line);
            assert!(name.starts_with(&family), "{line} is not of {family}");
            let value = value.parse().expect(line);
            assert!(series.insert(name.to_owned(), value).is_none(), "{line}");
        }
    }
    series
}

#[test]
fn a_page_is_openmetrics() {
    let text = snapshot().page().write(Format::OpenMetrics).unwrap();
    let series = parse(&text);
    let dropped = |reason: &str| format!("dysco_packets_dropped_total{{reason=\"{reason}\"}}");
    let ended = "dysco_changes_total{kind=\"removal\",mode=\"local\",outcome=\"done\"}";
    let within = |le: &str| {
        format!(
            "dysco_change_duration_seconds_bucket{{le=\"{le}\",kind=\"removal\",mode=\"local\"}}"
        )
    };
    let tombstone = Counter::ALL
        .iter()
        .position(|c| *c == Counter::DroppedTombstone);
    let expected = [
        (dropped("tombstone"), tombstone.unwrap() as f64 + 1.0),
        (ended.to_owned(), 2.0),
        (within("0.005"), 1.0),
        (within("+Inf"), 2.0),
        (
            "dysco_peer_round_trip_seconds{peer=\"10.0.0.2\"}".into(),
            0.0015,
        ),
        ("dysco_peer_up{peer=\"10.0.0.2\"}".into(), 1.0),
        (
            "dysco_certificate_expiry_timestamp_seconds{certificate=\"host\"}".into(),
            2e9,
        ),
    ];
    for (name, value) in expected {
        assert_eq!(series.get(&name), Some(&value), "{name} in\n{text}");
    }
    assert!(text.contains("# TYPE dysco_packets_dropped counter\n"));
    assert!(text.contains("# TYPE dysco_ports_held gauge\n"));
    assert!(text.contains("# UNIT dysco_change_duration_seconds seconds\n"));
}

/// An alert on the increase of a counter misses the first change otherwise.
#[test]
fn counters_of_changes_are_there_before_the_first_change() {
    let text = Snapshot::default().page().write(Format::OpenMetrics);
    let series = parse(&text.unwrap());
    let of_end = |kind: ChangeKind, end: End| {
        let [kind, mode] = kind.labels();
        let end = end.label();
        format!("dysco_changes_total{{kind=\"{kind}\",mode=\"{mode}\",outcome=\"{end}\"}}")
    };
    let ends = ChangeKind::ALL
        .into_iter()
        .flat_map(|kind| End::ALL.map(|end| of_end(kind, end)));
    let reasons = ["not_transparent", "no_agent"]
        .map(|reason| format!("dysco_changes_not_done_total{{reason=\"{reason}\"}}"));
    for name in ends.chain(reasons) {
        assert_eq!(series.get(&name), Some(&0.0), "{name}");
    }
    let listed = Snapshot::default().listed();
    let given = listed
        .keys()
        .find(|name| name.starts_with("changes_not_done_"));
    assert_eq!(given, None, "status lists reasons that nobody gave");
}

/// Server with an engine that answers each reader with the same snapshot.
struct Lab {
    dir: tempfile::TempDir,
    server: Option<Server>,
}

impl Lab {
    fn new() -> Lab {
        Lab::listening(None)
    }

    fn listening(listen: Option<SocketAddr>) -> Lab {
        let dir = tempfile::tempdir().unwrap();
        let (scrapes, mut asked) = mpsc::channel::<Scrape>(1);
        tokio::spawn(async move {
            while let Some(scrape) = asked.recv().await {
                scrape.send(snapshot()).unwrap();
            }
        });
        let config = ServerConfig {
            socket: dir.path().join("metrics.sock"),
            gid: None,
            listen,
            tls: None,
        };
        let server = Some(serve(config, scrapes).unwrap());
        Lab { dir, server }
    }

    /// Returns the whole answer to a request, after which the connection ends.
    async fn ask(&self, line: &str, accept: &str) -> String {
        let socket = self.dir.path().join("metrics.sock");
        let stream = UnixStream::connect(socket).await.unwrap();
        ask(stream, line, accept).await
    }
}

async fn ask(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    line: &str,
    accept: &str,
) -> String {
    let request =
        format!("{line} HTTP/1.1\r\nHost: dysco\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_reader_gets_the_format_that_it_asks_for() {
    let lab = Lab::new();
    let open = lab.ask("GET /metrics", OPEN_METRICS).await;
    let (head, body) = open.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    assert!(parse(body).len() > 60, "{body}");

    let plain = lab.ask("GET /metrics", "*/*").await;
    assert!(
        plain.contains("content-type: text/plain; version=0.0.4"),
        "{plain}"
    );
    assert!(plain.contains("# TYPE dysco_shim_reports_total counter\n"));
    assert!(!plain.contains("# EOF"), "{plain}");
}

#[tokio::test]
async fn other_requests_hear_what_there_is() {
    let lab = Lab::new();
    for (line, status) in [
        ("GET /", "404"),
        ("POST /metrics", "405"),
        ("nonsense", "400"),
    ] {
        let answer = lab.ask(line, "*/*").await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{line}: {answer}");
    }
}

/// Returns an address of this host with a port that nobody listens on.
pub(super) fn free_port() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn clients_of_the_port_leave_the_unix_socket_its_room() {
    let port = free_port();
    let lab = Lab::listening(Some(port));
    let mut held = Vec::new();
    loop {
        let mut stream = TcpStream::connect(port).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: dysco\r\n\r\n";
        let (mut first, written) = ([0], stream.write_all(request).await);
        // A connection that is answered is kept.
        match written.and(stream.read(&mut first).await) {
            Ok(1) => held.push(stream),
            _ => break,
        }
    }
    assert_eq!(held.len(), 16);
    let answer = lab.ask("GET /metrics", "*/*").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[tokio::test]
async fn the_socket_is_of_one_daemon_and_of_root_and_goes_with_it() {
    use std::os::unix::fs::PermissionsExt;
    let mut lab = Lab::new();
    let socket = lab.dir.path().join("metrics.sock");
    let mode = socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let config = ServerConfig {
        socket: socket.clone(),
        gid: None,
        listen: None,
        tls: None,
    };
    let error = serve(config, mpsc::channel(1).0).err().unwrap().to_string();
    assert!(error.contains("set [metrics] socket"), "{error}");
    drop(lab.server.take());
    assert!(!socket.exists());
}

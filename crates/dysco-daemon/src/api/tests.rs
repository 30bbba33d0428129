//! The server and its client over a real socket, with an engine of a few lines.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;

/// A server whose engine answers each request with what `answer` says.
struct Lab {
    dir: TempDir,
    _server: Server,
    _engine: tokio::task::JoinHandle<()>,
}

impl Lab {
    fn new(answer: fn(&Request) -> Vec<Reply>) -> Lab {
        let dir = tempfile::tempdir().unwrap();
        let (sender, mut calls) = mpsc::channel::<Call>(4);
        let server = serve(config(&dir), sender).unwrap();
        let engine = tokio::spawn(async move {
            while let Some(call) = calls.recv().await {
                for reply in answer(&call.request) {
                    call.replies.send(reply).await.unwrap();
                }
            }
        });
        Lab {
            dir,
            _server: server,
            _engine: engine,
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("dyscod.sock")
    }

    /// Sends these bytes, and reads as many replies.
    async fn raw(&self, bytes: Vec<u8>, replies: usize) -> Vec<Reply> {
        let socket = self.socket();
        let done = tokio::task::spawn_blocking(move || {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.write_all(&bytes).unwrap();
            let lines = BufReader::new(stream).lines().take(replies);
            let parse = |line: std::io::Result<String>| serde_json::from_str(&line.unwrap());
            lines.map(|line| parse(line).unwrap()).collect()
        });
        done.await.unwrap()
    }
}

fn config(dir: &TempDir) -> ServerConfig {
    ServerConfig {
        socket: dir.path().join("dyscod.sock"),
        policy: Policy {
            read_gid: Some(nix::unistd::getegid().as_raw()),
        },
    }
}

fn counters(name: &str) -> Reply {
    let counters = [(name.to_owned(), 1)].into();
    Reply::Counters(Counters { counters })
}

fn failure(reply: &Reply) -> FailureCode {
    match reply {
        Reply::Error(failure) => failure.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_request_gets_its_progress_and_its_end() {
    let lab = Lab::new(|request| match request {
        Request::Status => vec![Reply::Status(Box::default())],
        _ => vec![
            Reply::Accepted {
                sessions: 2,
                left: Vec::new(),
            },
            Reply::Done { summary: None },
        ],
    });
    let socket = lab.socket();
    let asked = tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(&socket).unwrap();
        client.ask(&Request::Status).unwrap();
        assert!(matches!(client.reply(), Ok(Reply::Status(_))));
        let filter = Filter::default();
        client.ask(&Request::Sessions { filter }).unwrap();
        assert!(matches!(
            client.reply(),
            Ok(Reply::Accepted { sessions: 2, .. })
        ));
        assert!(matches!(client.reply(), Ok(Reply::Done { .. })));
    });
    asked.await.unwrap();
}

#[tokio::test]
async fn bad_requests_are_answered_and_the_next_one_is_heard() {
    let lab = Lab::new(|_| vec![counters("heard")]);
    let long = "x".repeat(70_000);
    let bad = [
        "",
        "nonsense",
        "{}",
        r#"{"request":"reboot"}"#,
        r#"{"request":"remove"}"#,
        r#"{"request":"remove","host":"self","everything":true}"#,
        r#"{"request":"remove","host":"no host"}"#,
        r#"{"request":"session","session":"10.0.0.1>"}"#,
        r#"{"request":"sessions","filter":"colour=red"}"#,
        &long,
    ];
    for line in bad {
        let bytes = format!("{line}\n{{\"request\":\"counters\"}}\n");
        let replies = lab.raw(bytes.into_bytes(), 2).await;
        assert_eq!(failure(&replies[0]), FailureCode::BadRequest, "{line:.80}");
        assert_eq!(replies[1], counters("heard"));
    }
    let mut counted = std::collections::BTreeMap::new();
    list_counters(&mut counted);
    // Other tests may count too.
    assert!(counted["api_requests_malformed"] >= bad.len() as u64);
}

#[tokio::test]
async fn a_line_without_its_end_is_still_a_request() {
    let lab = Lab::new(|_| vec![counters("heard")]);
    let socket = lab.socket();
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(br#"{"request":"counters"}"#).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let lines: Result<Vec<_>, _> = BufReader::new(stream).lines().collect();
        lines.unwrap().len()
    });
    assert_eq!(asked.await.unwrap(), 1);
}

#[tokio::test]
async fn an_engine_that_does_not_answer_is_an_internal_error() {
    let lab = Lab::new(|_| vec![]);
    let replies = lab.raw(b"{\"request\":\"counters\"}\n".to_vec(), 1).await;
    assert_eq!(failure(&replies[0]), FailureCode::Internal);
}

#[tokio::test]
async fn the_engine_notices_that_a_monitor_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, mut calls) = mpsc::channel::<Call>(4);
    let _server = serve(config(&dir), sender).unwrap();
    let mut stream = UnixStream::connect(dir.path().join("dyscod.sock")).unwrap();
    stream.write_all(b"{\"request\":\"monitor\"}\n").unwrap();
    let call = calls.recv().await.unwrap();
    assert!(!call.replies.is_closed());
    drop(stream);
    call.replies.closed().await;
}

#[tokio::test]
async fn a_second_daemon_is_refused_and_a_stale_socket_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, _calls) = mpsc::channel(1);
    drop(std::os::unix::net::UnixListener::bind(
        dir.path().join("dyscod.sock"),
    ));
    let first = serve(config(&dir), sender.clone()).unwrap();
    let second = serve(config(&dir), sender.clone());
    assert!(matches!(second, Err(ApiError::InUse { .. })));
    drop(first);
    assert!(!dir.path().join("dyscod.sock").exists());
    serve(config(&dir), sender).unwrap();
}

#[tokio::test]
async fn the_kernel_says_who_calls() {
    let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
    let caller = Caller::of(&ours).unwrap();
    assert_eq!(caller.uid, nix::unistd::geteuid().as_raw());
    assert_eq!(caller.pid, std::process::id() as i32);
    let groups = nix::unistd::getgroups().unwrap();
    assert!(groups.iter().all(|gid| caller.gids.contains(&gid.as_raw())));
}

#[test]
fn reading_is_for_the_group_and_changing_for_root() {
    let caller = |uid, gids: &[u32]| Caller {
        pid: 1,
        uid,
        gids: gids.into(),
    };
    let (root, member) = (caller(0, &[0]), caller(1000, &[1000, 50]));
    let stranger = caller(1001, &[1001]);
    let remove = |dry_run| {
        Request::Remove(Remove {
            process: Some(":8080".parse().unwrap()),
            transparent: true,
            host: HostName::This,
            sessions: vec![],
            all: true,
            filter: Filter::default(),
            dry_run,
            timeout_ms: None,
            mode: None,
        })
    };
    let group = Policy { read_gid: Some(50) };
    let may =
        |policy: Policy, caller: &Caller, request: &Request| policy.judge(caller, request).is_ok();
    assert!(may(group, &root, &remove(false)));
    assert!(may(group, &member, &Request::Status));
    assert!(may(group, &member, &remove(true)));
    assert!(!may(group, &member, &remove(false)));
    assert!(!may(group, &stranger, &Request::Monitor));
    let nobody = Policy { read_gid: None };
    assert!(may(nobody, &root, &Request::Status));
    assert!(!may(nobody, &member, &Request::Status));
}

#[test]
fn names_are_read_as_they_are_printed() {
    let id = SessionId::new(0x12, 0xab);
    assert_eq!((id.slot(), id.generation()), (0x12, 0xab));
    for name in [
        "ab00000012",
        "10.0.0.1:80>10.0.0.2:40000",
        "[fd00::1]:80>[fd00::2]:1",
    ] {
        assert_eq!(name.parse::<SessionName>().unwrap().to_string(), name);
    }
    for bad in [
        "",
        "+1",
        "xyz",
        "10.0.0.1:80",
        "10.0.0.1>10.0.0.2",
        "1ffffffffffffffff",
    ] {
        assert!(bad.parse::<SessionName>().is_err(), "{bad}");
    }
    for name in ["self", "10.0.0.1", "fd00::1", "proxy1.example"] {
        assert_eq!(name.parse::<HostName>().unwrap().to_string(), name);
    }
    for bad in ["", "a b", "a/b", &"x".repeat(254)] {
        assert!(bad.parse::<HostName>().is_err(), "{bad}");
    }
    // What is of no use elsewhere stays a name.
    for name in ["self", "10.0.0.1", "localhost", "nobody.invalid"] {
        let mut host: HostName = name.parse().unwrap();
        host.look_up();
        assert_eq!(host.to_string(), name);
    }
    let filter = "host=10.0.0.1,port=80,state=tracked,removable=yes";
    assert_eq!(filter.parse::<Filter>().unwrap().to_string(), filter);
    for (bad, why) in [
        ("host", "filters nothing"),
        ("host=x", "filters nothing"),
        ("port=x", "filters nothing"),
        ("port=", "filters nothing"),
        ("removable=maybe", "filters nothing"),
        ("port=0", "ports are 1 to 65535"),
        ("port=65536", "ports are 1 to 65535"),
        ("port=99999999999", "ports are 1 to 65535"),
        ("state=", "use one of opening"),
        ("state=foo", "'foo' is no state of a session"),
    ] {
        let told = bad.parse::<Filter>().unwrap_err().to_string();
        assert!(told.contains(why), "{bad}: {told}");
    }
    for state in STATES {
        assert!(FILTER_HELP.contains(state), "{state}");
        let filter = format!("state={}", state.to_uppercase());
        assert_eq!(
            filter.parse::<Filter>().unwrap().to_string(),
            format!("state={state}")
        );
    }
}

#[test]
fn a_filter_looks_at_both_ends_and_the_path() {
    let end = |s: &str| s.parse().unwrap();
    let session = SessionReport {
        label: None,
        id: SessionId(1),
        local: end("10.0.0.1:80"),
        remote: end("10.0.0.2:40000"),
        state: "new-path".into(),
        ended: false,
        role: Role::LeftAnchor,
        adopted: false,
        since_s: 0.0,
        bytes_in: 0,
        bytes_out: 0,
        path: Some(PathReport {
            local: end("10.0.0.1:61000"),
            remote: end("10.0.0.3:80"),
        }),
        opened_as: Some(PathReport {
            local: end("10.0.0.1:80"),
            remote: end("10.0.0.7:40000"),
        }),
        chain: None,
        mode: None,
        pair: None,
        removable: Removable::Yes,
        history: vec![],
    };
    let shows = |filter: &str| filter.parse::<Filter>().unwrap().matches(&session);
    assert!(shows("host=10.0.0.7"));
    assert!(shows("") && shows("host=10.0.0.3") && shows("port=40000,state=new-path"));
    // As lists have it.
    let over = SessionReport {
        ended: true,
        ..session.clone()
    };
    let shown = |filter: &str| filter.parse::<Filter>().unwrap().matches(&over);
    assert!(shown("state=ended") && !shown("state=new-path") && !shows("state=ended"));
    // Of the session, or of its path.
    assert!(shows("port=80") && shows("port=61000") && !shows("port=61001"));
    assert!(!shows("host=10.0.0.4") && !shows("port=80 removable=no"));
}

#[test]
fn a_summary_counts_and_ranks() {
    let report = |outcome, us| RemovalReport {
        session: SessionId(1),
        local: ([10, 0, 0, 1], 80).into(),
        remote: ([10, 0, 0, 2], 1).into(),
        outcome,
        reason: None,
        reasons: Vec::new(),
        timed_out: false,
        mode: None,
        why_mode: None,
        request_to_switch_us: us,
        request_to_close_us: None,
    };
    let mut reports: Vec<_> = (1..=100)
        .rev()
        .map(|us| report(Outcome::Removed, Some(us)))
        .collect();
    reports.push(report(Outcome::Refused, None));
    let summary = Summary::of(&reports);
    assert_eq!((summary.removed, summary.refused), (100, 1));
    assert_eq!((summary.p50_us, summary.p99_us), (Some(50), Some(99)));
    assert_eq!(Summary::of([]).p50_us, None);
}

/// As the C library writes it (`dysco_delta`).
#[test]
fn a_middleboxs_word_is_read() {
    let line = r#"{"request":"delta","session":"10.1.0.5:40000>10.2.0.7:443","to_server":20,"to_client":-7}"#;
    let request: Request = serde_json::from_str(line).unwrap();
    let told = TellDelta {
        session: "10.1.0.5:40000>10.2.0.7:443".parse().unwrap(),
        to_server: 20,
        to_client: -7,
    };
    assert_eq!(request, Request::Delta(told));
    assert!(request.changes(), "root alone may ask");
    let reply = Reply::Delta(DeltaReport {
        session: SessionId(1),
        to_server: 20,
        to_client: -7,
    });
    let line = serde_json::to_string(&reply).unwrap();
    assert!(line.starts_with(r#"{"reply":"delta","#), "{line}");
    let refused = Reply::Error(Failure {
        code: FailureCode::Refused,
        what: String::new(),
        why: String::new(),
        mend: String::new(),
    });
    let line = serde_json::to_string(&refused).unwrap();
    assert!(line.contains(r#""code":"refused""#), "{line}");
}

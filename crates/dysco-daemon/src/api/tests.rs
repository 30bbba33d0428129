//! Tests of the server and its client over a real socket, with an engine of a few lines.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use dysco_api::{Client, Counters, FailureCode, Filter, HostName, Listing, Remove, Reply, Request};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;

/// Server whose engine answers each request with the replies of `answer`.
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

    /// Sends these bytes, and reads `replies` replies.
    async fn raw(&self, bytes: Vec<u8>, replies: usize) -> Vec<Reply> {
        let socket = self.socket();
        let done = dysco_scheduling::spawn_long(move || {
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
    let asked = dysco_scheduling::spawn_long(move || {
        let mut client = Client::connect(&socket).unwrap();
        client.ask(&Request::Status).unwrap();
        assert!(matches!(client.reply(), Ok(Reply::Status(_))));
        client.ask(&Request::Sessions(Listing::default())).unwrap();
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
    let long = "x".repeat(1_100_000);
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
    // Other tests may count too.
    assert!(counts().malformed >= bad.len() as u64);
}

#[tokio::test]
async fn a_line_without_its_end_is_still_a_request() {
    let lab = Lab::new(|_| vec![counters("heard")]);
    let socket = lab.socket();
    let asked = dysco_scheduling::spawn_long(move || {
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
        process: None,
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
            rate: None,
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
    let refusal = |request| group.judge(&member, &request).unwrap_err();
    assert_eq!(refusal(remove(false)).what, "change sessions");
    assert!(refusal(remove(false)).hint.contains("--dry-run"));
    let adopt = refusal(Request::Adopt);
    assert_eq!(
        (adopt.what.as_str(), adopt.hint.as_str()),
        ("adopt sessions", "run as root")
    );
    assert!(adopt.why.starts_with("only root may adopt sessions"));
}

#[tokio::test]
async fn the_longest_policies_can_be_sent() {
    let lab = Lab::new(|request| match request {
        Request::PolicyApply { .. } | Request::PolicyPublish { .. } => vec![counters("heard")],
        _ => vec![],
    });
    // As many rules as a policy may have, with comments.
    let text = format!("[[rule]]\n# {}\n", "x".repeat(400)).repeat(256);
    let requests = [
        Request::PolicyPublish { text: text.clone() },
        Request::PolicyApply { text: Some(text) },
    ];
    for request in requests {
        let mut line = serde_json::to_vec(&request).unwrap();
        assert!(line.len() > 100_000);
        line.push(b'\n');
        assert_eq!(lab.raw(line, 1).await, [counters("heard")]);
    }
}

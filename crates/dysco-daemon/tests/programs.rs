//! Tests of the programs: exit codes, permissions, and messages. They run as root, as the daemon
//! does: child processes play other users.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dysco_api::{
    Failure, FailureCode, Outcome, PeerReport, RemovalReport, Reply, Request, SessionId,
    StatusReport,
};
use dysco_daemon::api::{Call, Policy, Server, ServerConfig, serve};
use tempfile::TempDir;
use tokio::sync::mpsc;

const READERS: u32 = 64_123;
const NOBODY: u32 = 65_534;

/// Socket with a daemon of a few lines, and the programs in a place where anyone may run them.
struct Lab {
    dir: TempDir,
    _server: Option<Server>,
}

impl Lab {
    fn empty() -> Lab {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let program = dir.path().join("dyscoctl");
        // Not copied by this process: children of its other tests would hold the copy open for
        // writing, and keep it from being run.
        let mut copy = Command::new("cp");
        copy.arg(dyscoctl()).arg(program);
        assert!(copy.status().unwrap().success());
        Lab { dir, _server: None }
    }

    fn with_daemon(answer: fn(Request) -> Vec<Reply>) -> Lab {
        assert!(nix::unistd::geteuid().is_root(), "run this test as root");
        let mut lab = Lab::empty();
        let (sender, mut calls) = mpsc::channel::<Call>(4);
        let config = ServerConfig {
            socket: lab.path("dyscod.sock"),
            policy: Policy {
                read_gid: Some(READERS),
            },
        };
        lab._server = Some(serve(config, sender).unwrap());
        tokio::spawn(async move {
            while let Some(call) = calls.recv().await {
                for reply in answer(call.request) {
                    call.replies.send(reply).await.unwrap();
                }
            }
        });
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn dyscoctl(&self, line: &str) -> Command {
        let mut command = Command::new(self.path("dyscoctl"));
        let socket = self.path("dyscod.sock");
        command.arg("--socket").arg(socket);
        command.args(line.split_whitespace()).current_dir("/");
        command
    }

    async fn run(&self, line: &str) -> Ran {
        ran(self.dyscoctl(line)).await
    }

    async fn run_as(&self, uid: u32, gid: u32, line: &str) -> Ran {
        let mut command = self.dyscoctl(line);
        command.uid(uid).gid(gid);
        ran(command).await
    }
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

async fn ran(mut command: Command) -> Ran {
    let run = dysco_scheduling::spawn_long(move || command.output().unwrap());
    let Output {
        status,
        stdout,
        stderr,
    } = run.await.unwrap();
    Ran {
        code: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// Returns one session for each of these outcomes.
fn removals(outcomes: &[Outcome]) -> Vec<Reply> {
    let report = |outcome: &Outcome| {
        Reply::Removal(RemovalReport {
            session: SessionId(0x1a),
            local: ([10, 0, 0, 1], 80).into(),
            remote: ([10, 0, 0, 2], 40000).into(),
            outcome: *outcome,
            reason: (*outcome != Outcome::Removed).then(|| "not transparent".into()),
            reasons: Vec::new(),
            timed_out: false,
            mode: None,
            why_mode: None,
            accepted_to_begin_us: None,
            request_to_switch_us: Some(850),
            request_to_close_us: None,
            change_id: None,
        })
    };
    let sessions = outcomes.len();
    let accepted = [Reply::Accepted {
        sessions,
        left: Vec::new(),
    }]
    .into_iter();
    let reports = accepted.chain(outcomes.iter().map(report));
    reports.chain([Reply::Done { summary: None }]).collect()
}

#[tokio::test]
async fn without_a_daemon_one_line_says_so() {
    let lab = Lab::empty();
    for line in [
        "status",
        "sessions",
        "remove-middlebox self --all",
        "monitor",
    ] {
        let ran = lab.run(line).await;
        assert_eq!(ran.code, 3, "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert!(ran.err.contains("start it"), "{}", ran.err);
    }
    let ran = lab.run("status -o json").await;
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(error["error"]["exit"], 3);
    assert_eq!(error["error"]["code"], "no_daemon");
    let ran = lab.run("remove-middlebox self -o json").await;
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert_eq!(error["error"]["code"], "bad_request");
    let why = error["error"]["why"].as_str().unwrap();
    assert!(why.contains("--all") && !why.contains("Usage"), "{why}");
}

/// The dyscod stops: the monitor receives no more events.
#[tokio::test]
async fn a_monitor_ends_with_its_dyscod() {
    let lab = Lab::empty();
    let listener = std::os::unix::net::UnixListener::bind(lab.path("dyscod.sock")).unwrap();
    let stops = dysco_scheduling::spawn_long(move || {
        let (stream, _) = listener.accept().unwrap();
        // Once it was asked.
        std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut String::new())
            .unwrap();
    });
    let ended = lab.run("monitor -o json").await;
    stops.await.unwrap();
    let error: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(
        (ended.code, error["error"]["code"].as_str()),
        (3, Some("no_daemon"))
    );
}

#[tokio::test]
async fn reading_is_for_the_group_and_changing_for_root() {
    let lab = Lab::with_daemon(|request| match request {
        Request::Status => vec![Reply::Status(Box::default())],
        _ => removals(&[Outcome::Removed]),
    });
    assert_eq!(lab.run("status").await.code, 0);
    assert_eq!(lab.run_as(NOBODY, READERS, "status").await.code, 0);

    let stranger = lab.run_as(NOBODY, NOBODY, "status").await;
    assert_eq!(stranger.code, 4);
    assert!(stranger.err.contains("run as root"), "{}", stranger.err);

    let remove = "remove-middlebox self --all --wait";
    assert_eq!(lab.run(remove).await.code, 0);
    let reader = lab.run_as(NOBODY, READERS, remove).await;
    assert_eq!(reader.code, 4);
    assert!(
        reader.err.contains("only root may change"),
        "{}",
        reader.err
    );
    let looks = lab.run_as(NOBODY, READERS, "remove-middlebox self --all --dry-run");
    assert_eq!(looks.await.code, 0);
}

#[tokio::test]
async fn the_worst_removal_decides_the_exit_code() {
    let lab = Lab::with_daemon(|_| removals(&[Outcome::Removed, Outcome::Refused]));
    let ran = lab.run("remove-middlebox self --all --wait").await;
    assert_eq!(ran.code, 5);
    assert!(ran.out.contains("not transparent"), "{}", ran.out);
    assert!(ran.out.contains("1 removed, 1 refused"), "{}", ran.out);

    let ran = lab.run("remove-middlebox self --all --wait -o json").await;
    let done: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, ran.err.as_str()), (5, ""));
    assert_eq!(done["accepted"], 2);
    assert_eq!(done["summary"]["refused"], 1);
    assert_eq!(done["summary"]["p50_us"], 850);
    assert_eq!(done["removals"][1]["reason"]["why"], "not transparent");

    // Nobody waits: the request was accepted.
    assert_eq!(lab.run("remove-middlebox self --all").await.code, 0);
    let lab = Lab::with_daemon(|_| removals(&[Outcome::Pending]));
    let ran = lab
        .run("remove-middlebox self --all --wait --timeout 1s")
        .await;
    assert_eq!(ran.code, 6);
}

#[tokio::test]
async fn a_host_that_was_misspelt_is_no_host_without_sessions() {
    let lab = Lab::with_daemon(|request| match request {
        Request::Status => vec![Reply::Status(Box::new(StatusReport {
            host: "here".into(),
            addresses: vec![[10, 0, 0, 1].into()],
            peers: vec![PeerReport {
                address: [10, 0, 0, 2].into(),
                up: true,
                rtt_us: None,
                reason: None,
            }],
            ..StatusReport::default()
        }))],
        _ => removals(&[]),
    });
    for how in ["--wait", "--dry-run"] {
        for known in ["self", "here", "10.0.0.1", "10.0.0.2"] {
            let ran = lab
                .run(&format!("remove-middlebox {known} --all {how}"))
                .await;
            assert_eq!(ran.code, 0, "{known}");
        }
        let ran = lab
            .run(&format!("remove-middlebox 10.0.0.22 --all {how}"))
            .await;
        assert_eq!(ran.code, 5, "{}", ran.err);
        assert!(ran.err.contains("'dyscoctl sessions'"), "{}", ran.err);
    }
}

#[tokio::test]
async fn a_failure_keeps_its_words_and_its_code() {
    let lab = Lab::with_daemon(|_| {
        vec![Reply::Error(Failure {
            code: FailureCode::NotFound,
            what: "find the session".into(),
            why: "there is none of that id".into(),
            hint: "see 'dyscoctl sessions'".into(),
        })]
    });
    let ran = lab.run("sessions show 1a").await;
    assert_eq!(ran.code, 5);
    let words =
        "error: failed to find the session: there is none of that id; see 'dyscoctl sessions'\n";
    assert_eq!(ran.err, words);
    let ran = lab.run("sessions show 1a -o json").await;
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(error["error"]["exit"], 5);
    assert_eq!(error["error"]["code"], "not_found");
    assert_eq!(error["error"]["hint"], "see 'dyscoctl sessions'");
}

#[tokio::test]
async fn run_becomes_the_program_with_the_shim_loaded() {
    let lab = Lab::empty();
    let shim = lab.path("shim.so");
    // Empty: the loader reports that it cannot load the shim, which shows that it tried.
    fs::write(&shim, "").unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(lab.path("dyscoctl"));
        command.arg("run").args(words).env("DYSCO_SHIM_LIB", &shim);
        ran(command)
    };
    let printed = run(&["--", "/bin/sh", "-c", "echo $LD_PRELOAD; exit 7"]).await;
    assert_eq!(
        printed.out.trim(),
        shim.canonicalize().unwrap().to_str().unwrap()
    );
    assert_eq!(printed.code, 7);

    let none = run(&["no-such-program"]).await;
    assert_eq!(none.code, 2);
    assert!(none.err.contains("no-such-program"), "{}", none.err);

    fs::remove_file(&shim).unwrap();
    let none = run(&["true"]).await;
    assert_eq!(none.code, 2);
    assert!(none.err.contains("DYSCO_SHIM_LIB"), "{}", none.err);
}

/// A proxy that reports to another dyscod than the one named is never found there.
#[tokio::test]
async fn the_shim_reports_to_the_dyscod_that_is_named() {
    let lab = Lab::with_daemon(|_| {
        vec![Reply::Status(Box::new(StatusReport {
            shim_socket: Some("/run/other/shim.sock".into()),
            ..StatusReport::default()
        }))]
    });
    let shim = lab.path("shim.so");
    fs::write(&shim, "").unwrap();
    let say = "run -- /usr/bin/env";
    let run = |mut command: Command, more: &[(&str, &Path)]| {
        command.env("DYSCO_SHIM_LIB", &shim).envs(more.to_vec());
        ran(command)
    };
    let other = "DYSCO_SHIM_SOCKET=/run/other/shim.sock";
    let has = |ran: &Ran, line: &str| ran.out.lines().any(|l| l == line);
    let socket = lab.path("dyscod.sock");
    let named = run(lab.dyscoctl(say), &[]).await;
    assert!(has(&named, other), "{} {}", named.out, named.err);
    let api = format!("DYSCO_API_SOCKET={}", socket.display());
    assert!(has(&named, &api), "{}", named.out);
    // The environment has the same effect; and the caller's own setting of the shim takes
    // precedence.
    let mut alone = Command::new(lab.path("dyscoctl"));
    alone.args(say.split(' '));
    let by_variable = run(alone, &[("DYSCO_API_SOCKET", &socket)]).await;
    assert!(has(&by_variable, other), "{}", by_variable.out);
    let own = [("DYSCO_SHIM_SOCKET", Path::new("/own"))];
    let own = run(lab.dyscoctl(say), &own).await;
    assert!(has(&own, "DYSCO_SHIM_SOCKET=/own"), "{}", own.out);
    // No daemon is asked if none is named.
    let mut alone = Command::new(lab.path("dyscoctl"));
    alone.args(say.split(' '));
    let none = run(alone, &[]).await;
    assert!(!none.out.contains("DYSCO_SHIM_SOCKET"), "{}", none.out);
}

#[tokio::test]
async fn a_program_does_not_start_without_the_dyscod_that_is_named() {
    let lab = Lab::empty();
    let shim = lab.path("shim.so");
    fs::write(&shim, "").unwrap();
    let mut command = lab.dyscoctl("run -- echo started");
    command.env("DYSCO_SHIM_LIB", &shim);
    let none = ran(command).await;
    assert_eq!((none.code, none.out.as_str()), (3, ""), "{}", none.err);
    assert!(none.err.contains("dyscod.sock"), "{}", none.err);
    // A daemon of a release that did not report its socket yet.
    let lab = Lab::with_daemon(|_| vec![Reply::Status(Box::default())]);
    fs::write(lab.path("shim.so"), "").unwrap();
    let mut command = lab.dyscoctl("run -- echo started");
    command.env("DYSCO_SHIM_LIB", lab.path("shim.so"));
    let old = ran(command).await;
    assert_eq!((old.code, old.out.as_str()), (2, ""), "{}", old.err);
    assert!(old.err.contains("DYSCO_SHIM_SOCKET"), "{}", old.err);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
async fn keys_are_made_and_a_configuration_with_them_is_checked() {
    let lab = Lab::empty();
    let dir = |name: &str| lab.path(name).display().to_string();
    let init = format!("pki init --dir {}", dir("ca"));
    assert_eq!(lab.run(&init).await.code, 0);
    let again = lab.run(&init).await;
    assert_eq!(again.code, 2);
    assert!(
        again.err.contains("nothing was overwritten"),
        "{}",
        again.err
    );
    let issue = format!(
        "pki issue --dir {} --name h --address 127.0.0.1 --out {} -o json",
        dir("ca"),
        dir("host")
    );
    let issued = lab.run(&issue).await;
    assert_eq!(issued.code, 0, "{}", issued.err);
    let key = fs::read_to_string(lab.path("host/host.key")).unwrap();
    assert!(!issued.out.contains(key.lines().nth(1).unwrap()));

    let check_with = |address: IpAddr, more: &str| {
        let file = lab.path("dyscod.toml");
        let (keys, policy) = (dir("host"), dir("policy.toml"));
        let text = format!(
            "[host]\naddresses = [\"{address}\"]\ninterfaces = [\"lo\"]\n[control]\npki_dir = \"{keys}\"\n\
             [chain]\npolicy = \"{policy}\"\n{more}"
        );
        fs::write(&file, text).unwrap();
        ran(dyscod(&file))
    };
    let check = |address: IpAddr| check_with(address, "");
    let good = check([127, 0, 0, 1].into()).await;
    assert_eq!(good.code, 0, "{}", good.err);
    assert!(good.out.contains("port = 7474"), "{}", good.out);
    let bad = check([127, 0, 0, 2].into()).await;
    assert_eq!(bad.code, 2);
    assert!(bad.err.contains("--address 127.0.0.2"), "{}", bad.err);

    // The start would fail with the same message.
    let pins = format!("[data_plane]\npin_dir = \"{}\"\n", dir("pins/of/this"));
    let nowhere = check_with([127, 0, 0, 1].into(), &pins).await;
    assert_eq!((nowhere.code, nowhere.out.as_str()), (2, ""));
    let why = "for pinned maps: it is on no BPF file system; mount one there";
    assert!(nowhere.err.contains(why), "{}", nowhere.err);
    // HAProxy may be started later.
    let haproxy = "[[listener]]\naddress = \":80\"\nhaproxy_socket = \"/nowhere/h.sock\"\n";
    let later = check_with([127, 0, 0, 1].into(), haproxy).await;
    assert_eq!(later.code, 0, "{}", later.err);
    let warning = "# warning: haproxy_socket of the listener :80: /nowhere/h.sock is not there; ";
    assert!(later.out.starts_with(warning), "{}", later.out);

    let policy = |hosts: &str| {
        fs::write(
            lab.path("policy.toml"),
            format!("[[rule]]\nchain = [{hosts}]\n"),
        )
        .unwrap();
        check([127, 0, 0, 1].into())
    };
    assert_eq!(policy(r#""10.0.0.1""#).await.code, 0);
    let twice = policy(r#""10.0.0.1", "10.0.0.1""#).await;
    let reported = lab
        .run(&format!("policy check {}", dir("policy.toml")))
        .await;
    assert_eq!(
        (twice.code, twice.err),
        (reported.code, reported.err.clone())
    );
    assert!(
        reported.code == 2 && reported.err.contains("line 2, column 9"),
        "{}",
        reported.err
    );
    // A rule that no session could have.
    for (chain, why) in [
        (r#""+gzip""#, "no service is named gzip"),
        (r#""+crypt=plane=packet""#, "no service of the packet plane"),
        (
            r#""+count", "+shape=rate=1M,plane=packet""#,
            "cannot be put in with others",
        ),
        (
            r#""10.0.0.1", "+socks=target=10.9.9.9:1""#,
            "pass before services",
        ),
        (r#""10.0.0.1", "+crypt""#, "past them"),
    ] {
        let refused = policy(chain).await;
        let said = refused.code == 2 && refused.err.contains(why);
        assert!(said && refused.err.contains("rule #1"), "{}", refused.err);
    }
    assert_eq!(policy(r#""+count""#).await.code, 0);
    assert_eq!(policy(r#""+count=plane=packet""#).await.code, 0);
    let own = policy(r#""127.0.0.1""#).await;
    assert!(
        own.code == 2 && own.err.contains("this host itself"),
        "{}",
        own.err
    );
}

/// Returns the path of `dyscoctl`, of another package, which is built into the same folder.
fn dyscoctl() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_dyscod")).with_file_name("dyscoctl");
    assert!(program.exists(), "build it: cargo build -p dysco-ctl");
    program
}

/// Returns `dyscod --check` with a mounted BPF file system, which not every machine has.
fn dyscod(config: &Path) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount -t bpf bpf /sys/fs/bpf && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_dyscod"));
    command.arg("--check").arg("--config").arg(config);
    command
}

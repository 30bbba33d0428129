//! Socket options of live programs that are set and put back, by a daemon that may have restarted
//! in between. The values are read from the sockets themselves, or by `ss`.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::nginx::Nginx;
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Family, Host, Lab, Role, http, wait};
use nix::sys::socket::{SockaddrIn, getsockname};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);
const PORT: u16 = 9000;

/// A lab with `dyscod` on the hosts of both ends.
struct Ends {
    lab: Lab,
    fleet: Fleet,
    daemons: Vec<Daemon>,
    server: Server,
}

impl Ends {
    fn new(name: &str) -> Result<Ends> {
        let lab = Lab::builder(name).build()?;
        let fleet = Fleet::new(&lab)?;
        let start = |role| fleet.start(&lab, role, "");
        let daemons = vec![start(Role::Client)?, start(Role::Server)?];
        let server = Server::start(&lab.server, Role::Server.at(Family::V4, PORT))?;
        Ok(Ends {
            lab,
            fleet,
            daemons,
            server,
        })
    }

    fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        let to = Role::Server.at(Family::V4, PORT);
        let group = Group::open(&self.lab.client, &self.server, to, count, plan)?;
        group.run();
        group.wait_progress(100_000)?;
        Ok(group)
    }

    /// Runs `dyscoctl tune` on the client's host.
    fn tune(&self, words: &[&str]) -> Result<Value> {
        tune(&self.fleet, &self.lab.client, words)
    }

    fn listed(&self) -> Result<Vec<Value>> {
        let all = self.fleet.json(&self.lab.client, &["tune", "--list"])?;
        all.as_array().cloned().context("no list")
    }

    fn finish(self) -> Result<()> {
        self.lab.finish((self.daemons, self.server))
    }
}

/// Runs `dyscoctl tune`. Returns its result or its error, with the exit code as `exit`.
fn tune(fleet: &Fleet, host: &Host, words: &[&str]) -> Result<Value> {
    let ran = fleet.try_dyscoctl(host, &[&["tune", "-o", "json"], words].concat())?;
    let text = if ran.stdout.is_empty() {
        &ran.stderr
    } else {
        &ran.stdout
    };
    let mut done: Value =
        serde_json::from_str(text).with_context(|| format!("no JSON: {ran:?}"))?;
    done["exit"] = json!(ran.code);
    Ok(done)
}

/// Returns the descriptor of this process's socket with this address of its own.
fn descriptor(local: SocketAddr) -> Result<RawFd> {
    let all = fs::read_dir("/proc/self/fd")?.flatten();
    let mut numbers = all.filter_map(|e| e.file_name().to_str()?.parse::<RawFd>().ok());
    let is = |fd: &RawFd| {
        let name = getsockname::<SockaddrIn>(*fd);
        name.is_ok_and(|name| SocketAddr::from(name) == local)
    };
    numbers.find(is).context("no socket has this address")
}

/// Options of a socket, as the kernel has them.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Options {
    congestion: String,
    max_pacing_rate: u64,
    keepalive: u64,
    keepalive_idle: u64,
    keepalive_interval: u64,
    user_timeout: u64,
    nodelay: u64,
}

impl Options {
    fn of(local: SocketAddr) -> Result<Options> {
        let fd = descriptor(local)?;
        let number = |level, name| -> Result<u64> {
            Ok(u64::from_ne_bytes(
                option(fd, level, name)?[..8].try_into()?,
            ))
        };
        let tcp = |name| number(libc::IPPROTO_TCP, name);
        let name = option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Options {
            congestion: String::from_utf8_lossy(name).into_owned(),
            max_pacing_rate: number(libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE)?,
            keepalive: number(libc::SOL_SOCKET, libc::SO_KEEPALIVE)?,
            keepalive_idle: tcp(libc::TCP_KEEPIDLE)?,
            keepalive_interval: tcp(libc::TCP_KEEPINTVL)?,
            user_timeout: tcp(libc::TCP_USER_TIMEOUT)?,
            nodelay: tcp(libc::TCP_NODELAY)?,
        })
    }
}

/// Returns the bytes of an option. A shorter value leaves the rest zero; the machine is
/// little-endian.
fn option(fd: RawFd, level: i32, name: i32) -> Result<[u8; 16]> {
    let mut value = [0; 16];
    let mut len: libc::socklen_t = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => 16,
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => 8,
        _ => 4,
    };
    // SAFETY: the kernel writes at most `len` bytes, for which the array has room.
    let done = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) };
    ensure!(done == 0, "getsockopt: {}", std::io::Error::last_os_error());
    Ok(value)
}

const ALL: [&str; 9] = [
    "--congestion",
    "bbr",
    "--rate",
    "80M",
    "--keepalive",
    "30s",
    "--user-timeout",
    "60s",
    "--no-nodelay",
];

fn tuned() -> Options {
    Options {
        congestion: "bbr".into(),
        max_pacing_rate: 10_000_000,
        keepalive: 1,
        keepalive_idle: 30,
        keepalive_interval: 10,
        user_timeout: 60_000,
        nodelay: 0,
    }
}

#[test]
fn options_are_set_and_put_back_by_the_next_daemon() -> Result<()> {
    let mut ends = Ends::new("tuned")?;
    let group = ends.open(2, &Plan::default())?;
    let locals = group.locals();
    let all = || -> Result<Vec<Options>> { locals.iter().map(|l| Options::of(*l)).collect() };
    let before = all()?;
    let words = |more: &[&'static str]| [&["--filter", "port=9000"], &ALL[..], more].concat();

    let dry = ends.tune(&words(&["--dry-run"]))?;
    ensure!(
        dry["exit"] == 0 && dry["summary"]["tunable"] == 2,
        "{dry:#}"
    );
    let options = dry["sessions"][0]["options"].as_array();
    let congestion = json!({"option": "congestion", "from": "cubic", "to": "bbr"});
    ensure!(options.is_some_and(|o| o.contains(&congestion)), "{dry:#}");
    let rate = json!({"option": "rate", "from": "off", "to": "80M"});
    ensure!(options.is_some_and(|o| o.contains(&rate)), "{dry:#}");
    ensure!(all()? == before && ends.listed()?.is_empty(), "{dry:#}");

    let done = ends.tune(&words(&[]))?;
    ensure!(
        done["exit"] == 0 && done["summary"]["tuned"] == 2,
        "{done:#}"
    );
    ensure!(all()? == [tuned(), tuned()], "{:?}", all()?);
    let owner = &done["sessions"][0]["process"]["pid"];
    ensure!(*owner == std::process::id(), "{done:#}");
    let again = ends.tune(&words(&[]))?;
    ensure!(again["summary"]["unchanged"] == 2, "{again:#}");
    // The values before the first request count.
    let other = ends.tune(&["--filter", "tuned=yes", "--rate", "1G"])?;
    ensure!(other["summary"]["tuned"] == 2, "{other:#}");
    group.wait_progress(1 << 20)?;

    ends.daemons.remove(0).process.kill()?;
    let file = ends.lab.client.dir().join("dyscod.toml");
    let daemon = ends.fleet.restart(&ends.lab, Role::Client, &file)?;
    ends.daemons.push(daemon);
    put_back(&ends)?;
    ensure!(all()? == before, "{:?} and not {before:?}", all()?);
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    ends.finish()
}

/// Puts back what an earlier daemon has set on the sockets of two sessions.
fn put_back(ends: &Ends) -> Result<()> {
    let listed = ends.listed()?;
    ensure!(listed.len() == 2, "{listed:#?}");
    let id = listed[0]["session"].as_str().unwrap_or_default();
    let words = ["sessions", "show", id];
    let shown = ends.fleet.json(&ends.lab.client, &words)?;
    ensure!(shown["tuned"] == listed[0]["options"], "{shown:#}");
    let history = shown["history"].to_string();
    ensure!(history.contains("congestion cubic to bbr"), "{shown:#}");
    let back = ends.tune(&["--restore", "--filter", "port=9000"])?;
    ensure!(
        back["exit"] == 0 && back["summary"]["restored"] == 2,
        "{back:#}"
    );
    ensure!(ends.listed()?.is_empty(), "{:?}", ends.listed()?);
    Ok(())
}

/// The server is a program that knows nothing of all this.
#[test]
fn a_download_of_nginx_keeps_to_its_rate() -> Result<()> {
    let lab = Lab::builder("rate").build()?;
    let fleet = Fleet::new(&lab)?;
    let daemon = fleet.start(&lab, Role::Server, "")?;
    let nginx = Nginx::start(&lab.server, 80)?;
    let down = http::download(&lab.client, Role::Server.at(Family::V4, 80), "download")?;
    let more = |bytes: u64| {
        let at = down.gauge.bytes();
        wait::until("data", LIMIT, || {
            (down.gauge.bytes() > at + bytes).then_some(())
        })
    };
    more(8 << 20)?;
    let rate = || {
        let text = lab
            .server
            .output("ss", &["-tinH", "state", "established", "sport = :80"])?;
        let mut words = text.split_whitespace();
        let rate = words.find(|w| *w == "pacing_rate").and(words.next());
        Ok::<_, anyhow::Error>(rate.unwrap_or_default().to_owned())
    };
    ensure!(
        !rate()?.contains('/'),
        "there is a limit already: {}",
        rate()?
    );
    let words = ["--filter", "port=80", "--rate", "20M"];
    let done = tune(&fleet, &lab.server, &words)?;
    ensure!(done["summary"]["tuned"] == 1, "{done:#}");
    ensure!(
        done["sessions"][0]["process"]["name"] == "nginx",
        "{done:#}"
    );
    // The second number is the limit, and the first what the socket keeps to.
    wait::until("a download at its rate", LIMIT, || {
        rate()
            .is_ok_and(|r| r == "20000000bps/20000000bps")
            .then_some(())
    })
    .with_context(|| rate().unwrap_or_default())?;
    more(1 << 20)?;
    let back = tune(&fleet, &lab.server, &["--restore", "--all"])?;
    ensure!(back["summary"]["restored"] == 1, "{back:#}");
    ensure!(
        !rate()?.contains('/'),
        "the limit is still there: {}",
        rate()?
    );
    more(8 << 20)?;
    down.finish()?;
    lab.finish((nginx, daemon))
}

#[test]
fn what_cannot_be_tuned_says_why() -> Result<()> {
    let ends = Ends::new("untunable")?;
    let plain = ends.open(1, &Plan::gentle())?;
    let before = Options::of(plain.locals()[0])?;

    let error = ends.tune(&["--all", "--congestion", "nosuch"])?;
    let told = error["error"].to_string();
    ensure!(
        error["exit"] == 5 && error["error"]["code"] == "refused",
        "{error:#}"
    );
    ensure!(
        told.contains("cubic") && told.contains("modprobe tcp_nosuch"),
        "{error:#}"
    );
    for bad in [["--rate", "0"], ["--rate", "fast"], ["--user-timeout", "0"]] {
        let error = ends.tune(&[&["--all"], &bad[..]].concat())?;
        ensure!(error["exit"] == 2, "{error:#}");
    }
    let none = ends.tune(&["--filter", "port=1", "--nodelay"])?;
    ensure!(
        none["exit"] == 0 && none["accepted"] == 0 && none["hint"].is_string(),
        "{none:#}"
    );
    let name = format!("{}>10.0.3.1:{PORT}", plain.locals()[0]);
    let never = ends.tune(&["--restore", "--session", &name])?;
    let why = never["sessions"][0]["reason"]["why"].to_string();
    ensure!(
        never["exit"] == 5 && why.contains("has not tuned"),
        "{never:#}"
    );

    // One session of two can be tuned: the other is of MPTCP.
    let multipath = Plan {
        multipath: true,
        ..Plan::gentle()
    };
    let multipath = ends.open(1, &multipath)?;
    let done = ends.tune(&["--filter", "port=9000", "--user-timeout", "60s"])?;
    let counts = json!({"tuned": 1, "restored": 0, "incomplete": 0, "unchanged": 0, "refused": 1});
    ensure!(done["exit"] == 5 && done["summary"] == counts, "{done:#}");
    ensure!(done["sessions"].to_string().contains("MPTCP"), "{done:#}");

    // A session that ends is dropped from the record.
    ensure!(ends.listed()?.len() == 1, "{:?}", ends.listed()?);
    let now = Options::of(plain.locals()[0])?;
    let expected = Options {
        user_timeout: 60_000,
        ..before
    };
    ensure!(now == expected, "{now:?}");
    all_intact(&plain.finish()?)?;
    wait::until("an empty record", LIMIT, || {
        ends.listed().is_ok_and(|l| l.is_empty()).then_some(())
    })?;
    all_intact(&multipath.finish()?)?;
    ends.finish()
}

/// Both sockets of a proxy are ends of sessions, until it leaves them.
#[test]
fn a_proxy_is_tuned_and_leaves() -> Result<()> {
    let lab = Lab::builder("tunedproxy").build()?;
    let fleet = Fleet::new(&lab)?;
    let config = "[removal]\nmode = \"local\"\n";
    let daemon = fleet.start(&lab, Role::Proxy, config)?;
    let (listen, to) = (
        Role::Proxy.at(Family::V4, 8080),
        Role::Server.at(Family::V4, PORT),
    );
    let server = Server::start(&lab.server, to)?;
    let haproxy = Config::tcp(listen, to).start(&lab.proxy, |p| fleet.under_shim(p))?;
    let group = Group::open(&lab.client, &server, listen, 1, &Plan::gentle())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let done = tune(&fleet, &lab.proxy, &["--all", "--keepalive", "30s"])?;
    ensure!(done["summary"]["tuned"] == 2, "{done:#}");
    let removed = wait::until("the session to be proven", LIMIT, || {
        let words = [
            "remove-middlebox",
            "self",
            "--listen",
            ":8080",
            "--all",
            "--wait",
        ];
        let done = fleet.json(&lab.proxy, &words).ok()?;
        (done["summary"]["removed"] == 1).then_some(())
    });
    removed?;
    // Its sockets are closed.
    let listed = fleet.json(&lab.proxy, &["tune", "--list"])?;
    ensure!(listed == json!([]), "{listed:#}");
    let done = tune(&fleet, &lab.proxy, &["--all", "--keepalive", "30s"])?;
    let told = done["sessions"].to_string();
    ensure!(
        done["exit"] == 5 && told.contains("the proxy has left it"),
        "{done:#}"
    );
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    lab.finish((haproxy, daemon, server))
}

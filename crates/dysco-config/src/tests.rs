//! Tests with files as people write them, good and bad.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use dysco_common::Addr;
use dysco_pki::{self as pki, IssueRequest, PkiError};
use tempfile::TempDir;

use dysco_agent::links::Header;

use super::{Attach, Config, ConfigError, Interface, LogFormat, Xdp, check, schema};

/// Keys for 10.0.0.1, fd00::1 and 127.0.0.1, which are created once.
static KEYS: LazyLock<TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let authority = dir.path().join("authority");
    pki::init(&authority).unwrap();
    let addresses = ["10.0.0.1", "fd00::1", "127.0.0.1"];
    pki::issue(&IssueRequest {
        dir: authority,
        name: "host".into(),
        addresses: addresses.map(|a| a.parse().unwrap()).to_vec(),
        out: dir.path().join("host"),
        days: 1,
    })
    .unwrap();
    dir
});

fn keys() -> PathBuf {
    KEYS.path().join("host")
}

/// Returns the interface that carries a VLAN of this name.
fn below(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(on, _)| on)
}

pub(super) fn interfaces() -> Vec<Interface> {
    let interface = |index, name: &str, addresses: &[&str]| Interface {
        kind: if name.contains('.') { "vlan" } else { "" }.into(),
        below: std::iter::successors(below(name), |name| below(name))
            .map(Into::into)
            .collect(),
        header: Header::Ethernet,
        name: name.into(),
        index,
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
    };
    vec![
        interface(1, "lo", &["127.0.0.1", "::1"]),
        interface(2, "eth0", &["10.0.0.1", "fd00::1"]),
        interface(3, "eth1", &["10.9.0.1"]),
        interface(4, "bare", &[]),
        interface(5, "eth1.5", &["10.9.5.1"]),
        interface(6, "eth1.5.9", &["10.9.9.1"]),
        Interface {
            kind: "bridge".into(),
            below: vec!["bare".into()],
            ..interface(7, "br0", &[])
        },
    ]
}

fn load(text: &str) -> Result<Config, ConfigError> {
    let path = Path::new("dyscod.toml");
    let config = check::check(path, text, schema::parse(path, text)?, &interfaces())?;
    config.credentials()?;
    Ok(config)
}

/// Returns a correct file followed by this text.
pub(super) fn with(rest: &str) -> String {
    let keys = keys();
    let keys = keys.display();
    format!("[host]\naddresses = [\"10.0.0.1\"]\n[control]\npki_dir = \"{keys}\"\n{rest}")
}

fn names(config: &Config) -> Vec<&str> {
    let interfaces = config.host.interfaces.iter();
    interfaces.map(|i| i.name.as_str()).collect()
}

#[test]
fn a_short_file_gets_the_documented_defaults() {
    let config = load(&with("")).unwrap();
    assert_eq!(names(&config), ["eth0"]);
    assert_eq!(config.control.port, 7474);
    assert_eq!(config.api.socket, Path::new("/run/dysco/dyscod.sock"));
    assert_eq!(config.shim.socket, Path::new("/run/dysco/shim.sock"));
    assert_eq!(config.data_plane.pin_dir, Path::new("/sys/fs/bpf/dysco"));
    assert_eq!(config.data_plane.max_sessions, 65536);
    assert_eq!(config.data_plane.attach, Attach::Auto);
    assert_eq!(config.data_plane.xdp, Xdp::Auto);
    assert!(!config.removal.automatic && config.removal.reserve_ports);
    assert_eq!(config.removal.timeout.as_secs(), 10);
    assert_eq!(config.removal.concurrency, 32);
    assert_eq!(config.removal.ports.to_string(), "61000-64999");
    assert_eq!(config.removal.state_dir, Path::new("/run/dysco/state"));
    assert!(config.services.users.is_empty() && config.services.invitations);
    assert!(config.services.preload);
    let watch = (config.watch.moments, config.watch.bytes);
    assert_eq!(watch, (8, 16384));
    let times = (config.watch.window, config.watch.limit);
    assert_eq!(times.0.as_millis(), 500);
    assert_eq!(times.1.as_millis(), 5000);
    assert!(config.scheduling.realtime);
    assert_eq!(config.log.format, LogFormat::Plain);
    assert!(config.rules().is_empty() && config.listeners.is_empty());
}

#[test]
fn what_is_printed_reads_back_the_same() {
    let text = with(concat!(
        "[api]\ngroup = \"root\"\n",
        "[data_plane]\nattach = \"clsact\"\nxdp = \"off\"\n",
        "[[track]]\ndestination = \"10.0.0.0/8\"\nports = [80, \"8000-8100\"]\n",
        "[[track]]\nports = 443\n",
        "[[listener]]\naddress = \"[fd00::1]:80\"\nhaproxy_socket = \"/run/h.sock\"\n",
        "[removal]\ntimeout_ms = 500\n",
        "[log]\nformat = \"json\"\nfilter = \"dysco=debug\"\n",
    ));
    let printed = load(&text).unwrap().to_toml().unwrap();
    let again = load(&printed).unwrap().to_toml().unwrap();
    assert_eq!(printed, again);
    for part in [
        "clsact",
        "xdp = \"off\"",
        "8000-8100",
        "[fd00::1]:80",
        "= 500",
        "json",
    ] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
}

#[test]
fn interfaces_go_by_name_or_address() {
    let listed = |list: &str| {
        let text = with("").replace("[control]", &format!("interfaces = {list}\n[control]"));
        load(&text)
    };
    let config = listed(r#"["eth1", "10.0.0.1", "eth0", "bare"]"#).unwrap();
    assert_eq!(names(&config), ["eth1", "eth0", "bare"]);
    let error = listed(r#"["eth9"]"#).unwrap_err().to_string();
    assert!(error.contains("line 3, column 15"), "{error}");
    assert!(
        error.contains("no interface 'eth9'; name one that it has: lo, eth0"),
        "{error}"
    );
}

/// A packet of a VLAN also passes the interface below, and a packet of a bridge its ports.
#[test]
fn an_interface_and_what_it_is_made_of_are_not_both_listed() {
    let listed = |list: &str| {
        let text = with("").replace("[control]", &format!("interfaces = {list}\n[control]"));
        load(&text)
    };
    assert!(listed(r#"["eth0", "eth1.5"]"#).is_ok());
    assert!(listed(r#"["br0", "eth1"]"#).is_ok());
    for (both, what) in [
        (r#"["eth1", "eth1.5"]"#, "eth1.5 is a vlan over eth1,"),
        (r#"["eth1.5.9", "eth1"]"#, "eth1.5.9 is a vlan over eth1,"),
        (r#"["bare", "br0"]"#, "br0 is a bridge over bare,"),
    ] {
        let error = listed(both).unwrap_err().to_string();
        assert!(error.contains("line 3, column 14"), "{error}");
        assert!(error.contains(what), "{error}");
    }
    // Interfaces that are found by their addresses are not both accepted either.
    let text = with("").replace("10.0.0.1\"", "10.9.0.1\", \"10.9.5.1\"");
    let error = load(&text).unwrap_err().to_string();
    assert!(error.contains("eth1.5 is a vlan over eth1"), "{error}");
}

#[test]
fn the_services_of_other_users_exist() {
    let users = |names: &str| load(&with(&format!("[services]\nusers = [{names}]")));
    let config = users("\"count\", \"crypt\"").unwrap();
    assert_eq!(config.services.users, ["count", "crypt"]);
    let error = users("\"count\", \"cuont\"").unwrap_err().to_string();
    for part in ["line 6", "users names no service: cuont", "compress, count"] {
        assert!(error.contains(part), "{error}");
    }
}

/// Each error states its place, the fault and a hint.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn errors_name_place_and_hint() {
    // Line 5 is the first one after the correct part.
    let cases = [
        (
            "[removal]\nautomtic = true",
            "line 6, column 1",
            "expected one of `automatic`",
        ),
        ("[remval]", "line 5, column 2", "unknown field `remval`"),
        (
            "[removal]\ntimeout_ms = 5",
            "line 6, column 14",
            "give 100 to 600000",
        ),
        (
            "[removal]\ntimeout_ms = \"5s\"",
            "line 6, column 14",
            "expected u64",
        ),
        (
            "[removal]\nconcurrency = 0",
            "line 6, column 15",
            "give 1 to 4096",
        ),
        (
            "[removal]\nports = \"62000-61000\"",
            "line 6, column 9",
            "did you mean 61000-62000?",
        ),
        (
            "[removal]\nports = \"80-90\"",
            "line 6, column 9",
            "below 1024",
        ),
        (
            "[removal]\nstate_dir = \"state\"",
            "line 6, column 13",
            "no absolute path",
        ),
        (
            "[watch]\nmoments = 1",
            "line 6, column 11",
            "give 3 to 1000",
        ),
        (
            "[watch]\nwindow_ms = 2000\nlimit_ms = 1000",
            "line 7, column 12",
            "less than window_ms",
        ),
        (
            "[data_plane]\nattach = \"xdp\"",
            "line 6, column 10",
            "expected one of `auto`",
        ),
        (
            "[data_plane]\nxdp = \"generic\"",
            "line 6, column 7",
            "expected one of `auto`, `on`, `off`",
        ),
        (
            "[data_plane]\nmax_sessions = 0",
            "line 6, column 16",
            "give 16 to",
        ),
        (
            "[[track]]\ndestination = \"10.0.0.1/8\"",
            "line 6, column 15",
            "did you mean 10.0.0.0/8?",
        ),
        (
            "[[track]]\ndestination = \"10.0.0.0/33\"",
            "line 6, column 15",
            "length of 0 to 32",
        ),
        (
            "[[track]]\ndestination = \"ten/8\"",
            "line 6, column 15",
            "no prefix",
        ),
        ("[[track]]\nports = []", "line 6, column 9", "leave it out"),
        ("[[track]]\nports = 0", "line 6, column 9", "begin at 1"),
        (
            "[[track]]\nports = 65536",
            "line 6, column 9",
            "no port or range",
        ),
        (
            "[[track]]\nports = [80, [81, 82]]",
            "line 6",
            "no further list",
        ),
        (
            "[[track]]",
            "line 5, column 1",
            "give destination, ports, or both",
        ),
        (
            "[[listener]]\naddress = \":80\"",
            "line 5, column 1",
            "set transparent to true or false",
        ),
        (
            "[[listener]]\naddress = \"80\"\ntransparent = true",
            "line 6, column 11",
            "no listener",
        ),
        (
            "[log]\nfilter = \"a=b=c\"",
            "line 6, column 10",
            "write it like",
        ),
        (
            "[log]\nformat = \"xml\"",
            "line 6, column 10",
            "expected `plain` or `json`",
        ),
        (
            "[api]\ngroup = \"no-such-group\"",
            "line 6, column 9",
            "groupadd",
        ),
        (
            "[metrics]\nlisten = \"10.0.0.1:9469\"",
            "line 6, column 10",
            "set tls = true",
        ),
        ("[metrics]\ntls = true", "line 6, column 7", "set listen"),
        (
            "[metrics]\nlisten = \"localhost:9469\"",
            "line 6, column 10",
            "socket address",
        ),
        ("[api", "line 5, column 5", "expected"),
    ];
    for (rest, place, part) in cases {
        let error = load(&with(rest)).unwrap_err().to_string();
        assert!(error.contains(place), "{rest}\n{error}");
        assert!(error.contains(part), "{rest}\n{error}");
        assert!(!error.contains('\n'), "{rest}\n{error}");
    }
}

#[test]
fn metrics_are_beside_the_api_and_elsewhere_by_tls_alone() {
    let metrics = |rest: &str| load(&with(rest)).unwrap().metrics;
    assert_eq!(metrics("").socket, Path::new("/run/dysco/metrics.sock"));
    let moved = metrics("[api]\nsocket = \"/run/b/dyscod.sock\"");
    assert_eq!(moved.socket, Path::new("/run/b/metrics.sock"));
    for near in ["127.0.0.1:9469", "[::1]:9469", "[::ffff:127.0.0.1]:9469"] {
        let listening = metrics(&format!("[metrics]\nlisten = \"{near}\""));
        assert_eq!(listening.listen, Some(near.parse().unwrap()));
    }
    let far = metrics("[metrics]\nlisten = \"10.0.0.1:9469\"\ntls = true");
    assert!(far.tls && far.listen.is_some());
}

#[test]
fn a_host_must_say_who_it_is() {
    let cases = [
        ("", "there is no [host]; begin with it"),
        ("[host]", "line 1, column 1: [host] has no addresses; give"),
        (
            "[host]\naddresses = [\"proxy1\"]",
            "line 2, column 14: 'proxy1' is no IP address, and names are not looked up; write it like 10.0.2.1",
        ),
        ("[host]\naddresses = []", "addresses is empty"),
        ("[host]\naddresses = [\"0.0.0.0\"]", "no address of a host"),
        ("[host]\naddresses = [\"10.0.0.256\"]", "line 2, column 14"),
        (
            "[host]\naddresses = [\"10.0.0.7\"]",
            "no interface of this host has the address 10.0.0.7",
        ),
    ];
    for (text, part) in cases {
        let error = load(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}\n{error}");
    }
}

#[test]
fn too_many_rules_are_refused() {
    let ports: Vec<_> = (1..=17).map(|p| p.to_string()).collect();
    let error = load(&with(&format!("[[track]]\nports = [{}]", ports.join(","))));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("more than 16"), "{error}");
}

#[test]
fn keys_are_checked_with_the_rest() {
    let text = with("").replace("host\"\n", "elsewhere\"\n");
    let error = load(&text).unwrap_err();
    assert!(matches!(error, ConfigError::Pki(PkiError::Read { .. })));
    assert!(error.to_string().contains("dyscoctl pki issue"), "{error}");

    let text = with("").replace("10.0.0.1", "10.9.0.1");
    let error = load(&text).unwrap_err();
    assert!(matches!(
        error,
        ConfigError::Pki(PkiError::WrongHost { .. })
    ));
    assert!(error.to_string().contains("--address 10.9.0.1"), "{error}");
}

#[test]
fn a_file_is_loaded_with_this_hosts_interfaces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dyscod.toml");
    std::fs::write(&path, with("").replace("10.0.0.1", "127.0.0.1")).unwrap();
    let config = Config::load(&path).unwrap();
    assert_eq!(names(&config), ["lo"]);

    let error = Config::load(&dir.path().join("none.toml")).unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }), "{error}");
}

#[test]
fn rules_match_what_the_file_says() {
    let text = with(concat!(
        "[[track]]\ndestination = \"10.0.0.0/9\"\nports = [80, \"8000-8100\"]\n",
        "[[track]]\ndestination = \"fd00::/16\"\n",
        "[[track]]\nports = 22\n",
    ));
    let rules = load(&text).unwrap().rules();
    let tracked = |address: &str, port| {
        let address = Addr::from(address.parse::<IpAddr>().unwrap());
        rules.iter().any(|rule| rule.matches(&address, port))
    };
    assert!(tracked("10.127.0.1", 80) && tracked("10.0.0.1", 8000));
    assert!(tracked("10.0.0.1", 8100) && !tracked("10.0.0.1", 8101));
    assert!(!tracked("10.128.0.1", 80) && !tracked("::a00:1", 80));
    assert!(tracked("fd00::2", 1) && tracked("fd00::2", 65535) && !tracked("fd01::2", 1));
    assert!(tracked("192.0.2.1", 22) && tracked("2001:db8::1", 22));
}

#[test]
fn peers_are_other_hosts() {
    let load = |peers: &str| load(&with(&format!("peers = [{peers}]\n")));
    let peers = load(r#""10.0.0.2", "10.0.0.1", "::ffff:10.0.0.2", "fd00::3""#);
    let expected: [IpAddr; 2] = ["10.0.0.2".parse().unwrap(), "fd00::3".parse().unwrap()];
    assert_eq!(peers.unwrap().control.peers, expected);
    let error = load("\"10.0.1.x\"").unwrap_err().to_string();
    assert!(error.contains("'10.0.1.x' is no IP address"), "{error}");
    for nobody in ["0.0.0.0", "::1", "224.0.0.1", "255.255.255.255", "fe80::1"] {
        let error = load(&format!("{nobody:?}")).unwrap_err().to_string();
        assert!(error.contains("no host's"), "{error}");
    }
}

#[test]
fn the_most_exact_listener_counts() {
    let text = with(concat!(
        "[[listener]]\naddress = \":80\"\nhaproxy_socket = \"/run/h.sock\"\n",
        "[[listener]]\naddress = \"10.0.0.1:80\"\ntransparent = true\n",
    ));
    let config = load(&text).unwrap();
    let transparent = |address: &str| {
        let found = config.listener(address.parse().unwrap());
        found.map(|listener| listener.transparent == Some(true))
    };
    assert_eq!(transparent("10.0.0.1:80"), Some(true));
    assert_eq!(transparent("[::ffff:10.0.0.1]:80"), Some(true));
    assert_eq!(transparent("10.0.0.2:80"), Some(false));
    assert_eq!(transparent("10.0.0.1:81"), None);
    let twice = text + "[[listener]]\naddress = \"*:80\"\ntransparent = true\n";
    let error = load(&twice).unwrap_err().to_string();
    assert!(error.contains("there twice"), "{error}");
}

#[test]
fn etcd_needs_tls_unless_it_is_on_this_host() {
    let of = |more: &str| {
        let (path, text) = (Path::new("f"), with(&format!("[fleet]\n{more}\n")));
        let file = schema::parse(path, &text)?;
        check::check(path, &text, file, &interfaces())
    };
    let config = of("etcd = [\"https://10.0.0.5\", \"http://127.0.0.1:1\"]").unwrap();
    let urls: Vec<_> = config.fleet.etcd.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["https://10.0.0.5:2379", "http://127.0.0.1:1"]);
    assert_eq!(config.fleet.ca, config.control.pki.ca);
    for (more, why) in [
        ("etcd = [\"http://10.0.0.5\"]", "without TLS"),
        ("etcd = [\"http://localhost\"]", "without TLS"),
        ("etcd = [\"10.0.0.5\"]", "no URL of etcd"),
        ("prefix = \"dysco\"", "no prefix"),
        ("prefix = \"/dysco/\"", "no prefix"),
        ("lease_s = 1", "give 2 to 3600"),
    ] {
        let error = of(more).unwrap_err().to_string();
        assert!(
            error.contains(why) && error.contains("line "),
            "{more}: {error}"
        );
    }
}

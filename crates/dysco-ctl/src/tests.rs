//! Tests of command lines as people type them.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::{Cli, Command, Format};

fn parse(line: &str) -> Result<Cli, ErrorKind> {
    let words = std::iter::once("dyscoctl").chain(line.split_whitespace());
    Cli::try_parse_from(words).map_err(|error| error.kind())
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn good_lines_are_understood() {
    let good = [
        "status",
        "status -o json",
        "doctor",
        "doctor --config /tmp/dyscod.toml -o json",
        "-o json --socket /tmp/s status",
        "sessions",
        "sessions --filter host=10.0.0.1,port=80",
        "sessions --filter mode=local,chain=yes,proxy=haproxy,peer=10.0.0.2",
        "sessions --columns id,remote,opened-as,proxy,label --sort in --desc",
        "sessions --watch",
        "sessions --watch 5 --sort age -o json",
        "sessions --watch 500ms",
        "remove-middlebox self --filter proxy=:8080,mode=none",
        "sessions show ab00000012",
        "sessions show 10.0.0.1:80>10.0.0.2:40000 -o json",
        "top",
        "top --filter proxy=haproxy --delay 2",
        "remove-middlebox self --all --wait",
        "remove-middlebox 10.0.2.1 --session 1a --session 10.0.0.1:1>10.0.0.2:2 --timeout 500ms",
        "remove-middlebox proxy1 --all --dry-run",
        "remove-middlebox self --pid 12 --all",
        "remove-middlebox self --filter host=10.0.0.1,port=443 --wait",
        "remove-middlebox self --listen :8080 --all --dry-run",
        "drain haproxy",
        "drain 1234 --timeout 10m --transparent",
        "drain haproxy.service --dry-run -o json",
        "drain 10.0.0.1:80",
        "state show 10.0.0.1:80>10.0.0.2:40000 -o json",
        "state export 1a --kind conntrack --kind set_element",
        "state install 1a - --dry-run",
        "state install 1a file",
        "state move 1a --from 10.0.0.1 --to fw2 --dry-run",
        "state remove 1a --kind conntrack",
        "insert-middlebox fw1 --session 1a --session 2b",
        "insert-middlebox fw1 --filter port=443 --wait",
        "insert-middlebox +shape=up=5M,down=off --all --dry-run",
        "reconfigure 1a 2b --chain fw1,fw2",
        "reconfigure --through self --without self",
        "replace-middlebox fw1 --with fw2 --all",
        "replace-middlebox fw1 --with fw2 --state conntrack",
        "replace-middlebox fw1 --with fw2 --state conntrack,set_element --wait",
        "tune --filter port=443 --congestion bbr --rate 20M --keepalive 30s",
        "tune --session 1a --user-timeout 60s --nodelay --dry-run -o json",
        "tune --all --no-nodelay --keepalive off --rate off --user-timeout off",
        "tune --restore --filter tuned=yes --dry-run",
        "tune --list",
        "tune --list --filter peer=10.0.0.2 -o json",
        "service put +count 1a 2b",
        "service put +count +shape=rate=20M,burst=64K --filter port=443 --wait",
        "service put 10.0.0.1:80>10.0.0.2:40000 +count --wait=10s -o json",
        "service put +count --all --dry-run --namespace web",
        "service put --filter port=443 --filter mode=none +count",
        "service take 1a 10.0.0.1:80>10.0.0.2:40000 --wait",
        "service take --all --dry-run --wait",
        "service take --filter peer=10.0.0.2",
        "service list",
        "service list 1a -o json",
        "service list --filter port=443",
        "service call 1a count read",
        "service call 1a shape set {\"rate\":\"20M\"}",
        "service call 1a shape set -5",
        "delta 1a --to-server 20",
        "delta 1a --to-client -7",
        "delta 1a --to-server 0 --to-client 0",
        "monitor -o json",
        "run haproxy -f haproxy.cfg",
        "run -- haproxy -f haproxy.cfg -o x",
        "pki init --dir d",
        "pki issue --dir d --name n --address 10.0.0.1 --address fd00::1 --out o",
        "pki issue --dir d --name n --address 10.0.0.1 fd00::1 --out o",
        "completions bash",
    ];
    for line in good {
        assert!(parse(line).is_ok(), "{line}: {:?}", parse(line));
    }
    assert_eq!(parse("status -o json").unwrap().output, Format::Json);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn bad_lines_are_refused() {
    let bad = [
        "",
        "reboot",
        "status -o xml",
        "sessions show",
        "sessions show nonsense",
        "sessions --filter colour=red",
        "sessions --filter state=foo",
        "sessions --filter mode=auto",
        "sessions --columns id,colour",
        "sessions --sort colour",
        "sessions --desc",
        "sessions --watch soon",
        "remove-middlebox self --filter port=99999",
        "remove-middlebox",
        "remove-middlebox self",
        "remove-middlebox self --all --session 1a",
        "remove-middlebox self --filter port=443 --all",
        "remove-middlebox self --filter port=443 --session 1a",
        "insert-middlebox fw1",
        "insert-middlebox fw1 --all --session 1a",
        "insert-middlebox + --all",
        "reconfigure --chain fw1",
        "reconfigure 1a --chain fw1 --all",
        "reconfigure --chain fw1 --filter port=443 --through fw2",
        "remove-middlebox self --all --timeout soon",
        "remove-middlebox self --pid 12 --listen :80 --all",
        "remove-middlebox self --listen 80 --all",
        "tune --filter port=443",
        "tune --congestion bbr",
        "tune --restore",
        "tune --all --restore --congestion bbr",
        "tune --all --nodelay --no-nodelay",
        "tune --all --rate 0",
        "tune --all --rate 20MB",
        "tune --all --keepalive soon",
        "tune --all --user-timeout 0",
        "tune --all --congestion ''",
        "tune --list --all",
        "tune --list --dry-run",
        "tune --list --rate 20M",
        "service",
        "service put",
        "service put --all",
        "service put count 1a",
        "service put + 1a",
        "service put +Count 1a",
        "service put +shape=rate 1a",
        "service put +shape=rate=1,rate=2 1a",
        "service put +count --all --filter port=443",
        "service put +count 1a --wait soon",
        "service put +count 1a --wait=0",
        "service list --all",
        "service list 1a --filter port=443",
        "service call 1a count",
        "service call 1a shape set rate=20M",
        "delta 1a",
        "policy explain 10.0.0.1 10.0.0.2",
        "state",
        "state show",
        "state install 1a",
        "state move 1a --to fw2",
        "state show 1a --kind sockets",
        "drain",
        "drain a/b",
        "drain x --timeout 0",
        "run",
        "pki issue --dir d --name n --out o",
        "pki issue --dir d --name n --out o --address ten",
    ];
    for line in bad {
        assert!(parse(line).is_err(), "{line}");
    }
}

/// A command line that selects no session gets an error with all ways to do so.
#[test]
fn a_missing_selection_names_every_way() {
    let lines: [(&str, &[&str]); 3] = [
        ("remove-middlebox self", &["--session", "--all", "--filter"]),
        (
            "insert-middlebox fw1",
            &["--session", "--filter", "--through", "--all"],
        ),
        (
            "reconfigure --chain fw1",
            &["SESSIONS", "--filter", "--through", "--all"],
        ),
    ];
    for (line, ways) in lines {
        let words = std::iter::once("dyscoctl").chain(line.split_whitespace());
        let error = Cli::try_parse_from(words).unwrap_err().to_string();
        for way in ways {
            assert!(error.contains(way), "{way}: {error}");
        }
    }
}

#[test]
fn what_follows_a_program_is_the_programs() {
    for line in ["run haproxy -o json", "run -- haproxy -o json"] {
        let cli = parse(line).unwrap();
        assert_eq!(cli.output, Format::Table, "{line}");
        assert!(matches!(cli.command, Command::Run(_)));
    }
}

#[test]
fn help_lists_commands_and_exit_codes() {
    let help = Cli::command().render_help().to_string();
    let expected = "\
Remove proxies from live TCP sessions, and show sessions and their paths

Usage: dyscoctl [OPTIONS] <COMMAND>

Commands:
  status             Show the daemon, its interfaces, peers and counters, after a verdict
  doctor             Check this host, and give a remedy for each fault; dyscod need not run
  sessions           List sessions
  namespaces         List the network namespaces of containers and pods that dyscod serves besides
                     its own
  top                Show sessions, their goodput and changes as they happen
  remove-middlebox   Remove a proxy, or a host of a chain, from live sessions
  reconfigure        Give live sessions another chain of middleboxes
  insert-middlebox   Put a middlebox into live sessions
  replace-middlebox  Replace one middlebox with another in live sessions
  tune               Set socket options of live programs' sessions, and put them back
  service            Put services into live sessions, take them out, list and call them
  delta              Declare how many bytes a middlebox of this host added to a session's stream
  drain              Remove a proxy from all its sessions as they become removable, so that it can be reloaded or stopped
  state              Show, export, install, move and remove firewall state of a session
  adopt              Adopt sessions that are older than dyscod and not known yet
  reload             Reload the configuration, keys and policy of dyscod without a restart
  policy             List, check, apply, publish and explain the policy for new sessions
  monitor            Print events as they happen, with reasons
  metrics            Print the metrics of dyscod in the OpenMetrics format
  run                Start a proxy under the shim, or any program with services
  pki                Create the fleet's authority, and issue and revoke certificates
  uninstall          Leave this host as it was: stop dyscod, detach its programs, and restore system settings
  bugreport          Write configuration, status and logs of this host to a directory for a bug report, without keys
  completions        Print completions for a shell
  help               Print this message or the help of the given subcommand(s)

Options:
  -o, --output <OUTPUT>  The output format [default: table] [possible values: table, json]
      --socket <PATH>    The socket of dyscod [default: DYSCO_API_SOCKET, or /run/dysco/dyscod.sock]
      --namespace <NAME>  Ask the dyscod of this network namespace, as 'dyscoctl namespaces' lists
                         it: a name, an inode, or the beginning of a container's id
  -h, --help             Print help (see more with '--help')
  -V, --version          Print version

Exit codes:
  0  done
  1  an internal error
  2  wrong usage, configuration, key or certificate
  3  no dyscod answers
  4  not allowed
  5  a session was refused, rolled back, lost, left or not confirmed; each has its reason
  6  a session timed out, or a host did not answer in time
  7  drain: the time ran out, and the proxy still holds sessions
  8  doctor: a fault keeps this host from working
  9  doctor: a certificate expires within 30 days
";
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(&help), words(expected), "{help}");
}

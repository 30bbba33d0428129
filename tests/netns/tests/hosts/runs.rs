//! Services of the sessions of a program that runs with services.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use dysco_netns::{Family, Lab, Program, Role, wait};
use serde_json::json;

use crate::first_byte::{counts, give, open, say};
use crate::services::OneEnd;

/// Time within which an end gets what the other one has sent.
const SOON: Duration = Duration::from_secs(20);

/// Runs a program to its end with these services.
fn run_with(here: &OneEnd, services: &[&str], program: &[&str]) -> Result<String> {
    let words = [&["run"], services, &["--"], program].concat();
    here.fleet.dyscoctl(&here.lab.client, &words)
}

#[test]
fn a_program_runs_with_services_and_so_do_its_children() -> Result<()> {
    let here = OneEnd::new("runs", Family::V4)?;
    let at = Role::Server.at(Family::V4, 9001);
    let listener = here.lab.server.run(move || TcpListener::bind(at))?;
    // A child of a child opens the session.
    let script = format!(
        "bash -c 'exec 3<>/dev/tcp/{}/{}; printf hello >&3; head -c 7 <&3'",
        at.ip(),
        at.port()
    );
    let server = thread::spawn(move || -> Result<TcpStream> {
        let (mut server, _) = listener.accept()?;
        let mut got = [0; 5];
        server.read_exact(&mut got)?;
        ensure!(&got == b"hello", "{got:?}");
        server.write_all(b"welcome")?;
        Ok(server)
    });
    let said = run_with(&here, &["+count"], &["bash", "-c", &script])?;
    let server = server.join().map_err(|_| anyhow!("it panicked"))??;
    ensure!(said == "welcome", "{said}");
    let counted = counts(&here.fleet, &here.lab.client)?;
    ensure!(counted == json!({"forward": 5, "back": 7}), "{counted}");
    drop(server);
    // Others run without.
    let (client, server) = open(&here.lab, Role::Server.at(Family::V4, 9002))?;
    say(&client, &server, "plain")?;
    let listed = here.service(&["list", "--filter", "port=9002"])?;
    ensure!(listed == json!([]), "{listed}");
    here.finish()
}

fn echoes(server: &mut TcpStream) -> Result<()> {
    server.set_read_timeout(Some(SOON))?;
    server.write_all(b"echo")?;
    let mut got = [0; 4];
    server.read_exact(&mut got)?;
    ensure!(&got == b"echo", "{got:?}");
    Ok(())
}

#[test]
fn a_server_that_runs_with_services_has_them_in_what_it_accepts() -> Result<()> {
    let here = OneEnd::new("runserver", Family::V4)?;
    let (fleet, host) = (&here.fleet, &here.lab.client);
    let words = [
        "run",
        "+count",
        "--",
        "socat",
        "TCP-LISTEN:9003,fork",
        "EXEC:cat",
    ];
    let program = Program::new(fleet.dyscoctl_path()).args(words);
    let server = host.spawn(program.named("socat"))?;
    let at = Role::Client.at(Family::V4, 9003);
    let connect = || here.lab.server.run(move || TcpStream::connect(at)).ok();
    let mut client = wait::until("the server", SOON, connect)?;
    echoes(&mut client)?;
    let counted = counts(fleet, host)?;
    ensure!(counted == json!({"forward": 4, "back": 4}), "{counted}");
    drop((client, server));
    here.finish()
}

/// Services must not be missed because the sessions are not tracked.
#[test]
fn sessions_that_are_not_to_be_tracked_have_their_services() -> Result<()> {
    let extra = "[[track]]\nports = 1\n";
    let here = OneEnd::with(Lab::builder("runtrack").build()?, Family::V4, extra)?;
    let (fleet, host) = (&here.fleet, &here.lab.client);
    let words = [
        "run",
        "+count",
        "--",
        "socat",
        "TCP-LISTEN:9003,fork",
        "EXEC:cat",
    ];
    let program = Program::new(fleet.dyscoctl_path()).args(words);
    let server = host.spawn(program.named("socat"))?;
    let at = Role::Client.at(Family::V4, 9003);
    let connect = || here.lab.server.run(move || TcpStream::connect(at)).ok();
    let mut client = wait::until("the server", SOON, connect)?;
    echoes(&mut client)?;
    let counted = counts(fleet, host)?;
    ensure!(counted == json!({"forward": 4, "back": 4}), "{counted}");
    drop((client, server));
    here.finish()
}

#[test]
fn a_run_with_an_unknown_service_does_not_start_the_program() -> Result<()> {
    let here = OneEnd::new("runbad", Family::V4)?;
    for service in ["+nonsense", "+count=a=b"] {
        let words = ["run", service, "--", "echo", "started"];
        let ran = here.fleet.try_dyscoctl(&here.lab.client, &words)?;
        ensure!(
            ran.code == Some(2) && ran.stdout.is_empty() && ran.stderr.contains("service"),
            "{ran:?}"
        );
    }
    here.finish()
}

#[test]
fn other_users_run_programs_with_the_services_that_they_may_have() -> Result<()> {
    let extra = "[api]\ngroup = \"nogroup\"\n\n[services]\nusers = [\"count\"]\n";
    let here = OneEnd::with(Lab::builder("runuser").build()?, Family::V4, extra)?;
    let dyscoctl = here.fleet.dyscoctl_path().to_string_lossy().into_owned();
    let as_nobody = |service: &str, program: &str| {
        let words = [
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            &dyscoctl,
        ];
        let words = [&words[..], &["run", service, "--", program]].concat();
        here.lab.client.ran("setpriv", &words)
    };
    let ran = as_nobody("+count", "id")?;
    ensure!(
        ran.code == Some(0) && ran.stdout.contains("nobody"),
        "{ran:?}"
    );
    let ran = as_nobody("+null", "id")?;
    ensure!(
        ran.code != Some(0) && ran.stdout.is_empty() && ran.stderr.contains("may not run"),
        "{ran:?}"
    );
    here.finish()
}

/// The session is held, and not open: the last packet of its handshake is lost.
#[test]
fn others_do_not_take_the_place_of_services_that_are_about_to_come() -> Result<()> {
    let here = OneEnd::new("firstheld", Family::V4)?;
    let (fleet, host) = (&here.fleet, &here.lab.client);
    let program = Program::new(fleet.dyscoctl_path());
    let words = [
        "run",
        "+count",
        "--",
        "socat",
        "TCP-LISTEN:9003",
        "EXEC:cat",
    ];
    let _server = host.spawn(program.args(words).named("socat"))?;
    let listens = || {
        let listening = host.output("ss", &["-Hltn", "sport = :9003"]).ok()?;
        (!listening.is_empty()).then_some(())
    };
    wait::until("the server", SOON, listens)?;
    let from = Role::Server.at(Family::V4, 0).ip();
    let rules = format!(
        "table inet late {{
           chain forward {{
             type filter hook forward priority 0;
             ip saddr {from} tcp dport 9003 tcp flags & (syn | ack) == ack drop
           }}
         }}"
    );
    here.lab.router.input("nft", &["-f", "-"], &rules)?;
    let at = Role::Client.at(Family::V4, 9003);
    let mut client = here.lab.server.run(move || TcpStream::connect(at))?;
    let put = ["put", "+null", "--filter", "port=9003"];
    let refused = here.service(&put)?;
    ensure!(
        refused.to_string().contains("about to come into it"),
        "{refused:#}"
    );
    here.lab
        .router
        .output("nft", &["delete", "table", "inet", "late"])?;
    echoes(&mut client)?;
    let counted = counts(fleet, host)?;
    ensure!(counted == json!({"forward": 4, "back": 4}), "{counted}");
    drop(client);
    here.finish()
}

/// The program's sockets would be in a network that `dyscod` does not see.
#[test]
fn a_program_in_another_network_namespace_is_refused() -> Result<()> {
    let here = OneEnd::new("runelse", Family::V4)?;
    let dyscoctl = here.fleet.dyscoctl_path().to_string_lossy().into_owned();
    let words = ["-n", &*dyscoctl, "run", "+count", "--", "echo", "started"];
    let ran = here.lab.client.ran("unshare", &words)?;
    ensure!(
        ran.code == Some(5) && ran.stdout.is_empty() && ran.stderr.contains("--namespace"),
        "{ran:?}"
    );
    here.finish()
}

/// Neither the rule's services nor those of the run are missed in silence.
#[test]
fn a_rule_does_not_take_the_place_of_a_runs_services() -> Result<()> {
    let here = OneEnd::new("runrule", Family::V4)?;
    let (fleet, host) = (&here.fleet, &here.lab.client);
    let at = Role::Server.at(Family::V4, 9001);
    let _listener = here.lab.server.run(move || TcpListener::bind(at))?;
    give(
        fleet,
        host,
        "name = \"web\"\nports = [9001]\nchain = [\"+null\"]",
    )?;
    let monitor = fleet.monitor(host)?;
    let connect = format!("timeout 3 bash -c 'exec 3<>/dev/tcp/{}/9001'", at.ip());
    wait::until("a report", SOON, || {
        let words = ["run", "+count", "--", "sh", "-c", &connect];
        let ran = fleet.try_dyscoctl(host, &words).ok()?;
        let log = monitor.log();
        let reported = log.lines().find(|line| line.contains("services-refused"))?;
        let names = reported.contains("+count") && reported.contains("rule web");
        (ran.code == Some(124) && names).then_some(())
    })?;
    drop(monitor);
    here.finish()
}

#[test]
fn a_run_stays_in_the_cgroup_of_its_program() -> Result<()> {
    let extra = "[api]\ngroup = \"nogroup\"\n\n[services]\nusers = [\"count\"]\n";
    let mut here = OneEnd::with(Lab::builder("runlimits").build()?, Family::V4, extra)?;
    let root = here.lab.client.dir().join("cgroup");
    let place = root.join(format!("dysco-test-{}", std::process::id()));
    let (root, name) = (root.display().to_string(), place.display().to_string());
    let make = format!("mkdir {root} && mount -t cgroup2 none {root} && mkdir -p {name}");
    here.lab.client.output("sh", &["-c", &make])?;
    let dyscoctl = here.fleet.dyscoctl_path().display().to_string();
    let as_nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let joined =
        format!("echo $$ > {name}/cgroup.procs && exec {as_nobody} {dyscoctl} run +count --");
    let listen = format!("{joined} socat TCP-LISTEN:9003,fork EXEC:cat");
    let program = Program::new("sh").args(["-c", &listen]).named("socat");
    let server = here.lab.client.spawn(program)?;
    let below = |host: &dysco_netns::Host| -> Result<String> {
        host.output("sh", &["-c", &format!("cd {name} && ls -d */ || true")])
    };
    wait::until("the run's cgroup", SOON, || {
        let names = below(&here.lab.client).ok()?;
        names.starts_with("dysco-run-").then_some(())
    })?;
    // The next dyscod finds it.
    here.daemon.process.kill()?;
    let file = here.lab.client.dir().join("dyscod.toml");
    here.daemon = here.fleet.restart(&here.lab, Role::Client, &file)?;
    let at = Role::Client.at(Family::V4, 9003);
    let connect = || here.lab.server.run(move || TcpStream::connect(at)).ok();
    let mut client = wait::until("the server", SOON, connect)?;
    echoes(&mut client)?;
    let counted = counts(&here.fleet, &here.lab.client)?;
    ensure!(counted == json!({"forward": 4, "back": 4}), "{counted}");
    drop((client, server));
    wait::until("the end of the cgroup", SOON, || {
        below(&here.lab.client).ok()?.is_empty().then_some(())
    })
    .context("it stays")?;
    let remove = format!("rmdir {name}; umount {root}");
    here.lab.client.output("sh", &["-c", &remove])?;
    here.finish()
}

//! Handlers of users and that of the system, at the same time.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Lab, Process, Program, Role, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::services::OneEnd;

const SOON: Duration = Duration::from_secs(30);
/// A user who runs a server with services, and the port of that server.
const USER: u32 = 12_345;
const PORT: u16 = 9003;
/// The user nobody, as whom the system's handler runs.
const NOBODY: u32 = 65_534;

/// Starts a server of the user that repeats what it hears.
fn serve(here: &OneEnd) -> Result<Process> {
    let dyscoctl = here.fleet.dyscoctl_path().to_string_lossy().into_owned();
    let user = format!("--reuid={USER}");
    let listen = format!("TCP-LISTEN:{PORT},fork,reuseaddr");
    let words = [&*user, "--regid=65534", "--clear-groups", &*dyscoctl];
    let run = ["run", "+count", "--", "socat", &*listen, "EXEC:cat"];
    let program = Program::new("setpriv").args(words).args(run);
    here.lab.client.spawn(program.named("socat"))
}

fn connect(here: &OneEnd) -> Result<TcpStream> {
    let at = Role::Client.at(Family::V4, PORT);
    let connect = || here.lab.server.run(move || TcpStream::connect(at)).ok();
    let client = wait::until("the user's server", SOON, connect)?;
    client.set_read_timeout(Some(SOON))?;
    Ok(client)
}

/// Lets the server repeat a word.
fn echo(mut client: &TcpStream) -> Result<()> {
    client.write_all(b"echo")?;
    let mut got = [0; 4];
    client.read_exact(&mut got)?;
    ensure!(&got == b"echo", "{got:?}");
    Ok(())
}

/// Returns the handler of the sessions of a port.
fn handler(here: &OneEnd, port: u16) -> Result<i64> {
    let listed = here.service(&["list", "--filter", &format!("port={port}")])?;
    let pid = listed[0]["handler"].as_i64();
    pid.with_context(|| format!("no handler: {listed:#}"))
}

/// Returns the real, effective, saved and file system user of a process.
fn users(pid: i64) -> Result<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let ids = line.context("no users")?.split_whitespace();
    Ok(ids.map(str::parse).collect::<Result<_, _>>()?)
}

fn lives(pid: i64) -> bool {
    fs::exists(format!("/proc/{pid}/status")).unwrap_or(true)
}

fn one_end(name: &str) -> Result<OneEnd> {
    let extra = "[api]\ngroup = \"nogroup\"\n\n[services]\nusers = [\"count\"]\n";
    OneEnd::with(Lab::builder(name).build()?, Family::V4, extra)
}

/// The user's server and a session of it, sessions of others, and the handlers of both.
struct Both {
    server: Process,
    client: TcpStream,
    group: Group,
    users_own: i64,
    systems: i64,
}

fn both(here: &OneEnd) -> Result<Both> {
    let server = serve(here)?;
    let client = connect(here)?;
    echo(&client)?;
    let group = here.open(2, &Plan::gentle())?;
    here.change(&["put", "+count"], "put", 2)?;
    Ok(Both {
        server,
        client,
        group,
        users_own: handler(here, PORT)?,
        systems: handler(here, 9000)?,
    })
}

#[test]
fn a_users_services_run_as_the_user_and_end_with_the_program() -> Result<()> {
    let mut here = one_end("owners")?;
    let Both {
        server,
        client,
        group,
        users_own,
        systems,
    } = both(&here)?;
    ensure!(users(users_own)? == [USER; 4], "{:?}", users(users_own));
    ensure!(users(systems)? == [NOBODY; 4], "{:?}", users(systems));

    // The next dyscod takes up both.
    here.daemon.process.kill()?;
    let file = here.lab.client.dir().join("dyscod.toml");
    here.daemon = here.fleet.restart(&here.lab, Role::Client, &file)?;
    let taken_up = || {
        let listed = here.service(&["list"]).ok()?;
        let rows = listed.as_array()?;
        let fit = |row: &&serde_json::Value| {
            let handler = if row["local"]
                .as_str()
                .is_some_and(|at| at.ends_with(":9003"))
            {
                users_own
            } else {
                systems
            };
            row["handler"] == handler
                && row["services"] == json!(["count"])
                && row["read"] != json!([0, 0])
        };
        (rows.len() == 3 && rows.iter().filter(fit).count() == 3).then_some(())
    };
    wait::until("the services of the last daemon", SOON, taken_up)?;
    echo(&client)?;

    // A user whose programs have ended needs no handler.
    drop((client, server));
    wait::until("the end of the user's handler", SOON, || {
        (!lives(users_own)).then_some(())
    })?;
    ensure!(lives(systems), "the system's handler has ended as well");
    here.change(&["take"], "taken", 2)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn a_users_handler_that_dies_takes_no_session_of_others() -> Result<()> {
    let here = one_end("ownerdies")?;
    let Both {
        server,
        client,
        group,
        users_own,
        systems,
    } = both(&here)?;
    kill(Pid::from_raw(users_own as i32), Signal::SIGKILL)?;
    // A program that runs with services does not go on without them.
    let heard = (&client).read(&mut [0]);
    ensure!(
        heard
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "{heard:?}"
    );
    // Its next session has a handler again.
    let next = connect(&here)?;
    echo(&next)?;
    ensure!(handler(&here, 9000)? == systems, "another handler");
    here.change(&["take"], "taken", 2)?;
    all_intact(&group.finish()?)?;
    drop((next, client, server));
    here.finish()
}

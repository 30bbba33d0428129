//! `dyscoctl bugreport`: writes a directory that describes this host, for people who help. The
//! command never reads keys, and omits values that look like secrets.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dysco_api::{Exit, Listing, Reply, Request};
use dysco_config::{Config, DEFAULT_CONFIG, private};
use serde_json::{Value, json};

use super::context::Context;
use super::doctor;
use super::error::WriteError;
use super::exit::CliError;

/// Kernel settings that affect sessions.
const SETTINGS: [&str; 7] = [
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/tcp_sack",
    "net/ipv4/tcp_timestamps",
    "net/ipv6/conf/all/forwarding",
];
/// Number of log lines to include, the newest ones.
const LINES: &str = "5000";
/// Names of values that must stay secret.
const SECRETS: [&str; 4] = ["password", "passphrase", "secret", "token"];

/// Arguments of `bugreport`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration of this host's dyscod
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,

    /// The directory to create; it must not exist
    #[arg(long, value_name = "DIR", default_value = "dysco-bugreport")]
    out: PathBuf,
}

/// Writes a description of this host into a directory.
pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, CliError> {
    let made = DirBuilder::new().mode(0o700).create(&args.out);
    made.map_err(|source| WriteError {
        path: args.out.clone(),
        source,
    })?;
    let mut written = Vec::new();
    for (name, text) in collect(context, &args.config) {
        let path = args.out.join(name);
        private::write(&path, text.as_bytes()).map_err(|source| WriteError {
            path: path.clone(),
            source,
        })?;
        written.push(path);
    }
    context.print(&json!({ "written": written }), |_| {
        format!(
            "wrote {} files to {}\nit holds addresses and names of processes: look at it before \
             you pass it on",
            written.len(),
            args.out.display()
        )
    })?;
    Ok(Exit::Done)
}

/// Returns each file with its text. A file whose contents are unavailable contains the error
/// instead.
fn collect(context: &Context, config: &Path) -> Vec<(&'static str, String)> {
    let pretty = |value: Value| format!("{value:#}\n");
    let asked = |request| match answers(context, &request) {
        Ok(all) => all
            .iter()
            .map(|reply| format!("{}\n", json!(reply)))
            .collect(),
        Err(error) => pretty(error.json()),
    };
    let report = doctor::examine(context, config);
    vec![
        ("versions.json", pretty(versions())),
        ("settings.txt", settings()),
        ("config.toml", configuration(config)),
        ("doctor.json", pretty(json!(report))),
        ("status.json", asked(Request::Status)),
        ("policy.json", asked(Request::Policy)),
        (
            "sessions.json",
            asked(Request::Sessions(Listing::default())),
        ),
        ("log.txt", log()),
    ]
}

fn answers(context: &Context, request: &Request) -> Result<Vec<Reply>, CliError> {
    let mut client = context.ask(request)?;
    let mut all = Vec::new();
    loop {
        let reply = client.reply()?;
        let ends = reply.is_final();
        all.push(reply);
        if ends {
            return Ok(all);
        }
    }
}

fn versions() -> Value {
    let kernel = nix::sys::utsname::uname().ok();
    let word = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
    json!({
        "dyscoctl": env!("CARGO_PKG_VERSION"),
        "kernel": kernel.as_ref().map(|k| word(k.release())),
        "built": kernel.as_ref().map(|k| word(k.version())),
        "machine": kernel.as_ref().map(|k| word(k.machine())),
        "system": fs::read_to_string("/etc/os-release").ok(),
    })
}

fn settings() -> String {
    let line = |name: &&str| {
        let value = fs::read_to_string(Path::new("/proc/sys").join(name));
        let value = value.unwrap_or_else(|error| format!("({error})"));
        format!("{name} = {}\n", value.trim())
    };
    SETTINGS.iter().map(line).collect()
}

/// Returns the values in use instead of the file, whose comments may be private.
fn configuration(path: &Path) -> String {
    let config = match Config::without_keys(path) {
        Ok(config) => config.to_toml(),
        Err(error) => return format!("# {error}\n"),
    };
    match config {
        Ok(text) => text.lines().map(without_secret).collect(),
        Err(error) => format!("# {error}\n"),
    }
}

/// Returns a line of TOML without its value if that may be a secret.
fn without_secret(line: &str) -> String {
    match line.split_once('=') {
        Some((key, _)) if SECRETS.iter().any(|s| key.to_lowercase().contains(s)) => {
            format!("{key}= \"(left out)\"\n")
        }
        _ => format!("{line}\n"),
    }
}

/// Returns the part of dyscod's log that the systemd journal has.
fn log() -> String {
    let mut journal = Command::new("journalctl");
    journal.args(["--unit", "dyscod", "--no-pager", "--lines", LINES]);
    match journal.output() {
        Ok(done) if done.status.success() => String::from_utf8_lossy(&done.stdout).into_owned(),
        Ok(done) => format!("({})\n", String::from_utf8_lossy(&done.stderr).trim()),
        Err(error) => format!("(no journal: {error})\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use dysco_pki::IssueRequest;

    use super::*;
    use crate::output::Format;

    #[test]
    fn no_key_and_no_secret_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (authority, keys) = (dir.path().join("authority"), dir.path().join("pki"));
        dysco_pki::init(&authority).unwrap();
        dysco_pki::issue(&IssueRequest {
            dir: authority.clone(),
            name: "host".into(),
            addresses: vec![[127, 0, 0, 1].into()],
            out: keys.clone(),
            days: 1,
        })
        .unwrap();
        let config = dir.path().join("dyscod.toml");
        let text = format!(
            "# our password is hunter2\n[host]\naddresses = [\"127.0.0.1\"]\n\
             [control]\npki_dir = {keys:?}\n"
        );
        fs::write(&config, text).unwrap();
        let out = dir.path().join("report");
        let context = Context::new(Some(dir.path().join("none.sock")), Format::Json);
        let args = Args {
            config,
            out: out.clone(),
        };
        run(&context, &args).unwrap();
        // Any line of a key would do.
        let key = [&keys, &authority].map(|dir| {
            let name = if dir == &keys { "host.key" } else { "ca.key" };
            fs::read_to_string(dir.join(name)).unwrap()
        });
        let lines: Vec<&str> = key.iter().flat_map(|key| key.lines()).collect();
        assert!(lines.len() > 4);
        let mut all = String::new();
        for file in fs::read_dir(&out).unwrap() {
            let file = file.unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
            all += &fs::read_to_string(file.path()).unwrap();
        }
        assert!(
            all.contains("host.key") && all.contains("findings"),
            "{all}"
        );
        assert!(!all.contains("hunter2"), "{all}");
        assert!(lines.iter().all(|line| !all.contains(line)), "{all}");
        // A second run overwrites nothing.
        assert!(run(&context, &args).is_err());
    }

    #[test]
    fn a_value_with_a_telling_name_is_left_out() {
        assert_eq!(
            without_secret("bearer_token = \"abc\""),
            "bearer_token = \"(left out)\"\n"
        );
        assert_eq!(without_secret("port = 7474"), "port = 7474\n");
    }
}

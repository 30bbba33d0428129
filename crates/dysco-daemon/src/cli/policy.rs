//! `dyscoctl policy`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::context::Context;
use super::exit::{CliError, Exit};
use super::output::{addresses, section, table};
use crate::api::{Explained, PolicyReport, Reply, Request};
use crate::policy::{Policy, PolicyError};

/// Arguments of `policy`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The rules in force, and which of their hosts are not there
    List,
    /// Put a file in force, in the place of dyscod's policy; without, read
    /// dyscod's policy again
    Apply {
        /// The file
        file: Option<PathBuf>,
    },
    /// Is this file a policy; nothing is changed
    Check {
        /// The file
        file: PathBuf,
    },
    /// What would become of a session, and why
    Explain {
        /// Who would open it: an address, or with a port
        source: Endpoint,
        /// To whom: an address with a port
        destination: SocketAddr,
    },
}

/// An address, with or without a port.
#[derive(Clone, Copy, Debug)]
struct Endpoint(SocketAddr);

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let alone = s.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 1));
        let with_port = s.parse::<SocketAddr>();
        alone
            .or(with_port)
            .map(Endpoint)
            .map_err(|_| format!("'{s}' is no address: write 10.0.0.1 or 10.0.0.1:1234"))
    }
}

/// Looks at the policy, or changes it.
pub fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    match args.command {
        Command::List => list(context, &Request::Policy),
        Command::Apply { file } => {
            let text = file.as_ref().map(read).transpose()?;
            if let (Some(file), Some(text)) = (&file, &text) {
                // Its places are in this file, not in the daemon's.
                Policy::parse(file, text)?;
            }
            list(context, &Request::PolicyApply { text })
        }
        Command::Check { file } => {
            let policy = Policy::parse(&file, &read(&file)?)?;
            let rules = policy.rules.len();
            let value = json!({ "file": file, "rules": rules });
            context.print(&value, |_| format!("{} rules, all right", rules))?;
            Ok(Exit::Done)
        }
        Command::Explain {
            source,
            destination,
        } => {
            let source = source.0;
            let mut client = context.ask(&Request::PolicyExplain {
                source,
                destination,
            })?;
            let Reply::Explained(explained) = client.reply()? else {
                return Err(CliError::Unexpected);
            };
            context.print(&explained, |e: &Explained| {
                format!("{}: {}", e.verdict, e.text)
            })?;
            Ok(Exit::Done)
        }
    }
}

fn read(file: &PathBuf) -> Result<String, PolicyError> {
    std::fs::read_to_string(file).map_err(|source| PolicyError::File {
        what: "read",
        path: file.clone(),
        source,
    })
}

fn list(context: &Context, request: &Request) -> Result<Exit, CliError> {
    let mut client = context.ask(request)?;
    let Reply::Policy(report) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&report, text)?;
    Ok(Exit::Done)
}

fn text(report: &PolicyReport) -> String {
    let mut rules = table([
        "RULE",
        "SOURCE",
        "DESTINATION",
        "PORTS",
        "CHAIN",
        "OTHERWISE",
        "MISSING",
    ]);
    for rule in &report.rules {
        let otherwise = format!("{:?}", rule.otherwise).to_lowercase();
        rules.add_row([
            rule.name.clone(),
            rule.source.clone(),
            rule.destination.clone(),
            rule.ports.clone(),
            addresses(&rule.chain),
            otherwise,
            addresses(&rule.missing),
        ]);
    }
    let error = report
        .error
        .as_ref()
        .map(|e| format!("not in force: {e}\n"));
    format!(
        "{}{}{}",
        report.file.display(),
        error.map(|e| format!("\n{e}")).unwrap_or_default(),
        section("Rules", &rules)
    )
}

//! `dyscoctl state`.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use dysco_api::{
    AboutState, Exit, HostName, InstallState, MoveState, Reply, Request, SessionName,
    StateInstalled, StateKind, StateReport,
};
use serde_json::Value;

use super::context::{Context, PATIENCE, print_line};
use super::exit::CliError;
use super::output::{list, rendered, section, table};

/// Arguments of `state`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the state that this host's firewall has of a session
    Show(About),
    /// Print that state as documents for 'install' on another host
    Export(About),
    /// Install state that another host has exported: all of it, or nothing
    ///
    /// A second install updates what is there.
    Install {
        /// The session that the documents must describe: its id, or SOURCE>DESTINATION
        #[arg(value_name = "SESSION")]
        session: SessionName,
        /// The output of 'export'; - for standard input
        file: PathBuf,
        /// Print whether it could be installed; change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Copy the state of a session from one host's firewall to another's
    ///
    /// Run it on a host that has an end of the session. Both firewalls run dyscod. The old one
    /// keeps its state.
    Move {
        #[command(flatten)]
        about: About,
        /// The host that has the state
        #[arg(long, value_name = "HOST")]
        from: HostName,
        /// The host that gets the state
        #[arg(long, value_name = "HOST")]
        to: HostName,
        /// Print whether it could be installed; change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove the state of a session: its entries, and set elements that no other session uses
    Remove(About),
}

/// Selection of a session and of kinds of state.
#[derive(Debug, clap::Args)]
struct About {
    /// Its id as 'dyscoctl sessions' lists it, or SOURCE>DESTINATION
    #[arg(value_name = "SESSION")]
    session: SessionName,
    /// Only this kind; may be repeated
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<StateKind>,
}

impl From<About> for AboutState {
    fn from(about: About) -> AboutState {
        AboutState {
            session: about.session,
            kinds: about.kinds,
        }
    }
}

/// Shows, exports, installs, moves or removes firewall state of a session.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    match args.command {
        Command::Show(about) => {
            let report = export(context, about)?;
            context.print(&report, shown)?;
        }
        Command::Export(about) => {
            let report = export(context, about)?;
            print_line(&serde_json::to_string_pretty(&report.documents)?)?;
        }
        Command::Install {
            session,
            file,
            dry_run,
        } => {
            let request = Request::InstallState(InstallState {
                session,
                documents: read(&file)?,
                dry_run,
            });
            match context.ask(&request)?.reply()? {
                Reply::StateInstalled(report) => context.print(&report, installed)?,
                _ => return Err(CliError::Unexpected),
            }
        }
        Command::Move {
            about,
            from,
            to,
            dry_run,
        } => {
            let request = Request::MoveState(MoveState {
                session: about.session,
                from,
                to,
                kinds: about.kinds,
                dry_run,
            });
            let mut client = context.ask(&request)?;
            client.set_patience(Some(2 * PATIENCE))?;
            match client.reply()? {
                Reply::StateInstalled(report) => context.print(&report, installed)?,
                _ => return Err(CliError::Unexpected),
            }
        }
        Command::Remove(about) => {
            let reply = context.ask(&Request::RemoveState(about.into()))?.reply()?;
            let Reply::StateRemoved { removed } = reply else {
                return Err(CliError::Unexpected);
            };
            let report = serde_json::json!({ "removed": removed });
            context.print(&report, |_| format!("{removed} removed"))?;
        }
    }
    Ok(Exit::Done)
}

fn export(context: &Context, about: About) -> Result<StateReport, CliError> {
    match context.ask(&Request::ExportState(about.into()))?.reply()? {
        Reply::State(report) => Ok(report),
        _ => Err(CliError::Unexpected),
    }
}

fn read(path: &Path) -> Result<Value, CliError> {
    let mut text = String::new();
    let done = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(path).map(|read| text = read)
    };
    let path = || path.to_owned();
    done.map_err(|source| CliError::Read {
        path: path(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|source| CliError::NoJson {
        path: path(),
        source,
    })
}

fn shown(report: &StateReport) -> String {
    let documents = report.documents.as_array().map_or(&[][..], Vec::as_slice);
    if documents.is_empty() {
        return format!("this host's firewall knows nothing of {}", report.session);
    }
    let mut text = String::new();
    for document in documents {
        let five_tuple = |name: &str| {
            let end = |end: &str| word(&document[name][end]);
            format!("{} > {}", end("source"), end("destination"))
        };
        let mut rows = list([
            ("session", five_tuple("session")),
            ("translated", five_tuple("translated")),
        ]);
        for (name, value) in document["state"].as_object().into_iter().flatten() {
            rows.add_row([name.clone(), word(value)]);
        }
        text += &section(&word(&document["kind"]), &rows);
    }
    text
}

/// Returns a value for one cell.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("{name} {}", word(value));
            fields.iter().map(field).collect::<Vec<_>>().join(", ")
        }
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(" . "),
        other => other.to_string(),
    }
}

fn installed(report: &StateInstalled) -> String {
    let StateInstalled {
        dry_run,
        documents,
        new,
        updated,
    } = report;
    if *dry_run {
        return format!("{documents} documents could be installed; nothing was changed");
    }
    let mut rows = table(["DOCUMENTS", "NEW", "UPDATED"]);
    rows.add_row([documents, new, updated].map(usize::to_string));
    rendered(&rows)
}

//! `dyscoctl namespaces`, and the choice of the `dyscod` that serves a network namespace.

use dysco_api::{
    Client, Exit, NamespaceReport, NamespaceState, ProcessName, Reply, Request, StatusReport,
};
use dysco_explain::Cause;
use dysco_proxy::ProcessError;
use dysco_proxy::outside::ProxySockets;
use serde::Serialize;

use super::context::Context;
use super::exit::CliError;
use super::output::{number, or_dash, rendered, table};

/// A namespace, and what its own `dyscod` tells.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    report: NamespaceReport,
    /// Number of sessions that have not ended; none if its dyscod does not answer.
    sessions: Option<u64>,
}

/// Lists the network namespaces that the daemon serves besides its own.
pub(crate) fn run(context: &Context) -> Result<Exit, CliError> {
    let row = |report: NamespaceReport| {
        let status = context.at(&report).and_then(|inner| inner.status());
        Row {
            sessions: status.map(|status| status.sessions.live),
            report,
        }
    };
    let rows: Vec<Row> = context.namespaces()?.into_iter().map(row).collect();
    context.print(&rows, |rows| text(rows))?;
    Ok(Exit::Done)
}

fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "this dyscod serves its own network namespace alone ([host] namespaces)".into();
    }
    let mut listed = table(["NAME", "INODE", "STATE", "PID", "SESSIONS", "SOCKET", "WHY"]);
    for Row { report, sessions } in rows {
        let state = match (report.state, sessions) {
            (NamespaceState::Running, None) => "starting",
            (state, _) => state.words(),
        };
        listed.add_row([
            report.name.clone(),
            report.inode.to_string(),
            state.to_owned(),
            or_dash(report.pid.map(|pid| pid.to_string())),
            or_dash(sessions.map(number)),
            report.socket.display().to_string(),
            or_dash(report.why.as_ref().map(ToString::to_string)),
        ]);
    }
    rendered(&listed)
}

/// A listing's source: the `dyscod` that is asked, or the instance of a namespace.
pub(crate) struct Origin {
    /// Name of the namespace; none for the own one.
    pub namespace: Option<String>,
    /// Context that asks there.
    pub context: Context,
}

impl Context {
    /// Returns the network namespaces that the daemon serves besides its own.
    pub(crate) fn namespaces(&self) -> Result<Vec<NamespaceReport>, CliError> {
        match self.ask(&Request::Namespaces)?.reply()? {
            Reply::Namespaces { namespaces } => Ok(namespaces),
            _ => Err(CliError::Unexpected),
        }
    }

    /// Returns the daemon, and each instance of it that answers.
    pub(crate) fn origins(&self) -> Result<Vec<Origin>, CliError> {
        let mut origins = vec![Origin {
            namespace: None,
            context: self.clone(),
        }];
        for report in self.namespaces()? {
            let inner = self.at(&report);
            // One that starts answers soon.
            let answers = inner.filter(|inner| Client::connect(&inner.socket).is_ok());
            origins.extend(answers.map(|context| Origin {
                namespace: Some(report.name),
                context,
            }));
        }
        Ok(origins)
    }

    /// Returns the context that asks the instance of the network namespace with this name.
    pub(crate) fn in_namespace(&self, name: &str) -> Result<Context, CliError> {
        let refused = |why: Cause| CliError::Namespace {
            name: name.to_owned(),
            why,
        };
        let all = self.namespaces()?;
        let meant: Vec<_> = all.iter().filter(|report| report.is_called(name)).collect();
        match meant[..] {
            [] => Err(refused(unknown(&all))),
            [report] => self.at(report).ok_or_else(|| refused(unserved(report))),
            [..] => {
                let names: Vec<_> = meant.iter().map(|report| report.name.as_str()).collect();
                let why = Cause::new(format!("several are called so: {}", names.join(", ")));
                Err(refused(why.hint("name one of these")))
            }
        }
    }

    /// Returns the context that asks the `dyscod` which sees the sockets of a process. If they are
    /// in another network namespace than this program's, that is the instance that serves it.
    pub(crate) fn for_process(&self, name: &ProcessName) -> Result<Context, CliError> {
        let Err(ProcessError::Elsewhere(process)) = ProxySockets::look(name, None) else {
            return Ok(self.clone());
        };
        let all = self.namespaces()?;
        let inode = process.network();
        let there = all.iter().find(|report| Some(report.inode) == inode);
        // The daemon tells that it does not see the process.
        Ok(there
            .and_then(|there| self.at(there))
            .unwrap_or_else(|| self.clone()))
    }

    /// Returns the context that asks the instance of a namespace, if it runs.
    fn at(&self, report: &NamespaceReport) -> Option<Context> {
        (report.state == NamespaceState::Running).then(|| Context {
            socket: report.socket.clone(),
            named: true,
            ..self.clone()
        })
    }

    fn status(&self) -> Option<StatusReport> {
        let mut client = self.ask(&Request::Status).ok()?;
        match client.reply().ok()? {
            Reply::Status(status) => Some(*status),
            _ => None,
        }
    }
}

fn unknown(all: &[NamespaceReport]) -> Cause {
    let why = "dyscod serves no such network namespace";
    let names: Vec<_> = all.iter().map(|report| report.name.as_str()).collect();
    match names.is_empty() {
        true => Cause::new(why).hint("name it under namespaces in [host]"),
        false => Cause::new(why).hint(format!("name one of these: {}", names.join(", "))),
    }
}

fn unserved(report: &NamespaceReport) -> Cause {
    match &report.why {
        Some(why) => why.clone(),
        None => Cause::new(format!("its state is '{}'", report.state.words()))
            .hint("see 'dyscoctl namespaces'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: NamespaceState, sessions: Option<u64>) -> Row {
        Row {
            report: NamespaceReport {
                name: "docker:0123456789ab".into(),
                inode: 4_026_532_000,
                bound: None,
                container: None,
                pod: None,
                state,
                pid: Some(7),
                socket: "/run/dysco/ns/4026532000/dyscod.sock".into(),
                why: None,
            },
            sessions,
        }
    }

    #[test]
    fn an_instance_that_does_not_answer_yet_starts() {
        let text = |state, sessions| text(&[row(state, sessions)]);
        assert!(text(NamespaceState::Running, None).contains("starting"));
        let running = text(NamespaceState::Running, Some(1234));
        assert!(
            running.contains("running") && running.contains("1,234"),
            "{running}"
        );
        assert!(text(NamespaceState::Failed, None).contains("failed"));
        assert!(super::text(&[]).contains("[host] namespaces"));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let all = [row(NamespaceState::Running, None).report];
        assert!(unknown(&all).to_string().contains("docker:0123456789ab"));
        assert!(unknown(&[]).to_string().contains("[host]"));
        let mut report = row(NamespaceState::OtherDyscod, None).report;
        assert!(unserved(&report).why.contains("other dyscod"));
        report.why = Some(Cause::new("process 7 is a dyscod of its own there"));
        assert!(unserved(&report).why.contains("process 7"));
    }
}

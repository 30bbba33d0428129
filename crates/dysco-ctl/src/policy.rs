//! `dyscoctl policy`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use dysco_api::{
    ClientError, Exit, Explained, Failure, FailureCode, PolicyReport, Reply, Request, RuleReport,
};
use dysco_config::policy::{Policy, PolicyError};
use dysco_explain::Cause;
use serde_json::json;

use super::context::Context;
use super::exit::CliError;
use super::output::{listed, section, table};
use super::publish;

/// Arguments of `policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the rules in force, and unreachable hosts in their chains
    List,
    /// Put a policy file into force; without FILE, read the current one again
    Apply {
        /// The file
        file: Option<PathBuf>,
    },
    /// Publish a policy file in etcd, for all hosts of the fleet
    Publish {
        /// The file
        file: PathBuf,
    },
    /// Check a policy file; change nothing
    Check {
        /// The file
        file: PathBuf,
    },
    /// Show which rule a session would match, and its chain
    Explain {
        /// The source: an address, or an address and port
        source: Endpoint,
        /// The destination: an address and port
        destination: Destination,
        /// User whose program would open the session
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// Control group of that program, as in /proc/PID/cgroup
        #[arg(long, value_name = "PATH")]
        cgroup: Option<String>,
    },
}

/// An address, with or without a port.
#[derive(Clone, Copy, Debug)]
struct Endpoint(SocketAddr);

impl std::str::FromStr for Endpoint {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let alone = s.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 1));
        let with_port = s.parse::<SocketAddr>();
        alone.or(with_port).map(Endpoint).map_err(|_| {
            Cause::new(format!("'{s}' is no address")).hint("write 10.0.0.1 or 10.0.0.1:1234")
        })
    }
}

/// An address with its port.
#[derive(Clone, Copy, Debug)]
struct Destination(SocketAddr);

impl std::str::FromStr for Destination {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        let wants = "write ADDRESS:PORT, as in 10.0.3.1:443 or [2001:db8::1]:443";
        match (s.parse(), s.parse::<IpAddr>()) {
            (Ok(address), _) => Ok(Destination(address)),
            (_, Ok(ip)) => {
                let wants = format!("write ADDRESS:PORT, as in {}", SocketAddr::new(ip, 443));
                Err(Cause::new(format!("'{s}' has no port")).hint(wants))
            }
            _ => Err(Cause::new(format!("'{s}' is no address with a port")).hint(wants)),
        }
    }
}

/// Shows, checks or changes the policy.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    match args.command {
        Command::List => list(context, &Request::Policy),
        Command::Apply { file } => {
            let text = file.as_ref().map(read).transpose()?;
            if let (Some(file), Some(text)) = (&file, &text) {
                // Places in errors refer to this file, not to the daemon's.
                Policy::parse(file, text)?;
                Policy::of_host(file, text, &own_addresses(context)?)?;
            }
            let applied = list(context, &Request::PolicyApply { text });
            match file {
                Some(file) => applied.map_err(|error| about(&file, error)),
                None => applied,
            }
        }
        Command::Publish { file } => {
            let text = read(&file)?;
            publish::run(context, &file, text)
        }
        Command::Check { file } => {
            let text = read(&file)?;
            let policy = Policy::parse(&file, &text)?;
            // The policy may be meant for another host, or no dyscod may run here. Neither is a
            // fault of the policy.
            let own = own_addresses(context).unwrap_or_default();
            let here = Policy::of_host(&file, &text, &own).map(drop);
            let here = here.map_err(|error| error.to_string()).err();
            let rules = policy.rules.len();
            let value = json!({ "file": file, "rules": rules, "refused_here": here });
            context.print(&value, |_| checked(rules, here.as_deref()))?;
            Ok(Exit::Done)
        }
        Command::Explain {
            source,
            destination,
            user,
            cgroup,
        } => {
            let mut client = context.ask(&Request::PolicyExplain {
                source: source.0,
                destination: destination.0,
                user,
                cgroup,
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

/// Returns the addresses of the host whose dyscod is asked.
fn own_addresses(context: &Context) -> Result<Vec<IpAddr>, CliError> {
    match context.ask(&Request::Status)?.reply()? {
        Reply::Status(status) => Ok(status.addresses),
        _ => Err(CliError::Unexpected),
    }
}

fn checked(rules: usize, refused_here: Option<&str>) -> String {
    let rules = match rules {
        1 => "1 rule".into(),
        rules => format!("{rules} rules"),
    };
    match refused_here {
        None => format!("{rules}, all right"),
        Some(why) => format!("{rules}, all right on other hosts; this one refuses it: {why}"),
    }
}

/// Returns the error of a dyscod that did not put this file in force. The file itself was checked
/// before it was sent, so the hint is not to check it again.
fn about(file: &Path, error: CliError) -> CliError {
    match error {
        CliError::Client(ClientError::Failure(failure)) if failure.code == FailureCode::Refused => {
            CliError::Client(ClientError::Failure(Failure {
                what: format!("put the policy of {} in force", file.display()),
                hint: "the policy before stays in force; see the log of dyscod".into(),
                ..failure
            }))
        }
        other => other,
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

/// Returns what the sessions of a rule pass: services, which run on this host, and then hosts.
fn elements(rule: &RuleReport) -> String {
    let services = rule.services.iter().map(|service| format!("+{service}"));
    let hosts = rule.chain.iter().map(ToString::to_string);
    listed(&services.chain(hosts).collect::<Vec<_>>())
}

/// Returns the programs that a rule is about, and their addresses.
fn sources(rule: &RuleReport) -> String {
    let user = rule.user.iter().map(|user| format!("user {user}"));
    let cgroup = rule.cgroup.iter().map(|path| format!("cgroup {path}"));
    let absent = rule.absent.then(|| "not on this host now".to_owned());
    let address = (rule.source != "any").then(|| rule.source.clone());
    let all: Vec<_> = user.chain(cgroup).chain(absent).chain(address).collect();
    match all.is_empty() {
        true => rule.source.clone(),
        false => all.join(", "),
    }
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
            sources(rule),
            rule.destination.clone(),
            rule.ports.clone(),
            elements(rule),
            otherwise,
            listed(&rule.missing),
        ]);
    }
    let error = report
        .error
        .as_ref()
        .map(|e| format!("not in force: {e}\n"));
    let rules = match report.rules.is_empty() {
        true => "\nno rule is in force: all sessions go direct".into(),
        false => section("Rules", &rules),
    };
    format!(
        "{}{}{rules}",
        report.file.display(),
        error.map(|e| format!("\n{e}")).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rule_is_no_rules() {
        assert_eq!(checked(1, None), "1 rule, all right");
        assert_eq!(checked(0, None), "0 rules, all right");
        assert!(checked(2, Some("why")).ends_with("this one refuses it: why"));
    }

    fn rule(user: Option<&str>, source: &str) -> RuleReport {
        RuleReport {
            name: "r".into(),
            source: source.into(),
            destination: "any".into(),
            ports: "any".into(),
            user: user.map(Into::into),
            cgroup: user.map(|_| "a.slice".into()),
            absent: user.is_some(),
            chain: Vec::new(),
            services: Vec::new(),
            missing: Vec::new(),
            otherwise: Default::default(),
        }
    }

    #[test]
    fn a_rule_lists_its_services_before_its_hosts() {
        let mut rule = rule(None, "any");
        rule.chain = vec!["10.3.0.1".parse().unwrap()];
        assert_eq!(elements(&rule), "10.3.0.1");
        rule.services = vec!["count".parse().unwrap()];
        assert_eq!(elements(&rule), "+count, 10.3.0.1");
        rule.chain.clear();
        assert_eq!(elements(&rule), "+count");
    }

    #[test]
    fn the_sources_of_a_rule_are_programs_and_addresses() {
        assert_eq!(sources(&rule(None, "any")), "any");
        assert_eq!(
            sources(&rule(Some("bob"), "10.0.0.0/8")),
            "user bob, cgroup a.slice, not on this host now, 10.0.0.0/8"
        );
    }

    #[test]
    fn a_destination_has_a_port() {
        let reported = |s: &str| s.parse::<Destination>().unwrap_err().to_string();
        assert!(reported("10.0.3.1").ends_with("write ADDRESS:PORT, as in 10.0.3.1:443"));
        assert!(reported("fd00::1").ends_with("as in [fd00::1]:443"));
        assert!(reported("server").contains("write ADDRESS:PORT"));
        assert!("[fd00::1]:80".parse::<Destination>().is_ok());
    }

    #[test]
    fn a_policy_without_rules_says_so() {
        let report = PolicyReport {
            file: "/etc/dysco/policy.toml".into(),
            of_fleet: false,
            error: None,
            rules: Vec::new(),
        };
        let reported = text(&report);
        let expected = "/etc/dysco/policy.toml\nno rule is in force: all sessions go direct";
        assert_eq!(reported, expected);
    }

    #[test]
    fn a_refusal_names_the_file_that_was_given() {
        let refused = |code| {
            CliError::Client(ClientError::Failure(Failure {
                code,
                what: "put the policy in force".into(),
                why: "cannot write it".into(),
                hint: "try the file with 'dyscoctl policy check'".into(),
            }))
        };
        let reported = about(Path::new("p3.toml"), refused(FailureCode::Refused)).to_string();
        assert!(
            reported.contains("p3.toml") && reported.contains("cannot write it"),
            "{reported}"
        );
        assert!(!reported.contains("policy check"), "{reported}");
        let other = about(Path::new("p3.toml"), refused(FailureCode::NotAllowed));
        assert!(!other.to_string().contains("p3.toml"), "{other}");
    }
}

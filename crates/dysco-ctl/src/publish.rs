//! `dyscoctl policy publish`: writes the policy of a fleet to etcd, and waits for its hosts.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dysco_api::{
    ClientError, Exit, Failure, FleetHost, FleetReport, PublishReport, Reply, Request,
};
use dysco_config::policy::Policy;
use serde::Serialize;

use super::context::Context;
use super::exit::CliError;

/// Time that the hosts have to put the policy in force.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the hosts' entries are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The policy on the hosts of the fleet.
#[derive(Debug, PartialEq, Serialize)]
struct Spread {
    key: String,
    revision: i64,
    /// Names of the hosts that have it in force.
    in_force: Vec<String>,
    refused: Vec<RefusedBy>,
    /// Names of the hosts that have not answered.
    waiting: Vec<String>,
}

/// A host that has refused the policy.
#[derive(Debug, PartialEq, Serialize)]
struct RefusedBy {
    host: String,
    why: String,
}

/// Publishes a file.
pub(crate) fn run(context: &Context, file: &Path, text: String) -> Result<Exit, CliError> {
    // Places in errors refer to this file, not to the key.
    Policy::parse(file, &text)?;
    let published = match context.ask(&Request::PolicyPublish { text })?.reply() {
        Ok(Reply::Published(published)) => published,
        Ok(_) => return Err(CliError::Unexpected),
        Err(ClientError::Failure(failure)) => return Err(about(file, failure)),
        Err(error) => return Err(error.into()),
    };
    let began = Instant::now();
    let spread = loop {
        let Reply::Status(status) = context.ask(&Request::Status)?.reply()? else {
            return Err(CliError::Unexpected);
        };
        let spread = spread(&published, status.fleet.as_ref());
        if spread.waiting.is_empty() || began.elapsed() > PATIENCE {
            break spread;
        }
        sleep(LOOK);
    };
    context.print(&spread, words)?;
    Ok(exit(&spread))
}

fn about(file: &Path, failure: Failure) -> CliError {
    CliError::Client(ClientError::Failure(Failure {
        what: format!("publish the policy of {}", file.display()),
        ..failure
    }))
}

/// Returns which of the registered hosts have the policy, or a later one, in force.
fn spread(published: &PublishReport, fleet: Option<&FleetReport>) -> Spread {
    let revision = published.revision;
    let mut spread = Spread {
        key: published.key.clone(),
        revision,
        in_force: Vec::new(),
        refused: Vec::new(),
        waiting: Vec::new(),
    };
    for host in fleet.iter().flat_map(|fleet| &fleet.hosts) {
        let FleetHost {
            name: host,
            policy,
            refused,
            ..
        } = host.clone();
        match refused.filter(|refused| refused.revision >= revision) {
            Some(refused) => spread.refused.push(RefusedBy {
                host,
                why: refused.why,
            }),
            None if policy.is_some_and(|policy| policy >= revision) => spread.in_force.push(host),
            None => spread.waiting.push(host),
        }
    }
    spread
}

fn exit(spread: &Spread) -> Exit {
    match (spread.refused.is_empty(), spread.waiting.is_empty()) {
        (true, true) => Exit::Done,
        (false, _) => Exit::Refused,
        (true, false) => Exit::TimedOut,
    }
}

fn words(spread: &Spread) -> String {
    let hosts = match spread.in_force.len() {
        1 => "1 host".to_owned(),
        n => format!("{n} hosts"),
    };
    let mut lines = vec![format!(
        "published as revision {} of {}; in force on {hosts}",
        spread.revision, spread.key
    )];
    let refused = spread.refused.iter();
    lines.extend(refused.map(|RefusedBy { host, why }| format!("{host} has refused it: {why}")));
    if !spread.waiting.is_empty() {
        let names = spread.waiting.join(", ");
        lines.push(format!(
            "not in force yet: {names}; see 'dyscoctl status' there"
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use dysco_api::RefusedPolicy;

    use super::*;

    fn host(name: &str, policy: Option<i64>, refused: Option<i64>) -> FleetHost {
        FleetHost {
            name: name.into(),
            addresses: Vec::new(),
            policy,
            refused: refused.map(|revision| RefusedPolicy {
                revision,
                why: "a chain is too long".into(),
            }),
        }
    }

    fn of(hosts: Vec<FleetHost>) -> Spread {
        let published = PublishReport {
            key: "etcd:/dysco/policy".into(),
            revision: 7,
        };
        let fleet = FleetReport {
            hosts,
            ..FleetReport::default()
        };
        spread(&published, Some(&fleet))
    }

    #[test]
    fn a_host_that_is_left_behind_is_in_the_exit_code() {
        let all = of(vec![host("a", Some(7), None), host("b", Some(8), None)]);
        assert_eq!(exit(&all), Exit::Done);
        assert!(words(&all).ends_with("revision 7 of etcd:/dysco/policy; in force on 2 hosts"));
        // It has refused an earlier one, and has not seen this one.
        let slow = of(vec![host("a", Some(7), None), host("b", Some(5), Some(6))]);
        assert_eq!(
            (exit(&slow), slow.waiting.as_slice()),
            (Exit::TimedOut, &["b".to_owned()][..])
        );
        let refused = of(vec![host("a", None, None), host("b", Some(5), Some(7))]);
        assert_eq!(exit(&refused), Exit::Refused);
        let words = words(&refused);
        assert!(
            words.contains("b has refused it: a chain is too long"),
            "{words}"
        );
        assert!(words.contains("not in force yet: a"), "{words}");
    }
}

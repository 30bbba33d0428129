//! What `dyscod` would start with: the configuration, keys, policy, and where it pins.

use std::path::Path;

use super::Finding;
use crate::cli::daemon::{can_listen, can_pin, missing_socket};
use crate::cli::exit::CliError;
use crate::cli::output::addresses;
use crate::config::{Config, ConfigError, Interface, Removal, strict_reverse_path};
use crate::policy::Policy;

/// Keys that end sooner are to be issued anew.
const SOON_DAYS: i64 = 30;
/// What the kernel chooses ports from, for connections that do not ask for one.
const OWN_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Looks at the file, and at all that it names.
pub fn examine(path: &Path, config: &Result<Config, CliError>) -> Vec<Finding> {
    let config = match config {
        Ok(config) => config,
        Err(error) => return vec![unusable(error)],
    };
    let host = &config.host;
    let names: Vec<_> = host.interfaces.iter().map(|i| i.name.as_str()).collect();
    let found = format!(
        "{}: {} on {}",
        path.display(),
        addresses(&host.addresses),
        names.join(", ")
    );
    let mut findings = vec![Finding::well("configuration", found), keys(config)];
    findings.push(policy(config));
    let pins = &config.data_plane.pin_dir;
    findings.push(match can_pin(pins) {
        Ok(()) => Finding::well("pins", pins.display().to_string()),
        Err(error) => Finding::of("pins", &error),
    });
    findings.extend(
        can_listen(&config.control)
            .err()
            .map(|e| Finding::of("control", &e)),
    );
    let missing = config.listeners.iter().filter_map(missing_socket);
    findings.extend(missing.map(|line| {
        let (found, mend) = line.split_once("; ").unwrap_or((&line, ""));
        Finding::doubtful("listener", found, mend)
    }));
    let own = std::fs::read_to_string(OWN_PORTS).unwrap_or_default();
    findings.extend(ports(&config.removal, &own));
    findings.extend(reverse_paths(&host.interfaces));
    findings
}

fn unusable(error: &CliError) -> Finding {
    let about = match error {
        CliError::Config(ConfigError::Pki(_)) => "keys",
        _ => "configuration",
    };
    Finding::of(about, error)
}

fn keys(config: &Config) -> Finding {
    let days = match config.credentials() {
        Ok(credentials) => credentials.days_left(),
        Err(error) => return Finding::of("keys", &error.into()),
    };
    let path = config.control.pki.cert.display();
    match days {
        ..SOON_DAYS => Finding::doubtful(
            "keys",
            format!("{path} or its authority ends in {days} days"),
            "issue others with 'dyscoctl pki issue', and start dyscod anew",
        ),
        days => Finding::well("keys", format!("{path}: valid for {days} days")),
    }
}

fn policy(config: &Config) -> Finding {
    let path = &config.chain.policy;
    match Policy::load(path, &config.host.addresses) {
        Ok(None) => Finding::well("policy", "none: no session is given a chain as it opens"),
        Ok(Some(policy)) => {
            let count = policy.rules.len();
            Finding::well("policy", format!("{}: {count} rules", path.display()))
        }
        Err(error) => Finding::of("policy", &error.into()),
    }
}

/// Would the kernel hand out the ports of new paths? `own` are its own two bounds.
fn ports(removal: &Removal, own: &str) -> Option<Finding> {
    let mut bounds = own.split_whitespace().map(str::parse::<u16>);
    let (Some(Ok(first)), Some(Ok(last))) = (bounds.next(), bounds.next()) else {
        return None;
    };
    let ours = removal.ports;
    let overlap = first <= ours.last && ours.first <= last;
    (overlap && !removal.reserve_ports).then(|| {
        Finding::doubtful(
            "ports",
            format!("the kernel hands out {first} to {last}, and new paths have ports of these"),
            "set reserve_ports = true under [removal], or other ports",
        )
    })
}

/// Matters only where sessions pass several interfaces.
fn reverse_paths(interfaces: &[Interface]) -> Option<Finding> {
    let strict = strict_reverse_path(interfaces);
    let names: Vec<_> = strict.iter().map(|i| i.name.as_str()).collect();
    let first = names.first().filter(|_| interfaces.len() > 1)?;
    Some(Finding::doubtful(
        "interfaces",
        format!(
            "reverse paths are strict on {} (rp_filter 1): a proxy stays in a session whose \
             other path comes by another interface",
            names.join(", ")
        ),
        format!("'sysctl net.ipv4.conf.{first}.rp_filter=2', if such paths are wanted"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Mode, PortRange};

    fn removal(reserve_ports: bool) -> Removal {
        Removal {
            automatic: false,
            mode: Mode::Auto,
            relay_idle: Default::default(),
            timeout: Default::default(),
            concurrency: 1,
            ports: PortRange {
                first: 61_000,
                last: 64_999,
            },
            reserve_ports,
            state_dir: "/none".into(),
        }
    }

    #[test]
    fn ports_that_the_kernel_hands_out_are_told_unless_they_are_reserved() {
        for (own, told) in [
            ("32768\t60999\n", false),
            ("32768\t61000\n", true),
            ("1024\t65535\n", true),
            ("65000\t65535\n", false),
            ("", false),
        ] {
            assert_eq!(ports(&removal(false), own).is_some(), told, "{own:?}");
            assert_eq!(ports(&removal(true), own), None);
        }
    }

    #[test]
    fn keys_and_the_rest_of_a_configuration_are_told_apart() {
        let missing = Config::load("/none".as_ref()).map_err(CliError::from);
        let found = examine("/none".as_ref(), &missing);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].about, "configuration");
        assert_eq!(found[0].mend, "name another with --config");
    }
}

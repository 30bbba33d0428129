//! Checks of the files that `dyscod` would start with: the configuration, keys, policy and the
//! directory for pins.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use dysco_agent::refuse_others;
use dysco_api::KeysReport;
use dysco_config::policy::Policy;
use dysco_config::{
    Config, ConfigError, Host, Interface, Namespaces, PkiPaths, PortRange, Removal, can_enter,
    can_listen, can_pin, missing_socket, strict_reverse_path,
};

use super::Finding;
use crate::exit::CliError;
use crate::output::listed;

/// Kernel's list of the ports that it assigns to no connection.
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Examines the file and everything that it names.
pub(super) fn examine(path: &Path, config: &Result<Config, CliError>) -> Vec<Finding> {
    let config = match config {
        Ok(config) => config,
        Err(error) => return vec![unusable(error)],
    };
    let host = &config.host;
    let names: Vec<_> = host.interfaces.iter().map(|i| i.name.as_str()).collect();
    let found = format!(
        "{}: {} on {}",
        path.display(),
        listed(&host.addresses),
        names.join(", ")
    );
    let mut findings = vec![Finding::well("configuration", found), keys(config)];
    findings.push(policy(config));
    findings.push(pins(&config.data_plane.pin_dir));
    let listens = can_listen(&config.control);
    findings.extend(listens.err().map(|e| {
        let found = Finding::of("control", &e.into()).found;
        Finding::ill(
            "control",
            found,
            "have listen under [control] name this host",
        )
    }));
    let missing = config.listeners.iter().filter_map(missing_socket);
    findings.extend(missing.map(|cause| Finding::of_cause("listener", cause)));
    findings.extend(ports(&config.removal, &Ports::read()));
    findings.extend(host.namespaces.iter().flat_map(namespaces));
    findings.extend(without_ethernet(host));
    findings.extend(reverse_paths(host));
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
    match config.credentials() {
        Ok(credentials) => valid(&config.control.pki, credentials.days_left()),
        Err(error) => Finding::of("keys", &error.into()),
    }
}

/// Returns a finding about the remaining validity, in days, of the authority's certificate and
/// the host's.
fn valid(paths: &PkiPaths, [ca, host]: [i64; 2]) -> Finding {
    let ends = |path: &Path, days| format!("{} ends in {days} days", path.display());
    if ca < KeysReport::SOON_DAYS {
        let hint = "make another authority with 'dyscoctl pki init', and issue the keys of all \
                    its hosts anew";
        return Finding::expiring("keys", ends(&paths.ca, ca), hint);
    }
    if host < KeysReport::SOON_DAYS {
        let hint = "issue another with 'dyscoctl pki issue', copy it here, and run \
                    'dyscoctl reload'";
        return Finding::expiring("keys", ends(&paths.cert, host), hint);
    }
    Finding::well("keys", ends(&paths.cert, host))
}

/// Returns findings about the other network namespaces that are served.
fn namespaces(served: &Namespaces) -> Vec<Finding> {
    let about = "namespaces";
    match can_enter(served) {
        Err(error) => vec![Finding::of(about, &error.into())],
        Ok(missing) if missing.is_empty() => {
            let found = match served {
                Namespaces::All => "configured: all that have a process or a name".to_owned(),
                Namespaces::Listed(names) => format!("configured: {}", names.join(", ")),
            };
            vec![Finding::well(about, found)]
        }
        Ok(missing) => { missing.into_iter() }
            .map(|cause| Finding::of_cause(about, cause))
            .collect(),
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

fn pins(dir: &Path) -> Finding {
    if let Err(error) = can_pin(dir) {
        return Finding::of("pins", &error.into());
    }
    match refuse_others(dir) {
        Ok(()) => Finding::well("pins", dir.display().to_string()),
        Err(error) => Finding::of_agent("pins", &error, "name another pin_dir"),
    }
}

/// The kernel's settings for ports of connections that request none.
struct Ports {
    /// First and last port.
    range: String,
    /// Ports that the kernel does not assign: `7,61000-64999`.
    reserved: String,
    /// True if further ports can be reserved.
    writable: bool,
}

impl Ports {
    fn read() -> Ports {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Ports {
            range: read("/proc/sys/net/ipv4/ip_local_port_range"),
            reserved: read(RESERVED),
            writable: fs::OpenOptions::new().write(true).open(RESERVED).is_ok(),
        }
    }

    /// Returns true if all of these ports are reserved.
    fn has_reserved(&self, ours: PortRange) -> bool {
        let bounds = |part: &str| -> Option<(u16, u16)> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        };
        let all: Vec<_> = self.reserved.split(',').filter_map(bounds).collect();
        let is_in = |port| {
            all.iter()
                .any(|(first, last)| (*first..=*last).contains(&port))
        };
        (ours.first..=ours.last).all(is_in)
    }

    /// Returns true if the kernel may assign one of these ports.
    fn chooses(&self, ours: PortRange) -> bool {
        let bounds = self.range.split_whitespace().map(str::parse::<u16>);
        match bounds.flatten().collect::<Vec<_>>()[..] {
            [first, last] => first <= ours.last && ours.first <= last,
            _ => false,
        }
    }
}

/// Returns a finding if the kernel would assign the ports of new paths, or if `dyscod` could not
/// reserve them.
fn ports(removal: &Removal, kernel: &Ports) -> Option<Finding> {
    let ours = removal.ports;
    if kernel.has_reserved(ours) {
        return None;
    }
    let range = format!("{}-{}", ours.first, ours.last);
    let set = format!("'sysctl net.ipv4.ip_local_reserved_ports={range}' beside what it has");
    match removal.reserve_ports {
        true if kernel.writable => None,
        true => Some(Finding::ill(
            "ports",
            format!("the ports of new paths cannot be reserved: {RESERVED} cannot be written"),
            format!("{set}, from outside, and reserve_ports = false under [removal]"),
        )),
        false => kernel.chooses(ours).then(|| {
            Finding::doubtful(
                "ports",
                format!("the kernel hands out ports of {range}, which are those of new paths"),
                format!("{set}, or other ports under [removal]"),
            )
        }),
    }
}

/// Returns findings about interfaces on which the data plane recognises no session.
fn without_ethernet(host: &Host) -> Vec<Finding> {
    let unusable = host.interfaces.iter().filter_map(Interface::obstacle);
    unusable
        .map(|cause| Finding::of_cause("interfaces", cause))
        .collect()
}

/// Returns a finding about strict reverse-path filtering. It matters only if sessions pass
/// several interfaces, and only for IPv4.
fn reverse_paths(host: &Host) -> Option<Finding> {
    let strict = strict_reverse_path(&host.interfaces);
    let v4 = host.addresses.iter().any(IpAddr::is_ipv4);
    if !v4 || host.interfaces.len() < 2 || strict.is_empty() {
        return None;
    }
    let names: Vec<_> = strict.iter().map(|i| i.name.as_str()).collect();
    // The names have slashes, because the name of a VLAN contains a dot.
    let set = names
        .iter()
        .map(|n| format!("net/ipv4/conf/{n}/rp_filter=2"));
    let set: Vec<_> = set.collect();
    Some(Finding::doubtful(
        "interfaces",
        format!(
            "reverse paths are strict on {} (rp_filter 1): a proxy stays in a session whose \
             other path comes by another interface",
            names.join(", ")
        ),
        format!("'sysctl {}', if such paths are wanted", set.join(" ")),
    ))
}

#[cfg(test)]
mod tests {
    use dysco_api::Mode;

    use super::*;
    use crate::doctor::Verdict;

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
    fn ports_are_told_where_the_kernel_would_hand_them_out() {
        let verdict = |reserve, range: &str, reserved: &str, writable| {
            let kernel = Ports {
                range: range.into(),
                reserved: reserved.into(),
                writable,
            };
            ports(&removal(reserve), &kernel).map(|f| f.verdict)
        };
        let wide = "1024\t65535\n";
        // dyscod reserves the ports itself.
        assert_eq!(verdict(true, wide, "\n", true), None);
        assert_eq!(verdict(true, wide, "\n", false), Some(Verdict::Ill));
        for reserved in ["61000-64999\n", "7,60000-62999,63000-65535\n"] {
            assert_eq!(verdict(true, wide, reserved, false), None, "{reserved}");
            assert_eq!(verdict(false, wide, reserved, false), None, "{reserved}");
        }
        for (range, reported) in [
            ("32768\t60999\n", None),
            ("32768\t61000\n", Some(Verdict::Doubtful)),
            ("65000\t65535\n", None),
            ("", None),
        ] {
            assert_eq!(
                verdict(false, range, "61001-64999", true),
                reported,
                "{range:?}"
            );
        }
    }

    #[test]
    fn what_ends_soon_has_the_hint_that_helps() {
        let paths = PkiPaths::in_dir("/keys".as_ref());
        let of = |days| valid(&paths, days);
        assert_eq!(of([400, 30]).verdict, Verdict::Well);
        assert!(of([400, 29]).hint.contains("pki issue") && of([400, 29]).expires);
        assert!(of([29, 400]).expires && !of([400, 30]).expires);
        // The certificates of its hosts would expire with it.
        let finding = of([29, 29]);
        assert!(finding.hint.contains("pki init"), "{finding:?}");
        assert!(
            finding.found.contains("ca.crt ends in 29 days"),
            "{finding:?}"
        );
    }

    #[test]
    fn keys_and_the_rest_of_a_configuration_are_distinguished() {
        let missing = Config::load("/none".as_ref()).map_err(CliError::from);
        let found = examine("/none".as_ref(), &missing);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].about, "configuration");
        assert_eq!(found[0].hint, "name another with --config");
    }

    #[test]
    fn the_served_namespaces_are_reported() {
        let listed = |names: &[&str]| {
            let names = names.iter().map(|name| name.to_string()).collect();
            namespaces(&Namespaces::Listed(names))
        };
        let well = listed(&["/proc/self/ns/net"]);
        assert_eq!(well.len(), 1);
        assert_eq!(well[0].verdict, Verdict::Well);
        let missing = listed(&["/proc/self/ns/net", "not-there-at-all"]);
        assert_eq!(missing[0].verdict, Verdict::Doubtful);
        assert!(missing[0].found.contains("not-there-at-all"));
        let other = listed(&["/proc/self/status"]);
        assert_eq!(other[0].verdict, Verdict::Ill);
        assert!(other[0].hint.contains("ip netns list"), "{other:?}");
    }
}

//! Hints of `remove-middlebox` if it finds no session: the conditions that may be unfulfilled,
//! and never the command that was just run.

use dysco_api::{Filter, HostName, ListenAddress};
use dysco_proxy::elsewhere::{self, Elsewhere};

use crate::context::Context;
use crate::exit::CliError;
use crate::pages::any;

/// Conditions under which a shim reports a session.
macro_rules! splicing {
    () => {
        "HAProxy has to run under the shim ('dyscoctl run'), in mode tcp with `option splice-request` \
         and `option splice-response`: 'dyscoctl drain PID --dry-run' says of each session why it \
         cannot leave; name a proxy without the shim by its listener (--listen)"
    };
}

/// Hint for a request about a proxy's process or listener.
const OF_PROCESS: &str = "no session that matches is held by what was named, as far as dyscod \
    tracks them; 'dyscoctl drain' of the same with --dry-run says for each why it cannot leave";
/// Hint for a request with a mode, which applies to a proxy on the host that is asked.
const BY_MODE: &str = concat!(
    "no session that matches is passed on by a proxy whose splicing a shim has seen; ",
    splicing!(),
    "; ask without --mode for hosts of a chain"
);
/// Hint for a request about the host that is asked.
const HERE: &str = concat!(
    "no session that matches passes this host by its chain, or is passed on by a proxy whose \
     splicing a shim has seen; ",
    splicing!()
);
/// Hint for a request about another host.
const THERE: &str = "no session passes it, by a proxy that a shim has told of or by its chain, as \
    far as this host knows; ask on the middlebox's own host ('remove-middlebox self'), or name \
    the proxy's listener there (--listen)";

/// Returns the hint for a request, with or without a process, and with or without a mode.
pub(crate) fn hint(host: &HostName, of_process: bool, by_mode: bool) -> &'static str {
    match (of_process, by_mode, host) {
        (true, _, _) => OF_PROCESS,
        (false, true, _) => BY_MODE,
        (false, false, HostName::This) => HERE,
        (false, false, _) => THERE,
    }
}

/// Returns the hint for a request whose filter matches no session of this host, though it has some.
pub(crate) fn hint_of_filter(context: &Context, filter: &Filter) -> Option<String> {
    let selects_none = || -> Result<bool, CliError> {
        Ok(!any(context, filter)? && any(context, &Filter::default())?)
    };
    // A daemon that does not answer now has answered before: the other hint stays.
    let none = !filter.is_empty() && selects_none().unwrap_or(false);
    none.then(|| of_filter(filter))
}

/// Returns the hint for a request about a listener, if a process of a container listens at the port
/// as well.
pub(crate) fn hint_of_listener(context: &Context, at: &ListenAddress) -> Option<String> {
    let process = elsewhere::also_listening(at)?;
    let inode = process.network();
    // A daemon that does not answer now serves no namespace.
    let all = context.namespaces().unwrap_or_default();
    let served = all.into_iter().find(|one| Some(one.inode) == inode);
    Some(in_container(&process, served.map(|one| one.name)))
}

fn in_container(process: &Elsewhere, namespace: Option<String>) -> String {
    let Elsewhere { pid, name } = process;
    let there = match namespace {
        Some(name) => format!("ask there, by --namespace {name}"),
        None => "have namespaces under [host] name its network namespace".to_owned(),
    };
    format!(
        "the process that listens there holds no session that matches; {name} (pid {pid}), in \
         another network namespace, listens at this port as well: {there}"
    )
}

fn of_filter(filter: &Filter) -> String {
    format!(
        "no session of this host matches the filter; look with 'dyscoctl sessions --filter {filter}', \
         and at all sessions with 'dyscoctl sessions'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_matches_nothing_is_what_is_wrong() {
        let hint = of_filter(&"port=443".parse().unwrap());
        assert!(
            hint.contains("'dyscoctl sessions --filter port=443'"),
            "{hint}"
        );
        assert!(!hint.contains("HAProxy"), "{hint}");
    }

    #[test]
    fn the_process_of_a_container_is_named() {
        let process = Elsewhere {
            pid: 4711,
            name: "haproxy".into(),
        };
        let hint = in_container(&process, Some("web".into()));
        assert!(hint.contains("haproxy (pid 4711)"), "{hint}");
        assert!(hint.ends_with("--namespace web"), "{hint}");
        let hint = in_container(&process, None);
        assert!(hint.contains("namespaces under [host]"), "{hint}");
    }

    #[test]
    fn the_advice_is_none_that_was_just_followed() {
        let here = hint(&HostName::This, false, false);
        assert!(!here.contains("remove-middlebox self"), "{here}");
        for hint in [here, hint(&HostName::This, false, true)] {
            assert!(hint.contains("`option splice-request` and `option splice-response`"));
            assert!(hint.contains("'dyscoctl drain PID --dry-run'"), "{hint}");
        }
        let there = HostName::Address([10, 0, 2, 1].into());
        assert!(hint(&there, false, false).contains("remove-middlebox self"));
        assert!(hint(&HostName::This, false, true).contains("without --mode"));
        let named = hint(&HostName::This, true, false);
        assert!(!named.contains("--listen"), "{named}");
    }
}

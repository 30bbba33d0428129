//! Every metric of `dyscod`: its name, labels, help, and the place of its values in a snapshot. A
//! metric is added here, and nowhere else.

use std::collections::BTreeMap;

use dysco_api::STATES;
use dysco_proto::Reason;
use strum::VariantNames;

use super::changes::{ChangeKind, Durations, End};
use super::packets;
use super::page::Page;
use super::snapshot::{Certificate, Snapshot};

impl Snapshot {
    /// Returns the page of the snapshot.
    pub fn page(&self) -> Page {
        page(self)
    }

    /// Returns the counters that `status` lists.
    pub fn listed(&self) -> BTreeMap<String, u64> {
        let mut listed = self.page().listed();
        listed.extend(sums(self));
        listed
    }
}

fn page(s: &Snapshot) -> Page {
    let mut page = Page::default();
    host(&mut page, s);
    sessions(&mut page, s);
    packets::declare(&mut page, &s.packets);
    changes(&mut page, s);
    ports(&mut page, s);
    peers(&mut page, s);
    store(&mut page, s);
    control(&mut page, s);
    messages(&mut page, s);
    shim(&mut page, s);
    api(&mut page, s);
    page
}

fn host(page: &mut Page, s: &Snapshot) {
    page.gauge(
        "build_info",
        &["version"],
        "The version that runs; always 1.",
    )
    .value(&[env!("CARGO_PKG_VERSION")], 1);
    page.seconds(
        "start_time",
        &[],
        "When `dyscod` started, in seconds since 1970.",
    )
    .value(&[], s.started);
    let expiry = page.seconds(
        "certificate_expiry_timestamp",
        &["certificate"],
        "When a certificate in use expires, in seconds since 1970: that of the `authority`, and this `host`'s.",
    );
    for Certificate { name, not_after } in &s.certificates {
        expiry.value(&[name], *not_after as f64);
    }
    let attached = page.gauge(
        "interface_attached",
        &["interface"],
        "Whether the data plane is attached to an interface of the configuration: 1, or 0 while there is none of this name.",
    );
    for (interface, is_attached) in &s.interfaces {
        attached.value(&[interface], *is_attached);
    }
}

fn sessions(page: &mut Page, s: &Snapshot) {
    let by_state = page.gauge(
        "sessions",
        &["state"],
        "Sessions by state, as `dyscoctl sessions` names it. Each state has a value, which may be 0.",
    );
    for state in STATES {
        let count = s.sessions.by_state.get(state);
        by_state.value(&[state], count.copied().unwrap_or(0));
    }
    page.gauge(
        "sessions_removed",
        &["mode"],
        "Sessions that a proxy has left, by mode.",
    )
    .value(&["bypass"], s.sessions.bypass)
    .value(&["local"], s.sessions.local)
    .value(&["return"], s.sessions.returned);
    page.gauge(
        "session_table_entries",
        &[],
        "Entries of the session table in use. A session may take two.",
    )
    .value(&[], s.sessions.entries);
    page.gauge(
        "session_table_size",
        &[],
        "Entries that the session table has room for (`max_sessions`).",
    )
    .value(&[], s.sessions.room);
}

fn changes(page: &mut Page, s: &Snapshot) {
    let ended = &s.changes.ended;
    page.gauge("changes_under_way", &[], "Changes in progress.")
        .listed("changes_under_way", &[], s.changes.under_way);
    page.gauge(
        "changes_waiting",
        &[],
        "Requests that have not begun, because another change has the segment.",
    )
    .listed("changes_waiting", &[], s.changes.waiting);
    let ends = page.counter(
        "changes",
        &["kind", "mode", "outcome"],
        "Changes that ended, of all that this host had a part in. `kind` is `removal` or `chain`; `outcome` is `done`, `rolled_back`, `refused` or `lost` (the proxy ended the session with undelivered bytes).",
    );
    // A rate or an increase needs the value from before the first change.
    for kind in ChangeKind::ALL {
        let [name, mode] = kind.labels();
        for end in End::ALL {
            let count = ended.ends.get(&(kind, end)).copied();
            ends.value(&[name, mode, end.label()], count.unwrap_or_default());
        }
    }
    let reasons = page.counter(
        "changes_not_done",
        &["reason"],
        "Changes that were not done, by the name of the reason, such as `not_transparent`.",
    );
    for reason in Reason::VARIANTS {
        match ended.reasons.get(reason) {
            Some(count) => reasons.listed(&format!("changes_not_done_{reason}"), &[reason], *count),
            // `status` lists reasons that were given.
            None => reasons.value(&[reason], 0),
        };
    }
    durations(page, &ended.to_switch, &ended.to_end);
}

fn durations(page: &mut Page, to_switch: &Durations, to_end: &Durations) {
    page.durations(
        "change_switch",
        "Time from a request on this host to new data on the new path, of changes that were done.",
        to_switch.clone(),
    );
    page.durations(
        "change_duration",
        "Time from a request on this host to the end of the change, of changes that were done.",
        to_end.clone(),
    );
}

fn ports(page: &mut Page, s: &Snapshot) {
    page.gauge(
        "ports_held",
        &[],
        "Ports of removed proxies that `dyscod` holds.",
    )
    .listed("ports_held", &[], s.ports.held);
    page.gauge(
        "ports_not_held",
        &[],
        "Ports of removed proxies that `dyscod` could not hold.",
    )
    .listed("ports_not_held", &[], s.ports.not_held);
}

fn peers(page: &mut Page, s: &Snapshot) {
    let up = page.gauge(
        "peer_up",
        &["peer"],
        "Whether there is a connection to a peer.",
    );
    for peer in &s.peers {
        up.value(&[&peer.address.to_string()], peer.up);
    }
    let rtt = page.seconds(
        "peer_round_trip",
        &["peer"],
        "Round-trip time of the connection to a peer.",
    );
    for peer in &s.peers {
        if let Some(time) = peer.rtt {
            rtt.value(&[&peer.address.to_string()], time.as_secs_f64());
        }
    }
    page.gauge(
        "chain_neighbours",
        &[],
        "Addresses to which sessions may be steered.",
    )
    .listed("chain_neighbours", &[], s.chain_neighbours);
}

fn store(page: &mut Page, s: &Snapshot) {
    let store = s.store.iter();
    let up = page.gauge(
        "etcd_up",
        &[],
        "Whether etcd answers; absent without `[fleet] etcd`, as the next four are.",
    );
    for store in store.clone() {
        up.value(&[], store.up);
    }
    let since = page.seconds(
        "etcd_changed_time",
        &[],
        "When etcd began to answer, or ceased to, in seconds since 1970.",
    );
    for store in store.clone() {
        since.value(&[], store.since);
    }
    let revision = page.gauge(
        "fleet_policy_revision",
        &[],
        "Revision of etcd's policy that is in force; 0 if none is.",
    );
    for store in store.clone() {
        let number = store
            .policy
            .and_then(|revision| u64::try_from(revision).ok());
        revision.value(&[], number.unwrap_or(0));
    }
    let refused = page.gauge(
        "fleet_policy_refused",
        &[],
        "Whether etcd's policy is not in force here, because it has an error or is gone.",
    );
    for store in store.clone() {
        refused.value(&[], store.refused);
    }
    let hosts = page.gauge("fleet_hosts", &[], "Hosts that are registered in etcd.");
    for store in store {
        hosts.value(&[], store.hosts);
    }
}

fn control(page: &mut Page, s: &Snapshot) {
    let c = &s.control;
    page.counter(
        "control_messages",
        &["direction"],
        "Messages between daemons: `sent` or `received`.",
    )
    .listed("control_messages_sent", &["sent"], c.messages_sent)
    .listed(
        "control_messages_received",
        &["received"],
        c.messages_received,
    );
    page.counter(
        "control_messages_dropped",
        &["reason"],
        "Messages that were not sent: the peer's queue was full, there was no connection, or the message was too long.",
    )
    .listed("control_dropped_queue_full", &["queue_full"], c.dropped_queue_full)
    .listed("control_dropped_unreachable", &["unreachable"], c.dropped_unreachable)
    .listed("control_dropped_bad_length", &["bad_length"], c.dropped_bad_length);
    page.counter(
        "control_frames_malformed",
        &["reason"],
        "Malformed frames of peers.",
    )
    .listed(
        "control_frames_oversized",
        &["oversized"],
        c.frames_oversized,
    )
    .listed(
        "control_frames_truncated",
        &["truncated"],
        c.frames_truncated,
    )
    .listed("control_frames_empty", &["empty"], c.frames_empty);
    page.counter(
        "control_connections",
        &[],
        "Connections that were set up, in either direction.",
    )
    .listed("control_connections", &[], c.connections);
    page.counter(
        "control_handshakes_failed",
        &["reason"],
        "Handshakes that `failed`, in either direction, and connections refused because `too_many` were being set up.",
    )
    .listed("control_handshakes_failed", &["failed"], c.handshakes_failed)
    .listed(
        "control_handshakes_turned_away",
        &["too_many"],
        c.handshakes_turned_away,
    );
}

fn messages(page: &mut Page, s: &Snapshot) {
    page.counter(
        "messages_ignored",
        &["reason"],
        "Messages of peers that had no effect: the peer may not send them, they came twice, late or for no known change, or they could not be parsed.",
    )
    .listed("messages_not_allowed", &["not_allowed"], s.messages.violations)
    .listed("messages_stale", &["stale"], s.messages.stale)
    .listed("messages_malformed", &["malformed"], s.malformed);
}

fn shim(page: &mut Page, s: &Snapshot) {
    let shim = &s.shim;
    page.counter(
        "shim_processes",
        &[],
        "Processes that began to report to this host's shim socket.",
    )
    .value(&[], shim.hellos);
    page.gauge(
        "shim_pairs",
        &[],
        "Pairs of sockets that processes under the shim relay between.",
    )
    .value(&[], shim.pairs);
    page.counter("shim_reports", &[], "Reports of shims.")
        .listed("shim_reports", &[], shim.reports);
    page.counter(
        "shim_reports_ignored",
        &["reason"],
        "Reports of shims that were `malformed`, or `refused` since their sockets were not the sender's.",
    )
    .listed("shim_reports_malformed", &["malformed"], shim.malformed)
    .listed("shim_reports_refused", &["refused"], shim.refused);
    page.counter(
        "shim_pairs_not_kept",
        &["reason"],
        "Pairs of sockets that were not kept, for lack of room or since one user had too many.",
    )
    .listed("shim_pairs_no_room", &["no_room"], shim.no_room)
    .listed("shim_pairs_over_share", &["over_share"], shim.over_share);
}

fn api(page: &mut Page, s: &Snapshot) {
    page.counter(
        "api_requests_refused",
        &["reason"],
        "Requests of `dyscoctl` and others that were refused: `malformed`, `not_allowed`, or `too_many` clients.",
    )
    .listed("api_requests_malformed", &["malformed"], s.api.malformed)
    .listed("api_requests_not_allowed", &["not_allowed"], s.api.not_allowed)
    .listed("api_clients_turned_away", &["too_many"], s.api.turned_away);
}

/// Returns the ends of changes of all kinds, as `status` lists them.
fn sums(s: &Snapshot) -> impl Iterator<Item = (String, u64)> + '_ {
    let ends = End::ALL.map(|end| (end, s.changes.ended.count(end)));
    let shown = ends
        .into_iter()
        .filter(|(end, count)| *end != End::Lost || *count > 0);
    shown.map(|(end, count)| (format!("changes_{}", end.label()), count))
}

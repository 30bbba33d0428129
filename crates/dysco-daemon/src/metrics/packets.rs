//! Counters of the data plane: the family of each, and its label there.

use dysco_common::Counter;

use super::page::Page;

/// Family of counters, and the label by which its members differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    Tracked,
    NotTracked,
    Translated,
    Split,
    OldPath,
    AcksWithheld,
    Dropped,
    Relayed,
    RelayedByXdp,
    Handlers,
    Icmp,
    TooBigSent,
    ChainSyns,
    ChainRefused,
    ChainUnusual,
}

impl Group {
    /// All families, in the order of the page.
    const ALL: [Group; 15] = [
        Group::Tracked,
        Group::NotTracked,
        Group::Translated,
        Group::Split,
        Group::OldPath,
        Group::AcksWithheld,
        Group::Dropped,
        Group::Relayed,
        Group::RelayedByXdp,
        Group::Handlers,
        Group::Icmp,
        Group::TooBigSent,
        Group::ChainSyns,
        Group::ChainRefused,
        Group::ChainUnusual,
    ];

    /// Returns name, labels and help.
    #[rustfmt::skip]
    fn declared(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Group::Tracked => ("sessions_tracked", &[], "Sessions that got an entry."),
            Group::NotTracked => ("sessions_not_tracked", &["reason"], "Opened sessions that got no entry: `no_room` in the table (raise `max_sessions`), or `syn_unreadable`."),
            Group::Translated => ("packets_translated", &[], "Packets that were sent or received on a new path."),
            Group::Split => ("packets_split", &[], "Segments that were split between two paths at the cutoff."),
            Group::OldPath => ("packets_old_path_in_two_paths", &[], "Packets that took the old path while both paths were in use."),
            Group::AcksWithheld => ("acks_withheld", &[], "Acknowledgements of a path that were kept from the stack while two paths were in use."),
            Group::Dropped => ("packets_dropped", &["reason"], "Packets that were dropped."),
            Group::Relayed => ("packets_relayed", &[], "Packets that this host relayed for a removed proxy."),
            Group::RelayedByXdp => ("packets_relayed_by_xdp", &[], "Packets that XDP relayed; `dysco_packets_relayed_total` has them too."),
            Group::Handlers => ("packets_of_handlers", &["direction"], "Packets of sessions with services: `to` their handlers, or `from` them."),
            Group::Icmp => ("icmp_errors", &["outcome"], "ICMP errors about changed sessions: `translated` for the end that they concern, `relayed`, or `not_believed`."),
            Group::TooBigSent => ("icmp_too_big_sent", &[], "ICMP errors that a relaying host sent for packets too big for its next link."),
            Group::ChainSyns => ("chain_syns", &["direction"], "SYNs with a chain: `sent` or `received`."),
            Group::ChainRefused => ("chain_syns_refused", &["reason"], "SYNs with a chain that were dropped."),
            Group::ChainUnusual => ("chain_exceptions", &["event"], "Sessions of a chain that opened in a fallback way (see `event`)."),
        }
    }
}

/// Returns the family of a counter, and the values of its labels.
fn place(counter: Counter) -> (Group, &'static [&'static str]) {
    match counter {
        Counter::Tracked => (Group::Tracked, &[]),
        Counter::NoRoom => (Group::NotTracked, &["no_room"]),
        Counter::Unreadable => (Group::NotTracked, &["syn_unreadable"]),
        Counter::Translated => (Group::Translated, &[]),
        Counter::Split => (Group::Split, &[]),
        Counter::OldPath => (Group::OldPath, &[]),
        Counter::AckWithheld => (Group::AcksWithheld, &[]),
        Counter::DroppedTombstone => (Group::Dropped, &["tombstone"]),
        Counter::DroppedUnparsed => (Group::Dropped, &["unparsed_on_new_path"]),
        Counter::DroppedLateOld => (Group::Dropped, &["late_on_old_path"]),
        Counter::DroppedStray => (Group::Dropped, &["stray_on_new_path"]),
        Counter::DroppedSyn => (Group::Dropped, &["syn_on_changed_session"]),
        Counter::DroppedError => (Group::Dropped, &["helper_error"]),
        Counter::DroppedHopLimit => (Group::Dropped, &["hop_limit_on_relay"]),
        Counter::DroppedMarked => (Group::Dropped, &["congestion_unanswered"]),
        Counter::BeyondWindow => (Group::Dropped, &["beyond_window_in_two_paths"]),
        Counter::DroppedHandler => (Group::Dropped, &["from_handler"]),
        Counter::DroppedHeld => (Group::Dropped, &["before_services"]),
        Counter::DroppedOverRate => (Group::Dropped, &["over_rate"]),
        Counter::ToHandler => (Group::Handlers, &["to"]),
        Counter::FromHandler => (Group::Handlers, &["from"]),
        Counter::Relayed => (Group::Relayed, &[]),
        Counter::RelayedByXdp => (Group::RelayedByXdp, &[]),
        Counter::IcmpTranslated => (Group::Icmp, &["translated"]),
        Counter::IcmpRelayed => (Group::Icmp, &["relayed"]),
        Counter::IcmpDisbelieved => (Group::Icmp, &["not_believed"]),
        Counter::IcmpTooBig => (Group::TooBigSent, &[]),
        Counter::ChainSent => (Group::ChainSyns, &["sent"]),
        Counter::ChainReceived => (Group::ChainSyns, &["received"]),
        Counter::ChainRefused => (Group::ChainRefused, &["host_missing"]),
        Counter::ChainLayout => (Group::ChainRefused, &["layout"]),
        Counter::ChainKey => (Group::ChainRefused, &["unknown_key"]),
        Counter::ChainProof => (Group::ChainRefused, &["wrong_proof"]),
        Counter::ChainReplayed => (Group::ChainRefused, &["replayed"]),
        Counter::ChainTaken => (Group::ChainRefused, &["session_exists"]),
        Counter::ChainForgotten => (Group::ChainRefused, &["forgotten"]),
        Counter::ChainRestored => (Group::ChainUnusual, &["ends_without_agent"]),
        Counter::ChainDirect => (Group::ChainUnusual, &["direct_host_missing"]),
        Counter::ChainNat => (Group::ChainUnusual, &["nat_on_the_way"]),
        Counter::ChainDataLeftOut => (Group::ChainUnusual, &["fast_open_data_left_out"]),
    }
}

/// Adds the packet counters to a page.
pub(super) fn declare(page: &mut Page, counters: &[(Counter, u64)]) {
    for group in Group::ALL {
        let (name, labels, help) = group.declared();
        let family = page.counter(name, labels, help);
        for (counter, count) in counters {
            let (of, values) = place(*counter);
            if of == group {
                family.listed(counter.name(), values, *count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_in_one_family() {
        let mut page = Page::default();
        let counters: Vec<_> = Counter::ALL.iter().map(|c| (*c, 1)).collect();
        declare(&mut page, &counters);
        assert_eq!(page.listed().len(), Counter::ALL.len());
    }
}

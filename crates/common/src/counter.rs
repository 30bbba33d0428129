//! Per-CPU counters of packets.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A counter of the data plane; its value is its index in the map.
        #[repr(u32)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "each is documented by its text")]
        pub enum Counter { $($(#[$doc])* $name,)* }

        impl Counter {
            /// All counters, in order.
            pub const ALL: &'static [Counter] = &[$(Counter::$name,)*];

            /// Returns the name in listings and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$name => $text,)* }
            }
        }
    };
}

counters! {
    Tracked = "sessions_tracked",
    NoRoom = "sessions_not_tracked_no_room",
    Unreadable = "syns_unreadable",
    Translated = "packets_translated",
    Split = "packets_split",
    OldPath = "packets_old_path_in_two_paths",
    AckWithheld = "acks_withheld",
    DroppedTombstone = "dropped_tombstone",
    DroppedUnparsed = "dropped_unparsed_on_new_path",
    DroppedLateOld = "dropped_late_on_old_path",
    DroppedStray = "dropped_stray_on_new_path",
    DroppedSyn = "dropped_syn_on_changed_session",
    DroppedError = "dropped_helper_error",
    Relayed = "packets_relayed",
    DroppedHopLimit = "dropped_hop_limit_on_relay",
    ChainSent = "chain_syns_sent",
    ChainReceived = "chain_syns_received",
    ChainRestored = "chain_ends_without_agent",
    ChainDirect = "chain_direct_host_missing",
    ChainRefused = "chain_refused_host_missing",
    ChainLayout = "chain_refused_layout",
    ChainKey = "chain_refused_unknown_key",
    ChainProof = "chain_refused_wrong_proof",
    ChainReplayed = "chain_refused_replayed",
    ChainTaken = "chain_refused_session_exists",
    ChainForgotten = "chain_refused_forgotten",
    ChainNat = "chain_nat_on_the_way",
    ChainDataLeftOut = "chain_fast_open_data_left_out",
    RelayedByXdp = "packets_relayed_by_xdp",
    DroppedMarked = "dropped_congestion_unanswered",
    IcmpTranslated = "icmp_errors_translated",
    IcmpRelayed = "icmp_errors_relayed",
    IcmpDisbelieved = "icmp_errors_not_believed",
    IcmpTooBig = "icmp_too_big_sent",
    BeyondWindow = "dropped_beyond_window_in_two_paths",
    ToHandler = "packets_to_handlers",
    FromHandler = "packets_from_handlers",
    DroppedHandler = "dropped_from_handlers",
    DroppedHeld = "dropped_before_services_are_in",
    DroppedOverRate = "dropped_over_rate",
}

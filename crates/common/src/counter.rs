//! What happened to packets, counted per CPU.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A counter of the data plane; its value is its index in the map.
        #[repr(u32)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "each is documented by its text")]
        pub enum Counter { $($(#[$doc])* $name,)* }

        impl Counter {
            /// All of them, in order.
            pub const ALL: &'static [Counter] = &[$(Counter::$name,)*];

            /// The name in listings and metrics.
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
}

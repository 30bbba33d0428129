//! The two-path phase: the path of a segment from the local end, the acknowledgements that each
//! path may carry, and the far end's segments that the local end may receive before the old path
//! has drained.
//!
//! Pure functions. The programs hand in the words of the session entry and apply the result. All
//! sequence numbers are in the end's own spaces, modulo 2^32.
//!
//! "The local end" is the end of the session that the anchor acts for. At a local anchor this is a
//! socket of this host. At a remote anchor it is the remote end, whose packets arrive where those
//! of a local anchor's end leave. An entry's words are always those of this host's side. A remote
//! anchor reads them in reverse ([`Anchor`]).

mod across;
mod anchor;
mod ending;
mod incoming;
mod leaving;
mod live;
mod opening;
mod outgoing;
mod peer;
mod window;

pub use anchor::Anchor;
pub use ending::{
    CLOSES, Cutoff, Ending, Fins, breaks, closed_before, cutoff, ending, has_reset, is_at_cutoff,
    is_broken, taught, undelivered,
};
pub use incoming::{
    NewIncoming, OldIncoming, REFUSES, asks, new_incoming, old_incoming, old_number,
    record_peer_ack, record_window,
};
pub use leaving::{Leaving, carries_all, least_carried, leaving, may_end_late};
pub use live::{is_live, is_live_beside, record_live};
pub use opening::{
    LAST_WINDOW, answer_opening, ends_path, has_length, is_of_opening, may_answer_opening,
    may_show_length, opens_windows, record_length, record_opening,
};
pub use outgoing::{ASKED, Copy, Outgoing, Sacks, VALID, data_path, drains, outgoing, sacks};
pub use peer::{
    acked_far_ahead, acknowledge, announces_to, has_all_old, has_announced_all, has_carried,
    has_caught_up, has_old, is_confirmed, is_past_cutoff, is_shut_in, is_taken_back,
    is_undelivered, may_be_closed, may_be_reset, may_close, may_reset, record_announced,
    record_data, widest_in,
};
pub use window::{NO_EDGE, is_beyond, offered, stored_edge};

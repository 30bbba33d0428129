//! The session protocol between hosts, sans-IO: one machine per host for all of a host's roles. The
//! daemon, the model check and the tests hand in messages, events and the time, and carry out the
//! results: commands, each as a [`Host`] in one of its roles ([`command`]), messages and reports.
//! The crate has no socket, clock or map. It depends on `dysco-common` and on crates that encode
//! messages, and not on a runtime.
//!
//! A *change* moves the segment between two anchors from one chain to another. This change removes
//! one middlebox:
//!
//! ```text
//! left (L)              middle (P)              right (R)
//!    <----- Leave ---------   ----- Introduce ----->        both are asked at once,
//!    ----- RequestLock --->   <---- Introduced -----        while P proves its measure
//!    ----------------- SetUp --------------------->         R hears the new path
//!    <---- AckLock --------                                 the plan comes
//!    <---------------- SetUpAck -------------------
//!    (SYN) ----------------------------------------> (SYN-ACK)
//!    (cut) ----------- Switched ------------------>  (cut)  no way back from here
//!    <---------------- Switched -------------------
//!    <---------------- Drained --------------------
//!    ----------------- Done ---------------------->         old data is acknowledged
//!    <---------------- DoneAck --------------------
//!    ----- Done ---------->                                 P closes its sockets
//!    <---- DoneAck --------
//! ```
//!
//! Before L has the plan, it sends its messages to R once. R accepts them from a host that P has
//! introduced. If a message arrives before the introduction, R ignores it, and L repeats it with
//! the plan. Until L cuts, any failure rolls back on all three hosts (`Cancel`). After the cut each
//! failure is met by going on, unless the new path dies before both anchors have drained
//! (`left::path_liveness`):
//!
//! ```text
//! left (L)              middle (P)              right (R)
//!    ----- Suspect -------> ------ Suspect ------>          no answer: R hears the
//!    <---- Muted ---------- <----- Muted ----------         new path no more, then L
//!    ----- Back ----------> ------ Back --------->          the old path is taken again
//!                                                           (or Keep: it cannot be)
//! ```
//!
//! If P is both anchors as well (`local`), the same steps need no message. P measures itself,
//! locks, measures again, joins its two sessions by a path through its own data plane, and cuts
//! both. It closes its sockets once both ends have acknowledged all data of the old path. Such a
//! relaying host can be left out later by the steps above. It is a middle without a middlebox, and
//! its translation is the plan's.
//!
//! If the server's host runs an agent as well (`return`), replies need not pass P. A reply may take
//! either way at any time. This change therefore has no point of no return, and keeps no record:
//!
//! ```text
//! middle (P)              right (R)
//!    ----- Prove -------->                a segment under P's address to the client,
//!    <---- ProveAck ------                whose answer comes to P; said once before
//!    ----- Return ------->                P leaves, and again before this
//!    <---- ReturnAck -----                R answers the client itself
//! ```
//!
//! A session that gets another chain keeps both paths until the new one is proven. Both paths end
//! in the same two stacks and use the same numbers. Either anchor may therefore take either path at
//! any time, and return:
//!
//! ```text
//! left (L)          hosts of both chains          right (R)
//!    --- Enlist ----> the new ones                          they know each other
//!    ----------------- Extend --------------------->        R awaits the new path
//!    ================= SYN, through the new ones ==>        both hear it
//!    (switch) -------- Switched ------------------->  (switch)
//!    <---------------- Switched --------------------
//!    <---------------- Settled ---------------------        it has carried enough
//!    ----------------- Done ----------------------->        no way back from here
//!    <---------------- DoneAck ---------------------
//!    --- Dismiss ---> the old ones                          they forget it
//! ```
//!
//! The host that opened the session decides alone, so that of two requests for one segment one
//! wins. A segment that does not begin at this host has another left anchor, which follows its
//! orders:
//!
//! ```text
//! who opened it (H)     left (L)                    right (R)
//!    --- Lead ----------> <- Extended -                     it holds its side
//!    --- Enlist, Extend, as above ------------------>
//!    --- Open ----------> ===== SYN ==================>
//!    <-- Opened --------
//!    --- Cut -----------> (switch)
//!    <-- Switched ------  --- (by H) Switched ------> (switch)
//!    --- Switched ------>
//!    <-- Settled -------  <-- (to H) Settled --------       both have carried enough
//!    --- Done ----------> --- (by H) Done ----------->
//! ```
//!
//! A change is taken back first by L (`Cancel`, `Abandoned`), then by R (`Cancel`, `CancelAck`).
//! Then L forgets the path (`Release`, `Released`).

mod asker;
pub mod asks;
mod authorise;
pub mod command;
mod context;
mod dsr;
mod event;
mod head;
mod kind;
mod lead;
mod left;
mod local;
mod machine;
pub mod marked;
mod meddling;
mod message;
mod middle;
mod names;
pub mod pairs;
mod part;
pub mod plan;
mod proof;
mod reason;
mod record;
mod report;
mod right;
mod segment;
mod strangers;
mod tail;
mod transmits;

pub use command::{Action, Command, Host, Side};
pub use context::{Limits, Stats, Time};
pub use event::{HostEvent, Watched};
pub use kind::KindName;
pub use machine::{Machine, Timer, UnderWay, Waits};
pub use meddling::{Meddling, Way};
pub use message::{
    DecodeError, EncodeError, Facts, MAX_MESSAGE, Margins, Measurement, Message, Order, Plan,
    Probe, Scope, VERSION,
};
pub use names::{ChangeId, HostId, Subsession};
pub use reason::{End, MessageName, Phase, Reason};
pub use record::RecordError;
pub use report::{Progress, Report, Role, Violation};

//! Hosts as network namespaces, with real programs and verified traffic.
//!
//! A [`Lab`] is a client, a proxy and a server joined by a router. Each
//! [`Host`] is a thread that left the machine's network and mounts behind:
//! nothing has a name outside the process, so nothing can stay behind, and
//! any number of labs run beside each other.
//!
//! ```text
//! client 10.0.1.1 ──┐
//! proxy  10.0.2.1 ──┤ router .254
//! server 10.0.3.1 ──┘
//! ```
//!
//! A [`Line`] is a client, any number of middleboxes' hosts, and a server, one
//! behind the other; a [`Star`] has them around one router.

pub mod capture;
mod clean;
pub mod counters;
pub mod delay;
pub mod device;
pub mod dialogue;
pub mod echo;
pub mod etcd;
pub mod fleet;
mod folder;
pub mod haproxy;
mod host;
pub mod http;
pub mod idle;
mod isolate;
mod lab;
mod line;
pub mod link;
pub mod meddler;
pub mod nginx;
mod process;
pub mod relays;
pub mod resizer;
pub mod services;
mod star;
pub mod stream;
pub mod strict;
pub mod wait;
pub mod wire;

pub use folder::Folder;
pub use host::Host;
pub use isolate::require_root;
pub use lab::{Builder, Lab};
pub use line::Line;
pub use link::{Family, HostOptions, Role};
pub use process::{Process, Program, Ran};
pub use star::{Star, Ways};

//! The harness itself, hosts as they are found, and firewall state that moves between them.

mod firewall_state;
mod firewalls;
mod harness;
mod interfaces;
mod interrupted;
mod life;

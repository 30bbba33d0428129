//! Tests of the harness itself, of hosts in various states, and of firewall state that moves
//! between hosts.

mod both_ends;
mod both_ends_faults;
mod containers;
mod etcd;
mod firewall_state;
mod firewalls;
mod first_byte;
mod handlers_die;
mod harness;
mod interfaces;
mod interrupted;
mod life;
mod owners;
mod resting;
mod runs;
mod service_by_service;
mod service_calls;
mod service_kinds;
mod service_packets;
mod service_programs;
mod service_sessions;
mod services;
mod tuned;

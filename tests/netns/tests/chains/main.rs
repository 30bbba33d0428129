//! Tests of chains: sessions are steered through middleboxes, and get other chains while they live.
//! The hosts are network namespaces, the firewalls are real, and every byte is checked.

mod after_removal;
mod beside_relay;
mod bridged;
mod closes_firewalls;
mod daemon_dies;
mod dnat;
mod doctor;
mod ends;
mod fast_open;
mod firewall_leaves;
mod from_the_syn;
mod hosts_that_stay;
mod lost_messages;
mod many;
mod meddled;
mod narrow;
mod nat;
mod neighbours;
mod openings;
mod policies;
mod power_loss;
mod reconfigure;
mod requests;
mod resized;
mod rivals;
mod segments;
mod services;
mod simultaneous_open;
mod steered;
mod transit;
mod unequal_paths;

//! Daemons on loopback addresses, each with a certificate of its own.

mod hostile;
mod lab;
mod peers;
mod renewed;

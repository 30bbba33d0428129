//! Tests with daemons on loopback addresses, each with its own certificate.

mod hostile;
mod lab;
mod peers;
mod renewed;

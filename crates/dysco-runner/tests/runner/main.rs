//! Runners on real TCP sockets.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod confined;
mod control;
mod ends;
mod halves;
mod lab;
mod leaves;
mod own;
mod partial;
mod passes;
mod services;
mod slow;
mod watched;

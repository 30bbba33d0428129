//! The pure part of the data plane: tables of cases, and properties that hold
//! for all of them.

mod header;
mod reference;
mod translate;
mod two_paths;

//! The integration tests of this crate: one binary, because linking takes longer than compiling.

#[macro_use]
mod support;

mod choices;
mod drive_options;
mod faults;
mod fio_engine;
mod former_names;
#[allow(dead_code, reason = "tests of another crate use the rest")]
#[path = "../../../../apps/user-io/tests/suite/handles/harness.rs"]
mod harness;
mod header;
mod installed;
mod misuse;
mod namespaces;
mod oracle;
mod pages;
mod pmr;
mod rules;
mod segments;
mod serving;
mod vectors;
mod waits;

//! Sets `SLUICE_STATE_BUILD`: a digest of the sources that decide the state of a preconditioned
//! drive. A package without these sources is identified by its version alone.

use source_digest::source_digest;

/// Folders of crates, and crates, relative to this one.
const SOURCES: [&str; 6] =
    ["../../base", "../../wire", "../../device", "../../host", "../../apps/workload", "."];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=SLUICE_STATE_BUILD={}", source_digest(&SOURCES));
}

//! Sets `SLUICE_RESULTS_BUILD`: a digest of the sources that decide the results of a run. A package
//! without these sources is identified by its version alone.

use source_digest::source_digest;

/// Folders of crates, and crates, relative to this one.
const SOURCES: [&str; 8] = [
    "../../base",
    "../../wire",
    "../../device",
    "../../host",
    "../../apps/workload",
    "../stack",
    "../scenario",
    "../sim",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=SLUICE_RESULTS_BUILD={}", source_digest(&SOURCES));
}

//! Sets `SLUICE_CALIBRATION_BUILD`: a digest of the sources that decide the measured numbers of this
//! machine. A package without these sources is identified by its version alone.

use source_digest::source_digest;

/// Folders of crates, and crates, relative to this one.
const SOURCES: [&str; 4] = ["../../base", "../../wire", "../../host", "."];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=SLUICE_CALIBRATION_BUILD={}", source_digest(&SOURCES));
}

//! Builds the preloaded library for the tests.

use std::process::Command;
use std::sync::Once;

/// Path of the command.
pub(crate) const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

/// Returns a program's output as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Builds the library once, beside the command: no crate depends on it, so cargo does not build it.
pub(crate) fn build() {
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        let (target, profile) = SLUICE.strip_suffix("/sluice").unwrap().rsplit_once('/').unwrap();
        let profile = if profile == "debug" { "dev" } else { profile };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "sluice-preload"]);
        cargo.args(["--target-dir", target, "--profile", profile]);
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(built.status.success(), "{}", text(&built.stderr));
    });
}

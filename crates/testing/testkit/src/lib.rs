//! Modules shared by tests of several crates, and skips of tests.
//!
//! | module | contents |
//! |---|---|
//! | [`atomicity`] | an oracle for devices that keep writes whole when power is cut |
//! | [`choices`] | the source of a random test's choices: a seed, or the bytes of a fuzzer |
//! | `instructions` | counts of the instructions of a benchmark (feature `instructions`) |
//! | `managed_drive` | an emulated open-channel drive with a media manager (feature `managed-drive`) |
//! | `memory_device` | a block device in memory (feature `block`) |
//! | [`nbd_client`] | an NBD client with valid and invalid behavior |
//! | `open_channel_drive` | an open-channel drive without an admin queue (feature `open-channel-drive`) |
//! | [`oracle`] | the values that sectors may hold after a power cut, and the loop over seeds |
//! | [`two_processes`] | a port between a test and a second process of it |
//! | `volatile_device` | a block device in memory with power cuts and failures (feature `block`) |
//!
//! [`PollBudget`] bounds waits in real time.
//!
//! A crate uses them from its integration tests, as a dev-dependency. Its unit tests cannot use
//! modules that depend on the crate itself: there its types are those of another build.
//!
//! # Skips
//!
//! A test which has not run cannot be taken for one that has passed.
//!
//! A test that cannot run on this machine (a program, a loop device, a right, a kernel feature is missing) calls
//! [`skip!`] and returns:
//!
//! * `skipped: TEST: WHY` is printed to standard error.
//! * The file that `SLUICE_SKIP_LOG` names gets a line `TEST<TAB>WHY`.
//! * With `SLUICE_REQUIRE=1` the test panics, unless `allowed-skips.toml` has its name. `.ci/run` sets it.
//!
//! A test's name is `PACKAGE::TARGET::PATH`, for example `sluice-driver::uring::commands::a_loop_device_is_read`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

mod allowed;
pub mod atomicity;
pub mod choices;
#[cfg(feature = "instructions")]
pub mod instructions;
#[cfg(feature = "managed-drive")]
pub mod managed_drive;
#[cfg(feature = "block")]
pub mod memory_device;
pub mod nbd_client;
#[cfg(feature = "open-channel-drive")]
pub mod open_channel_drive;
pub mod oracle;
mod poll;
pub mod two_processes;
#[cfg(feature = "block")]
pub mod volatile_device;

pub use allowed::{AllowedSkip, AllowedSkips};
pub use poll::PollBudget;

/// The environment variable that makes a skip which is not allowed a failure.
pub const REQUIRE: &str = "SLUICE_REQUIRE";

/// The environment variable that names the file with a line per skip.
pub const SKIP_LOG: &str = "SLUICE_SKIP_LOG";

/// Says that the calling test is skipped, with a reason in the words of `format!`; the test has to return.
///
/// # Panics
/// With `SLUICE_REQUIRE=1`, unless `allowed-skips.toml` has the test.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {
        $crate::skip_test(env!("CARGO_PKG_NAME"), env!("CARGO_CRATE_NAME"), &format!($($why)*))
    };
}

/// Whether all of these programs are in `PATH`; if not, the calling test is skipped, and has to return.
///
/// # Panics
/// As [`skip!`].
#[macro_export]
macro_rules! has_programs {
    ($programs:expr) => {
        match $crate::missing_program($programs) {
            None => true,
            Some(program) => {
                $crate::skip!("there is no {program}; `make test-packages` installs it");
                false
            }
        }
    };
}

/// Path of the test `$test` of the calling module, as the test binary's filter names it. A test that runs its own
/// binary as another process passes it with `--exact`.
#[macro_export]
macro_rules! test_path {
    ($test:ident) => {
        concat!(module_path!(), "::", stringify!($test)).split_once("::").unwrap().1
    };
}

/// The first of these programs that is in no directory of `PATH`.
pub fn missing_program<'p>(programs: &[&'p str]) -> Option<&'p str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    programs.iter().copied().find(|name| !is_there(name))
}

/// Skips a test of `package` and `target`, whose thread has its name; [`skip!`] expands to this.
///
/// # Panics
/// As [`skip!`].
pub fn skip_test(package: &str, target: &str, why: &str) {
    let thread = std::thread::current();
    let test =
        format!("{package}::{target}::{}", thread.name().unwrap_or("(a thread without a name)"));
    let is_required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
    let log = std::env::var_os(SKIP_LOG);
    record(&test, why, log.as_deref().map(Path::new), is_required, &AllowedSkips::committed());
}

fn record(test: &str, why: &str, log: Option<&Path>, is_required: bool, allowed: &AllowedSkips) {
    let why = why.trim().replace(['\n', '\t'], " ");
    eprintln!("skipped: {test}: {why}");
    if let Some(path) = log {
        // One write of a line: tests of other processes append to the same file.
        let line = format!("{test}\t{why}\n");
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|e| panic!("{SKIP_LOG}={}: {e}", path.display()));
    }
    assert!(
        !is_required || allowed.reason(test).is_some(),
        "{test} is skipped ({why}), but {REQUIRE}=1 and crates/testing/testkit/allowed-skips.toml does not allow it"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = "";
    const SOME: &str = "[[skip]]\ntest = \"p::t::module::*\"\nreason = \"none to be had\"\n";

    fn allowed(text: &str) -> AllowedSkips {
        AllowedSkips::parse(text).unwrap()
    }

    fn panics(body: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(body).is_err()
    }

    #[test]
    fn a_skip_is_a_failure_only_where_it_is_required_and_not_allowed() {
        record("p::t::a", "no loop device", None, false, &allowed(NONE));
        record("p::t::module::a", "no loop device", None, true, &allowed(SOME));
        assert!(panics(|| record("p::t::a", "no loop device", None, true, &allowed(NONE))));
        assert!(panics(|| record("p::t::other::a", "no loop device", None, true, &allowed(SOME))));
    }

    #[test]
    fn every_skip_is_a_line_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("skips");
        record("p::t::a", "no\nfuse\n", Some(&log), false, &allowed(NONE));
        record("p::t::module::b", "no fio", Some(&log), true, &allowed(SOME));
        // The failure is in the log, too.
        let path = log.clone();
        assert!(panics(move || record("p::t::c", "no", Some(&path), true, &allowed(NONE))));
        let text = std::fs::read_to_string(&log).unwrap();
        assert_eq!(text, "p::t::a\tno fuse\np::t::module::b\tno fio\np::t::c\tno\n");
    }

    #[test]
    fn the_first_missing_program_is_named() {
        assert_eq!(missing_program(&["sh", "ls"]), None);
        assert_eq!(
            missing_program(&["sh", "no-such-program", "nor-this"]),
            Some("no-such-program")
        );
    }
}

//! Tests of the profiler. They need Debian's package qemu-user.

mod hostile_events;
mod known_windows;
mod programs;
mod valgrind;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use speculation_profile::{ProfileOptions, ProfileRun, run};
use tempfile::TempDir;

/// A folder with a compiled test program and a file with data.
struct TestPrograms {
    folder: TempDir,
}

impl TestPrograms {
    /// Compiles a program of `tests/programs`. Skips the test without an emulator.
    fn compile(name: &str, flags: &[&str]) -> Option<TestPrograms> {
        if !has_program("qemu-x86_64") {
            testkit::skip!("no qemu-x86_64 (`scripts/apt-install qemu-user`)");
            return None;
        }
        let folder = TempDir::new().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
        let status = Command::new("cc")
            .args(["-O1", "-pthread", "-o"])
            .arg(folder.path().join("program"))
            .arg(&source)
            .args(flags)
            .status()
            .expect("cc runs");
        assert!(status.success(), "{} is compiled", source.display());
        std::fs::write(folder.path().join("data"), vec![7; 65536]).expect("written");
        Some(TestPrograms { folder })
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Profiles the program in a mode of `windows.c`.
    fn profile(&self, mode: &str, loops: u64) -> ProfileRun {
        self.profile_with(mode, loops, &ProfileOptions::default())
    }

    fn profile_with(&self, mode: &str, loops: u64, options: &ProfileOptions) -> ProfileRun {
        let loops = loops.to_string();
        let words: [OsString; 4] =
            [self.program().into(), mode.into(), self.data().into(), loops.into()];
        let found = run(&words, options).expect("it is profiled");
        assert!(found.status.success() || mode == "killed", "{mode}: {}", found.status);
        found
    }
}

fn has_program(name: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|directory| Path::new(directory).join(name).is_file())
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

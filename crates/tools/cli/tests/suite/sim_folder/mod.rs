//! [`Folder`]: a folder in which `sluice sim` runs.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder with files, deleted when dropped.
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// Creates a folder with these files, given by name and content.
    pub fn new(files: &[(&str, &str)]) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        for (name, content) in files {
            folder.write(name, content);
        }
        folder
    }

    /// Writes a file, and makes the folders that it is in.
    pub fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(path, content).unwrap();
    }

    /// Returns the path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the text of a file.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Returns the command `sluice sim` with these arguments, run in the folder.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.arg("sim").args(args).current_dir(self.0.path()).env("NO_COLOR", "1");
        command
    }

    /// Runs `sluice sim` to its end.
    pub fn sim(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs `sluice sim`, which must end with this exit code; returns standard output and standard
    /// error.
    pub fn run_to_end(&self, args: &[&str], code: i32) -> (String, String) {
        output_text(self.sim(args), code)
    }
}

/// Returns standard output and standard error of a process that must have ended with this exit
/// code.
pub fn output_text(out: Output, code: i32) -> (String, String) {
    let [said, told] = [out.stdout, out.stderr].map(|b| String::from_utf8(b).expect("UTF-8"));
    assert_eq!(out.status.code(), Some(code), "{told}");
    (said, told)
}

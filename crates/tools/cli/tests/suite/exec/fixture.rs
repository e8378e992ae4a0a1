//! [`Fixture`]: a volume on a file, and programs to run on it.

use std::path::Path;
use std::process::{Command, Output};

pub(crate) use super::library::{SLUICE, build, text};

/// A temporary directory with a volume.
pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    /// Name of the volume's device in the directory.
    device: &'static str,
}

impl Fixture {
    /// Creates a volume on a file of `bytes` bytes.
    pub(crate) fn new(bytes: u64) -> Fixture {
        let stage = Fixture::empty("disk.img");
        std::fs::File::create(stage.path("disk.img")).unwrap().set_len(bytes).unwrap();
        stage.format()
    }

    /// Creates a volume on the drive of a scenario, which keeps its data in an image.
    pub(crate) fn on_scenario(text: &str) -> Fixture {
        Fixture::unformatted(text).format()
    }

    /// Writes a scenario, on whose drive there is no volume.
    pub(crate) fn unformatted(text: &str) -> Fixture {
        let stage = Fixture::empty("drive.toml");
        std::fs::write(stage.path("drive.toml"), text).unwrap();
        stage
    }

    fn empty(device: &'static str) -> Fixture {
        build();
        Fixture { dir: tempfile::tempdir().unwrap(), device }
    }

    fn format(self) -> Fixture {
        let out = self.sluice(&["volume", "format", &self.path(self.device)]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        self
    }

    /// Returns a path in the directory.
    pub(crate) fn path(&self, name: &str) -> String {
        let dir = self.dir.path().canonicalize().unwrap();
        dir.join(name).to_str().unwrap().to_owned()
    }

    /// Runs `sluice`.
    pub(crate) fn sluice(&self, args: &[&str]) -> Output {
        Command::new(SLUICE).args(args).output().unwrap()
    }

    /// Runs a program on the host.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Output {
        Command::new(program).args(args).output().unwrap()
    }

    /// Returns the command that runs a program with the volume at `at`.
    pub(crate) fn command(&self, program: &[&str]) -> Command {
        self.command_with(&[], program)
    }

    /// Returns the command with options of `sluice exec`.
    pub(crate) fn command_with(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        let (disk, at) = (self.path(self.device), self.path("at"));
        command.args(["--foreground", "-s", "KILL", "120", SLUICE, "exec", "--volume", &disk]);
        command.args(["--at", &at]).args(options).arg("--").args(program);
        command
    }

    /// Runs a program with the volume at `at`.
    pub(crate) fn exec(&self, program: &[&str]) -> Output {
        self.command(program).output().unwrap()
    }

    /// Compiles a program of this folder, and returns its path.
    pub(crate) fn compile(&self, name: &str) -> String {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/suite/exec/{name}.c"));
        let program = self.path(name);
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-w", "-pthread", "-D_FILE_OFFSET_BITS=64", "-o", &program]);
        let out = cc.arg(source).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        program
    }

    /// Compiles a statically linked program.
    pub(crate) fn compile_static(&self) -> String {
        let (source, program) = (self.path("static.c"), self.path("static"));
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let out = Command::new("cc").args(["-static", "-o", &program, &source]).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        program
    }

    /// Checks that the volume is not in use, and that fsck finds it clean.
    pub(crate) fn is_clean(&self) {
        let device = self.path(self.device);
        let out = self.sluice(&["volume", "fsck", &device]);
        assert_eq!(text(&out.stdout), "clean\n", "{}", text(&out.stderr));
        let info = self.sluice(&["volume", "info", &device]);
        assert!(text(&info.stdout).contains("in use by    nobody"), "{}", text(&info.stdout));
    }
}

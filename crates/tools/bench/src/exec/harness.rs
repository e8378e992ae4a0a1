//! [`ExecHarness`]: a drive or a file of the host, and both paths to it: a [`ProgramDir`] each for
//! a program's files.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::child_process::{command_dying_with_parent, command_killed_with_parent, run_to_end};
use super::mount::{Ext4Mount, Fuse};
use super::server::Server;
use crate::BenchError;

/// Prefix of the directories of runs; the process id follows.
const SCRATCH: &str = "sluice-bench-exec-";
/// Size of a file of the host in bytes.
const FILE_BYTES: u64 = 1 << 30;

/// Device under the file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackingDevice {
    /// An emulated drive with zero latency.
    Timeless,
    /// An emulated drive with the timing of the drive in \[NVMeDirect16\].
    Nand,
    /// Such a drive with a volatile write buffer, so that a flush waits for programs.
    NandBehindBuffer,
    /// A file of the host.
    File,
}

impl BackingDevice {
    pub(super) const ALL: [BackingDevice; 3] =
        [BackingDevice::Timeless, BackingDevice::Nand, BackingDevice::File];

    /// Returns the name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            BackingDevice::Timeless => "drive without timing",
            BackingDevice::Nand => "drive consumer-nvme",
            BackingDevice::NandBehindBuffer => "drive consumer-nvme, volatile write buffer",
            BackingDevice::File => "host file",
        }
    }

    /// Returns the name of the kernel's path to it in results.
    pub(super) fn kernel_path(self) -> &'static str {
        match self {
            BackingDevice::Timeless | BackingDevice::Nand | BackingDevice::NandBehindBuffer => {
                "ext4 on a loop device over FUSE over NBD"
            }
            BackingDevice::File => "ext4 on a loop device, no emulated drive",
        }
    }

    /// Returns the drive of the paper with fewer blocks; channels, dies and timing are unchanged.
    pub(super) fn scenario(self) -> Option<String> {
        let drive = "[drive]\npreset = \"consumer-nvme\"\n";
        let geometry = "[drive.geometry]\nchunks = 24\n";
        let none = "[drive.timing]\nread = 0\nprogram = 0\nerase = 0\nchannel = 0\n\
                    [drive.controller]\nfetch_latency = 0\ncompletion_latency = 0\ndma_bandwidth = 0\n";
        // The host's memory is there before the programs start.
        let buffer = "prealloc = \"2G\"\nwrite_buffer = { kind = \"volatile\" }\n";
        match self {
            BackingDevice::Timeless => Some(format!("{drive}{geometry}{none}")),
            BackingDevice::NandBehindBuffer => Some(format!("{drive}{buffer}{geometry}")),
            BackingDevice::Nand => Some(format!("{drive}{geometry}")),
            BackingDevice::File => None,
        }
    }
}

/// Path of a program's reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoPath {
    Exec,
    Kernel,
}

impl IoPath {
    /// In the order of samples.
    pub(super) const ALL: [IoPath; 2] = [IoPath::Exec, IoPath::Kernel];
}

/// Directory of a program's files.
#[derive(Clone, Debug)]
pub(super) struct ProgramDir {
    /// The directory as the program sees it.
    pub(super) directory: PathBuf,
    /// Processes between program and drive that live as long as the harness.
    pub(super) processes: Vec<u32>,
    volume: Option<Volume>,
    /// Whether the device has a log in its persistent memory region.
    has_write_log: bool,
    /// Whether syncs of programs return at once, and output waits for them.
    speculation: Option<&'static str>,
}

/// Device of a volume.
#[derive(Clone, Debug)]
enum Volume {
    /// The device has a volume.
    Formatted(String),
    /// Every command creates an empty volume in memory, which ends with its process.
    New(String),
}

impl ProgramDir {
    /// Returns a directory on a volume that every command creates anew, on the drive of a scenario.
    pub(super) fn on_new_volume(directory: PathBuf, scenario: &Path) -> ProgramDir {
        let volume = Volume::New(scenario.to_string_lossy().into_owned());
        let processes = Vec::new();
        ProgramDir {
            directory,
            processes,
            volume: Some(volume),
            has_write_log: false,
            speculation: None,
        }
    }

    /// Gives the device a log in its whole persistent memory region.
    pub(super) fn with_write_log(self) -> ProgramDir {
        ProgramDir { has_write_log: true, ..self }
    }

    /// Lets syncs of programs return at once, with a value of `--speculate` for the output.
    pub(super) fn with_speculation(self, mode: &'static str) -> ProgramDir {
        ProgramDir { speculation: Some(mode), ..self }
    }

    /// Removes everything in a directory that the kernel sees. A new volume is empty anyway.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn clear(&self) -> Result<(), BenchError> {
        if self.volume.is_some() {
            return Ok(());
        }
        for entry in self.directory.read_dir()? {
            let path = entry?.path();
            if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
        }
        Ok(())
    }

    /// Returns a command without arguments whose files are in the directory. Its process may be
    /// that of `sluice exec`.
    ///
    /// # Errors
    /// If the path of this executable is unknown.
    pub(super) fn command(&self, program: &str) -> Result<Command, BenchError> {
        let Some(volume) = &self.volume else { return Ok(command_dying_with_parent(program)) };
        let sluice = std::env::current_exe()?;
        let mut command = match volume {
            Volume::Formatted(_) => command_dying_with_parent(sluice),
            Volume::New(_) => command_killed_with_parent(sluice),
        };
        match volume {
            Volume::Formatted(device) => command.args(["exec", "--volume", device]),
            Volume::New(device) => command.args(["exec", "--format", "--volume", device]),
        };
        if self.has_write_log {
            command.args(["--write-log", "pmr"]);
        }
        if let Some(mode) = self.speculation {
            command.args(["--speculate", mode]);
        }
        command.arg("--at").arg(&self.directory).args(["--", program]);
        Ok(command)
    }
}

/// A directory of this run, which is removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Creates the directory. A process has one at a time.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn new() -> Result<Scratch, BenchError> {
        let directory = std::env::temp_dir().join(format!("{SCRATCH}{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        Ok(Scratch(directory))
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes directories of killed runs; their mounts ended with their processes.
pub(super) fn remove_stale_scratch() {
    let Ok(entries) = std::env::temp_dir().read_dir() else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|n| n.strip_prefix(SCRATCH)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The harness. Fields are dropped from the top of the stack downwards.
#[derive(Debug)]
pub(super) struct ExecHarness {
    pub(super) backing: BackingDevice,
    dirs: [ProgramDir; 2],
    _mount: Ext4Mount,
    _fuse: Option<Fuse>,
    _server: Option<Server>,
    scratch: Scratch,
}

impl ExecHarness {
    /// Creates the harness with an empty volume and an empty ext4.
    ///
    /// # Errors
    /// Any failure; everything created before is removed.
    pub(super) fn new(below: BackingDevice) -> Result<ExecHarness, BenchError> {
        let scratch = Scratch::new()?;
        let dir = &scratch.0;
        let [at, mounted] = [dir.join("volume"), dir.join("ext4")];
        let (server, fuse, volume, file) = match below.scenario() {
            Some(scenario) => {
                let server = Server::start(dir, &scenario)?;
                let fuse = Fuse::new(server.nbd(), dir.join("fuse"))?;
                let (volume, file) = (server.direct()?, fuse.file());
                (Some(server), Some(fuse), volume, file)
            }
            None => {
                let files = [dir.join("volume.img"), dir.join("ext4.img")];
                for file in &files {
                    std::fs::File::create(file)?.set_len(FILE_BYTES)?;
                }
                let [volume, file] = files;
                (None, None, volume.to_string_lossy().into_owned(), file)
            }
        };
        let mut format = Command::new(std::env::current_exe()?);
        run_to_end(format.args(["volume", "format", &volume]))?;
        let mount = Ext4Mount::new(&file, mounted.clone())?;
        let drive = server.iter().map(Server::process);
        let volume = Some(Volume::Formatted(volume));
        let places = [
            ProgramDir {
                directory: at,
                processes: drive.clone().collect(),
                volume,
                has_write_log: false,
                speculation: None,
            },
            ProgramDir {
                directory: mounted,
                processes: drive.chain(fuse.iter().map(Fuse::process)).collect(),
                volume: None,
                has_write_log: false,
                speculation: None,
            },
        ];
        Ok(ExecHarness {
            backing: below,
            dirs: places,
            _mount: mount,
            _fuse: fuse,
            _server: server,
            scratch,
        })
    }

    /// Returns the directory of one path.
    pub(super) fn dir(&self, way: IoPath) -> &ProgramDir {
        match way {
            IoPath::Exec => &self.dirs[0],
            IoPath::Kernel => &self.dirs[1],
        }
    }

    /// Returns a directory on the host for files that are not measured.
    pub(super) fn scratch(&self) -> &Path {
        &self.scratch.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use media::MediaConfig;
    use scenario::Scenario;

    #[test]
    fn the_drives_are_alike_but_for_time() {
        let [timeless, nand] = [BackingDevice::Timeless, BackingDevice::Nand].map(|below| {
            let text = below.scenario().unwrap();
            let scenario = Scenario::parse(Path::new("bench"), &text).unwrap();
            let MediaConfig::Nand(nand) = &scenario.drives[0].config.media else { panic!() };
            (format!("{:?}", nand.geometry), format!("{:?}", nand.timing))
        });
        assert_eq!(timeless.0, nand.0);
        assert_ne!(timeless.1, nand.1);
        assert_eq!(BackingDevice::File.scenario(), None);
    }

    #[test]
    fn what_killed_runs_left_is_swept_and_nothing_else() {
        // No process has this id: it exceeds the kernel's limit.
        let gone = std::env::temp_dir().join(format!("{SCRATCH}{}", u32::MAX));
        let own = std::env::temp_dir().join(format!("{SCRATCH}{}", std::process::id()));
        for dir in [&gone, &own] {
            std::fs::create_dir_all(dir.join("below")).unwrap();
        }
        let own = Scratch(own);
        remove_stale_scratch();
        assert!(!gone.exists() && own.0.exists());
        let path = own.0.clone();
        drop(own);
        assert!(!path.exists());
    }
}

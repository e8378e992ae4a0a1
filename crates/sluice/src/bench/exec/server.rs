//! [`Server`]: `sluice serve` with one drive, of which NBD has one half and direct clients have the other.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::child_process::{ChildProcess, command_dying_with_parent};
use super::setup;
use crate::bench::BenchError;

/// Sectors of 4096 bytes that either way has.
const SECTORS: u64 = 1 << 18;

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    child: ChildProcess,
    nbd: PathBuf,
    socket: PathBuf,
}

impl Server {
    /// Serves the drive of a scenario's text; sockets and the scenario are in `dir`.
    ///
    /// # Errors
    /// When it does not start; with what it said.
    pub(super) fn start(dir: &Path, drive: &str) -> Result<Server, BenchError> {
        let [scenario, nbd, socket] = ["drive.toml", "nbd.sock", "drive.sock"].map(|f| dir.join(f));
        let shares = format!(
            "{drive}\n[[partition]]\nname = \"kernel\"\nsectors = {SECTORS}\nnbd = true\n\n\
             [[partition]]\nname = \"exec\"\nfirst = {SECTORS}\nsectors = {SECTORS}\n"
        );
        std::fs::write(&scenario, shares)?;
        let mut command = command_dying_with_parent(std::env::current_exe()?);
        command.arg("serve").arg(&scenario).arg("--socket").arg(&socket);
        command.arg("--nbd").arg(format!("unix:{}", nbd.display()));
        let mut companion = ChildProcess::start(&mut command)?;
        // A socket is there before anybody listens at it. The first to come to the other is a program that is
        // started later.
        companion.wait_until(|| socket.exists() && UnixStream::connect(&nbd).is_ok())?;
        Ok(Server { child: companion, nbd, socket })
    }

    /// The socket that speaks NBD.
    pub(super) fn nbd(&self) -> &Path {
        &self.nbd
    }

    /// The half for direct clients, as `sluice::open` takes it.
    ///
    /// # Errors
    /// When the directory's name is not UTF-8.
    pub(super) fn direct(&self) -> Result<String, BenchError> {
        let socket = self.socket.to_str().ok_or_else(|| setup("the directory is not UTF-8"))?;
        Ok(format!("sluice://{socket}#exec"))
    }

    /// Its process.
    pub(super) fn process(&self) -> u32 {
        self.child.process()
    }
}

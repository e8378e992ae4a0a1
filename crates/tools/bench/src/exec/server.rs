//! [`Server`]: `sluice serve` with one drive, half of it for NBD and half for direct clients.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::child_process::{ChildProcess, command_dying_with_parent};
use super::setup;
use crate::BenchError;

/// Number of 4096-byte sectors of each half.
const SECTORS: u64 = 1 << 18;

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    child: ChildProcess,
    nbd: PathBuf,
    socket: PathBuf,
}

impl Server {
    /// Serves the drive of a scenario's text, with the sockets and the scenario in `dir`.
    ///
    /// # Errors
    /// If it does not start; the message has its output.
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
        // A socket exists before the server listens on it. The first client of the other socket is
        // a program that is started later.
        companion.wait_until(|| socket.exists() && UnixStream::connect(&nbd).is_ok())?;
        Ok(Server { child: companion, nbd, socket })
    }

    /// Returns the path of the NBD socket.
    pub(super) fn nbd(&self) -> &Path {
        &self.nbd
    }

    /// Returns the half for direct clients, in the form of `sluice::open`.
    ///
    /// # Errors
    /// If the directory's name is not UTF-8.
    pub(super) fn direct(&self) -> Result<String, BenchError> {
        let socket = self.socket.to_str().ok_or_else(|| setup("the directory is not UTF-8"))?;
        Ok(format!("sluice://{socket}#exec"))
    }

    /// Returns the id of its process.
    pub(super) fn process(&self) -> u32 {
        self.child.process()
    }
}

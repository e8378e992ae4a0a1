//! `sluice admin stats`: statistics of served drives, from another process.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use share_proto::Code;
use user_io::RemoteDeviceError;
use user_io::remote::{Admin, RemovalReason};

use crate::CliError;
use crate::args::AdminStatsArgs;
use crate::serve::{Signals, interval};

/// Next step after an output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FollowState {
    Continue,
    /// The reader of the output has closed it.
    ReaderGone,
}

/// Runs `sluice admin stats`.
///
/// # Errors
/// [`CliError`] if no server runs, if it refuses, or if it was killed during `--follow`.
pub(super) fn run(socket: &Path, args: &AdminStatsArgs) -> Result<(), CliError> {
    let mut admin = Admin::connect(socket)?;
    if !args.follow {
        return show(&mut admin, args.json).map(drop);
    }
    let signals =
        Signals::catch().map_err(|e| CliError::Other(format!("cannot catch signals: {e}")))?;
    match follow(&mut admin, args, &signals) {
        // The server stops cleanly, so the command ends cleanly, too.
        Err(FollowError::Server(RemoteDeviceError::Removed(RemovalReason::Disconnected(why))))
            if why.code == Code::Stopping =>
        {
            Ok(())
        }
        Err(FollowError::Server(error)) => Err(error.into()),
        Err(FollowError::Local(failure)) => Err(failure),
        Ok(()) => Ok(()),
    }
}

/// Reason for the end of `--follow`.
enum FollowError {
    Server(RemoteDeviceError),
    Local(CliError),
}

fn follow(admin: &mut Admin, args: &AdminStatsArgs, signals: &Signals) -> Result<(), FollowError> {
    // The first interval starts here; discard earlier statistics.
    admin.stats().map_err(FollowError::Server)?;
    let every = Duration::from_secs(args.interval);
    let mut next = Instant::now() + every;
    loop {
        if sleep(next, admin, signals).map_err(FollowError::Local)? {
            return Ok(());
        }
        // A delayed interval does not shorten the next one.
        next = (next + every).max(Instant::now());
        let text = text(admin, args.json).map_err(FollowError::Server)?;
        if write(&text).map_err(FollowError::Local)? == FollowState::ReaderGone {
            return Ok(());
        }
    }
}

/// Sleeps until `next` or until the server sends a message; returns whether a signal arrived.
fn sleep(next: Instant, admin: &Admin, signals: &Signals) -> Result<bool, CliError> {
    loop {
        if signals.is_received() {
            return Ok(true);
        }
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let (server, signal) = (admin.as_fd(), signals.as_fd());
        let mut fds = [PollFd::new(&server, PollFlags::IN), PollFd::new(&signal, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(CliError::Other(format!("cannot wait: {error}"))),
        }
        if !fds[0].revents().is_empty() {
            // The server has closed the connection; the next request returns the reason.
            return Ok(false);
        }
    }
}

fn text(admin: &mut Admin, json: bool) -> Result<String, RemoteDeviceError> {
    let mut text = String::new();
    for (drive, stats) in admin.stats()? {
        match json {
            true => text.push_str(&interval::to_json(drive.as_str(), &stats).to_string()),
            false => text.push_str(&interval::status_line(drive.as_str(), &stats)),
        }
        text.push('\n');
    }
    Ok(text)
}

fn show(admin: &mut Admin, json: bool) -> Result<FollowState, CliError> {
    write(&text(admin, json)?)
}

fn write(text: &str) -> Result<FollowState, CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(FollowState::Continue),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(FollowState::ReaderGone),
        Err(e) => Err(CliError::Other(format!("cannot write the answer: {e}"))),
    }
}

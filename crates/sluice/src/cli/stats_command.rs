//! `sluice admin stats`: what served drives do, from outside of the server.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use direct::ServedError;
use direct::served::{Admin, Code, Gone};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Failure;
use super::args::AdminStatsArgs;
use crate::serve::{Signals, interval};

/// What comes after something was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoOn,
    /// Nobody reads any more.
    End,
}

/// Runs `sluice admin stats`.
///
/// # Errors
/// That there is no server, or that it refuses; that it was killed while it was followed.
pub(super) fn run(socket: &Path, args: &AdminStatsArgs) -> Result<(), Failure> {
    let mut admin = Admin::connect(socket)?;
    if !args.follow {
        return show(&mut admin, args.json).map(drop);
    }
    let signals =
        Signals::catch().map_err(|e| Failure::Other(format!("cannot catch signals: {e}")))?;
    match follow(&mut admin, args, &signals) {
        // It stops in good order, and so does who watches it.
        Err(Ended::Server(ServedError::Gone(Gone::Ended(why)))) if why.code == Code::Stopping => {
            Ok(())
        }
        Err(Ended::Server(error)) => Err(error.into()),
        Err(Ended::Here(failure)) => Err(failure),
        Ok(()) => Ok(()),
    }
}

/// Why there is nothing more to follow.
enum Ended {
    Server(ServedError),
    Here(Failure),
}

fn follow(admin: &mut Admin, args: &AdminStatsArgs, signals: &Signals) -> Result<(), Ended> {
    // The first interval begins here: what was before is nothing that is asked for.
    admin.stats().map_err(Ended::Server)?;
    let every = Duration::from_secs(args.interval);
    let mut next = Instant::now() + every;
    loop {
        if sleep(next, admin, signals).map_err(Ended::Here)? {
            return Ok(());
        }
        // One that was late does not make the next shorter than it is.
        next = (next + every).max(Instant::now());
        let text = text(admin, args.json).map_err(Ended::Server)?;
        if write(&text).map_err(Ended::Here)? == Then::End {
            return Ok(());
        }
    }
}

/// Sleeps until `next`, or until the server has something to say; whether a signal came.
fn sleep(next: Instant, admin: &Admin, signals: &Signals) -> Result<bool, Failure> {
    loop {
        if signals.received() {
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
            Err(error) => return Err(Failure::Other(format!("cannot wait: {error}"))),
        }
        if !fds[0].revents().is_empty() {
            // It has ended the connection; the next question is told why.
            return Ok(false);
        }
    }
}

fn text(admin: &mut Admin, json: bool) -> Result<String, ServedError> {
    let mut text = String::new();
    for (drive, stats) in admin.stats()? {
        match json {
            true => text.push_str(&interval::to_json(drive.as_str(), &stats).to_string()),
            false => text.push_str(&interval::line(drive.as_str(), &stats)),
        }
        text.push('\n');
    }
    Ok(text)
}

fn show(admin: &mut Admin, json: bool) -> Result<Then, Failure> {
    write(&text(admin, json)?)
}

fn write(text: &str) -> Result<Then, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Then::GoOn),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Then::End),
        Err(e) => Err(Failure::Other(format!("cannot write the answer: {e}"))),
    }
}

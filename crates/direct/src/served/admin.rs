//! [`Admin`]: who may use what, asked and said by the server's own user and by root.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use clock::Nanos;

use super::ask::Asker;
use super::interval::IntervalStats;
use super::message::{Entry, Message, Whom};
use super::name::Name;
use super::open::ServedConfig;
use super::refusal::{Code, Refusal, ServedError};
use super::rule::{Rule, Subject};

/// A connection to a server, to administrate it.
#[derive(Debug)]
pub struct Admin {
    asker: Asker,
}

impl Admin {
    /// Connects to the server at `path`; each answer may take [`ServedConfig::TIMEOUT`].
    ///
    /// # Errors
    /// [`ServedError::Connect`], [`ServedError::Unanswered`]; [`ServedError::Refused`] with [`Code::NotAdmin`] for users who may
    /// not.
    pub fn connect(path: impl AsRef<Path>) -> Result<Admin, ServedError> {
        Admin::connect_within(path, ServedConfig::TIMEOUT)
    }

    /// The same, where each answer may take as long as `timeout`.
    ///
    /// # Errors
    /// As [`connect`](Admin::connect).
    pub fn connect_within(path: impl AsRef<Path>, timeout: Nanos) -> Result<Admin, ServedError> {
        let asker = Asker::connect(path.as_ref(), timeout)?;
        if !asker.admin {
            let text = "only the user who runs the server, and root, may administrate it";
            return Err(Refusal::new(Code::NotAdmin, text).into());
        }
        Ok(Admin { asker })
    }

    fn done(&mut self, message: Message) -> Result<u64, ServedError> {
        match self.asker.ask(message, &[], 0)? {
            (Message::Done { count }, _) => Ok(count),
            (answer, _) => Err(ServedError::Answer { answer: answer.title() }),
        }
    }

    /// Lets a subject use a partition from now on, in place of what it could do there before. Returns
    /// whether there was something before. Connections that exist stay as they are.
    ///
    /// # Errors
    /// [`ServedError`].
    pub fn allow(&mut self, rule: Rule) -> Result<bool, ServedError> {
        Ok(self.done(Message::Allow(rule))? > 0)
    }

    /// Takes a subject's permission back, for one partition or, without one, all of a drive's; and
    /// ends the connections that live by it. Returns how many rules that were.
    ///
    /// # Errors
    /// [`ServedError`]; [`Code::Unknown`] if there was none.
    pub fn deny(
        &mut self,
        subject: Subject,
        device: Name,
        partition: Option<Name>,
    ) -> Result<u64, ServedError> {
        let partition = partition.unwrap_or_default();
        self.done(Message::Deny { subject, device, partition })
    }

    /// Ends connections, and returns how many. Whoever may connect may do so again.
    ///
    /// # Errors
    /// [`ServedError`]; [`Code::Unknown`] if there was none.
    pub fn kick(&mut self, whom: Whom) -> Result<u64, ServedError> {
        self.done(Message::Kick(whom))
    }

    /// All partitions, rules and clients, in this order.
    ///
    /// # Errors
    /// [`ServedError`].
    pub fn list(&mut self) -> Result<Vec<Entry>, ServedError> {
        let mut entries = Vec::new();
        loop {
            let index = entries.len() as u32;
            match self.asker.ask(Message::List { index }, &[], 0)? {
                (Message::Entry(entry), _) => entries.push(entry),
                (Message::Done { .. }, _) => return Ok(entries),
                (answer, _) => return Err(ServedError::Answer { answer: answer.title() }),
            }
        }
    }

    /// The statistics of each drive over the time since this connection's last call; the first call
    /// covers the time since the server began to serve the drive.
    ///
    /// # Errors
    /// [`ServedError`].
    pub fn stats(&mut self) -> Result<Vec<(Name, IntervalStats)>, ServedError> {
        let mut drives = Vec::new();
        loop {
            let index = drives.len() as u32;
            match self.asker.ask(Message::Stats { index }, &[], 0)? {
                (Message::Interval { device, stats }, _) => drives.push((device, *stats)),
                (Message::Done { .. }, _) => return Ok(drives),
                (answer, _) => return Err(ServedError::Answer { answer: answer.title() }),
            }
        }
    }
}

impl AsFd for Admin {
    /// Readable while no question is asked when the server has ended the connection: the next question
    /// returns why.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asker.as_fd()
    }
}

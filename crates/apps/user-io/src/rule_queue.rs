//! [`RuleQueue`]: a queue of an NVMe drive for commands to its rules and on sectors with names
//! (`docs/rules.md`).
//!
//! Such commands are no requests of block devices: no file and no target has them, and schedulers and
//! policies have nothing to do with them. So they have a queue pair of their own, beside those of
//! [`Queue`](crate::Queue). Its owner has it alone (ARCHITECTURE.md, R4).

use std::io;
use std::sync::Arc;

use driver::{QueueFull, QueuePair};
use event::Parker;
use nvme::{
    FoundNameEntry, NamedCommand, RULE_BUFFER_BYTES_MAX, RuleCommand, RuleEventLog, RuleReply,
    RuleTableAction, RuleTableEntry, SglDescriptor, Sqe, Status,
};
use time::Nanos;
use transport::Port;

use crate::device_inner::{Backend, DeviceInner, PRESENCE_CHECK_INTERVAL, lock};
use crate::{Buffer, DirectError, IoDevice, QueueConfig};

/// A completed command for the rules of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCompletion {
    /// The number that the command was submitted with.
    pub user: u64,
    /// The status. Those of rules are `Status::RULE_NOT_FOUND` and others.
    pub status: Status,
    /// The value of the rule, and the number of bytes in the buffer. Of a named write, the value is the name
    /// of the sector.
    pub reply: RuleReply,
}

/// A command in flight.
#[derive(Clone, Copy, Debug, Default)]
struct InFlightRule {
    user: u64,
    has_buffer: bool,
}

/// A queue for commands to the rules of a drive, and on sectors with names. Dropping it abandons the outstanding ones.
#[derive(Debug)]
pub struct RuleQueue {
    /// `None` only while it is dropped.
    pair: Option<QueuePair>,
    /// By tag.
    in_flight: Box<[InFlightRule]>,
    nsid: u32,
    /// Whether commands were submitted since the doorbell was written.
    has_unrung: bool,
    /// Where a waiting owner sleeps, if the queue has interrupts.
    parker: Option<Parker>,
    device: Arc<DeviceInner>,
}

impl IoDevice {
    /// Creates a queue for commands to the rules of the drive. With `config.interrupts` its owner sleeps
    /// while it waits, if the device has interrupts; else it polls.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] if the device is not an NVMe drive; [`DirectError::Drive`] if it has no queue
    /// left; [`DirectError::Memory`] if no file descriptor is left.
    pub fn rule_queue(&self, config: QueueConfig) -> Result<RuleQueue, DirectError> {
        let device = self.inner().clone();
        let Backend::Drive(way) = &device.backend else { return Err(self.no_drive_error()) };
        let pair = device.wait_for_admin(|progress| {
            way.create_queue_pair(config, progress).map_err(Into::into)
        })?;
        let in_flight = vec![InFlightRule::default(); usize::from(pair.capacity())].into();
        let nsid = way.info.nsid;
        let port = lock(&way.controller).port().clone();
        let (pair, has_unrung, parker) = (Some(pair), false, None);
        let mut queue = RuleQueue { pair, in_flight, nsid, has_unrung, parker, device };
        queue.listen(&port).map_err(|source| DirectError::Memory { bytes: 0, source })?;
        Ok(queue)
    }

    /// Changes entries of a table of the drive's rules, in order. `table` is its number in the program.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] if the device is not an NVMe drive; [`DirectError::Drive`] with the status of
    /// the first entry that the table does not take. Those before it are stored.
    pub fn edit_rule_table(
        &self,
        table: u8,
        action: RuleTableAction,
        entries: &[RuleTableEntry],
    ) -> Result<(), DirectError> {
        let Backend::Drive(way) = &self.inner().backend else { return Err(self.no_drive_error()) };
        self.inner().wait_for_admin(|progress| {
            Ok(lock(&way.controller).edit_rule_table(table, action, entries, progress)?)
        })
    }

    /// Returns the values of `count` consecutive keys of a table of the drive's rules, from `first` on: 1
    /// for each key that a set has.
    ///
    /// # Errors
    /// As [`edit_rule_table`](IoDevice::edit_rule_table); also for indices past the end of an array.
    pub fn rule_table_values(
        &self,
        table: u8,
        first: u64,
        count: u32,
    ) -> Result<Vec<u64>, DirectError> {
        let Backend::Drive(way) = &self.inner().backend else { return Err(self.no_drive_error()) };
        self.inner().wait_for_admin(|progress| {
            Ok(lock(&way.controller).rule_table_values(table, first, count, progress)?)
        })
    }

    /// Takes events that rules have posted for the application of the device: up to
    /// [`RuleEventLog::ENTRIES`], the oldest ones. They are gone from the drive then.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] if the device is not an NVMe drive; [`DirectError::Drive`] if the drive has no
    /// rules, or several applications and the device is none of them.
    pub fn take_rule_events(&self) -> Result<RuleEventLog, DirectError> {
        let Backend::Drive(way) = &self.inner().backend else { return Err(self.no_drive_error()) };
        self.inner()
            .wait_for_admin(|progress| Ok(lock(&way.controller).take_rule_events(progress)?))
    }

    /// Returns valid sectors with names that the drive found when it was powered on, in the order of their
    /// locations, from `first` on: `count` at most. Fewer are the last ones, and the drive discards all of
    /// them then. Names of sectors that have moved since are old ones.
    ///
    /// # Errors
    /// As [`take_rule_events`](IoDevice::take_rule_events); also if `first` is past the end.
    pub fn found_names(
        &self,
        first: u64,
        count: usize,
    ) -> Result<Vec<FoundNameEntry>, DirectError> {
        let Backend::Drive(way) = &self.inner().backend else { return Err(self.no_drive_error()) };
        self.inner().wait_for_admin(|progress| {
            Ok(lock(&way.controller).found_names(first, count, progress)?)
        })
    }
}

impl RuleQueue {
    /// Has completions, and the end of a served drive, wake the owner of a queue with interrupts.
    fn listen(&mut self, port: &Port) -> io::Result<()> {
        let Some(pair) = self.pair.as_ref().filter(|pair| pair.vector().is_some()) else {
            return Ok(());
        };
        let parker = Parker::new()?;
        self.device.set_queue_pair_waker(pair, port, parker.waker())?;
        self.parker = Some(parker);
        Ok(())
    }

    fn pair_mut(&mut self) -> &mut QueuePair {
        match &mut self.pair {
            Some(pair) => pair,
            None => unreachable!("a queue that is dropped is not used"),
        }
    }

    /// Submits a command. The drive sees it at the next [`reap`](RuleQueue::reap) or
    /// [`wait_until`](RuleQueue::wait_until), with those that were submitted before. `buffer` receives what the rules return: its length replaces
    /// `command.buffer_bytes`, [`RULE_BUFFER_BYTES_MAX`] at most. It must live until the command has completed.
    ///
    /// # Errors
    /// [`QueueFull`]; the command was not taken.
    pub fn submit(
        &mut self,
        command: RuleCommand,
        buffer: Option<&Buffer>,
        user: u64,
    ) -> Result<(), QueueFull> {
        let (nsid, mut command) = (self.nsid, command);
        let limit = RULE_BUFFER_BYTES_MAX as usize;
        command.buffer_bytes = buffer.map_or(0, |buffer| buffer.len().min(limit) as u32);
        let has_buffer = command.buffer_bytes > 0;
        self.push(command.to_sqe(nsid), buffer, InFlightRule { user, has_buffer })
    }

    /// Submits a command on a sector with a name. `buffer` has the data of a write, or receives that of a read:
    /// one sector, at its begin; a command that frees a sector has none. It must live until the command has
    /// completed.
    ///
    /// # Errors
    /// [`QueueFull`]; the command was not taken.
    pub fn submit_named(
        &mut self,
        command: NamedCommand,
        buffer: Option<&Buffer>,
        user: u64,
    ) -> Result<(), QueueFull> {
        let sqe = command.to_sqe(self.nsid);
        self.push(sqe, buffer, InFlightRule { user, has_buffer: false })
    }

    fn push(
        &mut self,
        mut sqe: Sqe,
        buffer: Option<&Buffer>,
        in_flight: InFlightRule,
    ) -> Result<(), QueueFull> {
        if let Some(buffer) = buffer {
            let length = buffer.len().min(RULE_BUFFER_BYTES_MAX as usize) as u32;
            sqe.set_sgl(SglDescriptor::DataBlock { address: buffer.iova().0, length });
        }
        let pair = self.pair_mut();
        let tag = pair.next_tag().ok_or(QueueFull)?;
        pair.submit(sqe, tag.0.into())?;
        self.has_unrung = true;
        self.in_flight[usize::from(tag.0)] = in_flight;
        Ok(())
    }

    /// Returns the next completed command.
    pub fn reap(&mut self) -> Option<RuleCompletion> {
        let has_unrung = std::mem::take(&mut self.has_unrung);
        let pair = self.pair_mut();
        if has_unrung {
            pair.ring();
        }
        let done = pair.reap()?;
        pair.release();
        let InFlightRule { user, has_buffer } = *self.in_flight.get(done.user as usize)?;
        let reply = RuleReply::from_result(done.result, has_buffer);
        Some(RuleCompletion { user, status: done.status, reply })
    }

    /// Returns the next completed command. Without one, waits for it while the drive runs, until the
    /// device's clock shows `limit`. A real controller that is unplugged wakes no owner, so that one who sleeps
    /// wakes up twice a second.
    pub fn wait_until(&mut self, limit: Nanos) -> Option<RuleCompletion> {
        let (clock, device) = (self.device.clock, self.device.clone());
        let mut done = self.reap();
        while done.is_none() && clock.now() <= limit && device.removal_reason().is_none() {
            let Some(parker) = self.parker.take() else {
                (device.progress())();
                done = self.reap();
                continue;
            };
            parker.prepare();
            done = self.reap();
            match done {
                Some(_) => parker.unpark(),
                // EINTR counts as a wakeup; `ppoll` cannot fail otherwise for a valid descriptor.
                None => {
                    let left = limit.since(clock.now()).min(PRESENCE_CHECK_INTERVAL);
                    drop(parker.park(&[], left));
                }
            }
            self.parker = Some(parker);
        }
        done
    }

    /// Executes a command, and waits for its end while the drive runs. Other commands must not be
    /// outstanding.
    ///
    /// # Errors
    /// [`DirectError::Rules`] if the drive does not answer within the timeout of the device.
    pub fn run(
        &mut self,
        command: RuleCommand,
        buffer: Option<&Buffer>,
    ) -> Result<RuleCompletion, DirectError> {
        let submitted = self.submit(command, buffer, 0);
        self.finish(submitted)
    }

    /// Executes a command on a sector with a name, as [`run`](RuleQueue::run) executes a command for rules.
    ///
    /// # Errors
    /// As [`run`](RuleQueue::run).
    pub fn run_named(
        &mut self,
        command: NamedCommand,
        buffer: Option<&Buffer>,
    ) -> Result<RuleCompletion, DirectError> {
        let submitted = self.submit_named(command, buffer, 0);
        self.finish(submitted)
    }

    /// Waits for the end of the only command.
    fn finish(&mut self, submitted: Result<(), QueueFull>) -> Result<RuleCompletion, DirectError> {
        submitted.map_err(|error| DirectError::Rules { what: error.to_string() })?;
        let timeout = self.device.timeout;
        let limit = Nanos(self.device.clock.now().0.saturating_add(timeout.0));
        self.wait_until(limit).ok_or_else(|| DirectError::Rules {
            what: match self.device.removal_reason() {
                Some(reason) => reason.to_string(),
                None => {
                    format!("the drive has not answered within {} s", timeout.0 / 1_000_000_000)
                }
            },
        })
    }
}

impl Drop for RuleQueue {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            self.device.delete_queue_pair(pair);
        }
    }
}

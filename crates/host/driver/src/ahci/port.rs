//! [`AhciPort`]: a drive's hardware queue.

use std::sync::Arc;

use ahci::hba;
use ahci::port::{self, is};
use ahci::{COMMAND_SLOTS_MAX, PrdtEntry, RegisterH2d, ata};
use event::Waker;
use mem::{AddressSpace, Iova};
use nvme::Status;
use time::Nanos;

use super::command::{self, AtaCommand, DriveCapabilities};
use super::irq_line::HbaShared;
use super::memory::{INTERNAL_TABLE, PortMemory};
use super::recovery::PortRecovery;
use crate::hal::{BindError, CompletionEvent, HardwareQueue, Limits, QueueState};
use crate::{Request, Tag, TagError, TagSet, TagState};

/// The enabled interrupts of a port.
pub(super) const ENABLED: u32 = is::DHRS | is::PSS | is::SDBS | is::ERRORS;

/// The registers of a port.
#[derive(Clone, Debug)]
pub(super) struct PortRegisters {
    pub(super) shared: Arc<HbaShared>,
    pub(super) index: u8,
}

impl PortRegisters {
    #[inline]
    fn offset(&self, register: usize) -> usize {
        hba::port(self.index.into(), register)
    }

    #[inline]
    pub(super) fn read(&self, register: usize) -> u32 {
        self.shared.function.read(self.offset(register))
    }

    pub(super) fn write(&self, register: usize, value: u32) {
        self.shared.function.write(self.offset(register), value);
    }

    #[inline]
    pub(super) fn set(&self, register: usize, bits: u32) {
        self.shared.function.set_bits(self.offset(register), bits);
    }

    pub(super) fn clear(&self, register: usize, bits: u32) {
        self.shared.function.clear_bits(self.offset(register), bits);
    }

    #[inline]
    pub(super) fn wake(&self) {
        self.shared.function.wake_device();
    }

    /// Sets the addresses of the command list and of the received FISes.
    pub(super) fn set_base_addresses(&self, list: Iova, received: Iova) {
        self.write(port::CLB, list.0 as u32);
        self.write(port::CLBU, (list.0 >> 32) as u32);
        self.write(port::FB, received.0 as u32);
        self.write(port::FBU, (received.0 >> 32) as u32);
    }

    /// Returns whether the drive has BSY or DRQ set.
    pub(super) fn is_busy(&self) -> bool {
        self.read(port::TFD) & u32::from(ata::status::BSY | ata::status::DRQ) != 0
    }

    /// Clears PxSERR and PxIS.
    pub(super) fn clear_errors(&self) {
        self.clear(port::SERR, u32::MAX);
        self.clear(port::IS, u32::MAX);
        self.shared.clear_errors(self.index);
    }

    /// Issues one of the driver's own commands, which reads 512 bytes, in slot 0.
    fn issue_internal(&self, memory: &PortMemory, fis: &RegisterH2d) {
        memory.write_prdt_entry(INTERNAL_TABLE, 0, PrdtEntry::new(memory.page().0, 512));
        memory.write_fis(INTERNAL_TABLE, fis);
        memory.set_command_header(0, INTERNAL_TABLE, false, 1);
        self.set(port::CI, 1);
        self.wake();
    }

    pub(super) fn issue_identify(&self, memory: &PortMemory) {
        self.issue_internal(memory, &RegisterH2d::identify());
    }

    pub(super) fn issue_read_error_log(&self, memory: &PortMemory) {
        self.issue_internal(memory, &RegisterH2d::read_log(ata::QueuedErrorLog::LOG));
    }
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhciPortStats {
    /// Commands issued to the drive; a reissued command counts again.
    pub issued: u64,
    /// Commands completed.
    pub completed: u64,
    /// Commands completed with an error.
    pub errors: u64,
    /// Commands reissued because the drive dropped them when another one failed.
    pub reissued: u64,
    /// Number of restarts of the port after a failed command.
    pub recoveries: u64,
    /// Number of resets (COMRESET).
    pub resets: u64,
    /// Errors that the controller reported without stopping.
    pub minor_errors: u64,
    /// Registers read to find completions.
    pub register_reads: u64,
}

/// A drive's hardware queue. A tag is the NCQ tag, the command slot, and the bit of PxSACT and
/// PxCI.
///
/// - **Reads and writes** are queued commands: they complete in any order.
/// - **Flushes and discards** are not queued. A SATA drive accepts such a command only while it has
///   no other. The queue defers it, with reads and writes that follow, until the commands before it
///   have completed. Deferred commands are then issued before the next unqueued command, so that
///   neither kind starves the other.
/// - **A failed queued command** stops the port ([AHCI1.3 §6.2.2.2]), and the drive drops the
///   others. The queue restarts the port and reads from the drive's log which command failed. It
///   completes that one with an error and reissues the others under their tags. [`poll`] advances
///   this.
/// - **An error of the link or the bus** resets the port; all outstanding commands complete with
///   [`Status::DATA_TRANSFER_ERROR`].
/// - **A single command in the drive cannot be aborted** with native command queuing. A deferred
///   command can. The owner may reset the queue instead.
/// - **A drive that is unplugged**, or does not recover from a reset, is [`QueueState::Removed`]
///   for good.
///
/// Fetching events acknowledges the port's interrupt, unless
/// [`set_self_acknowledge`](AhciPort::set_self_acknowledge) leaves that to an
/// [`AhciInterrupt`](super::AhciInterrupt).
///
/// [`poll`]: HardwareQueue::poll
#[derive(Debug)]
pub struct AhciPort {
    pub(super) registers: PortRegisters,
    pub(super) memory: PortMemory,
    capabilities: DriveCapabilities,
    tags: TagSet,
    /// The command in each slot, to reissue it.
    commands: [AtaCommand; COMMAND_SLOTS_MAX],
    /// Commands that are bound and not to be issued yet.
    bound: u32,
    /// Commands to issue as soon as the drive accepts them.
    deferred: u32,
    /// Queued commands among the bound, deferred and issued ones.
    queued: u32,
    /// Commands issued to the drive.
    pub(super) issued: u32,
    /// Commands completed and not fetched.
    completed: u32,
    /// Statuses of completed commands, by tag.
    statuses: [Status; COMMAND_SLOTS_MAX],
    /// Whether deferred queued commands go before deferred unqueued ones.
    queued_first: bool,
    self_acknowledge: bool,
    pub(super) recovery: PortRecovery,
    pub(super) stats: AhciPortStats,
}

impl AhciPort {
    pub(super) fn new(
        registers: PortRegisters,
        memory: PortMemory,
        capabilities: DriveCapabilities,
    ) -> AhciPort {
        AhciPort {
            registers,
            memory,
            tags: TagSet::new(capabilities.limits.queue_depth as u16),
            capabilities,
            commands: [AtaCommand::default(); COMMAND_SLOTS_MAX],
            bound: 0,
            deferred: 0,
            queued: 0,
            issued: 0,
            completed: 0,
            statuses: [Status::SUCCESS; COMMAND_SLOTS_MAX],
            queued_first: false,
            self_acknowledge: true,
            recovery: PortRecovery::default(),
            stats: AhciPortStats::default(),
        }
    }

    /// Returns the port's number: its bit in
    /// [`AhciInterrupt::pending`](super::AhciInterrupt::pending).
    pub fn port(&self) -> u8 {
        self.registers.index
    }

    /// Returns the limits of the drive.
    pub fn limits(&self) -> Limits {
        self.capabilities.limits
    }

    /// Returns the counters of the port.
    pub fn stats(&self) -> AhciPortStats {
        self.stats
    }

    /// Returns the number of commands in the drive.
    pub fn outstanding(&self) -> u32 {
        self.issued.count_ones()
    }

    /// Sets whether the queue clears the port's interrupt bits before it looks for events. If it
    /// does not, an interrupt handler must
    /// ([`AhciInterrupt::acknowledge`](super::AhciInterrupt::acknowledge)), or the line is never
    /// raised again. Polling with masked interrupts needs neither: [`poll`](HardwareQueue::poll)
    /// finds errors.
    pub fn set_self_acknowledge(&mut self, on: bool) {
        self.self_acknowledge = on;
    }

    /// Looks for completions. Ignores cleared bits of commands that were not issued.
    #[inline]
    fn reap(&mut self) {
        if !self.recovery.is_idle() {
            self.step_recovery(None);
            return;
        }
        // Of an interrupt handler, which acknowledges, the errors are known.
        let raised = if self.self_acknowledge { self.acknowledge_raised() } else { 0 };
        if self.fail_on_error(raised) {
            return;
        }
        if self.issued != 0 {
            self.complete_cleared();
            self.issue_deferred();
        }
    }

    /// Reads PxIS, and acknowledges it. A command that ends afterwards raises the line again.
    #[inline]
    fn acknowledge_raised(&mut self) -> u32 {
        let raised = self.registers.read(port::IS);
        self.stats.register_reads += 1;
        if raised != 0 {
            self.registers.shared.acknowledge(1 << self.registers.index);
        }
        raised
    }

    /// Handles the errors among bits of PxIS and those that were acknowledged. Returns whether there
    /// are any.
    #[inline]
    fn fail_on_error(&mut self, raised: u32) -> bool {
        let known = self.registers.shared.drain_errors(self.registers.index);
        let errors = (raised & is::ERRORS) | known;
        if errors != 0 {
            self.fail(errors);
        }
        errors != 0
    }

    /// Completes the commands whose bits the drive has cleared.
    #[inline]
    pub(super) fn complete_cleared(&mut self) {
        let (queued, alone) = (self.issued & self.queued, self.issued & !self.queued);
        let mut ended = 0;
        if queued != 0 {
            ended |= queued & !self.registers.read(port::SACT);
        }
        if alone != 0 {
            ended |= alone & !self.registers.read(port::CI);
        }
        self.stats.register_reads += u64::from(queued != 0) + u64::from(alone != 0);
        if ended != 0 {
            self.complete(ended, Status::SUCCESS);
        }
    }

    /// Completes `tags` with `status`.
    #[inline]
    pub(super) fn complete(&mut self, tags: u32, status: Status) {
        let mut left = tags;
        while left != 0 {
            let tag = left.trailing_zeros() as usize;
            left &= left - 1;
            self.statuses[tag] = status;
        }
        self.queued_first |= tags & self.issued & !self.queued != 0;
        self.issued &= !tags;
        self.bound &= !tags;
        self.deferred &= !tags;
        self.completed |= tags;
    }

    /// Issues deferred commands as far as the drive accepts them.
    #[inline]
    pub(super) fn issue_deferred(&mut self) {
        if self.deferred == 0 || !self.recovery.is_idle() || self.issued & !self.queued != 0 {
            return;
        }
        let (queued, alone) = (self.deferred & self.queued, self.deferred & !self.queued);
        let first = if queued != 0 && (alone == 0 || self.queued_first) {
            self.queued_first = false;
            queued
        } else if self.issued == 0 {
            // The lowest of the unqueued commands.
            alone & alone.wrapping_neg()
        } else {
            return;
        };
        self.deferred &= !first;
        self.issued |= first;
        self.stats.issued += u64::from(first.count_ones());
        self.write_issue_registers(first);
    }

    /// Issues commands to the drive: first PxSACT, then PxCI ([AHCI1.3 §5.5.1]).
    #[inline]
    pub(super) fn write_issue_registers(&self, tags: u32) {
        let queued = tags & self.queued;
        if queued != 0 {
            self.registers.set(port::SACT, queued);
        }
        self.registers.set(port::CI, tags);
        self.registers.wake();
    }

    /// Writes the command header of a slot for its command.
    #[inline]
    pub(super) fn set_command_header(&self, slot: usize) {
        let AtaCommand { write, regions, .. } = self.commands[slot % COMMAND_SLOTS_MAX];
        self.memory.set_command_header(slot, slot, write, regions);
    }

    /// Returns the queued commands among the issued ones.
    pub(super) fn issued_queued(&self) -> u32 {
        self.issued & self.queued
    }

    /// Forgets every command.
    pub(super) fn clear_commands(&mut self) {
        (self.bound, self.deferred, self.issued, self.completed) = (0, 0, 0, 0);
    }
}

impl HardwareQueue for AhciPort {
    #[inline]
    fn tags(&self) -> &TagSet {
        &self.tags
    }

    #[inline]
    fn tags_mut(&mut self) -> &mut TagSet {
        &mut self.tags
    }

    fn memory(&self) -> &AddressSpace {
        self.registers.shared.function.memory()
    }

    #[inline]
    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        if self.state() != QueueState::Ready {
            return Err(BindError::Busy);
        }
        self.tags.bind(tag, command.tag, now)?;
        // There are at most 32 tags.
        let slot = tag.0 as u8;
        let bit = 1 << slot;
        let space = self.registers.shared.function.memory();
        let prepared = command::prepare(&self.memory, space, self.capabilities, slot, command);
        match prepared {
            Ok(prepared) => {
                self.commands[usize::from(slot)] = prepared;
                // During recovery the port uses slot 0 itself, and restores its header afterwards.
                if slot != 0 || self.recovery.is_idle() {
                    self.set_command_header(slot.into());
                }
                self.bound |= bit;
                self.queued =
                    if prepared.is_queued() { self.queued | bit } else { self.queued & !bit };
                Ok(())
            }
            Err(status) => {
                self.tags.detach(tag)?;
                Err(BindError::Refused(status))
            }
        }
    }

    #[inline]
    fn issue_tags(&mut self) -> bool {
        let fresh = self.bound != 0;
        self.deferred |= std::mem::take(&mut self.bound);
        self.issue_deferred();
        fresh
    }

    #[inline]
    fn check_event(&mut self) -> bool {
        if self.completed == 0 {
            self.reap();
        }
        self.completed != 0
    }

    #[inline]
    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        if !self.check_event() {
            return None;
        }
        let tag = self.completed.trailing_zeros();
        self.completed &= self.completed - 1;
        let status = self.statuses[tag as usize];
        self.stats.completed += 1;
        self.stats.errors += u64::from(!status.is_success());
        Some(CompletionEvent { tag: Tag(tag as u16), status, result: 0 })
    }

    fn abort_tag(&mut self, tag: Tag, _now: Nanos) -> Result<(), TagError> {
        if self.tags.state(tag) != Some(TagState::Bound) {
            return self.tags.detach(tag).map(drop);
        }
        let bit = 1 << tag.0;
        if (self.bound | self.deferred) & bit != 0 {
            self.complete(bit, Status::ABORTED);
        }
        Ok(())
    }

    fn reset(&mut self, now: Nanos) {
        self.begin_reset(now);
    }

    fn state(&self) -> QueueState {
        self.recovery.state()
    }

    fn poll(&mut self, now: Nanos) -> bool {
        if self.recovery.is_idle() {
            // Detect an error or an unplugged drive even if no caller waits for an event.
            let raised = self.registers.read(port::IS);
            if raised & is::ERRORS != 0 && self.self_acknowledge {
                self.registers.shared.acknowledge(1 << self.registers.index);
            }
            return raised & is::ERRORS != 0 && self.fail_on_error(raised);
        }
        self.step_recovery(Some(now))
    }

    fn deadline(&self) -> Nanos {
        self.recovery.deadline()
    }

    /// The controller has one line: an interrupt of any port calls the wakers of all.
    fn set_waker(&mut self, waker: Waker) {
        let user = self.registers.index.into();
        self.registers.shared.function.set_interrupt_waker(user, waker);
    }
}

//! [`Commands`]: the commands in flight. A command occupies a slot from its fetch until its
//! completion is posted, so that no command can be lost in between.

use std::sync::Arc;

use collections::Slab;
use ftl::HostStream;
use nvme::{
    DsmRange, ErrorEntry, IoCommand, NamedCommand, NamedOp, ProtectionRequest, RuleCommand, Status,
};
use rules::AppId;
use time::Nanos;
use transport::Port;

use crate::check::{DriveCheck, DrivePart, DriveViolation};
use crate::command::data_buffer::DataBuffer;
use crate::personality::logical_blocks::BlockRange;
use crate::personality::rules::DriveRules;
use crate::personality::spaces::{ONLY_APP, ONLY_SPACE, SpaceId};

/// A command in flight.
#[derive(Debug)]
pub(crate) struct Command {
    /// Index of its submission queue in [`crate::host_interface::queues::Queues`].
    pub(crate) queue: u32,
    pub(crate) sq_id: u16,
    pub(crate) cid: u16,
    pub(crate) io: IoCommand,
    pub(crate) data_buffer: DataBuffer,
    /// Address of the out-of-band bytes, or of the protection information; 0 if there are none.
    pub(crate) metadata: u64,
    /// The command's fields for protection information; those of an earlier command on a drive
    /// without it.
    pub(crate) protection: ProtectionRequest,
    /// Bytes of data.
    pub(crate) bytes: u64,
    /// Bytes that cross between host and drive; data in the CMB does not.
    pub(crate) dma_bytes: u64,
    /// Position of the error in the entry [NVMe1.4 §5.14.1.1].
    pub(crate) location: u16,
    /// First sector of the command that could not be read; [`NO_SECTOR`] if there is none.
    failed_sector: u32,
    pub(crate) port: Arc<Port>,
    /// Media operations that must complete before the command does.
    pub(crate) ops_left: u32,
    pub(crate) status: Status,
    pub(crate) result: u64,
    /// Time of the fetch.
    pub(crate) fetched: Nanos,
    /// Time at which the completion is due.
    pub(crate) due: Nanos,
    /// Physical sectors of a vector command; for a copy, the sources.
    pub(crate) source_sectors: Vec<u32>,
    /// Physical sectors that a copy writes.
    pub(crate) target_sectors: Vec<u32>,
    /// Ranges of a Dataset Management command, or sources of a Copy, checked and translated.
    pub(crate) ranges: Vec<DsmRange>,
    /// The namespace; 0 before it is known.
    pub(crate) nsid: u32,
    /// Difference of the drive's address of a block and that of its host, modulo 2^64. A command that
    /// crosses ends of extents has the address in its namespace instead of the drive's.
    pub(crate) first_sector: u64,
    /// The ranges of the drive's blocks, in order, of a command that crosses ends of extents of its
    /// namespace; otherwise none.
    pub(crate) extents: Vec<BlockRange>,
    /// The host has been detached.
    detached: bool,
    /// The application of its host, on a drive with several; else that of the drive.
    pub(crate) app: AppId,
    /// The space of that application.
    pub(crate) space: SpaceId,
    /// The stream of what it will write, from the choice of rules until it starts; otherwise that of the
    /// host.
    pub(crate) stream: HostStream,
}

/// Returns the number of ranges of the drive's blocks that a command has: 1 unless it crosses ends of
/// extents.
pub(crate) fn range_count(command: &Command) -> usize {
    command.extents.len().max(1)
}

/// Returns the n-th range of the drive's blocks of a command. `whole` is that of a command with one.
pub(crate) fn nth_range(command: &Command, n: usize, whole: BlockRange) -> BlockRange {
    command.extents.get(n).copied().unwrap_or(whole)
}

/// Whether the host sends the data of a command, before the command starts.
#[inline]
pub(crate) fn sends_data(io: &IoCommand) -> bool {
    matches!(
        io,
        IoCommand::Write { .. }
            | IoCommand::VectorWrite { .. }
            | IoCommand::Compare { .. }
            | IoCommand::Named(NamedCommand { op: NamedOp::Write, .. })
    )
}

/// Whether data of a completed command goes to its host.
#[inline]
pub(crate) fn returns_data(command: &Command) -> bool {
    match command.io {
        IoCommand::Read { .. }
        | IoCommand::VectorRead { .. }
        | IoCommand::Named(NamedCommand { op: NamedOp::Read, .. }) => command.status.is_success(),
        // The buffer has what rules returned before they ended the command.
        IoCommand::Rule(_) => true,
        _ => false,
    }
}

/// Returns the number of blocks of the ranges of a command.
pub(crate) fn range_blocks(command: &Command) -> u64 {
    command.ranges.iter().map(|range| u64::from(range.nlb.get())).sum()
}

/// Returns the source block of a Copy that could not be read, as the drive numbers it; the first one
/// if all could be read.
fn source_in_error(command: &Command) -> Option<u64> {
    let mut left = if command.failed_sector == NO_SECTOR { 0 } else { command.failed_sector };
    for range in &command.ranges {
        if left < range.nlb.get() {
            return Some(range.slba.get() + u64::from(left));
        }
        left -= range.nlb.get();
    }
    None
}

/// Media operations of a command that the drive has refused.
const REFUSED: u32 = u32::MAX;

/// The sector of a command without unreadable sectors.
const NO_SECTOR: u32 = u32::MAX;

/// The command slots. Slots and their allocations are reused.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    slots: Slab<Command>,
    /// Commands that are done and have not yet entered the completion path.
    pub(crate) completed: Vec<u32>,
    /// Whether a format, or a change of the namespaces, is requested or runs.
    pub(crate) is_formatting: bool,
    /// The status with which new commands are refused: during Sanitize, and after one that has failed.
    pub(crate) refused_with: Option<Status>,
    /// Whether namespaces of new commands are checked: during a format, a change or Sanitize, and on
    /// drives that do not have only their original namespace.
    pub(crate) checks_namespaces: bool,
    /// Whether the controller has something to do after the FTL has worked: namespaces are checked, or
    /// the engines of rules take time.
    pub(crate) follows_ftl: bool,
    /// The rules that decide about commands and victims of a drive that manages its flash.
    pub(crate) rules: Option<Box<DriveRules>>,
    /// Commands in flight of detached hosts, and the port that replaces theirs.
    detached_count: u32,
    placeholder_port: Option<Arc<Port>>,
}

impl Commands {
    /// Creates the table of a drive, with its rules if it has any.
    pub(crate) fn with_rules(rules: Option<Box<DriveRules>>) -> Commands {
        Commands { rules, ..Commands::default() }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, port: &Arc<Port>, queue: u32, sq_id: u16, cid: u16) -> u32 {
        match self.slots.take() {
            Some(id) => {
                let c = &mut self.slots[id];
                (c.queue, c.sq_id, c.cid) = (queue, sq_id, cid);
                (c.io, c.metadata, c.bytes, c.dma_bytes) = (IoCommand::Flush, 0, 0, 0);
                (c.first_sector, c.nsid) = (0, 0);
                c.extents.clear();
                (c.location, c.failed_sector) = (ErrorEntry::NONE, NO_SECTOR);
                (c.ops_left, c.status, c.result) = (0, Status::SUCCESS, 0);
                c.data_buffer = DataBuffer::Empty;
                if !Arc::ptr_eq(&c.port, port) {
                    c.port = port.clone();
                }
                id
            }
            None => self.slots.insert(Command {
                queue,
                sq_id,
                cid,
                io: IoCommand::Flush,
                data_buffer: DataBuffer::Empty,
                metadata: 0,
                protection: ProtectionRequest::default(),
                bytes: 0,
                dma_bytes: 0,
                location: ErrorEntry::NONE,
                failed_sector: NO_SECTOR,
                port: port.clone(),
                ops_left: 0,
                status: Status::SUCCESS,
                result: 0,
                fetched: Nanos::ZERO,
                due: Nanos::ZERO,
                source_sectors: Vec::new(),
                target_sectors: Vec::new(),
                ranges: Vec::new(),
                nsid: 0,
                first_sector: 0,
                extents: Vec::new(),
                detached: false,
                app: ONLY_APP,
                space: ONLY_SPACE,
                stream: HostStream::Host,
            }),
        }
    }

    /// Returns the number of commands in flight.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.in_use()
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Command {
        &self.slots[id]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut Command {
        &mut self.slots[id]
    }

    /// Returns the rules of the drive, if it has any, and a command.
    #[inline]
    pub(crate) fn rules_and_command(&mut self, id: u32) -> Option<(&mut DriveRules, &mut Command)> {
        Some((self.rules.as_deref_mut()?, &mut self.slots[id]))
    }

    /// Marks the command as done with this status; its result does not change.
    #[inline]
    pub(crate) fn complete(&mut self, id: u32, status: Status) {
        self.slots[id].status = status;
        self.completed.push(id);
    }

    /// Records the completion of one of the command's operations. With the last operation the
    /// command is done; its status is the first that was not success.
    #[inline]
    pub(crate) fn complete_op(&mut self, id: u32, status: Status) {
        let c = &mut self.slots[id];
        if c.status.is_success() {
            c.status = status;
        }
        c.ops_left -= 1;
        if c.ops_left == 0 {
            self.completed.push(id);
        }
    }

    /// Records that a sector of a command fails a check with this status: its data differs from that
    /// of a Compare, or from its protection information. Returns whether the command has not failed
    /// before.
    #[cold]
    pub(crate) fn fail_block(&mut self, id: u32, sector: u32, status: Status) -> bool {
        self.sector_failed(id, sector);
        let command = &mut self.slots[id];
        let is_first = command.status.is_success();
        if is_first {
            command.status = status;
        }
        is_first
    }

    /// Records that a sector of a command cannot be read.
    #[cold]
    pub(crate) fn sector_failed(&mut self, id: u32, sector: u32) {
        let command = &mut self.slots[id];
        command.failed_sector = command.failed_sector.min(sector);
    }

    /// Returns the first logical block in error of a command, as its host numbers them: of a read the
    /// first one that could not be read, else the first one of the command. 0 for a command without
    /// logical blocks, and for a vector command, whose completion tells which of its addresses
    /// failed.
    pub(crate) fn first_lba_in_error(&self, id: u32) -> u64 {
        let command = &self.slots[id];
        let slba = match command.io {
            IoCommand::Read { slba, .. }
            | IoCommand::Write { slba, .. }
            | IoCommand::WriteZeroes { slba, .. }
            | IoCommand::Compare { slba, .. }
            | IoCommand::Verify { slba, .. }
            | IoCommand::WriteUncorrectable { slba, .. }
            | IoCommand::LbaStatus { slba, .. }
            | IoCommand::Rule(RuleCommand { slba, .. }) => slba,
            IoCommand::Copy { .. } => source_in_error(command).unwrap_or(command.first_sector),
            _ => return 0,
        };
        let sector = match (command.failed_sector, &command.io) {
            (NO_SECTOR, _) | (_, IoCommand::Copy { .. }) => 0,
            (sector, _) => sector,
        };
        slba.wrapping_sub(command.first_sector).saturating_add(sector.into())
    }

    /// Returns the block of the drive that a Copy could not read, the first one if it could read all.
    pub(crate) fn source_in_error(&self, id: u32) -> Option<u64> {
        source_in_error(&self.slots[id])
    }

    /// Releases the slot after the completion was posted, or after the host was detached.
    #[inline]
    pub(crate) fn release(&mut self, id: u32) {
        if self.detached_count > 0 {
            self.release_detached(id);
        }
        self.slots.release(id);
    }

    /// Releases the slot of a detached host's command. This may drop the last reference to its
    /// memory.
    #[cold]
    fn release_detached(&mut self, id: u32) {
        let c = &mut self.slots[id];
        if std::mem::take(&mut c.detached) {
            c.data_buffer = DataBuffer::Empty;
            self.detached_count -= 1;
            if let Some(nobody) = &self.placeholder_port {
                c.port = nobody.clone();
            }
        }
    }

    /// Detaches the commands of a host: data for the host is discarded. Write data that the
    /// commands have not yet fetched is still fetched.
    pub(crate) fn detach_commands(&mut self, port: &Arc<Port>, nobody: &Arc<Port>) {
        self.placeholder_port = Some(nobody.clone());
        let mut live = vec![true; self.slots.len()];
        for id in self.slots.free_indices() {
            live[*id as usize] = false;
        }
        for (c, live) in self.slots.iter_mut().zip(live) {
            if !Arc::ptr_eq(&c.port, port) {
                continue;
            }
            if !live {
                c.port = nobody.clone();
                continue;
            }
            c.detached = true;
            self.detached_count += 1;
            // A Copy has its data in memory of the drive.
            let keeps_data = matches!(
                c.io,
                IoCommand::Write { .. } | IoCommand::VectorWrite { .. } | IoCommand::Copy { .. }
            );
            if !keeps_data {
                (c.data_buffer, c.metadata) = (DataBuffer::Empty, 0);
            }
        }
    }

    /// Marks a command as refused with this status: it is no read and no write, and no operation
    /// waits for its end.
    pub(crate) fn refuse(&mut self, id: u32, status: Status) {
        let command = &mut self.slots[id];
        (command.io, command.ops_left, command.status) = (IoCommand::Flush, REFUSED, status);
    }

    /// Whether a command in flight, which the drive has not refused, addresses a namespace; any
    /// namespace for `None`.
    pub(crate) fn has_any(&self, nsid: Option<u32>) -> bool {
        let slots = self.slots.iter().zip(self.slots.usage());
        let addresses = |command: &Command| nsid.is_none_or(|nsid| command.nsid == nsid);
        slots
            .filter(|(command, is_in_use)| *is_in_use && command.ops_left != REFUSED)
            .any(|(command, _)| addresses(command))
    }

    /// Returns the commands in flight, by index. They do not enter the completion path.
    pub(crate) fn take_in_flight(&mut self) -> Vec<u32> {
        self.completed.clear();
        let usage = self.slots.usage();
        (0..).zip(usage).filter(|(_, is_in_use)| *is_in_use).map(|(id, _)| id).collect()
    }

    /// Releases all slots.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.completed.clear();
        self.detached_count = 0;
    }

    pub(crate) fn check_invariants(&self) -> Result<(), DriveViolation> {
        let check = |subject, index| DriveCheck { part: DrivePart::Commands, subject, index };
        self.rules.iter().for_each(|rules| rules.check_invariants());
        let mut in_use = vec![true; self.slots.len()];
        for id in self.slots.free_indices() {
            check("slot", *id).equal("a slot is free once", true, in_use[*id as usize])?;
            in_use[*id as usize] = false;
        }
        let slots = self.slots.iter().zip(&in_use);
        let detached = slots.filter(|(c, in_use)| c.detached && **in_use).count();
        check("table", 0).equal(
            "commands of detached hosts are counted",
            detached as u32,
            self.detached_count,
        )?;
        for id in &self.completed {
            let is_in_use = in_use.get(*id as usize).is_some_and(|in_use| *in_use);
            check("command", *id).require(
                is_in_use,
                "a done command has its slot until its completion is posted",
                "a slot in use",
                &self.completed,
            )?;
            in_use[*id as usize] = false;
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_completed(&mut self) {
        self.completed.push(0);
    }

    #[cfg(test)]
    pub(crate) fn break_detached_count(&mut self) {
        self.detached_count += 1;
    }
}

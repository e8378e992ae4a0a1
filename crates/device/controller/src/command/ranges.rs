//! The ranges of Dataset Management, device trims and Copy, which are in memory of the host. The
//! drive copies them once, so that it uses the ranges that it has checked.

use nvme::{CopyRange, DsmRange, IoCommand, Status};

use crate::command::table::range_blocks;
use crate::controller::{Controller, Personality};

/// Maximum length in bytes of a source range of a Copy, and of a Copy. The drive reads all sources
/// into memory before it writes.
const COPY_RANGE_BYTES: u32 = 256 << 10;
const COPY_BYTES: u32 = 1 << 20;

/// The limits of a Copy [NVMe2.0, NVM command set §4.1.5.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyLimits {
    /// Maximum length of a source range in blocks (MSSRL).
    pub(crate) range_blocks: u32,
    /// Maximum number of blocks (MCL).
    pub(crate) blocks: u32,
    /// Maximum number of source ranges (MSRC, there zero-based).
    pub(crate) ranges: u16,
}

impl CopyLimits {
    /// Returns the limits of a namespace with blocks of this size.
    pub(crate) fn for_blocks_of(bytes: u32) -> CopyLimits {
        CopyLimits {
            range_blocks: (COPY_RANGE_BYTES / bytes).max(1),
            blocks: (COPY_BYTES / bytes).max(1),
            ranges: 128,
        }
    }
}

/// Copies the ranges of a command, and checks and translates them for its host.
///
/// # Errors
/// The status with which the command is to complete.
#[inline(never)]
pub(crate) fn copy_ranges(
    controller: &mut Controller,
    id: u32,
    owner: usize,
) -> Result<(), Status> {
    let command = controller.commands.get_mut(id);
    command.ranges.clear();
    let count = match command.io {
        IoCommand::DatasetManagement { ranges, deallocate: true } => ranges,
        IoCommand::DeviceTrim { ranges, .. } => ranges,
        IoCommand::Copy { ranges, .. } => return copy_sources(controller, id, owner, ranges),
        // The other attributes are only hints [NVMe1.4 §6.7].
        _ => return Ok(()),
    };
    for i in 0..u64::from(count) {
        let mut raw = [0; DsmRange::BYTES];
        let offset = i * DsmRange::BYTES as u64;
        command.data_buffer.read(command.port.memory(), offset, &mut raw);
        command.ranges.push(DsmRange::from_bytes(raw));
    }
    let port = &mut controller.queues.ports[owner];
    match &port.access {
        Some(rights) => {
            let admitted = rights.authorize_ranges(&mut command.ranges);
            admitted.inspect_err(|_| port.stats.refused += 1)
        }
        None => Ok(()),
    }
}

/// Copies the source ranges of a Copy. The command's bytes are those that it copies from here on.
fn copy_sources(
    controller: &mut Controller,
    id: u32,
    owner: usize,
    count: u16,
) -> Result<(), Status> {
    if !matches!(controller.personality, Personality::Block(_)) {
        return Err(Status::INVALID_OPCODE);
    }
    let block_bytes = controller.config.lba_bytes();
    let limits = CopyLimits::for_blocks_of(block_bytes);
    let is_protected = controller.config.protection.is_some();
    let command = controller.commands.get_mut(id);
    if !command.data_buffer.has_data() {
        // Bit Bucket descriptors have no data for the drive [NVMe1.4 §4.4].
        return Err(Status::SGL_LENGTH_INVALID);
    }
    if count > limits.ranges {
        return Err(Status::COMMAND_SIZE_LIMIT.do_not_retry());
    }
    for i in 0..u64::from(count) {
        let mut raw = [0; CopyRange::BYTES];
        let offset = i * CopyRange::BYTES as u64;
        command.data_buffer.read(command.port.memory(), offset, &mut raw);
        let range = CopyRange::from_bytes(raw);
        if range.reserved0 != [0; 8] || range.reserved18 != [0; 6] {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let names_block = range.reference_tag.get() == range.slba.get() as u32;
        if is_protected && command.protection.checks_reference_tag && !names_block {
            return Err(Status::INVALID_PROTECTION.do_not_retry());
        }
        if range.blocks() > limits.range_blocks {
            return Err(Status::COMMAND_SIZE_LIMIT.do_not_retry());
        }
        command.ranges.push(DsmRange::new(range.slba.get(), range.blocks()));
    }
    let blocks = range_blocks(command);
    if blocks > limits.blocks.into() {
        return Err(Status::COMMAND_SIZE_LIMIT.do_not_retry());
    }
    (command.bytes, command.dma_bytes) = (blocks * u64::from(block_bytes), 0);
    let port = &mut controller.queues.ports[owner];
    if let (Some(rights), IoCommand::Copy { slba, .. }) = (&port.access, &mut command.io) {
        let admitted = rights.authorize_copy(*slba, &mut command.ranges);
        *slba = admitted.inspect_err(|_| port.stats.refused += 1)?;
    }
    Ok(())
}

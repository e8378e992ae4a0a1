//! Flushes to the host's stable storage before the completions that promise durable data.
//!
//! A drive promises it with the completion of a flush, of a write with FUA, and of every write while
//! its write cache is disabled. An open-channel drive has no cache: its hosts take every completed
//! write and reset for durable. Commands that complete at one instant share a flush. The drive's
//! thread waits for it, in virtual time as well: it takes no virtual time.

use nvme::{IoCommand, NamedOp, Status};

use crate::controller::{Controller, Personality};

/// Flushes the image if one of the completed commands promises durable data; fails these commands if
/// the flush fails.
#[cold]
pub(crate) fn flush_completed(controller: &mut Controller) {
    let is_cached = match &controller.personality {
        Personality::OpenChannel(_) => false,
        _ => controller.admin.cache_enabled(),
    };
    let commands = &mut controller.commands;
    let promising: Vec<u32> = commands
        .completed
        .iter()
        .copied()
        .filter(|id| {
            let command = commands.get(*id);
            command.status.is_success() && promises_durability(&command.io, is_cached)
        })
        .collect();
    if promising.is_empty() {
        return;
    }
    let flushed = match &mut controller.personality {
        Personality::Block(d) => d.array.nand.flush_to_host(),
        Personality::OpenChannel(d) => d.array.nand.flush_to_host(),
        Personality::Pcm(d) => d.pcm.flush_to_host(),
        Personality::Null(_) => Ok(()),
    };
    if flushed.is_err() {
        for id in promising {
            commands.get_mut(id).status = Status::WRITE_FAULT;
        }
    }
}

/// Whether the completion of a command promises that data is durable. `is_cached` tells whether
/// completed writes may be volatile.
fn promises_durability(io: &IoCommand, is_cached: bool) -> bool {
    match io {
        IoCommand::Flush => true,
        IoCommand::Named(named) => named.op == NamedOp::Write,
        IoCommand::Write { fua, .. }
        | IoCommand::WriteZeroes { fua, .. }
        | IoCommand::Copy { fua, .. } => *fua || !is_cached,
        IoCommand::DatasetManagement { .. }
        | IoCommand::WriteUncorrectable { .. }
        | IoCommand::VectorWrite { .. }
        | IoCommand::VectorReset { .. }
        | IoCommand::VectorCopy { .. }
        | IoCommand::DeviceTrim { .. } => !is_cached,
        IoCommand::Read { .. }
        | IoCommand::Compare { .. }
        | IoCommand::Verify { .. }
        | IoCommand::VectorRead { .. }
        | IoCommand::LbaStatus { .. }
        | IoCommand::Rule(_) => false,
    }
}

//! Injection of faults into a running drive, and their ends.

use ftl::{L2pEntry, Oob};
use media::{ChunkState, InjectedFault, Nand, Operation, PhysSector, PuId};
use nvme::{ProtectionInfo, Status};
use time::Nanos;

use crate::controller::{Controller, Personality};
use crate::faults::power_cycle::power_cycle;
use crate::faults::state::{FAULTS_MAX, FaultEnd};
use crate::faults::{CorruptedPart, Fault, FaultError, FaultRecord, FaultScope, FaultSector};
use crate::host_interface::registers;
use crate::personality::block::BlockDrive;
use crate::personality::format::{self, FormatTask};
use crate::personality::logical_blocks::BlockRange;
use crate::personality::rules::commands as rules;
use crate::personality::sanitize::{self, SanitizeReport};

/// Checks that a namespace has a logical block.
fn check_lba(controller: &Controller, nsid: u32, lba: u64) -> Result<(), FaultError> {
    let limit = match &controller.personality {
        Personality::Block(drive) => drive.namespaces.get(nsid).map(|namespace| namespace.blocks),
        _ => (nsid == 1).then(|| controller.sectors()),
    };
    match limit {
        None => Err(FaultError::NoNamespace { nsid }),
        Some(limit) if lba >= limit => {
            Err(FaultError::OutOfRange { key: "lba", value: lba, limit })
        }
        Some(_) => Ok(()),
    }
}

/// Fails for a fault of the flash of a drive that has none.
fn no_flash(fault: &Fault) -> FaultError {
    FaultError::NoFlash { kind: fault.kind() }
}

/// Returns the number of mapped blocks of a drive with its own FTL.
fn mapped_blocks(controller: &Controller) -> u64 {
    match &controller.personality {
        Personality::Block(drive) => drive.mapped_blocks(),
        _ => 0,
    }
}

/// Fails for a format or Sanitize that the drive refuses.
fn refused(fault: &Fault, status: Status) -> FaultError {
    match (fault, status) {
        (Fault::Format { .. }, Status::FORMAT_IN_PROGRESS)
        | (Fault::Sanitize { .. }, Status::SANITIZE_IN_PROGRESS) => {
            FaultError::InForce { kind: fault.kind() }
        }
        _ => FaultError::Refused { kind: fault.kind(), status },
    }
}

/// Checks that the drive can have a fault, as far as that does not depend on the data that it
/// has when the fault is injected.
///
/// # Errors
/// The reason for which it cannot.
pub(crate) fn check(controller: &Controller, fault: &Fault) -> Result<(), FaultError> {
    controller.config.check_fault(fault)?;
    match *fault {
        Fault::ControllerFatal if !registers::is_running(controller) => {
            Err(FaultError::InForce { kind: fault.kind() })
        }
        Fault::StalledQueue { queue, .. } | Fault::LostCompletion { queue }
            if !controller.queues.has_io_queue(queue) =>
        {
            Err(FaultError::NoQueue { queue })
        }
        Fault::Uncorrectable { sector }
        | Fault::CorruptedData { sector, .. }
        | Fault::OperationFailure { scope: FaultScope::Next(sector), .. } => match sector {
            FaultSector::Lba { namespace, lba } => check_lba(controller, namespace, lba),
            FaultSector::Flash { .. } => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Injects a fault at `now`, in nanoseconds of the clock that polls the drive. The drive must be
/// polled afterwards.
///
/// # Errors
/// The reason for which the drive cannot have the fault; nothing has changed.
pub(crate) fn inject(
    controller: &mut Controller,
    now: Nanos,
    fault: Fault,
) -> Result<(), FaultError> {
    check(controller, &fault)?;
    if controller.faults.records.len() >= FAULTS_MAX {
        return Err(FaultError::TooMany { limit: FAULTS_MAX });
    }
    let now = now.max(controller.time.at);
    controller.catch_up(now);
    let mut count = Some(1);
    match fault {
        Fault::PowerCut { after_ops } => {
            return inject_power_cut(controller, now, fault, after_ops);
        }
        Fault::DieFailure { pu } => count = Some(fail_die(controller, pu)?),
        Fault::ChunkOffline { pu, chunk } => {
            let nand = controller.nand_mut().ok_or_else(|| no_flash(&fault))?;
            let chunk = nand.layout().chunk(pu, chunk);
            if nand.chunk_info(chunk).is_none_or(|info| info.state == ChunkState::Offline) {
                return Err(FaultError::AlreadyOffline { what: chunk.to_string() });
            }
            inject_into_flash(nand, InjectedFault::ChunkBad { chunk })?;
        }
        Fault::OperationFailure { operation, scope: FaultScope::Next(sector) } => {
            let failure = operation_failure(controller, operation, sector)?;
            let nand = controller.nand_mut().ok_or_else(|| no_flash(&fault))?;
            if nand.is_pending(&failure) {
                return Err(FaultError::InForce { kind: fault.kind() });
            }
            inject_into_flash(nand, failure)?;
            controller.faults.add_failure(now, fault, failure);
            return Ok(());
        }
        Fault::OperationFailure { operation, scope: FaultScope::Rate { rate, .. } } => {
            let nand = controller.nand_mut().ok_or_else(|| no_flash(&fault))?;
            if nand.failed_at_rate(operation).is_some() {
                return Err(FaultError::InForce { kind: fault.kind() });
            }
            inject_into_flash(nand, InjectedFault::Rate { operation, rate })?;
            count = None;
        }
        Fault::Uncorrectable { sector } => {
            let phys = written_sector(controller, sector)?;
            let nand = controller.nand_mut().ok_or_else(|| no_flash(&fault))?;
            inject_into_flash(nand, InjectedFault::Uncorrectable { phys })?;
        }
        Fault::CorruptedData { sector, part } => {
            let phys = written_sector(controller, sector)?;
            corrupt(controller, phys, part)?;
        }
        Fault::Format { erase } => {
            let mapped = mapped_blocks(controller);
            let task = FormatTask::Format { nsid: None, erases: erase };
            format::request(controller, task, None).map_err(|status| refused(&fault, status))?;
            count = Some(mapped);
        }
        Fault::Sanitize { action } => {
            let mapped = mapped_blocks(controller);
            sanitize::request(controller, action.command(), SanitizeReport::None)
                .map_err(|status| refused(&fault, status))?;
            count = Some(mapped);
        }
        Fault::SlowDie { pu, factor, .. } => {
            let array = controller.array_mut().ok_or_else(|| no_flash(&fault))?;
            if !array.set_slow_die(pu, factor) {
                return Err(FaultError::InForce { kind: fault.kind() });
            }
            count = None;
        }
        Fault::StalledQueue { queue, .. } => {
            if !controller.queues.stall(queue, controller.faults.records.len()) {
                return Err(FaultError::InForce { kind: fault.kind() });
            }
            count = None;
        }
        Fault::LostCompletion { queue } => {
            if !controller.queues.lose_next_completion(queue, controller.faults.records.len()) {
                return Err(FaultError::InForce { kind: fault.kind() });
            }
            count = None;
        }
        Fault::ControllerFatal => count = Some(registers::fail(controller)),
    }
    let record = controller.faults.add(now, fault);
    controller.faults.records[record].count = count;
    let end = match fault {
        Fault::OperationFailure { operation, .. } => FaultEnd::Failures(operation),
        Fault::SlowDie { pu, .. } => FaultEnd::SlowDie(pu),
        _ => FaultEnd::Stall,
    };
    if let Some(duration) = fault.duration() {
        controller.faults.end_at(now + duration, end, record);
        update_interrupt(controller);
    }
    Ok(())
}

fn inject_power_cut(
    controller: &mut Controller,
    now: Nanos,
    fault: Fault,
    after_ops: u64,
) -> Result<(), FaultError> {
    if after_ops > 0 && controller.faults.has_cut() {
        return Err(FaultError::InForce { kind: fault.kind() });
    }
    let record = controller.faults.add(now, fault);
    if after_ops > 0 {
        controller.faults.cut_after(after_ops, record);
    } else {
        controller.faults.records[record].count = Some(power_cycle(controller, now));
    }
    Ok(())
}

/// Fails a die. Returns the number of chunks that went offline.
fn fail_die(controller: &mut Controller, pu: PuId) -> Result<u64, FaultError> {
    let fault = Fault::DieFailure { pu };
    let nand = controller.nand_mut().ok_or_else(|| no_flash(&fault))?;
    let layout = *nand.layout();
    let online = (0..layout.chunks_per_pu()).filter(|index| {
        let info = nand.chunk_info(layout.chunk(pu, *index));
        info.is_some_and(|info| info.state != ChunkState::Offline)
    });
    let count = online.count() as u64;
    if count == 0 {
        return Err(FaultError::AlreadyOffline { what: format!("the die of {pu}") });
    }
    inject_into_flash(nand, InjectedFault::DieFailure { pu })?;
    Ok(count)
}

/// Changes stored bytes of a sector: one byte of the guard or of the reference tag of each block, or
/// all bytes of the data.
fn corrupt(
    controller: &mut Controller,
    phys: PhysSector,
    part: CorruptedPart,
) -> Result<(), FaultError> {
    let end = controller.config.protected_oob_bytes();
    let no_flash = FaultError::NoFlash { kind: "corrupted-data" };
    let nand = controller.nand_mut().ok_or(no_flash)?;
    let first = match part {
        CorruptedPart::Data => return inject_into_flash(nand, InjectedFault::Corrupt { phys }),
        CorruptedPart::Guard => 0,
        CorruptedPart::ReferenceTag => 4,
    };
    for block in (Oob::BYTES as u32..end).step_by(ProtectionInfo::BYTES) {
        inject_into_flash(nand, InjectedFault::CorruptOob { phys, offset: block + first })?;
    }
    Ok(())
}

/// Returns the failure of the next operation at an address.
fn operation_failure(
    controller: &Controller,
    operation: Operation,
    sector: FaultSector,
) -> Result<InjectedFault, FaultError> {
    if operation == Operation::Read {
        return Ok(InjectedFault::Read { phys: written_sector(controller, sector)? });
    }
    let kind = if operation == Operation::Program { "program-failure" } else { "erase-failure" };
    let FaultSector::Flash { pu, chunk, sector } = sector else {
        return Err(FaultError::NoLba { kind });
    };
    let nand = &controller.array().ok_or(FaultError::NoFlash { kind })?.nand;
    let layout = nand.layout();
    let (chunk, unit) = (layout.chunk(pu, chunk), layout.unit_of(sector));
    if nand.chunk_info(chunk).is_none_or(|info| info.state == ChunkState::Offline) {
        return Err(FaultError::AlreadyOffline { what: chunk.to_string() });
    }
    Ok(match operation {
        Operation::Program => InjectedFault::Program { chunk, unit },
        _ => InjectedFault::Erase { chunk },
    })
}

/// Returns the location of the unit of a block of a namespace.
fn location(drive: &BlockDrive, nsid: u32, lba: u64) -> Option<L2pEntry> {
    let namespace = drive.namespaces.get(nsid)?;
    let range = BlockRange { slba: lba, nlb: 1 };
    let part = namespace.parts(drive.unit_blocks(), range).next()?;
    drive.location(part.slba)
}

/// Returns the physical address of a sector whose data is on the media.
fn written_sector(controller: &Controller, sector: FaultSector) -> Result<PhysSector, FaultError> {
    let not_on_media = |why| Err(FaultError::NotOnMedia { why });
    match (sector, &controller.personality) {
        (FaultSector::Lba { namespace, lba }, Personality::Block(drive)) => {
            match location(drive, namespace, lba) {
                Some(L2pEntry::Flash(phys)) => Ok(phys),
                Some(L2pEntry::Buffer(_)) => not_on_media("is in the write buffer"),
                Some(L2pEntry::Unmapped) => not_on_media("is not written"),
                Some(L2pEntry::Lost) => not_on_media("is lost already"),
                None => not_on_media("is in a part of the map that is not in memory"),
            }
        }
        (FaultSector::Lba { .. }, _) => Err(FaultError::NoFtl),
        (FaultSector::Flash { pu, chunk, sector }, _) => {
            let array = controller.array().ok_or(FaultError::NoFtl)?;
            let chunk = array.nand.layout().chunk(pu, chunk);
            match array.nand.chunk_info(chunk) {
                Some(info) if info.state == ChunkState::Offline => {
                    Err(FaultError::AlreadyOffline { what: chunk.to_string() })
                }
                Some(info) if sector < info.write_pointer => {
                    Ok(array.nand.layout().phys(chunk, sector))
                }
                _ => not_on_media("is not written"),
            }
        }
    }
}

/// Ends the faults that are due at `now`, and cuts the power if that is due.
#[cold]
pub(crate) fn end_due(controller: &mut Controller, now: Nanos) {
    if let Some(record) = controller.faults.take_cut() {
        controller.faults.records[record].count = Some(power_cycle(controller, now));
        controller.faults.records[record].is_open = false;
    }
    while let Some((_, (end, record))) = controller.faults.pop_end(now) {
        let state = &mut controller.faults.records[record];
        state.is_open = false;
        let array = match &mut controller.personality {
            Personality::Block(drive) => Some(&mut drive.array),
            Personality::OpenChannel(drive) => Some(&mut drive.array),
            Personality::Null(_) | Personality::Pcm(_) => None,
        };
        match (end, array) {
            (FaultEnd::Failures(operation), Some(array)) => {
                state.count = Some(array.nand.end_failures(operation));
            }
            (FaultEnd::SlowDie(pu), Some(array)) => array.end_slow_die(pu),
            (FaultEnd::Stall, _) => controller.queues.end_stall(record),
            (_, None) => {}
        }
    }
    registers::end_timers(controller, now);
    rules::leave_engines(controller, now);
    update_interrupt(controller);
}

/// Sets the time of the next event of no stage: the end of a fault, of a timer of the registers, or of
/// the work of a rule engine.
pub(crate) fn update_interrupt(controller: &mut Controller) {
    let timer = registers::next_timer(controller);
    let engine = controller.commands.rules.as_ref().map_or(Nanos::MAX, |rules| rules.next_at());
    controller.stages.set_interrupt(controller.faults.next_end().min(timer).min(engine));
}

/// Returns the faults that were injected into the drive, oldest first.
pub(crate) fn records(controller: &Controller) -> Vec<FaultRecord> {
    let mut records = controller.faults.read(controller.array().map(|array| &array.nand));
    let last_format = records.iter().rposition(|r| matches!(r.fault, Fault::Format { .. }));
    let last_sanitize = records.iter().rposition(|r| matches!(r.fault, Fault::Sanitize { .. }));
    let is_formatting = controller.commands.is_formatting;
    let refused_with = controller.commands.refused_with;
    for (index, record) in records.iter_mut().enumerate() {
        match record.fault {
            Fault::LostCompletion { .. } => {
                let lost = controller.queues.lost_completions(index);
                (record.is_open, record.count) = (lost == 0, Some(lost));
            }
            Fault::SlowDie { duration: None, .. } => record.is_open = true,
            Fault::Format { .. } => {
                record.is_open = Some(index) == last_format && is_formatting;
            }
            Fault::Sanitize { .. } => {
                record.is_open = Some(index) == last_sanitize
                    && refused_with == Some(Status::SANITIZE_IN_PROGRESS);
            }
            _ => {}
        }
    }
    records
}

/// Injects a fault whose addresses have been checked.
fn inject_into_flash(nand: &mut Nand, fault: InjectedFault) -> Result<(), FaultError> {
    nand.inject(fault).map_err(|_| FaultError::NotOnMedia { why: "does not exist" })
}

//! The fields of an I/O command for protection information: they are checked when the command is
//! parsed, on a drive that has it [NVMe1.4 §8.3.1].

use mem::Iova;
use nvme::{IoCommand, ProtectionInfo, ProtectionRequest, Sqe, Status};

use crate::command::table::Command;

/// Reads what a command asks of protection information, and the address of the information in
/// memory of the host.
///
/// # Errors
/// The status with which the command is to complete: [`Status::INVALID_PROTECTION`] for fields that
/// the specification or this drive does not allow; [`Status::INVALID_FIELD`] if the host transfers the
/// information without a metadata pointer; [`Status::DATA_TRANSFER_ERROR`] if that memory is not
/// registered.
#[inline(never)]
pub(crate) fn read_fields(command: &mut Command, sqe: &Sqe) -> Result<(), Status> {
    command.protection = ProtectionRequest::default();
    let invalid = Status::INVALID_PROTECTION.do_not_retry();
    let request = ProtectionRequest::from_sqe(sqe);
    // With type 1, the reference tag is the low half of the address.
    let names_block = request.reference_tag == sqe.slba() as u32;
    let checks_right = names_block || !request.checks_reference_tag;
    let is_valid = match command.io {
        IoCommand::Read { .. } => checks_right,
        IoCommand::Write { .. } => checks_right && (names_block || !request.is_generated),
        // The host transfers no protection information.
        IoCommand::Compare { .. } | IoCommand::Verify { .. } => {
            checks_right && !request.is_generated
        }
        IoCommand::WriteZeroes { .. } => {
            !request.has_checks() && (names_block || !request.is_generated)
        }
        IoCommand::Copy { .. } => {
            // The drive checks the sources, and generates the information of their copies.
            let sources = ProtectionRequest::of_copy_sources(sqe);
            command.protection =
                ProtectionRequest { application_tag: request.application_tag, ..sources };
            let is_valid = request.is_generated && names_block;
            let sources_valid = sources.is_generated && !sources.checks_application_tag;
            return if is_valid && sources_valid { Ok(()) } else { Err(invalid) };
        }
        _ => return Ok(()),
    };
    if !is_valid {
        return Err(invalid);
    }
    command.protection = request;
    let (IoCommand::Read { nlb, .. } | IoCommand::Write { nlb, .. }) = command.io else {
        return Ok(());
    };
    if request.is_generated {
        return Ok(());
    }
    let (at, bytes) = (sqe.mptr.get(), u64::from(nlb) * ProtectionInfo::BYTES as u64);
    if at == 0 {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let found = command.port.memory().find(Iova(at), bytes);
    found.map_err(|_| Status::DATA_TRANSFER_ERROR)?;
    command.metadata = at;
    command.dma_bytes += bytes;
    Ok(())
}

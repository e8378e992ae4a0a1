//! Encodes replies (NBD "Simple reply message", "Structured reply chunk message"), and maps device
//! status to NBD errors.

use nvme::Status;

use crate::in_flight::StatusDescriptor;
use crate::protocol::command::{CommandAction, RequestError};
use crate::protocol::wire::{
    BASE_ALLOCATION_ID, ErrorCode, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk,
};

/// Appends a reply without payload, which may be simple even for a client with structured replies.
pub(crate) fn done(out: &mut Vec<u8>, cookie: u64) {
    simple(out, cookie, 0);
}

/// Appends an error, with its text if the client negotiated structured replies.
pub(crate) fn error(out: &mut Vec<u8>, structured: bool, cookie: u64, code: ErrorCode, text: &str) {
    if !structured {
        return simple(out, cookie, code as u32);
    }
    let text = &text.as_bytes()[..text.len().min(1024)];
    chunk_header(out, cookie, chunk::ERROR, 6 + text.len() as u32);
    out.extend_from_slice(&(code as u32).to_be_bytes());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text);
}

/// Appends the reply to a refused request.
pub(crate) fn request_error(
    out: &mut Vec<u8>,
    structured: bool,
    cookie: u64,
    refusal: RequestError,
) {
    error(out, structured, cookie, refusal.code, refusal.text);
}

/// Appends the header of read data; all `length` bytes must follow. The data is in memory already,
/// so no error can occur in between.
pub(crate) fn data_header(
    out: &mut Vec<u8>,
    structured: bool,
    cookie: u64,
    offset: u64,
    length: u32,
) {
    if !structured {
        return simple(out, cookie, 0);
    }
    chunk_header(out, cookie, chunk::OFFSET_DATA, 8 + length);
    out.extend_from_slice(&offset.to_be_bytes());
}

/// Appends a `base:allocation` chunk. There is at least one descriptor.
pub(crate) fn block_status(out: &mut Vec<u8>, cookie: u64, descriptors: &[StatusDescriptor]) {
    chunk_header(out, cookie, chunk::BLOCK_STATUS, 4 + 8 * descriptors.len() as u32);
    out.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
    for StatusDescriptor { bytes, state } in descriptors {
        out.extend_from_slice(&bytes.to_be_bytes());
        out.extend_from_slice(&state.to_be_bytes());
    }
}

fn simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

/// Appends a chunk header. Every reply has a single chunk, which is therefore the last.
fn chunk_header(out: &mut Vec<u8>, cookie: u64, kind: u16, length: u32) {
    out.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&chunk::FLAG_DONE.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
}

/// Maps a device status to an NBD error (NBD "Error values"). Returns `None` for success, which
/// includes a read that needed heavy error correction.
pub(crate) fn error_code_for(status: Status, action: CommandAction) -> Option<ErrorCode> {
    if status.is_success() || (status.is(Status::HIGH_ECC) && action == CommandAction::Read) {
        return None;
    }
    let changes = matches!(action, CommandAction::Write | CommandAction::WriteZeroes { .. });
    Some(if status.is(Status::CAPACITY_EXCEEDED) {
        ErrorCode::NoSpace
    } else if status.is(Status::WRITE_PROTECTED) {
        ErrorCode::Permission
    } else if status.is(Status::LBA_OUT_OF_RANGE) {
        if changes { ErrorCode::NoSpace } else { ErrorCode::Invalid }
    } else if status.is(Status::INVALID_OPCODE) || status.is(Status::INVALID_FIELD) {
        ErrorCode::Invalid
    } else {
        ErrorCode::Io
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire::{CHUNK_HEADER_BYTES, SIMPLE_REPLY_BYTES};

    #[test]
    fn lengths_are_those_of_the_specification() {
        let mut out = Vec::new();
        done(&mut out, 1);
        assert_eq!(out.len(), SIMPLE_REPLY_BYTES);
        out.clear();
        data_header(&mut out, true, 1, 4096, 512);
        assert_eq!(out.len(), CHUNK_HEADER_BYTES + 8);
        assert_eq!(out[16..20], 520u32.to_be_bytes());
        out.clear();
        error(&mut out, true, 1, ErrorCode::Io, "bad");
        assert_eq!(out.len(), CHUNK_HEADER_BYTES + 6 + 3);
        out.clear();
        block_status(&mut out, 1, &[0, 3].map(|state| StatusDescriptor { bytes: 512, state }));
        assert_eq!(out.len(), CHUNK_HEADER_BYTES + 4 + 16);
    }

    #[test]
    fn statuses_become_the_errors_that_clients_know() {
        let of = |status, action| error_code_for(status, action);
        assert_eq!(of(Status::SUCCESS, CommandAction::Write), None);
        assert_eq!(of(Status::HIGH_ECC, CommandAction::Read), None);
        assert_eq!(of(Status::CAPACITY_EXCEEDED, CommandAction::Write), Some(ErrorCode::NoSpace));
        assert_eq!(of(Status::WRITE_PROTECTED, CommandAction::Trim), Some(ErrorCode::Permission));
        assert_eq!(of(Status::UNRECOVERED_READ, CommandAction::Read), Some(ErrorCode::Io));
        assert_eq!(of(Status::GUARD_CHECK, CommandAction::Read), Some(ErrorCode::Io));
        assert_eq!(of(Status::LBA_OUT_OF_RANGE, CommandAction::Write), Some(ErrorCode::NoSpace));
        assert_eq!(of(Status::LBA_OUT_OF_RANGE, CommandAction::Read), Some(ErrorCode::Invalid));
        assert_eq!(of(Status::INTERNAL.do_not_retry(), CommandAction::Read), Some(ErrorCode::Io));
    }
}

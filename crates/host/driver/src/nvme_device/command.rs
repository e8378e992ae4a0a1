//! Conversion of requests into commands of the NVM command set ([NVMe1.4 §6]), without data
//! pointers. The caller adds the data pointer, whose format depends on the transport.

use nvme::{MAX_BLOCKS, Sqe, Status};

use crate::{Op, Request};

/// Returns the command of a request for namespace `nsid`; each request becomes one command. A
/// discard becomes a Dataset Management command whose data is one range.
///
/// # Errors
/// [`Status::INVALID_FIELD`] if the number of sectors exceeds the command's 16 bits, and
/// [`Status::INVALID_OPCODE`] for an extent query, which has its own command.
#[inline]
pub(crate) fn command(nsid: u32, request: &Request) -> Result<Sqe, Status> {
    let Request { op, lba, sectors, fua, deallocate: may_unmap, .. } = *request;
    if sectors > MAX_BLOCKS && matches!(op, Op::Read | Op::Write | Op::WriteZeroes) {
        return Err(Status::INVALID_FIELD);
    }
    match op {
        Op::Read => Ok(Sqe::read(nsid, lba, sectors)),
        Op::Write => Ok(Sqe::write(nsid, lba, sectors, fua)),
        Op::Flush => Ok(Sqe::flush(nsid)),
        Op::WriteZeroes => {
            let mut sqe = Sqe::write_zeroes(nsid, lba, sectors, may_unmap);
            if fua {
                sqe.set_fua();
            }
            Ok(sqe)
        }
        Op::Discard => Ok(Sqe::dataset_management(nsid, 1, true)),
        Op::Extents => Err(Status::INVALID_OPCODE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    #[test]
    fn counts_that_the_field_cannot_say_are_refused() {
        let bucket = Payload::BitBucket;
        for (request, most) in [
            (Request::read(0, MAX_BLOCKS, bucket, 0), true),
            (Request::write(0, MAX_BLOCKS + 1, bucket, 0), false),
            (Request::write_zeroes(0, MAX_BLOCKS + 1, true, 0), false),
            (Request::discard(0, u32::MAX, 0), true),
        ] {
            let made = command(1, &request);
            assert_eq!(made.is_ok(), most, "{request:?}");
            assert!(most || made == Err(Status::INVALID_FIELD));
        }
        let extents = Request::extents(0, 1, mem::Iova(0), 0);
        assert_eq!(command(1, &extents), Err(Status::INVALID_OPCODE));
    }
}

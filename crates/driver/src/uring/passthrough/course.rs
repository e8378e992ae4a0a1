//! [`NvmeCourse`]: a command on its way, and what the kernel's answer to it means.
//!
//! One request is one command. The answer of a command that the controller has ended is its status field;
//! a negative one is the kernel's, which has not sent it, or has given it up.

use nvme::{DsmRange, Metadata, Sqe, Status};
use rustix::io::Errno;

use crate::command::command;
use crate::uring::flight::RETRIES;
use crate::uring::status;
use crate::uring::wire::{Course, Data, Next};
use crate::{Limits, Op, Request};

/// A command on its way.
#[derive(Clone, Copy, Debug)]
pub struct NvmeCourse {
    sqe: Sqe,
    op: Op,
    data: Data,
    retries: u8,
}

impl Default for NvmeCourse {
    fn default() -> NvmeCourse {
        NvmeCourse { sqe: Sqe::default(), op: Op::Flush, data: Data::None, retries: 0 }
    }
}

impl NvmeCourse {
    /// The command of a request for namespace `nsid`.
    ///
    /// # Errors
    /// The status of one that cannot be sent: ranges and counts.
    #[inline]
    pub(super) fn plan(nsid: u32, request: &Request, limits: &Limits) -> Result<Self, Status> {
        let Request { op, lba, sectors, .. } = *request;
        let past_end = lba.checked_add(sectors.into()).is_none_or(|end| end > limits.sectors);
        if op != Op::Flush && past_end {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let transfers = matches!(op, Op::Read | Op::Write);
        let too_long = transfers && sectors > limits.max_sectors;
        if too_long || (sectors == 0 && op != Op::Flush) {
            return Err(Status::INVALID_FIELD);
        }
        let sqe = command(nsid, request)?;
        let data = match op {
            Op::Discard => Data::Note(DsmRange::new(lba, sectors).to_bytes()),
            Op::Read | Op::Write => {
                let bytes = sectors.checked_mul(limits.sector_bytes);
                let bytes = bytes.ok_or(Status::INVALID_FIELD)?;
                Data::Payload { write: op == Op::Write, bytes }
            }
            _ => Data::None,
        };
        Ok(NvmeCourse { sqe, op, data, retries: 0 })
    }

    /// The namespace keeps metadata.
    pub(super) fn mark(&mut self, metadata: &Metadata) {
        metadata.mark(&mut self.sqe);
    }

    /// The command, without its data pointer.
    #[inline]
    pub(super) fn sqe(&self) -> &Sqe {
        &self.sqe
    }
}

impl Course for NvmeCourse {
    #[inline]
    fn data(&self) -> Data {
        self.data
    }

    #[inline]
    fn answer(&mut self, result: i32, _sector_bytes: u32, aborted: bool) -> Next {
        let errno = match result {
            0 => return Next::Ended(Status::SUCCESS),
            // The status field without its phase tag.
            1..=0x7fff => return Next::Ended(Status::from_bits(result as u16)),
            -4095..0 => Errno::from_raw_os_error(-result),
            _ => return Next::Ended(Status::INTERNAL),
        };
        if errno == Errno::AGAIN && !aborted && self.retries < RETRIES {
            self.retries += 1;
            return Next::Again;
        }
        if status::is_gone(errno) {
            return Next::Gone;
        }
        Next::Ended(status::of(errno, self.op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    const LIMITS: Limits = Limits {
        sector_bytes: 512,
        sectors: 1000,
        max_sectors: 64,
        optimal_sectors: 8,
        queue_depth: 4,
        volatile_cache: true,
    };

    #[test]
    fn what_cannot_be_is_refused() {
        let bucket = Payload::BitBucket;
        for (request, status) in [
            (Request::read(1000, 1, bucket, 0), Status::LBA_OUT_OF_RANGE),
            (Request::write(999, 2, bucket, 0), Status::LBA_OUT_OF_RANGE),
            (Request::discard(u64::MAX, 1, 0), Status::LBA_OUT_OF_RANGE),
            (Request::read(0, 0, bucket, 0), Status::INVALID_FIELD),
            (Request::write(0, 65, bucket, 0), Status::INVALID_FIELD),
            (Request::discard(0, 0, 0), Status::INVALID_FIELD),
            (Request::extents(0, 1, ring::Iova(0), 0), Status::INVALID_OPCODE),
        ] {
            assert_eq!(NvmeCourse::plan(1, &request, &LIMITS).unwrap_err(), status, "{request:?}");
        }
    }

    #[test]
    fn commands_carry_what_they_are_about() {
        let plan = |request| NvmeCourse::plan(3, &request, &LIMITS).unwrap();
        let read = plan(Request::read(8, 2, Payload::BitBucket, 0));
        assert_eq!(read.data(), Data::Payload { write: false, bytes: 1024 });
        assert_eq!((read.sqe().opcode, read.sqe().nsid.get(), read.sqe().slba()), (2, 3, 8));
        let discard = plan(Request::discard(8, 100, 0));
        assert_eq!(discard.data(), Data::Note(DsmRange::new(8, 100).to_bytes()));
        assert_eq!(plan(Request::flush(0)).data(), Data::None);
        assert_eq!(plan(Request::write_zeroes(0, 1000, true, 0)).data(), Data::None);
    }

    #[test]
    fn answers_are_the_controllers_or_the_kernels() {
        let read = NvmeCourse::plan(1, &Request::read(0, 1, Payload::BitBucket, 0), &LIMITS);
        let read = read.unwrap();
        let one = |result| { read }.answer(result, 512, false);
        assert_eq!(one(0), Next::Ended(Status::SUCCESS));
        let media = Status::UNRECOVERED_READ.do_not_retry();
        assert_eq!(one(media.to_bits().into()), Next::Ended(media));
        assert_eq!(one(0x371), Next::Ended(Status::from_bits(0x371)));
        assert_eq!(one(0x8000), Next::Ended(Status::INTERNAL), "no status has so many bits");
        assert_eq!(one(i32::MIN), Next::Ended(Status::INTERNAL));
        // Given up by the kernel, with the controller.
        assert_eq!(one(-Errno::INTR.raw_os_error()), Next::Ended(Status::ABORTED));
        assert_eq!(one(-Errno::NODEV.raw_os_error()), Next::Gone);
        assert_eq!(one(-Errno::ACCESS.raw_os_error()), Next::Ended(Status::WRITE_PROTECTED));
        let mut busy = read;
        let again = -Errno::AGAIN.raw_os_error();
        for _ in 0..RETRIES {
            assert_eq!(busy.answer(again, 512, false), Next::Again);
        }
        assert_eq!(busy.answer(again, 512, false), Next::Ended(Status::NOT_READY));
        let mut aborted = read;
        assert_eq!(aborted.answer(again, 512, true), Next::Ended(Status::NOT_READY));
    }
}

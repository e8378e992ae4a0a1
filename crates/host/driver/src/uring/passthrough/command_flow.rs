//! [`NvmeCommandFlow`]: an NVMe command, and the meaning of the kernel's result.
//!
//! One request is one command. If the controller has completed the command, the result is its
//! status field. A negative result is the kernel's: it has not sent the command, or has aborted it.

use nvme::{DsmRange, MetadataFormat, Sqe, Status};
use rustix::io::Errno;

use crate::nvme_device::command::command;
use crate::uring::backend::{CommandFlow, NextStep, SqeData};
use crate::uring::in_flight::RETRIES_MAX;
use crate::uring::status;
use crate::{Limits, Op, Request};

/// The state of an NVMe command.
#[derive(Clone, Copy, Debug)]
pub struct NvmeCommandFlow {
    sqe: Sqe,
    op: Op,
    data: SqeData,
    retries: u8,
}

impl Default for NvmeCommandFlow {
    fn default() -> NvmeCommandFlow {
        NvmeCommandFlow { sqe: Sqe::default(), op: Op::Flush, data: SqeData::None, retries: 0 }
    }
}

impl NvmeCommandFlow {
    /// Returns the command of a request for namespace `nsid`.
    ///
    /// # Errors
    /// The status of a request that cannot be sent because of its range or length.
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
            Op::Discard => SqeData::CommandTable(DsmRange::new(lba, sectors).to_bytes()),
            Op::Read | Op::Write => {
                let bytes = sectors.checked_mul(limits.sector_bytes);
                let bytes = bytes.ok_or(Status::INVALID_FIELD)?;
                SqeData::Payload { write: op == Op::Write, bytes }
            }
            _ => SqeData::None,
        };
        Ok(NvmeCommandFlow { sqe, op, data, retries: 0 })
    }

    /// Sets the flags for a namespace with metadata.
    pub(super) fn set_metadata_flags(&mut self, metadata: &MetadataFormat) {
        metadata.set_protection_info(&mut self.sqe);
    }

    /// Returns the command without its data pointer.
    #[inline]
    pub(super) fn sqe(&self) -> &Sqe {
        &self.sqe
    }
}

impl CommandFlow for NvmeCommandFlow {
    #[inline]
    fn data(&self) -> SqeData {
        self.data
    }

    #[inline]
    fn on_cqe(&mut self, result: i32, _sector_bytes: u32, aborted: bool) -> NextStep {
        let errno = match result {
            0 => return NextStep::Completed(Status::SUCCESS),
            // The status field without its phase tag.
            1..=0x7fff => return NextStep::Completed(Status::from_bits(result as u16)),
            -4095..0 => Errno::from_raw_os_error(-result),
            _ => return NextStep::Completed(Status::INTERNAL),
        };
        if errno == Errno::AGAIN && !aborted && self.retries < RETRIES_MAX {
            self.retries += 1;
            return NextStep::Retry;
        }
        if status::is_device_removed(errno) {
            return NextStep::DeviceRemoved;
        }
        NextStep::Completed(status::from_errno(errno, self.op))
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
        atomic: crate::AtomicLimits::NONE,
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
            (Request::extents(0, 1, mem::Iova(0), 0), Status::INVALID_OPCODE),
        ] {
            assert_eq!(
                NvmeCommandFlow::plan(1, &request, &LIMITS).unwrap_err(),
                status,
                "{request:?}"
            );
        }
    }

    #[test]
    fn commands_carry_what_they_are_about() {
        let plan = |request| NvmeCommandFlow::plan(3, &request, &LIMITS).unwrap();
        let read = plan(Request::read(8, 2, Payload::BitBucket, 0));
        assert_eq!(read.data(), SqeData::Payload { write: false, bytes: 1024 });
        assert_eq!((read.sqe().opcode, read.sqe().nsid.get(), read.sqe().slba()), (2, 3, 8));
        let discard = plan(Request::discard(8, 100, 0));
        assert_eq!(discard.data(), SqeData::CommandTable(DsmRange::new(8, 100).to_bytes()));
        assert_eq!(plan(Request::flush(0)).data(), SqeData::None);
        assert_eq!(plan(Request::write_zeroes(0, 1000, true, 0)).data(), SqeData::None);
    }

    #[test]
    fn answers_are_the_controllers_or_the_kernels() {
        let read = NvmeCommandFlow::plan(1, &Request::read(0, 1, Payload::BitBucket, 0), &LIMITS);
        let read = read.unwrap();
        let one = |result| { read }.on_cqe(result, 512, false);
        assert_eq!(one(0), NextStep::Completed(Status::SUCCESS));
        let media = Status::UNRECOVERED_READ.do_not_retry();
        assert_eq!(one(media.to_bits().into()), NextStep::Completed(media));
        assert_eq!(one(0x371), NextStep::Completed(Status::from_bits(0x371)));
        assert_eq!(
            one(0x8000),
            NextStep::Completed(Status::INTERNAL),
            "no status has so many bits"
        );
        assert_eq!(one(i32::MIN), NextStep::Completed(Status::INTERNAL));
        // Aborted by the kernel, with a controller reset.
        assert_eq!(one(-Errno::INTR.raw_os_error()), NextStep::Completed(Status::ABORTED));
        assert_eq!(one(-Errno::NODEV.raw_os_error()), NextStep::DeviceRemoved);
        assert_eq!(
            one(-Errno::ACCESS.raw_os_error()),
            NextStep::Completed(Status::WRITE_PROTECTED)
        );
        let mut busy = read;
        let again = -Errno::AGAIN.raw_os_error();
        for _ in 0..RETRIES_MAX {
            assert_eq!(busy.on_cqe(again, 512, false), NextStep::Retry);
        }
        assert_eq!(busy.on_cqe(again, 512, false), NextStep::Completed(Status::NOT_READY));
        let mut aborted = read;
        assert_eq!(aborted.on_cqe(again, 512, true), NextStep::Completed(Status::NOT_READY));
    }
}

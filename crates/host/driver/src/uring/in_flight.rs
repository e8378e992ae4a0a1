//! [`InFlight`]: a command on a file: its operations, and the meaning of their results. This module
//! does no I/O; the queue executes the steps.
//!
//! | request | operation |
//! |---|---|
//! | read, write | a transfer; a write with force unit access carries `RWF_DSYNC` |
//! | flush | `fdatasync` |
//! | discard | a hole is punched, the size kept |
//! | write zeroes | a hole if `deallocate` is set and supported, else `FALLOC_FL_ZERO_RANGE`; with FUA then `fdatasync` |
//!
//! A partial transfer continues with the rest. A transfer that stops inside a sector, or makes no
//! progress, has reached the end of a truncated file and completes with a media error.

use nvme::Status;
use rustix::io::Errno;

use super::backend::{CommandFlow, NextStep, SqeData};
use super::status;
use crate::{Limits, Op, Request};

/// Number of times that a command is reissued for which the kernel has no resources.
pub(super) const RETRIES_MAX: u8 = 16;

/// An operation on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowStep {
    /// A transfer between memory and file.
    Transfer {
        /// Whether data is transferred to the file.
        write: bool,
        /// Whether the operation completes only when the data is durable.
        durable: bool,
    },
    /// `fdatasync`.
    Sync,
    /// Punches a hole.
    Punch,
    /// Zeroes a range.
    Zero,
}

/// The progress of a command on a file.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    pub(super) step: FlowStep,
    op: Op,
    sync_after: bool,
    retries: u8,
    offset: u64,
    bytes: u64,
    bytes_done: u64,
}

impl Default for InFlight {
    fn default() -> InFlight {
        InFlight {
            step: FlowStep::Sync,
            op: Op::Flush,
            sync_after: false,
            retries: 0,
            offset: 0,
            bytes: 0,
            bytes_done: 0,
        }
    }
}

impl InFlight {
    /// Returns the first step of a request.
    ///
    /// # Errors
    /// The status of a request that cannot be executed.
    #[inline]
    pub(super) fn plan(
        request: &Request,
        limits: &Limits,
        read_only: bool,
    ) -> Result<InFlight, Status> {
        let Request { op, lba, sectors, fua, deallocate: may_unmap, .. } = *request;
        let step = match op {
            Op::Read => FlowStep::Transfer { write: false, durable: false },
            Op::Write => FlowStep::Transfer { write: true, durable: fua },
            Op::Flush => return Ok(InFlight::default()),
            Op::Discard => FlowStep::Punch,
            Op::WriteZeroes if may_unmap => FlowStep::Punch,
            Op::WriteZeroes => FlowStep::Zero,
            Op::Extents => return Err(Status::INVALID_OPCODE),
        };
        if read_only && op != Op::Read {
            return Err(Status::WRITE_PROTECTED);
        }
        // Checked again, because a write past the end would extend the file.
        let past_end = lba.checked_add(sectors.into()).is_none_or(|end| end > limits.sectors);
        if past_end {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let too_long = sectors > limits.max_sectors && matches!(step, FlowStep::Transfer { .. });
        if sectors == 0 || too_long {
            return Err(Status::INVALID_FIELD);
        }
        let sector_bytes = u64::from(limits.sector_bytes);
        Ok(InFlight {
            step,
            op,
            sync_after: fua && op == Op::WriteZeroes,
            offset: lba * sector_bytes,
            bytes: u64::from(sectors) * sector_bytes,
            ..InFlight::default()
        })
    }

    /// Returns the offset of the step in the file.
    #[inline]
    pub(super) fn file_offset(&self) -> u64 {
        self.offset + self.bytes_done
    }

    /// Returns the number of bytes of the step.
    #[inline]
    pub(super) fn remaining_bytes(&self) -> u64 {
        self.bytes - self.bytes_done
    }

    #[inline]
    fn on_transferred(&mut self, bytes: u32, sector_bytes: u32) -> NextStep {
        let left = self.remaining_bytes();
        if u64::from(bytes) == left {
            return NextStep::Completed(Status::SUCCESS);
        }
        let cut = bytes == 0 || !bytes.is_multiple_of(sector_bytes) || u64::from(bytes) > left;
        if cut {
            return NextStep::Completed(status::media_error(self.op));
        }
        self.bytes_done += u64::from(bytes);
        self.retries = 0;
        NextStep::Continue(bytes)
    }

    #[cold]
    fn on_error(&mut self, errno: Errno, aborted: bool) -> NextStep {
        let transient = matches!(errno, Errno::AGAIN | Errno::INTR);
        if transient && !aborted && self.retries < RETRIES_MAX {
            self.retries += 1;
            return NextStep::Retry;
        }
        // Deallocation is optional: write zeros instead.
        if errno == Errno::OPNOTSUPP && self.op == Op::WriteZeroes && self.step == FlowStep::Punch {
            self.step = FlowStep::Zero;
            return NextStep::Step;
        }
        if status::is_device_removed(errno) {
            return NextStep::DeviceRemoved;
        }
        NextStep::Completed(status::from_errno(errno, self.op))
    }
}

impl CommandFlow for InFlight {
    #[inline]
    fn data(&self) -> SqeData {
        match self.step {
            // At most the transfer limit, which is 32 bits wide.
            FlowStep::Transfer { write, .. } => {
                SqeData::Payload { write, bytes: self.remaining_bytes() as u32 }
            }
            FlowStep::Sync | FlowStep::Punch | FlowStep::Zero => SqeData::None,
        }
    }

    #[inline]
    fn on_cqe(&mut self, result: i32, sector_bytes: u32, aborted: bool) -> NextStep {
        match result {
            0.. => {}
            -4095..0 => return self.on_error(Errno::from_raw_os_error(-result), aborted),
            // The result is not an errno.
            _ => return NextStep::Completed(Status::INTERNAL),
        }
        match self.step {
            FlowStep::Transfer { .. } => self.on_transferred(result as u32, sector_bytes),
            FlowStep::Punch | FlowStep::Zero if self.sync_after => {
                self.step = FlowStep::Sync;
                NextStep::Step
            }
            FlowStep::Punch | FlowStep::Zero | FlowStep::Sync => {
                NextStep::Completed(Status::SUCCESS)
            }
        }
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

    fn plan(request: Request) -> InFlight {
        InFlight::plan(&request, &LIMITS, false).unwrap()
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let bucket = Payload::BitBucket;
        for (request, status) in [
            (Request::read(1000, 1, bucket, 0), Status::LBA_OUT_OF_RANGE),
            (Request::write(999, 2, bucket, 0), Status::LBA_OUT_OF_RANGE),
            (Request::write(u64::MAX, 1, bucket, 0), Status::LBA_OUT_OF_RANGE),
            (Request::discard(0, 1001, 0), Status::LBA_OUT_OF_RANGE),
            (Request::read(0, 0, bucket, 0), Status::INVALID_FIELD),
            (Request::read(0, 65, bucket, 0), Status::INVALID_FIELD),
            (Request::discard(5, 0, 0), Status::INVALID_FIELD),
            (Request::extents(0, 1, mem::Iova(0), 0), Status::INVALID_OPCODE),
        ] {
            assert_eq!(
                InFlight::plan(&request, &LIMITS, false).unwrap_err(),
                status,
                "{request:?}"
            );
        }
        for request in [
            Request::write(0, 1, bucket, 0),
            Request::discard(0, 1, 0),
            Request::write_zeroes(0, 1, true, 0),
        ] {
            let refused = InFlight::plan(&request, &LIMITS, true).unwrap_err();
            assert_eq!(refused, Status::WRITE_PROTECTED);
        }
        assert!(InFlight::plan(&Request::read(0, 1, bucket, 0), &LIMITS, true).is_ok());
        assert!(InFlight::plan(&Request::flush(0), &LIMITS, true).is_ok());
        assert!(InFlight::plan(&Request::discard(0, 1000, 0), &LIMITS, false).is_ok(), "no limit");
    }

    #[test]
    fn a_short_transfer_goes_on_in_whole_sectors_only() {
        let mut read = plan(Request::read(10, 8, Payload::BitBucket, 0));
        assert_eq!((read.file_offset(), read.remaining_bytes()), (5120, 4096));
        assert_eq!(read.on_cqe(1024, 512, false), NextStep::Continue(1024));
        assert_eq!((read.file_offset(), read.remaining_bytes()), (6144, 3072));
        let mut cut = read;
        assert_eq!(
            cut.on_cqe(100, 512, false),
            NextStep::Completed(Status::UNRECOVERED_READ),
            "end of file"
        );
        assert_eq!(
            read.on_cqe(0, 512, false),
            NextStep::Completed(Status::UNRECOVERED_READ),
            "end of file"
        );
        let mut write = plan(Request::write(0, 2, Payload::BitBucket, 0));
        assert_eq!(write.on_cqe(0, 512, false), NextStep::Completed(Status::WRITE_FAULT));
        assert_eq!(write.on_cqe(700, 512, false), NextStep::Completed(Status::WRITE_FAULT));
        assert_eq!(
            write.on_cqe(4096, 512, false),
            NextStep::Completed(Status::WRITE_FAULT),
            "more than asked"
        );
        assert_eq!(write.on_cqe(512, 512, false), NextStep::Continue(512));
        assert_eq!(write.on_cqe(512, 512, false), NextStep::Completed(Status::SUCCESS));
    }

    #[test]
    fn zeroes_may_take_three_steps() {
        let mut zeroes = plan(Request { fua: true, ..Request::write_zeroes(0, 8, true, 0) });
        assert_eq!(zeroes.step, FlowStep::Punch);
        assert_eq!(zeroes.on_cqe(-Errno::OPNOTSUPP.raw_os_error(), 512, false), NextStep::Step);
        assert_eq!(zeroes.step, FlowStep::Zero);
        assert_eq!(zeroes.on_cqe(0, 512, false), NextStep::Step);
        assert_eq!(zeroes.step, FlowStep::Sync);
        assert_eq!(zeroes.on_cqe(0, 512, false), NextStep::Completed(Status::SUCCESS));
        let unsupported = -Errno::OPNOTSUPP.raw_os_error();
        let mut discard = plan(Request::discard(0, 8, 0));
        assert_eq!(
            discard.on_cqe(unsupported, 512, false),
            NextStep::Completed(Status::INVALID_OPCODE)
        );
        let mut written = plan(Request::write_zeroes(0, 8, false, 0));
        assert_eq!(
            written.on_cqe(unsupported, 512, false),
            NextStep::Completed(Status::INVALID_OPCODE)
        );
    }

    #[test]
    fn a_busy_kernel_is_asked_again_but_not_for_ever() {
        let again = -Errno::AGAIN.raw_os_error();
        let mut read = plan(Request::read(0, 1, Payload::BitBucket, 0));
        for _ in 0..RETRIES_MAX {
            assert_eq!(read.on_cqe(again, 512, false), NextStep::Retry);
        }
        assert_eq!(read.on_cqe(again, 512, false), NextStep::Completed(Status::NOT_READY));
        let mut aborted = plan(Request::read(0, 1, Payload::BitBucket, 0));
        let interrupted = -Errno::INTR.raw_os_error();
        assert_eq!(aborted.on_cqe(interrupted, 512, true), NextStep::Completed(Status::ABORTED));
        let mut gone = plan(Request::flush(0));
        assert_eq!(gone.on_cqe(-Errno::NODEV.raw_os_error(), 512, false), NextStep::DeviceRemoved);
        assert_eq!(gone.on_cqe(i32::MIN, 512, false), NextStep::Completed(Status::INTERNAL));
    }
}

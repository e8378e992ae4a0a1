//! [`DirectQueue`]: the writes of preconditioning, given to a drive's FTL without commands.

use std::collections::VecDeque;

use block::{BlockDevice, Completion, Limits, Op, QueueFull, Request};
use block::{answer_block_device, validate_request};
use controller::Controller;
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};

/// A device on which the writes of preconditioning have the order and the result that they have on the
/// raw queue of the drive's only host.
#[derive(Debug)]
pub(super) struct DirectQueue<'a> {
    drive: &'a mut Controller,
    limits: Limits,
    memory: AddressSpace,
    in_flight: u32,
    /// Requests that were refused.
    refused: VecDeque<Completion>,
}

impl<'a> DirectQueue<'a> {
    /// Creates a device with the limits of the raw queue. `drive` must take
    /// [direct writes](Controller::takes_direct_writes).
    pub(super) fn new(drive: &'a mut Controller, limits: Limits) -> DirectQueue<'a> {
        let (memory, refused) = (AddressSpace::default(), VecDeque::new());
        DirectQueue { drive, limits, memory, in_flight: 0, refused }
    }
}

impl Component for DirectQueue<'_> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.drive.run_direct_writes(now)
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.drive.deadline()
    }
}

impl BlockDevice for DirectQueue<'_> {
    answer_block_device!(can_wake: false, enable_sharing: {}, can_wait: false, visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, _now: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.in_flight >= self.limits.queue_depth {
            return Err(QueueFull);
        }
        self.in_flight += 1;
        let Request { tag, op, lba, sectors, .. } = request;
        let refused = match op {
            Op::Write => validate_request(&self.limits, self.limits.max_sectors, &request),
            _ => Some(Status::INVALID_OPCODE),
        };
        match refused {
            None => self.drive.write_directly(tag, lba, sectors),
            Some(status) => self.refused.push_back(Completion { tag, status, result: 0 }),
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        let done = self.drive.pop_direct_write();
        let done = done.map(|(tag, status)| Completion { tag, status, result: 0 });
        let done = done.or_else(|| self.refused.pop_front())?;
        self.in_flight -= 1;
        Some(done)
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, _: Waker) {}
}

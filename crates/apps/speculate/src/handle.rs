//! [`SpeculativeHandle`]: writes and flushes that return before the device has done them.
//!
//! # Order
//!
//! Operations take effect in the order of their calls, as far as others can tell. The device is free in
//! the order of writes, so that the handle has it wait where order matters: a write for an earlier
//! one of the same sectors, a flush for all writes before it, and what follows for that flush. So after
//! a power cut the device has the effect of all operations up to some flush, and of some writes
//! between it and the next one, as if the program had waited for each.
//!
//! # Failure
//!
//! After the first failure nothing is sent any more: what follows may depend on it. The program learns of it
//! by [`SpeculativeHandle::on_failure`], and by every later call.

use std::collections::VecDeque;
use std::fmt;

use block::BlockDevice;
use nvme::Status;
use user_io::{Buffer, Completion, Handle, IoError, Limits, Op, Request};

use crate::{FailedOperation, RefusedWrite, SpeculateError, Ticket};

/// The reaction of a program to its first failure.
type OnFailure = Box<dyn FnMut(&FailedOperation) + Send>;

/// Counters of a handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculateStats {
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Calls of [`SpeculativeHandle::externalize`].
    pub outputs: u64,
    /// Those of them that had to wait.
    pub outputs_waited: u64,
    /// Operations that waited for others before they were sent.
    pub ordered: u64,
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationState {
    /// The slot is free.
    Free,
    /// It waits for others.
    Waiting,
    /// The device has it.
    InFlight,
    /// It is done. A write waits for its ticket.
    Done,
    /// It has failed, or was not sent because another one has.
    Failed,
}

/// A write or a flush.
#[derive(Debug)]
struct Operation {
    state: OperationState,
    op: Op,
    lba: u64,
    sectors: u32,
    /// The buffer of a write.
    buffer: Option<Buffer>,
    /// Whether its ticket was released, so that the slot is freed when it is done.
    is_released: bool,
    /// How often the slot was used before.
    use_number: u32,
}

impl Operation {
    fn overlaps(&self, lba: u64, sectors: u32) -> bool {
        self.op != Op::Flush
            && self.lba < lba + u64::from(sectors)
            && lba < self.lba + u64::from(self.sectors)
    }

    fn is_pending(&self) -> bool {
        matches!(self.state, OperationState::Waiting | OperationState::InFlight)
    }
}

/// A handle whose writes and flushes return at once.
///
/// A handle that is dropped sends no more: call [`externalize`](SpeculativeHandle::externalize) or
/// [`into_handle`](SpeculativeHandle::into_handle) before.
///
/// Invariant: operations are sent in the order of their calls; a flush alone, and a write only when no
/// earlier operation of the same sectors is in flight.
pub struct SpeculativeHandle<D> {
    handle: Handle<D>,
    operations: Vec<Operation>,
    free: Vec<u32>,
    /// Operations that are not sent, in the order of their calls.
    waiting: VecDeque<u32>,
    /// Operations that the device has.
    in_flight: Vec<u32>,
    flushes: bool,
    failure: Option<FailedOperation>,
    on_failure: Option<OnFailure>,
    stats: SpeculateStats,
}

impl<D: fmt::Debug> fmt::Debug for SpeculativeHandle<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeculativeHandle")
            .field("handle", &self.handle)
            .field("waiting", &self.waiting.len())
            .field("in_flight", &self.in_flight.len())
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl<D: BlockDevice> SpeculativeHandle<D> {
    /// Takes a handle without outstanding requests.
    ///
    /// # Errors
    /// The handle, if requests are outstanding.
    pub fn new(handle: Handle<D>) -> Result<SpeculativeHandle<D>, Box<Handle<D>>> {
        if handle.outstanding() > 0 {
            return Err(Box::new(handle));
        }
        Ok(SpeculativeHandle {
            handle,
            operations: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: Vec::new(),
            flushes: false,
            failure: None,
            on_failure: None,
            stats: SpeculateStats::default(),
        })
    }

    /// Waits for all operations, and returns the handle below.
    pub fn into_handle(mut self) -> Handle<D> {
        self.wait_until(|handle| !handle.has_pending());
        self.handle
    }

    /// Returns the limits of the device.
    pub fn limits(&self) -> &Limits {
        self.handle.limits()
    }

    /// Returns the counters.
    pub fn stats(&self) -> SpeculateStats {
        self.stats
    }

    /// Returns the first failure.
    pub fn failure(&self) -> Option<&FailedOperation> {
        self.failure.as_ref()
    }

    /// Has `act` called with the first failure, by the call that learns of it.
    pub fn on_failure(&mut self, act: impl FnMut(&FailedOperation) + Send + 'static) {
        self.on_failure = Some(Box::new(act));
    }

    /// Writes the whole buffer to the sectors from `lba` on, and returns before that is done. The
    /// buffer is the handle's until its ticket is [taken](SpeculativeHandle::take).
    ///
    /// # Errors
    /// [`RefusedWrite`] with the buffer: [`SpeculateError::Failed`] after a failure,
    /// [`SpeculateError::Io`] for a length that the device does not take.
    #[inline]
    pub fn write(&mut self, lba: u64, buffer: Buffer) -> Result<Ticket, RefusedWrite> {
        let sectors = match self.sectors_of(buffer.len()) {
            Ok(sectors) if self.failure.is_none() => sectors,
            Ok(_) => return Err(self.refused(Some(buffer))),
            Err(error) => return Err(RefusedWrite { buffer: Some(buffer), error: error.into() }),
        };
        self.stats.writes += 1;
        let slot = self.begin(Op::Write, lba, sectors, Some(buffer));
        self.issue();
        Ok(Ticket::new(slot, self.operations[slot as usize].use_number))
    }

    /// Makes all writes so far durable, and returns before that is done.
    ///
    /// # Errors
    /// [`SpeculateError::Failed`] after a failure.
    pub fn flush(&mut self) -> Result<(), SpeculateError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone().into());
        }
        self.stats.flushes += 1;
        let slot = self.begin(Op::Flush, 0, 0, None);
        self.operations[slot as usize].is_released = true;
        self.issue();
        Ok(())
    }

    /// Reads sectors from `lba` on into the whole buffer: what was written before. Waits for writes of
    /// these sectors that are not done.
    ///
    /// # Errors
    /// [`SpeculateError`].
    pub fn read(&mut self, lba: u64, buffer: &Buffer) -> Result<(), SpeculateError> {
        let sectors = self.sectors_of(buffer.len())?;
        self.wait_until(|handle| !handle.is_pending(lba, sectors));
        if let Some(failure) = &self.failure {
            return Err(failure.clone().into());
        }
        // Completions of writes that arrive meanwhile stay in the handle.
        Ok(self.handle.read(lba, buffer)?)
    }

    /// Waits until all writes and flushes so far are done: before output that others could see. A
    /// program whose output promises durability calls [`flush`](SpeculativeHandle::flush) before.
    ///
    /// # Errors
    /// [`SpeculateError::Failed`] if one of them has failed: there must be no output.
    #[inline]
    pub fn externalize(&mut self) -> Result<(), SpeculateError> {
        self.stats.outputs += 1;
        if self.has_pending() {
            self.poll();
            if self.has_pending() {
                self.stats.outputs_waited += 1;
                self.wait_until(|handle| !handle.has_pending());
            }
        }
        match &self.failure {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(()),
        }
    }

    /// Whether an operation is not done: output would wait.
    #[inline]
    pub fn has_pending(&self) -> bool {
        !self.in_flight.is_empty() || !self.waiting.is_empty()
    }

    /// Waits for the write of a ticket, and returns its buffer.
    ///
    /// # Errors
    /// [`RefusedWrite`] with the buffer if the write has failed, or was not sent because another
    /// operation has. Without a buffer for the ticket of another handle.
    #[inline]
    pub fn take(&mut self, ticket: Ticket) -> Result<Buffer, RefusedWrite> {
        let slot = self.own_slot(&ticket)?;
        self.wait_until(|handle| !handle.operations[slot as usize].is_pending());
        let failed = self.operations[slot as usize].state == OperationState::Failed;
        match self.free_slot(slot) {
            Some(buffer) if !failed => Ok(buffer),
            buffer => Err(self.refused(buffer)),
        }
    }

    /// Gives a ticket back: the buffer is freed when its write is done.
    ///
    /// # Errors
    /// [`RefusedWrite`] for the ticket of another handle.
    pub fn release(&mut self, ticket: Ticket) -> Result<(), RefusedWrite> {
        let slot = self.own_slot(&ticket)?;
        match self.operations[slot as usize].is_pending() {
            true => self.operations[slot as usize].is_released = true,
            false => drop(self.free_slot(slot)),
        }
        Ok(())
    }

    /// Sends what can be sent, and collects what is done. Returns whether anything was.
    pub fn poll(&mut self) -> bool {
        let moved = self.collect();
        self.issue();
        moved
    }

    /// Collects what is done. Returns whether anything was.
    #[inline]
    fn collect(&mut self) -> bool {
        let mut moved = self.handle.poll();
        while let Some(completion) = self.handle.reap() {
            self.complete(completion);
            moved = true;
        }
        moved
    }

    fn own_slot(&self, ticket: &Ticket) -> Result<u32, RefusedWrite> {
        let operation = self.operations.get(ticket.slot() as usize);
        let is_own = operation.is_some_and(|operation| {
            operation.state != OperationState::Free && operation.use_number == ticket.use_number()
        });
        match is_own {
            true => Ok(ticket.slot()),
            false => Err(RefusedWrite { buffer: None, error: SpeculateError::ForeignTicket }),
        }
    }

    fn refused(&self, buffer: Option<Buffer>) -> RefusedWrite {
        let error = match &self.failure {
            Some(failure) => failure.clone().into(),
            None => SpeculateError::ForeignTicket,
        };
        RefusedWrite { buffer, error }
    }

    fn sectors_of(&self, bytes: usize) -> Result<u32, IoError> {
        let Limits { sector_bytes, max_sectors: sectors_max, .. } = *self.limits();
        let whole = bytes > 0 && bytes.is_multiple_of(sector_bytes as usize);
        let sectors = u32::try_from(bytes / sector_bytes as usize).ok();
        let allowed = sectors.filter(|sectors| whole && *sectors <= sectors_max);
        allowed.ok_or(IoError::Length { bytes, sector_bytes, sectors_max })
    }

    /// Adds an operation behind all others. Returns its slot.
    #[inline]
    fn begin(&mut self, op: Op, lba: u64, sectors: u32, buffer: Option<Buffer>) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.operations.push(Operation {
                state: OperationState::Free,
                op,
                lba: 0,
                sectors: 0,
                buffer: None,
                is_released: false,
                use_number: 0,
            });
            (self.operations.len() - 1) as u32
        });
        let operation = &mut self.operations[slot as usize];
        (operation.state, operation.op) = (OperationState::Waiting, op);
        (operation.lba, operation.sectors) = (lba, sectors);
        (operation.buffer, operation.is_released) = (buffer, false);
        self.waiting.push_back(slot);
        slot
    }

    /// Frees a slot, and returns its buffer.
    fn free_slot(&mut self, slot: u32) -> Option<Buffer> {
        let operation = &mut self.operations[slot as usize];
        operation.state = OperationState::Free;
        operation.use_number = operation.use_number.wrapping_add(1);
        self.free.push(slot);
        self.operations[slot as usize].buffer.take()
    }

    /// Whether a write of these sectors is not done.
    fn is_pending(&self, lba: u64, sectors: u32) -> bool {
        let pending = self.in_flight.iter().chain(&self.waiting);
        let mut pending = pending.map(|slot| &self.operations[*slot as usize]);
        pending.any(|operation| operation.overlaps(lba, sectors))
    }

    /// Whether the next operation can be sent now.
    #[inline]
    fn can_send(&self, operation: &Operation) -> bool {
        if self.flushes || operation.op == Op::Flush {
            return self.in_flight.is_empty();
        }
        let mut sent = self.in_flight.iter().map(|slot| &self.operations[*slot as usize]);
        !sent.any(|sent| sent.overlaps(operation.lba, operation.sectors))
    }

    /// Sends operations in the order of their calls, as far as order allows, and collects what is done
    /// then, which may allow others.
    #[inline]
    fn issue(&mut self) {
        // The doorbell is rung; what is done already needs no poll of its own.
        while self.send() && self.collect() {}
    }

    /// Sends operations. Returns whether it sent some.
    #[inline]
    fn send(&mut self) -> bool {
        let mut sent = false;
        while let Some(&slot) = self.waiting.front() {
            let operation = &self.operations[slot as usize];
            if !self.can_send(operation) {
                self.stats.ordered += u64::from(!sent);
                break;
            }
            let Operation { op, lba, sectors, .. } = *operation;
            let tag = u64::from(slot);
            let request = match &operation.buffer {
                Some(buffer) => Request::write(lba, sectors, buffer.payload(), tag),
                None => Request::flush(tag),
            };
            match self.handle.submit(request) {
                Ok(()) => {}
                // The queue has room when another operation is done; this handle has all of it.
                Err(IoError::Busy(_)) if !self.in_flight.is_empty() => break,
                Err(error) => {
                    self.waiting.pop_front();
                    self.operations[slot as usize].state = OperationState::Failed;
                    self.fail(FailedOperation { op, lba, sectors, error });
                    break;
                }
            }
            self.waiting.pop_front();
            self.operations[slot as usize].state = OperationState::InFlight;
            self.in_flight.push(slot);
            self.flushes = op == Op::Flush;
            sent = true;
        }
        sent
    }

    #[inline]
    fn complete(&mut self, completion: Completion) {
        let slot = completion.tag as u32;
        let Some(at) = self.in_flight.iter().position(|other| *other == slot) else { return };
        self.in_flight.swap_remove(at);
        let Operation { op, lba, sectors, is_released, .. } = self.operations[slot as usize];
        self.flushes &= op != Op::Flush;
        let status = completion.status;
        let is_done = status == Status::SUCCESS;
        let state = if is_done { OperationState::Done } else { OperationState::Failed };
        self.operations[slot as usize].state = state;
        if is_released {
            drop(self.free_slot(slot));
        }
        if !is_done {
            let error = IoError::Status { op, lba, sectors, status };
            self.fail(FailedOperation { op, lba, sectors, error });
        }
    }

    /// Records the first failure. Operations that are not sent fail, too.
    #[cold]
    fn fail(&mut self, failed: FailedOperation) {
        while let Some(slot) = self.waiting.pop_front() {
            self.operations[slot as usize].state = OperationState::Failed;
            if self.operations[slot as usize].is_released {
                drop(self.free_slot(slot));
            }
        }
        if self.failure.is_none() {
            if let Some(act) = &mut self.on_failure {
                act(&failed);
            }
            self.failure = Some(failed);
        }
    }

    /// Waits until a condition holds. It must hold once nothing is pending.
    #[inline]
    fn wait_until(&mut self, is_over: impl Fn(&Self) -> bool) {
        if is_over(self) {
            return;
        }
        self.poll();
        while !is_over(self) {
            let Some(completion) = self.handle.wait() else { return };
            self.complete(completion);
            self.poll();
        }
    }
}

//! [`Handle`]: requests and completions of one thread (`nvmed_create_handle`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use block::{BlockDevice, Completion, Limits, Payload, QueueFull, Request, Segment, WaitResult};
use event::{Parker, RealClock};
use nvme::Status;
use time::Nanos;

use crate::device_inner::DeviceInner;
use crate::wait::{WaitMode, WaitState};
use crate::{Buffer, DirectError, IoError};

/// Tags from this value on are reserved for the handle.
const INTERNAL_TAG_MIN: u64 = 1 << 63;

/// Submits and reaps requests of one thread, over any stack of devices and policies.
///
/// Requests run one by one ([`read`](Handle::read), [`write`](Handle::write), …) or many at once
/// ([`submit`](Handle::submit), [`poll`](Handle::poll), [`reap`](Handle::reap)). Both can be mixed:
/// completions that arrive during a blocking call are reaped afterwards.
#[derive(Debug)]
pub struct Handle<D> {
    device: D,
    opened: Arc<DeviceInner>,
    clock: RealClock,
    wait_state: WaitState,
    /// Completions that arrived during a blocking call.
    ready: VecDeque<Completion>,
    outstanding: u32,
    next_internal_tag: u64,
    /// Whether the handle sleeps inside the device's wait function.
    sleeps_in_device: bool,
    /// Whether the device has the handle's waker.
    has_waker: bool,
}

impl<D: BlockDevice> Handle<D> {
    /// Creates a handle over `device`, whose queues belong to `opened`. Until
    /// [`set_wait`](Handle::set_wait) selects another mode it waits as
    /// [`IoDevice::completion`](crate::IoDevice::completion) says, and busy-polls without that.
    ///
    /// # Errors
    /// [`DirectError::Memory`] if no file descriptor is left; [`DirectError::NoInterrupts`] if the
    /// mode sleeps and `device` cannot wake the handle.
    pub fn new(opened: &crate::IoDevice, device: D) -> Result<Handle<D>, DirectError> {
        let memory = |source: io::Error| DirectError::Memory { bytes: 0, source };
        let parker = Parker::new().map_err(memory)?;
        let mut handle = Handle {
            device,
            opened: opened.inner().clone(),
            clock: opened.clock(),
            wait_state: WaitState::new(parker),
            ready: VecDeque::new(),
            outstanding: 0,
            next_internal_tag: INTERNAL_TAG_MIN,
            sleeps_in_device: false,
            has_waker: false,
        };
        if let Some(policy) = opened.completion() {
            handle.set_wait(policy.into())?;
        }
        Ok(handle)
    }

    /// Sets the wait mode; no request may be outstanding.
    ///
    /// # Errors
    /// [`DirectError::Config`]; [`DirectError::NoInterrupts`] if the mode sleeps and the device
    /// cannot wake the handle.
    pub fn set_wait(&mut self, wait: WaitMode) -> Result<(), DirectError> {
        wait.check()?;
        if self.outstanding > 0 {
            let (key, value) = ("wait", self.outstanding.into());
            return Err(DirectError::Config { key, value, allowed: "with nothing outstanding" });
        }
        if wait == WaitMode::Interrupt && !self.device.can_wake() {
            return Err(DirectError::NoInterrupts { what: "WaitMode::Interrupt".into() });
        }
        self.sleeps_in_device = wait == WaitMode::Interrupt && self.device.can_wait();
        self.has_waker = false;
        if wait == WaitMode::Interrupt && !self.sleeps_in_device {
            self.register_waker();
        }
        self.wait_state.set_mode(wait);
        Ok(())
    }

    /// Registers the handle's waker with the device. Deferred until the handle sleeps outside the
    /// device, because some devices pay for a waker with every completion.
    fn register_waker(&mut self) {
        if !std::mem::replace(&mut self.has_waker, true) {
            self.device.set_waker(self.wait_state.parker().waker());
        }
    }

    /// Returns the limits of the device.
    pub fn limits(&self) -> &Limits {
        self.device.limits()
    }

    /// Returns the device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device below, mutably.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the device below. Outstanding requests complete there.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Returns the number of requests submitted and not reaped.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Returns the number of sleeps, and their total time.
    pub fn sleep_stats(&self) -> (u64, Nanos) {
        (self.wait_state.sleeps, self.wait_state.slept)
    }

    /// Submits a request, whose tag must be below 2^63. The next [`poll`](Handle::poll) passes it
    /// to the device together with all others submitted by then.
    ///
    /// # Errors
    /// [`IoError::Busy`] if the queue is full: reap first. [`IoError::Status`] for a reserved tag.
    #[inline]
    pub fn submit(&mut self, request: Request) -> Result<(), IoError> {
        if request.tag >= INTERNAL_TAG_MIN {
            return Err(io_error(&request, Status::INVALID_FIELD));
        }
        Ok(self.push(request)?)
    }

    #[inline]
    fn push(&mut self, request: Request) -> Result<(), QueueFull> {
        let now = self.clock.now();
        self.device.submit(now, request)?;
        self.wait_state.on_submit(now, &request);
        self.outstanding += 1;
        Ok(())
    }

    /// Rings the doorbell for submitted requests and collects completions. Returns whether it made
    /// progress.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.device.poll(self.clock.now())
    }

    /// Returns the next completion, if there is one.
    #[inline]
    pub fn reap(&mut self) -> Option<Completion> {
        let completion = match self.ready.pop_front() {
            Some(completion) => completion,
            None => self.pop_completion()?,
        };
        self.outstanding -= 1;
        Some(completion)
    }

    /// Returns the device's next completion, and records its latency if the wait mode needs it.
    #[inline]
    fn pop_completion(&mut self) -> Option<Completion> {
        let completion = self.device.reap()?;
        if self.wait_state.needs_completion_times() {
            self.wait_state.on_complete(self.clock.now(), &completion);
        }
        Some(completion)
    }

    /// Waits for a completion in the configured mode. Returns `None` if no request is outstanding.
    pub fn wait(&mut self) -> Option<Completion> {
        while self.outstanding > 0 {
            let rested = self.advance(Nanos::MAX);
            if let Some(completion) = self.reap() {
                return Some(completion);
            }
            self.pause(rested, Nanos::MAX);
        }
        None
    }

    /// Waits for a completion until `limit`, a time of the device's clock
    /// ([`IoDevice::clock`](crate::IoDevice::clock)). Returns `None` if none arrives by then, or no
    /// request is outstanding.
    pub fn wait_until(&mut self, limit: Nanos) -> Option<Completion> {
        while self.outstanding > 0 {
            let rested = self.advance(limit);
            if let Some(completion) = self.reap() {
                return Some(completion);
            }
            if self.clock.now() >= limit {
                return None;
            }
            self.pause(rested, limit);
        }
        None
    }

    /// Waits until all outstanding requests have completed; the caller reaps them afterwards.
    pub fn drain(&mut self) {
        while self.ready.len() < self.outstanding as usize {
            let rested = self.advance(Nanos::MAX);
            match self.pop_completion() {
                Some(completion) => self.ready.push_back(completion),
                None => self.pause(rested, Nanos::MAX),
            }
        }
    }

    /// Polls the device once. If the handle sleeps in the device, sleeps there until a completion
    /// or `limit`. Returns whether it slept.
    #[inline]
    fn advance(&mut self, limit: Nanos) -> bool {
        if self.sleeps_in_device && self.ready.is_empty() {
            return self.sleep_in_device(limit);
        }
        self.poll();
        false
    }

    fn sleep_in_device(&mut self, limit: Nanos) -> bool {
        let begin = self.clock.now();
        let rest = self.device.wait_for_event(begin, limit);
        let now = if rest == WaitResult::Waited { self.clock.now() } else { begin };
        self.device.poll(now);
        if rest == WaitResult::Waited {
            self.wait_state.slept += now.since(begin);
            self.wait_state.sleeps += 1;
        }
        rest != WaitResult::Unsupported
    }

    /// Waits in the configured mode until `limit`, unless the thread has already `rested` in the
    /// device.
    fn pause(&mut self, rested: bool, limit: Nanos) {
        if rested {
            return;
        }
        if self.sleeps_in_device {
            self.register_waker();
        }
        let (clock, device) = (self.clock, &mut self.device);
        let deadline = device.deadline().min(limit);
        // A queue that was returned meanwhile must be polled, too.
        let look = || device.poll(clock.now()) || device.deadline() < deadline.min(clock.now());
        self.wait_state.pause(|| clock.now(), deadline, look);
    }

    /// Executes one request and returns its result. `request.tag` is ignored.
    ///
    /// # Errors
    /// [`IoError::Status`].
    pub fn run(&mut self, request: Request) -> Result<u64, IoError> {
        let own = self.next_internal_tag;
        self.next_internal_tag = INTERNAL_TAG_MIN | own.wrapping_add(1);
        let request = Request { tag: own, ..request };
        // The queue is full of the caller's requests: wait for one, and keep its completion for the
        // caller.
        while self.push(request).is_err() {
            // A completion that is already there frees a slot without a sleep.
            self.poll();
            match self.pop_completion() {
                Some(completion) => self.ready.push_back(completion),
                None => {
                    let rested = self.sleeps_in_device && self.sleep_in_device(Nanos::MAX);
                    self.pause(rested, Nanos::MAX);
                }
            }
        }
        loop {
            let rested = self.sleeps_in_device && self.sleep_in_device(Nanos::MAX);
            if !self.sleeps_in_device {
                self.poll();
            }
            while let Some(completion) = self.pop_completion() {
                if completion.tag == own {
                    self.outstanding -= 1;
                    return match completion.status.is_success() {
                        true => Ok(completion.result),
                        false => Err(io_error(&request, completion.status)),
                    };
                }
                self.ready.push_back(completion);
            }
            self.pause(rested, Nanos::MAX);
        }
    }

    fn sectors(&self, bytes: usize) -> Result<u32, IoError> {
        let Limits { sector_bytes, max_sectors: most, .. } = *self.limits();
        let whole = bytes.is_multiple_of(sector_bytes as usize) && bytes > 0;
        let sectors = u32::try_from(bytes / sector_bytes as usize).ok();
        sectors.filter(|s| whole && *s <= most).ok_or(IoError::Length {
            bytes,
            sector_bytes,
            sectors_max: most,
        })
    }

    /// Reads sectors from `lba` into the whole `buffer`.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn read(&mut self, lba: u64, buffer: &Buffer) -> Result<(), IoError> {
        let sectors = self.sectors(buffer.len())?;
        self.run(Request::read(lba, sectors, buffer.payload(), 0)).map(drop)
    }

    /// Writes the whole `buffer` to the sectors from `lba`. The data is durable after the next
    /// [`flush`](Handle::flush), or on return with `fua`.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn write(&mut self, lba: u64, buffer: &Buffer, fua: bool) -> Result<(), IoError> {
        let sectors = self.sectors(buffer.len())?;
        let write = Request::write(lba, sectors, buffer.payload(), 0);
        self.run(Request { fua, ..write }).map(drop)
    }

    /// As [`write`](Handle::write), so that a power cut does not tear the write: within the device's
    /// [`AtomicLimits`](block::AtomicLimits).
    ///
    /// # Errors
    /// [`IoError`]; *invalid field* where the write cannot be atomic. Nothing is written then.
    pub fn write_atomic(&mut self, lba: u64, buffer: &Buffer, fua: bool) -> Result<(), IoError> {
        let sectors = self.sectors(buffer.len())?;
        let write = Request::atomic_write(lba, sectors, buffer.payload(), 0);
        self.run(Request { fua, ..write }).map(drop)
    }

    /// Reads sectors from `lba` into several buffers in order.
    ///
    /// # Errors
    /// [`IoError`]; [`IoError::Segments`] if the device does not support that many segments.
    pub fn read_vectored(&mut self, lba: u64, buffers: &[&Buffer]) -> Result<(), IoError> {
        let (table, sectors, data) = self.build_segment_list(buffers)?;
        let done = self.run(Request::read(lba, sectors, data, 0)).map(drop);
        drop(table);
        done
    }

    /// Writes several buffers in order to the sectors from `lba`.
    ///
    /// # Errors
    /// As for [`read_vectored`](Handle::read_vectored).
    pub fn write_vectored(
        &mut self,
        lba: u64,
        buffers: &[&Buffer],
        fua: bool,
    ) -> Result<(), IoError> {
        let (table, sectors, data) = self.build_segment_list(buffers)?;
        let write = Request::write(lba, sectors, data, 0);
        let done = self.run(Request { fua, ..write }).map(drop);
        drop(table);
        done
    }

    /// Builds the segment table, which must live until the request has completed.
    fn build_segment_list(&self, buffers: &[&Buffer]) -> Result<(Buffer, u32, Payload), IoError> {
        let most = self.opened.features().segments;
        let refused = IoError::Segments { segments: buffers.len(), segments_max: most };
        if buffers.is_empty() || buffers.len() > usize::from(most) {
            return Err(refused);
        }
        let sectors = self.sectors(buffers.iter().map(|b| b.len()).sum())?;
        let table = self.opened.buffer(buffers.len() * Segment::BYTES).map_err(|_| refused)?;
        for (i, buffer) in buffers.iter().enumerate() {
            // Cannot truncate: the total length fits in 32 bits.
            let segment = Segment { at: Some(buffer.iova()), bytes: buffer.len() as u32 };
            for (j, word) in segment.encode().iter().enumerate() {
                table.write(i * Segment::BYTES + 8 * j, &word.to_le_bytes());
            }
        }
        let data = Payload::Scattered { table: table.iova(), segments: buffers.len() as u16 };
        Ok((table, sectors, data))
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// [`IoError::Status`].
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(Request::flush(0)).map(drop)
    }

    /// Deallocates sectors; they read as zeros afterwards.
    ///
    /// # Errors
    /// [`IoError::Status`].
    pub fn discard(&mut self, lba: u64, sectors: u32) -> Result<(), IoError> {
        self.run(Request::discard(lba, sectors, 0)).map(drop)
    }

    /// Writes zeros to sectors; with `may_unmap` the device may deallocate them instead.
    ///
    /// # Errors
    /// [`IoError::Status`].
    pub fn write_zeroes(&mut self, lba: u64, sectors: u32, may_unmap: bool) -> Result<(), IoError> {
        self.run(Request::write_zeroes(lba, sectors, may_unmap, 0)).map(drop)
    }
}

impl<D> AsFd for Handle<D> {
    /// Returns a descriptor that becomes readable when the device wakes a sleeping handle in
    /// interrupt mode. For event loops, after [`arm`](Handle::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wait_state.parker().as_fd()
    }
}

impl<D: BlockDevice> Handle<D> {
    /// Arms the handle's descriptor before a sleep on it. Returns whether to sleep; if `false`, a
    /// completion is already there and the descriptor is not armed.
    pub fn arm(&mut self) -> bool {
        if self.sleeps_in_device {
            self.register_waker();
        }
        self.wait_state.parker().prepare();
        let has_moved = self.poll();
        // An earlier poll may have found a completion that is not reaped yet. Then this poll moves
        // nothing, and the interrupt for it came before the descriptor was armed.
        if self.ready.is_empty()
            && let Some(completion) = self.pop_completion()
        {
            self.ready.push_back(completion);
        }
        if has_moved || !self.ready.is_empty() {
            self.wait_state.parker().unpark();
            return false;
        }
        true
    }

    /// Disarms the descriptor after the sleep, and makes it unreadable.
    pub fn disarm(&mut self) {
        self.wait_state.parker().unpark();
    }
}

fn io_error(request: &Request, status: Status) -> IoError {
    let Request { op, lba, sectors, .. } = *request;
    IoError::Status { op, lba, sectors, status }
}

//! [`Handle`]: requests and their ends, for one thread (`nvmed_create_handle`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use block::{BlockDevice, Completion, Limits, Payload, QueueFull, Request, Segment, WaitResult};
use clock::{Nanos, Parker, RealClock};
use nvme::Status;

use crate::device_inner::DeviceInner;
use crate::wait::{WaitMode, WaitState};
use crate::{Buffer, DirectError, IoError};

/// Tags from here on are the handle's own.
const INTERNAL_TAG_MIN: u64 = 1 << 63;

/// Who submits and reaps: one thread, over whatever devices and policies it is made of.
///
/// One after the other ([`read`](Handle::read), [`write`](Handle::write), …), or many at once
/// ([`submit`](Handle::submit), [`poll`](Handle::poll), [`reap`](Handle::reap)), also mixed: what ends
/// while another request is waited for is reaped afterwards.
#[derive(Debug)]
pub struct Handle<D> {
    device: D,
    opened: Arc<DeviceInner>,
    clock: RealClock,
    wait_state: WaitState,
    /// Ended while another request was waited for.
    ready: VecDeque<Completion>,
    outstanding: u32,
    next_internal_tag: u64,
    /// It sleeps in the device.
    sleeps_in_device: bool,
    /// The device knows whom to wake.
    has_waker: bool,
}

impl<D: BlockDevice> Handle<D> {
    /// A handle over `device`, which is made of queues of `opened`; it polls for completions unless
    /// told otherwise ([`set_wait`](Handle::set_wait)).
    ///
    /// # Errors
    /// [`DirectError::Memory`]: no file descriptor left.
    pub fn new(opened: &crate::IoDevice, device: D) -> Result<Handle<D>, DirectError> {
        let memory = |source: io::Error| DirectError::Memory { bytes: 0, source };
        let parker = Parker::new().map_err(memory)?;
        Ok(Handle {
            device,
            opened: opened.inner().clone(),
            clock: opened.clock(),
            wait_state: WaitState::new(parker),
            ready: VecDeque::new(),
            outstanding: 0,
            next_internal_tag: INTERNAL_TAG_MIN,
            sleeps_in_device: false,
            has_waker: false,
        })
    }

    /// Chooses how it waits; nothing may be outstanding.
    ///
    /// # Errors
    /// [`DirectError::Config`]; [`DirectError::NoInterrupts`] for a sleep that nobody would end.
    pub fn set_wait(&mut self, wait: WaitMode) -> Result<(), DirectError> {
        wait.check()?;
        if self.outstanding > 0 {
            let (key, value) = ("wait", self.outstanding.into());
            return Err(DirectError::Config { key, value, allowed: "with nothing outstanding" });
        }
        if wait == WaitMode::Interrupt && !self.device.can_wake() {
            return Err(DirectError::NoInterrupts { what: "Wait::Event".into() });
        }
        self.sleeps_in_device = wait == WaitMode::Interrupt && self.device.can_wait();
        self.has_waker = false;
        if wait == WaitMode::Interrupt && !self.sleeps_in_device {
            self.register_waker();
        }
        self.wait_state.set_mode(wait);
        Ok(())
    }

    /// Tells the device whom to wake: not before somebody sleeps elsewhere, because some pay for it with
    /// every completion.
    fn register_waker(&mut self) {
        if !std::mem::replace(&mut self.has_waker, true) {
            self.device.set_waker(self.wait_state.parker().waker());
        }
    }

    /// What the device can do.
    pub fn limits(&self) -> &Limits {
        self.device.limits()
    }

    /// What it is made of.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The same, to change it.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Gives back what it is made of. What is outstanding there ends there.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Requests submitted and not reaped.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// How often it slept, and for how long in all.
    pub fn sleep_stats(&self) -> (u64, Nanos) {
        (self.wait_state.sleeps, self.wait_state.slept)
    }

    /// Takes a request; its tag is below 2^63. It goes to the device with the next
    /// [`poll`](Handle::poll), together with others submitted by then.
    ///
    /// # Errors
    /// [`IoError::Busy`]: reap first. [`IoError::Status`] for a tag that is the handle's own.
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

    /// Gives the device what was submitted and looks for completions. Returns whether anything moved.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.device.poll(self.clock.now())
    }

    /// Takes a completion.
    #[inline]
    pub fn reap(&mut self) -> Option<Completion> {
        let completion = match self.ready.pop_front() {
            Some(completion) => completion,
            None => self.pop_completion()?,
        };
        self.outstanding -= 1;
        Some(completion)
    }

    /// Takes a completion from the device.
    #[inline]
    fn pop_completion(&mut self) -> Option<Completion> {
        let completion = self.device.reap()?;
        if self.wait_state.needs_completion_times() {
            self.wait_state.on_complete(self.clock.now(), &completion);
        }
        Some(completion)
    }

    /// Waits for a completion, as it was told to; `None` if nothing is outstanding.
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

    /// As [`wait`](Handle::wait), but by the device's clock ([`Device::clock`](crate::Device::clock))
    /// until `limit` at most; `None` also when nothing has come by then.
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

    /// Waits until everything outstanding has ended, which is then to be reaped.
    pub fn drain(&mut self) {
        while self.ready.len() < self.outstanding as usize {
            let rested = self.advance(Nanos::MAX);
            match self.pop_completion() {
                Some(completion) => self.ready.push_back(completion),
                None => self.pause(rested, Nanos::MAX),
            }
        }
    }

    /// Gives the device what was submitted and looks for completions; sleeps until there is one, or
    /// `limit`, if that is done in the device. Whether it was.
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

    /// Nothing has come: waits as it was told to, until `limit` at most, unless it has `rested`.
    fn pause(&mut self, rested: bool, limit: Nanos) {
        if rested {
            return;
        }
        if self.sleeps_in_device {
            self.register_waker();
        }
        let (clock, device) = (self.clock, &mut self.device);
        let deadline = device.deadline().min(limit);
        self.wait_state.pause(|| clock.now(), deadline, || device.poll(clock.now()));
    }

    /// Carries one request out. `request.tag` does not matter.
    ///
    /// # Errors
    /// [`IoError::Status`].
    pub fn run(&mut self, request: Request) -> Result<u64, IoError> {
        let own = self.next_internal_tag;
        self.next_internal_tag = INTERNAL_TAG_MIN | own.wrapping_add(1);
        let request = Request { tag: own, ..request };
        // Full of what the caller has submitted: those end first, and wait to be reaped.
        while self.push(request).is_err() {
            // What has come for the caller makes room without a sleep.
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

    /// Reads sectors from `lba` on into all of `buffer`.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn read(&mut self, lba: u64, buffer: &Buffer) -> Result<(), IoError> {
        let sectors = self.sectors(buffer.len())?;
        self.run(Request::read(lba, sectors, buffer.payload(), 0)).map(drop)
    }

    /// Writes all of `buffer` to the sectors from `lba` on. Durable after the next
    /// [`flush`](Handle::flush), or with `fua` when it returns.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn write(&mut self, lba: u64, buffer: &Buffer, fua: bool) -> Result<(), IoError> {
        let sectors = self.sectors(buffer.len())?;
        let write = Request::write(lba, sectors, buffer.payload(), 0);
        self.run(Request { fua, ..write }).map(drop)
    }

    /// Reads sectors from `lba` on into several buffers, one after the other.
    ///
    /// # Errors
    /// [`IoError`]; [`IoError::Segments`] when the device does not take as many.
    pub fn read_vectored(&mut self, lba: u64, buffers: &[&Buffer]) -> Result<(), IoError> {
        let (table, sectors, data) = self.build_segment_list(buffers)?;
        let done = self.run(Request::read(lba, sectors, data, 0)).map(drop);
        drop(table);
        done
    }

    /// Writes several buffers, one after the other, to the sectors from `lba` on.
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

    /// A table of the pieces, which must stay until the request has ended.
    fn build_segment_list(&self, buffers: &[&Buffer]) -> Result<(Buffer, u32, Payload), IoError> {
        let most = self.opened.features().segments;
        let refused = IoError::Segments { segments: buffers.len(), segments_max: most };
        if buffers.is_empty() || buffers.len() > usize::from(most) {
            return Err(refused);
        }
        let sectors = self.sectors(buffers.iter().map(|b| b.len()).sum())?;
        let table = self.opened.buffer(buffers.len() * Segment::BYTES).map_err(|_| refused)?;
        for (i, buffer) in buffers.iter().enumerate() {
            // No longer than the whole, which has 32 bits.
            let segment = Segment { at: Some(buffer.iova()), bytes: buffer.len() as u32 };
            for (j, word) in segment.encode().iter().enumerate() {
                table.write(i * Segment::BYTES + 8 * j, &word.to_le_bytes());
            }
        }
        let data = Payload::Scattered { table: table.iova(), segments: buffers.len() as u16 };
        Ok((table, sectors, data))
    }

    /// Makes everything durable that has completed.
    ///
    /// # Errors
    /// [`IoError::Status`].
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(Request::flush(0)).map(drop)
    }

    /// Gives sectors up; they read as zeros afterwards.
    ///
    /// # Errors
    /// [`IoError::Status`].
    pub fn discard(&mut self, lba: u64, sectors: u32) -> Result<(), IoError> {
        self.run(Request::discard(lba, sectors, 0)).map(drop)
    }

    /// Makes sectors read as zeros; with `may_unmap` the device may give them up for it.
    ///
    /// # Errors
    /// [`IoError::Status`].
    pub fn write_zeroes(&mut self, lba: u64, sectors: u32, may_unmap: bool) -> Result<(), IoError> {
        self.run(Request::write_zeroes(lba, sectors, may_unmap, 0)).map(drop)
    }
}

impl<D> AsFd for Handle<D> {
    /// Readable when the device has woken a handle that waits for events and sleeps: for who sleeps
    /// elsewhere, after [`prepare`](Handle::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wait_state.parker().as_fd()
    }
}

impl<D: BlockDevice> Handle<D> {
    /// Before sleeping on the handle's descriptor: arms it, and says whether to sleep. When it returns
    /// `false` something has come already, and nothing is armed.
    pub fn arm(&mut self) -> bool {
        if self.sleeps_in_device {
            self.register_waker();
        }
        self.wait_state.parker().prepare();
        let has_moved = self.poll();
        // An earlier poll may have found a completion that nobody has reaped: then this poll moves nothing, and
        // the interrupt for it came before the descriptor was armed.
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

    /// After it: disarms the descriptor and makes it unreadable.
    pub fn disarm(&mut self) {
        self.wait_state.parker().unpark();
    }
}

fn io_error(request: &Request, status: Status) -> IoError {
    let Request { op, lba, sectors, .. } = *request;
    IoError::Status { op, lba, sectors, status }
}

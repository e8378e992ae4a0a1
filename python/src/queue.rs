//! `Queue`: requests of one thread, one by one or many at a time.
//!
//! # Concurrency
//!
//! One call at a time is inside of a queue ([`CallGuard`]); a call of another thread fails, or
//! waits, if it is one of the drive's own queue. The state is locked in slices: between two of them
//! signals are handled, and `close()` of another thread takes the state away, so that the call ends
//! with [`CallFailure::Closed`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyRange};
use sluice::time::Nanos;
use sluice::user_io::{Handle, HybridPolling, IoError, Payload, Queue, Request, WaitMode};

use crate::buffer::{IoMemory, PyDriveBuffer};
use crate::drive::DriveShared;
use crate::errors::CallFailure;
use crate::requests::{PyCompletion, Recipient, TaggedRequests};
use crate::transfers::{
    BlockingCalls, TransferRange, WriteFlags, length_of, read_request, write_request,
};

/// Maximum time that a call waits without handling signals.
pub(crate) const SLICE: Nanos = Nanos::from_millis(50);

/// Time between two attempts to enter the drive's own queue.
const ENTER_INTERVAL: Duration = Duration::from_micros(50);

/// Maximum time that closing waits for outstanding requests, in seconds. Longer than the time after
/// which a file's queue abandons commands.
const CLOSE_TIMEOUT_SECONDS: u64 = 60;

/// An open queue: its handle, and its requests.
#[derive(Debug)]
pub(crate) struct OpenQueue {
    handle: Handle<Queue>,
    clock: sluice::event::RealClock,
    table: TaggedRequests,
}

/// A queue, open or closed.
#[derive(Debug)]
pub(crate) struct QueueShared {
    drive: Arc<DriveShared>,
    /// `None` after it was closed.
    open: Mutex<Option<OpenQueue>>,
    /// Token of the thread that is in a call; 0 for none.
    entered: AtomicU64,
}

/// Shows that a thread is in a call on a queue.
pub(crate) struct CallGuard<'a>(&'a AtomicU64);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Returns a number of the calling thread, from 1.
fn thread_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static TOKEN: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    TOKEN.with(|token| *token)
}

/// Converts the name of a wait mode.
pub(crate) fn parse_wait(name: &str) -> Result<WaitMode, CallFailure> {
    match name {
        "event" => Ok(WaitMode::Interrupt),
        "poll" => Ok(WaitMode::Poll),
        "hybrid" => Ok(WaitMode::Hybrid(HybridPolling::default())),
        _ => Err(CallFailure::Value(format!("wait = {name:?}: \"event\", \"poll\" or \"hybrid\""))),
    }
}

impl OpenQueue {
    pub(crate) fn new(handle: Handle<Queue>, clock: sluice::event::RealClock) -> OpenQueue {
        OpenQueue { handle, clock, table: TaggedRequests::default() }
    }

    fn submit(
        &mut self,
        request: Request,
        memory: Option<Arc<IoMemory>>,
        recipient: Recipient,
    ) -> Result<u64, CallFailure> {
        let request = Request { tag: self.table.next_tag(), ..request };
        match self.handle.submit(request) {
            Ok(()) => {
                self.table.add(request, memory, recipient);
                Ok(request.tag)
            }
            Err(IoError::Busy(_)) => Err(CallFailure::Full),
            Err(error) => Err(error.into()),
        }
    }

    /// Passes submitted requests to the device, and collects completions that are there.
    fn poll(&mut self) {
        self.handle.poll();
        while let Some(completion) = self.handle.reap() {
            self.table.complete(completion);
        }
    }

    /// Waits for a completion, for `time` at most, and collects all that are there.
    fn wait(&mut self, time: Nanos) {
        if let Some(completion) = self.handle.wait_until(self.clock.now() + time) {
            self.table.complete(completion);
            self.poll();
        }
    }

    /// Waits for the outstanding requests, and closes the queue. If the device does not complete
    /// them, it may still access their memory, which is leaked.
    fn close(mut self) -> Result<(), CallFailure> {
        let limit = Instant::now() + Duration::from_secs(CLOSE_TIMEOUT_SECONDS);
        while self.handle.outstanding() > 0 {
            self.wait(SLICE);
            let outstanding = self.handle.outstanding();
            if outstanding > 0 && Instant::now() > limit {
                std::mem::forget(self);
                return Err(CallFailure::Timeout { outstanding, seconds: CLOSE_TIMEOUT_SECONDS });
            }
        }
        Ok(())
    }
}

impl QueueShared {
    pub(crate) fn new(drive: Arc<DriveShared>, open: OpenQueue) -> QueueShared {
        QueueShared { drive, open: Mutex::new(Some(open)), entered: AtomicU64::new(0) }
    }

    /// Returns the queue's drive.
    pub(crate) fn drive(&self) -> &DriveShared {
        &self.drive
    }

    /// Runs `body` on the open queue.
    fn with<T>(
        &self,
        body: impl FnOnce(&mut OpenQueue) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.drive.check_process()?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        body(open.as_mut().ok_or(CallFailure::Closed("queue"))?)
    }

    pub(crate) fn enter(&self) -> Result<CallGuard<'_>, CallFailure> {
        self.drive.check_process()?;
        let entered =
            self.entered.compare_exchange(0, thread_token(), Ordering::Acquire, Ordering::Relaxed);
        entered.map(|_| CallGuard(&self.entered)).map_err(|_| CallFailure::InUse)
    }

    /// Enters the drive's own queue, which several threads use in turn. Without the interpreter's
    /// lock.
    pub(crate) fn enter_in_turn(&self) -> Result<CallGuard<'_>, CallFailure> {
        loop {
            match self.enter() {
                Err(CallFailure::InUse)
                    if self.entered.load(Ordering::Relaxed) != thread_token() =>
                {
                    std::thread::sleep(ENTER_INTERVAL);
                    handle_signals()?;
                }
                entered => return entered,
            }
        }
    }

    /// Closes the queue. Requests that are outstanding complete first.
    ///
    /// # Errors
    /// [`CallFailure::Timeout`], [`CallFailure::Forked`].
    pub(crate) fn close(&self) -> Result<(), CallFailure> {
        self.drive.check_process()?;
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        open.map_or(Ok(()), OpenQueue::close)
    }

    /// Executes one request. Without the interpreter's lock.
    pub(crate) fn execute(
        &self,
        request: Request,
        memory: Option<&Arc<IoMemory>>,
    ) -> Result<(), CallFailure> {
        let tag = loop {
            let submitted = self.with(|open| {
                open.submit(request, memory.cloned(), Recipient::BlockingCall).inspect_err(|_| {
                    open.wait(SLICE);
                })
            });
            match submitted {
                Err(CallFailure::Full) => handle_signals()?,
                submitted => break submitted?,
            }
        };
        loop {
            let completed = self.with(|open| {
                open.wait(SLICE);
                Ok(open.table.take_awaited(tag))
            })?;
            if let Some(result) = completed {
                return Ok(result?);
            }
            if let Err(raised) = handle_signals() {
                self.with(|open| {
                    open.table.abandon(tag);
                    Ok(())
                })?;
                return Err(raised);
            }
        }
    }
}

impl Drop for QueueShared {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match (open, self.drive.check_process()) {
            // An error of a queue that is dropped has no receiver, as for a file.
            (Some(open), Ok(())) => drop(open.close()),
            // The drive's thread is in the other process.
            (open, _) => std::mem::forget(open),
        }
    }
}

/// Handles pending signals. Without the interpreter's lock.
fn handle_signals() -> Result<(), CallFailure> {
    Ok(Python::attach(|py| py.check_signals())?)
}

/// A queue of a drive.
#[pyclass(name = "Queue", module = "sluice", frozen)]
pub(crate) struct PyQueue {
    pub(crate) queue: Arc<QueueShared>,
}

impl PyQueue {
    fn blocking(&self) -> BlockingCalls<'_> {
        BlockingCalls { queue: &self.queue, in_turn: false }
    }

    /// Converts an operation; `length` is 0 for a flush.
    fn request(
        &self,
        op: &str,
        range: TransferRange,
        data: Option<(&Arc<IoMemory>, usize)>,
        flags: WriteFlags,
    ) -> Result<Request, CallFailure> {
        let refused = |text: String| Err(CallFailure::Value(text));
        let is_transfer = matches!(op, "read" | "write");
        if !is_transfer && !matches!(op, "flush" | "trim") {
            return refused(format!("op = {op:?}: \"read\", \"write\", \"flush\" or \"trim\""));
        }
        if flags.fua && op != "write" {
            return refused("fua = True: only a write is forced to the media".into());
        }
        if flags.atomic && op != "write" {
            return refused("atomic = True: only a write can be atomic".into());
        }
        let payload = match (is_transfer, data) {
            (true, Some((memory, at))) => {
                memory.payload(self.queue.drive.id(), at, range.length)?
            }
            (true, None) => return refused(format!("{op:?} needs a buffer")),
            (false, Some(_)) => return refused(format!("{op:?} has no buffer")),
            (false, None) => Payload::BitBucket,
        };
        if op == "flush" {
            return match range {
                TransferRange { offset: 0, length: 0 } => Ok(Request::flush(0)),
                _ => refused("a flush is of all completed writes, and has no range".into()),
            };
        }
        self.queue.check_atomic(range, flags)?;
        let (lba, sectors) = self.queue.sectors(range)?;
        if is_transfer && range.length > self.queue.bytes_max() {
            let text = format!("length = {}: at most {}", range.length, self.queue.bytes_max());
            return refused(text);
        }
        Ok(match op {
            "read" => read_request(lba, sectors, payload, flags),
            "write" => write_request(lba, sectors, payload, flags),
            _ => Request::discard(lba, sectors, 0),
        })
    }

    /// Submits requests until one is refused, and passes them to the device. Returns the first tag
    /// and the number of accepted ones.
    fn submit_all(
        &self,
        requests: &[Request],
        memory: Option<&Arc<IoMemory>>,
    ) -> Result<(u64, u64), CallFailure> {
        let _inside = self.queue.enter()?;
        self.queue.with(|open| {
            let first = open.table.next_tag();
            let mut stopped = Ok(0);
            for request in requests {
                stopped = open.submit(*request, memory.cloned(), Recipient::Reaper);
                if stopped.is_err() {
                    break;
                }
            }
            open.poll();
            match (open.table.next_tag() - first, stopped) {
                (0, Err(failure)) => Err(failure),
                (accepted, _) => Ok((first, accepted)),
            }
        })
    }

    fn reap(
        &self,
        py: Python<'_>,
        count: usize,
        time_limit: Option<Duration>,
    ) -> PyResult<Vec<PyCompletion>> {
        let limit = time_limit.and_then(|time| Instant::now().checked_add(time));
        self.blocking()
            .call(py, |queue| {
                loop {
                    let (done, ready) = queue.with(|open| {
                        open.poll();
                        let wanted =
                            count.min(open.table.ready_count() + open.table.reapable_count());
                        let is_late = limit.is_some_and(|limit| Instant::now() >= limit);
                        if open.table.ready_count() >= wanted || is_late {
                            let ready = open.table.take_ready(usize::MAX);
                            return Ok((true, ready));
                        }
                        let left = limit.map_or(SLICE, |limit| {
                            let left = limit.saturating_duration_since(Instant::now());
                            Nanos(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)).min(SLICE)
                        });
                        open.wait(left);
                        Ok((false, Vec::new()))
                    })?;
                    if done {
                        return Ok(ready);
                    }
                    handle_signals()?;
                }
            })
            .map(|ready| ready.into_iter().map(|completed| PyCompletion { completed }).collect())
    }
}

/// Returns offsets of a numpy array of 64-bit integers, or of any iterable of integers.
fn offsets_of(offsets: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let py = offsets.py();
    if let Ok(array) = PyBuffer::<u64>::get(offsets) {
        return array.to_vec(py);
    }
    if let Ok(array) = PyBuffer::<i64>::get(offsets) {
        let numbers = array.to_vec(py)?.into_iter();
        return numbers.map(|n| u64::try_from(n).map_err(PyErr::from)).collect();
    }
    offsets.try_iter()?.map(|offset| offset?.extract()).collect()
}

#[pymethods]
impl PyQueue {
    /// Reads `length` bytes from `offset`, both in whole sectors.
    ///
    /// Raises `ValueError`, `IoError`, `ClosedError`, `ForkedError`, as all calls that transfer data.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.blocking().read(py, offset, length)
    }

    /// Reads into a `Buffer` without a copy, or into a writable object with the buffer protocol.
    ///
    /// Of a `Buffer`, `at` (a multiple of 512) and `length` select a part; other memory is filled. Returns the
    /// number of bytes.
    #[pyo3(signature = (offset, into, *, at=0, length=None))]
    fn read_into(
        &self,
        offset: u64,
        into: &Bound<'_, PyAny>,
        at: usize,
        length: Option<usize>,
    ) -> PyResult<usize> {
        self.blocking().read_into(offset, into, at, length)
    }

    /// Writes a `Buffer` without a copy, or an object with the buffer protocol, to `offset`.
    ///
    /// `at` and `length` select a part of it, in bytes. The data is durable after `flush()`, or on return with
    /// `fua`. A power cut does not tear a write that is `atomic`; `ValueError` if it cannot be. Returns the number
    /// of bytes.
    #[pyo3(signature = (offset, data, *, at=0, length=None, fua=false, atomic=false))]
    fn write(
        &self,
        offset: u64,
        data: &Bound<'_, PyAny>,
        at: usize,
        length: Option<usize>,
        fua: bool,
        atomic: bool,
    ) -> PyResult<usize> {
        self.blocking().write(offset, data, at, length, WriteFlags { fua, atomic })
    }
    /// Makes all completed writes durable.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.blocking().flush(py)
    }
    /// Deallocates `length` bytes from `offset`; they read as zeros afterwards.
    fn trim(&self, py: Python<'_>, offset: u64, length: usize) -> PyResult<()> {
        self.blocking().trim(py, offset, length)
    }

    /// Submits a request and returns its tag. `poll()` and `wait()` return its completion.
    ///
    /// `op` is `"read"`, `"write"`, `"flush"` or `"trim"`. `at` and `length` select a part of the buffer, which
    /// the queue keeps until the request has completed. Raises `QueueFullError` if there is no space.
    #[pyo3(signature = (op, offset=0, buffer=None, *, at=0, length=None, fua=false, atomic=false))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of a Python method have names")]
    fn submit(
        &self,
        py: Python<'_>,
        op: &str,
        offset: u64,
        buffer: Option<&PyDriveBuffer>,
        at: usize,
        length: Option<usize>,
        fua: bool,
        atomic: bool,
    ) -> PyResult<u64> {
        let memory = buffer.map(|buffer| &buffer.memory);
        let submitted = length_of(length, at, memory.map_or(at, |m| m.buffer.len()))
            .and_then(|length| {
                let data = memory.map(|memory| (memory, at));
                self.request(op, TransferRange { offset, length }, data, WriteFlags { fua, atomic })
            })
            .and_then(|request| py.detach(|| self.submit_all(&[request], memory)));
        submitted.map(|(tag, _)| tag).map_err(|failure| failure.into_exception(py))
    }

    /// Submits reads or writes of `length` bytes each, and returns the tags of the accepted ones.
    ///
    /// The data of request `i` is at `i * length` of the buffer. Fewer than `len(offsets)` are accepted if the
    /// queue becomes full; `QueueFullError` if none is. Offsets in a numpy array are read without objects.
    #[pyo3(signature = (op, offsets, buffer, *, length, fua=false, atomic=false))]
    fn submit_many<'py>(
        &self,
        op: &str,
        offsets: &Bound<'py, PyAny>,
        buffer: &PyDriveBuffer,
        length: usize,
        fua: bool,
        atomic: bool,
    ) -> PyResult<Bound<'py, PyRange>> {
        let py = offsets.py();
        let memory = &buffer.memory;
        let requests = offsets_of(offsets)?.into_iter().enumerate().map(|(i, offset)| {
            let at = i.saturating_mul(length);
            self.request(
                op,
                TransferRange { offset, length },
                Some((memory, at)),
                WriteFlags { fua, atomic },
            )
        });
        let submitted = requests
            .collect::<Result<Vec<Request>, CallFailure>>()
            .and_then(|requests| py.detach(|| self.submit_all(&requests, Some(memory))));
        let (first, count) = submitted.map_err(|failure| failure.into_exception(py))?;
        PyRange::new(py, first as isize, (first + count) as isize)
    }
    /// Returns the completions that are there, without waiting.
    fn poll(&self, py: Python<'_>) -> PyResult<Vec<PyCompletion>> {
        self.reap(py, 0, None)
    }

    /// Waits for `count` completions, and returns all that are there.
    ///
    /// Returns fewer after `timeout` seconds, or if fewer requests are outstanding.
    #[pyo3(signature = (count=1, *, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        count: usize,
        timeout: Option<f64>,
    ) -> PyResult<Vec<PyCompletion>> {
        let limit = timeout.map(Duration::try_from_secs_f64).transpose().map_err(|_| {
            CallFailure::Value("timeout: seconds, 0 or more".into()).into_exception(py)
        })?;
        self.reap(py, count, limit)
    }

    /// Number of submitted requests that have not completed.
    #[getter]
    fn outstanding(&self, py: Python<'_>) -> PyResult<usize> {
        let counted = py.detach(|| self.queue.with(|open| Ok(open.table.reapable_count())));
        counted.map_err(|failure| failure.into_exception(py))
    }
    /// Counters of requests since the queue was created; `slept_ns` is the time slept in waits.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let read = py.detach(|| {
            self.queue.with(|open| {
                let (sleeps, slept) = open.handle.sleep_stats();
                Ok((open.table.counters, open.handle.outstanding(), sleeps, slept))
            })
        });
        let (counters, outstanding, sleeps, slept) =
            read.map_err(|failure| failure.into_exception(py))?;
        crate::stats::queue_stats(py, counters, outstanding, sleeps, slept)
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        // A thread that has locked the state uses an open queue.
        match self.queue.open.try_lock() {
            Ok(open) => open.is_none(),
            Err(_) => false,
        }
    }
    /// Waits for outstanding requests, and closes the queue. Raises `CloseError` after 60 seconds.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.queue.close()).map_err(|failure| failure.into_exception(py))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

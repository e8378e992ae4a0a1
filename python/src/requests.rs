//! [`TaggedRequests`]: the requests of a queue, by tag. `Completion`: a request that has completed.
//!
//! Invariant: the table has the memory of every request that is outstanding, so that memory that
//! Python has dropped is not reused while the drive may access it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pyo3::prelude::*;
use sluice::nvme::Status;
use sluice::user_io::{Completion, IoError, Request};

use crate::buffer::IoMemory;
use crate::errors::io_error;

/// Recipient of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// `poll()` and `wait()` return it.
    Reaper,
    /// A call waits for it.
    BlockingCall,
    /// The call that waited for it has been interrupted.
    Abandoned,
}

/// A request that the device has not completed.
#[derive(Debug)]
struct OutstandingRequest {
    request: Request,
    recipient: Recipient,
    _memory: Option<Arc<IoMemory>>,
}

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaggedCompletion {
    request: Request,
    status: Status,
}

/// Counters of a queue's requests since it was created.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestCounters {
    /// Requests submitted.
    pub(crate) submitted: u64,
    /// Requests completed.
    pub(crate) completed: u64,
    /// Requests completed with an error.
    pub(crate) errors: u64,
}

/// The requests of a queue.
#[derive(Debug, Default)]
pub(crate) struct TaggedRequests {
    next_tag: u64,
    outstanding: HashMap<u64, OutstandingRequest>,
    /// Number of outstanding requests for `poll()` and `wait()`.
    reapable: usize,
    /// Completions for `poll()` and `wait()`, in order.
    ready: VecDeque<TaggedCompletion>,
    /// Completions for blocking calls, by tag.
    awaited: HashMap<u64, TaggedCompletion>,
    pub(crate) counters: RequestCounters,
}

impl TaggedRequests {
    /// Returns the tag of the next request.
    pub(crate) fn next_tag(&self) -> u64 {
        self.next_tag
    }

    /// Adds a request that has been submitted with the next tag.
    pub(crate) fn add(
        &mut self,
        request: Request,
        memory: Option<Arc<IoMemory>>,
        recipient: Recipient,
    ) {
        let entry = OutstandingRequest { request, recipient, _memory: memory };
        self.outstanding.insert(request.tag, entry);
        self.reapable += usize::from(recipient == Recipient::Reaper);
        self.next_tag += 1;
        self.counters.submitted += 1;
    }

    /// Records a completion, and releases the request's memory.
    pub(crate) fn complete(&mut self, completion: Completion) {
        let Some(entry) = self.outstanding.remove(&completion.tag) else { return };
        self.counters.completed += 1;
        self.counters.errors += u64::from(!completion.status.is_success());
        let completed = TaggedCompletion { request: entry.request, status: completion.status };
        match entry.recipient {
            Recipient::Reaper => {
                self.reapable -= 1;
                self.ready.push_back(completed);
            }
            Recipient::BlockingCall => {
                self.awaited.insert(completion.tag, completed);
            }
            Recipient::Abandoned => {}
        }
    }

    /// Returns the result of a blocking call's request, if it has completed.
    pub(crate) fn take_awaited(&mut self, tag: u64) -> Option<Result<(), IoError>> {
        self.awaited.remove(&tag).map(|completed| completed.result())
    }

    /// Discards the completion of a blocking call that does not wait any longer.
    pub(crate) fn abandon(&mut self, tag: u64) {
        self.awaited.remove(&tag);
        if let Some(entry) = self.outstanding.get_mut(&tag) {
            entry.recipient = Recipient::Abandoned;
        }
    }

    /// Returns the number of completions for `poll()` and `wait()`.
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Returns the number of requests for `poll()` and `wait()` that are outstanding.
    pub(crate) fn reapable_count(&self) -> usize {
        self.reapable
    }

    /// Removes the completions for `poll()` and `wait()`, at most `count_max`.
    pub(crate) fn take_ready(&mut self, count_max: usize) -> Vec<TaggedCompletion> {
        let count = count_max.min(self.ready.len());
        self.ready.drain(..count).collect()
    }
}

impl TaggedCompletion {
    fn result(&self) -> Result<(), IoError> {
        let Request { op, lba, sectors, .. } = self.request;
        match self.status.is_success() {
            true => Ok(()),
            false => Err(IoError::Status { op, lba, sectors, status: self.status }),
        }
    }
}

/// A completed request.
#[pyclass(name = "Completion", module = "sluice", frozen)]
pub(crate) struct PyCompletion {
    pub(crate) completed: TaggedCompletion,
}

#[pymethods]
impl PyCompletion {
    /// Tag that `submit()` has returned.
    #[getter]
    fn tag(&self) -> u64 {
        self.completed.request.tag
    }

    /// Whether the request succeeded.
    #[getter]
    fn ok(&self) -> bool {
        self.completed.status.is_success()
    }

    /// NVMe status field without the phase tag; 0 for success.
    #[getter]
    fn status(&self) -> u16 {
        self.completed.status.to_bits()
    }

    /// `IoError` of a request that failed, or `None`.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<PyErr> {
        self.completed.result().err().map(|error| io_error(py, &error))
    }
    /// Raises the `IoError` of a request that failed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.completed.result().map_err(|error| io_error(py, &error))
    }

    fn __repr__(&self) -> String {
        let TaggedCompletion { request, status } = &self.completed;
        format!("<sluice.Completion of {:?}, tag {}: {status}>", request.op, request.tag)
    }
}

//! `Buffer`: registered memory of a drive, with Python's buffer protocol.
//!
//! Invariant: the memory exists while a Python object, a view of it or an outstanding request uses
//! it, also after the drive has been closed. Python's code and the drive may access it at the same
//! time, as two processes access shared memory: neither has a Rust reference to its bytes.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use sluice::user_io::{Buffer, Payload};

use crate::errors::CallFailure;

/// Alignment of offsets in a buffer, in bytes. Direct I/O and all drives accept it.
const OFFSET_ALIGNMENT: usize = 512;

/// Registered memory, and the drive that it is registered with.
#[derive(Debug)]
pub(crate) struct IoMemory {
    pub(crate) buffer: Buffer,
    /// Number of the drive in this process.
    pub(crate) drive: u64,
}

impl IoMemory {
    /// Returns the payload of `length` bytes at offset `at`.
    ///
    /// # Errors
    /// [`CallFailure::Foreign`] if the memory is of another drive than `drive`;
    /// [`CallFailure::Value`] if the bytes are not inside of the memory.
    pub(crate) fn payload(
        &self,
        drive: u64,
        at: usize,
        length: usize,
    ) -> Result<Payload, CallFailure> {
        if self.drive != drive {
            return Err(CallFailure::Foreign);
        }
        if !at.is_multiple_of(OFFSET_ALIGNMENT) {
            let text = format!("at = {at}: a multiple of {OFFSET_ALIGNMENT} bytes");
            return Err(CallFailure::Value(text));
        }
        let size = self.buffer.len();
        if at > size || length > size - at {
            let text =
                format!("{length} bytes at {at} of a buffer of {size}: the buffer is too small");
            return Err(CallFailure::Value(text));
        }
        Ok(Payload::Contiguous(self.buffer.iova().offset(at as u64)))
    }
}

/// Memory that the drive reads and writes without a copy.
#[pyclass(name = "Buffer", module = "sluice", frozen)]
pub(crate) struct PyDriveBuffer {
    pub(crate) memory: Arc<IoMemory>,
}

#[pymethods]
impl PyDriveBuffer {
    fn __len__(&self) -> usize {
        self.memory.buffer.len()
    }

    /// Size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.buffer.len()
    }
    /// Sets all bytes to one value.
    fn fill(&self, byte: u8) {
        self.memory.buffer.fill(0, self.memory.buffer.len(), byte);
    }

    fn __repr__(&self) -> String {
        format!("<sluice.Buffer of {} bytes>", self.memory.buffer.len())
    }

    /// Exports the memory to a view.
    ///
    /// # Safety
    /// `view` points to a view that the interpreter owns.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (pointer, bytes) = {
            let buffer = &slf.get().memory.buffer;
            (buffer.pointer(), buffer.len())
        };
        // A buffer is at most as long as a mapping.
        let bytes = bytes as ffi::Py_ssize_t;
        // SAFETY: `view` is the interpreter's, and the memory has `bytes` bytes at `pointer`. The view takes
        // a reference to the object, which owns the memory, so that the memory outlives the view.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer.cast(), bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

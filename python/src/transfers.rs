//! Blocking calls: transfers of bytes, as requests of sectors.
//!
//! A `Buffer` is transferred without a copy. Other memory is copied through memory of the drive,
//! because the drive accesses only that.

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sluice::user_io::{Payload, Request};

use crate::buffer::{IoMemory, PyDriveBuffer};
use crate::errors::CallFailure;
use crate::queue::QueueShared;

/// Maximum size of the memory through which other memory than a `Buffer` is copied, in bytes.
const COPY_BYTES_MAX: usize = 4 << 20;

/// A transfer in bytes.
#[derive(Clone, Copy)]
pub(crate) struct TransferRange {
    pub(crate) offset: u64,
    pub(crate) length: usize,
}

/// The properties of a write.
#[derive(Clone, Copy, Default)]
pub(crate) struct WriteFlags {
    /// Whether it completes when it is durable.
    pub(crate) fua: bool,
    /// Whether a power cut must not tear it.
    pub(crate) atomic: bool,
}

impl QueueShared {
    /// Refuses an atomic write that is longer than those that the drive keeps whole, or crosses a boundary.
    pub(crate) fn check_atomic(
        &self,
        range: TransferRange,
        flags: WriteFlags,
    ) -> Result<(), CallFailure> {
        let limits = self.drive().limits().atomic;
        let (lba, sectors) = self.sectors(range)?;
        if !flags.atomic || limits.allows(lba, sectors) {
            return Ok(());
        }
        let (most, boundary) = (limits.sectors, limits.boundary_sectors);
        let text = format!(
            "atomic = True: {sectors} sectors at sector {lba}, but at most {most} are atomic, within a \
             multiple of {boundary}"
        );
        Err(CallFailure::Value(if boundary == 0 {
            format!("atomic = True: {sectors} sectors, but at most {most} are atomic")
        } else {
            text
        }))
    }

    /// Converts a range of bytes to sectors.
    pub(crate) fn sectors(&self, range: TransferRange) -> Result<(u64, u32), CallFailure> {
        let sector_bytes = self.drive().limits().sector_bytes;
        let whole = |what: &str, value: u64| match value.is_multiple_of(sector_bytes.into()) {
            true => Ok(value / u64::from(sector_bytes)),
            false => {
                let text =
                    format!("{what} = {value}: a multiple of the sector, {sector_bytes} bytes");
                Err(CallFailure::Value(text))
            }
        };
        let (lba, sectors) =
            (whole("offset", range.offset)?, whole("length", range.length as u64)?);
        match u32::try_from(sectors) {
            Ok(0) => Err(CallFailure::Value("length = 0: one sector or more".into())),
            Ok(sectors) => Ok((lba, sectors)),
            Err(_) => {
                let text = format!("length = {}: below 2^32 sectors", range.length);
                Err(CallFailure::Value(text))
            }
        }
    }

    /// Returns the maximum length of a request in bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        let limits = self.drive().limits();
        limits.max_sectors.max(1) as usize * limits.sector_bytes as usize
    }

    /// Reads into, or writes from, memory of the drive. Longer transfers are several requests.
    fn transfer(
        &self,
        range: TransferRange,
        memory: &Arc<IoMemory>,
        at: usize,
        command: fn(u64, u32, Payload, WriteFlags) -> Request,
        flags: WriteFlags,
    ) -> Result<(), CallFailure> {
        self.sectors(range)?;
        memory.payload(self.drive().id(), at, range.length)?;
        let mut done = 0;
        while done < range.length {
            let length = (range.length - done).min(self.bytes_max());
            let (lba, sectors) =
                self.sectors(TransferRange { offset: range.offset + done as u64, length })?;
            let data = memory.payload(self.drive().id(), at + done, length)?;
            self.execute(command(lba, sectors, data, flags), Some(memory))?;
            done += length;
        }
        Ok(())
    }

    /// Reads through memory of the drive.
    fn read_copy(&self, range: TransferRange) -> Result<Vec<u8>, CallFailure> {
        self.sectors(range)?;
        let memory =
            self.drive().allocate(range.length.min(self.bytes_max()).min(COPY_BYTES_MAX))?;
        let mut bytes = vec![0; range.length];
        let mut offset = range.offset;
        for piece in bytes.chunks_mut(memory.buffer.len()) {
            let range = TransferRange { offset, length: piece.len() };
            self.transfer(range, &memory, 0, read_request, WriteFlags::default())?;
            memory.buffer.read(0, piece);
            offset += piece.len() as u64;
        }
        Ok(bytes)
    }

    /// Writes through memory of the drive.
    fn write_copy(&self, offset: u64, bytes: &[u8], flags: WriteFlags) -> Result<(), CallFailure> {
        self.check_atomic(TransferRange { offset, length: bytes.len() }, flags)?;
        let memory =
            self.drive().allocate(bytes.len().min(self.bytes_max()).min(COPY_BYTES_MAX))?;
        let mut offset = offset;
        for piece in bytes.chunks(memory.buffer.len()) {
            memory.buffer.write(0, piece);
            let range = TransferRange { offset, length: piece.len() };
            self.transfer(range, &memory, 0, write_request, flags)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }
}

pub(crate) fn read_request(lba: u64, sectors: u32, data: Payload, _: WriteFlags) -> Request {
    Request::read(lba, sectors, data, 0)
}

pub(crate) fn write_request(lba: u64, sectors: u32, data: Payload, flags: WriteFlags) -> Request {
    let WriteFlags { fua, atomic } = flags;
    Request { fua, atomic, ..Request::write(lba, sectors, data, 0) }
}

/// Returns the length of a transfer: as given, or to the end of the memory.
pub(crate) fn length_of(
    given: Option<usize>,
    at: usize,
    size: usize,
) -> Result<usize, CallFailure> {
    let rest = size.checked_sub(at);
    let outside = || CallFailure::Value(format!("at = {at}: outside of a buffer of {size} bytes"));
    given.or(rest).ok_or_else(outside)
}

/// Returns an object with the buffer protocol as bytes.
pub(crate) fn bytes_of<'py>(data: &Bound<'py, PyAny>) -> PyResult<PyBuffer<u8>> {
    let view = data.py().import("builtins")?.getattr("memoryview")?.call1((data,))?;
    PyBuffer::get(&view.call_method1("cast", ("B",))?)
}

/// Blocking calls on a queue, for `Queue` and for the queue of a `Drive`.
pub(crate) struct BlockingCalls<'a> {
    pub(crate) queue: &'a QueueShared,
    /// Whether a call waits while another thread is in one.
    pub(crate) in_turn: bool,
}

impl BlockingCalls<'_> {
    /// Runs `body` in a call, without the interpreter's lock.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&QueueShared) -> Result<T, CallFailure> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            let _inside = match self.in_turn {
                true => self.queue.enter_in_turn()?,
                false => self.queue.enter()?,
            };
            body(self.queue)
        });
        done.map_err(|failure: CallFailure| failure.into_exception(py))
    }

    pub(crate) fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.call(py, |queue| queue.read_copy(TransferRange { offset, length }))?;
        Ok(PyBytes::new(py, &bytes))
    }

    pub(crate) fn read_into(
        &self,
        offset: u64,
        into: &Bound<'_, PyAny>,
        at: usize,
        length: Option<usize>,
    ) -> PyResult<usize> {
        let py = into.py();
        if let Ok(buffer) = into.cast::<PyDriveBuffer>() {
            let memory = &buffer.get().memory;
            return self.call(py, |queue| {
                let length = length_of(length, at, memory.buffer.len())?;
                let range = TransferRange { offset, length };
                queue
                    .transfer(range, memory, at, read_request, WriteFlags::default())
                    .map(|()| length)
            });
        }
        let view = bytes_of(into)?;
        let (size, invalid) = (view.item_count(), |f: CallFailure| f.into_exception(py));
        let length = length_of(length, at, size).map_err(invalid)?;
        if view.readonly() || at != 0 || length != size {
            let text = "only a sluice.Buffer has parts: give a writable memoryview of the part";
            return Err(invalid(CallFailure::Value(text.into())));
        }
        let bytes = self.call(py, |queue| queue.read_copy(TransferRange { offset, length }))?;
        view.copy_from_slice(py, &bytes)?;
        Ok(length)
    }

    pub(crate) fn write(
        &self,
        offset: u64,
        data: &Bound<'_, PyAny>,
        at: usize,
        length: Option<usize>,
        flags: WriteFlags,
    ) -> PyResult<usize> {
        let py = data.py();
        if let Ok(buffer) = data.cast::<PyDriveBuffer>() {
            let memory = &buffer.get().memory;
            return self.call(py, |queue| {
                let length = length_of(length, at, memory.buffer.len())?;
                let range = TransferRange { offset, length };
                queue.check_atomic(range, flags)?;
                queue.transfer(range, memory, at, write_request, flags).map(|()| length)
            });
        }
        let bytes = bytes_of(data)?.to_vec(py)?;
        let invalid = |failure: CallFailure| failure.into_exception(py);
        let length = length_of(length, at, bytes.len()).map_err(invalid)?;
        let end = at.checked_add(length).filter(|end| *end <= bytes.len());
        let Some(end) = end else {
            let text = format!("{length} bytes at {at} of data of {} bytes", bytes.len());
            return Err(invalid(CallFailure::Value(text)));
        };
        self.call(py, |queue| queue.write_copy(offset, &bytes[at..end], flags))?;
        Ok(length)
    }

    pub(crate) fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |queue| queue.execute(Request::flush(0), None))
    }

    pub(crate) fn trim(&self, py: Python<'_>, offset: u64, length: usize) -> PyResult<()> {
        self.call(py, |queue| {
            let (lba, sectors) = queue.sectors(TransferRange { offset, length })?;
            queue.execute(Request::discard(lba, sectors, 0), None)
        })
    }
}

//! blktrace's binary format, so that blkparse, btt and tools built on them can read Sluice's
//! traces.
//!
//! [`BlktraceWriter`] writes one file per core; [`BlktraceReader`] reads such files and those of a
//! Linux kernel.
//!
//! The layout is that of the kernel's user-space interface (`linux/blktrace_api.h`), version 7.
//! `docs/format/blktrace.md` has the byte map and the contents of each field.

mod category;
mod reader;
mod record;
mod traced_device;
mod writer;

pub use category::Category;
pub use reader::{BlktraceReader, ReadError};
pub use record::{BlktraceRecord, DeviceNumber, MAGIC, RECORD_BYTES, RecordBody, VERSION};
pub use traced_device::{TraceProcess, TracedDevice};
pub use writer::{BlktraceWriter, WriteError, WriterSummary};

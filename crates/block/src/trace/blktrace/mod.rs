//! blktrace's binary format, so that blkparse, btt and everything built on them read our traces.
//!
//! | file | noun |
//! |---|---|
//! | [`record`](Record) | one record: 48 bytes and a payload, encoded and decoded |
//! | [`category`](Category) | the kinds of request and of event, one bit each |
//! | [`traced`](Traced) | the device and the processes of a trace |
//! | [`writer`](BlktraceWriter) | events of the block layer to one file per core |
//! | [`reader`](BlktraceReader) | a file, of ours or of a Linux kernel, to records |
//!
//! The layout is that of the kernel's user-space interface (`linux/blktrace_api.h`), version 7;
//! `docs/format/blktrace.md` is the byte map, and says what each field holds here.

mod category;
mod reader;
mod record;
mod traced_device;
mod writer;

pub use category::Category;
pub use reader::{BlktraceReader, ReadError};
pub use record::{DeviceNumber, MAGIC, RECORD_BYTES, Record, RecordBody, VERSION};
pub use traced_device::{TraceProcess, TracedDevice};
pub use writer::{BlktraceWriter, WriteError, WriterSummary};

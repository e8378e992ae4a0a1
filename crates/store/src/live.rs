//! [`Live`]: what is known of an inode only while the volume is open: who uses it, what is buffered of
//! it, and which transactions its changes are in.

use std::collections::{BTreeMap, BTreeSet};

use crate::frames::FrameId;

/// The part of an inode that is not recorded.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// How often it is open.
    pub(crate) opens: u32,
    /// Operations that are under way on it.
    pub(crate) refs: u32,
    /// The operation that changes it, by slot. One at a time.
    pub(crate) writer: Option<u32>,
    /// Reads and writes at the device.
    pub(crate) io: u32,
    /// The writer takes blocks away, and waits for those to end: none begin.
    pub(crate) gate: bool,
    /// Its blocks in memory.
    pub(crate) frames: BTreeMap<u32, FrameId>,
    /// Blocks of these that are not on the device as they are in memory, or on their way there.
    pub(crate) dirty: BTreeSet<u32>,
    /// It is among the inodes that will be written when they are old enough.
    pub(crate) listed: bool,
    /// It is among those that are being written.
    pub(crate) wanted: bool,
    /// Its writes are waited for: they go out durable, if they are few.
    pub(crate) urgent: bool,
    /// A write has failed, and nobody has asked again since.
    pub(crate) held: bool,
    /// Writes that failed.
    pub(crate) errors: u64,
    /// It is among the running transaction's inodes.
    pub(crate) noted: bool,
    /// The last transaction with a change of it.
    pub(crate) txn: u64,
    /// The last transaction without which its data could not be read.
    pub(crate) data_txn: u64,
    /// The last write of its data that was not durable by itself, by number.
    pub(crate) unflushed: u64,
    /// It has no name, and nobody has it open: it is among those that will go.
    pub(crate) doomed: bool,
}

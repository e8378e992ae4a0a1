//! Recovery of a volume when it is opened: reads the metadata and replays the journal.

pub(crate) mod journaled_blocks;
pub(crate) mod metadata_reader;
pub(crate) mod mount;
pub(crate) mod replay;

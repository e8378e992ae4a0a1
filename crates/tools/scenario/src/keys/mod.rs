//! Readers of the keys of each section.

pub(crate) mod ahci_keys;
pub(crate) mod drive_keys;
pub(crate) mod drive_kind;
pub(crate) mod export_keys;
pub(crate) mod ftl_keys;
pub(crate) mod interface_keys;
pub(crate) mod job;
pub(crate) mod layer_keys;
pub(crate) mod media_keys;
pub(crate) mod precondition_keys;
pub(crate) mod process_keys;
pub(crate) mod real_keys;
pub(crate) mod scheduler_keys;
pub(crate) mod share_keys;

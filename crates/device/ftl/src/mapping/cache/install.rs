//! Installing a translation page in its frame, and the updates of other parts that follow.

use std::collections::BTreeMap;

use nvme::PhysSector;

use crate::ids::{LineId, WriteSeq};
use crate::space::lines::LineTable;

/// Changes for other parts, of a page that was put into a frame or shown in the scratch frame.
#[derive(Debug, Default)]
pub(crate) struct PageInstalled {
    /// Whether the page differs from its copy on flash.
    pub(crate) is_dirty: bool,
    /// Whether the page is lost.
    pub(crate) is_lost: bool,
    /// Whether the page was rebuilt.
    pub(crate) is_rebuilt: bool,
    /// Number of sectors whose latest version is lost.
    pub(crate) lost_sectors: u64,
    /// Number of sectors whose entry differs from the copy that was found.
    pub(crate) mismatches: u64,
    /// Physical sectors that are valid.
    pub(crate) valid: Vec<PhysSector>,
    /// By line, sectors of a rebuilt page that are valid and may have been counted before.
    pub(crate) recounted: BTreeMap<LineId, u32>,
}

/// The sources that a page is installed from, beside the maps.
#[derive(Clone, Copy)]
pub(crate) struct InstallView<'a> {
    pub(crate) lines: &'a LineTable,
    /// The bytes of a page that was read.
    pub(crate) bytes: &'a [u8],
    /// The sequence number of the next unit.
    pub(crate) next_seq: WriteSeq,
}

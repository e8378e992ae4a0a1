//! Installing a translation page in its frame, and the updates of other parts that follow.

use std::collections::BTreeMap;

use crate::ids::LineId;
use crate::space::lines::LineTable;

/// Facts that other parts must learn of a page that was put into a frame, or shown in the scratch frame.
#[derive(Debug, Default)]
pub(crate) struct PageInstalled {
    /// The page differs from its copy on flash.
    pub(crate) is_dirty: bool,
    /// Whether the page is lost.
    pub(crate) is_lost: bool,
    /// The page was rebuilt.
    pub(crate) is_rebuilt: bool,
    /// Sectors whose latest version turned out to be lost.
    pub(crate) lost_sectors: u64,
    /// Sectors that the page has elsewhere than they were found.
    pub(crate) mismatches: u64,
    /// Physical sectors that turned out to be valid.
    pub(crate) valid: Vec<u32>,
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
    pub(crate) next_seq: u64,
}

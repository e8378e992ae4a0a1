//! [`TrimLog`]: translation pages with trims that no flush has made durable.

use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require, require_eq};
use crate::ids::{MapPageId, ToIndex};

/// Flag in a page's epoch: a copy of the page was written that includes all of its trims.
const WRITTEN_BIT: u64 = 1 << 63;

/// Translation pages with trims that the next flush makes durable.
///
/// Invariant: a page has an epoch exactly as long as it is listed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TrimLog {
    dirty: Vec<MapPageId>,
    /// Pages with trims after the flush in progress began; they belong to the next flush.
    redirtied: Vec<MapPageId>,
    /// By page, the number of trimmed sectors at the page's latest trim; 0 without trims.
    page_epoch: Vec<u64>,
    /// Number of trims of mapped sectors.
    epoch: u64,
    /// Position of the host's rings behind the translation page written last.
    pages_pos: u64,
}

impl TrimLog {
    /// Creates the state of `pages` pages without trims.
    pub(crate) fn new(pages: u32) -> TrimLog {
        TrimLog {
            dirty: Vec::new(),
            redirtied: Vec::new(),
            page_epoch: vec![0; pages.index()],
            epoch: 0,
            pages_pos: 0,
        }
    }

    /// Records that a mapped sector of a page is trimmed.
    #[inline]
    pub(crate) fn record(&mut self, page: MapPageId) {
        self.epoch += 1;
        if std::mem::replace(&mut self.page_epoch[page.index()], self.epoch) == 0 {
            self.dirty.push(page);
        }
    }

    /// Returns how many mapped sectors have been trimmed.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the position of the host's rings behind the translation page written last.
    #[inline]
    pub(crate) fn pages_pos(&self) -> u64 {
        self.pages_pos
    }

    /// Records that a translation page was appended to the host ring in front of this position.
    #[inline]
    pub(crate) fn set_pages_pos(&mut self, position: u64) {
        self.pages_pos = position;
    }

    #[inline]
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    #[inline]
    pub(crate) fn has_redirtied(&self) -> bool {
        !self.redirtied.is_empty()
    }

    /// Sorts the pages so that [`pop_dirty`](TrimLog::pop_dirty) returns them in ascending order.
    pub(crate) fn sort_dirty(&mut self) {
        self.dirty.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Removes and returns a page that a flush makes durable; call [`settle`](TrimLog::settle) on it
    /// afterwards.
    pub(crate) fn pop_dirty(&mut self) -> Option<MapPageId> {
        self.dirty.pop()
    }

    /// Whether a page has trims that came later than the first `epoch` ones.
    pub(crate) fn is_later_than(&self, page: MapPageId, epoch: u64) -> bool {
        self.page_epoch[page.index()] > epoch
    }

    /// Records that the flush has handled a page. With `redirtied`, its later trims belong to the
    /// next flush.
    pub(crate) fn settle(&mut self, page: MapPageId, redirtied: bool) {
        if redirtied {
            self.redirtied.push(page);
        } else {
            self.page_epoch[page.index()] = 0;
        }
    }

    /// Records that the flush has handled all pages. Remaining ones belong to the next flush.
    pub(crate) fn start_next(&mut self) {
        std::mem::swap(&mut self.dirty, &mut self.redirtied);
    }

    /// Records that a copy of a page was written that includes all of its trims.
    #[inline]
    pub(crate) fn mark_written(&mut self, page: MapPageId) {
        let epoch = &mut self.page_epoch[page.index()];
        *epoch |= if *epoch == 0 { 0 } else { WRITTEN_BIT };
    }

    /// Returns whether every trim of a page is in a written copy of it.
    #[inline]
    pub(crate) fn is_written(&self, page: MapPageId) -> bool {
        let epoch = self.page_epoch[page.index()];
        epoch == 0 || epoch & WRITTEN_BIT != 0
    }

    /// Drops the trims of a page if a copy of it was written that includes all of them. Returns
    /// whether it was.
    pub(crate) fn clear_written(&mut self, page: MapPageId) -> bool {
        let epoch = &mut self.page_epoch[page.index()];
        let written = *epoch & WRITTEN_BIT != 0;
        *epoch = if written { 0 } else { *epoch };
        written
    }

    /// Checks the invariant; `cursor` is a page that was taken and is not settled, `head` the position of
    /// the host's rings.
    pub(crate) fn check(&self, cursor: Option<MapPageId>, head: u64) -> Result<(), Violation> {
        require!(
            self.pages_pos <= head,
            Durability,
            "translation pages are in the write buffer",
            Subject::Part,
            format_args!("at most {head}"),
            self.pages_pos
        );
        let mut listed = vec![0u32; self.page_epoch.len()];
        for &page in self.dirty.iter().chain(&self.redirtied).chain(&cursor) {
            listed[page.index()] += 1;
        }
        for (page, (&epoch, &found)) in (0..).zip(self.page_epoch.iter().zip(&listed)) {
            let expected = u32::from(epoch != 0);
            let subject = Subject::Page(MapPageId(page));
            require_eq!(Durability, "a page with trims is listed", subject, expected, found);
        }
        Ok(())
    }
}

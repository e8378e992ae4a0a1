//! [`FetchCounts`]: the numbers of a run.

/// The numbers of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FetchCounts {
    pub(super) cuts: u64,
    pub(super) lookups: u64,
    /// Lookups that returned a sector.
    pub(super) found: u64,
    pub(super) scans: u64,
    /// Bytes that scans returned.
    pub(super) scanned: u64,
    pub(super) denied: u64,
    pub(super) hop_limits: u64,
    pub(super) outside: u64,
    pub(super) unreadable: u64,
    pub(super) full: u64,
    pub(super) aborted: u64,
    /// Commands in flight of rules, at installations.
    pub(super) restarted: u64,
    pub(super) reclaimed: u64,
}

impl FetchCounts {
    pub(super) fn add(&mut self, other: &FetchCounts) {
        for (sum, value) in [
            (&mut self.cuts, other.cuts),
            (&mut self.lookups, other.lookups),
            (&mut self.found, other.found),
            (&mut self.scans, other.scans),
            (&mut self.scanned, other.scanned),
            (&mut self.denied, other.denied),
            (&mut self.hop_limits, other.hop_limits),
            (&mut self.outside, other.outside),
            (&mut self.unreadable, other.unreadable),
            (&mut self.full, other.full),
            (&mut self.aborted, other.aborted),
            (&mut self.restarted, other.restarted),
            (&mut self.reclaimed, other.reclaimed),
        ] {
            *sum += value;
        }
    }

    /// Returns all of them.
    pub(super) fn all(&self) -> [u64; 13] {
        let FetchCounts { cuts, lookups, found, scans, scanned, denied, .. } = *self;
        let FetchCounts { hop_limits, outside, unreadable, full, aborted, .. } = *self;
        let FetchCounts { restarted, reclaimed, .. } = *self;
        [
            cuts, lookups, found, scans, scanned, denied, hop_limits, outside, unreadable, full,
            aborted, restarted, reclaimed,
        ]
    }
}

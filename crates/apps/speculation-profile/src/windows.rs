//! [`WindowStats`]: lengths of windows, and what ended them; [`OpenWindows`]: those of a thread that no
//! call has ended yet.

use std::collections::BTreeMap;

/// Rule that decides which calls stop a speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRule {
    /// Every call with a side effect [Spec14 §3].
    Paper,
    /// Calls that leave the process and the volume.
    Sluice,
}

impl StopRule {
    /// Both rules.
    pub const ALL: [StopRule; 2] = [StopRule::Paper, StopRule::Sluice];

    /// Returns the name in results.
    pub fn name(self) -> &'static str {
        match self {
            StopRule::Paper => "paper",
            StopRule::Sluice => "sluice",
        }
    }
}

/// Lengths of windows in instructions, and the number of windows that each reason stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowStats {
    count: u64,
    sum: u128,
    squares: u128,
    min: u64,
    max: u64,
    unfinished: u64,
    stops: BTreeMap<String, u64>,
}

impl WindowStats {
    /// Number of windows that ended.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Mean length; zero without windows.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// Standard deviation of the length of the population; zero without windows.
    pub fn deviation(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let mean = self.mean();
        (self.squares as f64 / self.count as f64 - mean * mean).max(0.0).sqrt()
    }

    /// Smallest length; zero without windows.
    pub fn min(&self) -> u64 {
        self.min
    }

    /// Largest length; zero without windows.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Windows of processes and threads that ended without a call, whose lengths are not known.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Number of windows by the reason that stopped them: the name of a call, or `buffer`.
    pub fn stops(&self) -> &BTreeMap<String, u64> {
        &self.stops
    }

    /// Adds the windows of `other`.
    pub fn merge(&mut self, other: &WindowStats) {
        if other.count > 0 {
            self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
            self.max = self.max.max(other.max);
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.squares = self.squares.saturating_add(other.squares);
        self.unfinished += other.unfinished;
        for (reason, count) in &other.stops {
            *self.stops.entry(reason.clone()).or_default() += count;
        }
    }

    /// Adds all windows of a group, which end at `count`.
    fn close(&mut self, group: OpenGroup, count: u64, reason: &str) {
        let OpenGroup { windows, first, last, sum, squares } = group;
        if windows == 0 {
            return;
        }
        // Of starts s relative to `first`: the sums of (e - s) and of (e - s)², with e relative, too.
        let end = u128::from(count.saturating_sub(first));
        let windows_wide = u128::from(windows);
        let total = windows_wide.saturating_mul(end).saturating_sub(sum);
        let all_squares = windows_wide.saturating_mul(end.saturating_mul(end));
        let cross = 2_u128.saturating_mul(end).saturating_mul(sum);
        let total_squares = all_squares.saturating_add(squares).saturating_sub(cross);
        let stops = BTreeMap::from([(reason.to_owned(), windows)]);
        self.merge(&WindowStats {
            count: windows,
            sum: total,
            squares: total_squares,
            min: count.saturating_sub(last),
            max: count.saturating_sub(first),
            unfinished: 0,
            stops,
        });
    }
}

/// Open windows that end together, as sums of their starts.
#[derive(Clone, Copy, Debug, Default)]
struct OpenGroup {
    windows: u64,
    first: u64,
    last: u64,
    sum: u128,
    squares: u128,
}

impl OpenGroup {
    fn open(&mut self, start: u64) {
        if self.windows == 0 {
            self.first = start;
        }
        let relative = u128::from(start.saturating_sub(self.first));
        self.windows += 1;
        self.last = start;
        self.sum = self.sum.saturating_add(relative);
        self.squares = self.squares.saturating_add(relative.saturating_mul(relative));
    }
}

/// Kind of an I/O that opens windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpeculatedIo {
    Read,
    Write,
    Sync,
}

impl SpeculatedIo {
    pub(crate) const ALL: [SpeculatedIo; 3] =
        [SpeculatedIo::Read, SpeculatedIo::Write, SpeculatedIo::Sync];

    pub(crate) fn name(self) -> &'static str {
        match self {
            SpeculatedIo::Read => "read",
            SpeculatedIo::Write => "write",
            SpeculatedIo::Sync => "sync",
        }
    }
}

/// Statistics of all kinds, by [`SpeculatedIo`].
pub(crate) type KindStats = [WindowStats; 3];

/// The open windows of a thread by one rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenWindows {
    /// Writes and syncs, which only calls end.
    groups: [OpenGroup; 2],
    /// Starts of reads, by the identifier of their buffers.
    reads: BTreeMap<u64, u64>,
}

/// Reads of a thread that may be open. The plugin watches fewer buffers.
const READS_MAX: usize = 1024;

impl OpenWindows {
    pub(crate) fn open_read(&mut self, watch: u64, start: u64) {
        if self.reads.len() < READS_MAX {
            self.reads.insert(watch, start);
        }
    }

    pub(crate) fn open_write(&mut self, start: u64) {
        self.groups[0].open(start);
    }

    pub(crate) fn open_sync(&mut self, start: u64) {
        self.groups[1].open(start);
    }

    /// Ends the window of a read, if it is open.
    pub(crate) fn close_read(
        &mut self,
        into: &mut KindStats,
        watch: u64,
        count: u64,
        reason: &str,
    ) {
        if let Some(start) = self.reads.remove(&watch) {
            close_one(into, start, count, reason);
        }
    }

    /// Ends all windows.
    pub(crate) fn close(&mut self, into: &mut KindStats, count: u64, reason: &str) {
        for start in std::mem::take(&mut self.reads).into_values() {
            close_one(into, start, count, reason);
        }
        let [writes, syncs] = std::mem::take(&mut self.groups);
        into[SpeculatedIo::Write as usize].close(writes, count, reason);
        into[SpeculatedIo::Sync as usize].close(syncs, count, reason);
    }

    /// Forgets all windows, whose end is not known.
    pub(crate) fn abandon(&mut self, into: &mut KindStats) {
        into[SpeculatedIo::Read as usize].unfinished += self.reads.len() as u64;
        into[SpeculatedIo::Write as usize].unfinished += self.groups[0].windows;
        into[SpeculatedIo::Sync as usize].unfinished += self.groups[1].windows;
        *self = OpenWindows::default();
    }
}

fn close_one(into: &mut KindStats, start: u64, count: u64, reason: &str) {
    let mut group = OpenGroup::default();
    group.open(start);
    into[SpeculatedIo::Read as usize].close(group, count, reason);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_groups_are_those_of_single_windows() {
        let starts = [5_u64, 5, 9, 100, 1_000];
        let mut group = OpenGroup::default();
        let mut single = WindowStats::default();
        for start in starts {
            group.open(start);
            let mut one = OpenGroup::default();
            one.open(start);
            single.close(one, 5_000, "write");
        }
        let mut stats = WindowStats::default();
        stats.close(group, 5_000, "write");
        assert_eq!(stats, single);
        assert_eq!((stats.min(), stats.max(), stats.count()), (4_000, 4_995, 5));
        assert!((stats.mean() - (25_000.0 - 1_119.0) / 5.0).abs() < 1e-9);
        let mean = stats.mean();
        let variance = starts.map(|s| (5_000.0 - s as f64 - mean).powi(2)).iter().sum::<f64>();
        assert!((stats.deviation() - (variance / 5.0).sqrt()).abs() < 1e-6);
        assert_eq!(stats.stops()["write"], 5);
    }

    #[test]
    fn counts_that_go_back_do_not_overflow() {
        let mut group = OpenGroup::default();
        group.open(u64::MAX);
        group.open(3);
        let mut stats = WindowStats::default();
        stats.close(group, 0, "close");
        assert_eq!((stats.count(), stats.max(), stats.mean()), (2, 0, 0.0));
    }

    #[test]
    fn windows_of_a_thread_that_is_killed_are_unfinished() {
        let mut windows = OpenWindows::default();
        windows.open_read(1, 10);
        windows.open_write(20);
        windows.open_write(30);
        windows.open_sync(40);
        let mut stats = KindStats::default();
        windows.abandon(&mut stats);
        assert_eq!(stats.map(|of| (of.count(), of.unfinished())), [(0, 1), (0, 2), (0, 1)]);
    }
}

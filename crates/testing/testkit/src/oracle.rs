//! Oracles of crash tests: the values that a sector may hold after a power cut, and the loop over
//! seeds.
//!
//! A test generates its requests itself, and tells a [`DeviceModel`] about them. The model knows for
//! every sector the value that a read must return, and the values that it may hold after a power
//! cut: the last one that is certainly durable, and all that were sent since. Only trims, zeros and
//! data that were sent are possible, and never a value older than a flush or a FUA write.
//!
//! Values are numbers; 0 stands for zeros. The sectors of a change have consecutive values.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A value of a sector, with its position in the order of all changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Position in the order of all changes.
    pub order: u64,
    /// The value; 0 stands for zeros.
    pub value: u64,
}

/// Which of several equal values a read returns, if it returns any possible one. An older one
/// excludes fewer values at the next flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchOrder {
    /// The oldest one.
    OldestFirst,
    /// The newest one. The device must then not return an older equal value.
    NewestFirst,
}

/// A read returned a value that the sector cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongValue {
    /// The value that was read.
    pub found: u64,
    /// The value that the sector must hold; `None` if any of `possible` is allowed.
    pub expected: Option<u64>,
    /// The possible values, oldest first.
    pub possible: Vec<Written>,
}

impl fmt::Display for WrongValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongValue { found, expected, possible } = self;
        match expected {
            Some(expected) => write!(f, "is {found} instead of {expected}"),
            None => write!(f, "is {found}, which is none of the possible {possible:?}"),
        }
    }
}

/// The possible contents of one sector.
#[derive(Clone, Debug)]
pub struct SectorModel {
    /// Contents while power is on; `None` if a failure or a power cut left them undefined.
    now: Option<Written>,
    /// Possible contents after a power cut, oldest first.
    possible: VecDeque<Written>,
}

impl SectorModel {
    /// Creates a sector with a durable value.
    pub fn new(value: u64) -> SectorModel {
        let written = Written { order: 0, value };
        SectorModel { now: Some(written), possible: VecDeque::from([written]) }
    }

    /// Returns the contents while power is on; `None` if they are undefined.
    pub fn now(&self) -> Option<Written> {
        self.now
    }

    /// Returns the value while power is on.
    ///
    /// # Panics
    /// If it is undefined.
    pub fn value(&self) -> u64 {
        self.now.unwrap_or_else(|| panic!("undefined contents: {self:?}")).value
    }

    /// Records that a change was sent. Changes are sent in ascending order.
    ///
    /// # Panics
    /// If a later change was sent before.
    pub fn send(&mut self, written: Written) {
        assert!(self.possible.back().is_none_or(|last| last.order < written.order));
        self.possible.push_back(written);
    }

    /// Records that a value was sent, next in this sector's own order. Returns its position.
    pub fn send_next(&mut self, value: u64) -> u64 {
        let order = self.possible.back().map_or(0, |last| last.order + 1);
        self.possible.push_back(Written { order, value });
        order
    }

    /// Records that a change completed; `None` if it failed, which leaves the contents undefined.
    pub fn complete(&mut self, written: Option<Written>) {
        self.now = written;
    }

    /// Records that the change with this position is in effect.
    ///
    /// # Panics
    /// If there is no such possible value.
    pub fn complete_at(&mut self, order: u64) {
        self.now = self.possible.iter().find(|w| w.order == order).copied();
        assert!(self.now.is_some(), "no value has the position {order}: {self:?}");
    }

    /// Excludes all contents older than `order`.
    pub fn set_durable(&mut self, order: u64) {
        while self.possible.front().is_some_and(|w| w.order < order) {
            self.possible.pop_front();
        }
    }

    /// Returns the position that a flush sent now makes durable. Undefined contents may be any of
    /// the possible ones, so that the flush excludes none.
    pub fn flush_mark(&self) -> u64 {
        self.now.map_or(0, |w| w.order)
    }

    /// Records that the present contents alone are durable. Requires that no change is in flight
    /// and that none has failed since the contents were read.
    ///
    /// # Panics
    /// If the contents are undefined.
    pub fn settle(&mut self) {
        let now = self.now.unwrap_or_else(|| panic!("undefined contents: {self:?}"));
        *self = SectorModel::new(now.value);
    }

    /// Returns whether the sector may hold this value after a power cut.
    pub fn allows(&self, value: u64) -> bool {
        self.possible.iter().any(|w| w.value == value)
    }

    /// Checks a value that was read. `expected` is the value when the read was sent. If it was
    /// undefined, any possible value is right, and is the sector's contents from here on.
    ///
    /// # Errors
    /// If the sector cannot hold the value.
    pub fn observe(
        &mut self,
        found: u64,
        expected: Option<u64>,
        search: SearchOrder,
    ) -> Result<(), WrongValue> {
        let wrong = |sector: &SectorModel| {
            let possible = sector.possible.iter().copied().collect();
            Err(WrongValue { found, expected, possible })
        };
        if let Some(expected) = expected {
            return if found == expected { Ok(()) } else { wrong(self) };
        }
        let is_found = |w: &&Written| w.value == found;
        let written = match search {
            SearchOrder::OldestFirst => self.possible.iter().find(is_found),
            SearchOrder::NewestFirst => self.possible.iter().rev().find(is_found),
        };
        match written.copied() {
            Some(written) => self.now = Some(written),
            None => return wrong(self),
        }
        Ok(())
    }
}

/// A change of consecutive sectors: its position, and the value of its first sector. The next
/// sectors have the next positions and, unless it writes zeros, the next values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The first sector.
    pub lba: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// Position and value of the first sector.
    pub first: Written,
}

impl Change {
    /// Returns position and value of every sector.
    fn each(self) -> impl Iterator<Item = Written> {
        let Written { order, value } = self.first;
        let value_at = move |i| if value == 0 { 0 } else { value + i };
        (0..u64::from(self.sectors)).map(move |i| Written { order: order + i, value: value_at(i) })
    }
}

/// The possible contents of a device.
#[derive(Clone, Debug)]
pub struct DeviceModel {
    sectors: Vec<SectorModel>,
    search: SearchOrder,
    /// Position of the last change.
    order: u64,
}

impl DeviceModel {
    /// Creates the model of a device without data.
    pub fn new(sectors: u64, search: SearchOrder) -> DeviceModel {
        DeviceModel { sectors: vec![SectorModel::new(0); sectors as usize], search, order: 0 }
    }

    /// Returns the number of sectors.
    pub fn sector_count(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Returns the sectors of a range.
    pub fn range(&self, lba: u64, sectors: u32) -> &[SectorModel] {
        &self.sectors[lba as usize..][..sectors as usize]
    }

    fn range_mut(&mut self, lba: u64, sectors: u32) -> &mut [SectorModel] {
        &mut self.sectors[lba as usize..][..sectors as usize]
    }

    /// Returns the position of the next change.
    pub fn next_order(&self) -> u64 {
        self.order + 1
    }

    /// Records a change that is sent. `value` is that of the first sector, 0 for zeros.
    pub fn send(&mut self, lba: u64, sectors: u32, value: u64) -> Change {
        let first = Written { order: self.next_order(), value };
        let change = Change { lba, sectors, first };
        self.order += u64::from(sectors);
        for (sector, written) in self.range_mut(lba, sectors).iter_mut().zip(change.each()) {
            sector.send(written);
        }
        change
    }

    /// Records that a change completed. One that failed leaves its sectors undefined; one that is
    /// durable excludes older contents.
    pub fn complete(&mut self, change: Change, is_success: bool, is_durable: bool) {
        let sectors = self.range_mut(change.lba, change.sectors);
        for (sector, written) in sectors.iter_mut().zip(change.each()) {
            sector.complete(is_success.then_some(written));
            if is_success && is_durable {
                sector.set_durable(written.order);
            }
        }
    }

    /// Returns the values that a read must return if no change overlaps it; `None` for undefined
    /// contents.
    pub fn expected(&self, lba: u64, sectors: u32) -> Vec<Option<u64>> {
        self.range(lba, sectors).iter().map(|s| s.now.map(|w| w.value)).collect()
    }

    /// Checks a value that was read, as [`SectorModel::observe`] does.
    ///
    /// # Errors
    /// If the sector cannot hold the value.
    pub fn observe(
        &mut self,
        lba: u64,
        found: u64,
        expected: Option<u64>,
    ) -> Result<(), WrongValue> {
        let search = self.search;
        self.sectors[lba as usize].observe(found, expected, search)
    }

    /// Returns for every sector the position that a flush sent now makes durable.
    pub fn flush_marks(&self) -> Vec<u64> {
        self.sectors.iter().map(SectorModel::flush_mark).collect()
    }

    /// Records that the flush completed for which [`flush_marks`](DeviceModel::flush_marks)
    /// returned these positions.
    pub fn flushed(&mut self, marks: &[u64]) {
        for (sector, mark) in self.sectors.iter_mut().zip(marks) {
            sector.set_durable(*mark);
        }
    }

    /// Records a power cut: any possible value may be read.
    pub fn cut_power(&mut self) {
        for sector in &mut self.sectors {
            sector.complete(None);
        }
    }

    /// Records that the values read since a power cut are durable, because they are on the media.
    /// Returns the number of sectors that were not read.
    pub fn settle(&mut self) -> u64 {
        let mut unread = 0;
        for sector in &mut self.sectors {
            match sector.now {
                Some(_) => sector.settle(),
                None => unread += 1,
            }
        }
        unread
    }
}

/// The results of a test with random seeds.
#[derive(Clone, Debug)]
pub struct SeedRun<T> {
    /// The result of every seed, regression seeds first.
    pub results: Vec<T>,
    /// Whether it was a single seed, so that nothing holds for the sum.
    pub is_single: bool,
}

/// Runs a test with regression seeds, then with seeds from 0. `SLUICE_CASES` sets the number of
/// seeds and `SLUICE_FIRST` the first one; `SLUICE_SEED` replays one. `replay` is the command that
/// does, without the variable.
///
/// # Panics
/// If the test panics. The failing seed is printed.
pub fn run_seeds<T>(
    cases: u64,
    regressions: &[u64],
    replay: &str,
    mut run: impl FnMut(u64) -> T,
) -> SeedRun<T> {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("SLUICE_FIRST").unwrap_or(0);
            first..first + number("SLUICE_CASES").unwrap_or(cases)
        }
    };
    let is_single = seeds.end - seeds.start == 1;
    let regressions = if is_single { &[] } else { regressions };
    let run_one = |seed| match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(result) => result,
        Err(panic) => {
            eprintln!("seed {seed} fails; replay it with SLUICE_SEED={seed} {replay}");
            resume_unwind(panic);
        }
    };
    let results = regressions.iter().copied().chain(seeds).map(run_one).collect();
    SeedRun { results, is_single }
}

#[cfg(test)]
mod tests {
    use super::SearchOrder::{NewestFirst, OldestFirst};
    use super::*;

    /// Sends a write of one sector, and completes it.
    fn write(model: &mut DeviceModel, value: u64, is_durable: bool) {
        let change = model.send(0, 1, value);
        model.complete(change, true, is_durable);
    }

    fn flush(model: &mut DeviceModel) {
        let marks = model.flush_marks();
        model.flushed(&marks);
    }

    fn is_allowed_after_cut(model: &DeviceModel, value: u64) -> bool {
        let mut model = model.clone();
        model.cut_power();
        model.observe(0, value, None).is_ok()
    }

    #[test]
    fn a_stale_value_while_power_is_on_is_reported() {
        let mut model = DeviceModel::new(1, OldestFirst);
        write(&mut model, 5, false);
        write(&mut model, 6, false);
        let expected = model.expected(0, 1)[0];
        assert_eq!(model.observe(0, 6, expected), Ok(()));
        let wrong = model.observe(0, 5, expected).expect_err("a stale value");
        assert_eq!(wrong.to_string(), "is 5 instead of 6");
    }

    #[test]
    fn a_stale_value_after_a_flush_or_a_fua_write_is_reported() {
        for by_flush in [false, true] {
            let mut model = DeviceModel::new(1, OldestFirst);
            write(&mut model, 5, false);
            write(&mut model, 6, !by_flush);
            if by_flush {
                assert!(is_allowed_after_cut(&model, 5));
                flush(&mut model);
            }
            write(&mut model, 7, false);
            assert!(is_allowed_after_cut(&model, 6) && is_allowed_after_cut(&model, 7));
            assert!(!is_allowed_after_cut(&model, 5) && !is_allowed_after_cut(&model, 0));
            assert!(!is_allowed_after_cut(&model, 8), "a value that was never sent");
        }
    }

    #[test]
    fn a_trim_before_a_flush_excludes_the_data() {
        let mut model = DeviceModel::new(1, OldestFirst);
        write(&mut model, 5, true);
        write(&mut model, 0, false);
        assert!(is_allowed_after_cut(&model, 5) && is_allowed_after_cut(&model, 0));
        flush(&mut model);
        assert!(!is_allowed_after_cut(&model, 5) && is_allowed_after_cut(&model, 0));
    }

    #[test]
    fn a_flush_covers_only_changes_that_completed_before_it_was_sent() {
        let mut model = DeviceModel::new(1, OldestFirst);
        write(&mut model, 5, false);
        let marks = model.flush_marks();
        let change = model.send(0, 1, 6);
        model.complete(change, true, false);
        model.flushed(&marks);
        assert!(is_allowed_after_cut(&model, 5) && is_allowed_after_cut(&model, 6));
        assert!(!is_allowed_after_cut(&model, 0));
    }

    #[test]
    fn a_failed_change_leaves_any_possible_value() {
        let mut model = DeviceModel::new(2, OldestFirst);
        write(&mut model, 5, true);
        let change = model.send(0, 2, 6);
        model.complete(change, false, true);
        assert_eq!(model.expected(0, 2), [None, None]);
        assert!(model.clone().observe(0, 5, None).is_ok());
        assert!(model.clone().observe(1, 7, None).is_ok());
        assert!(model.clone().observe(1, 6, None).is_err(), "the value of another sector");
        assert_eq!(model.settle(), 2);
        assert_eq!(model.observe(0, 6, None), Ok(()));
        assert_eq!(model.expected(0, 1), [Some(6)]);
        assert_eq!(model.settle(), 1);
        assert!(!is_allowed_after_cut(&model, 5), "another value was read since");
    }

    #[test]
    fn the_search_order_decides_what_a_flush_excludes() {
        for (search, is_allowed) in [(OldestFirst, true), (NewestFirst, false)] {
            let mut model = DeviceModel::new(1, search);
            write(&mut model, 5, false);
            write(&mut model, 0, false);
            let change = model.send(0, 1, 6);
            model.complete(change, false, false);
            assert_eq!(model.observe(0, 0, None), Ok(()));
            flush(&mut model);
            assert_eq!(is_allowed_after_cut(&model, 5), is_allowed, "{search:?}");
        }
    }

    #[test]
    fn a_sector_has_an_order_of_its_own() {
        let mut sector = SectorModel::new(3);
        let (first, second) = (sector.send_next(4), sector.send_next(5));
        sector.complete_at(first);
        assert_eq!(sector.now(), Some(Written { order: first, value: 4 }));
        sector.set_durable(first);
        assert!(!sector.allows(3) && sector.allows(4) && sector.allows(5));
        sector.set_durable(second);
        assert!(!sector.allows(4));
    }

    #[test]
    fn regression_seeds_come_first() {
        let run = run_seeds(3, &[7], "cargo test", |seed| seed);
        if std::env::var_os("SLUICE_SEED").is_none() && std::env::var_os("SLUICE_CASES").is_none() {
            assert_eq!(run.results, [7, 0, 1, 2]);
        }
        let failed = catch_unwind(|| run_seeds(1, &[], "cargo test", |_| panic!("a violation")));
        assert!(failed.is_err());
    }
}

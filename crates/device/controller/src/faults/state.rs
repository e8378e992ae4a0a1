//! [`FaultState`]: the faults that a drive had, and those that end or occur later.

use media::{InjectedFault, Nand, Operation, PuId};
use time::{Nanos, TimerQueue};

use crate::command::stage::CommandStages;
use crate::faults::{Fault, FaultScope};

/// A fault that a drive had.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultRecord {
    /// Time of the injection.
    pub at: Nanos,
    /// The fault.
    pub fault: Fault,
    /// Whether the fault has not occurred yet, or has not ended.
    pub is_open: bool,
    /// The extent, so far: commands that ended because of a power cut; chunks that went offline;
    /// operations that failed; sectors that were changed; completions that were lost. `None` for a
    /// slow die and a stalled queue.
    pub count: Option<u64>,
}

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultEnd {
    Failures(Operation),
    SlowDie(PuId),
    /// The stall of every submission queue that this fault stalls.
    Stall,
}

/// Maximum number of faults of a drive.
pub(crate) const FAULTS_MAX: usize = 4096;

/// The faults of a drive since its creation.
#[derive(Debug)]
pub(crate) struct FaultState {
    pub(crate) records: Vec<FaultRecord>,
    /// Ends of faults, each with the index of its record.
    ends: TimerQueue<(FaultEnd, usize)>,
    /// Failures of one operation at an address, each with the index of its record.
    failures: Vec<(usize, InjectedFault)>,
    /// Media operations until the power cut; 0 without one.
    ops_until_cut: u64,
    /// Record of the power cut to come.
    cut: Option<usize>,
}

impl FaultState {
    pub(crate) fn new() -> FaultState {
        FaultState {
            records: Vec::new(),
            ends: TimerQueue::with_capacity(0),
            failures: Vec::new(),
            ops_until_cut: 0,
            cut: None,
        }
    }

    /// Whether the drive never had a fault.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Records a fault. Returns its index.
    pub(crate) fn add(&mut self, at: Nanos, fault: Fault) -> usize {
        self.records.push(FaultRecord { at, fault, is_open: false, count: None });
        self.records.len() - 1
    }

    /// Records the failure of one operation at an address.
    pub(crate) fn add_failure(&mut self, at: Nanos, fault: Fault, failure: InjectedFault) {
        let record = self.add(at, fault);
        self.failures.push((record, failure));
    }

    /// Returns the records, with what has happened in the flash since.
    pub(crate) fn read(&self, nand: Option<&Nand>) -> Vec<FaultRecord> {
        let mut records = self.records.clone();
        let Some(nand) = nand else { return records };
        for (record, failure) in &self.failures {
            let is_open = nand.is_pending(failure);
            records[*record].is_open = is_open;
            records[*record].count = Some(u64::from(!is_open));
        }
        for record in records.iter_mut().filter(|record| record.is_open) {
            if let Fault::OperationFailure { operation, scope: FaultScope::Rate { .. } } =
                record.fault
            {
                record.count = nand.failed_at_rate(operation);
            }
        }
        records
    }

    /// Has a fault end at an instant.
    pub(crate) fn end_at(&mut self, at: Nanos, end: FaultEnd, record: usize) {
        self.ends.push(at, (end, record));
        self.records[record].is_open = true;
    }

    /// Removes and returns an end that is due.
    pub(crate) fn pop_end(&mut self, now: Nanos) -> Option<(Nanos, (FaultEnd, usize))> {
        self.ends.pop_due(now)
    }

    /// Returns the time of the next end; zero if the power cut is due.
    pub(crate) fn next_end(&self) -> Nanos {
        match self.cut {
            Some(_) if self.ops_until_cut == 0 => Nanos::ZERO,
            _ => self.ends.next_at(),
        }
    }

    /// Has the power cut after `ops` more media operations, at least one.
    pub(crate) fn cut_after(&mut self, ops: u64, record: usize) {
        (self.ops_until_cut, self.cut) = (ops, Some(record));
        self.records[record].is_open = true;
    }

    /// Whether a power cut is to come.
    pub(crate) fn has_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Removes and returns the record of the power cut, if it is due.
    pub(crate) fn take_cut(&mut self) -> Option<usize> {
        if self.ops_until_cut > 0 { None } else { self.cut.take() }
    }

    /// Counts a media operation that completed.
    #[inline]
    pub(crate) fn count_op(&mut self, stages: &mut CommandStages) {
        if self.ops_until_cut > 0 {
            self.count_op_until_cut(stages);
        }
    }

    #[cold]
    fn count_op_until_cut(&mut self, stages: &mut CommandStages) {
        self.ops_until_cut -= 1;
        if self.ops_until_cut == 0 {
            stages.set_interrupt(Nanos::ZERO);
        }
    }
}

//! [`KeySource`]: the next operation of a job on keys.
//!
//! A record is the unit of the job: `lba` and `sectors` of a [`NextIo`] are a record and a number of
//! records, and its kind is the direction in which the operation counts.

use rng::Rng;
use time::Nanos;

use crate::io_range::IoRange;
use crate::job::JobSpec;
use crate::key_spec::KeySpec;
use crate::runner::source::{GeneratedIo, IssueDecision, NextIo};
use crate::runner::ycsb_source::YcsbSource;
use crate::ycsb::OperationKind;

/// Operations of a job on keys.
#[derive(Debug)]
pub(crate) struct KeySource {
    clone: u32,
    value_bytes: u64,
    operations: KeyOperations,
    /// YCSB's kind of the operation that [`next`](KeySource::next) returned last.
    drawn: Option<OperationKind>,
    /// YCSB's kind of the operation in each slot of the job; `None` for other operations.
    kinds: Vec<Option<OperationKind>>,
    /// Operations that succeeded, by their kinds.
    pub(crate) counts: [u64; 5],
    /// Operations that did not find their key.
    pub(crate) not_found: u64,
}

#[derive(Debug)]
enum KeyOperations {
    /// By the `rw` of the job, over the bytes of all values.
    Pattern(Box<GeneratedIo>),
    Ycsb(Box<YcsbSource>),
}

impl KeySource {
    /// Returns the source of clone `clone` of a job; it draws from `rng`.
    ///
    /// # Errors
    /// A description of an option that does not fit the records.
    pub(crate) fn new(
        spec: &JobSpec,
        keys: &KeySpec,
        clone: u32,
        area: IoRange,
        rng: &Rng,
    ) -> Result<KeySource, String> {
        Ok(KeySource {
            clone,
            value_bytes: area.unit_bytes,
            operations: KeyOperations::new(spec, keys, clone, area, rng)?,
            drawn: None,
            kinds: Vec::new(),
            counts: [0; 5],
            not_found: 0,
        })
    }

    /// Restarts the source for another loop. Only counts continue.
    pub(super) fn restart(
        &mut self,
        spec: &JobSpec,
        area: IoRange,
        rng: &Rng,
    ) -> Result<(), String> {
        let keys = spec.keys.unwrap_or_default();
        self.operations = KeyOperations::new(spec, &keys, self.clone, area, rng)?;
        Ok(())
    }

    /// Starts the limits of rates at the start of the job.
    pub(super) fn start(&mut self, now: Nanos) {
        match &mut self.operations {
            KeyOperations::Pattern(pattern) => pattern.start(now),
            KeyOperations::Ycsb(ycsb) => ycsb.start(now),
        }
    }

    /// Returns the next operation, or the time at which to call again.
    #[inline(never)]
    pub(super) fn next(&mut self, now: Nanos) -> IssueDecision {
        match &mut self.operations {
            KeyOperations::Pattern(pattern) => match pattern.next(now) {
                IssueDecision::Now(NextIo { kind, lba, sectors }) => {
                    let (lba, sectors) = (lba / self.value_bytes, u32::from(sectors > 0));
                    IssueDecision::Now(NextIo { kind, lba, sectors })
                }
                other => other,
            },
            KeyOperations::Ycsb(ycsb) => {
                let (decision, kind) = ycsb.next(now);
                self.drawn = kind;
                decision
            }
        }
    }

    /// Assigns the operation that [`next`](KeySource::next) returned last to a slot. `chained`: the
    /// slot has the put that follows a delete instead.
    #[inline(never)]
    pub(super) fn assign(&mut self, slot: u32, chained: bool) {
        if let (KeyOperations::Pattern(pattern), true) = (&mut self.operations, chained) {
            // The pattern counts bytes.
            pattern.write_after_trim(self.value_bytes as u32);
        }
        let slot = slot as usize;
        if slot >= self.kinds.len() {
            self.kinds.resize(slot + 1, None);
        }
        self.kinds[slot] = self.drawn.take();
    }

    /// Returns YCSB's kind of the operation in a slot.
    pub(super) fn kind(&self, slot: u32) -> Option<OperationKind> {
        self.kinds.get(slot as usize).copied().flatten()
    }

    /// Counts an operation that succeeded.
    pub(super) fn on_success(&mut self, slot: u32, record: u64) {
        let Some(kind) = self.kind(slot) else { return };
        self.counts[kind as usize] += 1;
        if let (KeyOperations::Ycsb(ycsb), OperationKind::Insert) = (&mut self.operations, kind) {
            ycsb.on_inserted(record);
        }
    }

    /// Returns the issued share of the operations, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        match &self.operations {
            KeyOperations::Pattern(pattern) => pattern.progress(),
            KeyOperations::Ycsb(ycsb) => ycsb.progress(),
        }
    }
}

impl KeyOperations {
    fn new(
        spec: &JobSpec,
        keys: &KeySpec,
        clone: u32,
        area: IoRange,
        rng: &Rng,
    ) -> Result<KeyOperations, String> {
        Ok(match keys.ycsb {
            Some(phase) => {
                KeyOperations::Ycsb(Box::new(YcsbSource::new(spec, keys, phase, clone, rng)?))
            }
            None => {
                let pattern = GeneratedIo::new(spec, area, 1, rng.clone())?;
                KeyOperations::Pattern(Box::new(pattern))
            }
        })
    }
}

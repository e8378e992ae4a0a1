//! [`YcsbSource`]: the operations of a phase of YCSB, at the pace of the job.
//!
//! Clones of a job share the records that exist at the start. Clone `c` of `n` inserts each `n`-th
//! record from `recordcount + c` on, and no clone accesses records that another one inserted. In the
//! load phase the clones divide the records in the same way.

use rng::Rng;
use time::Nanos;

use crate::job::{Direction, JobSpec, Rate};
use crate::key_spec::{KeySpec, YcsbPhase};
use crate::runner::source::{IoKind, IssueDecision, NextIo, RateControl};
use crate::ycsb::{OperationKind, Ycsb, YcsbOperation};

/// Operations of a phase of YCSB.
#[derive(Debug)]
pub(super) struct YcsbSource {
    /// `None` in the load phase.
    generator: Option<Box<Ycsb>>,
    record_count: u64,
    clone: u64,
    clones: u64,
    value_bytes: u64,
    /// Maximum number of operations.
    operations_max: u64,
    issued: u64,
    /// Issued bytes per direction, for the limits of rates.
    issued_bytes: [u64; 3],
    /// Whether the rate of a direction is a number of operations.
    limits_operations: [bool; 3],
    /// Operation already drawn that is not yet due.
    drawn: Option<YcsbOperation>,
    fsync: u64,
    writes_since_sync: u64,
    rate_control: Option<Box<RateControl>>,
    rng: Rng,
}

/// Returns the direction in which an operation counts.
fn direction(kind: OperationKind) -> Direction {
    match kind {
        OperationKind::Read | OperationKind::Scan => Direction::Read,
        OperationKind::Update | OperationKind::Insert | OperationKind::ReadModifyWrite => {
            Direction::Write
        }
    }
}

impl YcsbSource {
    /// Returns the operations of clone `clone`.
    ///
    /// # Errors
    /// A description, if there are no records.
    pub(super) fn new(
        spec: &JobSpec,
        keys: &KeySpec,
        phase: YcsbPhase,
        clone: u32,
        rng: &Rng,
    ) -> Result<YcsbSource, String> {
        let (clone, clones) = (u64::from(clone), u64::from(spec.numjobs.max(1)));
        let (generator, operations_max) = match phase.mix() {
            None => (None, keys.record_count.saturating_sub(clone).div_ceil(clones)),
            Some(mix) => {
                let generator = Ycsb::new(mix, keys.record_count, rng.fork(1));
                let generator = generator.ok_or("`ycsb` needs a `recordcount`")?;
                let operations = match keys.operation_count {
                    Some(operations) if !spec.schedule.time_based => operations,
                    _ => u64::MAX,
                };
                (Some(Box::new(generator)), operations)
            }
        };
        Ok(YcsbSource {
            generator,
            record_count: keys.record_count,
            clone,
            clones,
            value_bytes: spec.value_bytes(),
            operations_max,
            issued: 0,
            issued_bytes: [0; 3],
            limits_operations: spec.pace.rate.map(|rate| matches!(rate, Rate::Iops(_))),
            drawn: None,
            fsync: spec.integrity.fsync,
            writes_since_sync: 0,
            rate_control: RateControl::new(spec),
            rng: rng.fork(2),
        })
    }

    /// Starts the limits of rates at the start of the job.
    pub(super) fn start(&mut self, now: Nanos) {
        if let Some(pace) = &mut self.rate_control {
            pace.start = now;
        }
    }

    /// Returns the next operation with its kind, or the time at which to call again.
    pub(super) fn next(&mut self, now: Nanos) -> (IssueDecision, Option<OperationKind>) {
        if self.fsync > 0 && self.writes_since_sync >= self.fsync {
            self.writes_since_sync = 0;
            let sync = NextIo { kind: IoKind::Flush, lba: 0, sectors: 0 };
            return (IssueDecision::Now(sync), None);
        }
        if self.issued >= self.operations_max {
            return (IssueDecision::End, None);
        }
        let operation = self.drawn.take().unwrap_or_else(|| self.draw());
        let direction = direction(operation.kind);
        if let Some(pace) = &self.rate_control {
            let due = pace.due_time(direction, self.issued_bytes[direction as usize]);
            if due > now {
                self.drawn = Some(operation);
                return (IssueDecision::WaitUntil(due), None);
            }
        }
        self.on_issue(direction, operation.count);
        let kind = IoKind::Transfer(direction);
        let lba = self.record(operation.record);
        let next = NextIo { kind, lba, sectors: operation.count };
        (IssueDecision::Now(next), Some(operation.kind))
    }

    fn draw(&mut self) -> YcsbOperation {
        match &mut self.generator {
            Some(generator) => generator.next_operation(),
            None => {
                let record = self.clone + self.issued * self.clones;
                YcsbOperation { kind: OperationKind::Insert, record, count: 1 }
            }
        }
    }

    fn on_issue(&mut self, direction: Direction, records: u32) {
        self.issued += 1;
        self.writes_since_sync += u64::from(direction == Direction::Write);
        let records = if self.limits_operations[direction as usize] { 1 } else { records };
        let bytes = u64::from(records) * self.value_bytes;
        self.issued_bytes[direction as usize] += bytes;
        if let Some(pace) = &mut self.rate_control {
            pace.on_issue(direction, bytes, &mut self.rng);
        }
    }

    /// Returns the record that the generator of this clone calls `own`.
    fn record(&self, own: u64) -> u64 {
        match own.checked_sub(self.record_count) {
            Some(inserted) => {
                let after = inserted.saturating_mul(self.clones).saturating_add(self.clone);
                self.record_count.saturating_add(after)
            }
            None => own,
        }
    }

    /// Reports that an inserted record exists.
    pub(super) fn on_inserted(&mut self, record: u64) {
        let after = record.saturating_sub(self.record_count + self.clone);
        if let Some(generator) = &mut self.generator {
            generator.on_inserted(self.record_count + after / self.clones);
        }
    }

    /// Returns the issued share of the operations, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        (self.issued as f64 / self.operations_max as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn sources(options: &[(&str, &str)]) -> Vec<YcsbSource> {
        let pairs = options.iter().map(|(key, value)| (*key, *value, 1));
        let (spec, _) = JobSpec::from_pairs("j", Path::new("t"), pairs).unwrap();
        let keys = spec.keys.unwrap();
        (0..spec.numjobs)
            .map(|clone| {
                let rng = Rng::new(3).fork(u64::from(clone));
                YcsbSource::new(&spec, &keys, keys.ycsb.unwrap(), clone, &rng).unwrap()
            })
            .collect()
    }

    #[test]
    fn clones_divide_the_records_of_the_load_phase() {
        let mut loaded = BTreeSet::new();
        for mut source in sources(&[("ycsb", "load"), ("recordcount", "11"), ("numjobs", "3")]) {
            while let (IssueDecision::Now(next), kind) = source.next(Nanos::ZERO) {
                assert_eq!(kind, Some(OperationKind::Insert));
                assert!(loaded.insert(next.lba), "record {} is loaded once", next.lba);
            }
            assert!((source.progress() - 1.0).abs() < 1e-9);
        }
        assert_eq!(loaded, (0..11).collect());
    }

    #[test]
    fn a_clone_accesses_no_records_that_another_inserted() {
        let options =
            [("ycsb", "d"), ("recordcount", "10"), ("operationcount", "2000"), ("numjobs", "2")];
        for (clone, mut source) in (0..).zip(sources(&options)) {
            let (mut inserts, mut newest) = (0u64, 0);
            while let (IssueDecision::Now(next), Some(kind)) = source.next(Nanos::ZERO) {
                if kind == OperationKind::Insert {
                    assert_eq!(next.lba, 10 + 2 * inserts + clone);
                    inserts += 1;
                    source.on_inserted(next.lba);
                } else if next.lba >= 10 {
                    assert_eq!(next.lba % 2, clone % 2, "clone {clone}: {}", next.lba);
                    assert!(next.lba < 10 + 2 * inserts + clone);
                    newest += 1;
                }
            }
            assert!(inserts > 50 && newest > 1000, "{inserts} {newest}");
        }
    }

    #[test]
    fn a_rate_of_operations_counts_a_scan_as_one() {
        let options = [
            ("ycsb", "e"),
            ("recordcount", "10"),
            ("operationcount", "100"),
            ("rate_iops", "1000"),
        ];
        let mut source = sources(&options).remove(0);
        source.start(Nanos::ZERO);
        let (mut now, mut issued) = (Nanos::ZERO, [0u64; 2]);
        loop {
            match source.next(now) {
                (IssueDecision::Now(next), _) => {
                    issued[usize::from(next.kind == IoKind::Transfer(Direction::Write))] += 1;
                }
                (IssueDecision::WaitUntil(due), _) => now = due,
                (IssueDecision::End | IssueDecision::WaitForCompletion, _) => break,
            }
        }
        assert_eq!(issued[0] + issued[1], 100);
        // The last of n operations is due after n - 1 intervals of a millisecond.
        assert_eq!(now, Nanos::from_millis(issued[0] - 1));
    }
}

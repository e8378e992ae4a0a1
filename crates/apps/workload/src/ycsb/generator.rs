//! [`Ycsb`]: generator of the operations of a workload.

use std::collections::BTreeSet;

use rng::{Rng, Zipf};

use super::mix::{Mix, Popularity};
use super::record::fnv64;

/// Exponent of the popularity (YCSB's `zipfian constant`).
const THETA: f64 = 0.99;
/// Number of ranks that YCSB scrambles, for any number of records. Thus the popularity of a record
/// does not change when records are inserted.
const SCRAMBLED_RANKS: u64 = 10_000_000_000;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    /// Reads a record.
    Read,
    /// Writes an existing record.
    Update,
    /// Writes a new record.
    Insert,
    /// Reads records in the order of their keys.
    Scan,
    /// Reads a record and then writes it.
    ReadModifyWrite,
}

impl OperationKind {
    /// All kinds.
    pub const ALL: [OperationKind; 5] = [
        OperationKind::Read,
        OperationKind::Update,
        OperationKind::Insert,
        OperationKind::Scan,
        OperationKind::ReadModifyWrite,
    ];

    /// Returns the name of the kind in results.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Read => "read",
            OperationKind::Update => "update",
            OperationKind::Insert => "insert",
            OperationKind::Scan => "scan",
            OperationKind::ReadModifyWrite => "read-modify-write",
        }
    }
}

/// An operation of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YcsbOperation {
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Index of the record, or of the first record of a scan.
    pub record: u64,
    /// Number of records of a scan; 1 otherwise.
    pub count: u32,
}

/// Generates the operations of a workload. The caller executes them and reports inserted records
/// ([`on_inserted`](Ycsb::on_inserted)); operations refer only to records that exist.
#[derive(Clone, Debug)]
pub struct Ycsb {
    mix: Mix,
    /// All records with a smaller index exist.
    contiguous_records: u64,
    /// Index of the next record to insert.
    next_record: u64,
    /// Records that exist although one before them does not.
    inserted_ahead: BTreeSet<u64>,
    scrambled: Zipf,
    latest: Zipf,
    rng: Rng,
}

impl Ycsb {
    /// Returns a generator over `records` existing records, or `None` if `records` is zero.
    pub fn new(mix: Mix, records: u64, rng: Rng) -> Option<Ycsb> {
        Some(Ycsb {
            mix,
            contiguous_records: records,
            next_record: records,
            inserted_ahead: BTreeSet::new(),
            scrambled: Zipf::new(SCRAMBLED_RANKS, THETA)?,
            latest: Zipf::new(records, THETA)?,
            rng,
        })
    }

    /// Returns the number of contiguous records that exist, from index 0 on.
    pub fn records(&self) -> u64 {
        self.contiguous_records
    }

    /// Reports that an inserted record exists.
    pub fn on_inserted(&mut self, record: u64) {
        self.inserted_ahead.insert(record);
        let before = self.contiguous_records;
        while self.inserted_ahead.remove(&self.contiguous_records) {
            self.contiguous_records += 1;
        }
        if self.contiguous_records > before
            && let Some(zipf) = Zipf::new(self.contiguous_records, THETA)
        {
            self.latest = zipf;
        }
    }

    fn record(&mut self) -> u64 {
        match self.mix.popularity {
            Popularity::Uniform => self.rng.below(self.contiguous_records),
            Popularity::Zipfian => {
                fnv64(self.scrambled.sample(&mut self.rng)) % self.contiguous_records
            }
            Popularity::Latest => self.contiguous_records - 1 - self.latest.sample(&mut self.rng),
        }
    }

    /// Returns the next operation.
    pub fn next_operation(&mut self) -> YcsbOperation {
        let Mix { read, update, insert, scan, .. } = self.mix;
        let mut at = self.rng.f64();
        for (share, kind) in [
            (read, OperationKind::Read),
            (update, OperationKind::Update),
            (insert, OperationKind::Insert),
            (scan, OperationKind::Scan),
        ] {
            if at < share {
                return self.operation(kind);
            }
            at -= share;
        }
        // Rounding errors of the shares select the last kind that has a share.
        let last = if self.mix.read_modify_write > 0.0 {
            OperationKind::ReadModifyWrite
        } else if read > 0.0 {
            OperationKind::Read
        } else {
            OperationKind::Scan
        };
        self.operation(last)
    }

    fn operation(&mut self, kind: OperationKind) -> YcsbOperation {
        match kind {
            OperationKind::Insert => {
                self.next_record += 1;
                YcsbOperation { kind, record: self.next_record - 1, count: 1 }
            }
            OperationKind::Scan => {
                let record = self.record();
                let count = 1 + self.rng.below(self.mix.scan_records_max.max(1).into()) as u32;
                YcsbOperation { kind, record, count }
            }
            _ => YcsbOperation { kind, record: self.record(), count: 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::YcsbWorkload;
    use std::collections::BTreeMap;

    const DRAWS: u32 = 200_000;

    fn draws(workload: YcsbWorkload, records: u64) -> Vec<YcsbOperation> {
        let mut ycsb = Ycsb::new(workload.mix(), records, Rng::new(7)).unwrap();
        (0..DRAWS)
            .map(|_| {
                let operation = ycsb.next_operation();
                if operation.kind == OperationKind::Insert {
                    ycsb.on_inserted(operation.record);
                }
                operation
            })
            .collect()
    }

    #[test]
    fn shares_are_those_of_the_mix() {
        for workload in YcsbWorkload::ALL {
            let mix = workload.mix();
            let drawn = draws(workload, 1000);
            let shares = [mix.read, mix.update, mix.insert, mix.scan, mix.read_modify_write];
            for (kind, share) in OperationKind::ALL.into_iter().zip(shares) {
                let count = drawn.iter().filter(|o| o.kind == kind).count() as f64;
                let expected = f64::from(DRAWS) * share;
                let sigma = (expected * (1.0 - share)).sqrt();
                assert!((count - expected).abs() <= 5.0 * sigma, "{workload} {}", kind.name());
            }
        }
    }

    #[test]
    fn scrambled_zipfian_has_the_published_skew_wherever_records_are() {
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        for operation in draws(YcsbWorkload::C, 1000) {
            *counts.entry(operation.record).or_default() += 1;
        }
        // Rank r of 10^10 has a share of 1 / (r + 1)^0.99 of zeta(10^10, 0.99) = 26.469, as in
        // YCSB. Other ranks that map to this record add a thousandth each.
        let top = f64::from(counts[&(fnv64(0) % 1000)]) / f64::from(DRAWS);
        assert!((top - 1.0 / 26.469 - 0.001).abs() < 0.003, "{top}");
        let mut by_count: Vec<(u32, u64)> = counts.iter().map(|(r, n)| (*n, *r)).collect();
        by_count.sort_unstable_by(|a, b| b.cmp(a));
        let popular: Vec<u64> = by_count[..10].iter().map(|(_, record)| *record).collect();
        assert!(popular.iter().any(|r| *r < 500) && popular.iter().any(|r| *r >= 500));
        assert!(counts.len() > 990, "and everybody is asked for: {}", counts.len());
    }

    #[test]
    fn the_latest_are_the_most_popular_and_only_what_is_there_is_asked_for() {
        let mut ycsb = Ycsb::new(YcsbWorkload::D.mix(), 100, Rng::new(3)).unwrap();
        let (mut newest, mut old, mut pending) = (0, 0, Vec::new());
        for _ in 0..50_000 {
            let operation = ycsb.next_operation();
            match operation.kind {
                OperationKind::Insert => pending.push(operation.record),
                _ => {
                    assert!(operation.record < ycsb.records());
                    let age = ycsb.records() - operation.record;
                    newest += u32::from(age <= 10);
                    old += u32::from(age > ycsb.records() / 2);
                }
            }
            // The inserts complete late and out of order.
            if pending.len() == 5 {
                pending.drain(..).rev().for_each(|record| ycsb.on_inserted(record));
            }
        }
        assert!(newest > 2 * old, "{newest} {old}");
        assert!(ycsb.records() > 2000);
    }

    #[test]
    fn scans_have_one_to_a_hundred_records() {
        let counts: Vec<u32> = draws(YcsbWorkload::E, 1000)
            .iter()
            .filter(|o| o.kind == OperationKind::Scan)
            .map(|o| o.count)
            .collect();
        assert_eq!((counts.iter().min(), counts.iter().max()), (Some(&1), Some(&100)));
        let mean = counts.iter().map(|n| f64::from(*n)).sum::<f64>() / counts.len() as f64;
        assert!((mean - 50.5).abs() < 0.5, "{mean}");
    }

    #[test]
    fn the_same_seed_asks_the_same() {
        assert_eq!(draws(YcsbWorkload::A, 500), draws(YcsbWorkload::A, 500));
        let uniform = Mix { popularity: Popularity::Uniform, ..YcsbWorkload::C.mix() };
        let mut ycsb = Ycsb::new(uniform, 10, Rng::new(1)).unwrap();
        let counts = (0..10_000).fold([0u32; 10], |mut counts, _| {
            counts[ycsb.next_operation().record as usize] += 1;
            counts
        });
        assert!(counts.iter().all(|n| n.abs_diff(1000) < 150), "{counts:?}");
        assert!(Ycsb::new(uniform, 0, Rng::new(1)).is_none());
    }
}

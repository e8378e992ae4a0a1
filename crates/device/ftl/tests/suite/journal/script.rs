//! [`Script`]: a deterministic owner of a journal, on a small flash of two parallel units.

use ftl::FlashGeometry;
use ftl::journal::{Journal, JournalConfig, Recovered};
use nvme::ChunkId;
use time::Nanos;

use super::flash::{TestFlash, shape};
use super::format::Content;
use super::model::Model;

pub(crate) const CONFIG: JournalConfig =
    JournalConfig { owner: 7, snapshot_bytes: 1_500, record_bytes: 3_000 };

pub(crate) fn flat() -> FlashGeometry {
    shape(2, 8, 6, 1, 2)
}

/// Four chunks on each of two parallel units.
pub(crate) const CHUNKS: [u32; 8] = [0, 1, 2, 3, 8, 9, 10, 11];

/// A journal and its owner, which writes `rounds` snapshots, each with some records behind it.
pub(crate) struct Script {
    pub(crate) flash: TestFlash,
    pub(crate) journal: Journal,
    pub(crate) model: Model,
}

impl Script {
    /// Creates the owner. With an odd seed, completions are reported in any order.
    pub(crate) fn new(seed: u64) -> Script {
        let mut flash = TestFlash::new(flat(), &CHUNKS, seed);
        if seed % 2 == 1 {
            flash.reorder(seed);
        }
        let journal = Journal::create(&flat(), CONFIG, &CHUNKS.map(ChunkId)).unwrap();
        Script { flash, journal, model: Model::default() }
    }

    pub(crate) fn record_durable(&mut self) {
        self.model.durable = self.journal.durable().0 as usize;
    }

    pub(crate) fn append(&mut self, i: usize) {
        let record = vec![i as u8; i * 37 % 200];
        self.journal.append(&record).unwrap();
        self.model.append(&record);
    }

    pub(crate) fn snapshot(&mut self, i: usize) {
        let bytes = vec![i as u8; 400 + 100 * i % 900];
        self.journal.snapshot(bytes.clone()).unwrap();
        self.model.snapshot(&bytes);
    }

    /// Runs until `events` operations have completed, or to the end. Returns whether it reached the
    /// end.
    pub(crate) fn run(&mut self, rounds: usize, mut events: u64) -> bool {
        for round in 0..rounds {
            for i in 0..15 {
                self.append(round * 15 + i);
                if i % 4 == 0 {
                    self.journal.flush();
                }
                self.journal.kick(Nanos(0), &mut self.flash);
                self.record_durable();
                if i % 3 == 0 {
                    if events == 0 {
                        return false;
                    }
                    events -= u64::from(self.flash.step(&mut self.journal));
                    self.record_durable();
                }
            }
            self.journal.flush();
            // The journal's first generation may not be complete yet.
            for begun in [false, true] {
                if begun {
                    self.snapshot(round);
                    self.journal.kick(Nanos(0), &mut self.flash);
                }
                while self.journal.is_snapshot_in_progress() {
                    if events == 0 {
                        return false;
                    }
                    events -= 1;
                    assert!(self.flash.step(&mut self.journal));
                    self.record_durable();
                }
            }
        }
        self.append(99);
        self.journal.flush();
        self.flash.settle(&mut self.journal);
        self.record_durable();
        assert_eq!(self.model.durable, self.model.len());
        true
    }

    pub(crate) fn recover(&mut self) -> (Content, Recovered) {
        let mut recovered = self.flash.recover(CONFIG).unwrap();
        let (snapshot, records) =
            (recovered.snapshot.take(), std::mem::take(&mut recovered.records));
        (Content { snapshot, records }, recovered)
    }
}

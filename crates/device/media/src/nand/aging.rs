//! [`Aging`]: the effect of retention and read disturb on written data [LightNVM17 §2.2].
//!
//! Charge leaks from cells \[Retention15\], and every read of a block disturbs the cells of its
//! other pages \[Disturb15\]. Both raise the raw bit error rate. The model adds the base rate once
//! per [`retention`](crate::ErrorModel::retention) and once per
//! [`disturb_reads`](crate::ErrorModel::disturb_reads), until the chunk is rewritten.
//!
//! Chunks age only while power is on: data found at power-on ages as if it had been written then.

use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::{ChunkId, ErrorModel};

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct ChunkAge {
    written_at: Nanos,
    reads: u32,
}

/// The age of every chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Aging {
    retention: Nanos,
    disturb_reads: u32,
    now: Nanos,
    chunks: Box<[ChunkAge]>,
}

impl Aging {
    /// Creates the state; `None` for a medium that does not age.
    pub(super) fn new(errors: &ErrorModel, chunks: usize) -> Option<Aging> {
        let &ErrorModel { retention, disturb_reads, .. } = errors;
        (retention > Nanos::ZERO || disturb_reads > 0).then(|| Aging {
            retention,
            disturb_reads,
            now: Nanos::ZERO,
            chunks: vec![ChunkAge::default(); chunks].into(),
        })
    }

    /// Advances the time, which never goes back.
    pub(super) fn set_time(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// Records the write of a chunk's first unit.
    pub(super) fn on_chunk_written(&mut self, chunk: ChunkId) {
        self.chunks[chunk.0 as usize] = ChunkAge { written_at: self.now, reads: 0 };
    }

    /// Records the read of a sector of a chunk.
    pub(super) fn on_read(&mut self, chunk: ChunkId) {
        let reads = &mut self.chunks[chunk.0 as usize].reads;
        *reads = reads.saturating_add(1);
    }

    /// Returns the bit error factor relative to freshly written data.
    pub(super) fn rber_factor(&self, chunk: ChunkId) -> f64 {
        let ChunkAge { written_at: since, reads } = self.chunks[chunk.0 as usize];
        let times = |what: f64, unit: f64| if unit > 0.0 { what / unit } else { 0.0 };
        let age = self.now.since(since).as_secs_f64();
        1.0 + times(age, self.retention.as_secs_f64())
            + times(f64::from(reads), f64::from(self.disturb_reads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_reads_add_up_until_the_chunk_is_written_anew() {
        let model = |retention, disturb_reads| ErrorModel {
            retention,
            disturb_reads,
            ..ErrorModel::default()
        };
        assert!(Aging::new(&model(Nanos::ZERO, 0), 2).is_none());
        let mut ageing = Aging::new(&model(Nanos::from_secs(10), 4), 2).unwrap();
        let (a, b) = (ChunkId(0), ChunkId(1));
        ageing.set_time(Nanos::from_secs(5));
        ageing.on_chunk_written(b);
        ageing.set_time(Nanos::from_secs(15));
        ageing.set_time(Nanos::from_secs(1));
        (0..6).for_each(|_| ageing.on_read(a));
        assert_eq!((ageing.rber_factor(a), ageing.rber_factor(b)), (1.0 + 1.5 + 1.5, 2.0));
        ageing.on_chunk_written(a);
        assert_eq!(ageing.rber_factor(a), 1.0);
        let mut quiet = Aging::new(&model(Nanos::ZERO, 4), 1).unwrap();
        quiet.set_time(Nanos::from_secs(1_000));
        assert_eq!(quiet.rber_factor(a), 1.0, "only reads count");
    }
}

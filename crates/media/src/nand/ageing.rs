//! [`Ageing`]: what time and reading do to what is written (LightNVM paper section 2.2: retention, read
//! disturb).
//!
//! Charge leaks from cells (Cai et al., "Data retention in MLC NAND flash memory", HPCA 2015), and every
//! read of a block adds a little to the cells of its other pages (Cai et al., "Read disturb errors in
//! MLC NAND flash memory", DSN 2015). Both raise the raw bit error rate; here each adds the rate that
//! there is without, once per [`retention`](crate::ErrorModel::retention) and per
//! [`disturb_reads`](crate::ErrorModel::disturb_reads), until the chunk is written anew.
//!
//! Chunks age while power is on: what is found written at power-on is as if it had been written then.

use clock::Nanos;

use crate::{ChunkId, ErrorModel};

#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    since: Nanos,
    reads: u32,
}

/// The age of every chunk.
#[derive(Clone, Debug)]
pub(super) struct Ageing {
    retention: Nanos,
    disturb_reads: u32,
    now: Nanos,
    chunks: Box<[Chunk]>,
}

impl Ageing {
    /// `None` for a medium that does not age.
    pub(super) fn of(errors: &ErrorModel, chunks: usize) -> Option<Ageing> {
        let &ErrorModel { retention, disturb_reads, .. } = errors;
        (retention > Nanos::ZERO || disturb_reads > 0).then(|| Ageing {
            retention,
            disturb_reads,
            now: Nanos::ZERO,
            chunks: vec![Chunk::default(); chunks].into(),
        })
    }

    /// Time has come so far; it never goes back.
    pub(super) fn tell_time(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// The first unit of a chunk is written.
    pub(super) fn written(&mut self, chunk: ChunkId) {
        self.chunks[chunk.0 as usize] = Chunk { since: self.now, reads: 0 };
    }

    /// A sector of a chunk is read.
    pub(super) fn read(&mut self, chunk: ChunkId) {
        let reads = &mut self.chunks[chunk.0 as usize].reads;
        *reads = reads.saturating_add(1);
    }

    /// How many times as many bit errors there are as in data written just now.
    pub(super) fn factor(&self, chunk: ChunkId) -> f64 {
        let Chunk { since, reads } = self.chunks[chunk.0 as usize];
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
        assert!(Ageing::of(&model(Nanos::ZERO, 0), 2).is_none());
        let mut ageing = Ageing::of(&model(Nanos::from_secs(10), 4), 2).unwrap();
        let (a, b) = (ChunkId(0), ChunkId(1));
        ageing.tell_time(Nanos::from_secs(5));
        ageing.written(b);
        ageing.tell_time(Nanos::from_secs(15));
        ageing.tell_time(Nanos::from_secs(1));
        (0..6).for_each(|_| ageing.read(a));
        assert_eq!((ageing.factor(a), ageing.factor(b)), (1.0 + 1.5 + 1.5, 2.0));
        ageing.written(a);
        assert_eq!(ageing.factor(a), 1.0);
        let mut quiet = Ageing::of(&model(Nanos::ZERO, 4), 1).unwrap();
        quiet.tell_time(Nanos::from_secs(1_000));
        assert_eq!(quiet.factor(a), 1.0, "only reads count");
    }
}

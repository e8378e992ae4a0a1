//! Writes in batches against the same writes one by one.

use crate::common;

use common::{TestFlash, check, geometry};
use ftl::{BatchWrite, ChunkReport, FlashGeometry, Ftl, FtlConfig, RateLimiterKind};
use nvme::Status;
use rng::Rng;
use time::Nanos;

const NOW: Nanos = Nanos(0);
/// Bits of a tag that hold the status of its completion, for the comparison.
const REFUSED: u64 = 1 << 40;

/// An FTL that takes writes, and the flash operations that it has issued for them.
struct Written {
    ftl: Ftl,
    flash: TestFlash,
    completed: u64,
    refused: Vec<u64>,
}

impl Written {
    fn new(config: FtlConfig) -> Written {
        let shape = FlashGeometry::from_geometry(&geometry(2, 2, 40, 32, 4, 0));
        let ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
        let flash = TestFlash::new(shape, false, ftl.slots(), 3);
        Written { ftl, flash, completed: 0, refused: Vec::new() }
    }

    /// Writes a batch, as one or one by one, and completes it.
    fn write(&mut self, batch: &[BatchWrite], at_once: bool) {
        if at_once {
            self.ftl.write_batch(batch);
        } else {
            for write in batch {
                self.ftl.write(write.tag, write.slba, write.sectors, false);
            }
        }
        self.ftl.kick(NOW, &mut self.flash);
        let until = self.completed + batch.len() as u64;
        loop {
            self.completed += u64::from(self.ftl.take_batch_completions());
            while let Some(done) = self.ftl.pop_completion() {
                self.completed += 1;
                if !done.status.is_success() {
                    assert!(done.status.is(Status::LBA_OUT_OF_RANGE), "{}", done.status);
                    self.refused.push(done.tag);
                }
            }
            if self.completed >= until {
                break;
            }
            self.flash.step(&mut self.ftl);
        }
        assert_eq!(self.completed, until);
        self.flash.settle(&mut self.ftl);
        check(&self.ftl);
    }
}

#[test]
fn a_batch_does_what_its_writes_do_one_by_one() {
    let config = FtlConfig { over_provisioning: 0.3, ..FtlConfig::default() };
    let configs = [
        config,
        FtlConfig { rate_limiter: RateLimiterKind::PID, ..config },
        FtlConfig { hot_cold: false, checkpoint_sectors: 300, ..config },
    ];
    for config in configs {
        let (mut one_by_one, mut at_once) = (Written::new(config), Written::new(config));
        let (sectors, mut rng) = (one_by_one.ftl.sectors(), Rng::new(11));
        let mut tag = 0;
        let mut written = 0;
        while written < 4 * sectors {
            let mut batch = Vec::new();
            // Many batches are larger than the write buffer.
            for _ in 0..=rng.below(200) {
                let length = 1 + rng.below(9);
                let slba = rng.below(sectors - length + 1);
                tag += 1;
                batch.push(BatchWrite { tag, slba, sectors: length as u32 });
                written += length;
            }
            if rng.below(4) == 0 {
                tag += 1;
                batch.push(BatchWrite { tag: tag | REFUSED, slba: sectors, sectors: 1 });
            }
            one_by_one.write(&batch, false);
            at_once.write(&batch, true);
            let hashes = [&one_by_one, &at_once].map(|w| format!("{:?}", w.flash.calls));
            assert_eq!(hashes[0], hashes[1], "after write {tag}");
        }
        assert_eq!(one_by_one.ftl.stats(), at_once.ftl.stats());
        assert!(one_by_one.ftl.stats().lines_reclaimed > 20, "garbage collection is at work");
        assert!(at_once.refused.iter().all(|tag| tag & REFUSED != 0));
        assert!(at_once.refused.len() > 3);
        assert_eq!(one_by_one.refused, at_once.refused);
        for lba in 0..sectors {
            assert_eq!(one_by_one.ftl.location(lba), at_once.ftl.location(lba));
        }
    }
}

#[test]
fn requests_behind_a_batch_are_admitted_after_it() {
    let mut written = Written::new(FtlConfig { over_provisioning: 0.3, ..FtlConfig::default() });
    let batch =
        [BatchWrite { tag: 1, slba: 0, sectors: 4 }, BatchWrite { tag: 2, slba: 4, sectors: 4 }];
    written.ftl.write_batch(&batch);
    written.ftl.trim(3, 0, 8);
    assert!(!written.ftl.is_idle());
    written.ftl.kick(NOW, &mut written.flash);
    written.flash.settle(&mut written.ftl);
    let done: Vec<u64> =
        std::iter::from_fn(|| written.ftl.pop_completion()).map(|c| c.tag).collect();
    assert_eq!((written.ftl.take_batch_completions(), done), (0, vec![1, 2, 3]));
    assert_eq!((written.ftl.stats().host_writes, written.ftl.mapped()), (8, 0));
}

//! [`Bench`]: an FTL over a [`TestFlash`], one request at a time.

use ftl::{ChunkReport, FlashGeometry, Ftl, FtlConfig};
use nvme::Status;
use time::Nanos;

use super::TestFlash;

/// An FTL and its flash. Each request completes before the next one is submitted.
pub struct Bench {
    pub ftl: Ftl,
    pub flash: TestFlash,
    pub tag: u64,
}

impl Bench {
    pub fn new(shape: FlashGeometry, config: FtlConfig, keeps: bool, seed: u64) -> Bench {
        let ftl =
            Ftl::new(shape, config, |_| ChunkReport::Free).expect("the geometry is large enough");
        let flash = TestFlash::new(shape, keeps, ftl.slots(), seed);
        Bench { ftl, flash, tag: 0 }
    }

    pub fn wait(&mut self) -> Status {
        for _ in 0..200_000 {
            while let Some(done) = self.ftl.pop_completion() {
                if done.tag == self.tag {
                    return done.status;
                }
            }
            self.flash.step(&mut self.ftl);
        }
        panic!("request {} does not complete: {}", self.tag, self.ftl.debug_state());
    }

    pub fn write(&mut self, lba: u64, values: &[u64]) -> Status {
        self.tag += 1;
        self.flash.requests.insert(self.tag, values.to_vec());
        self.ftl.write(self.tag, lba, values.len() as u32, false);
        self.ftl.kick(Nanos(0), &mut self.flash);
        let status = self.wait();
        self.flash.requests.remove(&self.tag);
        status
    }

    pub fn flush(&mut self) -> Status {
        self.tag += 1;
        self.ftl.flush(Nanos(0), self.tag, &mut self.flash);
        self.wait()
    }

    pub fn trim(&mut self, lba: u64, sectors: u32) -> Status {
        self.tag += 1;
        self.ftl.trim(self.tag, lba, sectors);
        self.ftl.kick(Nanos(0), &mut self.flash);
        self.wait()
    }

    pub fn read(&mut self, lba: u64) -> Option<u64> {
        self.tag += 1;
        self.flash.requests.insert(self.tag, vec![u64::MAX]);
        self.ftl.read(Nanos(0), self.tag, lba, 1, &mut self.flash);
        let status = self.wait();
        assert!(status.is_success() || status.is(Status::UNRECOVERED_READ), "{status}");
        let values = self.flash.requests.remove(&self.tag).unwrap();
        status.is_success().then(|| values[0])
    }

    pub fn settle(&mut self) {
        self.flash.settle(&mut self.ftl);
        while self.ftl.pop_completion().is_some() {}
    }

    pub fn chunks(&self) -> u32 {
        self.flash.geometry.total_chunks()
    }
}

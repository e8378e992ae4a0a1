//! [`TestBus`]: the bus of a modeled controller with registers.
#![allow(unreachable_pub, reason = "a module of a test binary")]

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use event::Waker;
use mem::{DmaMapper, DmaReach, Iova, SharedRegion};
use transport::{ControllerOwnership, DmaBus};

/// A bus that records its mappings. The test requests the release of the controller, or removes it.
#[derive(Debug, Default)]
pub struct TestBus {
    pub vectors: u16,
    pub mapped: Mutex<Vec<(Iova, usize)>>,
    /// Maximum number of regions that can be mapped.
    pub regions_max: AtomicUsize,
    pub connected: Mutex<Vec<u16>>,
    pub release_requested: AtomicBool,
    pub removed: AtomicBool,
    pub asked: AtomicUsize,
}

impl DmaMapper for TestBus {
    fn map(&self, at: Iova, region: &SharedRegion) -> io::Result<DmaReach> {
        let mut mapped = self.mapped.lock().unwrap();
        if mapped.len() >= self.regions_max.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let (pointer, bytes) = region.whole_pages();
        assert!(bytes >= region.len() && bytes.is_multiple_of(4096) && at.0.is_multiple_of(4096));
        assert!(pointer.addr().is_multiple_of(4096));
        mapped.push((at, bytes));
        Ok(DmaReach::Contiguous)
    }
}

impl DmaBus for TestBus {
    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn bind_vector(&self, vector: u16, _: &Waker) -> io::Result<()> {
        self.connected.lock().unwrap().push(vector);
        Ok(())
    }

    fn ownership(&self) -> ControllerOwnership {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match (self.removed.load(Ordering::Relaxed), self.release_requested.load(Ordering::Relaxed))
        {
            (true, _) => ControllerOwnership::Lost,
            (_, true) => ControllerOwnership::ReleaseRequested,
            _ => ControllerOwnership::Owned,
        }
    }
}

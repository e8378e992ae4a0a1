//! A log over a device in memory. Power can fail at any store, persist or request.

use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Completion, Limits, Op, Payload, QueueFull, Request};
use mem::{AddressSpace, Iova, PersistentMemory};
use nvme::Status;
use rng::Rng;
use testkit::volatile_device::VolatileDevice;
use time::{Component, Nanos};
use write_log::{
    LogIdentity, LogMemory, MemoryRemoved, WriteLog, WriteLogConfig, WriteLogError, WriteLogOpening,
};

pub(crate) const SECTOR: usize = 512;
pub(crate) const IDENTITY: LogIdentity = LogIdentity([7; 16]);

/// The number of operations until power fails, and whether the device fails changes. Device and
/// memory share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fuse {
    operations: Rc<Cell<Option<u64>>>,
    is_failing: Rc<Cell<bool>>,
    is_removed: Rc<Cell<bool>>,
    /// Whether the device loses its power at its next poll, while the host runs.
    is_cut: Rc<Cell<bool>>,
}

impl Fuse {
    pub(crate) fn set(&self, operations: Option<u64>) {
        self.operations.set(operations);
    }

    pub(crate) fn set_failing(&self, is_failing: bool) {
        self.is_failing.set(is_failing);
    }

    /// Removes the memory.
    pub(crate) fn remove(&self) {
        self.is_removed.set(true);
    }

    /// Lets the device lose its power while the host runs. The caller cuts that of the memory.
    pub(crate) fn cut_device(&self) {
        self.is_cut.set(true);
    }

    pub(crate) fn has_power(&self) -> bool {
        self.operations.get() != Some(0)
    }

    /// Counts an operation. Returns whether there was power for it.
    fn count(&self) -> bool {
        let has_power = self.has_power();
        self.operations.set(self.operations.get().map(|operations| operations.saturating_sub(1)));
        has_power
    }
}

/// Persistent memory that ignores accesses without power.
#[derive(Debug)]
pub(crate) struct FusedMemory {
    pub(crate) memory: PersistentMemory,
    pub(crate) fuse: Fuse,
}

impl LogMemory for FusedMemory {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.memory.read(offset, into);
    }

    fn store(&self, offset: usize, data: &[u8]) {
        if self.fuse.count() {
            // Power may fail in the middle of a store.
            let len = if self.fuse.has_power() { data.len() } else { data.len() / 2 };
            self.memory.store(offset, &data[..len]);
        }
    }

    fn persist(&self, offset: usize, bytes: usize) -> Result<(), MemoryRemoved> {
        if self.fuse.is_removed.get() {
            return Err(MemoryRemoved);
        }
        if self.fuse.count() {
            self.memory.persist(offset, bytes);
        }
        Ok(())
    }

    fn power_cuts(&self) -> u64 {
        self.memory.power_cuts()
    }
}

/// A device that does nothing without power.
#[derive(Debug)]
pub(crate) struct FusedDevice {
    pub(crate) device: VolatileDevice,
    pub(crate) fuse: Fuse,
    failed: Vec<Completion>,
    /// Tags of the requests that the device has.
    in_flight: Vec<u64>,
}

impl FusedDevice {
    /// Cuts the power if the fuse says so. Requests in flight end with an error, also those that the
    /// device has executed.
    fn apply_cut(&mut self) {
        if self.fuse.is_cut.take() {
            self.device.power_cut();
            for tag in self.in_flight.drain(..) {
                self.failed.push(Completion { tag, status: Status::POWER_LOSS, result: 0 });
            }
        }
    }
}

impl Component for FusedDevice {
    fn poll(&mut self, now: Nanos) -> bool {
        self.apply_cut();
        self.fuse.has_power() && self.device.poll(now)
    }

    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl BlockDevice for FusedDevice {
    block::delegate_block_device!(self => self.device; limits, memory, set_waker, can_wake,
        enable_sharing, can_wait, wait_for_event, visit_layers);

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.apply_cut();
        let is_change = !matches!(request.op, Op::Read | Op::Extents);
        if self.fuse.is_failing.get() && is_change {
            let status = Status::WRITE_FAULT;
            self.failed.push(Completion { tag: request.tag, status, result: 0 });
            return Ok(());
        }
        if !self.fuse.has_power() {
            return Err(QueueFull);
        }
        self.device.submit(now, request)?;
        self.in_flight.push(request.tag);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        if !self.fuse.has_power() {
            return None;
        }
        let completion = self.failed.pop().or_else(|| self.device.reap())?;
        self.in_flight.retain(|tag| *tag != completion.tag);
        Some(completion)
    }
}

pub(crate) type TestLog = WriteLog<FusedDevice, FusedMemory>;

/// A device and the memory of its log, without power.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) device: FusedDevice,
    pub(crate) memory: FusedMemory,
}

impl Parts {
    /// Creates a device of `sectors` sectors without the label's, and memory of `bytes` bytes.
    pub(crate) fn new(sectors: u64, bytes: usize, seed: u64) -> Parts {
        let limits = Limits {
            sector_bytes: SECTOR as u32,
            sectors: sectors + 1,
            max_sectors: 16,
            optimal_sectors: 1,
            queue_depth: 8,
            volatile_cache: true,
            atomic: block::AtomicLimits::NONE,
        };
        let device = VolatileDevice::for_cache(limits, AddressSpace::default(), seed);
        let fuse = Fuse::default();
        Parts {
            device: FusedDevice {
                device,
                fuse: fuse.clone(),
                failed: Vec::new(),
                in_flight: Vec::new(),
            },
            memory: FusedMemory { memory: PersistentMemory::new(bytes).unwrap(), fuse },
        }
    }

    /// Returns the durable contents of the device and of the memory.
    pub(crate) fn contents(&self) -> Contents {
        let mut memory = vec![0; self.memory.len()];
        self.memory.read(0, &mut memory);
        Contents { device: self.device.device.durable.clone(), memory }
    }

    /// Cuts the power of both, and switches it on.
    pub(crate) fn cut_power(&mut self, rng: &mut Rng) -> u64 {
        self.device.device.power_cut();
        self.device.failed.clear();
        self.device.in_flight.clear();
        self.device.fuse.is_cut.set(false);
        self.device.fuse.set(None);
        self.memory.memory.cut_power(rng)
    }

    /// Opens the log. `Err` has the parts if power failed.
    pub(crate) fn open(self, config: WriteLogConfig) -> Result<TestLog, Box<Parts>> {
        match self.try_open(config) {
            Ok(opened) => opened.map_err(Box::new),
            Err(error) => panic!("the log is refused: {error}"),
        }
    }

    /// Opens the log; the inner `Err` has the parts if power failed.
    pub(crate) fn try_open(
        self,
        config: WriteLogConfig,
    ) -> Result<Result<TestLog, Parts>, WriteLogError> {
        let fuse = self.device.fuse.clone();
        let mut opening = WriteLogOpening::new(self.device, self.memory, config)?;
        for step in 0..100_000 {
            let is_ready = opening.poll(Nanos(step))?;
            if !fuse.has_power() {
                let (device, memory) = opening.into_parts();
                return Ok(Err(Parts { device, memory }));
            }
            if is_ready {
                return opening.into_log().map(Ok);
            }
        }
        panic!("the opening does not end");
    }
}

/// The contents of a device and a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) device: Vec<u8>,
    pub(crate) memory: Vec<u8>,
}

impl Contents {
    /// Creates a device and a memory with these contents.
    pub(crate) fn parts(&self) -> Parts {
        let sectors = (self.device.len() / SECTOR) as u64 - 1;
        let mut parts = Parts::new(sectors, self.memory.len(), 1);
        parts.device.device.durable.copy_from_slice(&self.device);
        parts.memory.memory.store(0, &self.memory);
        parts.memory.memory.persist(0, self.memory.len());
        parts
    }

    /// Opens the log. The error comes with a check that nothing was changed.
    pub(crate) fn try_open(&self, config: WriteLogConfig) -> Result<TestLog, WriteLogError> {
        let parts = self.parts();
        // The handle of the memory shows the contents after the parts were dropped.
        let memory = parts.memory.memory.clone();
        let opened = parts.try_open(config);
        if opened.is_err() {
            let mut after = vec![0; self.memory.len()];
            memory.read(0, &mut after);
            assert!(after == self.memory, "a refused log was changed");
        }
        opened.map(|log| log.expect("there is power"))
    }
}

pub(crate) fn parts_of(log: TestLog) -> Parts {
    let (device, memory) = log.into_parts();
    Parts { device, memory }
}

/// The settings of a small log with short times.
pub(crate) fn config(bytes: usize) -> WriteLogConfig {
    WriteLogConfig {
        write_bytes_max: 4 * SECTOR as u32,
        store: Nanos(2),
        persist: Nanos(50),
        idle: Nanos(3_000),
        retry: Nanos(500),
        ..WriteLogConfig::new(bytes, IDENTITY)
    }
}

/// Returns the contents of a sector with a value.
pub(crate) fn sector_of(value: u64) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector.as_chunks_mut::<8>().0.fill(value.to_le_bytes());
    sector
}

/// Returns the value of a sector.
pub(crate) fn value_of(sector: &[u8]) -> u64 {
    let (words, _) = sector.as_chunks::<8>();
    assert!(words.iter().all(|word| *word == words[0]), "a sector is torn: {words:?}");
    u64::from_le_bytes(words[0])
}

/// A log with one request at a time.
pub(crate) struct Sequential {
    pub(crate) log: TestLog,
    pub(crate) now: Nanos,
    at: Iova,
}

impl Sequential {
    pub(crate) fn new(log: TestLog) -> Sequential {
        let (_, at) = log.memory().allocate_registered(32 * SECTOR).unwrap();
        Sequential { log, now: Nanos(1_000_000), at }
    }

    pub(crate) fn data(&self) -> Payload {
        Payload::Contiguous(self.at)
    }

    /// Executes a request.
    pub(crate) fn run(&mut self, request: Request) -> Completion {
        self.log.submit(self.now, request).unwrap();
        for _ in 0..100_000 {
            if let Some(completion) = self.log.reap() {
                return completion;
            }
            self.now = Nanos(self.now.0 + 1);
            self.log.poll(self.now);
        }
        panic!("{request:?} does not complete");
    }

    /// Writes sectors with consecutive values.
    pub(crate) fn write(&mut self, lba: u64, sectors: u32, value: u64, fua: bool) -> Completion {
        for i in 0..u64::from(sectors) {
            let at = self.at.offset(i * SECTOR as u64);
            self.log.memory().write(at, &sector_of(value + i)).unwrap();
        }
        self.run(Request { fua, ..Request::write(lba, sectors, self.data(), 1) })
    }

    /// Reads the value of a sector.
    pub(crate) fn read(&mut self, lba: u64) -> u64 {
        assert!(self.run(Request::read(lba, 1, self.data(), 2)).status.is_success());
        let mut sector = [0; SECTOR];
        self.log.memory().read(self.at, &mut sector).unwrap();
        value_of(&sector)
    }

    pub(crate) fn flush(&mut self) -> Completion {
        self.run(Request::flush(3))
    }

    /// Lets time pass.
    pub(crate) fn wait(&mut self, time: u64) {
        for _ in 0..time {
            self.now = Nanos(self.now.0 + 1);
            self.log.poll(self.now);
        }
    }

    /// Closes the log.
    pub(crate) fn close(mut self) -> Parts {
        self.log.close();
        for _ in 0..100_000 {
            if let Some(result) = self.log.close_result() {
                assert_eq!(result, Ok(()));
                return parts_of(self.log);
            }
            self.now = Nanos(self.now.0 + 1);
            self.log.poll(self.now);
        }
        panic!("the log does not close");
    }
}

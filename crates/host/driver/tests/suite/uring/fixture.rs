//! A file, a queue over it, and registered memory for transfers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mem::{Iova, SharedRegion};
use nvme::Status;
use sluice_driver::{
    CompletionEvent, HardwareQueue, LowLevelDriver, Payload, QueueState, Request, Segment, Tag,
    Uring, UringConfig, UringQueue,
};
use tempfile::TempDir;
use time::Nanos;

/// Timeout of every wait, longer than any operation of the tests.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A file of zeros, with its blocks allocated.
pub(crate) struct Disk {
    dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Disk {
    pub(crate) fn new(bytes: u64) -> Disk {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("disk");
        std::fs::write(&path, vec![0; bytes as usize]).expect("a file");
        Disk { dir, path }
    }

    pub(crate) fn sibling_path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Registered memory.
pub(crate) struct Memory {
    pub(crate) region: Arc<SharedRegion>,
    pub(crate) at: Iova,
}

impl Memory {
    pub(crate) fn new(device: &Uring, bytes: usize) -> Memory {
        let region = SharedRegion::anonymous(bytes).expect("memory");
        let at = device.memory().register(&region).expect("a registration");
        Memory { region, at }
    }

    pub(crate) fn at(&self, offset: usize) -> Iova {
        self.at.offset(offset as u64)
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.region.read(offset, &mut out);
        out
    }

    /// Writes a segment table.
    pub(crate) fn table(&self, offset: usize, segments: &[Segment]) -> Payload {
        for (i, segment) in segments.iter().enumerate() {
            for (j, word) in segment.encode().iter().enumerate() {
                self.region.write(offset + i * Segment::BYTES + 8 * j, &word.to_le_bytes());
            }
        }
        Payload::Scattered { table: self.at(offset), segments: segments.len() as u16 }
    }
}

/// A queue and its memory.
pub(crate) struct Fixture {
    pub(crate) device: Uring,
    pub(crate) queue: UringQueue,
    pub(crate) memory: Memory,
}

impl Fixture {
    pub(crate) fn open(path: &Path, config: UringConfig) -> Fixture {
        let mut device = Uring::open(path, config).unwrap_or_else(|e| panic!("{e}"));
        let queue = device.take_queue(0).expect("the first queue");
        let memory = Memory::new(&device, 1 << 20);
        Fixture { device, queue, memory }
    }

    pub(crate) fn sector(&self) -> usize {
        self.queue.limits().sector_bytes as usize
    }

    /// Executes one request and returns its status.
    pub(crate) fn run(&mut self, request: Request) -> Status {
        run(&mut self.queue, request)
    }

    pub(crate) fn ok(&mut self, request: Request) {
        let status = self.run(request);
        assert!(status.is_success(), "{request:?}: {status}");
    }

    /// Returns the status with which `request` is rejected at binding, or completes.
    pub(crate) fn run_refused(&mut self, request: Request) -> Status {
        let status = self.run(request);
        assert!(!status.is_success(), "{request:?} was not refused");
        assert_eq!(
            self.queue.tags().free(),
            self.queue.tags().count(),
            "the tag must be free again"
        );
        status
    }
}

/// Waits for the next event.
pub(crate) fn wait(queue: &mut UringQueue) -> CompletionEvent {
    let begin = Instant::now();
    loop {
        if let Some(event) = queue.fetch_event() {
            return event;
        }
        queue.poll(Nanos::ZERO);
        assert!(begin.elapsed() < TEST_TIMEOUT, "no event: {queue:?}");
        std::thread::yield_now();
    }
}

/// Executes one request on an idle queue.
pub(crate) fn run(queue: &mut UringQueue, request: Request) -> Status {
    let tag = queue.tags_mut().take().expect("a tag is free");
    match queue.bind_tag_cmd(tag, &request, Nanos(7)) {
        Ok(()) => {
            assert!(queue.issue_tags());
            let event = wait(queue);
            assert_eq!((event.tag, event.result), (tag, 0));
            let detached = queue.detach_tag_cmd(tag).expect("the tag is bound");
            assert_eq!((detached.user, detached.bound_at), (request.tag, Nanos(7)));
            queue.release_tags(&[tag]).expect("the tag is taken");
            event.status
        }
        Err(sluice_driver::BindError::Refused(status)) => {
            queue.release_tags(&[tag]).expect("a bound tag can be released");
            status
        }
        Err(error) => panic!("{request:?}: {error}"),
    }
}

/// Detaches and frees every bound tag; returns the tags.
pub(crate) fn release_bound_tags(queue: &mut UringQueue) -> Vec<(Tag, u64)> {
    let bound: Vec<Tag> = queue.tags().bound_tags().map(|(tag, _)| tag).collect();
    let mut back = Vec::new();
    for tag in bound {
        back.push((tag, queue.detach_tag_cmd(tag).expect("the tag is bound").user));
        queue.release_tags(&[tag]).expect("the tag is taken");
    }
    back
}

/// Polls until a reset has finished.
pub(crate) fn poll_until_ready(queue: &mut UringQueue) {
    let begin = Instant::now();
    while queue.state() == QueueState::Resetting {
        queue.poll(Nanos(begin.elapsed().as_nanos() as u64));
        assert!(queue.fetch_event().is_none(), "nothing completes during a reset");
        assert!(begin.elapsed() < TEST_TIMEOUT);
    }
    assert_eq!(queue.state(), QueueState::Ready);
}

/// A loop device over a file, with direct I/O.
pub(crate) struct Loop {
    pub(crate) path: PathBuf,
}

impl Loop {
    /// Creates a loop device. Returns `None`, and prints the reason, if the tests are not allowed
    /// to create one.
    pub(crate) fn new(disk: &Disk, extra: &[&str]) -> Option<Loop> {
        let out = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .args(extra)
            .arg(&disk.path)
            .output();
        match out {
            Ok(out) if out.status.success() => {
                let path = String::from_utf8(out.stdout).expect("a path");
                Some(Loop { path: path.trim().into() })
            }
            Ok(out) => {
                let why = String::from_utf8_lossy(&out.stderr);
                testkit::skip!("no loop device here: {}", why.trim());
                None
            }
            Err(why) => {
                testkit::skip!("no loop device here: losetup: {why}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

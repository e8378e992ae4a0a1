//! [`HostFile`]: the image of a drive on a host that crashes: a device that loses unflushed writes.
//!
//! The recorder keeps the contents of the file at its last `fdatasync(2)`, and later versions of
//! every sector of the device. After a crash each sector has any of these versions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use collections::{Seal, put_at, u64_at};
use controller::Controller;
use media::SyncObserver;
use rng::Rng;

/// Bytes that the device writes as a whole.
const SECTOR: usize = 512;
/// Offset of the image's length in its header, behind which the log of flushed records begins.
const LENGTH_OFFSET: usize = 136;
/// Offset of the kernel's identifier in the log's header.
const BOOT_ID_OFFSET: usize = 32;

type Versions = HashMap<usize, Vec<Vec<u8>>>;

#[derive(Debug, Default)]
struct Recorder {
    synced: Vec<u8>,
    seen: Vec<u8>,
    versions: Versions,
    syncs: u64,
}

#[derive(Debug)]
pub(crate) struct HostFile {
    path: PathBuf,
    recorder: Arc<Mutex<Recorder>>,
}

impl Recorder {
    fn sync(&mut self, contents: Vec<u8>) {
        self.seen.clone_from(&contents);
        self.synced = contents;
        self.versions.clear();
    }
}

impl HostFile {
    pub(crate) fn new(path: &Path) -> HostFile {
        HostFile { path: path.into(), recorder: Arc::default() }
    }

    fn contents(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap_or_default()
    }

    /// Opens the drive. After a crash, the device has what it had before: the drive brings that state
    /// back. Otherwise it has everything, because the drive flushes the image that it opens.
    pub(crate) fn open(&self, crashed: bool, open: impl FnOnce() -> Controller) -> Controller {
        let before = self.contents();
        let mut drive = open();
        let nand = drive.nand_mut().unwrap();
        let has_flushed = nand.host_flush_stats().is_some_and(|stats| stats.flushes > 0);
        let has_all = has_flushed || !crashed;
        if has_all {
            nand.flush_to_host().unwrap();
        }
        let mut recorder = self.recorder.lock().unwrap();
        recorder.sync(if has_all { self.contents() } else { before });
        drop(recorder);
        let (path, recorder) = (self.path.clone(), self.recorder.clone());
        nand.observe_host_flushes(SyncObserver(Box::new(move || {
            let mut recorder = recorder.lock().unwrap();
            recorder.syncs += 1;
            recorder.sync(std::fs::read(&path).unwrap());
        })));
        drive
    }

    /// Records the present version of every sector: the kernel may write pages at any time.
    pub(crate) fn record_versions(&self) {
        let now = self.contents();
        let recorder = &mut *self.recorder.lock().unwrap();
        recorder.seen.resize(now.len(), 0);
        for (i, (old, new)) in recorder.seen.chunks(SECTOR).zip(now.chunks(SECTOR)).enumerate() {
            if old != new {
                recorder.versions.entry(i).or_default().push(new.to_vec());
            }
        }
        recorder.seen = now;
    }

    /// Crashes the host, whose next kernel has another identifier. The drive has no thread any more.
    pub(crate) fn crash(&self, rng: &mut Rng) {
        self.record_versions();
        let recorder = &mut *self.recorder.lock().unwrap();
        let mut after = recorder.synced.clone();
        after.resize(recorder.seen.len(), 0);
        let mut sectors: Vec<_> = recorder.versions.iter().collect();
        sectors.sort();
        for (i, versions) in sectors {
            let chosen = rng.below(versions.len() as u64 + 1) as usize;
            if let Some(version) = versions.get(chosen) {
                put_at(&mut after, i * SECTOR, version);
            }
        }
        let log = u64_at(&after, LENGTH_OFFSET).unwrap() as usize;
        if let Some(header) = after.get_mut(log..log + SECTOR) {
            put_at(header, BOOT_ID_OFFSET, b"another kernel");
            Seal::of_bytes_before(SECTOR - 4).store(header);
        }
        std::fs::write(&self.path, after).unwrap();
    }

    /// Returns the number of times that the device had everything.
    pub(crate) fn syncs(&self) -> u64 {
        self.recorder.lock().unwrap().syncs
    }
}

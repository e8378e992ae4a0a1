//! [`SyncedRecords`]: the chunk records that are on the host's stable storage, in a log behind the
//! areas of an image. `docs/format/image.md` has the byte map.
//!
//! The kernel writes the pages of a mapped image to the device in any order. After a crash of the
//! host, the chunk table in the image therefore says nothing. Invariants: the log describes one
//! state of the medium, that of the last flush to the host. Everything that this state refers to was
//! on the device before the log named it, and is not overwritten before a later flush has replaced
//! that state. So a crash of the host has the effect of a power cut at the last flush.
//!
//! The log has two parts. A block holds chunk records; the first block of a part holds all of them,
//! each later one those that changed. A full part is followed by the other one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use collections::{Seal, SealedHeader, put_at, u32_at, u64_at};

use crate::chunk::{ChunkRecord, ERASING, INTERRUPTED, PROGRAMMING};
use crate::storage::host_flush::HostFlush;
use crate::storage::image::PAGE_BYTES;
use crate::{ChunkId, DataStore, HostFlushStats, NandConfig, NandLayout, OpenError};

/// Bytes of the log's header. A device replaces them as a whole.
const HEADER_BYTES: usize = 512;
const HEADER: SealedHeader = SealedHeader {
    magic: *b"SLUICREC",
    version: 1,
    version_bytes: 4,
    seal: Seal::of_bytes_before(HEADER_BYTES - 4),
};
const CHUNKS_OFFSET: usize = 16;
const PART_BYTES_OFFSET: usize = 24;
const BOOT_ID_OFFSET: usize = 32;
const BOOT_ID_BYTES: usize = 36;
/// Bytes of a block before its entries: generation, index, number of entries.
const BLOCK_HEAD_BYTES: usize = 24;
/// Bytes of an entry: the chunk, and its word.
const ENTRY_BYTES: usize = 12;
/// Minimum bytes of a part behind its first block.
const CHANGES_BYTES_MIN: usize = 256 << 10;

/// Identifies a run of the host's kernel: its page cache is lost with it.
type BootId = [u8; BOOT_ID_BYTES];

/// A test's function that runs when the host's device has everything that was written to the image.
pub struct SyncObserver(pub Box<dyn FnMut() + Send>);

impl std::fmt::Debug for SyncObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SyncObserver")
    }
}

/// The position of the next block.
#[derive(Clone, Copy, Debug, Default)]
struct LogPosition {
    part: u64,
    generation: u64,
    index: u64,
    /// Offset in the part.
    offset: usize,
}

/// The log of an image that is opened.
struct FoundRecords {
    /// The records of the last flush.
    records: Vec<ChunkRecord>,
    /// Whether the host has restarted since: the pages of the image that were not flushed may be
    /// lost.
    is_from_other_boot: bool,
    position: LogPosition,
}

/// Why a log cannot be read.
enum FoundError {
    Io(io::Error),
    Damaged,
}

impl From<io::Error> for FoundError {
    fn from(error: io::Error) -> FoundError {
        FoundError::Io(error)
    }
}

/// The log of an open image.
#[derive(Debug)]
pub(crate) struct SyncedRecords {
    file: File,
    /// Offset of the log in the file.
    base: u64,
    part_bytes: usize,
    records: Vec<ChunkRecord>,
    position: LogPosition,
    outcome: HostFlush,
    observer: Option<SyncObserver>,
}

fn block_bytes(entries: usize) -> usize {
    (BLOCK_HEAD_BYTES + entries * ENTRY_BYTES + 4).next_multiple_of(PAGE_BYTES)
}

fn part_bytes(chunks: usize) -> usize {
    block_bytes(chunks) + CHANGES_BYTES_MIN.max(block_bytes(chunks))
}

fn seal_of_block(entries: usize) -> Seal {
    Seal::of_bytes_before(BLOCK_HEAD_BYTES + entries * ENTRY_BYTES)
}

/// Returns the identifier of the kernel's present run; zeros, which no log has, if it has none.
fn boot_id() -> BootId {
    let mut id = [0; BOOT_ID_BYTES];
    if let Ok(text) = std::fs::read("/proc/sys/kernel/random/boot_id") {
        let len = text.len().min(BOOT_ID_BYTES);
        id[..len].copy_from_slice(&text[..len]);
    }
    id
}

fn encode_block(position: LogPosition, entries: &[(u32, ChunkRecord)]) -> Vec<u8> {
    let mut block = vec![0; block_bytes(entries.len())];
    put_at(&mut block, 0, &position.generation.to_le_bytes());
    put_at(&mut block, 8, &position.index.to_le_bytes());
    put_at(&mut block, 16, &(entries.len() as u32).to_le_bytes());
    for (i, (chunk, record)) in entries.iter().enumerate() {
        let at = BLOCK_HEAD_BYTES + i * ENTRY_BYTES;
        put_at(&mut block, at, &chunk.to_le_bytes());
        put_at(&mut block, at + 4, &record.to_image_word().to_le_bytes());
    }
    seal_of_block(entries.len()).store(&mut block);
    block
}

/// Applies the block at the start of `bytes` to the records. Returns its size; `None` if there is
/// no such block.
fn apply_block(
    bytes: &[u8],
    generation: u64,
    index: u64,
    layout: &NandLayout,
    records: &mut [ChunkRecord],
) -> Option<usize> {
    let count = u32_at(bytes, 16)? as usize;
    let is_next = u64_at(bytes, 0) == Some(generation) && u64_at(bytes, 8) == Some(index);
    let is_whole = index > 0 || count == records.len();
    if !is_next || !is_whole || count > records.len() || !seal_of_block(count).is_intact(bytes) {
        return None;
    }
    for i in 0..count {
        let at = BLOCK_HEAD_BYTES + i * ENTRY_BYTES;
        let record = ChunkRecord::from_image_word(u64_at(bytes, at + 4)?, layout)?;
        *records.get_mut(u32_at(bytes, at)? as usize)? = record;
    }
    Some(block_bytes(count))
}

impl FoundRecords {
    /// Reads the log behind the first `end` bytes of an image; `None` if there is none.
    fn read(
        file: &File,
        end: u64,
        layout: &NandLayout,
    ) -> Result<Option<FoundRecords>, FoundError> {
        let chunks = layout.chunk_count() as usize;
        let part = part_bytes(chunks);
        let len = file.metadata()?.len();
        let mut header = [0; HEADER_BYTES];
        if len < end + HEADER_BYTES as u64 {
            return Ok(None);
        }
        file.read_exact_at(&mut header, end)?;
        if header.iter().all(|byte| *byte == 0) {
            // The host crashed before the log was complete, and the image was not changed before.
            return Ok(None);
        }
        let is_ours = HEADER.check(&header).is_ok()
            && u64_at(&header, CHUNKS_OFFSET) == Some(chunks as u64)
            && u64_at(&header, PART_BYTES_OFFSET) == Some(part as u64);
        if !is_ours || len < end + (PAGE_BYTES + 2 * part) as u64 {
            return Err(FoundError::Damaged);
        }
        let mut newest: Option<FoundRecords> = None;
        let mut bytes = vec![0; part];
        for number in 0..2u64 {
            file.read_exact_at(&mut bytes, part_offset(end, part, number))?;
            let generation = u64_at(&bytes, 0).unwrap_or_default();
            if newest.as_ref().is_some_and(|found| found.position.generation > generation) {
                continue;
            }
            let mut records = vec![ChunkRecord::ERASED; chunks];
            let mut position = LogPosition { part: number, generation, index: 0, offset: 0 };
            while let Some(size) = apply_block(
                bytes.get(position.offset..).unwrap_or_default(),
                generation,
                position.index,
                layout,
                &mut records,
            ) {
                position.offset += size;
                position.index += 1;
            }
            if position.index > 0 {
                newest = Some(FoundRecords { records, is_from_other_boot: false, position });
            }
        }
        let mut found = newest.ok_or(FoundError::Damaged)?;
        let now = boot_id();
        let kept = &header[BOOT_ID_OFFSET..BOOT_ID_OFFSET + BOOT_ID_BYTES];
        found.is_from_other_boot = kept != now || now == [0; BOOT_ID_BYTES];
        Ok(Some(found))
    }
}

fn part_offset(base: u64, part_bytes: usize, part: u64) -> u64 {
    base + PAGE_BYTES as u64 + part * part_bytes as u64
}

impl SyncedRecords {
    /// Writes an image with these records to the device, and begins a log behind its first `end`
    /// bytes. `found` is the log that it has.
    fn start(
        file: File,
        end: u64,
        records: &[ChunkRecord],
        found: Option<FoundRecords>,
    ) -> io::Result<SyncedRecords> {
        let part_bytes = part_bytes(records.len());
        let bytes = (PAGE_BYTES + 2 * part_bytes) as u64;
        if found.is_none() {
            // Zeros, which no earlier log has left.
            file.set_len(end)?;
        }
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end, bytes)?;
        // With the image's data and the file's length, which `fdatasync` includes.
        file.sync_data()?;
        let mut log = SyncedRecords {
            file,
            base: end,
            part_bytes,
            records: records.to_vec(),
            position: found.map_or_else(LogPosition::default, |found| found.position),
            outcome: HostFlush::default(),
            observer: None,
        };
        log.begin_part(records)?;
        let mut header = [0; HEADER_BYTES];
        HEADER.begin(&mut header);
        put_at(&mut header, CHUNKS_OFFSET, &(records.len() as u64).to_le_bytes());
        put_at(&mut header, PART_BYTES_OFFSET, &(part_bytes as u64).to_le_bytes());
        put_at(&mut header, BOOT_ID_OFFSET, &boot_id());
        HEADER.seal.store(&mut header);
        log.file.write_all_at(&header, log.base)?;
        log.file.sync_data()?;
        Ok(log)
    }

    /// Writes all records to the start of the other part, and waits until the device has them.
    fn begin_part(&mut self, records: &[ChunkRecord]) -> io::Result<()> {
        let old = self.position;
        self.position =
            LogPosition { part: 1 - old.part, generation: old.generation + 1, index: 0, offset: 0 };
        let entries: Vec<_> = (0..).zip(records.iter().copied()).collect();
        self.append(&entries)
    }

    fn append(&mut self, entries: &[(u32, ChunkRecord)]) -> io::Result<()> {
        let block = encode_block(self.position, entries);
        let part = part_offset(self.base, self.part_bytes, self.position.part);
        self.file.write_all_at(&block, part + self.position.offset as u64)?;
        self.file.sync_data()?;
        self.position.offset += block.len();
        self.position.index += 1;
        Ok(())
    }

    /// Waits until the device has the image, and then until it has the records that say so.
    pub(crate) fn flush(&mut self, records: &[ChunkRecord]) -> io::Result<()> {
        if records == self.records {
            return self.outcome.check();
        }
        let mut outcome = std::mem::take(&mut self.outcome);
        let done = outcome.run(|| self.flush_changes(records));
        self.outcome = outcome;
        done
    }

    fn flush_changes(&mut self, records: &[ChunkRecord]) -> io::Result<()> {
        self.file.sync_data()?;
        self.report_sync();
        let changed = (0..).zip(records.iter().zip(&self.records));
        let entries: Vec<_> =
            changed.filter(|(_, (new, old))| new != old).map(|(i, (new, _))| (i, *new)).collect();
        if self.position.offset + block_bytes(entries.len()) > self.part_bytes {
            self.begin_part(records)?;
        } else {
            self.append(&entries)?;
        }
        self.records.copy_from_slice(records);
        self.report_sync();
        Ok(())
    }

    fn report_sync(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.0();
        }
    }

    /// Whether the last flush has data in a chunk that was erased since, so that a write to the
    /// chunk needs another flush first. `record` is the chunk's present record.
    pub(crate) fn refers_to_erased(&self, chunk: ChunkId, record: ChunkRecord) -> bool {
        end_of_data(self.records[chunk.0 as usize]) > end_of_data(record)
    }

    /// Writes everything to the device, and removes the log: the image has the same contents.
    pub(crate) fn close(&mut self, records: &[ChunkRecord]) -> io::Result<()> {
        self.flush(records)?;
        self.file.sync_all()?;
        remove(&self.file, self.base)
    }

    /// Makes the next flush fail.
    pub(crate) fn fail_next(&mut self) {
        self.outcome.fail_next();
    }

    pub(crate) fn observe(&mut self, observer: SyncObserver) {
        self.observer = Some(observer);
    }

    pub(crate) fn stats(&self) -> HostFlushStats {
        self.outcome.stats()
    }
}

/// The log of flushed records of an image that is being opened.
pub(crate) struct ImageLog<'a> {
    path: &'a Path,
    data: &'a DataStore,
    file: Option<File>,
    end: u64,
    found: Option<FoundRecords>,
}

impl<'a> ImageLog<'a> {
    /// Reads the log behind the first `end` bytes of an image.
    pub(crate) fn open(
        config: &'a NandConfig,
        file: Option<File>,
        end: u64,
        layout: &NandLayout,
    ) -> Result<ImageLog<'a>, OpenError> {
        let (data, path) = (&config.data, config.data.image().unwrap_or(Path::new("")));
        let found = file.as_ref().map_or(Ok(None), |file| FoundRecords::read(file, end, layout));
        let found = found.map_err(|error| match error {
            FoundError::Io(error) => OpenError::Io { path: path.into(), doing: "read it", error },
            FoundError::Damaged => OpenError::LogDamaged { path: path.into() },
        })?;
        Ok(ImageLog { path, data, file, end, found })
    }

    /// Returns the records of the last flush, if the host has crashed since.
    pub(crate) fn lost_since_flush(&self) -> Option<&[ChunkRecord]> {
        self.found.as_ref().filter(|found| found.is_from_other_boot).map(|found| &found.records[..])
    }

    /// Begins a log if flushes reach the host's device, and otherwise removes one that will not be
    /// true any more.
    pub(crate) fn start(
        self,
        records: &[ChunkRecord],
    ) -> Result<Option<Box<SyncedRecords>>, OpenError> {
        let doing = "write it to its device";
        let io = |error| OpenError::Io { path: self.path.into(), doing, error };
        match (self.data, self.file, self.found) {
            (DataStore::DurableFile(_), Some(file), found) => {
                let log = SyncedRecords::start(file, self.end, records, found).map_err(io)?;
                // The name of a new image is in its folder.
                let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
                File::open(folder.unwrap_or(Path::new(".")))
                    .and_then(|folder| folder.sync_all())
                    .map_err(io)?;
                Ok(Some(Box::new(log)))
            }
            (DataStore::File(_), Some(file), Some(_)) => {
                file.sync_all().and_then(|()| remove(&file, self.end)).map_err(io)?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// Removes the log behind the first `end` bytes of an image that is on the device.
fn remove(file: &File, end: u64) -> io::Result<()> {
    file.set_len(end)?;
    file.sync_all()
}

/// Returns where the data of a chunk ends, or will end after the program in progress. An erase in
/// progress has removed it.
fn end_of_data(record: ChunkRecord) -> u32 {
    match record.has_any(ERASING | INTERRUPTED) {
        true => 0,
        false => record.write_pointer() + u32::from(record.has_any(PROGRAMMING)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const END: u64 = 8192;

    fn read(file: &File) -> FoundRecords {
        let layout = NandLayout::new(&testing::config());
        FoundRecords::read(file, END, &layout).ok().flatten().expect("there is a log")
    }

    #[test]
    fn the_log_has_the_records_of_every_flush_across_both_parts() {
        let file = tempfile::tempfile().unwrap();
        let layout = NandLayout::new(&testing::config());
        let mut records = vec![ChunkRecord::ERASED; layout.chunk_count() as usize];
        let mut log = SyncedRecords::start(file.try_clone().unwrap(), END, &records, None).unwrap();
        assert_eq!(read(&file).records, records);
        let (mut parts, mut wear) = ([false; 2], 0);
        for i in 0..300 {
            wear += 1;
            let chunk = i % records.len();
            records[chunk] = records[chunk].with_wear(wear);
            log.flush(&records).unwrap();
            parts[log.position.part as usize] = true;
            assert_eq!(read(&file).records, records, "flush {i}");
        }
        assert_eq!(parts, [true; 2]);
        assert_eq!((log.stats().flushes, log.stats().failures), (300, 0));
        log.flush(&records).unwrap();
        assert_eq!(log.stats().flushes, 300, "nothing has changed");
        // A torn last block is no flush.
        let at = part_offset(END, log.part_bytes, log.position.part) + log.position.offset as u64;
        records[0] = records[0].with_wear(7);
        let old = read(&file).records;
        log.flush(&records).unwrap();
        file.write_all_at(&[0xff], at + 30).unwrap();
        assert_eq!(read(&file).records, old);
        assert!(!read(&file).is_from_other_boot);
        log.close(&records).unwrap();
        assert_eq!(file.metadata().unwrap().len(), END);
        assert!(FoundRecords::read(&file, END, &layout).ok().flatten().is_none());
    }

    #[test]
    fn a_damaged_log_is_found() {
        let file = tempfile::tempfile().unwrap();
        let layout = NandLayout::new(&testing::config());
        let records = vec![ChunkRecord::ERASED; layout.chunk_count() as usize];
        let log = SyncedRecords::start(file.try_clone().unwrap(), END, &records, None).unwrap();
        let first = part_offset(END, log.part_bytes, log.position.part);
        for at in [END, END + 9, END + 17, END + 40, first, first + 20] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            let found = FoundRecords::read(&file, END, &layout);
            assert!(matches!(found, Err(FoundError::Damaged)), "byte {at}");
            file.write_all_at(&byte, at).unwrap();
        }
        file.set_len(END + 4096).unwrap();
        assert!(matches!(FoundRecords::read(&file, END, &layout), Err(FoundError::Damaged)));
    }

    #[test]
    fn after_a_failure_no_flush_succeeds() {
        let file = tempfile::tempfile().unwrap();
        let mut records = vec![ChunkRecord::ERASED; 20];
        let mut log = SyncedRecords::start(file, END, &records, None).unwrap();
        log.fail_next();
        records[3] = records[3].with_wear(1);
        for _ in 0..3 {
            assert!(log.flush(&records).is_err());
        }
        assert_eq!(log.stats().failures, 3);
    }
}

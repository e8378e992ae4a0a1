//! [`MappedFile`]: a memory file with the bytes of a volume file, while programs map it shared.
//!
//! The volume remains authoritative: calls use it as before. A completed write is then applied to
//! the memory file, and the data of a read is replaced by the memory file's. Mappings thus see what
//! calls write, and calls see what mappings write. Changes by mappings alone are found by
//! comparison ([`mapping_sync`](crate::service::pipeline::mapping_sync)).
//!
//! Guarantees: the service accesses a memory file by system calls only, so that a process that
//! truncates it affects only processes that map it. Outside [`MappedFile::range`] the memory file
//! is a hole, and the volume has the file's bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use mem::SharedRegion;
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SeekFrom, fallocate, memfd_create, open, seek,
};
use rustix::io::Errno;
use volume::{BLOCK, Ino, OpResult, VolumeOp};

use crate::invariants::{ServicePart, ServiceViolation, require_eq};

/// Effect of a successful operation on a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingUpdate {
    None,
    Read(Ino),
    /// The slot's data was written at the offset that the result gives.
    Write(Ino),
    Resize(Ino, u64),
    /// The size is at least this.
    Grow(Ino, u64),
    /// This many bytes from this offset are zeros.
    Punch(Ino, u64, u64),
}

impl MappingUpdate {
    pub(crate) fn from_op(op: &VolumeOp) -> MappingUpdate {
        match *op {
            VolumeOp::Read { ino, .. } => MappingUpdate::Read(ino),
            VolumeOp::Write { ino, .. } | VolumeOp::Append { ino, .. } => MappingUpdate::Write(ino),
            VolumeOp::Truncate { ino, size } => MappingUpdate::Resize(ino, size),
            VolumeOp::Allocate { ino, offset, len, keep_size: false } => {
                MappingUpdate::Grow(ino, offset.saturating_add(len))
            }
            VolumeOp::Punch { ino, offset, len } => MappingUpdate::Punch(ino, offset, len),
            _ => MappingUpdate::None,
        }
    }

    /// Returns the file whose bytes change.
    pub(crate) fn changed_inode(self) -> Option<Ino> {
        match self {
            MappingUpdate::None | MappingUpdate::Read(_) => None,
            MappingUpdate::Write(ino)
            | MappingUpdate::Resize(ino, _)
            | MappingUpdate::Grow(ino, _)
            | MappingUpdate::Punch(ino, ..) => Some(ino),
        }
    }
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    /// First byte.
    pub(crate) begin: u64,
    /// Byte after the last one.
    pub(crate) end: u64,
}

impl FileRange {
    pub(crate) const EMPTY: FileRange = FileRange { begin: 0, end: 0 };

    pub(crate) fn new(begin: u64, end: u64) -> FileRange {
        FileRange { begin, end }
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.end.saturating_sub(self.begin)
    }

    /// Returns the intersection with another range, if it is not empty.
    pub(crate) fn intersection(self, other: FileRange) -> Option<FileRange> {
        FileRange::new(self.begin.max(other.begin), self.end.min(other.end)).non_empty()
    }

    /// Returns the range unless it is empty.
    pub(crate) fn non_empty(self) -> Option<FileRange> {
        (self.begin < self.end).then_some(self)
    }
}

/// A file with shared mappings.
#[derive(Debug)]
pub(crate) struct MappedFile {
    memory: File,
    /// Length of the file.
    len: u64,
    /// Range with valid bytes, in whole blocks, which may extend past the end of the file: the hull
    /// of everything that was ever mapped.
    pub(crate) range: FileRange,
    /// Whether a writable mapping was ever created.
    pub(crate) has_writers: bool,
}

impl MappedFile {
    /// Creates a memory file of this length, without valid bytes.
    pub(crate) fn new(len: u64) -> io::Result<MappedFile> {
        let memory = File::from(memfd_create("sluice-mapped", MemfdFlags::CLOEXEC)?);
        memory.set_len(len)?;
        Ok(MappedFile { memory, len, range: FileRange::EMPTY, has_writers: false })
    }

    /// Returns a new descriptor for mapping; it is writable only if `writes`.
    pub(crate) fn descriptor(&self, writes: bool) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.memory.as_raw_fd());
        let access = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(open(path, access | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Reads bytes; returns fewer at the end.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.memory.read_at(&mut into[done..], at + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Returns the first byte at or after `at` that may have been touched (block granularity), or
    /// `u64::MAX` if there is none.
    pub(crate) fn next_data(&self, at: u64) -> u64 {
        match seek(&self.memory, SeekFrom::Data(at)) {
            Ok(data) => data.max(at),
            Err(Errno::NXIO) => u64::MAX,
            // Without SEEK_DATA, scan everything.
            Err(_) => at,
        }
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, at)
    }

    fn resize(&mut self, len: u64) -> io::Result<()> {
        // Clear what mappings wrote beyond the end of the file in its last page, so that growth
        // yields zeros.
        let page_end = self.len.next_multiple_of(BLOCK as u64);
        let tail = FileRange::new(self.len, page_end).intersection(FileRange::new(0, len));
        self.memory.set_len(len)?;
        self.len = len;
        if let Some(tail) = tail {
            self.write(tail.begin, &[0; BLOCK][..tail.bytes() as usize])?;
        }
        Ok(())
    }

    /// Punches holes outside the valid range.
    pub(crate) fn punch_outside(&self) -> io::Result<()> {
        let parts = [FileRange::new(0, self.range.begin), FileRange::new(self.range.end, self.len)];
        parts.into_iter().filter_map(FileRange::non_empty).try_for_each(|part| self.punch(part))
    }

    fn punch(&self, range: FileRange) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.memory, flags, range.begin, range.bytes())?)
    }
}

/// All mapped files, and a copy buffer.
#[derive(Debug, Default)]
pub(crate) struct SharedMappings {
    by_ino: BTreeMap<Ino, MappedFile>,
    bytes: Vec<u8>,
}

impl SharedMappings {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_ino.is_empty()
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<&MappedFile> {
        self.by_ino.get(&ino)
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> Option<&mut MappedFile> {
        self.by_ino.get_mut(&ino)
    }

    pub(crate) fn insert(&mut self, ino: Ino, image: MappedFile) {
        self.by_ino.insert(ino, image);
    }

    /// Removes a mapped file. Returns whether it existed.
    pub(crate) fn remove(&mut self, ino: Ino) -> bool {
        self.by_ino.remove(&ino).is_some()
    }

    pub(crate) fn check_invariants(&self) -> Result<(), ServiceViolation> {
        for (ino, image) in &self.by_ino {
            let FileRange { begin, end } = image.range;
            let block = BLOCK as u64;
            let (part, invariant) =
                (ServicePart::SharedMappings, "the mapped range has whole blocks");
            let blocks = FileRange::new(begin - begin % block, end - end % block);
            require_eq(part, invariant, ino, blocks, image.range)?;
            require_eq(part, "the mapped range is ordered", ino, begin.min(end), begin)?;
        }
        Ok(())
    }

    pub(crate) fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.by_ino.keys().copied()
    }

    /// Applies the effect of a completed operation to the memory file; the slot's data is at `at`
    /// of `region`.
    ///
    /// # Errors
    /// If there is no memory for the written bytes; the volume has them.
    pub(crate) fn apply(
        &mut self,
        effect: MappingUpdate,
        outcome: OpResult,
        region: &SharedRegion,
        at: usize,
    ) -> io::Result<()> {
        if self.by_ino.is_empty() {
            return Ok(());
        }
        let ((MappingUpdate::Read(ino), _) | (_, Some(ino))) = (effect, effect.changed_inode())
        else {
            return Ok(());
        };
        let Some(image) = self.by_ino.get_mut(&ino) else { return Ok(()) };
        let copied = |offset: u64, len: u32, range: FileRange| {
            let range = FileRange::new(offset, offset + u64::from(len)).intersection(range)?;
            Some((range.begin, at + (range.begin - offset) as usize, range.bytes() as usize))
        };
        match (effect, outcome) {
            (MappingUpdate::Read(_), OpResult::Bytes { offset, len }) => {
                if let Some((begin, at, len)) = copied(offset, len, image.range) {
                    self.bytes.resize(len, 0);
                    let got = image.read(begin, &mut self.bytes)?;
                    region.write(at, &self.bytes[..got]);
                }
            }
            (MappingUpdate::Write(_), OpResult::Bytes { offset, len }) => {
                let end = offset + u64::from(len);
                if end > image.len && len > 0 {
                    image.resize(end)?;
                }
                if let Some((begin, at, len)) = copied(offset, len, image.range) {
                    self.bytes.resize(len, 0);
                    region.read(at, &mut self.bytes);
                    image.write(begin, &self.bytes)?;
                }
            }
            (MappingUpdate::Resize(_, size), _) => image.resize(size)?,
            (MappingUpdate::Grow(_, size), _) if size > image.len => image.resize(size)?,
            (MappingUpdate::Punch(_, offset, len), _) => {
                let range = FileRange::new(offset, offset.saturating_add(len));
                let range = range.intersection(image.range);
                let file = FileRange::new(0, image.len);
                if let Some(range) = range.and_then(|range| range.intersection(file)) {
                    image.punch(range)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    fn shared_mappings(len: u64, range: FileRange) -> SharedMappings {
        let mut images = SharedMappings::default();
        let mut image = MappedFile::new(len).unwrap();
        image.range = range;
        images.insert(FILE, image);
        images
    }

    fn bytes(images: &SharedMappings, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        let got = images.get(FILE).unwrap().read(at, &mut bytes).unwrap();
        bytes.truncate(got);
        bytes
    }

    #[test]
    fn a_range_with_a_part_of_a_block_is_reported() {
        let mut images = shared_mappings(4096, FileRange::new(4096, 8192));
        images.check_invariants().expect("nothing is broken yet");
        images.get_mut(FILE).unwrap().range.end = 8000;
        let found = images.check_invariants().expect_err("a broken range");
        let broken = (ServicePart::SharedMappings, "the mapped range has whole blocks");
        assert_eq!((found.part, found.invariant), broken, "{found}");
        assert!(found.found.contains("8000"), "{found}");
    }

    #[test]
    fn what_is_written_by_calls_is_there_where_it_is_mapped_and_nowhere_else() {
        let slot = SharedRegion::anonymous(8192).unwrap();
        slot.write(100, b"abcdefgh");
        let mut images = shared_mappings(4096, FileRange::new(4096, 8192));
        let wrote = OpResult::Bytes { offset: 4092, len: 8 };
        images.apply(MappingUpdate::Write(FILE), wrote, &slot, 100).unwrap();
        assert_eq!(bytes(&images, 4088, 100), b"\0\0\0\0\0\0\0\0efgh", "and it has grown");
        images.apply(MappingUpdate::Write(Ino(8)), wrote, &slot, 100).unwrap();
        // A read within the range returns the memory file's bytes, whatever the volume has.
        images.get(FILE).unwrap().write(4096, b"M").unwrap();
        let read = OpResult::Bytes { offset: 4090, len: 10 };
        slot.write(200, b"..........");
        images.apply(MappingUpdate::Read(FILE), read, &slot, 200).unwrap();
        let mut back = [0; 10];
        slot.read(200, &mut back);
        assert_eq!(&back, b"......Mfgh");
    }

    #[test]
    fn it_is_as_long_as_the_file_and_what_is_new_is_zeros() {
        let slot = SharedRegion::anonymous(4096).unwrap();
        let mut images = shared_mappings(5000, FileRange::new(0, 12288));
        images.get(FILE).unwrap().write(0, &[9; 5000]).unwrap();
        let mut done = |effect| images.apply(effect, OpResult::Done, &slot, 0).unwrap();
        done(MappingUpdate::Resize(FILE, 4999));
        done(MappingUpdate::Grow(FILE, 4000));
        done(MappingUpdate::Grow(FILE, 5001));
        done(MappingUpdate::Punch(FILE, 10, 4990));
        assert_eq!(bytes(&images, 0, 6000), [&[9; 10][..], &[0; 4991]].concat());
        let mut done = |effect| images.apply(effect, OpResult::Done, &slot, 0).unwrap();
        done(MappingUpdate::Punch(FILE, 0, u64::MAX));
        done(MappingUpdate::Punch(FILE, 1 << 40, 1));
        done(MappingUpdate::Resize(FILE, 1));
        assert_eq!(bytes(&images, 0, 6000), [0]);
    }

    #[test]
    fn what_was_touched_is_found() {
        let image = MappedFile::new(1 << 30).unwrap();
        assert_eq!(image.next_data(0), u64::MAX);
        image.write((1 << 29) + 5000, b"x").unwrap();
        assert_eq!(image.next_data(1), (1 << 29) + 4096);
        assert_eq!(image.next_data((1 << 29) + 4999), (1 << 29) + 4999);
        assert_eq!(image.next_data((1 << 29) + 8192), u64::MAX);
    }

    #[test]
    fn a_descriptor_to_read_by_is_none_to_write_by() {
        let image = MappedFile::new(10).unwrap();
        let reads = File::from(image.descriptor(false).unwrap());
        assert!(reads.write_at(b"x", 0).is_err() && reads.set_len(0).is_err());
        File::from(image.descriptor(true).unwrap()).write_at(b"x", 9).unwrap();
        let mut back = [0; 20];
        assert_eq!(reads.read_at(&mut back, 0).unwrap(), 10);
        assert_eq!(back[..11], *b"\0\0\0\0\0\0\0\0\0x\0");
    }

    #[test]
    fn effects_are_those_of_the_requests() {
        let (ino, offset, len) = (FILE, 5, 6);
        let data = volume::RequestBuffer { iova: mem::Iova(0), len: 1 };
        let of = |op| MappingUpdate::from_op(&op);
        assert_eq!(of(VolumeOp::Append { ino, data }).changed_inode(), Some(FILE));
        assert_eq!(of(VolumeOp::Read { ino, offset, data }).changed_inode(), None);
        assert_eq!(
            of(VolumeOp::Allocate { ino, offset, len, keep_size: true }),
            MappingUpdate::None
        );
        assert_eq!(
            of(VolumeOp::Allocate { ino, offset, len, keep_size: false }),
            MappingUpdate::Grow(FILE, 11)
        );
        assert_eq!(of(VolumeOp::Punch { ino, offset, len }).changed_inode(), Some(FILE));
        let range = FileRange::new;
        assert_eq!(range(0, 5).intersection(range(5, 9)), None);
        assert_eq!(range(0, 6).intersection(range(5, 9)), Some(range(5, 6)));
    }
}

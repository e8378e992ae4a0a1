//! [`MetadataRecord`]: the records of snapshots and the journal (`docs/format/volume.md`, *Records*). A record states a
//! fact, not an operation. Applying records again, or after older ones, yields the same state.

use collections::{PutBytes, Reader};

use crate::metadata::extents::FileExtent;
use crate::{BLOCK, FILE_BYTES_MAX, Ino, InodeKind, InodePermissions, Name, Time, Times};

/// Number of blocks of a [`MetadataRecord::Unmap`] that extends to the end of the file.
pub(crate) const TO_EOF: u32 = u32::MAX;

/// Bytes of an inode's record.
pub(crate) const INODE_BYTES: usize = 66;
/// Bytes of an extent's record.
pub(crate) const EXTENT_BYTES: usize = 22;
/// Bytes of an entry's record without the name.
pub(crate) const ENTRY_BYTES: usize = 27;
/// Bytes of a data record without the data.
pub(crate) const DATA_BYTES: usize = 19;
/// Maximum bytes of a snapshot's record.
pub(crate) const RECORD_MAX: usize = ENTRY_BYTES + Name::MAX;

/// Recorded attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InodeRecord {
    pub(crate) kind: InodeKind,
    pub(crate) access: InodePermissions,
    pub(crate) links: u32,
    pub(crate) size: u64,
    pub(crate) times: Times,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataRecord<'a> {
    Inode {
        ino: Ino,
        record: InodeRecord,
    },
    Entry {
        dir: Ino,
        cookie: u64,
        child: Ino,
        kind: InodeKind,
        name: &'a [u8],
    },
    RemoveEntry {
        dir: Ino,
        name: &'a [u8],
    },
    Map {
        ino: Ino,
        extent: FileExtent,
    },
    Unmap {
        ino: Ino,
        logical: u32,
        count: u32,
    },
    RemoveInode {
        ino: Ino,
    },
    NextInode {
        ino: Ino,
    },
    /// Bytes of a file within one block. In the journal only.
    Data {
        ino: Ino,
        offset: u64,
        bytes: &'a [u8],
    },
}

impl<'a> MetadataRecord<'a> {
    /// Appends the encoded record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            MetadataRecord::Inode { ino, record: image } => {
                let InodeRecord { kind, access, links, size, times } = image;
                out.put_u8(1).put_u64(ino.0).put_u8(kind.code());
                out.put_u32(access.mode).put_u32(access.uid).put_u32(access.gid).put_u32(links);
                out.put_u64(size);
                for time in [times.access, times.modify, times.change, times.birth] {
                    out.put_i64(time.0);
                }
            }
            MetadataRecord::Entry { dir, cookie, child, kind, name } => {
                out.put_u8(2).put_u64(dir.0).put_u64(cookie).put_u64(child.0);
                out.put_u8(kind.code()).put_u8(name.len() as u8).put(name);
            }
            MetadataRecord::RemoveEntry { dir, name } => {
                out.put_u8(3).put_u64(dir.0).put_u8(name.len() as u8).put(name);
            }
            MetadataRecord::Map { ino, extent } => {
                out.put_u8(4).put_u64(ino.0).put_u32(extent.logical).put_u32(extent.count);
                out.put_u32(extent.phys).put_flag(extent.written);
            }
            MetadataRecord::Unmap { ino, logical: at, count } => {
                out.put_u8(5).put_u64(ino.0).put_u32(at).put_u32(count);
            }
            MetadataRecord::RemoveInode { ino } => {
                out.put_u8(6).put_u64(ino.0);
            }
            MetadataRecord::NextInode { ino } => {
                out.put_u8(7).put_u64(ino.0);
            }
            MetadataRecord::Data { ino, offset, bytes } => {
                out.put_u8(8).put_u64(ino.0).put_u64(offset);
                out.put_u16(bytes.len() as u16).put(bytes);
            }
        }
    }

    /// Decodes a record from the front; returns `None` at the end or for a malformed record.
    pub(crate) fn decode(f: &mut Reader<'a>) -> Option<MetadataRecord<'a>> {
        let tag = f.u8()?;
        let ino = Ino(f.u64()?);
        Some(match tag {
            1 => {
                let kind = InodeKind::from_code(f.u8()?)?;
                let access = InodePermissions { mode: f.u32()?, uid: f.u32()?, gid: f.u32()? };
                let (links, size) = (f.u32()?, f.u64()?);
                let times = Times {
                    access: Time(f.i64()?),
                    modify: Time(f.i64()?),
                    change: Time(f.i64()?),
                    birth: Time(f.i64()?),
                };
                if size > FILE_BYTES_MAX {
                    return None;
                }
                MetadataRecord::Inode {
                    ino,
                    record: InodeRecord { kind, access, links, size, times },
                }
            }
            2 => {
                let (cookie, child) = (f.u64()?, Ino(f.u64()?));
                let (kind, name) = (InodeKind::from_code(f.u8()?)?, name(f)?);
                // The largest cookie is refused, because the next entry would have none.
                let cookie = (cookie < u64::MAX).then_some(cookie)?;
                MetadataRecord::Entry { dir: ino, cookie, child, kind, name }
            }
            3 => MetadataRecord::RemoveEntry { dir: ino, name: name(f)? },
            4 => {
                let (at, count, phys) = (f.u32()?, f.u32()?, f.u32()?);
                let written = f.flag()?;
                at.checked_add(count).and(phys.checked_add(count))?;
                (count > 0).then_some(())?;
                MetadataRecord::Map {
                    ino,
                    extent: FileExtent { logical: at, count, phys, written },
                }
            }
            5 => MetadataRecord::Unmap { ino, logical: f.u32()?, count: f.u32()? },
            6 => MetadataRecord::RemoveInode { ino },
            7 => MetadataRecord::NextInode { ino },
            8 => {
                let (offset, len) = (f.u64()?, usize::from(f.u16()?));
                let within = (offset % BLOCK as u64) as usize;
                let fits = len > 0 && within + len <= BLOCK && offset < FILE_BYTES_MAX;
                fits.then_some(())?;
                MetadataRecord::Data { ino, offset, bytes: f.bytes(len)? }
            }
            _ => return None,
        })
    }
}

fn name<'a>(f: &mut Reader<'a>) -> Option<&'a [u8]> {
    let len = f.u8()?;
    let name = f.bytes(len.into())?;
    Name::new(name).ok().map(|_| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_cut_ones_are_none() {
        let image = InodeRecord {
            kind: InodeKind::Directory,
            access: InodePermissions { mode: 0o755, uid: 3, gid: 4 },
            links: 2,
            size: 12345,
            times: Times { access: Time(-1), modify: Time(2), change: Time(3), birth: Time(4) },
        };
        let extent = FileExtent { logical: 1, count: 2, phys: 3, written: true };
        let long = [b'n'; 255];
        let all = [
            MetadataRecord::Inode { ino: Ino(5), record: image },
            MetadataRecord::Entry {
                dir: Ino(1),
                cookie: 9,
                child: Ino(5),
                kind: InodeKind::File,
                name: b"a",
            },
            MetadataRecord::Entry {
                dir: Ino(1),
                cookie: 9,
                child: Ino(5),
                kind: InodeKind::File,
                name: &long,
            },
            MetadataRecord::RemoveEntry { dir: Ino(1), name: b"a" },
            MetadataRecord::Map { ino: Ino(5), extent },
            MetadataRecord::Unmap { ino: Ino(5), logical: 7, count: TO_EOF },
            MetadataRecord::RemoveInode { ino: Ino(5) },
            MetadataRecord::NextInode { ino: Ino(6) },
            MetadataRecord::Data { ino: Ino(5), offset: 4000, bytes: &[7; 96] },
        ];
        let data = DATA_BYTES + 96;
        let sizes = [INODE_BYTES, ENTRY_BYTES + 1, RECORD_MAX, 11, EXTENT_BYTES, 17, 9, 9, data];
        for (record, size) in all.into_iter().zip(sizes) {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert_eq!(bytes.len(), size, "{record:?}");
            let mut fields = Reader::new(&bytes);
            assert_eq!(MetadataRecord::decode(&mut fields), Some(record));
            assert!(fields.is_at_end());
            for cut in 0..bytes.len() {
                assert_eq!(
                    MetadataRecord::decode(&mut Reader::new(&bytes[..cut])),
                    None,
                    "{record:?}"
                );
            }
        }
        assert_eq!(MetadataRecord::decode(&mut Reader::new(&[9; 99])), None);
        // No bytes, bytes of two blocks, or beyond the maximum file size.
        for (offset, len) in [(0, 0), (4000, 97), (FILE_BYTES_MAX, 1)] {
            let mut bytes = Vec::new();
            MetadataRecord::Data { ino: Ino(5), offset, bytes: &vec![7; len] }.encode(&mut bytes);
            assert_eq!(MetadataRecord::decode(&mut Reader::new(&bytes)), None, "{len} at {offset}");
        }
    }
}

//! [`Table::snapshot`] and [`Table::load`]: the encoding of the partition table.
//! `docs/format/partition-table.md` is the byte map.
//!
//! A loaded table is checked as thoroughly as applied records: bytes with a valid CRC never yield
//! an inconsistent table.

use collections::{HeaderError, PutBytes, Reader, Seal, SealError, SealedHeader};
use nvme::Geometry;

use crate::table::{table_geometry, total_chunks};
use crate::{
    ChunkEntry, ChunkUse, TABLE_VERSION, TARGETS_MAX, Table, TableError, TargetEntry, Uid,
};

const MAGIC: [u8; 8] = *b"SLUICPTB";
/// Magic, version, five numbers of the geometry, identifier.
const HEADER_BYTES: usize = 8 + 2 + 5 * 4 + 16;
const CRC_BYTES: usize = 4;

/// Returns the header of a snapshot of `bytes` bytes.
fn header(bytes: usize) -> SealedHeader {
    SealedHeader {
        magic: MAGIC,
        version: TABLE_VERSION.into(),
        version_bytes: 2,
        seal: Seal::of_bytes_before(bytes.saturating_sub(CRC_BYTES)),
    }
}

impl Table {
    /// Returns the maximum size of a snapshot in bytes.
    pub fn snapshot_bytes_max(geometry: &Geometry) -> u64 {
        let chunks = geometry.total_chunks();
        let targets = TARGETS_MAX as u64 * TargetEntry::bytes_max(geometry.total_pus());
        // Sequence, next id, count; a run of chunks takes its length (a byte for up to 127 chunks)
        // and a code below 2^14.
        HEADER_BYTES as u64 + 10 + 5 + 1 + targets + 3 * chunks + 5 + CRC_BYTES as u64
    }

    /// Encodes the table for [`load`](Table::load).
    pub fn snapshot(&self) -> Vec<u8> {
        let mut w = Vec::new();
        w.put(&MAGIC).put_u16(TABLE_VERSION);
        for (_, n) in self.geometry.fields() {
            w.put_u32(n);
        }
        w.put_u128(self.uid.0);
        w.put_varint(self.sequence);
        w.put_varint(self.next_id.into());
        w.put_u8(self.targets.len() as u8);
        self.targets.iter().for_each(|t| t.encode(&mut w));
        let mut rest = &self.chunks[..];
        while let Some(first) = rest.first() {
            let len = rest.iter().position(|c| c != first).unwrap_or(rest.len());
            rest = &rest[len..];
            let slot = first
                .owner
                .and_then(|id| self.targets.binary_search_by_key(&id, |t| t.id).ok())
                .map_or(0, |i| i as u64 + 1);
            w.put_varint(len as u64);
            w.put_varint(slot << 3 | first.state as u64);
        }
        w.put_u32(0);
        Seal::of_bytes_before(w.len() - CRC_BYTES).store(&mut w);
        w
    }

    /// Decodes the table of a drive with this geometry.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn load(bytes: &[u8], geometry: &Geometry) -> Result<Table, TableError> {
        let total = total_chunks(geometry)?;
        let cut = || TableError::Truncated { bytes: bytes.len() };
        header(bytes.len()).check(bytes).map_err(|error| match error {
            HeaderError::Magic => TableError::NotATable,
            HeaderError::Truncated => cut(),
            HeaderError::Version(found) => {
                TableError::Version { found: found as u16, known: TABLE_VERSION }
            }
            HeaderError::Seal(SealError { found, computed }) => {
                TableError::Checksum { found, computed }
            }
        })?;
        let body = &bytes[..bytes.len() - CRC_BYTES];
        let mut r = Reader::new(body.get(10..).ok_or_else(cut)?);
        let bounds = table_geometry(geometry);
        for (what, wanted) in bounds.fields() {
            let found = r.u32().ok_or_else(cut)?;
            if found != wanted {
                return Err(TableError::GeometryMismatch {
                    what,
                    found: found.into(),
                    wanted: wanted.into(),
                });
            }
        }
        let uid = Uid(r.u128().ok_or_else(cut)?);
        let (sequence, next) = (r.varint().ok_or_else(cut)?, r.varint_u32().ok_or_else(cut)?);
        let free = ChunkEntry { state: ChunkUse::Free, owner: None };
        let chunks = vec![free; total as usize];
        let mut table =
            Table { geometry: bounds, uid, sequence, next_id: 1, targets: Vec::new(), chunks };
        for _ in 0..r.u8().ok_or_else(cut)? {
            let target = TargetEntry::decode(&mut r).ok_or_else(cut)?;
            table.check_entry(&target)?;
            table.next_id = target.id.0.saturating_add(1);
            table.targets.push(target);
        }
        let wrong = |what: String| Err(TableError::Inconsistent { what });
        if next < table.next_id {
            return wrong(format!("the id of the next target is {next}, which was used before"));
        }
        table.next_id = next;
        let mut at = 0u64;
        while at < u64::from(total) {
            let (len, code) = (r.varint().ok_or_else(cut)?, r.varint().ok_or_else(cut)?);
            let state = ChunkUse::ALL.get((code & 7) as usize).copied();
            let owner = match code >> 3 {
                0 => Some(None),
                slot => table.targets.get(slot as usize - 1).map(|t| Some(t.id)),
            };
            let end = at.checked_add(len).filter(|end| len > 0 && *end <= u64::from(total));
            let (Some(state), Some(owner), Some(end)) = (state, owner, end) else {
                return wrong(format!("chunks from {at} on are a run of {len} with code {code}"));
            };
            let (may, must) = state.ownership();
            if owner.is_some() && !may || owner.is_none() && must {
                return wrong(format!("chunk {at} is {state:?} with owner {owner:?}"));
            }
            let run: Vec<u32> = (at as u32..end as u32).collect();
            if let Some(spec) = owner.and_then(|id| table.target(id)).map(|t| &t.spec) {
                table.check_chunks(&run, ChunkUse::Free, None, Some(spec))?;
            }
            table.set_chunks(&run, state, owner);
            at = end;
        }
        if r.is_at_end() { Ok(table) } else { Err(cut()) }
    }
}

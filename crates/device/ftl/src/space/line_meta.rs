//! [`LineHeader`], [`LineFooter`]: a line's metadata on the media, in its first write unit and in
//! its last ones [LightNVM17 §4.2.2]. [`P2lTable`]: the metadata in memory while a line is open.
//!
//! `docs/format/line.md` is the byte map. The footer is valid only as a whole: one CRC covers all
//! of it, and it names the line's chunks and open sequence number, so that remains of an earlier
//! line are never accepted. Header and footer fit into one part in [`METADATA_DIVISOR`] of a line,
//! or the line has no metadata.

use collections::{Seal, put_at, u16_at, u32_at, u64_at};
use nvme::ChunkId;
use serde::{Deserialize, Serialize};

use crate::ids::{Lba, ToIndex, ToU32, WriteSeq};
use crate::mapping::p2l::WrittenSector;
use crate::space::open_line::PreviousLine;
use crate::{CapacityError, CapacityPlan, FlashGeometry, LineMetadata, Oob};

const HEADER_MAGIC: [u8; 8] = *b"SLUICLNF";
const FOOTER_MAGIC: [u8; 8] = *b"SLUICLNL";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 48;
/// The checksum of both headers.
const SEAL: Seal = Seal::of_all_bytes(40);
/// Metadata is at most one part in this many of a line.
const METADATA_DIVISOR: u64 = 16;
/// Divisor for lines that may have no metadata: garbage collection gains only a few write units
/// from such a line, and more metadata would take too many of them.
const METADATA_DIVISOR_AUTO: u64 = 32;
/// No line before this one.
const NO_CHUNK: u32 = u32::MAX;
/// The unit was not written.
const NO_UNIT: i32 = i32::MIN;
const POISON: u32 = 1 << 31;

/// Returns the write units of metadata in a line of this many chunks, header and footer together.
/// Returns 0 if lines have none, or need none and it does not fit.
///
/// # Errors
///
/// [`CapacityError::LineMetadata`] if lines must have metadata, and the header does not fit one
/// write unit or both together exceed one part in [`METADATA_DIVISOR`] of the line. Lines that may
/// have metadata have [none above one part in 32](METADATA_DIVISOR_AUTO).
pub(crate) fn metadata_units(
    wanted: LineMetadata,
    shape: &FlashGeometry,
    members: u32,
) -> Result<u32, CapacityError> {
    if wanted == LineMetadata::Off {
        return Ok(0);
    }
    let unit_bytes = u64::from(shape.ws_opt) * u64::from(shape.sector_bytes);
    let (first_bytes, of) = (
        header_bytes(members),
        u64::from(members) * u64::from(shape.sectors_per_chunk / shape.ws_opt),
    );
    let units = 1 + footer_bytes(shape, members).div_ceil(unit_bytes.max(1));
    let share = if wanted == LineMetadata::On { METADATA_DIVISOR } else { METADATA_DIVISOR_AUTO };
    if first_bytes <= unit_bytes && units * share <= of {
        Ok(units.to_u32())
    } else if wanted == LineMetadata::On {
        Err(CapacityError::LineMetadata { first_bytes, unit_bytes, units, of })
    } else {
        Ok(0)
    }
}

/// Returns the bytes of a header.
pub(crate) fn header_bytes(members: u32) -> u64 {
    HEADER_BYTES as u64 + 4 * u64::from(members)
}

/// Returns the bytes of a footer.
fn footer_bytes(shape: &FlashGeometry, members: u32) -> u64 {
    let rows = u64::from(shape.sectors_per_chunk / shape.ws_opt);
    let per_member = 4 + 4 * rows * (1 + u64::from(shape.ws_opt));
    HEADER_BYTES as u64 + u64::from(members) * per_member
}

/// Returns the location of the `piece`-th of `last` write units of a footer in a line of `members`
/// chunks: the member and its first sector. They are the line's last units, counted across all
/// members' first units, then all members' second, and so on.
pub(crate) fn footer_unit_location(
    shape: &FlashGeometry,
    members: u32,
    last: u32,
    piece: u32,
) -> (u32, u32) {
    let at = u64::from(members) * u64::from(shape.sectors_per_chunk / shape.ws_opt)
        - u64::from(last - piece);
    let (row, member) = (at / u64::from(members), at % u64::from(members));
    (member.to_u32(), row.to_u32() * shape.ws_opt)
}

/// Returns the sector that ends the data of a member, when the footer takes `last` write units.
pub(crate) fn data_end(shape: &FlashGeometry, members: u32, last: u32, member: u32) -> u32 {
    let all =
        u64::from(members) * u64::from(shape.sectors_per_chunk / shape.ws_opt) - u64::from(last);
    let rows = (all + u64::from(members - 1 - member)) / u64::from(members);
    rows.to_u32() * shape.ws_opt
}

/// Permanent identity of a line: no other line was opened with its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineIdentity {
    pub(crate) owner: u32,
    pub(crate) stream: u8,
    /// Sequence number of the next write unit when the line was opened; lines are ordered by it.
    pub(crate) open_seq: WriteSeq,
}

impl LineIdentity {
    fn encode_header(&self, magic: [u8; 8], members: &[ChunkId]) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES + 4 * members.len()];
        put_at(&mut out, 0, &magic);
        put_at(&mut out, 8, &VERSION.to_le_bytes());
        out[10] = self.stream;
        put_at(&mut out, 12, &self.owner.to_le_bytes());
        put_at(&mut out, 16, &self.open_seq.get().to_le_bytes());
        for (to, chunk) in out[HEADER_BYTES..].chunks_exact_mut(4).zip(members) {
            to.copy_from_slice(&chunk.get().to_le_bytes());
        }
        out
    }

    /// Decodes the fields that header and footer share; `members` is the number of chunks.
    fn decode_header(
        bytes: &[u8],
        magic: [u8; 8],
        owner: u32,
        members: usize,
    ) -> Option<LineIdentity> {
        let head = bytes.get(..HEADER_BYTES)?;
        let name = LineIdentity { owner, stream: head[10], open_seq: WriteSeq(u64_at(head, 16)?) };
        let sound = head[..8] == magic && u16_at(head, 8)? == VERSION && u32_at(head, 12)? == owner;
        let whole = bytes.len() >= HEADER_BYTES + 4 * members && SEAL.is_intact(bytes);
        (sound && whole).then_some(name)
    }
}

/// Contents of a line's header, its first write unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineHeader {
    pub(crate) identity: LineIdentity,
    /// The line opened before in this stream: its opening number and first chunk.
    pub(crate) previous: Option<PreviousLine>,
    pub(crate) members: Vec<ChunkId>,
}

impl LineHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.identity.encode_header(HEADER_MAGIC, &self.members);
        let (opening, chunk) = self.previous.map_or((0, NO_CHUNK), |previous| {
            (previous.open_seq.get(), previous.first_chunk.get())
        });
        put_at(&mut out, 24, &opening.to_le_bytes());
        put_at(&mut out, 32, &chunk.to_le_bytes());
        put_at(&mut out, 36, &self.members.len().to_u32().to_le_bytes());
        SEAL.store(&mut out);
        out
    }

    /// Decodes a header; `None` unless the bytes are one of `owner`, of a line of `members` chunks.
    pub(crate) fn decode(
        shape: &FlashGeometry,
        owner: u32,
        members: u32,
        bytes: &[u8],
    ) -> Option<LineHeader> {
        let bytes = bytes.get(..header_bytes(members).index())?;
        let name = LineIdentity::decode_header(bytes, HEADER_MAGIC, owner, members.index())?;
        let chunk = u32_at(bytes, 32)?;
        let previous = match chunk {
            NO_CHUNK => None,
            first_chunk => Some(PreviousLine {
                open_seq: WriteSeq(u64_at(bytes, 24)?),
                first_chunk: ChunkId(first_chunk),
            }),
        };
        let members =
            chunks_of(shape, &bytes[HEADER_BYTES..]).filter(|m| m.len().to_u32() == members)?;
        (u32_at(bytes, 36)?.index() == members.len()).then_some(LineHeader {
            identity: name,
            previous,
            members,
        })
    }
}

fn chunks_of(shape: &FlashGeometry, bytes: &[u8]) -> Option<Vec<ChunkId>> {
    let word = |w: &[u8; 4]| {
        Some(u32::from_le_bytes(*w)).filter(|c| *c < shape.total_chunks()).map(ChunkId)
    };
    bytes.as_chunks::<4>().0.iter().map(word).collect()
}

/// Physical-to-logical table of a line: the sequence number of each write unit, and the logical
/// sector of each sector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct P2lTable {
    open_seq: WriteSeq,
    sectors: u32,
    ws_opt: u32,
    /// By member and write unit, its sequence number less the opening one.
    seq_deltas: Vec<i32>,
    /// By member and sector, logical sector + 1 and bit 31 for poison; 0 for none.
    entries: Vec<u32>,
    /// Whether a sequence number did not fit: the line gets no footer.
    seq_overflow: bool,
}

impl P2lTable {
    /// Creates the table of a line of `members` chunks in which nothing was written.
    pub(crate) fn new(shape: &FlashGeometry, members: u32, open_seq: WriteSeq) -> P2lTable {
        let sectors = members.index() * shape.sectors_per_chunk.index();
        P2lTable {
            open_seq,
            sectors: shape.sectors_per_chunk,
            ws_opt: shape.ws_opt,
            seq_deltas: vec![NO_UNIT; sectors / shape.ws_opt.index()],
            entries: vec![0; sectors],
            seq_overflow: false,
        }
    }

    fn entry_index(&self, member: u32, sector: u32) -> usize {
        member.index() * self.sectors.index() + sector.index()
    }

    /// Records that a write unit with this sequence number and these entries was written at a
    /// member's sector.
    pub(crate) fn record(
        &mut self,
        member: u32,
        sector: u32,
        number: WriteSeq,
        words: impl Iterator<Item = WrittenSector>,
    ) {
        let at = self.entry_index(member, sector);
        let delta = i32::try_from(number.get().wrapping_sub(self.open_seq.get()) as i64);
        self.seq_overflow |= delta.is_err() || delta == Ok(NO_UNIT);
        self.seq_deltas[at / self.ws_opt.index()] = delta.unwrap_or(NO_UNIT);
        for (word, WrittenSector { lba, poison }) in
            self.entries[at..at + self.ws_opt.index()].iter_mut().zip(words)
        {
            *word = lba.map_or(0, |l| l.get() + 1) | if poison { POISON } else { 0 };
        }
    }

    /// Removes the write unit at a member's sector.
    pub(crate) fn erase_unit(&mut self, member: u32, sector: u32) {
        let at = self.entry_index(member, sector);
        self.seq_deltas[at / self.ws_opt.index()] = NO_UNIT;
        self.entries[at..at + self.ws_opt.index()].fill(0);
    }

    /// Records the logical sector found at a member's sector.
    pub(crate) fn record_lba(&mut self, member: u32, sector: u32, lba: Lba) {
        let at = self.entry_index(member, sector);
        self.entries[at] = lba.get() + 1;
    }

    /// Returns the logical sector that was written at a member's sector.
    #[inline]
    pub(crate) fn lba(&self, member: u32, sector: u32) -> Option<Lba> {
        (self.entries[self.entry_index(member, sector)] & !POISON).checked_sub(1).map(Lba)
    }

    /// Returns the out-of-band bytes of a member's sector; `None` where nothing was written.
    pub(crate) fn oob(&self, member: u32, sector: u32) -> Option<Oob> {
        let at = self.entry_index(member, sector);
        let delta = Some(self.seq_deltas[at / self.ws_opt.index()]).filter(|n| *n != NO_UNIT)?;
        let sequence = self.open_seq.get().checked_add_signed(delta.into())?;
        let word = self.entries[at];
        let (lba, poison) = ((word & !POISON).checked_sub(1).map(Lba), word & POISON != 0);
        Some(Oob { lba, poison, metadata: false, sequence: WriteSeq(sequence) })
    }

    /// Returns its size in memory, in bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.seq_deltas.len() + self.entries.len())
    }
}

/// Contents of a line's footer, its last write units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineFooter {
    pub(crate) identity: LineIdentity,
    pub(crate) p2l: P2lTable,
}

impl LineFooter {
    /// Encodes a footer; `None` if a unit's sequence number is too far from the line's.
    pub(crate) fn encode(
        name: LineIdentity,
        members: &[ChunkId],
        list: &P2lTable,
    ) -> Option<Vec<u8>> {
        if list.seq_overflow {
            return None;
        }
        let mut out = name.encode_header(FOOTER_MAGIC, members);
        put_at(&mut out, 24, &members.len().to_u32().to_le_bytes());
        put_at(&mut out, 28, &(list.sectors / list.ws_opt).to_le_bytes());
        put_at(&mut out, 32, &list.ws_opt.to_le_bytes());
        out.reserve_exact(4 * (list.seq_deltas.len() + list.entries.len()));
        out.extend(list.seq_deltas.iter().flat_map(|n| n.to_le_bytes()));
        out.extend(list.entries.iter().flat_map(|w| w.to_le_bytes()));
        SEAL.store(&mut out);
        Some(out)
    }

    /// Decodes a footer; `None` unless the bytes are one of `owner`, of a line of exactly these
    /// chunks.
    pub(crate) fn decode(
        shape: &FlashGeometry,
        owner: u32,
        members: &[ChunkId],
        bytes: &[u8],
    ) -> Option<LineFooter> {
        let count = members.len().to_u32();
        let bytes = bytes.get(..footer_bytes(shape, count).index())?;
        let name = LineIdentity::decode_header(bytes, FOOTER_MAGIC, owner, members.len())?;
        let (named, body) = bytes[HEADER_BYTES..].split_at(4 * members.len());
        let rows = shape.sectors_per_chunk / shape.ws_opt;
        let facts = [u32_at(bytes, 24)?, u32_at(bytes, 28)?, u32_at(bytes, 32)?];
        if facts != [count, rows, shape.ws_opt] || chunks_of(shape, named)? != members {
            return None;
        }
        let mut list = P2lTable::new(shape, count, name.open_seq);
        let (numbers, words) = body.split_at(4 * list.seq_deltas.len());
        for (to, from) in list.seq_deltas.iter_mut().zip(numbers.as_chunks::<4>().0) {
            *to = i32::from_le_bytes(*from);
        }
        for (to, from) in list.entries.iter_mut().zip(words.as_chunks::<4>().0) {
            *to = u32::from_le_bytes(*from);
        }
        Some(LineFooter { identity: name, p2l: list })
    }

    /// Returns the write units of a footer; 0 if lines have none.
    pub(crate) fn units(layout: &CapacityPlan) -> u32 {
        layout.line_metadata_units.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests;

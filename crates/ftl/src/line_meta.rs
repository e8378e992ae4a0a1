//! [`FirstMeta`], [`LastMeta`]: what a line says of itself on the media, in its first write unit and
//! in its last ones (LightNVM paper section 4.2.2: "block-level metadata, on the first and last page
//! of each block"); [`LineList`]: the same in memory while a line is written.
//!
//! `docs/format/line.md` is the byte map. The last metadata is valid only as a whole: one CRC covers
//! all of it, and it names the line's chunks and opening number, so that what is left of an earlier
//! line is never taken for it. Both fit into one part in [`SHARE`] of a line, or it has none.

use crate::{CapacityError, Layout, LineMetadata, Oob, Shape};

const FIRST: [u8; 8] = *b"SLUICLNF";
const LAST: [u8; 8] = *b"SLUICLNL";
const VERSION: u16 = 1;
const HEADER: usize = 48;
/// Where the CRC is in both headers.
const CRC: usize = 40;
/// Metadata is at most one part in this many of a line.
const SHARE: u64 = 16;
/// The same, of lines that may do without: what garbage collection wins of such a line is a few write
/// units, and more metadata would take too many of them.
const SHARE_UNASKED: u64 = 32;
/// No line before this one.
const NO_CHUNK: u32 = u32::MAX;
/// The unit holds nothing.
const NO_UNIT: i32 = i32::MIN;
const POISON: u32 = 1 << 31;

/// Write units of metadata in a line of this many chunks, first and last together; 0 if lines are to
/// have none, or may have and it does not fit.
///
/// # Errors
/// [`CapacityError::LineMetadata`] if they must have and the first does not fit one write unit, or
/// both together are more than one part in [`SHARE`] of the line; those that may have [none above one part
/// in 32](SHARE_UNASKED).
pub(crate) fn units(
    wanted: LineMetadata,
    shape: &Shape,
    members: u32,
) -> Result<u32, CapacityError> {
    if wanted == LineMetadata::Off {
        return Ok(0);
    }
    let unit_bytes = u64::from(shape.unit) * u64::from(shape.sector_bytes);
    let (first_bytes, of) =
        (first_bytes(members), u64::from(members) * u64::from(shape.sectors / shape.unit));
    let units = 1 + last_bytes(shape, members).div_ceil(unit_bytes.max(1));
    let share = if wanted == LineMetadata::On { SHARE } else { SHARE_UNASKED };
    if first_bytes <= unit_bytes && units * share <= of {
        Ok(units as u32)
    } else if wanted == LineMetadata::On {
        Err(CapacityError::LineMetadata { first_bytes, unit_bytes, units, of })
    } else {
        Ok(0)
    }
}

/// Bytes of the first metadata.
pub(crate) fn first_bytes(members: u32) -> u64 {
    HEADER as u64 + 4 * u64::from(members)
}

/// Bytes of the last metadata.
fn last_bytes(shape: &Shape, members: u32) -> u64 {
    let rows = u64::from(shape.sectors / shape.unit);
    let per_member = 4 + 4 * rows * (1 + u64::from(shape.unit));
    HEADER as u64 + u64::from(members) * per_member
}

/// The place of the `piece`-th of `last` write units of last metadata in a line of `members` chunks:
/// the member and its first sector. They are the line's last units, counted across all members'
/// first units, then all members' second, and so on.
pub(crate) fn place_of_last(shape: &Shape, members: u32, last: u32, piece: u32) -> (u32, u32) {
    let at = u64::from(members) * u64::from(shape.sectors / shape.unit) - u64::from(last - piece);
    let (row, member) = (at / u64::from(members), at % u64::from(members));
    (member as u32, row as u32 * shape.unit)
}

/// The sector of a member that its data ends before, when the last metadata takes `last` write units.
pub(crate) fn data_end(shape: &Shape, members: u32, last: u32, member: u32) -> u32 {
    let all = u64::from(members) * u64::from(shape.sectors / shape.unit) - u64::from(last);
    let rows = (all + u64::from(members - 1 - member)) / u64::from(members);
    rows as u32 * shape.unit
}

/// What names a line for good: nothing else was opened with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineName {
    pub(crate) owner: u32,
    pub(crate) stream: u8,
    /// The number of the next write unit when it was opened: lines are ordered by it.
    pub(crate) opening: u64,
}

impl LineName {
    fn header(&self, magic: [u8; 8], members: &[u32]) -> Vec<u8> {
        let mut out = vec![0; HEADER + 4 * members.len()];
        out[..8].copy_from_slice(&magic);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10] = self.stream;
        out[12..16].copy_from_slice(&self.owner.to_le_bytes());
        out[16..24].copy_from_slice(&self.opening.to_le_bytes());
        for (to, chunk) in out[HEADER..].chunks_exact_mut(4).zip(members) {
            to.copy_from_slice(&chunk.to_le_bytes());
        }
        out
    }

    /// Reads what both headers have in common; `members` is how many there are.
    fn read(bytes: &[u8], magic: [u8; 8], owner: u32, members: usize) -> Option<LineName> {
        let head = bytes.get(..HEADER)?;
        let version = u16::from_le_bytes([head[8], head[9]]);
        let name = LineName { owner, stream: head[10], opening: u64_at(head, 16)? };
        let sound = head[..8] == magic && version == VERSION && u32_at(head, 12)? == owner;
        let whole = bytes.len() >= HEADER + 4 * members && crc_of(bytes) == u32_at(head, CRC)?;
        (sound && whole).then_some(name)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The CRC-32C of everything but the CRC.
fn crc_of(bytes: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC]), &[0; 4]);
    crc32c::crc32c_append(sum, &bytes[CRC + 4..])
}

fn seal(out: &mut [u8]) {
    let crc = crc_of(out);
    out[CRC..CRC + 4].copy_from_slice(&crc.to_le_bytes());
}

/// What the first write unit of a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirstMeta {
    pub(crate) name: LineName,
    /// The line opened before in this stream: its opening number and first chunk.
    pub(crate) previous: Option<(u64, u32)>,
    pub(crate) members: Vec<u32>,
}

impl FirstMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.name.header(FIRST, &self.members);
        let (opening, chunk) = self.previous.unwrap_or((0, NO_CHUNK));
        out[24..32].copy_from_slice(&opening.to_le_bytes());
        out[32..36].copy_from_slice(&chunk.to_le_bytes());
        out[36..40].copy_from_slice(&(self.members.len() as u32).to_le_bytes());
        seal(&mut out);
        out
    }

    /// Reads it; `None` for bytes that are not `owner`'s, of a line of this many chunks.
    pub(crate) fn decode(
        shape: &Shape,
        owner: u32,
        members: u32,
        bytes: &[u8],
    ) -> Option<FirstMeta> {
        let bytes = bytes.get(..first_bytes(members) as usize)?;
        let name = LineName::read(bytes, FIRST, owner, members as usize)?;
        let chunk = u32_at(bytes, 32)?;
        let previous = if chunk == NO_CHUNK { None } else { Some((u64_at(bytes, 24)?, chunk)) };
        let members = chunks_of(shape, &bytes[HEADER..]).filter(|m| m.len() as u32 == members)?;
        (u32_at(bytes, 36)? as usize == members.len()).then_some(FirstMeta {
            name,
            previous,
            members,
        })
    }
}

fn chunks_of(shape: &Shape, bytes: &[u8]) -> Option<Vec<u32>> {
    let word = |w: &[u8; 4]| Some(u32::from_le_bytes(*w)).filter(|c| *c < shape.total_chunks());
    bytes.as_chunks::<4>().0.iter().map(word).collect()
}

/// What was written in a line: of each write unit its number, of each sector the logical one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineList {
    opening: u64,
    sectors: u32,
    unit: u32,
    /// Per member and write unit: its number less the opening number.
    numbers: Vec<i32>,
    /// Per member and sector: logical sector + 1 and bit 31 for poison; 0 for nothing.
    words: Vec<u32>,
    /// A number did not fit: there is no last metadata of this list.
    broken: bool,
}

impl LineList {
    /// Of a line of this many chunks in which nothing was written.
    pub(crate) fn new(shape: &Shape, members: u32, opening: u64) -> LineList {
        let sectors = members as usize * shape.sectors as usize;
        LineList {
            opening,
            sectors: shape.sectors,
            unit: shape.unit,
            numbers: vec![NO_UNIT; sectors / shape.unit as usize],
            words: vec![0; sectors],
            broken: false,
        }
    }

    fn place(&self, member: u32, sector: u32) -> usize {
        member as usize * self.sectors as usize + sector as usize
    }

    /// A write unit of this number, with these words, is written at a member's sector.
    pub(crate) fn note(
        &mut self,
        member: u32,
        sector: u32,
        number: u64,
        words: impl Iterator<Item = (Option<u32>, bool)>,
    ) {
        let at = self.place(member, sector);
        let delta = i32::try_from(number.wrapping_sub(self.opening) as i64);
        self.broken |= delta.is_err() || delta == Ok(NO_UNIT);
        self.numbers[at / self.unit as usize] = delta.unwrap_or(NO_UNIT);
        for (word, (lba, poison)) in self.words[at..at + self.unit as usize].iter_mut().zip(words) {
            *word = lba.map_or(0, |l| l + 1) | if poison { POISON } else { 0 };
        }
    }

    /// The write unit at a member's sector is not there.
    pub(crate) fn strike(&mut self, member: u32, sector: u32) {
        let at = self.place(member, sector);
        self.numbers[at / self.unit as usize] = NO_UNIT;
        self.words[at..at + self.unit as usize].fill(0);
    }

    /// A sector's out-of-band bytes were read.
    pub(crate) fn learn(&mut self, member: u32, sector: u32, lba: u32) {
        let at = self.place(member, sector);
        self.words[at] = lba + 1;
    }

    /// The logical sector that was written at a member's sector.
    #[inline]
    pub(crate) fn lba(&self, member: u32, sector: u32) -> Option<u32> {
        (self.words[self.place(member, sector)] & !POISON).checked_sub(1)
    }

    /// What is beside a member's sector on the media; `None` where nothing was written.
    pub(crate) fn oob(&self, member: u32, sector: u32) -> Option<Oob> {
        let at = self.place(member, sector);
        let delta = Some(self.numbers[at / self.unit as usize]).filter(|n| *n != NO_UNIT)?;
        let sequence = self.opening.checked_add_signed(delta.into())?;
        let word = self.words[at];
        let (lba, poison) = ((word & !POISON).checked_sub(1), word & POISON != 0);
        Some(Oob { lba, poison, metadata: false, sequence })
    }

    /// Bytes that it takes in memory.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.numbers.len() + self.words.len())
    }
}

/// What the last write units of a line say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastMeta {
    pub(crate) name: LineName,
    pub(crate) list: LineList,
}

impl LastMeta {
    /// The bytes; `None` if a unit's number is too far from the line's.
    pub(crate) fn encode(name: LineName, members: &[u32], list: &LineList) -> Option<Vec<u8>> {
        if list.broken {
            return None;
        }
        let mut out = name.header(LAST, members);
        out[24..28].copy_from_slice(&(members.len() as u32).to_le_bytes());
        out[28..32].copy_from_slice(&(list.sectors / list.unit).to_le_bytes());
        out[32..36].copy_from_slice(&list.unit.to_le_bytes());
        out.reserve_exact(4 * (list.numbers.len() + list.words.len()));
        out.extend(list.numbers.iter().flat_map(|n| n.to_le_bytes()));
        out.extend(list.words.iter().flat_map(|w| w.to_le_bytes()));
        seal(&mut out);
        Some(out)
    }

    /// Reads it; `None` for bytes that are not `owner`'s, of a line of just these chunks.
    pub(crate) fn decode(
        shape: &Shape,
        owner: u32,
        members: &[u32],
        bytes: &[u8],
    ) -> Option<LastMeta> {
        let count = members.len() as u32;
        let bytes = bytes.get(..last_bytes(shape, count) as usize)?;
        let name = LineName::read(bytes, LAST, owner, members.len())?;
        let (named, body) = bytes[HEADER..].split_at(4 * members.len());
        let rows = shape.sectors / shape.unit;
        let facts = [u32_at(bytes, 24)?, u32_at(bytes, 28)?, u32_at(bytes, 32)?];
        if facts != [count, rows, shape.unit] || chunks_of(shape, named)? != members {
            return None;
        }
        let mut list = LineList::new(shape, count, name.opening);
        let (numbers, words) = body.split_at(4 * list.numbers.len());
        for (to, from) in list.numbers.iter_mut().zip(numbers.as_chunks::<4>().0) {
            *to = i32::from_le_bytes(*from);
        }
        for (to, from) in list.words.iter_mut().zip(words.as_chunks::<4>().0) {
            *to = u32::from_le_bytes(*from);
        }
        Some(LastMeta { name, list })
    }

    /// Write units that it takes in a line of the layout; 0 if lines have none.
    pub(crate) fn units(layout: &Layout) -> u32 {
        layout.line_meta.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests;

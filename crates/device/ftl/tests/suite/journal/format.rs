//! A second reader of the format, written from `docs/format/journal.md` alone. It computes the
//! contents that a recovery must find, and shares no code with the journal, not even the CRC.

use std::collections::BTreeMap;

use super::flash::TestFlash;

/// Contents of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) snapshot: Option<Vec<u8>>,
    pub(crate) records: Vec<Vec<u8>>,
}

/// A frame of a kind other than padding.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) replica: u8,
    pub(crate) generation: u64,
    pub(crate) index: u32,
    pub(crate) continues: usize,
    pub(crate) payload: Vec<u8>,
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

pub(crate) fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize];
    !bytes.iter().fold(!0, step)
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Returns the frame in a write unit; `None` for padding and for units that are not frames.
pub(crate) fn frame(unit: &[u8]) -> Option<Frame> {
    let is_frame = &unit[..8] == b"SLUICJNL"
        && unit[8..10] == [1, 0]
        && number(&unit[44..48]) == u64::from(crc(&unit[..44]))
        && unit[10] > 1;
    if !is_frame {
        return None;
    }
    let payload = unit[48..][..number(&unit[28..32]) as usize].to_vec();
    (number(&unit[36..40]) == u64::from(crc(&payload))).then(|| Frame {
        kind: unit[10],
        replica: unit[11],
        generation: number(&unit[16..24]),
        index: number(&unit[24..28]) as u32,
        continues: number(&unit[32..36]) as usize,
        payload,
    })
}

/// Returns all readable frames with their chunks. `with_dead` includes those that cannot be read
/// until the next power-on.
pub(crate) fn frames(flash: &TestFlash, with_dead: bool) -> Vec<(u32, Frame)> {
    let size = flash.geometry.sector_bytes as usize;
    let mut all = Vec::new();
    for (chunk, cells) in flash.chunks.iter().filter(|(_, cells)| !cells.bad) {
        for (unit, dead) in cells.units.iter().zip(&cells.dead) {
            let Some(frame) = unit.as_deref().and_then(frame) else { continue };
            let sectors = (48 + frame.payload.len()).div_ceil(size) as u32;
            if with_dead || dead & (u64::MAX >> (64 - sectors)) == 0 {
                all.push((*chunk, frame));
            }
        }
    }
    all
}

/// Returns the contents that a recovery must find.
pub(crate) fn content(flash: &TestFlash, with_dead: bool) -> Content {
    contents(flash, with_dead).into_iter().next().unwrap_or_default()
}

/// Returns the contents of every complete generation, the newest first.
pub(crate) fn contents(flash: &TestFlash, with_dead: bool) -> Vec<Content> {
    let mut generations: BTreeMap<u64, BTreeMap<u32, Frame>> = BTreeMap::new();
    for (_, frame) in frames(flash, with_dead) {
        let frames = generations.entry(frame.generation).or_default();
        if let Some(twin) = frames.insert(frame.index, frame.clone()) {
            assert_eq!(twin.payload, frame.payload, "two frames with the same index differ");
        }
    }
    generations.values().rev().filter_map(read).collect()
}

fn read(frames: &BTreeMap<u32, Frame>) -> Option<Content> {
    let frames: Vec<&Frame> = frames
        .values()
        .enumerate()
        .take_while(|(i, f)| f.index as usize == *i)
        .map(|f| f.1)
        .collect();
    let end = frames.iter().position(|f| f.kind == 2 || f.kind == 4)?;
    let mut content = Content::default();
    if frames[end].kind == 4 {
        content.snapshot = Some(frames[..=end].iter().flat_map(|f| f.payload.clone()).collect());
    }
    let mut rest: Vec<u8> = Vec::new();
    for frame in &frames[end + 1..] {
        assert_eq!(frame.kind, 5, "only records may follow the snapshot");
        if frame.continues == 0 {
            rest.clear();
        } else {
            assert!(!rest.is_empty(), "a continued record must have a beginning");
        }
        rest.extend_from_slice(&frame.payload);
        while rest.len() >= 4 && rest.len() >= 4 + number(&rest[..4]) as usize {
            let record = rest.drain(..4 + number(&rest[..4]) as usize).skip(4).collect();
            content.records.push(record);
        }
    }
    Some(content)
}

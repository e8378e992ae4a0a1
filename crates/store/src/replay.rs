//! [`Replay`]: brings data that the journal has to where it belongs: in place, before the journal is given
//! up, or, if nothing may be written, into frames that stay. One block at a time.
//!
//! Nothing of it is recorded before the first snapshot: a power cut leaves the journal as it was, and it
//! is done again. New blocks are free ones, and whatever comes of a block in place the journal has again.

use std::sync::Arc;

use block::{Device, Op};
use clock::Nanos;
use ring::{Iova, Region};

use crate::extents::{Extent, Place};
use crate::flights::Flights;
use crate::loading::Loaded;
use crate::parts::{Part, Parts};
use crate::space::Space;
use crate::{BLOCK, Finding, Ino, OpenError};

/// A block of a file, as it should be.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) ino: Ino,
    pub(crate) block: u32,
    pub(crate) bytes: Vec<u8>,
}

/// What was read, with its data in place.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) loaded: Loaded,
    pub(crate) space: Space,
    /// What could not be written, because nothing may be.
    pub(crate) kept: Vec<Whole>,
    pub(crate) blocks: u64,
}

/// The block whose turn it is.
#[derive(Debug)]
struct Turn {
    ino: Ino,
    block: u32,
    part: Part,
    /// Where it is, or will be; `None` in a hole if nothing may be written.
    extent: Option<Extent>,
    writing: bool,
}

/// Brings data to where it belongs.
#[derive(Debug)]
pub(crate) struct Replay {
    region: Arc<Region>,
    at: Iova,
    flights: Flights<()>,
    read_only: bool,
    replayed: Option<Replayed>,
    parts: Parts,
    turn: Option<Turn>,
}

impl Replay {
    /// Of what was read, and is not damaged.
    pub(crate) fn new<D: Device>(
        device: &D,
        mut loaded: Loaded,
        read_only: bool,
    ) -> Result<Replay, OpenError> {
        let (region, at) = device.memory().provide(BLOCK)?;
        let mut parts = std::mem::take(&mut loaded.parts);
        drop_leftovers(&mut loaded, &mut parts);
        let tree = &loaded.tree;
        let mut used: Vec<(u32, u32)> =
            tree.iter().flat_map(|(_, n)| n.extents.iter().map(|e| (e.phys, e.count))).collect();
        used.sort_unstable();
        let layout = loaded.superblock.layout;
        let space = Space::new(layout.data(), layout.second(), &used);
        let replayed = Some(Replayed { loaded, space, kept: Vec::new(), blocks: 0 });
        let flights = Flights::new(device.limits());
        Ok(Replay { region, at, flights, read_only, replayed, parts, turn: None })
    }

    /// Goes on; the result when there is one.
    pub(crate) fn poll<D: Device>(
        &mut self,
        device: &mut D,
        now: Nanos,
    ) -> Option<Result<Replayed, OpenError>> {
        device.poll(now);
        while let Some(completion) = device.reap() {
            let Some(((), status)) = self.flights.ended(&completion) else { continue };
            let Some(turn) = self.turn.take() else { continue };
            if !status.is_success() {
                let block = turn.extent.map_or(0, |e| e.phys);
                let offset = u64::from(block) * BLOCK as u64;
                return Some(Err(OpenError::Io { offset, status }));
            }
            self.go_on(turn, true);
        }
        while self.turn.is_none() {
            let Some(((ino, block), part)) = self.parts.pop() else {
                return self.replayed.take().map(Ok);
            };
            if let Err(error) = self.begin(ino, block, part) {
                return Some(Err(error));
            }
        }
        if self.flights.send(device, now) {
            device.poll(now);
        }
        None
    }

    fn begin(&mut self, ino: Ino, block: u32, part: Part) -> Result<(), OpenError> {
        let Some(Replayed { loaded, space, .. }) = &mut self.replayed else { return Ok(()) };
        let Some(node) = loaded.tree.find(ino) else { return Ok(()) };
        let (extent, written) = match node.extents.find(block) {
            Place::At(extent) => (Some(Extent { count: 1, ..extent }), extent.written),
            Place::Hole { .. } if self.read_only => (None, false),
            Place::Hole { .. } => {
                let Some((phys, count)) = space.take(node.extents.goal(block), 1) else {
                    let first = Finding::NoRoom { blocks: 1 + self.parts.len() as u64 };
                    return Err(OpenError::Damaged { first, count: 1 });
                };
                (Some(Extent { at: block, count, phys, written: false }), false)
            }
        };
        let turn = Turn { ino, block, part, extent, writing: false };
        match extent.filter(|_| written && !turn.part.is_whole()) {
            Some(extent) => {
                self.flights.blocks((), Op::Read, (extent.phys, 1), self.at, false);
                self.turn = Some(turn);
            }
            None => self.go_on(turn, false),
        }
        Ok(())
    }

    /// The block was read, or need not be; or it was written.
    fn go_on(&mut self, mut turn: Turn, read: bool) {
        let Some(Replayed { loaded, kept, blocks, .. }) = &mut self.replayed else { return };
        let Turn { ino, block, .. } = turn;
        if turn.writing {
            if let Some(extent) = turn.extent {
                loaded.tree.map(ino, Extent { written: true, ..extent });
            }
            return;
        }
        let mut bytes = vec![0; BLOCK];
        if read {
            self.region.read(0, &mut bytes);
        }
        turn.part.put(&mut bytes);
        // Behind the end of a file there are zeros.
        let size = loaded.tree.find(ino).map_or(0, |n| n.size);
        let end = crate::cached::bytes_within(size, block) as usize;
        bytes[end..].fill(0);
        *blocks += 1;
        match turn.extent.filter(|_| !self.read_only) {
            Some(extent) => {
                self.region.write(0, &bytes);
                self.flights.blocks((), Op::Write, (extent.phys, 1), self.at, false);
                turn.writing = true;
                self.turn = Some(turn);
            }
            None => kept.push(Whole { ino, block, bytes }),
        }
    }
}

/// What belongs to nobody any more goes.
fn drop_leftovers(loaded: &mut Loaded, parts: &mut Parts) {
    let tree = &mut loaded.tree;
    // Whoever had them open is gone.
    let orphans: Vec<Ino> = tree.iter().filter(|(_, n)| n.links == 0).map(|(i, _)| i).collect();
    for ino in orphans {
        tree.remove(ino);
        parts.remove(ino, 0, u32::MAX);
    }
    // What was written, but never became part of its file.
    let sizes: Vec<(Ino, u32)> =
        tree.iter().map(|(ino, n)| (ino, n.size.div_ceil(BLOCK as u64) as u32)).collect();
    for (ino, end) in sizes {
        let Some(node) = tree.find(ino) else { continue };
        let beyond: Vec<_> = node.extents.from(end).filter(|e| e.written).collect();
        for extent in beyond {
            tree.unmap(ino, extent.at, extent.count, |_, _| {});
        }
    }
}

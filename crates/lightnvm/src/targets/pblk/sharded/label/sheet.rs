//! [`Sheet`]: the registered memory that labels are written from and read into, and their commands.

use std::sync::Arc;

use ftl::{Job, Shape};
use ring::{AddressSpace, Iova, Region};

use super::super::LabelError;
use super::scribe::Command;
use super::{BYTES, Label, Read};
use crate::vector::{Addresses, MemoryError, Sectors, VectorQueue, register};

/// A write unit, its out-of-band bytes behind it, which are those of padding, and a sector that is read.
#[derive(Debug)]
pub(crate) struct Sheet {
    label: Label,
    memory: Arc<Region>,
    at: Iova,
    oob_at: Iova,
    read_at: usize,
}

impl Sheet {
    /// A sheet for `label` on flash of this shape, with `oob_bytes` beside each sector.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(super) fn new(
        label: Label,
        shape: &Shape,
        oob_bytes: u32,
        space: &AddressSpace,
    ) -> Result<Sheet, MemoryError> {
        let (unit, oob) = (shape.unit as usize, oob_bytes as usize);
        let data = unit * shape.sector_bytes as usize;
        // Where the drive may want a sector to begin.
        let read_at = (data + unit * oob).next_multiple_of(shape.sector_bytes as usize);
        let bytes = read_at + shape.sector_bytes as usize;
        let (memory, at) = register(space, bytes, "the label")?;
        for i in 0..unit {
            memory.write(data + i * oob, &Job::PADDING.encode());
        }
        let oob_at = at.offset(data as u64);
        Ok(Sheet { label, memory, at, oob_at, read_at })
    }

    /// The label that it is for.
    pub(super) fn label(&self) -> Label {
        self.label
    }

    /// Submits a command. Returns whether the queue had room for it. No other is under way.
    pub(super) fn send(
        &self,
        queue: &mut VectorQueue,
        addresses: &Addresses,
        command: Command,
        user: u64,
    ) -> bool {
        let first = |chunk| std::iter::once(addresses.chunk(chunk));
        match command {
            Command::Read { chunk } => {
                self.memory.fill(self.read_at, BYTES, 0);
                let data = Sectors::Run(self.at.offset(self.read_at as u64));
                queue.read(first(chunk), data, None, user).is_ok()
            }
            Command::Erase { chunk } => queue.reset(first(chunk), user).is_ok(),
            Command::Program { chunk, unit, generation } => {
                self.memory.write(0, &self.label.encode(generation));
                let shape = addresses.shape();
                let first = shape.first_psn(chunk) + unit * shape.unit;
                let ppas = (0..shape.unit as usize).map(|i| addresses.sector(first + i as u32));
                queue.write(ppas, Sectors::Run(self.at), Some(self.oob_at), user).is_ok()
            }
        }
    }

    /// What was read: `None` if it is no label.
    pub(super) fn found(&self) -> Option<Result<Read, LabelError>> {
        let mut bytes = [0; BYTES];
        self.memory.read(self.read_at, &mut bytes);
        Label::decode(&bytes)
    }

    /// The generation of what was read, if it says the same.
    pub(super) fn generation(&self) -> Option<u64> {
        match self.found() {
            Some(Ok((label, generation))) if label == self.label => Some(generation),
            _ => None,
        }
    }
}

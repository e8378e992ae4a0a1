//! [`Label`]: what says on the media how a drive is sharded.
//!
//! Which chunk belongs to which shard, and which sector, follows from the number of shards and the
//! width of a stripe, so that these are on the media where they can be found without knowing them:
//! in two of the first four chunks in striping order, which belong to no shard. The byte map is
//! `docs/format/shards.md`.
//!
//! Guarantees: no shard writes anything before a label is on the media; while nothing but labels is
//! written the drive is as good as new, so that a power cut at any moment leaves a drive that
//! opens; a label is never rewritten once there is something to lose.

use ftl::{Found, Job, Shape};
use nvme::Status;
use ring::Iova;

use super::super::PblkError;
use super::{LabelError, ShardedError};
use crate::vector::{Addresses, Sectors, VectorEnded, VectorQueue, register};

/// Chunks that may hold the label.
pub(crate) const PLACES: usize = 4;
/// Copies that are written.
const COPIES: usize = 2;

const MAGIC: [u8; 8] = *b"SLUICSHD";
const VERSION: u16 = 1;
const BYTES: usize = 20;
const CRC_AT: usize = 16;

/// Calls of the pump without an answer after which a drive counts as dead.
const PATIENCE: u64 = 30_000_000;

/// How a drive is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) shards: u16,
    pub(crate) stripe_sectors: u32,
}

/// The chunks that may hold the label: the first in striping order. `None` if there are too few.
pub(crate) fn places(shape: &Shape) -> Option<[u32; PLACES]> {
    let pus = || (0..shape.pus).map(|i| shape.striped_pu(i));
    let mut all = (0..shape.chunks).flat_map(|n| pus().map(move |pu| pu * shape.chunks + n));
    let mut places = [0; PLACES];
    for place in &mut places {
        *place = all.next()?;
    }
    Some(places)
}

impl Label {
    fn encode(self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&self.shards.to_le_bytes());
        out[12..16].copy_from_slice(&self.stripe_sectors.to_le_bytes());
        let crc = crc32c::crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if the bytes are no label.
    fn decode(bytes: &[u8; BYTES]) -> Option<Result<Label, LabelError>> {
        let [m @ .., v0, v1, s0, s1, t0, t1, t2, t3, c0, c1, c2, c3] = *bytes;
        if m != MAGIC || u32::from_le_bytes([c0, c1, c2, c3]) != crc32c::crc32c(&bytes[..CRC_AT]) {
            return None;
        }
        let found = u16::from_le_bytes([v0, v1]);
        if found != VERSION {
            return Some(Err(LabelError::Version { found, known: VERSION }));
        }
        let shards = u16::from_le_bytes([s0, s1]);
        Some(Ok(Label { shards, stripe_sectors: u32::from_le_bytes([t0, t1, t2, t3]) }))
    }

    fn check(self, wanted: Label) -> Result<(), LabelError> {
        if self == wanted {
            return Ok(());
        }
        Err(LabelError::Other {
            shards: self.shards.into(),
            stripe_sectors: self.stripe_sectors,
            wanted_shards: wanted.shards.into(),
            wanted_stripe_sectors: wanted.stripe_sectors,
        })
    }
}

/// Reads and writes labels, one command at a time.
pub(crate) struct Desk<'a> {
    queue: &'a mut VectorQueue,
    addresses: &'a Addresses,
    pump: &'a mut dyn FnMut(),
    /// A write unit, and its out-of-band bytes behind it: those of padding.
    memory: std::sync::Arc<ring::Region>,
    at: Iova,
    oob_at: Iova,
}

impl<'a> Desk<'a> {
    pub(crate) fn new(
        queue: &'a mut VectorQueue,
        addresses: &'a Addresses,
        pump: &'a mut dyn FnMut(),
    ) -> Result<Desk<'a>, ShardedError> {
        let shape = addresses.shape();
        let (unit, oob) = (shape.unit as usize, addresses.oob_bytes() as usize);
        let data = unit * shape.sector_bytes as usize;
        let space = queue.port().clone();
        let (memory, at) =
            register(space.memory(), data + unit * oob, "the label").map_err(PblkError::from)?;
        for i in 0..unit {
            memory.write(data + i * oob, &Job::PADDING.encode());
        }
        let oob_at = at.offset(data as u64);
        Ok(Desk { queue, addresses, pump, memory, at, oob_at })
    }

    /// Makes sure that the drive is sharded as `wanted`. `found` are the label's places; `written`
    /// is how many chunks the shards have written.
    ///
    /// # Errors
    /// [`LabelError`]; [`PblkError::Command`] and [`PblkError::Timeout`].
    pub(crate) fn settle(
        &mut self,
        wanted: Label,
        found: &[(u32, Found); PLACES],
        written: u32,
    ) -> Result<(), ShardedError> {
        let (mut copies, mut refused, mut free) = (0, None, Vec::new());
        for &(chunk, state) in found {
            match state {
                Found::Free => free.push(chunk),
                Found::Open(_) | Found::Closed(_) | Found::Failing(_) => {
                    match self.read(chunk, state)? {
                        Some(Ok(label)) => match label.check(wanted) {
                            Ok(()) => copies += 1,
                            Err(e) => refused = Some(e),
                        },
                        Some(Err(e)) => refused = Some(e),
                        None => {}
                    }
                }
                Found::Bad | Found::Foreign => {}
            }
        }
        if written > 0 {
            if let Some(error) = refused {
                return Err(error.into());
            }
            if copies == 0 {
                let error = LabelError::Missing { chunks: written, places: PLACES };
                return Err(error.into());
            }
        } else if copies < COPIES {
            // As good as new: whatever is in the label's places can go.
            copies = 0;
            free.clear();
            for &(chunk, state) in found {
                let clean = match state {
                    Found::Bad | Found::Foreign => false,
                    Found::Free => true,
                    _ => self.erase(chunk)?,
                };
                if clean {
                    free.push(chunk);
                }
            }
        }
        for chunk in free {
            if copies < COPIES && self.write(wanted, chunk)? {
                copies += 1;
            }
        }
        if copies == 0 {
            return Err(LabelError::Unwritable { places: PLACES }.into());
        }
        Ok(())
    }

    /// Write units of a label: what can be read of a chunk that is written so far is the first.
    fn units(&self) -> u32 {
        let shape = self.addresses.shape();
        (1 + shape.pair.div_ceil(shape.unit)).min(shape.sectors / shape.unit)
    }

    fn read(
        &mut self,
        chunk: u32,
        state: Found,
    ) -> Result<Option<Result<Label, LabelError>>, ShardedError> {
        let readable = match state {
            Found::Open(written) => written >= self.units() * self.addresses.shape().unit,
            Found::Closed(written) | Found::Failing(written) => written > 0,
            _ => false,
        };
        if !readable {
            return Ok(None);
        }
        let ppas = std::iter::once(self.addresses.chunk(chunk));
        let submitted = self.queue.read(ppas, Sectors::Run(self.at), None, 0).is_ok();
        let done = self.wait("Vector Chunk Read", chunk, submitted)?;
        let mut bytes = [0; BYTES];
        self.memory.read(0, &mut bytes);
        Ok(if done.status.is_success() { Label::decode(&bytes) } else { None })
    }

    /// Returns whether the chunk is erased.
    fn erase(&mut self, chunk: u32) -> Result<bool, ShardedError> {
        let ppas = std::iter::once(self.addresses.chunk(chunk));
        let submitted = self.queue.reset(ppas, 0).is_ok();
        Ok(self.wait("Vector Chunk Reset", chunk, submitted)?.status.is_success())
    }

    /// Returns whether the chunk holds the label, readable.
    fn write(&mut self, label: Label, chunk: u32) -> Result<bool, ShardedError> {
        let shape = *self.addresses.shape();
        self.memory.fill(0, (shape.unit * shape.sector_bytes) as usize, 0);
        self.memory.write(0, &label.encode());
        for unit in 0..self.units() {
            let first = shape.first_psn(chunk) + unit * shape.unit;
            let ppas = (0..shape.unit as usize).map(|i| self.addresses.sector(first + i as u32));
            let data = Sectors::Run(self.at);
            let submitted = self.queue.write(ppas, data, Some(self.oob_at), 0).is_ok();
            if !self.wait("Vector Chunk Write", chunk, submitted)?.status.is_success() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the one command that is outstanding. A failure of the media is no error.
    fn wait(
        &mut self,
        command: &'static str,
        chunk: u32,
        submitted: bool,
    ) -> Result<VectorEnded, ShardedError> {
        let address = self.addresses.components(self.addresses.shape().first_psn(chunk));
        let failed = |status| PblkError::Command { command, address, status };
        if !submitted {
            return Err(failed(Status::NOT_READY).into());
        }
        self.queue.ring(true);
        for _ in 0..PATIENCE {
            if let Some(done) = self.queue.reap() {
                self.queue.ring(true);
                let fine = done.status.is_success() || done.status.is_media_error();
                return if fine { Ok(done) } else { Err(failed(done.status).into()) };
            }
            (self.pump)();
        }
        let outstanding = self.queue.outstanding();
        Err(PblkError::Timeout { outstanding, polls: PATIENCE }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_survives_the_media_and_nothing_else_is_one() {
        let label = Label { shards: 7, stripe_sectors: 1 << 16 };
        let bytes = label.encode();
        assert_eq!(Label::decode(&bytes), Some(Ok(label)));
        for bit in 0..BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Label::decode(&damaged), None, "bit {bit}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        let crc = crc32c::crc32c(&newer[..CRC_AT]);
        newer[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        let refused = Label::decode(&newer);
        assert_eq!(refused, Some(Err(LabelError::Version { found: 2, known: 1 })));
    }

    #[test]
    fn the_byte_map_stays() {
        let bytes = Label { shards: 2, stripe_sectors: 64 }.encode();
        assert_eq!(&bytes[..16], b"SLUICSHD\x01\0\x02\0\x40\0\0\0");
    }
}

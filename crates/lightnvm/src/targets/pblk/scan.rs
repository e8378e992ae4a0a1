//! [`Scan`]: padding, then every sector's out-of-band bytes, then the map's pages (LightNVM paper
//! section 4.2.2).
//!
//! A recovery can itself be cut: it writes nothing but padding, at write pointers.

use std::sync::Arc;

use driver::QueueFull;
use ftl::{Found, Oob, Recovery};
use nvme::MAX_VECTOR;
use ring::{Iova, Region};

use super::PblkError;
use crate::vector::{Addresses, Sectors, VectorEnded, VectorQueue, register};

/// Calls of the pump without any answer after which a drive counts as dead.
const PATIENCE: u64 = 30_000_000;

/// Commands outstanding at most.
const LANES: u16 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Write padding.
    Pad,
    /// Read out-of-band bytes.
    Oob,
    /// Read one sector with its data; `of` is its number.
    MapPage,
}

/// A command: consecutive sectors of one chunk.
#[derive(Clone, Copy, Debug)]
struct Job {
    kind: Kind,
    psn: u32,
    count: u8,
    /// What it is about: a chunk, or a page of the map.
    of: u32,
}

/// A drive that is being read from one end to the other.
pub(crate) struct Scan<'a> {
    queue: &'a mut VectorQueue,
    addresses: &'a Addresses,
    pump: &'a mut dyn FnMut(),
    /// Logical sectors of the layout, map pages included.
    sectors: u32,
    oob: Arc<Region>,
    oob_at: Iova,
    /// A write unit of zeros, then a sector per lane.
    data: Arc<Region>,
    data_at: Iova,
    /// Out-of-band bytes of padding: a write unit of them.
    padding_at: Iova,
    lanes: u16,
    oob_bytes: usize,
    sector_bytes: usize,
    unit: u32,
}

impl<'a> Scan<'a> {
    /// A scan through `queue`, which has nothing outstanding.
    ///
    /// # Errors
    /// [`PblkError::Memory`].
    pub(crate) fn new(
        queue: &'a mut VectorQueue,
        addresses: &'a Addresses,
        sectors: u32,
        pump: &'a mut dyn FnMut(),
    ) -> Result<Scan<'a>, PblkError> {
        let shape = addresses.shape();
        let oob_bytes = addresses.oob_bytes() as usize;
        let (unit, sector_bytes) = (shape.unit, shape.sector_bytes as usize);
        let lanes = queue.queue().capacity().min(LANES);
        let port = queue.port().clone();
        let space = port.memory();
        let oob_len = (usize::from(lanes) + 1) * usize::from(MAX_VECTOR) * oob_bytes;
        let (oob, oob_at) = register(space, oob_len, "the recovery's out-of-band bytes")?;
        let data_len = (unit as usize + usize::from(lanes)) * sector_bytes;
        let (data, data_at) = register(space, data_len, "the recovery's map pages")?;
        let padding = Oob { lba: None, poison: false, sequence: 0 }.encode();
        let padding_offset = usize::from(lanes) * usize::from(MAX_VECTOR) * oob_bytes;
        for i in 0..unit as usize {
            oob.write(padding_offset + i * oob_bytes, &padding);
        }
        Ok(Scan {
            padding_at: oob_at.offset(padding_offset as u64),
            queue,
            addresses,
            pump,
            sectors,
            oob,
            oob_at,
            data,
            data_at,
            lanes,
            oob_bytes,
            sector_bytes,
            unit,
        })
    }

    /// Writes padding into open chunks until everything in them can be read, and notes in `found`
    /// how far they are written then.
    ///
    /// # Errors
    /// [`PblkError::Command`], [`PblkError::Timeout`]. A program that fails is no error.
    pub(crate) fn pad(&mut self, found: &mut [Found]) -> Result<(), PblkError> {
        let shape = *self.addresses.shape();
        let (unit, pair) = (shape.unit, shape.pair.next_multiple_of(shape.unit));
        let mut jobs = Vec::new();
        for (chunk, state) in (0..).zip(found.iter()) {
            let Found::Open(written) = *state else { continue };
            if written == 0 {
                continue;
            }
            let target = written.next_multiple_of(unit).saturating_add(pair).min(shape.sectors);
            let mut at = written;
            while at < target {
                let count = unit - at % unit;
                let psn = shape.first_psn(chunk) + at;
                jobs.push(Job { kind: Kind::Pad, psn, count: count as u8, of: chunk });
                at += count;
            }
        }
        let mut failing = Vec::new();
        self.run(&mut jobs.into_iter(), &mut |_, job, failed| {
            let end = job.psn - shape.first_psn(job.of) + u32::from(job.count);
            if failed != 0 {
                failing.push(job.of);
            } else if let Found::Open(written) = &mut found[job.of as usize] {
                *written = end.max(*written);
            }
        })?;
        for chunk in failing {
            if let Found::Open(written) = found[chunk as usize] {
                found[chunk as usize] = Found::Failing(written);
            }
        }
        Ok(())
    }

    /// Reads the out-of-band bytes of every sector that was written before the padding.
    ///
    /// # Errors
    /// [`PblkError::ForeignData`], [`PblkError::OtherLayout`], [`PblkError::Command`],
    /// [`PblkError::Timeout`]. A sector that cannot be read is no error.
    pub(crate) fn read(
        &mut self,
        found: &[Found],
        recovery: &mut Recovery,
    ) -> Result<(), PblkError> {
        let shape = *self.addresses.shape();
        let most = self.queue.max_sectors();
        let mut jobs = (0..).zip(found).flat_map(|(chunk, state)| {
            let written = match *state {
                Found::Open(n) | Found::Closed(n) | Found::Failing(n) => n,
                Found::Free | Found::Bad => 0,
            };
            (0..written).step_by(most as usize).map(move |at| Job {
                kind: Kind::Oob,
                psn: shape.first_psn(chunk) + at,
                count: most.min(written - at) as u8,
                of: chunk,
            })
        });
        let (mut ours, mut foreign) = (false, (0u64, u32::MAX));
        let mut outside = None;
        let sectors = self.sectors;
        let mut bytes = vec![0; usize::from(MAX_VECTOR) * self.oob_bytes];
        let (oob, oob_bytes) = (self.oob.clone(), self.oob_bytes);
        self.run(&mut jobs, &mut |lane, job, failed| {
            oob.read(usize::from(lane) * bytes.len(), &mut bytes);
            for (i, psn) in (0..job.count).zip(job.psn..) {
                if failed >> i & 1 != 0 {
                    recovery.sector(psn, None);
                    continue;
                }
                let found = Oob::decode(&bytes[usize::from(i) * oob_bytes..]);
                match found {
                    Some(oob) => {
                        ours = true;
                        let wild = oob.lba.filter(|lba| *lba >= sectors);
                        outside = outside.or(wild.map(|lba| (psn, lba)));
                    }
                    None => foreign = (foreign.0 + 1, foreign.1.min(psn)),
                }
                recovery.sector(psn, found);
            }
        })?;
        if let (false, (sectors @ 1.., psn)) = (ours, foreign) {
            let first = self.addresses.components(psn);
            return Err(PblkError::ForeignData { sectors, first });
        }
        if let Some((psn, lba)) = outside {
            let first = self.addresses.components(psn);
            return Err(PblkError::OtherLayout { first, lba, sectors });
        }
        Ok(())
    }

    /// Reads the pages of the map that the recovery asks for.
    ///
    /// # Errors
    /// [`PblkError::Command`], [`PblkError::Timeout`]. A sector that cannot be read is no error.
    pub(crate) fn read_map_pages(&mut self, recovery: &mut Recovery) -> Result<(), PblkError> {
        let states = recovery.map_pages();
        let mut jobs = states.into_iter().map(|(psn, page)| Job {
            kind: Kind::MapPage,
            psn,
            count: 1,
            of: page,
        });
        let (data, unit, size) = (self.data.clone(), self.unit as usize, self.sector_bytes);
        let mut bytes = vec![0; size];
        self.run(&mut jobs, &mut |lane, job, failed| {
            if failed == 0 {
                data.read((unit + usize::from(lane)) * size, &mut bytes);
                recovery.map_page(job.of, &bytes);
            }
        })
    }

    /// Carries jobs out, as many at a time as there are lanes, in order on each parallel unit.
    /// `ended` is given the lane of a job, the job, and its failed addresses.
    fn run(
        &mut self,
        jobs: &mut dyn Iterator<Item = Job>,
        ended: &mut dyn FnMut(u16, &Job, u64),
    ) -> Result<(), PblkError> {
        let mut running: Vec<Option<Job>> = vec![None; self.lanes.into()];
        let mut free: Vec<u16> = (0..self.lanes).rev().collect();
        let mut next = jobs.next();
        let mut in_vain = 0;
        loop {
            while let (Some(job), Some(&lane)) = (next, free.last()) {
                if self.submit(lane, &job).is_err() {
                    break;
                }
                free.pop();
                running[usize::from(lane)] = Some(job);
                next = jobs.next();
            }
            self.queue.ring(true);
            while let Some(done) = self.queue.reap() {
                in_vain = 0;
                let lane = done.user as u16;
                let Some(job) = running[usize::from(lane)].take() else { continue };
                free.push(lane);
                ended(lane, &job, self.failed(&job, &done)?);
            }
            self.queue.ring(true);
            let outstanding = self.queue.outstanding();
            if next.is_none() && outstanding == 0 {
                return Ok(());
            }
            if in_vain == PATIENCE {
                return Err(PblkError::Timeout { outstanding, polls: in_vain });
            }
            in_vain += 1;
            (self.pump)();
        }
    }

    fn submit(&mut self, lane: u16, job: &Job) -> Result<(), QueueFull> {
        let ppas = (0..usize::from(job.count)).map(|i| self.addresses.sector(job.psn + i as u32));
        let (user, lane) = (lane.into(), u64::from(lane));
        match job.kind {
            Kind::Pad => {
                self.queue.write(ppas, Sectors::Run(self.data_at), Some(self.padding_at), user)
            }
            Kind::Oob => {
                let oob = lane * u64::from(MAX_VECTOR) * self.oob_bytes as u64;
                self.queue.read(ppas, Sectors::Nowhere, Some(self.oob_at.offset(oob)), user)
            }
            Kind::MapPage => {
                let sector = u64::from(self.unit) + lane;
                let at = self.data_at.offset(sector * self.sector_bytes as u64);
                self.queue.read(ppas, Sectors::Run(at), None, user)
            }
        }
    }

    /// The failed addresses of a command that the media, and nothing else, failed.
    fn failed(&self, job: &Job, done: &VectorEnded) -> Result<u64, PblkError> {
        if done.status.is_success() || done.status.is_media_error() {
            return Ok(done.failed);
        }
        let command = match job.kind {
            Kind::Pad => "Vector Chunk Write",
            Kind::Oob | Kind::MapPage => "Vector Chunk Read",
        };
        let address = self.addresses.components(job.psn);
        Err(PblkError::Command { command, address, status: done.status })
    }
}

//! [`Access`]: what the host of a port may do; and [`Rights`], the same as the drive checks it.
//!
//! The kernel is not on the data path of a host that has its queues mapped (NVMeDirect, HotStorage
//! 2016, section 3.1), so the drive protects what hosts share: it knows the port that a queue belongs
//! to, and checks every command against what that port was given when it was attached. A part of a
//! block drive is a namespace whose first sector is 0 (NVMe section 1.6.14), like those that an
//! administrator makes; parts of an open-channel drive are parallel units, whose addresses stay as
//! they are (LightNVM paper section 3.1).
//!
//! Guarantees: commands are checked after they were copied and before anything is touched; a refused
//! command has one status and no effect; what a host may not see is not told in any log.

use std::io;
use std::ops::Range;

use clock::Nanos;
use nvme::{ChunkDescriptor, ChunkState, DsmRange, Extensions, GeometryError, IoCommand, Status};

use crate::admin::{AdminState, DriveFacts};
use crate::bucket::Bucket;

/// What part of a drive a host is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    All,
    /// Sectors of a drive that manages its own media. Its host knows them as 0 to `count - 1`.
    Sectors {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Parallel units of an open-channel drive, counted group by group. Addresses are those of the
    /// whole drive; chunks of other parallel units look offline.
    ParallelUnits {
        /// The first.
        first: u32,
        /// How many.
        count: u32,
    },
}

/// What the host of a port may do ([`Drive::attach_as`](crate::Drive::attach_as)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where.
    pub part: Part,
    /// Whether it may write, trim and erase. If not, the namespace is write protected.
    pub write: bool,
    /// Whether it may use vector commands.
    pub vector: bool,
    /// I/O queue pairs.
    pub queues: u16,
    /// Entries of a queue, and commands of a queue that the drive works on at a time.
    pub queue_depth: u16,
    /// Commands per second; without, as many as the drive can do.
    pub iops: Option<u64>,
    /// Bytes per second, read and written together.
    pub bytes_per_sec: Option<u64>,
}

/// Why a port cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The part is not one of the drive's.
    #[error("{part:?} is no part of a drive with {what}")]
    Part {
        /// What was asked for.
        part: Part,
        /// What the drive has.
        what: String,
    },
    /// A limit leaves nothing that could be done.
    #[error("a host needs {what}")]
    Limit {
        /// What it needs.
        what: &'static str,
    },
    /// The port is the host's side of one, or is attached already.
    #[error("the port is not a drive's, or is attached to one")]
    Port,
    /// The shape cannot be told to the host.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The operating system refuses.
    #[error("attaching a host: {0}")]
    Io(#[from] io::Error),
}

impl Access {
    /// Of this part everything, in queues of any depth, as fast as the drive can.
    pub fn to(part: Part) -> Access {
        Access {
            part,
            write: true,
            vector: true,
            queues: u16::MAX,
            queue_depth: u16::MAX,
            iops: None,
            bytes_per_sec: None,
        }
    }
}

/// What a host has done, and what was held against it. Commands and bytes of a host that may do
/// everything are counted by the drive ([`DriveStats`](crate::DriveStats)), not here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Commands fetched, admin commands included.
    pub commands: u64,
    /// Bytes that they were about.
    pub bytes: u64,
    /// Commands that were refused for what the host may not do.
    pub refused: u64,
    /// Times that a queue with commands was passed over for want of tokens.
    pub held: u64,
    /// Queues, those of admin commands included.
    pub queues: u16,
    /// Commands under way.
    pub outstanding: u32,
    /// Completions that the host has left no room for.
    pub stalled: u32,
}

/// Admin commands per second of a restricted host: they are served before all others' I/O.
const ADMIN_PER_SEC: u64 = 1_000;
/// Admin commands that it may send at once.
const ADMIN_BURST: u64 = 256;
/// Bytes of an answer that count as one more admin command.
const ADMIN_BYTES: u64 = 4096;

/// What a restricted host may do, as the drive checks it.
#[derive(Debug)]
pub(crate) struct Rights {
    access: Access,
    /// Sectors of the drive that are its own, if it addresses sectors.
    sectors: Option<Range<u64>>,
    /// Parallel units that are its own.
    pub(crate) pus: Range<u32>,
    /// What it is told of the drive, and the queues and errors that are its own.
    pub(crate) admin: AdminState,
    io: Option<[Bucket; 2]>,
    admin_rate: Bucket,
}

impl Rights {
    /// # Errors
    /// [`AttachError`] for access that the drive cannot give.
    pub(crate) fn new(access: Access, drive: &DriveFacts) -> Result<Rights, AttachError> {
        let wrong = |what: String| AttachError::Part { part: access.part, what };
        let mut facts = drive.clone();
        let all_pus = facts.geometry.map_or(0, |g| g.total_pus());
        let (mut sectors, mut pus) = (None, 0..all_pus);
        match access.part {
            Part::All if all_pus > 0 => {}
            Part::All => sectors = Some(0..facts.sectors),
            Part::Sectors { first, count } => {
                let end = first.checked_add(count).filter(|end| count > 0 && *end <= facts.sectors);
                match end {
                    Some(end) if all_pus == 0 => sectors = Some(first..end),
                    _ if all_pus > 0 => return Err(wrong("physical addresses".into())),
                    _ => return Err(wrong(format!("{} sectors", facts.sectors))),
                }
                facts.sectors = count;
            }
            Part::ParallelUnits { first, count } => {
                let end = first.checked_add(count).filter(|end| count > 0 && *end <= all_pus);
                let end = end.ok_or_else(|| wrong(format!("{all_pus} parallel units")))?;
                pus = first..end;
            }
        }
        let limit = |what| Err(AttachError::Limit { what });
        match access {
            Access { queues: 0, .. } => return limit("an I/O queue pair"),
            Access { queue_depth: 0..2, .. } => return limit("queues of at least 2 entries"),
            Access { iops: Some(0), .. } => return limit("commands per second"),
            Access { bytes_per_sec: Some(0), .. } => return limit("bytes per second"),
            _ => {}
        }
        facts.io_queues = facts.io_queues.min(access.queues);
        facts.queue_depth = facts.queue_depth.min(access.queue_depth);
        facts.write_protected = !access.write;
        facts.protected_cmb = false;
        // Notifications and the drive's own map are of all chunks, whosever they are.
        let private = Extensions::NOTIFICATIONS | Extensions::DUAL_MAP;
        facts.extensions.flags = (facts.extensions.flags.get() & !private).into();
        facts.extensions.map_entries = 0.into();
        let io = (access.iops.is_some() || access.bytes_per_sec.is_some()).then(|| {
            let rate = |rate: Option<u64>| Bucket::new(rate.unwrap_or(0), Nanos::from_millis(1));
            [rate(access.iops), rate(access.bytes_per_sec)]
        });
        let burst = Nanos(ADMIN_BURST * 1_000_000_000 / ADMIN_PER_SEC);
        Ok(Rights {
            access,
            sectors,
            pus,
            admin: AdminState::new(facts)?,
            io,
            admin_rate: Bucket::new(ADMIN_PER_SEC, burst),
        })
    }

    /// Commands of a queue that the drive works on at a time.
    pub(crate) fn outstanding(&self) -> u32 {
        self.access.queue_depth.into()
    }

    /// Whether commands of a queue are paid for with tokens.
    pub(crate) fn is_metered(&self, admin: bool) -> bool {
        admin || self.io.is_some()
    }

    /// From when on a command may be fetched.
    pub(crate) fn ready_at(&self, admin: bool) -> Nanos {
        match &self.io {
            _ if admin => self.admin_rate.ready_at(),
            Some([commands, bytes]) => commands.ready_at().max(bytes.ready_at()),
            None => Nanos::ZERO,
        }
    }

    /// A command has been fetched that is about so many bytes.
    #[inline]
    pub(crate) fn charge(&mut self, now: Nanos, bytes: u64) {
        if let Some([commands, transfers]) = &mut self.io {
            commands.take(now, 1);
            transfers.take(now, bytes);
        }
    }

    /// An admin command has been fetched that asks for so many bytes.
    pub(crate) fn charge_admin(&mut self, now: Nanos, bytes: u64) {
        // What is longer than any log costs no more than it.
        self.admin_rate.take(now, 1 + bytes.min(1 << 30) / ADMIN_BYTES);
    }

    /// The first sector that is the host's: what it knows as 0.
    pub(crate) fn first(&self) -> u64 {
        self.sectors.as_ref().map_or(0, |s| s.start)
    }

    /// Sectors that the host may address.
    pub(crate) fn count(&self) -> Option<u64> {
        self.sectors.as_ref().map(|s| s.end - s.start)
    }

    /// Whether the host may do this, and where; addresses of sectors become those of the drive.
    ///
    /// # Errors
    /// The status to complete the command with.
    #[inline]
    pub(crate) fn admit(&self, io: &mut IoCommand) -> Result<(), Status> {
        if let IoCommand::Read { slba, nlb, .. } = io {
            *slba = self.place(*slba, *nlb)?;
            return Ok(());
        }
        self.admit_other(io)
    }

    /// Everything but plain reads, which need no right but a place.
    fn admit_other(&self, io: &mut IoCommand) -> Result<(), Status> {
        let (mut vector, mut writes) = (false, false);
        match io {
            IoCommand::Flush | IoCommand::Read { .. } | IoCommand::LbaStatus { .. } => {}
            IoCommand::Write { .. } | IoCommand::WriteZeroes { .. } => writes = true,
            IoCommand::DatasetManagement { deallocate, .. } => writes = *deallocate,
            IoCommand::VectorRead { .. } => vector = true,
            IoCommand::VectorWrite { .. }
            | IoCommand::VectorReset { .. }
            | IoCommand::VectorCopy { .. } => (vector, writes) = (true, true),
            // The map is everybody's.
            IoCommand::MapTrim { .. } => return Err(Status::INVALID_OPCODE.do_not_retry()),
        }
        if vector && !self.access.vector {
            return Err(Status::INVALID_OPCODE.do_not_retry());
        }
        if writes && !self.access.write {
            return Err(Status::WRITE_PROTECTED.do_not_retry());
        }
        match io {
            IoCommand::Read { slba, nlb, .. }
            | IoCommand::Write { slba, nlb, .. }
            | IoCommand::WriteZeroes { slba, nlb, .. }
            | IoCommand::LbaStatus { slba, nlb, .. } => *slba = self.place(*slba, *nlb)?,
            _ => {}
        }
        Ok(())
    }

    /// Where a run of the host's sectors is on the drive. On an open-channel drive, where it says:
    /// there each address is checked when it has been taken apart.
    #[inline]
    fn place(&self, slba: u64, nlb: u32) -> Result<u64, Status> {
        let Some(sectors) = &self.sectors else { return Ok(slba) };
        match slba.checked_add(nlb.into()) {
            Some(end) if end <= sectors.end - sectors.start => Ok(sectors.start + slba),
            _ => Err(Status::LBA_OUT_OF_RANGE.do_not_retry()),
        }
    }

    /// Places the ranges of a command, as [`admit`](Rights::admit) does. They may be as many sectors
    /// as the host has: more is the same work done again, while others wait.
    ///
    /// # Errors
    /// The status to complete the command with.
    pub(crate) fn admit_ranges(&self, ranges: &mut [DsmRange]) -> Result<(), Status> {
        let mut all = 0;
        for range in ranges {
            range.slba = self.place(range.slba.get(), range.nlb.get())?.into();
            all += u64::from(range.nlb.get());
        }
        match &self.sectors {
            Some(sectors) if all > sectors.end - sectors.start => {
                Err(Status::INVALID_FIELD.do_not_retry())
            }
            _ => Ok(()),
        }
    }

    /// What the host is told of a chunk that is another's.
    pub(crate) fn foreign(&self, chunk: ChunkDescriptor) -> ChunkDescriptor {
        ChunkDescriptor {
            state: ChunkState::Offline.to_bits(),
            wear_index: 0,
            wp: 0.into(),
            ..chunk
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::facts;

    #[test]
    fn ranges_are_checked_at_every_boundary() {
        let part = Part::Sectors { first: 100, count: 50 };
        let rights = Rights::new(Access::to(part), &facts()).unwrap();
        let out = Status::LBA_OUT_OF_RANGE.do_not_retry();
        for (slba, nlb, expected) in [
            (0, 1, Ok(100)),
            (0, 50, Ok(100)),
            (49, 1, Ok(149)),
            (50, 1, Err(out)),
            (0, 51, Err(out)),
            (49, 2, Err(out)),
            (u64::MAX, 1, Err(out)),
            (u64::MAX - 100, 100, Err(out)),
            (u64::MAX - 49, 50, Err(out)),
        ] {
            let (fua, limited_retry, deallocate) = (false, false, true);
            for io in [
                IoCommand::Read { slba, nlb, fua, limited_retry },
                IoCommand::Write { slba, nlb, fua, limited_retry },
                IoCommand::WriteZeroes { slba, nlb, deallocate, fua },
                IoCommand::LbaStatus { slba, nlb, max_descriptors: 9 },
            ] {
                let mut placed = io;
                let admitted = rights.admit(&mut placed);
                assert_eq!(admitted.err(), expected.err(), "{io:?}");
                let (IoCommand::Read { slba: at, .. }
                | IoCommand::Write { slba: at, .. }
                | IoCommand::WriteZeroes { slba: at, .. }
                | IoCommand::LbaStatus { slba: at, .. }) = placed
                else {
                    unreachable!("{placed:?}")
                };
                assert_eq!(at, expected.unwrap_or(slba), "{io:?}");
            }
            let mut ranges = [DsmRange::new(3, 1), DsmRange::new(slba, nlb)];
            let placed = rights.admit_ranges(&mut ranges);
            match expected {
                Err(status) => assert_eq!(placed, Err(status)),
                Ok(_) if nlb == 50 => assert_eq!(placed, Err(Status::INVALID_FIELD.do_not_retry())),
                Ok(at) => assert_eq!((placed, ranges[1].slba.get()), (Ok(()), at)),
            }
        }
    }

    #[test]
    fn access_that_cannot_be_is_refused() {
        let facts = facts();
        let all = Access::to(Part::All);
        assert!(Rights::new(all, &facts).is_ok());
        let (first, count) = (facts.sectors - 1, 2);
        for access in [
            Access::to(Part::Sectors { first: 0, count: 0 }),
            Access::to(Part::Sectors { first, count }),
            Access::to(Part::Sectors { first: u64::MAX, count }),
            Access::to(Part::ParallelUnits { first: 0, count: 1 }),
            Access { queues: 0, ..all },
            Access { queue_depth: 1, ..all },
            Access { iops: Some(0), ..all },
            Access { bytes_per_sec: Some(0), ..all },
        ] {
            assert!(Rights::new(access, &facts).is_err(), "{access:?}");
        }
        assert!(Rights::new(Access::to(Part::Sectors { first, count: 1 }), &facts).is_ok());
    }
}

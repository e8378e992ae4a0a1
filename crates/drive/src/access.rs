//! [`Access`]: what the host of a port may do; and [`AccessCheck`], the same as the drive checks it.
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
use nvme::{
    ChunkDescriptor, ChunkState, DsmRange, GeometryError, IoCommand, Status, VendorExtensions,
};

use crate::admin::{AdminState, ControllerIdentity};
use crate::token_bucket::TokenBucket;

/// What part of a drive a host is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessScope {
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
pub struct AccessPolicy {
    /// Where.
    pub scope: AccessScope,
    /// Whether it may write, trim and erase. If not, the namespace is write protected.
    pub write: bool,
    /// Whether it may use vector commands.
    pub vector_commands: bool,
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
    Scope {
        /// What was asked for.
        part: AccessScope,
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

impl AccessPolicy {
    /// Of this part everything, in queues of any depth, as fast as the drive can.
    pub fn for_scope(scope: AccessScope) -> AccessPolicy {
        AccessPolicy {
            scope,
            write: true,
            vector_commands: true,
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
    pub throttled: u64,
    /// Queues, those of admin commands included.
    pub queues: u16,
    /// Commands under way.
    pub outstanding: u32,
    /// Completions that the host has left no room for.
    pub stalled: u32,
}

/// Admin commands per second of a restricted host: they are served before all others' I/O.
const ADMIN_COMMANDS_PER_SEC: u64 = 1_000;
/// Admin commands that it may send at once.
const ADMIN_BURST: u64 = 256;
/// Bytes of an answer that count as one more admin command.
const BYTES_PER_ADMIN_TOKEN: u64 = 4096;

/// What a restricted host may do, as the drive checks it.
#[derive(Debug)]
pub(crate) struct AccessCheck {
    policy: AccessPolicy,
    /// Sectors of the drive that are its own, if it addresses sectors.
    sectors: Option<Range<u64>>,
    /// Parallel units that are its own.
    pub(crate) pus: Range<u32>,
    /// What it is told of the drive, and the queues and errors that are its own.
    pub(crate) admin: AdminState,
    io_buckets: Option<[TokenBucket; 2]>,
    admin_bucket: TokenBucket,
}

impl AccessCheck {
    /// # Errors
    /// [`AttachError`] for access that the drive cannot give.
    pub(crate) fn new(
        access: AccessPolicy,
        drive: &ControllerIdentity,
    ) -> Result<AccessCheck, AttachError> {
        let wrong = |what: String| AttachError::Scope { part: access.scope, what };
        let mut facts = drive.clone();
        let all_pus = facts.geometry.map_or(0, |g| g.total_pus());
        let (mut sectors, mut pus) = (None, 0..all_pus);
        match access.scope {
            AccessScope::All if all_pus > 0 => {}
            AccessScope::All => sectors = Some(0..facts.sectors),
            AccessScope::Sectors { first, count } => {
                let end = first.checked_add(count).filter(|end| count > 0 && *end <= facts.sectors);
                match end {
                    Some(end) if all_pus == 0 => sectors = Some(first..end),
                    _ if all_pus > 0 => return Err(wrong("physical addresses".into())),
                    _ => return Err(wrong(format!("{} sectors", facts.sectors))),
                }
                facts.sectors = count;
            }
            AccessScope::ParallelUnits { first, count } => {
                let end = first.checked_add(count).filter(|end| count > 0 && *end <= all_pus);
                let end = end.ok_or_else(|| wrong(format!("{all_pus} parallel units")))?;
                pus = first..end;
            }
        }
        let limit = |what| Err(AttachError::Limit { what });
        match access {
            AccessPolicy { queues: 0, .. } => return limit("an I/O queue pair"),
            AccessPolicy { queue_depth: 0..2, .. } => return limit("queues of at least 2 entries"),
            AccessPolicy { iops: Some(0), .. } => return limit("commands per second"),
            AccessPolicy { bytes_per_sec: Some(0), .. } => return limit("bytes per second"),
            _ => {}
        }
        facts.io_queues = facts.io_queues.min(access.queues);
        facts.queue_depth = facts.queue_depth.min(access.queue_depth);
        facts.write_protected = !access.write;
        facts.protected_cmb = false;
        // Notifications and the drive's own map are of all chunks, whosever they are.
        let private = VendorExtensions::NOTIFICATIONS | VendorExtensions::DEVICE_L2P;
        facts.extensions.flags = (facts.extensions.flags.get() & !private).into();
        facts.extensions.l2p_entries = 0.into();
        let io = (access.iops.is_some() || access.bytes_per_sec.is_some()).then(|| {
            let rate =
                |rate: Option<u64>| TokenBucket::new(rate.unwrap_or(0), Nanos::from_millis(1));
            [rate(access.iops), rate(access.bytes_per_sec)]
        });
        let burst = Nanos(ADMIN_BURST * 1_000_000_000 / ADMIN_COMMANDS_PER_SEC);
        Ok(AccessCheck {
            policy: access,
            sectors,
            pus,
            admin: AdminState::new(facts)?,
            io_buckets: io,
            admin_bucket: TokenBucket::new(ADMIN_COMMANDS_PER_SEC, burst),
        })
    }

    /// Commands of a queue that the drive works on at a time.
    pub(crate) fn outstanding_max(&self) -> u32 {
        self.policy.queue_depth.into()
    }

    /// Whether commands of a queue are paid for with tokens.
    pub(crate) fn is_rate_limited(&self, admin: bool) -> bool {
        admin || self.io_buckets.is_some()
    }

    /// From when on a command may be fetched.
    pub(crate) fn ready_at(&self, admin: bool) -> Nanos {
        match &self.io_buckets {
            _ if admin => self.admin_bucket.ready_at(),
            Some([commands, bytes]) => commands.ready_at().max(bytes.ready_at()),
            None => Nanos::ZERO,
        }
    }

    /// A command has been fetched that is about so many bytes.
    #[inline]
    pub(crate) fn consume_tokens(&mut self, now: Nanos, bytes: u64) {
        if let Some([commands, transfers]) = &mut self.io_buckets {
            commands.consume(now, 1);
            transfers.consume(now, bytes);
        }
    }

    /// An admin command has been fetched that asks for so many bytes.
    pub(crate) fn consume_admin_tokens(&mut self, now: Nanos, bytes: u64) {
        // What is longer than any log costs no more than it.
        self.admin_bucket.consume(now, 1 + bytes.min(1 << 30) / BYTES_PER_ADMIN_TOKEN);
    }

    /// The first sector that is the host's: what it knows as 0.
    pub(crate) fn first_sector(&self) -> u64 {
        self.sectors.as_ref().map_or(0, |s| s.start)
    }

    /// Sectors that the host may address.
    pub(crate) fn sector_count(&self) -> Option<u64> {
        self.sectors.as_ref().map(|s| s.end - s.start)
    }

    /// Whether the host may do this, and where; addresses of sectors become those of the drive.
    ///
    /// # Errors
    /// The status to complete the command with.
    #[inline]
    pub(crate) fn authorize(&self, io: &mut IoCommand) -> Result<(), Status> {
        if let IoCommand::Read { slba, nlb, .. } = io {
            *slba = self.translate_range(*slba, *nlb)?;
            return Ok(());
        }
        self.authorize_other(io)
    }

    /// Everything but plain reads, which need no right but a place.
    fn authorize_other(&self, io: &mut IoCommand) -> Result<(), Status> {
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
            IoCommand::DeviceTrim { .. } => return Err(Status::INVALID_OPCODE.do_not_retry()),
        }
        if vector && !self.policy.vector_commands {
            return Err(Status::INVALID_OPCODE.do_not_retry());
        }
        if writes && !self.policy.write {
            return Err(Status::WRITE_PROTECTED.do_not_retry());
        }
        match io {
            IoCommand::Read { slba, nlb, .. }
            | IoCommand::Write { slba, nlb, .. }
            | IoCommand::WriteZeroes { slba, nlb, .. }
            | IoCommand::LbaStatus { slba, nlb, .. } => {
                *slba = self.translate_range(*slba, *nlb)?
            }
            _ => {}
        }
        Ok(())
    }

    /// Where a run of the host's sectors is on the drive. On an open-channel drive, where it says:
    /// there each address is checked when it has been taken apart.
    #[inline]
    fn translate_range(&self, slba: u64, nlb: u32) -> Result<u64, Status> {
        let Some(sectors) = &self.sectors else { return Ok(slba) };
        match slba.checked_add(nlb.into()) {
            Some(end) if end <= sectors.end - sectors.start => Ok(sectors.start + slba),
            _ => Err(Status::LBA_OUT_OF_RANGE.do_not_retry()),
        }
    }

    /// Places the ranges of a command, as [`admit`](AccessCheck::authorize) does. They may be as many sectors
    /// as the host has: more is the same work done again, while others wait.
    ///
    /// # Errors
    /// The status to complete the command with.
    pub(crate) fn authorize_ranges(&self, ranges: &mut [DsmRange]) -> Result<(), Status> {
        let mut all = 0;
        for range in ranges {
            range.slba = self.translate_range(range.slba.get(), range.nlb.get())?.into();
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
    pub(crate) fn mask_foreign_chunk(&self, chunk: ChunkDescriptor) -> ChunkDescriptor {
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
    use crate::admin::tests::identity;

    #[test]
    fn ranges_are_checked_at_every_boundary() {
        let part = AccessScope::Sectors { first: 100, count: 50 };
        let rights = AccessCheck::new(AccessPolicy::for_scope(part), &identity()).unwrap();
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
                let admitted = rights.authorize(&mut placed);
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
            let placed = rights.authorize_ranges(&mut ranges);
            match expected {
                Err(status) => assert_eq!(placed, Err(status)),
                Ok(_) if nlb == 50 => assert_eq!(placed, Err(Status::INVALID_FIELD.do_not_retry())),
                Ok(at) => assert_eq!((placed, ranges[1].slba.get()), (Ok(()), at)),
            }
        }
    }

    #[test]
    fn access_that_cannot_be_is_refused() {
        let facts = identity();
        let all = AccessPolicy::for_scope(AccessScope::All);
        assert!(AccessCheck::new(all, &facts).is_ok());
        let (first, count) = (facts.sectors - 1, 2);
        for access in [
            AccessPolicy::for_scope(AccessScope::Sectors { first: 0, count: 0 }),
            AccessPolicy::for_scope(AccessScope::Sectors { first, count }),
            AccessPolicy::for_scope(AccessScope::Sectors { first: u64::MAX, count }),
            AccessPolicy::for_scope(AccessScope::ParallelUnits { first: 0, count: 1 }),
            AccessPolicy { queues: 0, ..all },
            AccessPolicy { queue_depth: 1, ..all },
            AccessPolicy { iops: Some(0), ..all },
            AccessPolicy { bytes_per_sec: Some(0), ..all },
        ] {
            assert!(AccessCheck::new(access, &facts).is_err(), "{access:?}");
        }
        assert!(
            AccessCheck::new(
                AccessPolicy::for_scope(AccessScope::Sectors { first, count: 1 }),
                &facts
            )
            .is_ok()
        );
    }
}

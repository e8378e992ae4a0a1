//! [`AccessPolicy`]: the rights of one host; [`AccessCheck`]: the form in which the drive enforces
//! them.
//!
//! The kernel is not on the data path of a host that maps its queues [NVMeDirect16 §3.1], so the
//! drive must isolate hosts from each other. It knows the port of each queue and checks every
//! command against the policy with which that port was attached. A partition of a block drive is a
//! namespace whose first sector is 0 [NVMe1.4 §1.6.14], as if an administrator had created it.
//! Partitions of an open-channel drive are parallel units, whose addresses do not change
//! [LightNVM17 §3.1].
//!
//! Invariants: the drive checks a command after it has copied the entry, and before it accesses
//! memory or media. A refused command completes with one status and has no effect. No log reports
//! events outside the partition of the host.

use std::io;
use std::ops::Range;

use nvme::{
    ChunkDescriptor, ChunkState, DsmRange, GeometryError, IoCommand, NamedOp, Status,
    VendorExtensions,
};
use rules::AppId;
use time::{Nanos, Rounding, TokenBucket, TokenRate};

use crate::admin::{AdminState, ControllerIdentity};

/// The part of a namespace that a host may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessScope {
    /// The whole namespace.
    All,
    /// Sectors of a namespace of a drive that manages its own media. The host addresses them as 0 to `count - 1`.
    Sectors {
        /// First sector.
        first: u64,
        /// Number of sectors.
        count: u64,
    },
    /// The blocks of an application of the rules of a drive with rules. The host addresses them from 0 on,
    /// and its commands are inputs of that application.
    Application {
        /// Its number in the program.
        app: u32,
    },
    /// Parallel units of an open-channel drive, counted group by group. Addresses are those of the
    /// whole drive; chunks of other parallel units are reported as offline.
    ParallelUnits {
        /// First parallel unit.
        first: u32,
        /// Number of parallel units.
        count: u32,
    },
}

/// The rights and limits of the host of a port
/// ([`Controller::attach_as`](crate::Controller::attach_as)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPolicy {
    /// The namespace of the host, 1 on a drive with one.
    pub namespace: u32,
    /// The part of the namespace that the host may access.
    pub scope: AccessScope,
    /// Whether the host may write, trim and erase. If not, the namespace is write protected.
    pub write: bool,
    /// Whether the host may use vector commands.
    pub vector_commands: bool,
    /// Maximum number of I/O queue pairs.
    pub queues: u16,
    /// Maximum number of entries per queue, and of commands in flight per queue.
    pub queue_depth: u16,
    /// Maximum number of commands per second; `None` for no limit.
    pub iops: Option<u64>,
    /// Maximum number of bytes per second, reads and writes together; `None` for no limit.
    pub bytes_per_sec: Option<u64>,
    /// Whether the host has the drive's persistent memory region, if there is one. Only for
    /// [`AccessScope::All`]: a region has no parts.
    pub persistent_region: bool,
}

/// The reason for which a port cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The requested part is not a part of the drive.
    #[error("{part:?} does not fit a drive with {what}")]
    Scope {
        /// The requested part.
        part: AccessScope,
        /// The parts that the drive has.
        what: String,
    },
    /// A limit is too small for the host to execute any command.
    #[error("the access policy must allow {what}")]
    Limit {
        /// The resource that the policy must allow.
        what: &'static str,
    },
    /// The drive has no such namespace, or it is not attached.
    #[error("the drive has no attached namespace {nsid}")]
    Namespace {
        /// The requested namespace.
        nsid: u32,
    },
    /// The policy grants the persistent memory region to a host that is confined to a part of the
    /// drive.
    #[error("a host that is confined to {part:?} cannot have the persistent memory region")]
    Region {
        /// The part.
        part: AccessScope,
    },
    /// The policy grants a persistent memory region in a file to another process, which could truncate
    /// the file.
    #[error("the persistent memory region is in a file, which another process could truncate")]
    RegionInFile,
    /// The given port is the host's side of a port, or is already attached.
    #[error("the port is the host's side of a port, or is attached already")]
    Port,
    /// The port has registers and the drive none, or the other way round.
    #[error(
        "the hosts of a drive with `controller.registers` have ports with registers, and those of \
         others have ports without"
    )]
    Registers,
    /// The Geometry command cannot represent the geometry for this host.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The operating system refuses a resource.
    #[error("attaching a host: {0}")]
    Io(#[from] io::Error),
}

impl AccessPolicy {
    /// Returns a policy with all rights on `scope` of namespace 1, without limits, and without the
    /// persistent memory region.
    pub fn for_scope(scope: AccessScope) -> AccessPolicy {
        AccessPolicy {
            namespace: 1,
            scope,
            write: true,
            vector_commands: true,
            queues: u16::MAX,
            queue_depth: u16::MAX,
            iops: None,
            bytes_per_sec: None,
            persistent_region: false,
        }
    }
}

/// Counters of one host. [`DriveStats`](crate::DriveStats) counts the commands and bytes of an
/// unrestricted host; here they stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Commands fetched, admin commands included.
    pub commands: u64,
    /// Bytes that these commands addressed.
    pub bytes: u64,
    /// Commands refused because the host lacks the right.
    pub refused: u64,
    /// Number of times that arbitration skipped a non-empty queue because the rate limit had no
    /// tokens.
    pub throttled: u64,
    /// Queues, admin queues included.
    pub queues: u16,
    /// Commands in flight.
    pub outstanding: u32,
    /// Completions that wait because the host's completion queue is full.
    pub stalled: u32,
}

/// Admin commands per second of a restricted host, because admin commands precede all I/O commands.
const ADMIN_COMMANDS_PER_SEC: u64 = 1_000;
/// Maximum burst of admin commands.
const ADMIN_BURST: u64 = 256;
/// Bytes of returned data that cost one more admin token.
const BYTES_PER_ADMIN_TOKEN: u64 = 4096;

/// Returns a full bucket; a command may be fetched as soon as the bucket owes nothing.
fn new_bucket(per_sec: u64, burst: Nanos) -> TokenBucket {
    TokenBucket::with_burst_time(TokenRate::per_sec(per_sec), burst, Rounding::Down)
}

fn consume(bucket: &mut TokenBucket, now: Nanos, tokens: u64) {
    bucket.fill(now);
    bucket.take(tokens);
}

/// Returns the buckets of a host's commands and bytes; `None` without a rate.
fn io_buckets(access: &AccessPolicy) -> Option<[TokenBucket; 2]> {
    let rates = [access.iops, access.bytes_per_sec];
    let burst = Nanos::from_millis(1);
    let bucket = |rate: Option<u64>| new_bucket(rate.unwrap_or(0), burst);
    rates.iter().any(Option::is_some).then(|| rates.map(bucket))
}

/// # Errors
/// [`AttachError::Limit`] for a rate of 0.
fn check_rates(access: &AccessPolicy) -> Result<(), AttachError> {
    match access {
        AccessPolicy { iops: Some(0), .. } => {
            Err(AttachError::Limit { what: "commands per second" })
        }
        AccessPolicy { bytes_per_sec: Some(0), .. } => {
            Err(AttachError::Limit { what: "bytes per second" })
        }
        _ => Ok(()),
    }
}

/// The rights of a restricted host, in the form in which the drive enforces them.
#[derive(Debug)]
pub(crate) struct AccessCheck {
    policy: AccessPolicy,
    /// Sectors of the drive that the host may access, if the drive addresses sectors.
    sectors: Option<Range<u64>>,
    /// Parallel units that the host may access.
    pub(crate) pus: Range<u32>,
    /// The admin state of this host: Identify data, queues and error log.
    pub(crate) admin: AdminState,
    io_buckets: Option<[TokenBucket; 2]>,
    admin_bucket: TokenBucket,
}

impl AccessCheck {
    /// # Errors
    /// [`AttachError`] if the drive cannot grant this access.
    pub(crate) fn new(
        access: AccessPolicy,
        drive: &ControllerIdentity,
    ) -> Result<AccessCheck, AttachError> {
        let wrong = |what: String| AttachError::Scope { part: access.scope, what };
        let mut facts = drive.clone();
        let all_pus = facts.geometry.map_or(0, |g| g.total_pus());
        let (mut sectors, mut pus) = (None, 0..all_pus);
        match access.scope {
            // The namespace of the host's identity is the space of its application.
            AccessScope::All | AccessScope::Application { .. } if all_pus == 0 => {
                sectors = Some(0..facts.namespace.sectors);
            }
            AccessScope::All => {}
            AccessScope::Application { .. } => return Err(wrong("physical addresses".into())),
            AccessScope::Sectors { first, count } => {
                let end = first
                    .checked_add(count)
                    .filter(|end| count > 0 && *end <= facts.namespace.sectors);
                match end {
                    Some(end) if all_pus == 0 => sectors = Some(first..end),
                    _ if all_pus > 0 => return Err(wrong("physical addresses".into())),
                    _ => return Err(wrong(format!("{} sectors", facts.namespace.sectors))),
                }
                (facts.namespace.first_sector, facts.namespace.sectors) = (first, count);
            }
            AccessScope::ParallelUnits { first, count } => {
                let end = first.checked_add(count).filter(|end| count > 0 && *end <= all_pus);
                let end = end.ok_or_else(|| wrong(format!("{all_pus} parallel units")))?;
                pus = first..end;
            }
        }
        if access.persistent_region && access.scope != AccessScope::All {
            return Err(AttachError::Region { part: access.scope });
        }
        let limit = |what| Err(AttachError::Limit { what });
        match access {
            AccessPolicy { queues: 0, .. } => return limit("an I/O queue pair"),
            AccessPolicy { queue_depth: 0..2, .. } => return limit("queues of at least 2 entries"),
            _ => check_rates(&access)?,
        }
        facts.io_queues = facts.io_queues.min(access.queues);
        facts.queue_depth = facts.queue_depth.min(access.queue_depth);
        facts.namespace.write_protected = !access.write;
        facts.protected_cmb = false;
        // Formats, Sanitize and changes of namespaces concern the whole namespace.
        (facts.optional.format, facts.optional.namespaces) = (false, false);
        facts.optional.sanitize = false;
        // It receives no events.
        facts.optional.namespace_notices = false;
        // Notifications and the device L2P cover all chunks, including those of other hosts.
        let private = VendorExtensions::NOTIFICATIONS | VendorExtensions::DEVICE_L2P;
        facts.extensions.flags = (facts.extensions.flags.get() & !private).into();
        facts.extensions.l2p_entries = 0.into();
        let burst = Nanos(ADMIN_BURST * 1_000_000_000 / ADMIN_COMMANDS_PER_SEC);
        Ok(AccessCheck {
            policy: access,
            sectors,
            pus,
            admin: AdminState::new(facts)?,
            io_buckets: io_buckets(&access),
            admin_bucket: new_bucket(ADMIN_COMMANDS_PER_SEC, burst),
        })
    }

    /// Changes the rates of the host; its buckets are full then.
    ///
    /// # Errors
    /// [`AttachError::Limit`] for a rate of 0.
    pub(crate) fn set_rates(
        &mut self,
        iops: Option<u64>,
        bytes_per_sec: Option<u64>,
    ) -> Result<(), AttachError> {
        let policy = AccessPolicy { iops, bytes_per_sec, ..self.policy };
        check_rates(&policy)?;
        (self.policy, self.io_buckets) = (policy, io_buckets(&policy));
        Ok(())
    }

    /// Whether the host has the persistent memory region.
    pub(crate) fn has_persistent_region(&self) -> bool {
        self.policy.persistent_region
    }

    /// Returns the namespace of the host.
    pub(crate) fn nsid(&self) -> u32 {
        self.policy.namespace
    }

    /// Returns the application of the host's commands, if it has one of its own.
    pub(crate) fn app(&self) -> Option<AppId> {
        match self.policy.scope {
            AccessScope::Application { app } => Some(AppId::from_index(app as usize)),
            _ => None,
        }
    }

    /// Returns the maximum number of commands in flight per queue.
    pub(crate) fn outstanding_max(&self) -> u32 {
        self.policy.queue_depth.into()
    }

    /// Whether commands of a queue consume tokens of a rate limit.
    pub(crate) fn is_rate_limited(&self, admin: bool) -> bool {
        admin || self.io_buckets.is_some()
    }

    /// Returns the instant from which a command may be fetched.
    pub(crate) fn ready_at(&self, admin: bool) -> Nanos {
        match &self.io_buckets {
            _ if admin => self.admin_bucket.ready_at(0),
            Some([commands, bytes]) => commands.ready_at(0).max(bytes.ready_at(0)),
            None => Nanos::ZERO,
        }
    }

    /// Charges an I/O command that addresses `bytes` bytes.
    #[inline]
    pub(crate) fn consume_tokens(&mut self, now: Nanos, bytes: u64) {
        if let Some([commands, transfers]) = &mut self.io_buckets {
            consume(commands, now, 1);
            consume(transfers, now, bytes);
        }
    }

    /// Charges an admin command that requests `bytes` bytes of data.
    pub(crate) fn consume_admin_tokens(&mut self, now: Nanos, bytes: u64) {
        // The charge is capped at 1 GiB, which exceeds every log page.
        consume(&mut self.admin_bucket, now, 1 + bytes.min(1 << 30) / BYTES_PER_ADMIN_TOKEN);
    }

    /// Returns the first sector of its namespace that the host has, which the host addresses as 0.
    pub(crate) fn first_sector(&self) -> u64 {
        self.sectors.as_ref().map_or(0, |s| s.start)
    }

    /// Returns the number of sectors that the host may address, if the drive addresses sectors.
    pub(crate) fn sector_count(&self) -> Option<u64> {
        self.sectors.as_ref().map(|s| s.end - s.start)
    }

    /// Checks the host's rights to an I/O command, and translates its sectors to those of the
    /// drive.
    ///
    /// # Errors
    /// The status with which the command is to complete.
    #[inline]
    pub(crate) fn authorize(&self, io: &mut IoCommand) -> Result<(), Status> {
        if let IoCommand::Read { slba, nlb, .. } = io {
            *slba = self.translate_range(*slba, *nlb)?;
            return Ok(());
        }
        self.authorize_other(io)
    }

    /// Checks all commands except plain reads; a plain read needs no right beyond its range.
    fn authorize_other(&self, io: &mut IoCommand) -> Result<(), Status> {
        let (mut vector, mut writes) = (false, false);
        match io {
            IoCommand::Flush
            | IoCommand::Read { .. }
            | IoCommand::Compare { .. }
            | IoCommand::Verify { .. }
            | IoCommand::LbaStatus { .. } => {}
            IoCommand::Write { .. }
            | IoCommand::WriteZeroes { .. }
            | IoCommand::WriteUncorrectable { .. }
            | IoCommand::Copy { .. } => writes = true,
            IoCommand::DatasetManagement { deallocate, .. } => writes = *deallocate,
            IoCommand::VectorRead { .. } => vector = true,
            IoCommand::VectorWrite { .. }
            | IoCommand::VectorReset { .. }
            | IoCommand::VectorCopy { .. } => (vector, writes) = (true, true),
            // The rules of an application read its own sectors.
            IoCommand::Rule(_) if self.app().is_some() => {}
            IoCommand::Named(named) if self.app().is_some() => writes = named.op != NamedOp::Read,
            // The device L2P is shared by all hosts, so a restricted host may not change it. Rules
            // read sectors of the whole drive.
            IoCommand::DeviceTrim { .. } | IoCommand::Rule(_) | IoCommand::Named(_) => {
                return Err(Status::INVALID_OPCODE.do_not_retry());
            }
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
            | IoCommand::Compare { slba, nlb, .. }
            | IoCommand::Verify { slba, nlb, .. }
            | IoCommand::WriteUncorrectable { slba, nlb, .. }
            | IoCommand::LbaStatus { slba, nlb, .. } => {
                *slba = self.translate_range(*slba, *nlb)?
            }
            // The ranges of Dataset Management and Copy are in memory of the host.
            _ => {}
        }
        Ok(())
    }

    /// Checks and translates the destination and the sources of a Copy, as
    /// [`authorize`](AccessCheck::authorize) does for other commands.
    ///
    /// # Errors
    /// The status with which the command is to complete.
    pub(crate) fn authorize_copy(
        &self,
        destination: u64,
        sources: &mut [DsmRange],
    ) -> Result<u64, Status> {
        let mut blocks = 0;
        for source in sources {
            source.slba = self.translate_range(source.slba.get(), source.nlb.get())?.into();
            blocks += source.nlb.get();
        }
        self.translate_range(destination, blocks)
    }

    /// Translates a range of the host's sectors to the first sector on the drive. On an
    /// open-channel drive the address does not change; there each address is checked when it has
    /// been unpacked.
    #[inline]
    fn translate_range(&self, slba: u64, nlb: u32) -> Result<u64, Status> {
        let Some(sectors) = &self.sectors else { return Ok(slba) };
        match slba.checked_add(nlb.into()) {
            Some(end) if end <= sectors.end - sectors.start => Ok(sectors.start + slba),
            _ => Err(Status::LBA_OUT_OF_RANGE.do_not_retry()),
        }
    }

    /// Translates the ranges of a Dataset Management command, as
    /// [`authorize`](AccessCheck::authorize) does for other commands. The ranges may add up to the
    /// number of sectors that the host has. More would repeat work at the expense of other hosts.
    ///
    /// # Errors
    /// The status with which the command is to complete.
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

    /// Returns the descriptor that the host sees of a chunk; a chunk of another host is offline.
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
        let (first, count) = (facts.namespace.sectors - 1, 2);
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

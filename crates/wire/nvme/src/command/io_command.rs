//! [`IoCommand`]: a typed command of an I/O queue, parsed from a submission queue entry.
//!
//! Parsing is the second of three steps: raw entry ([`Sqe`]) → typed command → request. It accesses
//! no memory except the entry and allocates nothing.
//!
//! Invariants: every count is in its range, and every flag is one that Sluice's drives support. The
//! drive checks addresses, the data pointer and the namespace, which stay in the entry
//! ([`Sqe::data`], `mptr`, `nsid`).
//!
//! References: [NVMe1.4 §6] (NVM command set); [NVMe2.0, NVM command set §3.2.2] (Copy); [OC20 §4] (vector commands); [`VectorHints`] from
//! \[OC12\].

use crate::opcode::io;
use crate::open_channel::vector_hints::LIMITED_RETRY;
use crate::{NamedCommand, Ppa, RuleCommand, Sqe, Status, VectorHints};

/// Maximum number of logical blocks of a read or write: the field has 16 bits and is zero-based.
pub const MAX_BLOCKS: u32 = 1 << 16;
/// Maximum number of ranges of a Dataset Management command: eight bits, zero-based.
pub const MAX_RANGES: u16 = 256;
/// Maximum number of addresses of a vector command, one per status bit of the completion [OC20 §4].
pub const MAX_VECTOR_ADDRESSES: u8 = 64;

/// The addresses of a vector command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PpaList {
    /// One address, in the command.
    One(Ppa),
    /// A list of little-endian 64-bit addresses in host memory.
    List {
        /// I/O virtual address of the list.
        at: u64,
        /// Number of addresses in the list, 2 to [`MAX_VECTOR_ADDRESSES`].
        count: u8,
    },
}

impl PpaList {
    /// Returns the number of addresses, 1 to [`MAX_VECTOR_ADDRESSES`].
    #[inline]
    pub const fn count(self) -> u8 {
        match self {
            PpaList::One(_) => 1,
            PpaList::List { count, .. } => count,
        }
    }

    /// Decodes `count` addresses; `word` is the address of the list, or the only address.
    #[inline]
    const fn decode(count: u8, word: u64) -> PpaList {
        if count == 1 { PpaList::One(Ppa(word)) } else { PpaList::List { at: word, count } }
    }

    #[inline]
    const fn word(self) -> u64 {
        match self {
            PpaList::One(ppa) => ppa.0,
            PpaList::List { at, .. } => at,
        }
    }
}

/// A typed command of an I/O queue. All counts are plain numbers, not zero-based.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCommand {
    /// Flush: makes all completed writes durable [NVMe1.4 §6.8].
    Flush,
    /// Write [NVMe1.4 §6.15].
    Write {
        /// First logical block.
        slba: u64,
        /// Number of logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
        /// Force unit access: the command completes when the data is durable.
        fua: bool,
        /// Limited retry (LR).
        limited_retry: bool,
    },
    /// Read [NVMe1.4 §6.9].
    Read {
        /// First logical block.
        slba: u64,
        /// Number of logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
        /// Force unit access: the command reads durable data.
        fua: bool,
        /// Limited retry (LR).
        limited_retry: bool,
    },
    /// Write Zeroes [NVMe1.4 §6.17].
    WriteZeroes {
        /// First logical block.
        slba: u64,
        /// Number of logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
        /// Deallocate (DEAC): the sectors may be unmapped instead of written.
        deallocate: bool,
        /// Force unit access: the command completes when the zeros are durable.
        fua: bool,
    },
    /// Compare [NVMe1.4 §6.6]: compares the data of the data pointer with that of the blocks.
    Compare {
        /// First logical block.
        slba: u64,
        /// Number of logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
        /// Force unit access: the command compares durable data.
        fua: bool,
        /// Limited retry (LR).
        limited_retry: bool,
    },
    /// Verify [NVMe1.4 §6.14]: reads the blocks without a transfer of data.
    Verify {
        /// First logical block.
        slba: u64,
        /// Number of logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
        /// Force unit access: the command reads durable data.
        fua: bool,
        /// Limited retry (LR).
        limited_retry: bool,
    },
    /// Write Uncorrectable [NVMe1.4 §6.16]: reads of the blocks fail until they are written.
    WriteUncorrectable {
        /// First logical block.
        slba: u64,
        /// Number of logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
    },
    /// Copy [NVMe2.0, NVM command set §3.2.2] in descriptor format 0, inside the drive. The data pointer contains the
    /// [`CopyRange`](crate::CopyRange)s of the sources.
    Copy {
        /// First logical block of the destination (SDLBA).
        slba: u64,
        /// Number of source ranges, 1 to [`MAX_RANGES`].
        ranges: u16,
        /// Force unit access: the command completes when the copy is durable.
        fua: bool,
        /// Limited retry (LR).
        limited_retry: bool,
    },
    /// Dataset Management [NVMe1.4 §6.7]. On an open-channel drive, deallocating a range that
    /// is a chunk resets the chunk. The data pointer contains the [`DsmRange`](crate::DsmRange)s.
    DatasetManagement {
        /// Number of ranges, 1 to [`MAX_RANGES`].
        ranges: u16,
        /// Deallocate (AD): the sectors are not needed any more.
        deallocate: bool,
    },
    /// LBA status (vendor specific): reports which sectors are mapped. The drive writes
    /// [`LbaStatusDescriptor`](crate::LbaStatusDescriptor)s to the data pointer, and their number
    /// to the result of the completion. The command equals the admin command Get LBA Status
    /// [NVMe1.4 §5.27], but it uses an I/O queue, has no list header, and takes a 32-bit range.
    LbaStatus {
        /// First logical block.
        slba: u64,
        /// Number of logical blocks, at least 1.
        nlb: u32,
        /// Maximum number of descriptors, at least 1.
        max_descriptors: u32,
    },
    /// Vector Chunk Read [OC20 §4].
    VectorRead {
        /// Source addresses.
        addresses: PpaList,
        /// Hints.
        hints: VectorHints,
    },
    /// Vector Chunk Write [OC20 §4].
    VectorWrite {
        /// Destination addresses.
        addresses: PpaList,
        /// Hints.
        hints: VectorHints,
    },
    /// Vector Chunk Reset [OC20 §4]. If the metadata pointer is not zero, the drive writes the
    /// [`ChunkDescriptor`](crate::ChunkDescriptor)s of the reset chunks there.
    VectorReset {
        /// Any sector of each chunk.
        addresses: PpaList,
        /// Hints.
        hints: VectorHints,
    },
    /// Vector Chunk Copy [OC20 §4], inside the drive. Both lists have equal length.
    VectorCopy {
        /// Source addresses.
        from: PpaList,
        /// Destination addresses.
        to: PpaList,
        /// Hints.
        hints: VectorHints,
    },
    /// Device trim (vendor specific): unmaps logical addresses in the device L2P. Copies with a
    /// sequence number up to `sequence` are not mapped again. The data pointer contains the
    /// [`DsmRange`](crate::DsmRange)s of logical addresses.
    DeviceTrim {
        /// Number of ranges, 1 to [`MAX_RANGES`].
        ranges: u16,
        /// Largest sequence number that is trimmed, below 2⁴⁸.
        sequence: u64,
    },
    /// A command for the rules of a drive (vendor specific).
    Rule(RuleCommand),
    /// A command on a sector with a name (vendor specific).
    Named(NamedCommand),
}

/// Reserved bits of CDW12 of Compare and Verify. The bits of protection information (PRINFO) have no
/// meaning in a namespace without it.
const CHECK_RESERVED: u32 = 0x3ff << 16;
/// Reserved bits of CDW12 of Write Uncorrectable.
const UNCORRECTABLE_RESERVED: u32 = 0xffff << 16;
/// Descriptor format, directive type and reserved bits of CDW12 of Copy, which must be zero: only
/// format 0 and no directive are supported.
const COPY_UNSUPPORTED: u32 = 0xf << 8 | 0x3ff << 16;
/// Directive (DSPEC), in CDW13 of Copy.
const COPY_DIRECTIVE: u32 = 0xffff << 16;

// CDW12 of reads and writes.
const FUA: u32 = 1 << 30;
/// Directive type: none is supported ([NVMe1.4 §6.15], DTYPE).
const DTYPE: u32 = 0xf << 20;
/// Deallocate, of Write Zeroes.
const DEAC: u32 = 1 << 25;
/// Deallocate attribute, CDW11 of Dataset Management.
const AD: u32 = 1 << 2;
/// Exclusive limit of sequence numbers.
const SEQUENCE_END: u64 = 1 << 48;
/// Dwords of an LBA status descriptor.
const DESCRIPTOR_DWORDS: u32 = 4;

/// Bits of byte 1 that must be zero: fused operations and the reserved bits between them and PSDT.
const FUSED: u8 = 0x3f;
const PSDT_RESERVED: u8 = 0xc0;

/// Whether the entry is a fused operation, or has a reserved data pointer type.
#[inline]
pub(crate) fn flags_invalid(sqe: &Sqe) -> bool {
    sqe.flags & FUSED != 0 || sqe.flags & PSDT_RESERVED == PSDT_RESERVED
}

#[inline]
fn parse_block_count(cdw12: u32) -> u32 {
    (cdw12 & 0xffff) + 1
}

impl IoCommand {
    /// Parses an entry.
    ///
    /// # Errors
    /// The status with which the command is to complete: [`Status::INVALID_OPCODE`];
    /// [`Status::INVALID_FIELD`] for fused operations, reserved data pointer types, directives,
    /// reserved bits of Compare, Verify, Write Uncorrectable and Copy, other descriptor formats of
    /// Copy than 0, more than 64 addresses, reserved hints, an empty LBA status query, or a sequence number of
    /// over 48 bits.
    #[inline(always)]
    pub fn parse(sqe: &Sqe) -> Result<IoCommand, Status> {
        if flags_invalid(sqe) {
            return Err(Status::INVALID_FIELD);
        }
        let cdw12 = sqe.cdw12.get();
        match sqe.opcode {
            io::READ => Ok(IoCommand::Read {
                slba: sqe.slba(),
                nlb: parse_block_count(cdw12),
                fua: cdw12 & FUA != 0,
                limited_retry: cdw12 & LIMITED_RETRY != 0,
            }),
            io::WRITE if cdw12 & DTYPE == 0 => Ok(IoCommand::Write {
                slba: sqe.slba(),
                nlb: parse_block_count(cdw12),
                fua: cdw12 & FUA != 0,
                limited_retry: cdw12 & LIMITED_RETRY != 0,
            }),
            io::VECTOR_READ => {
                Ok(IoCommand::VectorRead { addresses: parse_addresses(sqe)?, hints: sqe.hints()? })
            }
            io::VECTOR_WRITE => {
                Ok(IoCommand::VectorWrite { addresses: parse_addresses(sqe)?, hints: sqe.hints()? })
            }
            _ => IoCommand::parse_rare(sqe),
        }
    }

    /// Parses all commands except the four most frequent ones.
    #[inline(never)]
    fn parse_rare(sqe: &Sqe) -> Result<IoCommand, Status> {
        let cdw12 = sqe.cdw12.get();
        Ok(match sqe.opcode {
            io::FLUSH => IoCommand::Flush,
            io::WRITE_ZEROES => IoCommand::WriteZeroes {
                slba: sqe.slba(),
                nlb: parse_block_count(cdw12),
                deallocate: cdw12 & DEAC != 0,
                fua: cdw12 & FUA != 0,
            },
            io::COMPARE if cdw12 & CHECK_RESERVED == 0 => IoCommand::Compare {
                slba: sqe.slba(),
                nlb: parse_block_count(cdw12),
                fua: cdw12 & FUA != 0,
                limited_retry: cdw12 & LIMITED_RETRY != 0,
            },
            io::VERIFY if cdw12 & CHECK_RESERVED == 0 => IoCommand::Verify {
                slba: sqe.slba(),
                nlb: parse_block_count(cdw12),
                fua: cdw12 & FUA != 0,
                limited_retry: cdw12 & LIMITED_RETRY != 0,
            },
            io::WRITE_UNCORRECTABLE if cdw12 & UNCORRECTABLE_RESERVED == 0 => {
                IoCommand::WriteUncorrectable { slba: sqe.slba(), nlb: parse_block_count(cdw12) }
            }
            io::COPY if cdw12 & COPY_UNSUPPORTED == 0 && sqe.cdw13.get() & COPY_DIRECTIVE == 0 => {
                IoCommand::Copy {
                    slba: sqe.slba(),
                    ranges: (cdw12 & 0xff) as u16 + 1,
                    fua: cdw12 & FUA != 0,
                    limited_retry: cdw12 & LIMITED_RETRY != 0,
                }
            }
            io::DATASET_MANAGEMENT => IoCommand::DatasetManagement {
                ranges: (sqe.cdw10.get() & 0xff) as u16 + 1,
                deallocate: sqe.cdw11.get() & AD != 0,
            },
            io::LBA_STATUS => {
                // MNDW is zero-based; a partial descriptor at the end of the buffer does not count.
                let max_descriptors =
                    ((u64::from(cdw12) + 1) / u64::from(DESCRIPTOR_DWORDS)) as u32;
                let nlb = sqe.cdw13.get();
                if max_descriptors == 0 || nlb == 0 {
                    return Err(Status::INVALID_FIELD);
                }
                IoCommand::LbaStatus { slba: sqe.slba(), nlb, max_descriptors }
            }
            io::VECTOR_RESET => {
                IoCommand::VectorReset { addresses: parse_addresses(sqe)?, hints: sqe.hints()? }
            }
            io::VECTOR_COPY => {
                let from = parse_addresses(sqe)?;
                let to = u64::from(sqe.cdw14.get()) | u64::from(sqe.cdw15.get()) << 32;
                let to = PpaList::decode(from.count(), to);
                IoCommand::VectorCopy { from, to, hints: sqe.hints()? }
            }
            io::DEVICE_TRIM => {
                let sequence = u64::from(sqe.cdw14.get()) | u64::from(sqe.cdw15.get()) << 32;
                if sequence >= SEQUENCE_END {
                    return Err(Status::INVALID_FIELD);
                }
                IoCommand::DeviceTrim { ranges: (sqe.cdw10.get() & 0xff) as u16 + 1, sequence }
            }
            // Those without reserved and unsupported fields were parsed before.
            io::WRITE | io::COMPARE | io::VERIFY | io::WRITE_UNCORRECTABLE | io::COPY => {
                return Err(Status::INVALID_FIELD);
            }
            io::NAMED_WRITE | io::NAMED_READ | io::NAMED_FREE => {
                IoCommand::Named(NamedCommand::parse(sqe)?)
            }
            _ => IoCommand::Rule(RuleCommand::parse(sqe)?),
        })
    }
}

/// Parses the address list of a vector command: CDW10 and 11, and the zero-based count in CDW12.
#[inline]
fn parse_addresses(sqe: &Sqe) -> Result<PpaList, Status> {
    let count = sqe.cdw12.get() & 0xffff;
    if count >= u32::from(MAX_VECTOR_ADDRESSES) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(PpaList::decode(count as u8 + 1, sqe.slba()))
}

/// Constructors of I/O queue entries. The data pointer ([`Sqe::set_prp`], [`Sqe::set_sgl`]),
/// metadata pointer and command identifier are zero; the caller sets them.
///
/// Counts out of range are a bug of the caller: they are asserted in debug builds, and truncated to
/// the width of their field otherwise.
impl Sqe {
    /// Returns a Flush.
    #[inline]
    pub fn flush(nsid: u32) -> Sqe {
        Sqe::new(io::FLUSH, nsid)
    }

    /// Returns a Read of `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba`.
    #[inline]
    pub fn read(nsid: u32, slba: u64, nlb: u32) -> Sqe {
        Sqe::transfer(io::READ, nsid, slba, nlb)
    }

    /// Returns a Write of `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba`; `fua` for force unit
    /// access.
    #[inline]
    pub fn write(nsid: u32, slba: u64, nlb: u32, fua: bool) -> Sqe {
        let mut sqe = Sqe::transfer(io::WRITE, nsid, slba, nlb);
        if fua {
            sqe.set_fua();
        }
        sqe
    }

    /// Returns a Write Zeroes of `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba`; with `deallocate`,
    /// the drive may unmap them.
    #[inline]
    pub fn write_zeroes(nsid: u32, slba: u64, nlb: u32, deallocate: bool) -> Sqe {
        let mut sqe = Sqe::transfer(io::WRITE_ZEROES, nsid, slba, nlb);
        if deallocate {
            sqe.cdw12 |= DEAC;
        }
        sqe
    }

    /// Returns a Compare of `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba`.
    #[inline]
    pub fn compare(nsid: u32, slba: u64, nlb: u32) -> Sqe {
        Sqe::transfer(io::COMPARE, nsid, slba, nlb)
    }

    /// Returns a Verify of `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba`.
    #[inline]
    pub fn verify(nsid: u32, slba: u64, nlb: u32) -> Sqe {
        Sqe::transfer(io::VERIFY, nsid, slba, nlb)
    }

    /// Returns a Write Uncorrectable of `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba`.
    #[inline]
    pub fn write_uncorrectable(nsid: u32, slba: u64, nlb: u32) -> Sqe {
        Sqe::transfer(io::WRITE_UNCORRECTABLE, nsid, slba, nlb)
    }

    /// Returns a Copy of `ranges` source ranges (1 to [`MAX_RANGES`]), which are in the memory of
    /// the data pointer, to the blocks from `slba` on.
    #[inline]
    pub fn copy(nsid: u32, slba: u64, ranges: u16) -> Sqe {
        debug_assert!((1..=MAX_RANGES).contains(&ranges), "{ranges} ranges");
        let mut sqe = Sqe::new(io::COPY, nsid);
        sqe.set_slba(slba);
        sqe.cdw12 = u32::from(ranges.wrapping_sub(1) as u8).into();
        sqe
    }

    /// Sets force unit access of a command that reads, compares, verifies, writes or copies blocks.
    #[inline]
    pub fn set_fua(&mut self) {
        self.cdw12 |= FUA;
    }

    /// Returns a Dataset Management with `ranges` (1 to [`MAX_RANGES`]) in the memory of the data
    /// pointer.
    #[inline]
    pub fn dataset_management(nsid: u32, ranges: u16, deallocate: bool) -> Sqe {
        debug_assert!((1..=MAX_RANGES).contains(&ranges), "{ranges} ranges");
        let mut sqe = Sqe::new(io::DATASET_MANAGEMENT, nsid);
        sqe.cdw10 = u32::from(ranges.wrapping_sub(1) as u8).into();
        sqe.cdw11 = if deallocate { AD } else { 0 }.into();
        sqe
    }

    /// Returns a device trim of `ranges` (1 to [`MAX_RANGES`]) of logical addresses in the memory
    /// of the data pointer, as of `sequence` (below 2⁴⁸).
    #[inline]
    pub fn device_trim(nsid: u32, ranges: u16, sequence: u64) -> Sqe {
        debug_assert!((1..=MAX_RANGES).contains(&ranges), "{ranges} ranges");
        debug_assert!(sequence < SEQUENCE_END, "sequence number {sequence:#x}");
        let mut sqe = Sqe::new(io::DEVICE_TRIM, nsid);
        sqe.cdw10 = u32::from(ranges.wrapping_sub(1) as u8).into();
        sqe.cdw14 = (sequence as u32).into();
        sqe.cdw15 = ((sequence >> 32) as u32 & 0xffff).into();
        sqe
    }

    /// Returns an LBA status query of `nlb` blocks (at least 1) from `slba`, with at most
    /// `max_descriptors` (at least 1, below 2³⁰) descriptors.
    #[inline]
    pub fn lba_status(nsid: u32, slba: u64, nlb: u32, max_descriptors: u32) -> Sqe {
        debug_assert!(nlb > 0 && (1..1 << 30).contains(&max_descriptors));
        let mut sqe = Sqe::new(io::LBA_STATUS, nsid);
        sqe.set_slba(slba);
        sqe.cdw12 = max_descriptors.wrapping_mul(DESCRIPTOR_DWORDS).wrapping_sub(1).into();
        sqe.cdw13 = nlb.into();
        sqe
    }

    /// Returns a vector read.
    #[inline]
    pub fn vector_read(nsid: u32, addresses: PpaList) -> Sqe {
        Sqe::vector(io::VECTOR_READ, nsid, addresses)
    }

    /// Returns a vector write.
    #[inline]
    pub fn vector_write(nsid: u32, addresses: PpaList) -> Sqe {
        Sqe::vector(io::VECTOR_WRITE, nsid, addresses)
    }

    /// Returns a vector reset of the chunks of the addresses.
    #[inline]
    pub fn vector_reset(nsid: u32, addresses: PpaList) -> Sqe {
        Sqe::vector(io::VECTOR_RESET, nsid, addresses)
    }

    /// Returns a vector copy; both lists have equal length.
    #[inline]
    pub fn vector_copy(nsid: u32, from: PpaList, to: PpaList) -> Sqe {
        debug_assert_eq!(from.count(), to.count());
        let mut sqe = Sqe::vector(io::VECTOR_COPY, nsid, from);
        let word = to.word();
        sqe.cdw14 = (word as u32).into();
        sqe.cdw15 = ((word >> 32) as u32).into();
        sqe
    }

    #[inline]
    fn transfer(opcode: u8, nsid: u32, slba: u64, nlb: u32) -> Sqe {
        debug_assert!((1..=MAX_BLOCKS).contains(&nlb), "{nlb} blocks");
        let mut sqe = Sqe::new(opcode, nsid);
        sqe.set_slba(slba);
        sqe.cdw12 = (nlb.wrapping_sub(1) & 0xffff).into();
        sqe
    }

    /// Sets force unit access and limited retry.
    fn with_access(mut self, fua: bool, limited_retry: bool) -> Sqe {
        if fua {
            self.set_fua();
        }
        if limited_retry {
            self.set_limited_retry();
        }
        self
    }

    #[inline]
    fn vector(opcode: u8, nsid: u32, addresses: PpaList) -> Sqe {
        let count = addresses.count();
        debug_assert!((1..=MAX_VECTOR_ADDRESSES).contains(&count), "{count} addresses");
        let mut sqe = Sqe::new(opcode, nsid);
        sqe.set_slba(addresses.word());
        sqe.cdw12 = u32::from(count.wrapping_sub(1)).into();
        sqe
    }
}

impl IoCommand {
    /// Returns the entry that [`parse`](IoCommand::parse) parses as this command, without data
    /// pointer, metadata pointer and command identifier. As for the constructors of [`Sqe`], counts
    /// must be in range.
    #[inline]
    pub fn to_sqe(self, nsid: u32) -> Sqe {
        match self {
            IoCommand::Flush => Sqe::flush(nsid),
            IoCommand::Write { slba, nlb, fua, limited_retry } => {
                let mut sqe = Sqe::write(nsid, slba, nlb, fua);
                if limited_retry {
                    sqe.set_limited_retry();
                }
                sqe
            }
            IoCommand::Read { slba, nlb, fua, limited_retry } => {
                let mut sqe = Sqe::read(nsid, slba, nlb);
                if fua {
                    sqe.set_fua();
                }
                if limited_retry {
                    sqe.set_limited_retry();
                }
                sqe
            }
            IoCommand::WriteZeroes { slba, nlb, deallocate, fua } => {
                let mut sqe = Sqe::write_zeroes(nsid, slba, nlb, deallocate);
                if fua {
                    sqe.set_fua();
                }
                sqe
            }
            IoCommand::Compare { slba, nlb, fua, limited_retry } => {
                Sqe::compare(nsid, slba, nlb).with_access(fua, limited_retry)
            }
            IoCommand::Verify { slba, nlb, fua, limited_retry } => {
                Sqe::verify(nsid, slba, nlb).with_access(fua, limited_retry)
            }
            IoCommand::WriteUncorrectable { slba, nlb } => {
                Sqe::write_uncorrectable(nsid, slba, nlb)
            }
            IoCommand::Copy { slba, ranges, fua, limited_retry } => {
                Sqe::copy(nsid, slba, ranges).with_access(fua, limited_retry)
            }
            IoCommand::DatasetManagement { ranges, deallocate } => {
                Sqe::dataset_management(nsid, ranges, deallocate)
            }
            IoCommand::LbaStatus { slba, nlb, max_descriptors } => {
                Sqe::lba_status(nsid, slba, nlb, max_descriptors)
            }
            IoCommand::VectorRead { addresses, hints } => {
                Sqe::vector_read(nsid, addresses).with_hints(hints)
            }
            IoCommand::VectorWrite { addresses, hints } => {
                Sqe::vector_write(nsid, addresses).with_hints(hints)
            }
            IoCommand::VectorReset { addresses, hints } => {
                Sqe::vector_reset(nsid, addresses).with_hints(hints)
            }
            IoCommand::VectorCopy { from, to, hints } => {
                Sqe::vector_copy(nsid, from, to).with_hints(hints)
            }
            IoCommand::DeviceTrim { ranges, sequence } => Sqe::device_trim(nsid, ranges, sequence),
            IoCommand::Rule(command) => command.to_sqe(nsid),
            IoCommand::Named(command) => command.to_sqe(nsid),
        }
    }

    /// Returns the hints of the command: all hints of a vector command, limited retry of a Read,
    /// Write, Compare, Verify or Copy, none of other commands.
    #[inline]
    pub fn hints(&self) -> VectorHints {
        match *self {
            IoCommand::VectorRead { hints, .. }
            | IoCommand::VectorWrite { hints, .. }
            | IoCommand::VectorReset { hints, .. }
            | IoCommand::VectorCopy { hints, .. } => hints,
            IoCommand::Read { limited_retry, .. }
            | IoCommand::Write { limited_retry, .. }
            | IoCommand::Compare { limited_retry, .. }
            | IoCommand::Verify { limited_retry, .. }
            | IoCommand::Copy { limited_retry, .. } => {
                VectorHints { limited_retry, ..VectorHints::NONE }
            }
            _ => VectorHints::NONE,
        }
    }
}

//! [`IoCommand`]: a submission queue entry of an I/O queue, understood.
//!
//! The second of three steps: raw entry ([`Sqe`]) → typed command → request. Parsing looks at no
//! memory but the entry and allocates nothing. It guarantees that every count is in its range and
//! every flag is one that Sluice's drives know; whether addresses name sectors, whether the data
//! pointer fits the length and whether the namespace exists is for the drive to say, who finds them
//! on the entry ([`Sqe::data`], `mptr`, `nsid`).
//!
//! NVMe section 6 (NVM command set); OC section 4 (vector commands); [`VectorHints`] from revision 1.2.

use crate::opcode::io;
use crate::vector_hints::LIMITED_RETRY;
use crate::{Ppa, Sqe, Status, VectorHints};

/// Logical blocks of one read or write at most: the wire's field has 16 bits and is zero-based.
pub const MAX_BLOCKS: u32 = 1 << 16;
/// Ranges of one Dataset Management command at most: eight bits, zero-based.
pub const MAX_RANGES: u16 = 256;
/// Addresses of one vector command at most: as many as the completion has status bits (OC
/// section 4).
pub const MAX_VECTOR_ADDRESSES: u8 = 64;

/// The addresses of a vector command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PpaList {
    /// One address, in the command itself.
    One(Ppa),
    /// A list of little-endian 64-bit addresses in host memory.
    List {
        /// I/O virtual address of the list.
        at: u64,
        /// Addresses in the list, 2 to [`MAX_VECTOR_ADDRESSES`].
        count: u8,
    },
}

impl PpaList {
    /// Number of addresses, 1 to [`MAX_VECTOR_ADDRESSES`].
    #[inline]
    pub const fn count(self) -> u8 {
        match self {
            PpaList::One(_) => 1,
            PpaList::List { count, .. } => count,
        }
    }

    /// `count` addresses, whose list, or whose only member, is `word`.
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

/// A command of an I/O queue. Counts are counts: nothing here is zero-based.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCommand {
    /// What completed so far becomes durable (NVMe section 6.8).
    Flush,
    /// Memory to sectors (NVMe section 6.15).
    Write {
        /// First logical block.
        slba: u64,
        /// Logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
        /// Complete only when the data is durable (force unit access).
        fua: bool,
        /// Give up early (LR).
        limited_retry: bool,
    },
    /// Sectors to memory (NVMe section 6.9).
    Read {
        /// First logical block.
        slba: u64,
        /// Logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
        /// Read what is durable (force unit access).
        fua: bool,
        /// Give up early (LR).
        limited_retry: bool,
    },
    /// Sectors read as zeros afterwards (NVMe section 6.17).
    WriteZeroes {
        /// First logical block.
        slba: u64,
        /// Logical blocks, 1 to [`MAX_BLOCKS`].
        nlb: u32,
        /// The sectors may be unmapped instead of written (DEAC).
        deallocate: bool,
        /// Complete only when that is durable (force unit access).
        fua: bool,
    },
    /// Ranges of sectors with a hint (NVMe section 6.7); on an open-channel drive a deallocated
    /// range that is a chunk resets it. The data pointer names the [`DsmRange`](crate::DsmRange)s.
    DatasetManagement {
        /// Ranges, 1 to [`MAX_RANGES`].
        ranges: u16,
        /// The sectors are no longer needed (AD).
        deallocate: bool,
    },
    /// Which sectors are mapped: fills the data pointer with
    /// [`LbaStatusDescriptor`](crate::LbaStatusDescriptor)s and says in the completion's result how
    /// many. As the admin command Get LBA Status (NVMe section 5.27), but on an I/O queue, without
    /// the list's header, and with a 32-bit range.
    LbaStatus {
        /// First logical block.
        slba: u64,
        /// Logical blocks, at least 1.
        nlb: u32,
        /// Descriptors that fit the buffer, at least 1.
        max_descriptors: u32,
    },
    /// Sectors to memory, by physical address (OC section 4, Vector Chunk Read).
    VectorRead {
        /// From where.
        addresses: PpaList,
        /// How.
        hints: VectorHints,
    },
    /// Memory to sectors, by physical address (OC section 4, Vector Chunk Write).
    VectorWrite {
        /// To where.
        addresses: PpaList,
        /// How.
        hints: VectorHints,
    },
    /// Erases chunks (OC section 4, Vector Chunk Reset). A metadata pointer other than zero names
    /// where the [`ChunkDescriptor`](crate::ChunkDescriptor)s of the reset chunks go.
    VectorReset {
        /// Any sector of each chunk.
        addresses: PpaList,
        /// How.
        hints: VectorHints,
    },
    /// Sectors to sectors inside of the drive (OC section 4, Vector Chunk Copy). Both lists are
    /// equally long.
    VectorCopy {
        /// From where.
        from: PpaList,
        /// To where.
        to: PpaList,
        /// How.
        hints: VectorHints,
    },
    /// Logical addresses that are no longer needed (vendor specific): the drive's own map forgets
    /// their copies, and copies that are as old do not come back. The data pointer names the
    /// [`DsmRange`](crate::DsmRange)s, of logical addresses.
    DeviceTrim {
        /// Ranges, 1 to [`MAX_RANGES`].
        ranges: u16,
        /// Copies with sequence numbers up to this one are meant, under 2⁴⁸.
        sequence: u64,
    },
}

// CDW12 of reads and writes.
const FUA: u32 = 1 << 30;
/// Directive type: none is supported (NVMe section 6.15, DTYPE).
const DTYPE: u32 = 0xf << 20;
/// Deallocate, of Write Zeroes.
const DEAC: u32 = 1 << 25;
/// Deallocate attribute, CDW11 of Dataset Management.
const AD: u32 = 1 << 2;
/// Sequence numbers are below this.
const SEQUENCE_END: u64 = 1 << 48;
/// Dwords of an LBA status descriptor.
const DESCRIPTOR_DWORDS: u32 = 4;

/// Bits of byte 1 that must be zero: fused operations and the reserved bits between them and PSDT.
const FUSED: u8 = 0x3f;
const PSDT_RESERVED: u8 = 0xc0;

/// A fused operation, or a data pointer of a reserved kind.
#[inline]
pub(crate) fn flags_invalid(sqe: &Sqe) -> bool {
    sqe.flags & FUSED != 0 || sqe.flags & PSDT_RESERVED == PSDT_RESERVED
}

#[inline]
fn parse_block_count(cdw12: u32) -> u32 {
    (cdw12 & 0xffff) + 1
}

impl IoCommand {
    /// Understands an entry.
    ///
    /// # Errors
    /// The status to complete the command with: [`Status::INVALID_OPCODE`];
    /// [`Status::INVALID_FIELD`] for fused operations, reserved data pointer kinds, directives,
    /// more than 64 addresses, reserved hints, an empty LBA status query, a sequence number of over
    /// 48 bits.
    #[inline]
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

    /// Everything but the four that make up nearly all commands.
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
            io::DATASET_MANAGEMENT => IoCommand::DatasetManagement {
                ranges: (sqe.cdw10.get() & 0xff) as u16 + 1,
                deallocate: sqe.cdw11.get() & AD != 0,
            },
            io::LBA_STATUS => {
                // MNDW is zero-based; a buffer that ends within a descriptor holds one less.
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
            // With a directive, or it would have been parsed by now.
            io::WRITE => return Err(Status::INVALID_FIELD),
            _ => return Err(Status::INVALID_OPCODE),
        })
    }
}

/// The address list of a vector command: CDW10 and 11, and the zero-based count in CDW12.
#[inline]
fn parse_addresses(sqe: &Sqe) -> Result<PpaList, Status> {
    let count = sqe.cdw12.get() & 0xffff;
    if count >= u32::from(MAX_VECTOR_ADDRESSES) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(PpaList::decode(count as u8 + 1, sqe.slba()))
}

/// Entries of I/O queues. Data pointer ([`Sqe::set_prp`], [`Sqe::set_sgl`]), metadata pointer and
/// command identifier are zero and for the caller to set.
///
/// Counts out of their range are a bug of the caller: asserted in debug builds, cut off to the
/// width of their field in others.
impl Sqe {
    /// Flush.
    #[inline]
    pub fn flush(nsid: u32) -> Sqe {
        Sqe::new(io::FLUSH, nsid)
    }

    /// Read of `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba` on.
    #[inline]
    pub fn read(nsid: u32, slba: u64, nlb: u32) -> Sqe {
        Sqe::transfer(io::READ, nsid, slba, nlb)
    }

    /// Write of `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba` on; `fua` for force unit access.
    #[inline]
    pub fn write(nsid: u32, slba: u64, nlb: u32, fua: bool) -> Sqe {
        let mut sqe = Sqe::transfer(io::WRITE, nsid, slba, nlb);
        if fua {
            sqe.set_fua();
        }
        sqe
    }

    /// Write Zeroes to `nlb` blocks (1 to [`MAX_BLOCKS`]) from `slba` on, which may unmap them if
    /// `deallocate`.
    #[inline]
    pub fn write_zeroes(nsid: u32, slba: u64, nlb: u32, deallocate: bool) -> Sqe {
        let mut sqe = Sqe::transfer(io::WRITE_ZEROES, nsid, slba, nlb);
        if deallocate {
            sqe.cdw12 |= DEAC;
        }
        sqe
    }

    /// Sets force unit access of a read, write or Write Zeroes.
    #[inline]
    pub fn set_fua(&mut self) {
        self.cdw12 |= FUA;
    }

    /// Dataset Management with `ranges` (1 to [`MAX_RANGES`]) in the data pointer's memory.
    #[inline]
    pub fn dataset_management(nsid: u32, ranges: u16, deallocate: bool) -> Sqe {
        debug_assert!((1..=MAX_RANGES).contains(&ranges), "{ranges} ranges");
        let mut sqe = Sqe::new(io::DATASET_MANAGEMENT, nsid);
        sqe.cdw10 = u32::from(ranges.wrapping_sub(1) as u8).into();
        sqe.cdw11 = if deallocate { AD } else { 0 }.into();
        sqe
    }

    /// Map trim of `ranges` (1 to [`MAX_RANGES`]) of logical addresses in the data pointer's memory,
    /// as of `sequence` (under 2⁴⁸).
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

    /// LBA status of `nlb` blocks (at least 1) from `slba` on, in at most `max_descriptors` (at
    /// least 1, under 2³⁰) descriptors.
    #[inline]
    pub fn lba_status(nsid: u32, slba: u64, nlb: u32, max_descriptors: u32) -> Sqe {
        debug_assert!(nlb > 0 && (1..1 << 30).contains(&max_descriptors));
        let mut sqe = Sqe::new(io::LBA_STATUS, nsid);
        sqe.set_slba(slba);
        sqe.cdw12 = max_descriptors.wrapping_mul(DESCRIPTOR_DWORDS).wrapping_sub(1).into();
        sqe.cdw13 = nlb.into();
        sqe
    }

    /// Vector read.
    #[inline]
    pub fn vector_read(nsid: u32, addresses: PpaList) -> Sqe {
        Sqe::vector(io::VECTOR_READ, nsid, addresses)
    }

    /// Vector write.
    #[inline]
    pub fn vector_write(nsid: u32, addresses: PpaList) -> Sqe {
        Sqe::vector(io::VECTOR_WRITE, nsid, addresses)
    }

    /// Vector reset of the chunks that the addresses are in.
    #[inline]
    pub fn vector_reset(nsid: u32, addresses: PpaList) -> Sqe {
        Sqe::vector(io::VECTOR_RESET, nsid, addresses)
    }

    /// Vector copy; both lists are equally long.
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
    /// The entry that [`parse`](IoCommand::parse) understands as this command, without data
    /// pointer, metadata pointer and command identifier. The same cautions apply as for the
    /// constructors of [`Sqe`].
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
        }
    }

    /// The hints of the command: all of a vector command, limited retry of a read or write by
    /// logical block, none of others.
    #[inline]
    pub fn hints(&self) -> VectorHints {
        match *self {
            IoCommand::VectorRead { hints, .. }
            | IoCommand::VectorWrite { hints, .. }
            | IoCommand::VectorReset { hints, .. }
            | IoCommand::VectorCopy { hints, .. } => hints,
            IoCommand::Read { limited_retry, .. } | IoCommand::Write { limited_retry, .. } => {
                VectorHints { limited_retry, ..VectorHints::NONE }
            }
            _ => VectorHints::NONE,
        }
    }
}

//! [`FlashBackend`]: the interface between the FTL and the flash below it.

use nvme::{ChunkId, PhysSector, PuId};
use serde::{Deserialize, Serialize};
use time::Nanos;
use tracepoint::Cause;

use crate::buffer::unit_id::UnitId;
use crate::ftl::{HOST, HOT};
use crate::ids::{Lba, LbaRun, NO_SECTOR, SlotId, ToIndex, ToU32, WriteSeq};
use crate::{BufferEntry, NamedOob, NamedSlot, Oob, VictimDecision, VictimLines};

/// Identifies a flash operation of the FTL; the backend returns it on completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(transparent)]
pub struct OpToken(pub u32);

const KIND_SHIFT: u32 = 29;
const INDEX_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// Purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    HostRead,
    GcRead,
    Program,
    Erase,
    Journal,
    Trim,
    /// Writes of headers and footers; reads of a victim's metadata.
    Meta,
    MapRead,
}

impl OpToken {
    pub(crate) fn new(kind: OpKind, index: u32) -> OpToken {
        debug_assert!(index <= INDEX_MASK);
        OpToken((kind as u32) << KIND_SHIFT | index)
    }

    pub(crate) fn kind(self) -> OpKind {
        match self.0 >> KIND_SHIFT {
            0 => OpKind::HostRead,
            1 => OpKind::GcRead,
            2 => OpKind::Program,
            3 => OpKind::Erase,
            4 => OpKind::Journal,
            5 => OpKind::Trim,
            6 => OpKind::Meta,
            _ => OpKind::MapRead,
        }
    }

    /// Asserts that the function that was called reports operations of this kind.
    #[inline]
    pub(crate) fn expect_kind(self, kind: OpKind) {
        assert!(self.kind() == kind, "{:?} is reported as {kind:?}", self.kind());
    }

    pub(crate) fn index(self) -> u32 {
        self.0 & INDEX_MASK
    }

    /// Returns the part of the FTL that issued the operation.
    pub fn cause(self) -> Cause {
        match self.kind() {
            OpKind::HostRead => Cause::Host,
            // Padding of whole write units, which has no ring, is for others.
            OpKind::Program if matches!(UnitId::from_raw(self.index()).ring(), HOST | HOT) => {
                Cause::Host
            }
            OpKind::Program | OpKind::GcRead | OpKind::Erase => Cause::Gc,
            OpKind::Journal => Cause::Journal,
            OpKind::Trim | OpKind::Meta => Cause::Metadata,
            OpKind::MapRead => Cause::Map,
        }
    }
}

/// Destination of the sectors of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDest {
    /// To the memory of the request with this tag; places are sector numbers in the request.
    Host(u64),
    /// To write-buffer slots; places are slots.
    Buffer,
}

/// A sector that is read, and the place that its data goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadAddress {
    /// The sector.
    pub phys: PhysSector,
    /// With [`ReadDest::Host`] the number of the sector in the request, with [`ReadDest::Buffer`]
    /// the slot.
    pub place: u32,
}

impl ReadAddress {
    /// The sector, which goes to sector number `sector` of the request.
    #[inline]
    pub(crate) fn to_host(phys: PhysSector, sector: u32) -> ReadAddress {
        ReadAddress { phys, place: sector }
    }

    /// The sector, which goes to a slot.
    #[inline]
    pub(crate) fn to_slot(phys: PhysSector, slot: SlotId) -> ReadAddress {
        ReadAddress { phys, place: slot.get() }
    }

    /// The sectors from `phys` on, which go to the slots from `slot` on.
    pub(crate) fn unit(phys: PhysSector, slot: SlotId) -> [ReadAddress; 64] {
        std::array::from_fn(|i| ReadAddress::to_slot(phys + i.to_u32(), slot + i.to_u32()))
    }
}

/// A write unit that is programmed.
#[derive(Clone, Copy, Debug)]
pub struct WriteUnit<'a> {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its first sector in the chunk.
    pub sector: u32,
    /// The slot of the first sector's data; the others follow.
    pub first_slot: SlotId,
    /// Its sequence number: of two copies of a sector the one in the unit with the larger number is
    /// newer.
    pub sequence: WriteSeq,
    /// Contents of its sectors.
    pub entries: &'a [BufferEntry],
    /// Whether it is metadata of a line.
    pub metadata: bool,
    /// Whether the data of all sectors is in their slots. If not, the drive copies those that have a
    /// [`source`](BufferEntry::source).
    pub in_slots: bool,
    /// The sectors with names, beside their entries; empty if sectors have logical addresses.
    pub named: &'a [NamedSlot],
}

impl WriteUnit<'_> {
    /// A unit without host sectors: padding, or contents of the FTL, which are in its slots.
    pub(crate) fn without_sectors(
        chunk: ChunkId,
        sector: u32,
        first_slot: SlotId,
        ws_opt: u32,
    ) -> WriteUnit<'static> {
        let entries = &[BufferEntry::PADDING; 64][..ws_opt.index()];
        let (sequence, metadata, in_slots) = (WriteSeq(0), false, true);
        let named = &[];
        WriteUnit { chunk, sector, first_slot, sequence, entries, metadata, in_slots, named }
    }

    /// The first logical sector that is written, if the unit is not all padding.
    pub fn first_lba(&self) -> Option<Lba> {
        self.entries.iter().find_map(BufferEntry::lba)
    }

    /// The out-of-band bytes of each sector.
    pub fn oobs(&self) -> impl ExactSizeIterator<Item = [u8; Oob::BYTES]> {
        let oob = |entry: &BufferEntry| Oob { metadata: self.metadata, ..entry.oob(self.sequence) };
        let named = self.named;
        self.entries.iter().enumerate().map(move |(index, entry)| match named {
            [] => oob(entry).encode(),
            named => self.named_oob(entry, named[index].tag, index.to_u32()).encode(),
        })
    }

    /// The out-of-band bytes of sector `index`, which has a name.
    fn named_oob(&self, entry: &BufferEntry, tag: u64, index: u32) -> NamedOob {
        let fragment = NamedOob::fragment_of(self.sequence, index);
        let moved_from = Some(entry.durable_copy).filter(|source| *source != NO_SECTOR);
        match entry.lba() {
            Some(_) => NamedOob { source: moved_from, is_padding: false, fragment, tag },
            None => NamedOob { source: None, is_padding: true, fragment, tag: 0 },
        }
    }
}

/// The flash below, and the memory of requests above.
///
/// These calls start operations. The backend reports completions later through [`Ftl::read_done`],
/// [`Ftl::program_done`] and [`Ftl::erase_done`], never from within the call. Addresses are flat
/// physical sector numbers ([`nvme::Geometry::flat`]).
///
/// Every operation is reported once, by the function of its kind. A report of an operation that is
/// not in flight is a defect of the backend, and panics.
///
/// Order has two sides:
///
/// * *Execution*: programs of one chunk execute in the order in which they were started. An erase
///   executes after every read and program of its parallel unit that was started before it. Other
///   operations may be reordered.
/// * *Reports* may come in any order: several completion queues, or a retry, may reorder them.
///
/// [`Ftl::read_done`]: crate::Ftl::read_done
///
/// [`Ftl::program_done`]: crate::Ftl::program_done
///
/// [`Ftl::erase_done`]: crate::Ftl::erase_done
pub trait FlashBackend {
    /// Returns whether the flash keeps contents. If not, nothing is copied and nothing can be
    /// recovered.
    fn stores_data(&self) -> bool;

    /// Programs a write unit, the next one of its chunk. A chunk may have several in flight.
    ///
    /// A success implies those of its chunk that were started before it: the media refuses a
    /// program that is not at its write pointer, so they are programmed, whether or not that has
    /// been reported. A failure ends its chunk: later programs there fail as well, in whatever
    /// order that is reported, and earlier ones can be read without their paired pages. So a unit
    /// cannot fail while a later one of its chunk is programmed. [`Status::OFFLINE_CHUNK`] means
    /// that the contents of the chunk may be lost, too, including successful programs.
    ///
    /// [`Status::OFFLINE_CHUNK`]: nvme::Status::OFFLINE_CHUNK
    fn program(&mut self, now: Nanos, op: OpToken, unit: WriteUnit<'_>);

    /// Reads up to 64 sectors.
    fn read(&mut self, now: Nanos, op: OpToken, addresses: &[ReadAddress], target: ReadDest);

    /// Erases a chunk.
    fn erase(&mut self, now: Nanos, op: OpToken, chunk: ChunkId);

    /// Returns whether relocated sectors are copied inside of the drive: they are not read into slots,
    /// and [`program`](FlashBackend::program) gets units with sources. A source that cannot be copied
    /// is reported through [`Ftl::copy_failed`]. The default is that they are read.
    ///
    /// [`Ftl::copy_failed`]: crate::Ftl::copy_failed
    fn copies_in_drive(&self) -> bool {
        false
    }

    /// Returns the host reads in flight on a parallel unit: those started with [`ReadDest::Host`]
    /// that have not been reported yet. The default, 0, is for flash that does not count them.
    ///
    /// [`GcReadPriority::PerPu`](crate::GcReadPriority::PerPu) uses it. Operations deferred for a
    /// read start after its [`Ftl::read_done`].
    ///
    /// [`Ftl::read_done`]: crate::Ftl::read_done
    fn host_reads_in_flight(&self, pu: PuId) -> u32 {
        let _ = pu;
        0
    }

    /// Chooses the next victim of garbage collection. Called when space is needed. The default is the
    /// policy of the configuration.
    #[inline]
    fn choose_victim(&mut self, now: Nanos, lines: &VictimLines<'_>) -> VictimDecision {
        let _ = (now, lines);
        VictimDecision::Policy
    }

    /// Trims runs of logical sectors in the drive's own map: the drive drops versions in units with
    /// sequence numbers up to `sequence`. The drive reports it through [`Ftl::device_trim_done`]. At most one trim is outstanding, with at most 256 runs. Returns
    /// whether it was accepted: `false` if the drive keeps no map, which is the default.
    ///
    /// [`Ftl::device_trim_done`]: crate::Ftl::device_trim_done
    fn device_trim(
        &mut self,
        now: Nanos,
        op: OpToken,
        runs: &[LbaRun],
        sequence: WriteSeq,
    ) -> bool {
        let _ = (now, op, runs, sequence);
        false
    }

    /// Copies sector number `sector` of a write request into a slot.
    fn copy_from_host(&mut self, request: u64, sector: u32, slot: SlotId);

    /// Fills a slot with zeros for sector number `sector` of a request that writes no data: zeros, or
    /// a mark of an unreadable sector. The default is [`write_slot`](FlashBackend::write_slot) without
    /// bytes.
    fn zero_slot(&mut self, request: u64, sector: u32, slot: SlotId) {
        let _ = (request, sector);
        self.write_slot(slot, &[]);
    }

    /// Copies a slot to sector number `sector` of a read request.
    fn copy_to_host(&mut self, request: u64, sector: u32, slot: SlotId);

    /// Zeros sector number `sector` of a read request.
    fn zero_to_host(&mut self, request: u64, sector: u32);

    /// Called for sector number `sector` of a read request that has no readable copy: its data was
    /// lost, or it was written as unreadable. The read fails. The default does nothing.
    fn record_unreadable(&mut self, request: u64, sector: u32) {
        let _ = (request, sector);
    }

    /// Copies the out-of-band bytes of `phys`, which has just been read for sector number `sector` of a
    /// read request. Called for sectors with names only. The default is zeros, with which no read of a
    /// named sector succeeds.
    fn read_host_oob(
        &mut self,
        request: u64,
        sector: u32,
        phys: PhysSector,
        out: &mut [u8; Oob::BYTES],
    ) {
        let _ = (request, sector, phys);
        out.fill(0);
    }

    /// Writes bytes of the FTL into a slot; an empty slice stands for zeros.
    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]);

    /// Called after a read into slots: ensures that the data of `phys` is in `slot`.
    fn sync_slot(&mut self, phys: PhysSector, slot: SlotId);

    /// Copies the first bytes of a slot, at most a sector.
    fn read_slot(&mut self, slot: SlotId, out: &mut [u8]);

    /// Copies the out-of-band bytes of `phys`, which has just been read into `slot`.
    fn read_slot_oob(&mut self, phys: PhysSector, slot: SlotId, out: &mut [u8; Oob::BYTES]);
}

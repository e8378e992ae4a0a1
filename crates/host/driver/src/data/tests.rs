//! Tests that follow data pointers as a controller does.

// guarantee: C-14, C-15

use std::io;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use mem::{DmaMapper, DmaReach};
use nvme::DataPointer;
use rng::Rng;
use transport::DmaBus;

use super::*;

fn read(data: Payload, bytes: u32) -> TransferSpec {
    TransferSpec { data, bytes, is_read: true, layout: ExtendedLbaLayout::NO_METADATA }
}

/// Returns the ranges that a controller accesses according to the specification: the first bytes,
/// then whole pages.
fn walk(port: &Port, sqe: &Sqe, bytes: u64) -> Vec<(u64, u64)> {
    walk_by(sqe, bytes, |at| {
        let mut word = [0; 8];
        port.memory().read(Iova(at), &mut word).unwrap();
        u64::from_le_bytes(word)
    })
}

fn walk_by(sqe: &Sqe, bytes: u64, word: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
    let DataPointer::Prp(first, second) = sqe.data() else { panic!("not PRPs") };
    let mut out = vec![(first, bytes.min(PAGE64 - first % PAGE64))];
    let mut left = bytes - out[0].1;
    if left == 0 {
        assert_eq!(second, 0, "reserved");
    } else if left <= PAGE64 {
        out.push((second, left));
    } else {
        let mut list = second;
        while left > 0 {
            let entry = word(list);
            assert_eq!(entry % PAGE64, 0);
            if list % PAGE64 == PAGE64 - 8 && left > PAGE64 {
                list = entry;
                continue;
            }
            out.push((entry, left.min(PAGE64)));
            left -= left.min(PAGE64);
            list += 8;
        }
    }
    out
}

#[test]
fn lists_cover_transfers_of_every_length_and_place() {
    let port = Port::new().unwrap();
    let (_, data) = port.memory().allocate_registered(5 << 20).unwrap();
    let mut lists = PrpLists::with_max_transfer(&port, 3, PRP_TRANSFER_MAX).unwrap();
    let memory = PointerTarget { memory: port.memory(), has_sgls: false };
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    println!("SLUICE_SEED={seed}");
    let mut rng = Rng::new(seed);
    let edges = [512, 4096, 4608, 8192, 8704, 511 << 12, 512 << 12, 513 << 12, 514 << 12]
        .map(|bytes| (bytes, 0));
    let most = PRP_TRANSFER_MAX as u32;
    let more = [(most, 0), (most, 4), (most, 4092), (most - 512, 512)];
    let random = (0..2_000).map(|_| {
        let scale = rng.below(14);
        let bytes = 512 * (1 + rng.below(1 << scale) as u32);
        (bytes, 4 * rng.below(1024))
    });
    for (bytes, offset) in edges.into_iter().chain(more).chain(random.collect::<Vec<_>>()) {
        let at = data.offset(offset);
        let mut sqe = Sqe::read(1, 0, 1);
        lists.set_data_pointer(&mut sqe, 2, read(Payload::Contiguous(at), bytes), memory).unwrap();
        let mut next = at.0;
        for (address, len) in walk(&port, &sqe, bytes.into()) {
            assert_eq!(address, next, "{bytes} bytes from {offset} on");
            next += len;
        }
        assert_eq!(next, at.0 + u64::from(bytes));
        lists.set_data_pointer(&mut sqe, 1, read(Payload::BitBucket, bytes), memory).unwrap();
        let pages = walk(&port, &sqe, bytes.into());
        assert!(pages.iter().all(|p| p.0 == pages[0].0), "one page of scratch memory");
        assert!(port.memory().find(Iova(pages[0].0), PAGE64).is_ok());
    }
}

#[test]
fn what_entries_cannot_say_is_copied_or_refused() {
    let port = Port::new().unwrap();
    let (_, data) = port.memory().allocate_registered(1 << 20).unwrap();
    let (tables, table) = port.memory().allocate_registered(PAGE_BYTES).unwrap();
    let mut lists = PrpLists::with_max_transfer(&port, 2, 64 << 10).unwrap();
    let memory = PointerTarget { memory: port.memory(), has_sgls: false };
    let mut sqe = Sqe::read(1, 0, 1);
    let odd = read(Payload::Contiguous(data.offset(2)), 16 << 10);
    lists.set_data_pointer(&mut sqe, 0, odd, memory).unwrap();
    let pages = walk(&port, &sqe, 16 << 10);
    assert_eq!(pages.len(), 4);
    assert!(pages.iter().all(|(at, _)| *at < data.0 || *at > data.0 + (1 << 20)), "copied");
    // Segments that are pages are named directly, at any address.
    let segments = [(0x3000, 8192), (0x1000, 4096), (0x8000, 512)];
    for (i, (offset, bytes)) in segments.into_iter().enumerate() {
        let words = Segment { at: Some(data.offset(offset)), bytes }.encode();
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        tables.write(16 * i, &bytes);
    }
    let pieces = Payload::Scattered { table, segments: 3 };
    lists.set_data_pointer(&mut sqe, 1, read(pieces, 12800), memory).unwrap();
    let named: Vec<u64> = walk(&port, &sqe, 12800).iter().map(|(at, _)| at - data.0).collect();
    assert_eq!(named, [0x3000, 0x4000, 0x1000, 0x8000]);
    assert_eq!(lists.bounce_stats().commands, 1);
    // Too few pages are free until the first command has completed.
    let second = read(Payload::Contiguous(data.offset(1)), 64 << 10);
    assert_eq!(lists.set_data_pointer(&mut sqe, 1, second, memory), Err(BindError::Busy));
    lists.complete(port.memory(), 0, true);
    lists.set_data_pointer(&mut sqe, 1, second, memory).unwrap();
    let refused = |status| Err(BindError::Refused(status));
    let long =
        lists.set_data_pointer(&mut sqe, 0, read(Payload::Contiguous(data), 4 << 20), memory);
    assert_eq!(long, refused(Status::INVALID_FIELD));
    let tag = lists.set_data_pointer(&mut sqe, 2, read(Payload::Contiguous(data), 1 << 14), memory);
    assert_eq!(tag, refused(Status::INVALID_FIELD));
    let short = lists.set_data_pointer(&mut sqe, 0, read(pieces, 512), memory);
    assert_eq!(short, refused(Status::SGL_LENGTH_INVALID));
    // With SGLs only payloads with a bit bucket need pages.
    let sgls = PointerTarget { memory: port.memory(), has_sgls: true };
    lists.set_data_pointer(&mut sqe, 0, read(pieces, 12800), sgls).unwrap();
    assert!(matches!(sqe.data(), DataPointer::Sgl(SglDescriptor::Segment { .. })));
    assert!(lists.is_compatible(2, 64 << 10) && lists.is_compatible(1, 64 << 10));
    assert!(!lists.is_compatible(3, 512) && !lists.is_compatible(1, 4 << 20));
}

/// A bus without an IOMMU: memory that it provides is reached page by page, last page first; other
/// memory is not reached.
#[derive(Debug, Default)]
struct NoIommuBus {
    provided: Mutex<Vec<usize>>,
    /// Maximum number of regions.
    regions_max: AtomicUsize,
}

const NO_IOMMU_BASE: u64 = 0x7_0000_0000;

impl DmaMapper for NoIommuBus {
    fn map(&self, at: Iova, region: &SharedRegion) -> io::Result<DmaReach> {
        let (pointer, bytes) = region.whole_pages();
        if !self.provided.lock().unwrap().contains(&pointer.addr()) {
            return Ok(DmaReach::Unreachable);
        }
        let last = NO_IOMMU_BASE + at.0 + (bytes - PAGE_BYTES) as u64;
        let pages = (0..(bytes / PAGE_BYTES) as u64).map(|page| last - page * PAGE64);
        Ok(DmaReach::Paged(pages.collect()))
    }

    fn is_paged(&self) -> bool {
        true
    }

    fn allocate(&self, len: usize) -> io::Result<Arc<SharedRegion>> {
        let left = self.regions_max.load(Ordering::Relaxed).checked_sub(len.div_ceil(PAGE_BYTES));
        self.regions_max.store(left.ok_or(io::ErrorKind::OutOfMemory)?, Ordering::Relaxed);
        let region = SharedRegion::anonymous(len)?;
        self.provided.lock().unwrap().push(region.pointer(0, 1).addr());
        Ok(region)
    }

    fn remediation(&self) -> &'static str {
        " (more)"
    }
}

impl DmaBus for NoIommuBus {
    fn vectors(&self) -> u16 {
        0
    }

    fn bind_vector(&self, _: u16, _: &event::Waker) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn no_iommu_port(most: usize) -> (Arc<NoIommuBus>, io::Result<Arc<Port>>) {
    let bus = Arc::new(NoIommuBus { regions_max: most.into(), ..NoIommuBus::default() });
    let window = mem::DmaWindow::largest_range(&[1 << 32..=(1 << 40) - 1]).unwrap();
    let bells = transport::DoorbellLayout::from_dstrd(0);
    let registers = SharedRegion::anonymous(0x3000).unwrap();
    (bus.clone(), Port::for_real_controller(registers, bells, window, bus))
}

#[test]
fn without_an_iommu_pages_are_named_where_they_are_and_other_memory_is_copied() {
    let (_, port) = no_iommu_port(4000);
    let port = port.unwrap();
    assert!(!port.has_interrupts() && port.max_io_queues() > 1);
    let memory = port.memory();
    let (data, data_at) = memory.allocate_registered(3 << 20).unwrap();
    let own = SharedRegion::anonymous(1 << 20).unwrap();
    let own_at = memory.register(&own).unwrap();
    assert_eq!(memory.bus_address(own_at), None);
    let mut lists = PrpLists::with_max_transfer(&port, 2, 2 << 20).unwrap();
    assert_eq!(lists.bounce_stats(), BounceStats::default(), "no memory before it is needed");
    // Translate the controller's addresses back: regions are reversed as a whole.
    let back = |wire: u64| {
        let page = Iova(wire - wire % PAGE64 - NO_IOMMU_BASE);
        let found = memory.find(page, PAGE64).unwrap();
        let begin = page.0 - found.offset as u64;
        let last = found.region.len().next_multiple_of(PAGE_BYTES) - PAGE_BYTES;
        let at = begin + (last - found.offset) as u64 + wire % PAGE64;
        assert_eq!(memory.bus_address(Iova(at)), Some(wire));
        at
    };
    let word = |wire: u64| {
        let mut word = [0; 8];
        memory.read(Iova(back(wire)), &mut word).unwrap();
        u64::from_le_bytes(word)
    };
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(8);
    println!("SLUICE_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut copied = 0;
    for round in 0..600u32 {
        let scale = rng.below(12);
        let bytes = 512 * (1 + rng.below(1 << scale) as u32);
        let (ours, offset) = (rng.chance(0.5), 4 * rng.below(1024));
        let bytes = if ours { bytes.min(1 << 19) } else { bytes };
        let at = if ours { own_at } else { data_at }.offset(offset);
        let mut sqe = Sqe::read(1, 0, 1);
        let transfer = TransferSpec {
            data: Payload::Contiguous(at),
            bytes,
            is_read: true,
            layout: ExtendedLbaLayout::NO_METADATA,
        };
        lists
            .set_data_pointer(&mut sqe, 1, transfer, PointerTarget { memory, has_sgls: false })
            .unwrap();
        let pages = walk_by(&sqe, bytes.into(), word);
        let (mut next, mut done) = (at.0, 0u64);
        for (wire, len) in pages {
            let found = back(wire);
            // Act as the controller, which writes there.
            memory.write(Iova(found), &vec![round as u8; len as usize]).unwrap();
            assert!(ours || found == next, "{bytes} bytes from {offset} on");
            (next, done) = (next + len, done + len);
        }
        assert_eq!(done, u64::from(bytes));
        copied += u64::from(ours);
        assert_eq!(lists.bounce_stats().commands, copied);
        lists.complete(memory, 1, true);
        let mut out = vec![0; bytes as usize];
        memory.read(at, &mut out).unwrap();
        assert!(out.iter().all(|byte| *byte == round as u8), "it is there");
        lists
            .set_data_pointer(
                &mut sqe,
                0,
                read(Payload::BitBucket, bytes),
                PointerTarget { memory, has_sgls: false },
            )
            .unwrap();
        for (wire, _) in walk_by(&sqe, bytes.into(), word) {
            assert!(memory.find(Iova(back(wire)), PAGE64).is_ok());
        }
    }
    assert!(copied > 100 && lists.bounce_stats().memory == 2 << 20, "{:?}", lists.bounce_stats());
    // A controller accesses any address it is given, so the driver must reject unregistered memory.
    let mut sqe = Sqe::read(1, 0, 1);
    let beyond = data_at.offset((3 << 20) - 4096);
    for (at, bytes) in [(beyond, 8192), (Iova(1 << 50), 512), (Iova(0x1000), 512)] {
        let refused = lists.set_data_pointer(
            &mut sqe,
            0,
            read(Payload::Contiguous(at), bytes),
            PointerTarget { memory, has_sgls: false },
        );
        assert_eq!(refused, Err(BindError::Refused(Status::DATA_TRANSFER_ERROR)), "{at}");
    }
    drop(data);
}

#[test]
fn memory_to_copy_through_that_is_not_there_is_said_and_not_asked_for_again() {
    let (_, none) = no_iommu_port(1);
    let said = none.unwrap_err();
    assert!(said.to_string().contains("controller can access"), "{said}");
    // Admin queues, and lists for one tag.
    let (bus, port) = no_iommu_port(2 + 2);
    let port = port.unwrap();
    let own = SharedRegion::anonymous(PAGE_BYTES).unwrap();
    let at = port.memory().register(&own).unwrap();
    let mut lists = PrpLists::with_max_transfer(&port, 1, 64 << 10).unwrap();
    assert_eq!(lists.bounce_error(), None);
    let mut sqe = Sqe::read(1, 0, 1);
    for round in 1..=3 {
        // A later allocation would succeed.
        let memory = PointerTarget { memory: port.memory(), has_sgls: false };
        let ended = lists.set_data_pointer(&mut sqe, 0, read(Payload::Contiguous(at), 512), memory);
        assert_eq!(ended, Err(BindError::Refused(Status::INTERNAL)));
        let why = lists.bounce_error().expect("why").to_string();
        assert!(why.contains("65536 bytes") && why.ends_with("(more)"), "{why}");
        let stats = BounceStats { refused: round, ..BounceStats::default() };
        assert_eq!(lists.bounce_stats(), stats);
        bus.regions_max.store(1000, Ordering::Relaxed);
    }
    // Another queue can still allocate.
    let mut lists = PrpLists::with_max_transfer(&port, 1, 64 << 10).unwrap();
    lists
        .set_data_pointer(
            &mut sqe,
            0,
            read(Payload::Contiguous(at), 512),
            PointerTarget { memory: port.memory(), has_sgls: false },
        )
        .unwrap();
}

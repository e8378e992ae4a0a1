//! Namespaces with metadata: block requests carry no metadata, whatever format the drive uses.

// guarantee: C-03

use crate::common;

use std::sync::{Arc, Mutex};

use common::{MockDrive, SECTOR};
use mem::{Iova, SharedRegion};
use nvme::{LbaFormat, MetadataFormat, MetadataTransfer, ProtectionType, Status};
use rng::Rng;
use sluice_driver::{
    BindError, ConnectOptions, ControllerHandle, DataPointers, HardwareQueue, NvmeQueue, Op,
    Payload, Request, Tag,
};
use time::Nanos;
use transport::Port;

const SECTORS: usize = 200;

struct Harness {
    drive: MockDrive,
    port: Arc<Port>,
    queue: NvmeQueue,
    metadata: MetadataFormat,
    max_sectors: u32,
}

impl Harness {
    fn new((ms, flbas, dps): (u16, u8, u8), data: DataPointers) -> Harness {
        let port = Port::new().unwrap();
        let mut drive = MockDrive::new(&port, SECTORS);
        drive.namespace.lbaf[0] = LbaFormat { ms: ms.into(), lbads: 12, rp: 0 };
        (drive.namespace.flbas, drive.namespace.dps) = (flbas, dps);
        drive.metadata = vec![0xb5; SECTORS * usize::from(ms)];
        let metadata =
            MetadataFormat::from_namespace(&drive.namespace).expect("the namespace has metadata");
        let options = ConnectOptions { data: Some(data), ..ConnectOptions::default() };
        let controller =
            ControllerHandle::connect_with(port.clone(), options, &mut || drive.progress(), 1000)
                .unwrap();
        let info = controller.info().clone();
        assert_eq!(info.metadata, Some(metadata));
        let controller = Arc::new(Mutex::new(controller));
        let queue = NvmeQueue::open(&controller, 9, None, &mut || drive.progress()).unwrap();
        Harness { drive, port, queue, metadata, max_sectors: info.max_sectors }
    }

    fn bind(&mut self, request: Request) -> Result<Tag, BindError> {
        let mut tag = [Tag(0)];
        assert_eq!(self.queue.get_free_tags(&mut tag), 1);
        match self.queue.bind_tag_cmd(tag[0], &request, Nanos(1)) {
            Ok(()) => Ok(tag[0]),
            Err(error) => {
                self.queue.release_tags(&tag).unwrap();
                Err(error)
            }
        }
    }

    fn finish(&mut self, count: usize) {
        assert!(self.queue.issue_tags());
        self.drive.progress();
        for _ in 0..count {
            let event = self.queue.fetch_event().expect("the command completes");
            assert_eq!(event.status, Status::SUCCESS);
            self.queue.detach_tag_cmd(event.tag).unwrap();
            self.queue.release_tags(&[event.tag]).unwrap();
        }
    }

    fn one(&mut self, request: Request) {
        self.bind(request).unwrap();
        self.finish(1);
    }
}

/// The metadata formats: bytes per sector, FLBAS, DPS.
const FORMATS: [(u16, u8, u8); 8] = [
    (8, 0, 0),
    (64, 0, 0),
    (8, 0x10, 0),
    (64, 0x10, 0),
    (8, 0, 1),
    (8, 0x10, 3),
    (16, 0, 2),
    (16, 0x10, 9),
];
const POINTERS: [DataPointers; 3] = [DataPointers::Prp, DataPointers::SglAndPrp, DataPointers::Sgl];

fn random(rng: &mut Rng, region: &SharedRegion, at: usize, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
    region.write(at, &bytes);
    bytes
}

#[test]
fn sectors_are_what_was_written_and_nothing_beside_them_comes_or_goes() {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("SLUICE_SEED={seed}");
    let mut rng = Rng::new(seed);
    for format in FORMATS {
        for data in POINTERS {
            let mut harness = Harness::new(format, data);
            let (region, at) = harness.port.memory().allocate_registered(1 << 20).unwrap();
            let mut wanted = vec![0; SECTORS * SECTOR];
            for round in 0..60 {
                // Two commands at a time, which must not share metadata buffers.
                let mut under_way = Vec::new();
                for half in 0..2 {
                    let sectors = 1 + rng.below(20.min(u64::from(harness.max_sectors))) as usize;
                    let lba = half * 100 + rng.below((100 - sectors) as u64) as usize;
                    let base = half * (512 << 10);
                    let offset = [0, 4, 512, 4096, 1, 4095][rng.below(6) as usize];
                    region.fill(base, 512 << 10, 0x11);
                    let data = Payload::Contiguous(at.offset((base + offset) as u64));
                    let bytes = lba * SECTOR..(lba + sectors) * SECTOR;
                    let op = if rng.chance(0.5) { Op::Read } else { Op::Write };
                    if op == Op::Write {
                        let written = random(&mut rng, &region, base + offset, bytes.len());
                        wanted[bytes.clone()].copy_from_slice(&written);
                    }
                    let request =
                        Request { op, ..Request::read(lba as u64, sectors as u32, data, 0) };
                    // Sometimes there is memory for only one command.
                    if harness.bind(request) == Err(BindError::Busy) {
                        assert_eq!(under_way.len(), 1);
                        harness.finish(1);
                        under_way.push(None);
                        harness.bind(request).unwrap();
                        harness.finish(1);
                    }
                    under_way.push(Some((op, base, offset, bytes)));
                }
                if under_way.len() == 2 {
                    harness.finish(2);
                }
                for (op, base, offset, bytes) in under_way.into_iter().flatten() {
                    assert!(
                        harness.drive.sectors[bytes.clone()] == wanted[bytes.clone()],
                        "{round}"
                    );
                    let mut all = vec![0; 512 << 10];
                    region.read(base, &mut all);
                    assert!(all[offset..offset + bytes.len()] == wanted[bytes.clone()]);
                    let around = all[..offset].iter().chain(&all[offset + bytes.len()..]);
                    assert!(
                        around.copied().all(|byte| byte == 0x11),
                        "the transfer must not change other memory"
                    );
                    let each = usize::from(harness.metadata.bytes);
                    let beside = &mut harness.drive.metadata
                        [bytes.start / SECTOR * each..bytes.end / SECTOR * each];
                    if op == Op::Write
                        && harness.metadata.transfer != MetadataTransfer::ControllerOnly
                    {
                        assert!(
                            beside.iter().all(|byte| *byte == 0),
                            "the metadata of a write must be zeros"
                        );
                        // A later read must not change this metadata.
                        beside.fill(0xb5);
                    }
                    assert!(beside.iter().all(|byte| *byte == 0xb5));
                }
            }
        }
    }
}

#[test]
fn protection_is_asked_for_where_there_is_any() {
    for format in FORMATS {
        let mut harness = Harness::new(format, DataPointers::Prp);
        let (_, at) = harness.port.memory().allocate_registered(4 * SECTOR).unwrap();
        harness.one(Request::write(7, 2, Payload::Contiguous(at), 0));
        harness.one(Request::read(7, 2, Payload::Contiguous(at), 0));
        harness.one(Request::write_zeroes(9, 3, false, 0));
        harness.one(Request::read(7, 5, Payload::BitBucket, 0));
        harness.one(Request::write(30, 5, Payload::BitBucket, 0));
        harness.one(Request::discard(7, 2, 0));
        harness.one(Request::flush(0));
        let marks: Vec<_> =
            harness.drive.marks.iter().map(|(cdw12, tag)| (cdw12 >> 26 & 0xf, *tag)).collect();
        let checks = match harness.metadata.protection {
            None => 0,
            Some(ProtectionType::Type3) => 0b1100,
            Some(ProtectionType::Type1 | ProtectionType::Type2) => 0b1101,
        };
        let tags = [7, 7, 9, 7, 30].map(|lba| if checks == 0b1101 { lba } else { 0 });
        let mut wanted = tags.map(|tag| (checks, tag));
        wanted[2].0 &= 0b1000;
        assert_eq!(marks, wanted, "{format:?}");
    }
}

/// The drive transfers at most 128 KiB per command, including interleaved metadata.
#[test]
fn transfers_are_as_long_as_they_can_be() {
    for format in FORMATS {
        let mut harness = Harness::new(format, DataPointers::Prp);
        let inline = harness.metadata.extended_lba_bytes();
        assert_eq!(harness.max_sectors, (128 << 10) / (SECTOR as u32 + inline), "{format:?}");
        let (region, at) = harness.port.memory().allocate_registered(256 << 10).unwrap();
        let bytes = harness.max_sectors as usize * SECTOR;
        let written = random(&mut Rng::new(3), &region, 2048, bytes);
        harness.one(Request::write(
            0,
            harness.max_sectors,
            Payload::Contiguous(at.offset(2048)),
            0,
        ));
        region.fill(0, 256 << 10, 0);
        harness.one(Request::read(0, harness.max_sectors, Payload::Contiguous(at.offset(4096)), 0));
        let mut read = vec![0; bytes];
        region.read(4096, &mut read);
        assert!(read == written);
        if inline > 0 {
            let refused = |status| Err(BindError::Refused(status));
            let long =
                harness.bind(Request::read(0, harness.max_sectors + 2, Payload::Contiguous(at), 0));
            assert_eq!(long, refused(Status::INVALID_FIELD));
            let nowhere = harness.bind(Request::read(0, 1, Payload::Contiguous(Iova(1 << 50)), 0));
            assert_eq!(nowhere, refused(Status::DATA_TRANSFER_ERROR));
        }
    }
    // With small sectors, the separate metadata buffer also limits the transfer.
    let port = Port::new().unwrap();
    let mut drive = MockDrive::new(&port, SECTORS);
    drive.controller.mdts = 0;
    drive.namespace.lbaf[0] = LbaFormat { ms: 64.into(), lbads: 9, rp: 0 };
    let controller =
        ControllerHandle::connect(port.clone(), &mut || drive.progress(), 1000).unwrap();
    assert_eq!(controller.info().max_sectors, 1024);
}

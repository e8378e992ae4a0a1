//! The controller memory buffer: data, lists and rings in the drive's memory, and its contents
//! after a power loss.

// guarantee: D-41, M-13

use controller::{CmbConfig, Controller, DriveConfig};
use driver::{Cmb, OutOfCmbBounds};
use mem::PAGE_BYTES;
use nvme::register::{CMBLOC, CMBSZ};
use nvme::{AdminCommand, CmbSize, Ppa, PpaList, QueuePriority, SglDescriptor, Sqe, Status};
use rng::Rng;
use time::{Component, Nanos};
use transport::{CqConsumer, SqProducer};

use super::events::RawHost;
use super::harness::{Harness, PROGRAM, READ, SECTOR, drive, on_image, planes, seeds};
use crate::common::open_channel_host::{DATA, LIST, OpenChannelHost};

const BYTES: u64 = 64 << 10;
/// DMA time of a sector of 4 KiB at 1 GB/s.
const DMA: Nanos = Nanos(4_096);

fn with_cmb(protected: bool) -> DriveConfig {
    let mut config = drive(planes(1));
    config.controller.cmb = Some(CmbConfig { bytes: BYTES, protected });
    config.controller.dma_bytes_per_sec = 1_000_000_000;
    config
}

fn block(cmb: &Cmb, offset: u64, length: u32) -> SglDescriptor {
    SglDescriptor::DataBlock { address: cmb.at(offset, length.into()).unwrap().0, length }
}

#[test]
fn registers_tell_where_it_is() {
    let mut r = Harness::new(with_cmb(true));
    let port = r.open.port.clone();
    assert_eq!(port.register(CMBSZ), 16 << 12 | 0x1f);
    assert_eq!(port.register(CMBLOC), 2);
    let cmb = r.controller.cmb().unwrap();
    assert_eq!((cmb.bytes(), cmb.is_protected()), (BYTES, true));
    assert_eq!(cmb.supported_uses(), CmbSize::from_size_bytes(BYTES).unwrap());
    assert_eq!(cmb.at(0, BYTES).unwrap(), port.bar(2).unwrap());
    cmb.write(BYTES - 3, b"end").unwrap();
    let mut end = [0; 3];
    cmb.read(BYTES - 3, &mut end).unwrap();
    assert_eq!(&end, b"end");
    for (offset, len) in [(BYTES, 1), (BYTES - 2, 3), (u64::MAX, 2), (0, BYTES + 1)] {
        let outside = OutOfCmbBounds { offset, len, bytes: BYTES };
        assert_eq!(cmb.at(offset, len), Err(outside));
    }
    assert!(cmb.write(BYTES - 2, b"end").is_err());
    assert!(cmb.read(BYTES - 2, &mut end).is_err());
    r.open.memory.write(0, b"abc");
    cmb.stage(7, &r.open.memory, 1, 2).unwrap();
    assert!(cmb.stage(BYTES, &r.open.memory, 0, 1).is_err());
    cmb.read(7, &mut end).unwrap();
    assert_eq!(&end, b"bc\0");
    // An unprotected buffer is reported as such, and a drive without one reports none.
    assert!(!Harness::new(with_cmb(false)).controller.cmb().unwrap().is_protected());
    let none = Harness::new(drive(planes(1)));
    assert!(none.controller.cmb().is_none());
    assert_eq!((none.open.port.register(CMBSZ), none.open.port.bar(2)), (0, None));
    // All hosts of a drive share the buffer.
    let (other, _) = crate::common::attach(&mut r.open.drive);
    other.cmb().unwrap().read(BYTES - 3, &mut end).unwrap();
    assert_eq!(&end, b"end");
}

#[test]
fn data_in_it_takes_no_transfer() {
    let mut r = Harness::new(with_cmb(true));
    let cmb = r.controller.cmb().unwrap();
    let d = &mut r.open;
    let ppa = |d: &OpenChannelHost, s| d.ppa(0, 0, 0, s);
    // A write from host memory takes the bus, the channel and the array.
    let sqe = d.with_data(Sqe::vector_write(1, PpaList::One(ppa(d, 0))), 1);
    assert_eq!(d.run(sqe).1, DMA + SECTOR + PROGRAM);
    // A write from the buffer does not take the bus.
    let data: Vec<u8> = (0..4096).map(|i| (i * 7 % 251) as u8).collect();
    cmb.write(8192, &data).unwrap();
    let mut sqe = Sqe::vector_write(1, PpaList::One(ppa(d, 1)));
    sqe.set_sgl(block(&cmb, 8192, 4096));
    let (ended, time) = d.run(sqe);
    assert_eq!((ended.status, time), (Status::SUCCESS, SECTOR + PROGRAM));
    // Read back to host memory and to the buffer.
    let sqe = d.with_data(Sqe::vector_read(1, PpaList::One(ppa(d, 1))), 1);
    assert_eq!(d.run(sqe).1, READ + SECTOR + DMA);
    let mut found = vec![0; 4096];
    d.memory.read(DATA, &mut found);
    assert_eq!(found, data);
    let mut sqe = Sqe::vector_read(1, PpaList::One(ppa(d, 1)));
    sqe.set_sgl(block(&cmb, 4096, 4096));
    assert_eq!(d.run(sqe).1, READ + SECTOR);
    cmb.read(4096, &mut found).unwrap();
    assert_eq!(found, data);
    assert_eq!(d.drive.stats().cmb_bytes, 8192);
    // Half of the data is in host memory, the other half in the buffer.
    let host = SglDescriptor::DataBlock { address: d.at.0, length: 4096 };
    for (i, descriptor) in [block(&cmb, 0, 4096), host].into_iter().enumerate() {
        for (w, word) in descriptor.encode().into_iter().enumerate() {
            d.memory.write(LIST + 512 + i * 16 + w * 8, &word.to_le_bytes());
        }
    }
    let mut sqe = Sqe::vector_write(1, d.list(&[ppa(d, 2), ppa(d, 3)]));
    let address = d.at.offset(LIST as u64 + 512).0;
    sqe.set_sgl(SglDescriptor::Segment { address, length: 32, last: true });
    assert_eq!(
        d.run(sqe).1,
        DMA + SECTOR + PROGRAM * 2,
        "only one sector is transferred over the bus"
    );
    assert_eq!(d.drive.stats().cmb_bytes, 3 * 4096);
}

#[test]
fn lists_and_rings_may_be_in_it() {
    let mut r = Harness::new(with_cmb(false));
    let cmb = r.controller.cmb().unwrap();
    let d = &mut r.open;
    // The addresses, the scatter-gather list, the metadata and the data.
    let ppas: Vec<Ppa> = (0..4).map(|s| d.ppa(0, 0, 1, s)).collect();
    for (i, ppa) in ppas.iter().enumerate() {
        cmb.write(i as u64 * 8, &ppa.0.to_le_bytes()).unwrap();
        cmb.write(0x2000 + i as u64 * 16, &[i as u8 + 1; 16]).unwrap();
        cmb.write(0x4000 + i as u64 * 4096, &[i as u8 + 0x41; 4096]).unwrap();
        let (entry, at) = (block(&cmb, 0x4000 + i as u64 * 4096, 4096), 0x1000 + i as u64 * 16);
        for (w, word) in entry.encode().into_iter().enumerate() {
            cmb.write(at + w as u64 * 8, &word.to_le_bytes()).unwrap();
        }
    }
    let list = PpaList::List { at: cmb.at(0, 32).unwrap().0, count: 4 };
    let mut sqe = Sqe::vector_write(1, list);
    let address = cmb.at(0x1000, 64).unwrap().0;
    sqe.set_sgl(SglDescriptor::Segment { address, length: 64, last: true });
    sqe.mptr = cmb.at(0x2000, 64).unwrap().0.into();
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let sqe = d.with_meta(d.with_data(Sqe::vector_read(1, d.list(&ppas)), 4));
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let mut byte = [0];
    for i in 0..4 {
        d.memory.read(DATA + i * 4096 + 4095, &mut byte);
        assert_eq!(byte, [i as u8 + 0x41]);
        d.memory.read(crate::common::open_channel_host::META + i * 16, &mut byte);
        assert_eq!(byte, [i as u8 + 1]);
    }
    // One byte past the end is unregistered memory.
    let mut sqe = Sqe::vector_write(1, PpaList::One(d.ppa(0, 0, 2, 0)));
    let address = cmb.at(BYTES - 4095, 4095).unwrap().0;
    sqe.set_sgl(SglDescriptor::DataBlock { address, length: 4096 });
    assert_eq!(d.run(sqe).0.status, Status::DATA_TRANSFER_ERROR);

    // Both rings of a queue pair are in the buffer.
    let mut drive = Controller::new(with_cmb(false)).unwrap();
    let mut host = RawHost::new(&mut drive);
    let base = host.port.bar(2).unwrap();
    let (sq, cq) = (base.offset(4 * PAGE_BYTES as u64), base.offset(8 * PAGE_BYTES as u64));
    let (qid, entries, priority) = (1, 16, QueuePriority::Medium);
    let create = AdminCommand::CreateCq { qid, entries, at: cq.0, vector: None };
    assert!(host.run(&mut drive, create).status.is_success());
    let create = AdminCommand::CreateSq { qid, entries, at: sq.0, cqid: 1, priority };
    assert!(host.run(&mut drive, create).status.is_success());
    let mut ring = SqProducer::open(&host.port, 1, sq, 16).unwrap();
    let mut done = CqConsumer::open(&host.port, 1, cq, 16).unwrap();
    for cid in 0..40u16 {
        let mut flush = Sqe::flush(1);
        flush.cid = cid.into();
        ring.push(&flush).unwrap();
        ring.ring();
        while drive.poll(Nanos::ZERO) {}
        let cqe = done.pop().unwrap();
        assert_eq!((cqe.cid, cqe.status), (cid, Status::SUCCESS));
        ring.update_head(cqe.sq_head);
        done.release();
    }
}

#[test]
fn what_is_protected_survives_the_loss_of_power_and_nothing_else_does() {
    for protected in [true, false] {
        let mut r = Harness::new(with_cmb(protected));
        let old = r.controller.cmb().unwrap();
        old.write(1000, b"staged").unwrap();
        // Cut the power twice.
        for _ in 0..2 {
            let off = r.open.drive.power_cut();
            // The host has not noticed, and still writes to the old mapping.
            old.write(1000, b"STRAYS").unwrap();
            r = Harness::from_drive(off.power_on().unwrap());
            old.write(1000, b"astray").unwrap();
            let mut found = [0; 6];
            r.controller.cmb().unwrap().read(1000, &mut found).unwrap();
            assert_eq!(&found, if protected { b"staged" } else { &[0; 6] });
        }
    }
}

#[test]
fn beside_an_image_it_survives_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let config = |protected, bytes| {
        let mut config = on_image(planes(1), &folder.path().join("drive.img"));
        config.controller.cmb = Some(CmbConfig { bytes, protected });
        config
    };
    let look = |r: &Harness| {
        let mut found = [0; 6];
        r.controller.cmb().unwrap().read(1000, &mut found).unwrap();
        found
    };
    let r = Harness::new(config(true, BYTES));
    r.controller.cmb().unwrap().write(1000, b"staged").unwrap();
    // The process ends without a shutdown.
    drop(r);
    let r = Harness::new(config(true, BYTES));
    assert_eq!(&look(&r), b"staged");
    // A power cut with a late write, and an orderly shutdown.
    let old = r.controller.cmb().unwrap();
    let off = r.open.drive.power_cut();
    old.write(1000, b"STRAYS").unwrap();
    let r = Harness::from_drive(off.power_on().unwrap());
    old.write(1000, b"astray").unwrap();
    assert_eq!(&look(&r), b"staged");
    r.open.drive.shut_down().unwrap();
    drop((r.open.queue, r.controller));
    assert!(folder.path().join("drive.img.cmb").exists());
    // A file of another size is refused, and an unprotected buffer does not change it.
    let error = Controller::new(config(true, 2 * BYTES)).unwrap_err().to_string();
    assert!(error.contains("drive.img.cmb") && error.contains("bytes"), "{error}");
    assert_eq!(&look(&Harness::new(config(false, BYTES))), &[0; 6]);
    assert_eq!(&look(&Harness::new(config(true, BYTES))), b"staged");
    // Damage is detected.
    let path = folder.path().join("drive.img.cmb");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - PAGE_BYTES + 20;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = Controller::new(config(true, BYTES)).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
}

#[test]
fn sizes_that_no_register_tells_are_refused() {
    for bytes in [0, 1, 4095, (4 << 30) + 4096, 128 << 30] {
        let mut config = with_cmb(true);
        config.controller.cmb = Some(CmbConfig { bytes, protected: true });
        assert!(Controller::new(config).is_err(), "{bytes}");
    }
}

/// Records are staged and count as durable at once; some are written to the media, and their slots
/// are reused. After a power cut at any time, every record is on the media or in the buffer.
fn staged_is_durable(seed: u64) {
    const SLOTS: u64 = 8;
    let mut rng = Rng::new(seed);
    let mut r = Harness::new(with_cmb(true));
    let (mut next, mut value) = (0u32, 0u64);
    // Per slot: the record, and the sector to which it is being written.
    let mut slots: Vec<Option<(u64, Option<u32>)>> = vec![None; SLOTS as usize];
    let mut placed: Vec<(u32, u64)> = Vec::new();
    for _ in 0..200 {
        let cmb = r.controller.cmb().unwrap();
        let slot = rng.below(SLOTS);
        match (rng.below(8), slots[slot as usize]) {
            (0..=3, None) => {
                value += 1;
                let record: Vec<u8> = value.to_le_bytes().repeat(512);
                cmb.write(slot * 4096, &record).unwrap();
                slots[slot as usize] = Some((value, None));
            }
            (4 | 5, Some((value, None))) if next < 64 => {
                let mut sqe = Sqe::vector_write(1, PpaList::One(r.open.ppa(0, 0, 0, next)));
                sqe.set_sgl(block(&cmb, slot * 4096, 4096));
                slots[slot as usize] = Some((value, Some(next)));
                next += 1;
                r.open.send(sqe, slot);
            }
            (6, _) => {
                let until = r.open.now + Nanos(rng.below(1_000_000));
                r.open.run_to(until);
                for ended in std::mem::take(&mut r.open.completed) {
                    assert_eq!(ended.status, Status::SUCCESS);
                    let (value, sector) = slots[ended.user as usize].take().unwrap();
                    placed.push((sector.unwrap(), value));
                    cmb.write(ended.user * 4096, &[0; 4096]).unwrap();
                }
            }
            (7, _) if rng.chance(0.3) => {
                r = Harness::from_drive(r.open.drive.power_cut().power_on().unwrap());
                let cmb = r.controller.cmb().unwrap();
                for (slot, staged) in (0..).zip(&mut slots) {
                    let Some((value, under_way)) = staged else { continue };
                    let mut record = [0; 8];
                    cmb.read(slot * 4096 + 4088, &mut record).unwrap();
                    assert_eq!(u64::from_le_bytes(record), *value, "slot {slot}");
                    *under_way = None;
                }
                // Writes in flight may be complete, torn or not begun: the write pointer tells.
                let nand = r.open.drive.nand_mut().unwrap();
                next = nand.chunk_info(media::ChunkId(0)).unwrap().write_pointer;
            }
            _ => {}
        }
    }
    r.open.wait();
    for (sector, value) in placed {
        assert_eq!(r.open.read(&[r.open.ppa(0, 0, 0, sector)]).status, Status::SUCCESS);
        let mut record = [0; 8];
        r.open.memory.read(DATA, &mut record);
        assert_eq!(u64::from_le_bytes(record), value);
    }
}

#[test]
fn records_staged_in_a_protected_buffer_are_durable() {
    seeds(100, staged_is_durable);
}

//! Every command is checked against the access policy of its host.

// guarantee: S-02

use controller::{AccessPolicy, AccessScope, AttachError, Controller};
use nvme::{
    AdminCommand, ChunkState, DsmRange, ErrorEntry, FeatureSelect, LbaStatusDescriptor,
    QueuePriority, Sqe, Status, VendorExtensions, feature, log_page,
};
use time::Nanos;
use transport::Port;

use super::harness::{Host, Raw, SECTOR, block, null, open_channel, pcm};

fn out() -> Status {
    Status::LBA_OUT_OF_RANGE.do_not_retry()
}

#[test]
fn a_part_is_a_namespace_and_its_ends_are_ends() {
    for config in [block(), pcm()] {
        let mut d = Controller::new(config).unwrap();
        let (first, count) = (100, 50);
        let mut all = Host::attach(&mut d, None, 8, 64);
        for lba in [first - 1, first + count] {
            assert_eq!(all.write(&mut d, lba, 1, 0x99), Status::SUCCESS);
        }
        let access = AccessPolicy::for_scope(AccessScope::Sectors { first, count });
        let mut h = Host::attach(&mut d, Some(access), 8, 64);
        assert_eq!(h.sectors(), count);
        for (lba, sectors, status) in [
            (0, 1, Status::SUCCESS),
            (count - 1, 1, Status::SUCCESS),
            (0, 50, Status::SUCCESS),
            (count, 1, out()),
            (count - 1, 2, out()),
            (0, 51, out()),
            (first, 1, out()),
            (u64::MAX, 1, out()),
            (u64::MAX - first + 1, 1, out()),
        ] {
            assert_eq!(
                h.write(&mut d, lba, sectors, (lba as u8).wrapping_add(1)),
                status,
                "{lba}+{sectors}"
            );
            let read = h.read(&mut d, lba, sectors);
            assert_eq!(read.err().unwrap_or_default(), status, "{lba}+{sectors}");
            let zeroes = Sqe::write_zeroes(1, lba, sectors, true);
            if !status.is_success() {
                assert_eq!(h.io(&mut d, zeroes).status, status);
            }
        }
        // Sector 0 of the host is sector 100 of the drive; the sectors around its partition do not
        // change.
        assert_eq!(h.write(&mut d, 0, 2, 0x77), Status::SUCCESS);
        let around = all.read(&mut d, first - 1, 4).unwrap();
        assert_eq!(around[..3], [0x99, 0x77, 0x77]);
        assert_eq!(all.read(&mut d, first + count, 1).unwrap(), [0x99]);
        // Trims: every range is checked, and their total.
        let mut trim = |h: &mut Host, ranges: &[DsmRange]| {
            for (i, range) in ranges.iter().enumerate() {
                h.memory.write(i * DsmRange::BYTES, &range.to_bytes());
            }
            let mut sqe = Sqe::dataset_management(1, ranges.len() as u16, true);
            sqe.set_sgl(h.block(0, 1));
            h.io(&mut d, sqe).status
        };
        assert_eq!(trim(&mut h, &[DsmRange::new(0, 1), DsmRange::new(count, 1)]), out());
        assert_eq!(trim(&mut h, &[DsmRange::new(count - 1, 2)]), out());
        let most = Status::INVALID_FIELD.do_not_retry();
        assert_eq!(trim(&mut h, &[DsmRange::new(0, 30), DsmRange::new(0, 30)]), most);
        assert_eq!(trim(&mut h, &[DsmRange::new(1, count as u32 - 1)]), Status::SUCCESS);
        assert_eq!(h.read(&mut d, 0, 3).unwrap(), [0x77, 0, 0]);
        assert_eq!(all.read(&mut d, first + count, 1).unwrap(), [0x99]);
        let stats = d.port_stats(&h.port).unwrap();
        assert!(stats.refused >= 20 && stats.outstanding == 0, "{stats:?}");
    }
}

#[test]
fn what_is_mapped_is_told_in_the_hosts_addresses() {
    let mut d = Controller::new(block()).unwrap();
    let access = AccessPolicy::for_scope(AccessScope::Sectors { first: 1_000, count: 64 });
    let mut h = Host::attach(&mut d, Some(access), 8, 64);
    assert_eq!(h.write(&mut d, 4, 2, 1), Status::SUCCESS);
    let mut sqe = Sqe::lba_status(1, 0, 64, 3);
    sqe.set_sgl(h.block(0, 1));
    let completed = h.io(&mut d, sqe);
    assert_eq!((completed.status, completed.result), (Status::SUCCESS, 3));
    let mut raw = [0; 3 * LbaStatusDescriptor::BYTES];
    h.memory.read(0, &mut raw);
    let (raw, _) = raw.as_chunks::<{ LbaStatusDescriptor::BYTES }>();
    let runs: Vec<_> = raw
        .iter()
        .map(|raw| LbaStatusDescriptor::from_bytes(*raw))
        .map(|r| (r.slba.get(), r.nlb.get()))
        .collect();
    assert_eq!(runs, [(0, 4), (4, 2), (6, 58)]);
    // The admin command Get LBA Status is checked as well.
    let mut raw = Raw::attach(&mut d, access);
    let ask = |slba, nlb| AdminCommand::GetLbaStatus { nsid: 1, slba, nlb, bytes: 8 + 16 * 4 };
    assert_eq!(raw.admin(&mut d, ask(64, 1)).status, out());
    assert_eq!(raw.admin(&mut d, ask(0, 0)).status, Status::SUCCESS);
    let mut answer = [0; 8 + 16 * 3];
    raw.port.memory().read(raw.at, &mut answer).unwrap();
    assert_eq!((answer[0], answer[4]), (3, 2));
    assert_eq!(answer[8 + 16..8 + 24], 4u64.to_le_bytes());
}

#[test]
fn who_may_not_write_does_not() {
    let mut d = Controller::new(block()).unwrap();
    let access = AccessPolicy { write: false, ..AccessPolicy::for_scope(AccessScope::All) };
    let mut all = Host::attach(&mut d, None, 8, 8);
    assert_eq!(all.write(&mut d, 5, 1, 0x55), Status::SUCCESS);
    let mut h = Host::attach(&mut d, Some(access), 8, 8);
    let protected = Status::WRITE_PROTECTED.do_not_retry();
    assert_eq!(h.write(&mut d, 5, 1, 1), protected);
    assert_eq!(h.io(&mut d, Sqe::write_zeroes(1, 5, 1, true)).status, protected);
    let mut trim = Sqe::dataset_management(1, 1, true);
    trim.set_sgl(h.block(0, 1));
    assert_eq!(h.io(&mut d, trim).status, protected);
    assert_eq!(h.read(&mut d, 5, 1), Ok(vec![0x55]));
    assert_eq!(h.io(&mut d, Sqe::flush(1)).status, Status::SUCCESS);
}

#[test]
fn queues_are_as_many_and_as_deep_as_was_given() {
    let mut d = Controller::new(null(Nanos(100))).unwrap();
    let access =
        AccessPolicy { queues: 2, queue_depth: 16, ..AccessPolicy::for_scope(AccessScope::All) };
    let h = Host::attach(&mut d, Some(access), 16, 1);
    assert_eq!((h.controller.info().io_queues, h.controller.info().max_outstanding), (2, 16));
    let mut raw = Raw::attach(&mut d, access);
    let (at, vector) = (raw.at.0, Some(1));
    let cq = |qid, entries, vector| AdminCommand::CreateCq { qid, entries, at, vector };
    for (command, status) in [
        (cq(3, 16, None), Status::INVALID_QID),
        (cq(0, 16, None), Status::INVALID_QID),
        (cq(1, 17, None), Status::INVALID_QUEUE_SIZE),
        (cq(1, 16, Some(3)), Status::INVALID_VECTOR),
        (cq(2, 16, vector), Status::SUCCESS),
        (cq(2, 16, None), Status::INVALID_QID),
    ] {
        assert_eq!(raw.admin(&mut d, command).status, status, "{command:?}");
    }
    let priority = QueuePriority::Urgent;
    let sq = |qid, cqid| AdminCommand::CreateSq { qid, entries: 16, at, cqid, priority };
    assert_eq!(raw.admin(&mut d, sq(3, 2)).status, Status::INVALID_QID);
    assert_eq!(
        raw.admin(&mut d, sq(1, 1)).status,
        Status::INVALID_CQ,
        "the host must not use the completion queue of another host"
    );
    assert_eq!(raw.admin(&mut d, AdminCommand::DeleteCq { qid: 1 }).status, Status::INVALID_QID);
    assert_eq!(raw.admin(&mut d, sq(1, 2)).status, Status::SUCCESS);
}

#[test]
fn what_is_everybodys_is_not_changed() {
    let mut d = Controller::new(block()).unwrap();
    let access = AccessPolicy::for_scope(AccessScope::Sectors { first: 0, count: 64 });
    let mut h = Host::attach(&mut d, Some(access), 8, 8);
    let mut other = Host::attach(&mut d, Some(access), 8, 8);
    for fid in [
        feature::ARBITRATION,
        feature::VOLATILE_WRITE_CACHE,
        feature::TEMPERATURE_THRESHOLD,
        feature::ERROR_RECOVERY,
        feature::WRITE_ATOMICITY,
        feature::ASYNC_EVENT,
    ] {
        let get = |h: &mut Host, d: &mut Controller| {
            h.ask(d, |c, progress| c.get_feature(fid, FeatureSelect::Current, progress))
        };
        let before = get(&mut h, &mut d).unwrap();
        let set = h.ask(&mut d, |c, progress| c.set_feature(fid, before ^ 1, progress));
        assert_eq!(set, Err(Status::FEATURE_NOT_CHANGEABLE), "{fid:#x}");
        assert_eq!(get(&mut other, &mut d), Ok(before));
    }
    // Errors are logged only for the host that caused them.
    assert_eq!(h.write(&mut d, 64, 1, 1), out());
    let mut newest = |h: &mut Host| {
        let mut bytes = [0; ErrorEntry::BYTES];
        h.ask(&mut d, |c, progress| c.log_page(log_page::ERROR, 0, &mut bytes, progress)).unwrap();
        ErrorEntry::from_bytes(bytes)
    };
    assert_eq!(newest(&mut h).status(), out());
    assert_eq!(newest(&mut other).count.get(), 0, "the other host caused no error");
    let mut all = Host::attach(&mut d, None, 8, 8);
    let mut bytes = [0; ErrorEntry::BYTES];
    all.ask(&mut d, |c, progress| c.log_page(log_page::ERROR, 0, &mut bytes, progress)).unwrap();
    assert_eq!(bytes, [0; ErrorEntry::BYTES], "an unused log entry must be zeros");
}

#[test]
fn physical_addresses_are_checked_one_by_one() {
    let mut d = Controller::new(open_channel()).unwrap();
    let mut all = Host::attach(&mut d, None, 8, 64);
    let media = all.controller.info().open_channel.unwrap();
    let ppa = |pu: u32, chunk, sector| {
        let (group, pu) = (pu / media.geometry.pus, pu % media.geometry.pus);
        media.format.pack(nvme::Address { group, pu, chunk, sector })
    };
    let access = AccessPolicy::for_scope(AccessScope::ParallelUnits { first: 5, count: 6 });
    let mut h = Host::attach(&mut d, Some(access), 8, 64);
    let info = h.controller.info().open_channel.unwrap();
    assert_eq!(info.geometry, media.geometry, "the host sees the geometry of the whole drive");
    assert!(!info.extensions.has(VendorExtensions::NOTIFICATIONS));
    let unit = media.geometry.ws_min as usize;
    // By vector commands: the status bits mark another host's addresses.
    let vector = |h: &mut Host, d: &mut Controller, opcode: u8, ppas: &[nvme::Ppa]| {
        for (i, ppa) in ppas.iter().enumerate() {
            h.memory.write(32 * SECTOR + 8 * i, &ppa.0.to_le_bytes());
        }
        let mut sqe = Sqe::new(opcode, 1);
        let list = match ppas {
            [one] => one.0,
            _ => h.at.offset(32 * SECTOR as u64).0,
        };
        sqe.set_slba(list);
        sqe.cdw12 = (ppas.len() as u32 - 1).into();
        sqe.set_sgl(h.block(0, ppas.len() as u32));
        let completed = h.io(d, sqe);
        (completed.status, completed.result)
    };
    use nvme::opcode::io::{VECTOR_READ, VECTOR_RESET, VECTOR_WRITE};
    for pu in 0..16 {
        let mine = (5..11).contains(&pu);
        let run: Vec<_> = (0..unit as u32).map(|s| ppa(pu, 1, s)).collect();
        let bits = u64::MAX >> (64 - unit);
        let refused = (Status::LBA_OUT_OF_RANGE, bits);
        let expected = if mine { (Status::SUCCESS, 0) } else { refused };
        assert_eq!(vector(&mut h, &mut d, VECTOR_WRITE, &run), expected, "pu {pu}");
        let expected = if mine { (Status::SUCCESS, 0) } else { (Status::LBA_OUT_OF_RANGE, 1) };
        assert_eq!(vector(&mut h, &mut d, VECTOR_RESET, &run[..1]), expected, "pu {pu}");
        // By logical block address, and by Dataset Management.
        assert_eq!(h.write(&mut d, ppa(pu, 2, 0).0, unit as u32, 1).is_success(), mine);
        h.memory.write(0, &DsmRange::new(ppa(pu, 2, 0).0, media.geometry.sectors).to_bytes());
        let mut trim = Sqe::dataset_management(1, 1, true);
        trim.set_sgl(h.block(0, 1));
        assert_eq!(h.io(&mut d, trim).status.is_success(), mine, "pu {pu}");
    }
    // One foreign address among the host's own ones fails the command.
    let mixed = [ppa(5, 0, 0), ppa(11, 0, 0), ppa(10, 0, 0), ppa(4, 0, 0)];
    let answer = vector(&mut h, &mut d, VECTOR_READ, &mixed);
    assert_eq!(answer, (Status::LBA_OUT_OF_RANGE, 0b1010));
    // The chunks of other hosts are reported as offline, without further information.
    let chunks = u64::from(media.geometry.chunks);
    assert_eq!(all.write(&mut d, ppa(4, 3, 0).0, unit as u32, 1), Status::SUCCESS);
    let report = h.ask(&mut d, |c, progress| c.chunks(0, 16 * chunks, progress)).unwrap();
    for (n, chunk) in (0..).zip(&report) {
        let mine = (5..11).contains(&(n / chunks));
        assert_eq!(chunk.chunk_state() != Some(ChunkState::Offline), mine, "chunk {n}");
        assert!(mine || chunk.wp.get() == 0 && chunk.wear_index == 0);
    }
    let mut page = [0; 64];
    let told = h.ask(&mut d, |c, p| c.log_page(log_page::CHUNK_NOTIFICATION, 0, &mut page, p));
    assert_eq!(told, Err(Status::INVALID_LOG_PAGE));
    // A host without the right to send vector commands.
    let access = AccessPolicy { vector_commands: false, ..access };
    let mut h = Host::attach(&mut d, Some(access), 8, 64);
    let answer = vector(&mut h, &mut d, VECTOR_READ, &[ppa(5, 0, 0)]);
    assert_eq!(answer.0, Status::INVALID_OPCODE.do_not_retry());
    assert_eq!(h.write(&mut d, ppa(5, 4, 0).0, unit as u32, 1), Status::SUCCESS);
}

#[test]
fn ports_are_attached_once_and_to_parts_that_are() {
    let mut d = Controller::new(open_channel()).unwrap();
    let port = Port::new().unwrap();
    for part in [
        AccessScope::Sectors { first: 0, count: 1 },
        AccessScope::ParallelUnits { first: 15, count: 2 },
        AccessScope::ParallelUnits { first: u32::MAX, count: 1 },
        AccessScope::ParallelUnits { first: 3, count: 0 },
    ] {
        let refused = d.attach_as(&port, AccessPolicy::for_scope(part)).unwrap_err();
        assert!(matches!(refused, AttachError::Scope { .. }), "{refused}");
    }
    d.attach_as(&port, AccessPolicy::for_scope(AccessScope::All)).unwrap();
    let twice = d.attach_as(&port, AccessPolicy::for_scope(AccessScope::All)).unwrap_err();
    assert!(matches!(twice, AttachError::Port), "{twice}");
    assert_eq!(d.host_count(), 1);
}

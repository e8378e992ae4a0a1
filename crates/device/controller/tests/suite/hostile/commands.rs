//! Invalid commands: each completes with its specified status.

use controller::Controller;
use mem::PAGE_BYTES;
use nvme::{AdminCommand, DsmRange, QueuePriority, SglDescriptor, Sqe, Status};
use time::Component;

use super::host::{Host, MEMORY, block_config};

#[test]
fn statuses_of_malformed_commands() {
    let mut d = Controller::new(block_config()).unwrap();
    let mut h = Host::with_queue(&mut d);
    let sectors = d.sectors();
    let read = |slba, nlb, h: &Host| {
        let mut sqe = Sqe::read(1, slba, nlb);
        sqe.set_sgl(h.block(0, nlb * 4096));
        sqe
    };
    let io = |h: &mut Host, d: &mut Controller, sqe| h.io(d, sqe).status;
    let sqe = Sqe::new(0x7f, 1);
    assert_eq!(io(&mut h, &mut d, sqe), Status::INVALID_OPCODE);
    let mut sqe = read(0, 1, &h);
    sqe.nsid = 2.into();
    assert_eq!(io(&mut h, &mut d, sqe), Status::INVALID_FIELD, "an inactive namespace");
    for nsid in [0, 33, u32::MAX] {
        sqe.nsid = nsid.into();
        assert_eq!(io(&mut h, &mut d, sqe), Status::INVALID_NAMESPACE);
    }
    let mut sqe = read(0, 1, &h);
    sqe.flags |= 1;
    assert_eq!(io(&mut h, &mut d, sqe), Status::INVALID_FIELD, "fused commands are not supported");
    for (slba, nlb) in [(sectors, 1), (sectors - 1, 2), (u64::MAX, 1), (u64::MAX - 3, 16)] {
        for mut sqe in [read(slba, nlb, &h), Sqe::write(1, slba, nlb, false)] {
            sqe.set_sgl(h.block(0, nlb * 4096));
            assert!(io(&mut h, &mut d, sqe).is(Status::LBA_OUT_OF_RANGE), "{slba} {nlb}");
        }
        let sqe = Sqe::write_zeroes(1, slba, nlb, true);
        assert!(io(&mut h, &mut d, sqe).is(Status::LBA_OUT_OF_RANGE));
        h.memory.write(0, &DsmRange::new(slba, nlb).to_bytes());
        let mut sqe = Sqe::dataset_management(1, 1, true);
        sqe.set_sgl(h.block(0, 16));
        assert!(io(&mut h, &mut d, sqe).is(Status::LBA_OUT_OF_RANGE));
    }
    // Memory that is not registered, partly registered, or registered by another host.
    let other = Host::new(&mut d);
    let end = h.at.offset(MEMORY as u64 - 2048).0;
    for address in [0, 1 << 39, u64::MAX - 4096, end, h.at.0 + (1 << 46), other.at.0 + (9 << 40)] {
        let mut sqe = Sqe::write(1, 0, 1, false);
        sqe.set_sgl(SglDescriptor::DataBlock { address, length: 4096 });
        assert_eq!(io(&mut h, &mut d, sqe), Status::DATA_TRANSFER_ERROR, "{address:#x}");
        let mut sqe = Sqe::write(1, 0, 1, false);
        sqe.set_prp(address & !3, 0);
        let status = io(&mut h, &mut d, sqe);
        assert_eq!(status, Status::DATA_TRANSFER_ERROR, "{address:#x}");
    }
    let mut sqe = read(0, 4, &h);
    sqe.set_sgl(h.block(0, 4096));
    assert_eq!(io(&mut h, &mut d, sqe), Status::SGL_LENGTH_INVALID);
    h.check_serves(&mut d);
    assert!(d.stats().errors > 20);
}

#[test]
fn bad_queues_are_refused_and_queues_deleted_once() {
    let mut d = Controller::new(block_config()).unwrap();
    let mut h = Host::with_queue(&mut d);
    let (entries, at, vector, cqid) = (16, h.at.0, None, 2);
    let priority = QueuePriority::Medium;
    let cq = |qid, entries, at| AdminCommand::CreateCq { qid, entries, at, vector }.to_sqe();
    let sq = |qid, cqid, at| AdminCommand::CreateSq { qid, entries, at, cqid, priority }.to_sqe();
    let mut admin = |sqe| h.admin(&mut d, sqe).status;
    assert_eq!(admin(cq(0, entries, at)), Status::INVALID_QID);
    assert_eq!(admin(cq(1, entries, at)), Status::INVALID_QID, "the queue exists");
    assert_eq!(admin(cq(129, entries, at)), Status::INVALID_QID);
    let mut one = cq(2, entries, at);
    one.cdw10 = 2.into();
    assert_eq!(admin(one), Status::INVALID_QUEUE_SIZE, "a ring of one entry is invalid");
    assert_eq!(admin(cq(2, 4097, at)), Status::INVALID_QUEUE_SIZE);
    assert_eq!(admin(cq(2, entries, 0)), Status::DATA_TRANSFER_ERROR);
    assert!(!admin(cq(2, entries, at + 8)).is_success(), "the queue is not aligned");
    assert_eq!(admin(sq(2, cqid, at)), Status::INVALID_CQ);
    assert_eq!(admin(cq(2, entries, at)), Status::SUCCESS);
    assert!(
        !admin(sq(2, 0, at)).is_success(),
        "a submission queue must not use the admin completion queue"
    );
    assert_eq!(admin(sq(2, cqid, at + PAGE_BYTES as u64)), Status::SUCCESS);
    let delete_cq = |qid| AdminCommand::DeleteCq { qid }.to_sqe();
    let delete_sq = |qid| AdminCommand::DeleteSq { qid }.to_sqe();
    assert_eq!(admin(delete_cq(2)), Status::INVALID_QUEUE_DELETION);
    for qid in [0, 3, u16::MAX] {
        assert_eq!(admin(delete_sq(qid)), Status::INVALID_QID);
        assert_eq!(admin(delete_cq(qid)), Status::INVALID_QID);
    }
    assert_eq!(admin(delete_sq(2)), Status::SUCCESS);
    assert_eq!(admin(delete_sq(2)), Status::INVALID_QID);
    assert_eq!(admin(delete_cq(2)), Status::SUCCESS);
    h.check_serves(&mut d);
}

#[test]
fn a_queue_is_deleted_when_its_commands_have_ended() {
    let mut d = Controller::new(block_config()).unwrap();
    let mut h = Host::with_queue(&mut d);
    h.check_serves(&mut d);
    let flush = Sqe::flush(1);
    h.io(&mut d, flush);
    let mut read = Sqe::read(1, 3, 1);
    read.set_sgl(h.block(1, 4096));
    for _ in 0..20 {
        h.submit(read);
    }
    while d.poll(h.now) {}
    // Delete twice while reads are outstanding: the second command is refused, the first waits.
    for cid in [500u16, 501] {
        let mut sqe = AdminCommand::DeleteSq { qid: 1 }.to_sqe();
        sqe.cid = cid.into();
        h.admin.0.push(&sqe).unwrap();
    }
    h.admin.0.ring();
    while d.poll(h.now) {}
    let refused = h.admin.1.pop().unwrap();
    assert_eq!((refused.cid, refused.status), (501, Status::INVALID_QID));
    assert!(h.admin.1.pop().is_none(), "the deletion waits for outstanding commands");
    h.submit(read);
    h.drain(&mut d);
    let deleted = h.admin.1.pop().unwrap();
    assert_eq!((deleted.cid, deleted.status), (500, Status::SUCCESS));
    h.admin.1.release();
    let ended = std::iter::from_fn(|| h.reap()).count();
    assert_eq!(ended, 20, "fetched commands completed, and later ones were not fetched");
    let delete = AdminCommand::DeleteCq { qid: 1 }.to_sqe();
    h.cid = 600;
    assert_eq!(h.admin(&mut d, delete).status, Status::SUCCESS);
}

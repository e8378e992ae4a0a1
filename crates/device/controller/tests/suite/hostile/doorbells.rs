//! Arbitrary doorbell values, in registers and in the doorbell buffer.

use std::sync::atomic::Ordering;

use controller::Controller;
use mem::{Iova, PAGE_BYTES};
use nvme::{AdminCommand, QueuePriority, Sqe, Status};
use rng::Rng;
use transport::{DOORBELL_STRIDE, ShadowDoorbells, ShadowPages};

use super::host::{DEPTH, Host, MEMORY, block_config};

#[test]
fn a_wild_doorbell_stops_its_queue_and_no_other() {
    let mut d = Controller::new(block_config()).unwrap();
    let mut h = Host::with_queue(&mut d);
    let mut other = Host::with_queue(&mut d);
    for value in [u32::from(DEPTH), u32::MAX] {
        let doorbell = h.port.doorbells().atomic_u32(2 * DOORBELL_STRIDE);
        doorbell.store(value, Ordering::Release);
        h.drain(&mut d);
    }
    assert_eq!(d.stats().invalid_doorbells, 1);
    // A head outside the ring counts as no progress.
    let head = other.port.doorbells().atomic_u32(3 * DOORBELL_STRIDE);
    head.store(u32::MAX, Ordering::Release);
    other.check_serves(&mut d);
    let delete = AdminCommand::DeleteSq { qid: 1 }.to_sqe();
    assert_eq!(h.admin(&mut d, delete).status, Status::SUCCESS);
}

/// Doorbell buffer: unregistered pages, values outside rings, queues created before the buffer, and
/// a drive that does not support it.
#[test]
fn doorbells_in_memory_are_checked_like_registers() {
    let mut plain = Controller::new(block_config()).unwrap();
    let mut config = block_config();
    config.controller.doorbell_buffer = true;
    let mut d = Controller::new(config).unwrap();
    let set_up = |values: Iova, events: Iova| {
        AdminCommand::DoorbellBufferConfig { values: values.0, events: events.0 }.to_sqe()
    };
    let mut h = Host::with_queue(&mut plain);
    let (values, events) =
        (h.at.offset(40 * PAGE_BYTES as u64), h.at.offset(41 * PAGE_BYTES as u64));
    assert!(h.admin(&mut plain, set_up(values, events)).status.is(Status::INVALID_OPCODE));

    let mut h = Host::with_queue(&mut d);
    let mut other = Host::with_queue(&mut d);
    let past = h.at.offset(MEMORY as u64);
    for (values, events) in
        [(values.offset(4), events), (values, past), (past, events), (Iova(0), events)]
    {
        let refused = h.admin(&mut d, set_up(values, events)).status;
        assert!(refused.is(Status::INVALID_FIELD), "{refused}");
    }
    h.check_serves(&mut d);
    let (values, events) =
        (h.at.offset(40 * PAGE_BYTES as u64), h.at.offset(41 * PAGE_BYTES as u64));
    assert_eq!(h.admin(&mut d, set_up(values, events)).status, Status::SUCCESS);
    // The earlier queue continues from its state, through the doorbell buffer and its register.
    let word = |page: usize, word: usize| h.memory.atomic_u32(page * PAGE_BYTES + 4 * word);
    let (tail, head) = (word(40, 2).load(Ordering::Relaxed), word(40, 3).load(Ordering::Relaxed));
    assert!(tail > 0 && tail == word(41, 2).load(Ordering::Relaxed));
    assert!(head <= tail);
    let pages = ShadowPages { values, events };
    let shadows = ShadowDoorbells::open(h.port.memory(), pages, h.port.shadow_stride()).unwrap();
    let mut rings = h.create(&mut d, 2, DEPTH, QueuePriority::Medium);
    rings.0.enable_shadow(&shadows);
    rings.1.enable_shadow(&shadows);
    // The drive may ignore a value that is only in the buffer; after the register write it reads
    // the buffer.
    let mut flush = Sqe::flush(1);
    flush.cid = 7.into();
    rings.0.push(&flush).unwrap();
    rings.0.ring();
    h.drain(&mut d);
    assert_eq!(rings.1.pop().expect("the command completes after the register write").cid, 7);
    assert_eq!(rings.0.doorbell_stats().unwrap().register_writes, 1);
    // A value outside the ring stops only that queue.
    h.memory.atomic_u32(40 * PAGE_BYTES + 4 * 4).store(u32::from(DEPTH), Ordering::Release);
    h.port.doorbells().atomic_u32(4 * DOORBELL_STRIDE).store(1, Ordering::Release);
    h.drain(&mut d);
    assert_eq!(d.stats().invalid_doorbells, 1);
    other.check_serves(&mut d);
    let delete = AdminCommand::DeleteSq { qid: 2 }.to_sqe();
    assert_eq!(h.admin(&mut d, delete).status, Status::SUCCESS);
    d.detach(&h.port).unwrap();
    other.check_serves(&mut d);
}

/// Random traffic on two queues of a host with a doorbell buffer, on a drive that is polled at
/// random times: every command completes once.
#[test]
fn doorbells_in_memory_lose_nothing() {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(17);
    println!("SLUICE_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut config = block_config();
    config.controller.doorbell_buffer = true;
    let mut d = Controller::new(config).unwrap();
    let mut h = Host::new(&mut d);
    let (values, events) =
        (h.at.offset(40 * PAGE_BYTES as u64), h.at.offset(41 * PAGE_BYTES as u64));
    let set_up = AdminCommand::DoorbellBufferConfig { values: values.0, events: events.0 };
    assert_eq!(h.admin(&mut d, set_up.to_sqe()).status, Status::SUCCESS);
    let pages = ShadowPages { values, events };
    let shadows = ShadowDoorbells::open(h.port.memory(), pages, h.port.shadow_stride()).unwrap();
    let mut queues = [(1, 5), (2, 16)].map(|(qid, depth)| {
        let (mut sq, mut cq) = h.create(&mut d, qid, depth, QueuePriority::Medium);
        sq.enable_shadow(&shadows);
        cq.enable_shadow(&shadows);
        (sq, cq, 0u16, 0u16)
    });
    const COMMANDS: u16 = 3_000;
    let mut idle = 0;
    while queues.iter().any(|q| q.3 < COMMANDS) {
        let mut moved = false;
        for (sq, cq, sent, done) in &mut queues {
            for _ in 0..rng.below(4) {
                let mut flush = Sqe::flush(1);
                flush.cid = (*sent).into();
                if *sent < COMMANDS && sq.push(&flush).is_ok() {
                    *sent += 1;
                    moved = true;
                }
            }
            if rng.below(3) > 0 {
                sq.ring();
            }
            for _ in 0..rng.below(6) {
                let Some(cqe) = cq.pop() else { break };
                assert_eq!((cqe.cid, cqe.status), (*done, Status::SUCCESS), "seed {seed}");
                sq.update_head(cqe.sq_head);
                *done += 1;
                moved = true;
            }
            if rng.below(2) == 0 {
                cq.release();
            }
        }
        if rng.below(3) == 0 {
            h.drain(&mut d);
        }
        idle = if moved { 0 } else { idle + 1 };
        assert!(idle < 1_000, "seed {seed}: stuck at {} and {}", queues[0].3, queues[1].3);
    }
    for (sq, cq, ..) in &queues {
        let (sq, cq) = (sq.doorbell_stats().unwrap(), cq.doorbell_stats().unwrap());
        assert!(sq.register_writes > 100 && sq.register_writes_saved > 100, "seed {seed}: {sq:?}");
        // The larger ring has space for all commands. The smaller one is sometimes full, and the
        // drive requests a register write.
        assert!(cq.register_writes > 0 && cq.register_writes_saved > 100, "seed {seed}: {cq:?}");
    }
}

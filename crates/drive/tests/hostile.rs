//! Hosts that send anything: every command gets exactly one completion with the status that the
//! specification gives, the drive never panics, and it goes on serving.

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clock::{Component, Nanos};
use common::{drive, nand};
use drive::{Arbitration, Drive, DriveConfig, NullConfig, PersonalityKind};
use media::{DataStore, MediaConfig, PcmConfig};
use nvme::{AdminCommand, Cqe, DsmRange, QueuePriority, SglDescriptor, Sqe, Status, opcode};
use proptest::prelude::*;
use ring::{
    CompletionHost, DOORBELL_STRIDE, Iova, PAGE, Port, Region, ShadowDoorbells, SubmissionHost,
};
use rng::Rng;

/// A host without a driver: rings and nothing in between.
struct Host {
    port: Arc<Port>,
    memory: Arc<Region>,
    at: Iova,
    admin: (SubmissionHost, CompletionHost),
    io: Option<(SubmissionHost, CompletionHost)>,
    now: Nanos,
    cid: u16,
}

const MEMORY: usize = 64 * PAGE;
const DEPTH: u16 = 64;

impl Host {
    fn new(drive: &mut Drive) -> Host {
        let port = drive.attach().unwrap();
        let memory = Region::anonymous(MEMORY).unwrap();
        let at = port.memory().register(&memory).unwrap();
        let (sq, sq_depth) = port.admin_submission();
        let (cq, cq_depth) = port.admin_completion();
        let admin = (
            SubmissionHost::open(&port, 0, sq, sq_depth).unwrap(),
            CompletionHost::open(&port, 0, cq, cq_depth).unwrap(),
        );
        Host { port, memory, at, admin, io: None, now: Nanos::ZERO, cid: 0 }
    }

    /// A host with one queue pair.
    fn with_queue(drive: &mut Drive) -> Host {
        let mut host = Host::new(drive);
        let rings = host.create(drive, 1, DEPTH, QueuePriority::Medium);
        host.io = Some(rings);
        host
    }

    fn create(
        &mut self,
        drive: &mut Drive,
        qid: u16,
        depth: u16,
        priority: QueuePriority,
    ) -> (SubmissionHost, CompletionHost) {
        let ring = Region::anonymous(8 * PAGE).unwrap();
        let at = self.port.memory().register(&ring).unwrap();
        let (entries, cq) = (u32::from(depth), at.offset(4 * PAGE as u64));
        let create = AdminCommand::CreateCq { qid, entries, at: cq.0, vector: None };
        assert_eq!(self.admin(drive, create.to_sqe()).status, Status::SUCCESS);
        let create = AdminCommand::CreateSq { qid, entries, at: at.0, cqid: qid, priority };
        assert_eq!(self.admin(drive, create.to_sqe()).status, Status::SUCCESS);
        (
            SubmissionHost::open(&self.port, qid, at, depth).unwrap(),
            CompletionHost::open(&self.port, qid, cq, depth).unwrap(),
        )
    }

    /// Lets the drive go on until nothing is left to happen.
    fn drain(&mut self, drive: &mut Drive) {
        loop {
            while drive.poll(self.now) {}
            match drive.deadline() {
                Nanos::MAX => return,
                at => self.now = self.now.max(at),
            }
        }
    }

    /// One admin command to its end.
    fn admin(&mut self, drive: &mut Drive, mut sqe: Sqe) -> Cqe {
        self.cid = self.cid.wrapping_add(1);
        sqe.cid = self.cid.into();
        let (sq, _) = &mut self.admin;
        sq.push(&sqe).unwrap();
        sq.ring();
        self.drain(drive);
        let (sq, cq) = &mut self.admin;
        let cqe = cq.pop().expect("a completion");
        assert!(cq.pop().is_none(), "one completion");
        cq.release();
        sq.fetched(cqe.sq_head);
        assert_eq!(cqe.cid, self.cid);
        cqe
    }

    fn submit(&mut self, mut sqe: Sqe) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        sqe.cid = self.cid.into();
        let (sq, _) = self.io.as_mut().unwrap();
        sq.push(&sqe).unwrap();
        sq.ring();
        self.cid
    }

    fn reap(&mut self) -> Option<Cqe> {
        let (sq, cq) = self.io.as_mut().unwrap();
        let cqe = cq.pop()?;
        cq.release();
        sq.fetched(cqe.sq_head);
        Some(cqe)
    }

    /// One I/O command to its end.
    fn io(&mut self, drive: &mut Drive, sqe: Sqe) -> Cqe {
        let cid = self.submit(sqe);
        self.drain(drive);
        let cqe = self.reap().expect("a completion");
        assert!(self.reap().is_none(), "one completion");
        assert_eq!((cqe.cid, cqe.sq_id), (cid, 1));
        cqe
    }

    fn block(&self, page: u64, length: u32) -> SglDescriptor {
        SglDescriptor::DataBlock { address: self.at.offset(page * PAGE as u64).0, length }
    }

    /// Writes and reads a sector, to see that the drive still serves.
    fn serves(&mut self, drive: &mut Drive) {
        let mut write = Sqe::write(1, 3, 1, false);
        write.set_sgl(self.block(0, 4096));
        assert_eq!(self.io(drive, write).status, Status::SUCCESS);
        let mut read = Sqe::read(1, 3, 1);
        read.set_sgl(self.block(1, 4096));
        assert_eq!(self.io(drive, read).status, Status::SUCCESS);
    }
}

fn block_config() -> DriveConfig {
    let mut config = drive(media::NandConfig { data: DataStore::Memory, ..nand() });
    if let MediaConfig::Nand(nand) = &mut config.media {
        (nand.geometry.chunks, nand.geometry.pages) = (16, 8);
    }
    config
}

fn configs() -> Vec<DriveConfig> {
    let block = block_config();
    let mut open_channel = block_config();
    open_channel.personality = PersonalityKind::OpenChannel;
    let mut null = block_config();
    null.personality = PersonalityKind::Null;
    null.media = MediaConfig::Null { bytes: 1 << 24, sector_bytes: 4096 };
    null.null = NullConfig { latency: Nanos(700), bytes_per_sec: 1_000_000_000 };
    let mut pcm = block_config();
    pcm.media = MediaConfig::Pcm(PcmConfig {
        channels: 2,
        pus: 2,
        bytes: 1 << 22,
        sector_bytes: 4096,
        read: Nanos(200),
        write: Nanos(1_000),
        channel_bytes_per_sec: 1_000_000_000,
        data: DataStore::Memory,
    });
    vec![block, open_channel, null, pcm]
}

/// An entry of anything, with fields that are often nearly right.
fn entry(opcodes: Vec<u8>, at: u64) -> impl Strategy<Value = Sqe> {
    let pointer = prop_oneof![
        3 => (0..MEMORY as u64 / 512).prop_map(move |i| at + i * 512),
        1 => (0..MEMORY as u64).prop_map(move |i| at + i),
        1 => any::<u64>(),
        1 => Just(0),
    ];
    let length = prop_oneof![Just(4096u64), Just(16), 0..70_000u64, any::<u64>()];
    let kind = prop_oneof![Just(0u64), Just(0x10u64), Just(0x20), Just(0x30), 0..256u64];
    let second = prop_oneof![
        pointer.clone(),
        (length, kind).prop_map(|(n, k)| (n & 0xffff_ffff) | k << 56),
    ];
    let small = prop_oneof![4 => 0..64u32, 1 => any::<u32>(), 1 => Just(0x0400_0003)];
    let opcode = prop_oneof![8 => proptest::sample::select(opcodes), 1 => any::<u8>()];
    let flags = prop_oneof![3 => Just(0u8), 3 => Just(0x40), 1 => any::<u8>()];
    let nsid = prop_oneof![8 => Just(1u32), 1 => any::<u32>()];
    (
        (opcode, flags, nsid, pointer.clone()),
        (pointer, second, small.clone(), prop_oneof![8 => Just(0u32), 1 => any::<u32>()]),
        (small.clone(), small.clone(), small.clone(), small),
    )
        .prop_map(
            |((op, flags, nsid, mptr), (first, second, d10, d11), (d12, d13, d14, d15))| {
                let mut sqe = Sqe::new(op, nsid);
                sqe.flags = flags;
                sqe.mptr = if mptr.is_multiple_of(3) { mptr } else { 0 }.into();
                sqe.set_prp(first, second);
                sqe.flags = flags;
                (sqe.cdw10, sqe.cdw11) = (d10.into(), d11.into());
                (sqe.cdw12, sqe.cdw13) = (d12.into(), d13.into());
                (sqe.cdw14, sqe.cdw15) = (d14.into(), d15.into());
                sqe
            },
        )
}

fn io_opcodes() -> Vec<u8> {
    use opcode::io::*;
    let vector = [VECTOR_READ, VECTOR_WRITE, VECTOR_RESET, VECTOR_COPY];
    let plain = [READ, WRITE, FLUSH, WRITE_ZEROES, DATASET_MANAGEMENT, LBA_STATUS];
    [plain.as_slice(), &vector].concat()
}

/// Memory full of addresses that may be taken for PRP entries, SGL descriptors, ranges and
/// physical addresses.
fn scribble(host: &Host, seed: u64) {
    let mut rng = rng::Rng::new(seed);
    for word in 0..MEMORY / 8 {
        let value = match rng.below(6) {
            0 => host.at.0 + rng.below(MEMORY as u64 / 16) * 16,
            1 => host.at.0 + rng.below(MEMORY as u64 / PAGE as u64) * PAGE as u64,
            2 => rng.below(256),
            3 => rng.below(4096) | [0x00, 0x20, 0x30, 0x10][rng.below(4) as usize] << 56,
            4 => rng.next_u64(),
            _ => 0,
        };
        host.memory.write(word * 8, &value.to_le_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_io_entry_gets_exactly_one_completion(
        which in 0..4usize,
        seed in any::<u64>(),
        entries in proptest::collection::vec(entry(io_opcodes(), 1 << 40 | 2 << 40), 1..200),
    ) {
        let config = configs().swap_remove(which);
        let mut d = Drive::new(config).unwrap();
        let mut host = Host::with_queue(&mut d);
        scribble(&host, seed);
        let delta = host.at.0.wrapping_sub(1 << 40 | 2 << 40);
        let mut open = HashSet::new();
        for (i, mut sqe) in entries.into_iter().enumerate() {
            let shift = |p: u64| if p >> 41 == 1 { p.wrapping_add(delta) } else { p };
            let flags = sqe.flags;
            let [first, second] = sqe.dptr.map(|w| w.get());
            sqe.set_prp(shift(first), shift(second));
            sqe.flags = flags;
            sqe.mptr = shift(sqe.mptr.get()).into();
            prop_assert!(open.insert(host.submit(sqe)));
            if i % 7 == 0 || open.len() >= usize::from(DEPTH) - 2 {
                host.drain(&mut d);
                while let Some(cqe) = host.reap() {
                    prop_assert!(open.remove(&cqe.cid), "a second completion");
                }
                prop_assert!(open.is_empty(), "every command ends");
            }
        }
        host.drain(&mut d);
        while let Some(cqe) = host.reap() {
            prop_assert!(open.remove(&cqe.cid), "a second completion");
        }
        prop_assert!(open.is_empty(), "every command ends");
        prop_assert!(d.is_idle());
        if which != 1 {
            host.serves(&mut d);
        }
    }

    #[test]
    fn any_admin_entry_gets_at_most_one_completion(
        which in 0..4usize,
        seed in any::<u64>(),
        entries in proptest::collection::vec(
            entry((0..0x16).chain([0x86, 0xe2]).collect(), 1 << 40 | 2 << 40), 1..100),
    ) {
        let mut d = Drive::new(configs().swap_remove(which)).unwrap();
        let mut host = Host::new(&mut d);
        scribble(&host, seed);
        let delta = host.at.0.wrapping_sub(1 << 40 | 2 << 40);
        let mut waiting = 0;
        for mut sqe in entries {
            let shift = |p: u64| if p >> 41 == 1 { p.wrapping_add(delta) } else { p };
            let flags = sqe.flags;
            let [first, second] = sqe.dptr.map(|w| w.get());
            sqe.set_prp(shift(first), shift(second));
            sqe.flags = flags;
            host.cid += 1;
            sqe.cid = host.cid.into();
            host.admin.0.push(&sqe).unwrap();
            host.admin.0.ring();
            host.drain(&mut d);
            match host.admin.1.pop() {
                Some(cqe) => {
                    prop_assert_eq!(cqe.cid, host.cid);
                    prop_assert!(host.admin.1.pop().is_none());
                    host.admin.1.release();
                    host.admin.0.fetched(cqe.sq_head);
                }
                // Asynchronous event requests wait for events.
                None => waiting += 1,
            }
        }
        prop_assert!(waiting <= 4, "{waiting} commands never ended");
        // Somebody else notices nothing.
        let mut other = Host::with_queue(&mut d);
        if which != 1 {
            other.serves(&mut d);
        }
    }
}

#[test]
fn statuses_of_malformed_commands() {
    let mut d = Drive::new(block_config()).unwrap();
    let mut h = Host::with_queue(&mut d);
    let sectors = d.sectors();
    let read = |slba, nlb, h: &Host| {
        let mut sqe = Sqe::read(1, slba, nlb);
        sqe.set_sgl(h.block(0, nlb * 4096));
        sqe
    };
    let io = |h: &mut Host, d: &mut Drive, sqe| h.io(d, sqe).status;
    let sqe = Sqe::new(0x7f, 1);
    assert_eq!(io(&mut h, &mut d, sqe), Status::INVALID_OPCODE);
    let mut sqe = read(0, 1, &h);
    sqe.nsid = 2.into();
    assert_eq!(io(&mut h, &mut d, sqe), Status::INVALID_NAMESPACE);
    let mut sqe = read(0, 1, &h);
    sqe.flags |= 1;
    assert_eq!(io(&mut h, &mut d, sqe), Status::INVALID_FIELD, "fused");
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
    // Memory that is not there, only half there, or of another host.
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
    h.serves(&mut d);
    assert!(d.stats().errors > 20);
}

#[test]
fn bad_queues_are_refused_and_queues_deleted_once() {
    let mut d = Drive::new(block_config()).unwrap();
    let mut h = Host::with_queue(&mut d);
    let (entries, at, vector, cqid) = (16, h.at.0, None, 2);
    let priority = QueuePriority::Medium;
    let cq = |qid, entries, at| AdminCommand::CreateCq { qid, entries, at, vector }.to_sqe();
    let sq = |qid, cqid, at| AdminCommand::CreateSq { qid, entries, at, cqid, priority }.to_sqe();
    let mut admin = |sqe| h.admin(&mut d, sqe).status;
    assert_eq!(admin(cq(0, entries, at)), Status::INVALID_QID);
    assert_eq!(admin(cq(1, entries, at)), Status::INVALID_QID, "exists");
    assert_eq!(admin(cq(129, entries, at)), Status::INVALID_QID);
    let mut one = cq(2, entries, at);
    one.cdw10 = 2.into();
    assert_eq!(admin(one), Status::INVALID_QUEUE_SIZE, "a ring of one entry holds nothing");
    assert_eq!(admin(cq(2, 4097, at)), Status::INVALID_QUEUE_SIZE);
    assert_eq!(admin(cq(2, entries, 0)), Status::DATA_TRANSFER_ERROR);
    assert!(!admin(cq(2, entries, at + 8)).is_success(), "not aligned");
    assert_eq!(admin(sq(2, cqid, at)), Status::INVALID_CQ);
    assert_eq!(admin(cq(2, entries, at)), Status::SUCCESS);
    assert!(!admin(sq(2, 0, at)).is_success(), "the admin queue's");
    assert_eq!(admin(sq(2, cqid, at + PAGE as u64)), Status::SUCCESS);
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
    h.serves(&mut d);
}

#[test]
fn a_queue_is_deleted_when_its_commands_have_ended() {
    let mut d = Drive::new(block_config()).unwrap();
    let mut h = Host::with_queue(&mut d);
    h.serves(&mut d);
    let flush = Sqe::flush(1);
    h.io(&mut d, flush);
    let mut read = Sqe::read(1, 3, 1);
    read.set_sgl(h.block(1, 4096));
    for _ in 0..20 {
        h.submit(read);
    }
    while d.poll(h.now) {}
    // Twice, while reads are outstanding: the second is refused, the first waits.
    for cid in [500u16, 501] {
        let mut sqe = AdminCommand::DeleteSq { qid: 1 }.to_sqe();
        sqe.cid = cid.into();
        h.admin.0.push(&sqe).unwrap();
    }
    h.admin.0.ring();
    while d.poll(h.now) {}
    let refused = h.admin.1.pop().unwrap();
    assert_eq!((refused.cid, refused.status), (501, Status::INVALID_QID));
    assert!(h.admin.1.pop().is_none(), "commands are outstanding");
    h.submit(read);
    h.drain(&mut d);
    let deleted = h.admin.1.pop().unwrap();
    assert_eq!((deleted.cid, deleted.status), (500, Status::SUCCESS));
    h.admin.1.release();
    let ended = std::iter::from_fn(|| h.reap()).count();
    assert_eq!(ended, 20, "what was fetched has ended, what came later was not fetched");
    let delete = AdminCommand::DeleteCq { qid: 1 }.to_sqe();
    h.cid = 600;
    assert_eq!(h.admin(&mut d, delete).status, Status::SUCCESS);
}

#[test]
fn a_wild_doorbell_stops_its_queue_and_no_other() {
    let mut d = Drive::new(block_config()).unwrap();
    let mut h = Host::with_queue(&mut d);
    let mut other = Host::with_queue(&mut d);
    for value in [u32::from(DEPTH), u32::MAX] {
        let doorbell = h.port.doorbells().half_word(2 * DOORBELL_STRIDE);
        doorbell.store(value, Ordering::Release);
        h.drain(&mut d);
    }
    assert_eq!(d.stats().invalid_doorbells, 1);
    // A head outside of the ring counts as no progress.
    let head = other.port.doorbells().half_word(3 * DOORBELL_STRIDE);
    head.store(u32::MAX, Ordering::Release);
    other.serves(&mut d);
    let delete = AdminCommand::DeleteSq { qid: 1 }.to_sqe();
    assert_eq!(h.admin(&mut d, delete).status, Status::SUCCESS);
}

/// Doorbells in memory: pages that are not there, values outside of rings, queues that were there before;
/// a drive that does not offer them.
#[test]
fn doorbells_in_memory_are_checked_like_registers() {
    let mut plain = Drive::new(block_config()).unwrap();
    let mut config = block_config();
    config.controller.doorbell_buffer = true;
    let mut d = Drive::new(config).unwrap();
    let set_up = |values: Iova, events: Iova| {
        AdminCommand::DoorbellBuffer { values: values.0, events: events.0 }.to_sqe()
    };
    let mut h = Host::with_queue(&mut plain);
    let (values, events) = (h.at.offset(40 * PAGE as u64), h.at.offset(41 * PAGE as u64));
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
    h.serves(&mut d);
    let (values, events) = (h.at.offset(40 * PAGE as u64), h.at.offset(41 * PAGE as u64));
    assert_eq!(h.admin(&mut d, set_up(values, events)).status, Status::SUCCESS);
    // The queue that was there goes on from where it was, by memory and its register.
    let word = |page: usize, word: usize| h.memory.half_word(page * PAGE + 4 * word);
    let (tail, head) = (word(40, 2).load(Ordering::Relaxed), word(40, 3).load(Ordering::Relaxed));
    assert!(tail > 0 && tail == word(41, 2).load(Ordering::Relaxed));
    assert!(head <= tail);
    let shadows =
        ShadowDoorbells::open(h.port.memory(), (values, events), h.port.shadow_stride()).unwrap();
    let mut rings = h.create(&mut d, 2, DEPTH, QueuePriority::Medium);
    rings.0.shadow(&shadows);
    rings.1.shadow(&shadows);
    // What is in memory, and not in the register, the drive may leave alone; it is told, and looks.
    let mut flush = Sqe::flush(1);
    flush.cid = 7.into();
    rings.0.push(&flush).unwrap();
    rings.0.ring();
    h.drain(&mut d);
    assert_eq!(rings.1.pop().expect("it was told").cid, 7);
    assert_eq!(rings.0.doorbells().unwrap().written, 1);
    // A value outside of the ring stops the queue and no other.
    h.memory.half_word(40 * PAGE + 4 * 4).store(u32::from(DEPTH), Ordering::Release);
    h.port.doorbells().half_word(4 * DOORBELL_STRIDE).store(1, Ordering::Release);
    h.drain(&mut d);
    assert_eq!(d.stats().invalid_doorbells, 1);
    other.serves(&mut d);
    let delete = AdminCommand::DeleteSq { qid: 2 }.to_sqe();
    assert_eq!(h.admin(&mut d, delete).status, Status::SUCCESS);
    d.detach(&h.port).unwrap();
    other.serves(&mut d);
}

/// Random traffic on two queues of a host that has its doorbells in memory, with a drive that is polled
/// now and then: every command is answered once.
#[test]
fn doorbells_in_memory_lose_nothing() {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(17);
    println!("SLUICE_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut config = block_config();
    config.controller.doorbell_buffer = true;
    let mut d = Drive::new(config).unwrap();
    let mut h = Host::new(&mut d);
    let (values, events) = (h.at.offset(40 * PAGE as u64), h.at.offset(41 * PAGE as u64));
    let set_up = AdminCommand::DoorbellBuffer { values: values.0, events: events.0 };
    assert_eq!(h.admin(&mut d, set_up.to_sqe()).status, Status::SUCCESS);
    let shadows =
        ShadowDoorbells::open(h.port.memory(), (values, events), h.port.shadow_stride()).unwrap();
    let mut queues = [(1, 5), (2, 16)].map(|(qid, depth)| {
        let (mut sq, mut cq) = h.create(&mut d, qid, depth, QueuePriority::Medium);
        sq.shadow(&shadows);
        cq.shadow(&shadows);
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
                sq.fetched(cqe.sq_head);
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
        let (sq, cq) = (sq.doorbells().unwrap(), cq.doorbells().unwrap());
        assert!(sq.written > 100 && sq.saved > 100, "seed {seed}: {sq:?}");
        // The larger ring has room for all; the smaller is full now and then, and the drive asks.
        assert!(cq.written > 0 && cq.saved > 100, "seed {seed}: {cq:?}");
    }
}

#[test]
fn completions_wait_for_a_host_that_does_not_reap() {
    let mut d = Drive::new(block_config()).unwrap();
    let mut h = Host::new(&mut d);
    // A completion ring far smaller than the submission ring.
    let ring = Region::anonymous(8 * PAGE).unwrap();
    let at = h.port.memory().register(&ring).unwrap();
    let (cq, priority) = (at.offset(4 * PAGE as u64), QueuePriority::Medium);
    let create = AdminCommand::CreateCq { qid: 1, entries: 4, at: cq.0, vector: None };
    assert!(h.admin(&mut d, create.to_sqe()).status.is_success());
    let create = AdminCommand::CreateSq { qid: 1, entries: 64, at: at.0, cqid: 1, priority };
    assert!(h.admin(&mut d, create.to_sqe()).status.is_success());
    h.io = Some((
        SubmissionHost::open(&h.port, 1, at, 64).unwrap(),
        CompletionHost::open(&h.port, 1, cq, 4).unwrap(),
    ));
    let sent: Vec<u16> = (0..60).map(|_| h.submit(Sqe::flush(1))).collect();
    h.drain(&mut d);
    assert_eq!(d.deadline(), Nanos::MAX, "nobody spins for a host that does not reap");
    let mut other = Host::with_queue(&mut d);
    other.serves(&mut d);
    let mut seen = Vec::new();
    while seen.len() < sent.len() {
        let cqe = h.reap().expect("what waited follows");
        seen.push(cqe.cid);
        h.drain(&mut d);
    }
    assert_eq!(seen, sent, "in order, each once");
}

#[test]
fn a_thousand_queues_of_several_hosts() {
    let mut config = block_config();
    config.controller.io_queues = 1_000;
    let mut d = Drive::new(config).unwrap();
    let mut hosts: Vec<Host> = (0..3).map(|_| Host::new(&mut d)).collect();
    let mut queues = Vec::new();
    for i in 0..1_000u16 {
        let host = &mut hosts[usize::from(i % 3)];
        let rings = host.create(&mut d, i / 3 + 1, 8, QueuePriority::Medium);
        queues.push(rings);
    }
    for round in 0..3u16 {
        for (sq, _) in &mut queues {
            for i in 0..2u16 {
                let mut sqe = Sqe::flush(1);
                sqe.cid = (round * 2 + i).into();
                sq.push(&sqe).unwrap();
            }
            sq.ring();
        }
        hosts[0].drain(&mut d);
        for (sq, cq) in &mut queues {
            for i in 0..2u16 {
                let cqe = cq.pop().unwrap();
                assert_eq!((cqe.cid, cqe.status), (round * 2 + i, Status::SUCCESS));
                sq.fetched(cqe.sq_head);
            }
            cq.release();
        }
    }
}

/// Sends `each` flushes on every queue; returns the queues in the order in which they were served.
fn order_of_service(
    arbitration: Arbitration,
    priorities: &[QueuePriority],
    each: u16,
) -> Vec<usize> {
    let mut config = configs().swap_remove(2);
    config.controller.arbitration = arbitration;
    config.null = NullConfig { latency: Nanos::ZERO, bytes_per_sec: 4_096_000_000 };
    let mut d = Drive::new(config).unwrap();
    let mut h = Host::new(&mut d);
    let pairs = priorities.iter().enumerate();
    let mut queues: Vec<_> = pairs.map(|(i, p)| h.create(&mut d, i as u16 + 1, 256, *p)).collect();
    let block = h.block(0, 4096);
    for (sq, _) in &mut queues {
        for _ in 0..each {
            let mut sqe = Sqe::read(1, 0, 1);
            sqe.set_sgl(block);
            sq.push(&sqe).unwrap();
        }
        sq.ring();
    }
    // One read of 4 KiB takes a microsecond: completions tell the order of fetching.
    let mut order = Vec::new();
    loop {
        while d.poll(h.now) {}
        for (i, (_, cq)) in queues.iter_mut().enumerate() {
            while cq.pop().is_some() {
                order.push(i);
            }
        }
        match d.deadline() {
            Nanos::MAX => return order,
            at => h.now = at,
        }
    }
}

#[test]
fn round_robin_is_fair() {
    let priorities = [QueuePriority::Medium; 5];
    for burst in [1, 4] {
        let order = order_of_service(Arbitration::RoundRobin { burst }, &priorities, 40);
        assert_eq!(order.len(), 200);
        for (turn, served) in order.chunks(usize::from(burst)).enumerate() {
            assert!(served.iter().all(|q| *q == turn % 5), "turn {turn}: {served:?}");
        }
    }
}

#[test]
fn weights_are_kept_and_urgent_queues_come_first() {
    use QueuePriority::{High, Low, Medium, Urgent};
    let arbitration = Arbitration::Weighted { burst: 1, high: 4, medium: 2, low: 1 };
    let order = order_of_service(arbitration, &[Low, Medium, High, Urgent], 70);
    assert_eq!(order[..70], [3; 70], "urgent first");
    let shares = |part: &[usize]| [0, 1, 2].map(|q| part.iter().filter(|s| **s == q).count());
    // As long as all have something: seven turns a round.
    assert_eq!(shares(&order[70..70 + 70]), [10, 20, 40]);
    assert_eq!(shares(&order[70..]), [70, 70, 70]);
}

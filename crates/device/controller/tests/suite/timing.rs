//! Exact completion times (ARCHITECTURE.md, time model).

use crate::common;

use common::open_channel_host::{OpenChannelHost, open_channel};
use common::{drive, nand};
use controller::{
    DriveConfig, NullConfig, PersonalityKind, PuScheduling, SuspendConfig, WriteBuffer,
};
use media::{CellType, MediaConfig, NandConfig, PcmConfig};
use nvme::{Ppa, SglDescriptor, Sqe, Status};
use time::{Component, Nanos};

const READ: Nanos = Nanos(50_000);
const PROGRAM: Nanos = Nanos(500_000);
const ERASE: Nanos = Nanos(3_000_000);
/// Transfer time of a 4 KiB sector at 400 MB/s.
const SECTOR: Nanos = Nanos(10_240);

/// One channel, one parallel unit, pages of four sectors.
fn one_pu() -> NandConfig {
    let mut nand = nand();
    (nand.geometry.channels, nand.geometry.pus) = (1, 1);
    nand.geometry.page_bytes = 16384;
    nand
}

fn page(d: &OpenChannelHost, chunk: u32, page: u32) -> Vec<Ppa> {
    let unit = d.open_channel().geometry.ws_min;
    (page * unit..(page + 1) * unit).map(|s| d.ppa(0, 0, chunk, s)).collect()
}

fn write_page(d: &mut OpenChannelHost, chunk: u32, number: u32, user: u64) {
    let ppas = page(d, chunk, number);
    let sqe = d.with_data(Sqe::vector_write(1, d.list(&ppas)), ppas.len());
    d.send(sqe, user);
}

fn read_sector(d: &mut OpenChannelHost, chunk: u32, sector: u32, user: u64) {
    let ppa = d.ppa(0, 0, chunk, sector);
    let sqe = d.with_data(Sqe::vector_read(1, d.list(&[ppa])), 1);
    d.send(sqe, user);
}

fn completion_times(d: &mut OpenChannelHost, start: Nanos) -> Vec<(u64, Nanos)> {
    let mut ended: Vec<_> = d.wait().iter().map(|e| (e.user, e.at.since(start))).collect();
    ended.sort_unstable();
    ended
}

/// Sends a read 100 us into the first of three programs. Returns the completion times.
fn read_among_programs(policy: PuScheduling) -> Vec<(u64, Nanos)> {
    let mut d =
        OpenChannelHost::new(DriveConfig { pu_scheduling: policy, ..open_channel(one_pu()) });
    d.fill(0, 0, 0, 1);
    let start = d.now;
    for number in 0..3 {
        write_page(&mut d, 1, number, u64::from(number));
    }
    d.run_to(start + SECTOR * 4 + Nanos(100_000));
    read_sector(&mut d, 0, 0, 9);
    completion_times(&mut d, start)
}

#[test]
fn first_come_first_served() {
    let first = SECTOR * 4 + PROGRAM;
    let expected = vec![
        (0, first),
        (1, first + PROGRAM),
        (2, first + PROGRAM * 2),
        (9, first + PROGRAM * 2 + READ + SECTOR),
    ];
    assert_eq!(read_among_programs(PuScheduling::Fifo), expected);
}

#[test]
fn reads_go_before_programs_that_wait() {
    let first = SECTOR * 4 + PROGRAM;
    let read = READ + SECTOR;
    let expected = vec![
        (0, first),
        (1, first + read + PROGRAM),
        (2, first + read + PROGRAM * 2),
        (9, first + read),
    ];
    assert_eq!(read_among_programs(PuScheduling::ReadPriority { suspend: None }), expected);
}

#[test]
fn reads_suspend_programs_which_end_later_by_what_that_took() {
    let (suspend, resume) = (Nanos(7_000), Nanos(3_000));
    let limits = SuspendConfig { suspend, resume, max_per_operation: 1 };
    let read = suspend + READ + SECTOR;
    let first = SECTOR * 4 + PROGRAM + read + resume;
    let expected = vec![
        (0, first),
        (1, first + PROGRAM),
        (2, first + PROGRAM * 2),
        (9, SECTOR * 4 + Nanos(100_000) + read),
    ];
    assert_eq!(read_among_programs(PuScheduling::ReadPriority { suspend: Some(limits) }), expected);
}

#[test]
fn an_erase_is_suspended_as_often_as_is_allowed() {
    for max_per_operation in 0..4u32 {
        let (suspend, resume) = (Nanos(7_000), Nanos(3_000));
        let limits = SuspendConfig { suspend, resume, max_per_operation };
        let pu_policy = PuScheduling::ReadPriority { suspend: Some(limits) };
        let mut d = OpenChannelHost::new(DriveConfig {
            pu_scheduling: pu_policy,
            ..open_channel(one_pu())
        });
        d.fill(0, 0, 0, 1);
        d.drive.reset_stats();
        let start = d.now;
        let reset = Sqe::vector_reset(1, d.list(&[d.ppa(0, 0, 1, 0)]));
        d.send(reset, 0);
        for i in 1..=4u64 {
            d.run_to(start + Nanos(200_000) * i);
            read_sector(&mut d, 0, 0, i);
        }
        let all = completion_times(&mut d, start);
        let read = suspend + READ + SECTOR;
        let n = u64::from(max_per_operation);
        let erased = ERASE + (read + resume) * n;
        assert_eq!(all[0], (0, erased));
        for i in 1..=4u64 {
            let waits = i.saturating_sub(n);
            let expected = if waits == 0 {
                Nanos(200_000) * i + read
            } else {
                erased + (READ + SECTOR) * waits
            };
            assert_eq!(all[i as usize], (i, expected), "{max_per_operation} times");
        }
        let busy = d.drive.stats().pus[0];
        assert_eq!(
            busy.erase,
            ERASE + (suspend + resume) * n,
            "the erase must take exactly its suspensions longer"
        );
        assert_eq!(busy.read, (READ + SECTOR) * 4);
    }
}

#[test]
fn the_page_register_saves_the_array() {
    for (page_register, hits) in [(true, 3), (false, 0)] {
        let mut d = OpenChannelHost::new(DriveConfig { page_register, ..open_channel(one_pu()) });
        d.fill(0, 0, 0, 2);
        for sector in 0..4 {
            let start = d.now;
            read_sector(&mut d, 0, sector, 0);
            let array = if page_register && sector > 0 { Nanos::ZERO } else { READ };
            assert_eq!(completion_times(&mut d, start), [(0, array + SECTOR)], "sector {sector}");
        }
        assert_eq!(d.drive.stats().register_hits, hits);
        // Another page, and the first again: the register holds only one.
        for sector in [4, 0] {
            let start = d.now;
            read_sector(&mut d, 0, sector, 0);
            assert_eq!(completion_times(&mut d, start), [(0, READ + SECTOR)]);
        }
        // A program uses the registers.
        write_page(&mut d, 1, 0, 0);
        d.wait();
        let start = d.now;
        read_sector(&mut d, 0, 0, 0);
        assert_eq!(completion_times(&mut d, start), [(0, READ + SECTOR)]);
    }
}

#[test]
fn cache_program_hides_transfers() {
    for (cache_program, each) in [(true, PROGRAM), (false, PROGRAM + SECTOR * 4)] {
        let mut d = OpenChannelHost::new(DriveConfig { cache_program, ..open_channel(one_pu()) });
        for number in 0..10 {
            write_page(&mut d, 0, number, u64::from(number));
        }
        let expected: Vec<_> = (1..=10).map(|i| (i - 1, SECTOR * 4 + PROGRAM)).collect();
        let all = completion_times(&mut d, Nanos::ZERO);
        for ((user, at), (i, first)) in all.iter().zip(expected) {
            assert_eq!((*user, *at), (i, first + each * i), "cache program {cache_program}");
        }
    }
}

#[test]
fn planes_are_programmed_and_read_together() {
    for planes in [1, 2, 4] {
        let mut nand = one_pu();
        nand.geometry.planes = planes;
        let mut d = OpenChannelHost::new(open_channel(nand));
        assert_eq!(d.open_channel().geometry.ws_min, 4 * planes);
        let all = u64::from(4 * planes);
        write_page(&mut d, 0, 0, 0);
        assert_eq!(completion_times(&mut d, Nanos::ZERO), [(0, SECTOR * all + PROGRAM)]);
        let (start, ppas) = (d.now, page(&d, 0, 0));
        let sqe = d.with_data(Sqe::vector_read(1, d.list(&ppas)), ppas.len());
        d.send(sqe, 0);
        assert_eq!(
            completion_times(&mut d, start),
            [(0, READ + SECTOR * all)],
            "the page needs only one array read"
        );
    }
}

#[test]
fn every_page_type_has_its_own_times() {
    let micros = |n: [u64; 4]| n.map(Nanos::from_micros);
    for (cell, one_shot) in [(CellType::Mlc, false), (CellType::Tlc, false), (CellType::Tlc, true)]
    {
        let mut nand = NandConfig { cell, one_shot, ..one_pu() };
        nand.geometry.pages = 12;
        nand.timing.read = micros([40, 60, 80, 100]);
        nand.timing.program = micros([400, 900, 2_000, 3_000]);
        let (types, timing) = (cell.bits(), nand.timing);
        let mut d = OpenChannelHost::new(open_channel(nand));
        let unit = u64::from(d.open_channel().geometry.ws_min);
        for number in 0..12 / if one_shot { types } else { 1 } {
            let start = d.now;
            write_page(&mut d, 0, number, 0);
            let kind = if one_shot { 0 } else { number % types } as usize;
            assert_eq!(
                completion_times(&mut d, start),
                [(0, SECTOR * unit + timing.program[kind])]
            );
        }
        for number in 0..12 {
            let start = d.now;
            read_sector(&mut d, 0, number * 4, 0);
            let kind = (number % types) as usize;
            assert_eq!(
                completion_times(&mut d, start),
                [(0, timing.read[kind] + SECTOR)],
                "page {number}"
            );
        }
    }
}

fn null(latency: u64, bytes_per_sec: u64) -> DriveConfig {
    DriveConfig {
        personality: PersonalityKind::Null,
        media: MediaConfig::Null { bytes: 1 << 30, sector_bytes: 4096 },
        null: NullConfig { latency: Nanos(latency), bytes_per_sec },
        ..drive(nand())
    }
}

/// Returns the completion times of `n` reads (or writes) of a sector that are sent at once.
fn burst(config: DriveConfig, n: u64, write: bool) -> Vec<Nanos> {
    let mut d = OpenChannelHost::new(config);
    for i in 0..n {
        let sqe = if write { Sqe::write(1, i, 1, false) } else { Sqe::read(1, i, 1) };
        let sqe = d.with_data(sqe, 1);
        d.queue.submit(sqe, i).unwrap();
    }
    d.queue.ring();
    let ended = d.wait();
    assert!(ended.iter().all(|e| e.status.is_success()));
    assert_eq!(d.drive.stats().late.max, Nanos::ZERO, "no event may be late in virtual time");
    ended.iter().map(|e| e.at).collect()
}

#[test]
fn a_null_drive_has_a_latency_and_a_bandwidth() {
    // 4 KiB at 380 MB/s; the rest of 35 us is latency.
    let transfer = Nanos::transfer(4096, 380_000_000);
    let latency = 35_000 - transfer.0;
    for write in [false, true] {
        let ends = burst(null(latency, 380_000_000), 100, write);
        for (i, at) in ends.iter().enumerate() {
            assert_eq!(*at, Nanos(latency) + transfer * (i as u64 + 1));
        }
        assert_eq!(ends[0], Nanos(35_000));
    }
    assert_eq!(burst(null(35_000, 0), 3, false), [Nanos(35_000); 3]);
    assert_eq!(burst(null(0, 0), 3, false), [Nanos(0); 3]);
}

#[test]
fn the_controller_has_costs_of_its_own() {
    let mut config = null(0, 0);
    config.controller.fetch_latency = Nanos(1_000);
    config.controller.completion_latency = Nanos(300);
    // Commands are fetched one at a time; completions do not queue.
    let ends = burst(config.clone(), 50, false);
    for (i, at) in (1..).zip(&ends) {
        assert_eq!(*at, Nanos(1_000) * i + Nanos(300));
    }
    // 4 KiB at 1 GB/s take 4.096 us: now DMA is the bottleneck, in both directions.
    config.controller.dma_bytes_per_sec = 1_000_000_000;
    for write in [false, true] {
        let ends = burst(config.clone(), 50, write);
        for (i, at) in (1..).zip(&ends) {
            assert_eq!(*at, Nanos(1_000) + Nanos(4_096) * i + Nanos(300));
        }
    }
}

#[test]
fn phase_change_memory_is_read_and_written_in_place() {
    let pcm = PcmConfig {
        channels: 2,
        pus: 2,
        bytes: 1 << 24,
        sector_bytes: 4096,
        read: Nanos(1_500),
        write: Nanos(20_000),
        channel_bytes_per_sec: 4_096_000_000,
        data: media::DataStore::Memory,
    };
    let config = DriveConfig { media: MediaConfig::Pcm(pcm), ..drive(nand()) };
    // A transfer takes a microsecond; four sectors are on four parallel units of two channels.
    let reads = burst(config.clone(), 4, false);
    assert_eq!(reads, [2_500, 2_500, 3_500, 3_500].map(Nanos));
    let writes = burst(config.clone(), 4, true);
    assert_eq!(writes, [21_000, 21_000, 22_000, 22_000].map(Nanos));
    // A fifth waits for the first one's parallel unit.
    assert_eq!(burst(config, 5, true)[4], Nanos(41_000));
}

/// Sends all commands at once and polls only at intervals of `every`.
fn polled(config: DriveConfig, sqes: &[Sqe], every: Option<Nanos>) -> Vec<(u64, Nanos)> {
    let mut d = OpenChannelHost::new(config);
    for (i, sqe) in sqes.iter().enumerate() {
        let mut sqe = *sqe;
        let length = if sqe.opcode == 0 { 0 } else { (sqe.cdw12.get() & 0xffff) * 4096 + 4096 };
        sqe.set_sgl(SglDescriptor::DataBlock { address: d.at.0, length });
        d.queue.submit(sqe, i as u64).unwrap();
    }
    d.queue.ring();
    let Some(every) = every else { return completion_times(&mut d, Nanos::ZERO) };
    let mut all = Vec::new();
    let mut now = Nanos::ZERO;
    while all.len() < sqes.len() {
        d.drive.poll(now);
        while let Some(done) = d.queue.reap() {
            assert_eq!(done.status, Status::SUCCESS);
            all.push((done.user, now));
        }
        now += every;
    }
    assert!(d.drive.stats().late.max <= every && d.drive.stats().late.max > Nanos::ZERO);
    all.sort_unstable();
    all
}

#[test]
fn late_polls_delay_completions_and_nothing_else() {
    let mut through = drive(nand());
    through.write_buffer = WriteBuffer::None;
    through.controller.fetch_latency = Nanos(1_100);
    through.controller.completion_latency = Nanos(900);
    through.controller.dma_bytes_per_sec = 1_000_000_000;
    // Enough to fill the write buffer, so that programs wait for programs.
    let writes: Vec<Sqe> = (0..120).map(|i| Sqe::write(1, i * 4, 4, false)).collect();
    let mut mixed: Vec<Sqe> = (0..100).map(|i| Sqe::write(1, i, 3, i % 7 == 0)).collect();
    mixed.push(Sqe::flush(1));
    let volatile =
        DriveConfig { write_buffer: WriteBuffer::Volatile { bytes: 0 }, ..through.clone() };
    for (config, sqes) in [(through, writes), (volatile, mixed)] {
        let exact = polled(config.clone(), &sqes, None);
        for every in [Nanos(37_000), Nanos(700_000)] {
            let late = polled(config.clone(), &sqes, Some(every));
            for (e, l) in exact.iter().zip(&late) {
                let due = Nanos(e.1.0.next_multiple_of(every.0));
                assert_eq!((l.0, l.1), (e.0, due), "due {}", e.1);
            }
        }
    }
}

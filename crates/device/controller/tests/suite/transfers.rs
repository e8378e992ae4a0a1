//! Exact times of read data leaving a parallel unit: from which register, and in how many segments
//! ([`TransferConfig`]).

use crate::common;

use common::nand;
use common::open_channel_host::{OpenChannelHost, open_channel};
use controller::{DriveConfig, PuScheduling, SuspendConfig, TransferConfig};
use media::NandConfig;
use nvme::Sqe;
use time::Nanos;

const READ: Nanos = Nanos(50_000);
const PROGRAM: Nanos = Nanos(500_000);
const ERASE: Nanos = Nanos(3_000_000);
/// Transfer time of a 4 KiB sector at 400 MB/s.
const SECTOR: Nanos = Nanos(10_240);
/// Transfer time of a page of four sectors, each of them rounded.
const PAGE: Nanos = Nanos(40_960);

const CACHE: TransferConfig =
    TransferConfig { cache_read: true, dedicated_read_register: false, by_page: false };

/// One channel with `pus` parallel units of `planes` planes, with pages of four sectors.
fn shape(pus: u32, planes: u32) -> NandConfig {
    let mut nand = nand();
    (nand.geometry.channels, nand.geometry.pus, nand.geometry.planes) = (1, pus, planes);
    nand.geometry.page_bytes = 16384;
    nand
}

fn powered(
    nand: NandConfig,
    transfers: TransferConfig,
    pu_policy: PuScheduling,
) -> OpenChannelHost {
    OpenChannelHost::new(DriveConfig {
        transfers,
        pu_scheduling: pu_policy,
        page_register: true,
        ..open_channel(nand)
    })
}

fn read(d: &mut OpenChannelHost, pu: u32, chunk: u32, first: u32, sectors: u32, user: u64) {
    let ppas: Vec<_> = (first..first + sectors).map(|s| d.ppa(0, pu, chunk, s)).collect();
    let sqe = d.with_data(Sqe::vector_read(1, d.list(&ppas)), ppas.len());
    d.send(sqe, user);
}

fn write(d: &mut OpenChannelHost, pu: u32, chunk: u32, first: u32, sectors: u32, user: u64) {
    let ppas: Vec<_> = (first..first + sectors).map(|s| d.ppa(0, pu, chunk, s)).collect();
    let sqe = d.with_data(Sqe::vector_write(1, d.list(&ppas)), ppas.len());
    d.send(sqe, user);
}

fn completion_times(d: &mut OpenChannelHost, start: Nanos) -> Vec<(u64, Nanos)> {
    let mut ended: Vec<_> = d.wait().iter().map(|e| (e.user, e.at.since(start))).collect();
    ended.sort_unstable();
    ended
}

#[test]
fn the_array_reads_on_while_the_cache_register_is_emptied() {
    // tR of 50 us against 4 sectors of 10.24 us: the array is the bottleneck. With 8 sectors, the
    // channel is.
    for planes in [1, 2] {
        let mut d = powered(shape(1, planes), CACHE, PuScheduling::Fifo);
        d.fill(0, 0, 0, 4);
        d.drive.reset_stats();
        let out = PAGE * u64::from(planes);
        let start = d.now;
        for page in 0..4 {
            read(&mut d, 0, 0, page * 4 * planes, 4 * planes, page.into());
        }
        let each = READ.max(out);
        let expected: Vec<_> = (0..4).map(|i| (i, READ + each * i + out)).collect();
        assert_eq!(completion_times(&mut d, start), expected, "{planes} planes");
        // If the channel is the bottleneck, three reads waited for the register.
        let waited = (each - READ) * 3;
        assert_eq!(d.drive.stats().pus[0].read, READ * 4 + waited);
        assert_eq!(d.drive.stats().channels[0], out * 4);
    }
}

#[test]
fn sectors_of_the_page_in_the_register_follow_each_other() {
    let mut d = powered(shape(1, 1), CACHE, PuScheduling::Fifo);
    d.fill(0, 0, 0, 2);
    let start = d.now;
    for sector in 0..5 {
        read(&mut d, 0, 0, sector, 1, sector.into());
    }
    // The fifth is on the next page: the array reads it while the fourth is transferred.
    let mut expected: Vec<_> = (0..4).map(|i| (i, READ + SECTOR * (i + 1))).collect();
    expected.push((4, READ + SECTOR * 3 + READ + SECTOR));
    assert_eq!(completion_times(&mut d, start), expected);
    assert_eq!(d.drive.stats().register_hits, 3);
}

#[test]
fn a_program_waits_for_the_cache_register_and_an_erase_for_the_owner_of_what_leaves() {
    let mut d = powered(shape(1, 1), CACHE, PuScheduling::Fifo);
    d.fill(0, 0, 0, 2);
    let start = d.now;
    read(&mut d, 0, 0, 0, 4, 0);
    write(&mut d, 0, 1, 0, 4, 1);
    let gone = READ + PAGE;
    assert_eq!(completion_times(&mut d, start), [(0, gone), (1, gone + PAGE + PROGRAM)]);

    let start = d.now;
    read(&mut d, 0, 0, 4, 4, 0);
    let reset = Sqe::vector_reset(1, d.list(&[d.ppa(0, 0, 0, 0)]));
    d.send(reset, 1);
    assert_eq!(completion_times(&mut d, start), [(0, gone), (1, gone + ERASE)]);
}

#[test]
fn a_read_leaves_from_the_page_register_where_a_program_has_the_other() {
    let (suspend, resume) = (Nanos(7_000), Nanos(3_000));
    let limits = SuspendConfig { suspend, resume, max_per_operation: 2 };
    let policy = PuScheduling::ReadPriority { suspend: Some(limits) };
    let mut d = powered(shape(1, 1), CACHE, policy);
    d.fill(0, 0, 0, 2);
    let start = d.now;
    // The second program's data is in the cache register when the reads suspend the first.
    write(&mut d, 0, 1, 0, 4, 0);
    write(&mut d, 0, 1, 4, 4, 1);
    let at = SECTOR * 4 + Nanos(100_000);
    d.run_to(start + at);
    read(&mut d, 0, 0, 0, 4, 2);
    read(&mut d, 0, 0, 4, 4, 3);
    let reads = (READ + PAGE) * 2;
    let first = PAGE + PROGRAM + suspend + reads + resume;
    let expected = [
        (0, first),
        (1, first + PROGRAM),
        (2, at + suspend + READ + PAGE),
        (3, at + suspend + reads),
    ];
    assert_eq!(completion_times(&mut d, start), expected);
}

#[test]
fn a_suspended_program_goes_on_when_what_was_read_has_left() {
    let (suspend, resume) = (Nanos(7_000), Nanos(3_000));
    let limits = SuspendConfig { suspend, resume, max_per_operation: 2 };
    let policy = PuScheduling::ReadPriority { suspend: Some(limits) };
    let mut d = powered(shape(1, 1), CACHE, policy);
    d.fill(0, 0, 0, 2);
    let start = d.now;
    write(&mut d, 0, 1, 0, 4, 0);
    let at = SECTOR * 4 + Nanos(100_000);
    d.run_to(start + at);
    read(&mut d, 0, 0, 0, 4, 1);
    read(&mut d, 0, 0, 4, 4, 2);
    let leaves = at + suspend + READ;
    d.run_to(start + leaves + Nanos(1_000));
    // The next program's data waits for the cache register. Then the second read finds that
    // register in use, and the channel occupied by the first of four sectors.
    write(&mut d, 0, 1, 4, 4, 3);
    let second = leaves + PAGE + SECTOR + PAGE;
    let first = second + resume + PROGRAM - Nanos(100_000);
    let expected = [(0, first), (1, leaves + PAGE), (2, second), (3, first + PROGRAM)];
    assert_eq!(completion_times(&mut d, start), expected);
}

#[test]
fn others_on_the_channel_go_between_the_pages_of_a_read() {
    for (by_page, cache) in [(false, false), (true, false), (true, true), (false, true)] {
        let mut d = powered(
            shape(2, 2),
            TransferConfig { cache_read: cache, dedicated_read_register: false, by_page },
            PuScheduling::Fifo,
        );
        d.fill(0, 0, 0, 1);
        d.fill(0, 1, 0, 1);
        let start = d.now;
        read(&mut d, 0, 0, 0, 8, 0);
        // A sector of the first plane's page and a sector of the second plane's page: two segments.
        read(&mut d, 1, 0, 3, 2, 1);
        let expected = if by_page {
            // Page, sector, page, sector.
            [(0, READ + PAGE * 2 + SECTOR), (1, READ + PAGE * 2 + SECTOR * 2)]
        } else {
            [(0, READ + PAGE * 2), (1, READ + PAGE * 2 + SECTOR * 2)]
        };
        assert_eq!(completion_times(&mut d, start), expected, "by page {by_page}, cache {cache}");
    }
}

#[test]
fn a_program_goes_on_beside_a_read_that_has_a_register_of_its_own() {
    let own = TransferConfig { cache_read: true, dedicated_read_register: true, by_page: false };
    let mut d = powered(shape(1, 1), own, PuScheduling::Fifo);
    d.fill(0, 0, 0, 2);
    let start = d.now;
    read(&mut d, 0, 0, 0, 4, 0);
    write(&mut d, 0, 1, 0, 4, 1);
    write(&mut d, 0, 1, 4, 4, 2);
    // The program's data follows the read data on the channel; an erase still waits.
    let gone = READ + PAGE;
    let programmed = gone + PAGE + PROGRAM;
    assert_eq!(
        completion_times(&mut d, start),
        [(0, gone), (1, programmed), (2, programmed + PROGRAM)]
    );
    let start = d.now;
    write(&mut d, 0, 1, 8, 4, 0);
    write(&mut d, 0, 1, 12, 4, 1);
    read(&mut d, 0, 0, 4, 4, 2);
    write(&mut d, 0, 1, 16, 4, 3);
    let second = PAGE + PROGRAM * 2;
    // The fourth program starts when its data has arrived, which waits only for the channel.
    let third = second + READ + PAGE * 2 + PROGRAM;
    let expected = [(0, PAGE + PROGRAM), (1, second), (2, second + gone), (3, third)];
    assert_eq!(completion_times(&mut d, start), expected);
    let start = d.now;
    read(&mut d, 0, 0, 0, 4, 0);
    let reset = Sqe::vector_reset(1, d.list(&[d.ppa(0, 0, 0, 0)]));
    d.send(reset, 1);
    assert_eq!(completion_times(&mut d, start), [(0, gone), (1, gone + ERASE)]);
}

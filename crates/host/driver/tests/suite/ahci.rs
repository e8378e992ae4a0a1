//! The AHCI driver against a faulty controller.

use std::sync::Arc;

use ahci::hba::{self, cap, ghc};
use ahci::port::{self, cmd, is, ssts};
use ahci::{CommandHeader, CommandTable, Identify, PrdtEntry, RegisterH2d, ata};
use mem::Iova;
use nvme::Status;
use sluice_driver::{
    AhciError, AhciHost, AhciPort, BindError, HardwareQueue, LowLevelDriver, Payload, QueueState,
    Request, Tag,
};
use time::Nanos;
use transport::PciFunction;
use zerocopy::{FromZeros, IntoBytes};

/// A controller with one port, controlled by the test. On its own it only resets, starts and stops,
/// and answers IDENTIFY DEVICE and READ LOG EXT with the given pages.
struct Liar {
    function: Arc<PciFunction>,
    capabilities: u32,
    implemented: u32,
    identify: [u8; 512],
    log: [u8; 512],
    /// Whether reads of the log are not answered.
    mute: bool,
    /// Whether the drive never becomes ready.
    busy: bool,
    /// Bit mask of the queued commands that the drive has fetched.
    has: u32,
}

fn identify() -> Identify {
    Identify {
        serial: "L1".into(),
        firmware: "1".into(),
        model: "Liar".into(),
        sectors: 1 << 20,
        sector_bytes: 512,
        queue_depth: 32,
        queuing: true,
        write_cache: true,
        trim: true,
        trim_blocks: 8,
        trim_zeroes: true,
    }
}

impl Liar {
    fn new() -> Liar {
        Liar {
            function: PciFunction::new(hba::bytes(1)).unwrap(),
            capabilities: cap::encode_counts(1, 32) | cap::SNCQ | cap::S64A,
            implemented: 1,
            identify: identify().to_bytes(),
            log: [0; 512],
            mute: false,
            busy: false,
            has: 0,
        }
    }

    fn read(&self, register: usize) -> u32 {
        self.function.read(hba::port(0, register))
    }

    fn write(&self, register: usize, value: u32) {
        self.function.write(hba::port(0, register), value);
    }

    fn set(&self, register: usize, bits: u32) {
        self.function.set_bits(hba::port(0, register), bits);
    }

    fn poll(&mut self) {
        if self.function.read(hba::GHC) & ghc::HR != 0 {
            self.function.write(hba::CAP, self.capabilities);
            self.function.write(hba::PI, self.implemented);
            self.write(port::SSTS, ssts::DET_UP | ssts::GEN3_ACTIVE);
            self.function.write(hba::GHC, ghc::AE);
        }
        let command = self.read(port::CMD);
        let running = command & cmd::CR != 0;
        if running && command & cmd::ST == 0 {
            self.write(port::CI, 0);
            self.write(port::SACT, 0);
            self.has = 0;
            self.function.clear_bits(hba::port(0, port::CMD), cmd::CR);
        } else if !running && command & cmd::ST != 0 {
            self.set(port::CMD, cmd::CR);
        }
        let busy = if self.busy { ata::status::BSY } else { ata::status::DRDY };
        self.write(port::TFD, self.read(port::TFD) & 0xff00 | u32::from(busy));
        for slot in 0..32 {
            if self.read(port::CI) >> slot & 1 != 0 {
                self.take(slot);
            }
        }
    }

    fn take(&mut self, slot: u32) {
        let memory = self.function.memory();
        let list = u64::from(self.read(port::CLBU)) << 32 | u64::from(self.read(port::CLB));
        let mut header = CommandHeader::new_zeroed();
        memory.read(Iova(list + u64::from(slot) * 32), header.as_mut_bytes()).unwrap();
        let table = Iova(header.ctba.get());
        let (mut fis, mut region) = (RegisterH2d::new_zeroed(), PrdtEntry::new_zeroed());
        memory.read(table, fis.as_mut_bytes()).unwrap();
        memory.read(table.offset(CommandTable::PRDT as u64), region.as_mut_bytes()).unwrap();
        let page = match fis.command {
            ata::command::IDENTIFY_DEVICE => self.identify,
            ata::command::READ_LOG_EXT if self.mute => return,
            ata::command::READ_LOG_EXT => self.log,
            _ => {
                assert_eq!(u32::from(fis.queued_tag()), slot, "the tag must equal the slot");
                self.has |= 1 << slot;
                self.function.clear_bits(hba::port(0, port::CI), 1 << slot);
                return;
            }
        };
        memory.write(Iova(region.dba.get()), &page).unwrap();
        self.function.clear_bits(hba::port(0, port::CI), 1 << slot);
        self.set(port::IS, is::PSS);
    }

    fn connect(&mut self) -> Result<AhciHost, AhciError> {
        AhciHost::connect(self.function.clone(), &mut || self.poll(), 100)
    }

    /// Returns the controller, and its drive's queue with `count` reads that were issued and
    /// fetched.
    fn with_reads(count: usize) -> (Liar, AhciPort) {
        let mut liar = Liar::new();
        let mut queue = liar.connect().unwrap().take_queue(0).unwrap();
        let mut tags = [Tag(0); 32];
        assert_eq!(queue.get_free_tags(&mut tags[..count]), count);
        for tag in &tags[..count] {
            let request = Request::read(0, 1, Payload::BitBucket, tag.0.into());
            queue.bind_tag_cmd(*tag, &request, Nanos(0)).unwrap();
        }
        queue.issue_tags();
        liar.poll();
        assert_eq!(liar.has.count_ones() as usize, count);
        (liar, queue)
    }

    /// Runs both sides for `time`. Returns the completions; their tags are detached and freed.
    fn run(&mut self, queue: &mut AhciPort, now: &mut Nanos, time: Nanos) -> Vec<(u16, Status)> {
        let (until, mut ended) = (*now + time, Vec::new());
        while *now < until {
            self.poll();
            queue.poll(*now);
            while let Some(event) = queue.fetch_event() {
                queue.detach_tag_cmd(event.tag).expect("an event of a command");
                queue.release_tags(&[event.tag]).unwrap();
                ended.push((event.tag.0, event.status));
            }
            *now += Nanos::from_micros(10);
        }
        ended
    }
}

#[test]
fn bits_that_were_never_issued_are_nothing() {
    let (liar, mut queue) = Liar::with_reads(4);
    // The controller sets bits of commands that were not issued.
    liar.set(port::SACT, 0xffff_0000);
    liar.set(port::CI, 0xffff_0000);
    assert_eq!(queue.fetch_event(), None);
    // All bits are cleared: the four commands complete, once each.
    liar.write(port::SACT, 0);
    liar.write(port::CI, 0);
    let mut ended = Vec::new();
    while let Some(event) = queue.fetch_event() {
        assert_eq!(event.status, Status::SUCCESS);
        queue.detach_tag_cmd(event.tag).unwrap();
        queue.release_tags(&[event.tag]).unwrap();
        ended.push(event.tag.0);
    }
    assert_eq!(ended, [0, 1, 2, 3]);
    for _ in 0..3 {
        liar.set(port::IS, is::SDBS | is::DHRS | is::PSS);
        liar.write(port::SACT, u32::MAX);
        assert!(!queue.check_event());
        liar.write(port::SACT, 0);
        assert!(!queue.check_event());
    }
    assert_eq!((queue.outstanding(), queue.tags().free()), (0, 32));
}

#[test]
fn a_log_that_cannot_be_resets_the_port() {
    let good = ata::QueuedErrorLog {
        not_queued: false,
        tag: 2,
        status: 0x41,
        error: ata::error::UNC,
        lba: 0,
    };
    let mut damaged = good.to_bytes();
    damaged[100] = 1;
    let logs = [
        ("names a command that was not issued", ata::QueuedErrorLog { tag: 9, ..good }.to_bytes()),
        ("denies it", ata::QueuedErrorLog { not_queued: true, ..good }.to_bytes()),
        ("has a wrong checksum", damaged),
    ];
    for (what, log) in logs {
        let (mut liar, mut queue) = Liar::with_reads(4);
        liar.log = log;
        liar.set(port::IS, is::TFES | is::SDBS);
        let mut now = Nanos(0);
        let ended = liar.run(&mut queue, &mut now, Nanos::from_millis(20));
        assert_eq!(ended.len(), 4, "{what}");
        assert!(ended.iter().all(|e| e.1 == Status::DATA_TRANSFER_ERROR), "{what}: {ended:?}");
        let stats = queue.stats();
        assert_eq!((stats.recoveries, stats.resets), (1, 1), "{what}");
        assert_eq!(queue.state(), QueueState::Ready, "{what}");
    }
    // A valid log, as a control.
    let (mut liar, mut queue) = Liar::with_reads(4);
    liar.log = good.to_bytes();
    liar.set(port::IS, is::TFES | is::SDBS);
    let ended = liar.run(&mut queue, &mut Nanos(0), Nanos::from_millis(20));
    assert_eq!(ended, [(2, Status::UNRECOVERED_READ)]);
    assert_eq!((liar.has, queue.stats().reissued), (0b1011, 3));
}

#[test]
fn a_tag_that_is_bound_while_the_log_is_read_keeps_its_command() {
    let (mut liar, mut queue) = Liar::with_reads(3);
    let mut now = Nanos(0);
    // Tag 0 completes. The log is read in its slot, and the drive does not answer for a while.
    liar.write(port::SACT, 0b110);
    assert_eq!(liar.run(&mut queue, &mut now, Nanos::from_micros(50)), [(0, Status::SUCCESS)]);
    let log = ata::QueuedErrorLog {
        not_queued: false,
        tag: 1,
        status: 0x41,
        error: ata::error::IDNF,
        lba: 0,
    };
    (liar.mute, liar.log) = (true, log.to_bytes());
    liar.set(port::IS, is::TFES);
    assert_eq!(liar.run(&mut queue, &mut now, Nanos::from_millis(5)), []);
    assert_eq!(queue.state(), QueueState::Ready, "the queue must stay ready during the recovery");
    let mut tag = [Tag(9)];
    queue.get_free_tags(&mut tag);
    assert_eq!(tag[0], Tag(0));
    let request = Request::read(77, 1, Payload::BitBucket, 0);
    queue.bind_tag_cmd(tag[0], &request, now).unwrap();
    queue.issue_tags();
    liar.mute = false;
    let ended = liar.run(&mut queue, &mut now, Nanos::from_millis(5));
    assert_eq!(ended, [(1, Status::LBA_OUT_OF_RANGE)]);
    assert_eq!(liar.has, 0b101, "tag 2 is reissued, and tag 0 is issued");
    liar.write(port::SACT, 0);
    assert_eq!(liar.run(&mut queue, &mut now, Nanos::from_millis(1)).len(), 2);
}

#[test]
fn a_log_that_never_comes_and_a_drive_that_stays_busy() {
    let (mut liar, mut queue) = Liar::with_reads(2);
    (liar.mute, liar.busy) = (true, false);
    liar.set(port::IS, is::TFES);
    let mut now = Nanos(0);
    assert_eq!(liar.run(&mut queue, &mut now, Nanos::from_millis(900)), []);
    let ended = liar.run(&mut queue, &mut now, Nanos::from_millis(300));
    assert_eq!(ended.len(), 2);
    assert_eq!((queue.stats().resets, queue.state()), (1, QueueState::Ready));
    // The drive stays busy forever, so it counts as removed after the next reset.
    liar.busy = true;
    queue.reset(now);
    let request = Request::read(0, 1, Payload::BitBucket, 0);
    let mut tag = [Tag(0)];
    queue.get_free_tags(&mut tag);
    assert_eq!(queue.bind_tag_cmd(tag[0], &request, now), Err(BindError::Busy));
    assert!(queue.deadline() <= now);
    liar.run(&mut queue, &mut now, Nanos::from_millis(1200));
    assert_eq!((queue.state(), queue.deadline()), (QueueState::Removed, Nanos::MAX));
}

#[test]
fn errors_out_of_nowhere() {
    let (mut liar, mut queue) = Liar::with_reads(1);
    let mut now = Nanos(0);
    // Errors without consequences are only counted.
    for _ in 0..5 {
        liar.set(port::IS, is::INFS);
        assert_eq!(liar.run(&mut queue, &mut now, Nanos::from_micros(30)), []);
    }
    assert_eq!(queue.stats().minor_errors, 5);
    liar.write(port::SACT, 0);
    assert_eq!(liar.run(&mut queue, &mut now, Nanos::from_micros(30)).len(), 1);
    // A task file error without a failed command restarts the port.
    liar.set(port::IS, is::TFES);
    liar.run(&mut queue, &mut now, Nanos::from_millis(1));
    assert_eq!((queue.stats().recoveries, queue.stats().resets), (1, 0));
    // The link was lost briefly, or the controller failed: outstanding commands are lost.
    for error in [is::PRCS, is::PCS, is::HBFS, is::HBDS, is::IFS, is::OFS] {
        let mut tag = [Tag(0)];
        assert_eq!(queue.get_free_tags(&mut tag), 1);
        let request = Request::read(0, 1, Payload::BitBucket, 0);
        queue.bind_tag_cmd(tag[0], &request, now).unwrap();
        queue.issue_tags();
        liar.poll();
        liar.set(port::IS, error);
        let ended = liar.run(&mut queue, &mut now, Nanos::from_millis(10));
        assert_eq!(ended, [(tag[0].0, Status::DATA_TRANSFER_ERROR)]);
    }
    assert_eq!((queue.stats().resets, queue.state()), (6, QueueState::Ready));
}

#[test]
fn what_a_controller_and_its_drive_say_is_checked() {
    let attach = |change: &dyn Fn(&mut Liar)| {
        let mut liar = Liar::new();
        change(&mut liar);
        liar.connect()
    };
    assert!(attach(&|_| ()).is_ok());
    let unsupported = [
        attach(&|liar| liar.capabilities &= !cap::SNCQ),
        attach(&|liar| liar.capabilities &= !cap::S64A),
        attach(&|liar| liar.implemented = 3),
        attach(&|liar| liar.implemented = u32::MAX),
    ];
    for host in unsupported {
        assert!(matches!(host, Err(AhciError::Unsupported(_))), "{host:?}");
    }
    let identified = |identify: Identify| attach(&|liar| liar.identify = identify.to_bytes());
    let drives = [
        identified(Identify { queuing: false, ..identify() }),
        identified(Identify { sectors: 0, ..identify() }),
        identified(Identify { sectors: 1 << 48, ..identify() }),
        identified(Identify { sector_bytes: 513 * 2, ..identify() }),
        identified(Identify { sector_bytes: 1 << 20, ..identify() }),
        attach(&|liar| liar.identify[3] ^= 1),
    ];
    for host in drives {
        assert!(matches!(host, Err(AhciError::Drive { port: 0, .. })), "{host:?}");
    }
    assert!(matches!(attach(&|liar| liar.implemented = 0), Err(AhciError::NoDrive { ports: 0 })));
    let busy = attach(&|liar| liar.busy = true);
    assert!(matches!(busy, Err(AhciError::Timeout { polls: 100, .. })), "{busy:?}");
    // The smaller of the numbers of slots and tags applies.
    let few = attach(&|liar| liar.capabilities = cap::encode_counts(1, 8) | cap::SNCQ | cap::S64A)
        .unwrap();
    assert_eq!(few.limits().queue_depth, 8);
    let few = identified(Identify { queue_depth: 4, trim: false, ..identify() }).unwrap();
    assert_eq!((few.limits().queue_depth, few.features().discard), (4, false));
}

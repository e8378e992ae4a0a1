//! A hostile host that writes arbitrary register values.

use ahci::port::{self, cmd, is, ssts};
use ahci::{CommandHeader, CommandTable, PrdtEntry, RegisterH2d, ata, hba, received};
use controller::{AhciConfig, AhciController, SataData};
use mem::{Iova, SharedRegion};
use std::sync::Arc;
use time::{Component, Nanos};
use transport::PciFunction;
use zerocopy::{FromBytes, IntoBytes};

use super::harness::config;

/// A controller with one started port, and raw access to the registers and memory of its host.
struct RawHost {
    controller: AhciController,
    function: Arc<PciFunction>,
    region: Arc<SharedRegion>,
    at: Iova,
    now: Nanos,
}

const LIST: usize = 0;
const FIS: usize = 1024;
const TABLE: usize = 4096;
const DATA: usize = 1 << 20;
const BYTES: usize = 2 << 20;

impl RawHost {
    fn new() -> RawHost {
        RawHost::with_config(&config(2, 1 << 14, SataData::Memory))
    }

    fn with_config(config: &AhciConfig) -> RawHost {
        let function = config.function().unwrap();
        let controller = AhciController::new(function.clone(), config).unwrap();
        let region = SharedRegion::anonymous(BYTES).unwrap();
        let at = function.memory().register(&region).unwrap();
        let mut bare = RawHost { controller, function, region, at, now: Nanos::ZERO };
        bare.pass(Nanos::from_millis(2));
        bare.set(port::CLB, at.0 as u32);
        bare.set(port::CLBU, (at.0 >> 32) as u32);
        bare.set(port::FB, (at.0 + FIS as u64) as u32);
        bare.set(port::FBU, (at.0 >> 32) as u32);
        bare.start();
        bare
    }

    fn read(&self, register: usize) -> u32 {
        self.function.read(hba::port(0, register))
    }

    fn set(&self, register: usize, value: u32) {
        self.function.write(hba::port(0, register), value);
    }

    fn pass(&mut self, time: Nanos) {
        let until = self.now + time;
        loop {
            let mut polls = 0;
            while self.controller.poll(self.now) {
                polls += 1;
                assert!(polls < 10_000, "the controller does not become idle");
            }
            if self.controller.deadline() > until {
                break;
            }
            self.now = self.now.max(self.controller.deadline());
        }
        self.now = until;
    }

    /// Clears errors and starts the port.
    fn start(&mut self) {
        let command = self.read(port::CMD);
        self.set(port::CMD, command & !cmd::ST);
        self.pass(Nanos(1));
        assert_eq!(
            (self.read(port::CMD) & cmd::CR, self.read(port::SACT), self.read(port::CI)),
            (0, 0, 0)
        );
        self.set(port::SERR, 0);
        self.set(port::IS, 0);
        self.set(port::CMD, cmd::ST | cmd::FRE);
        self.pass(Nanos(1));
        assert_eq!(self.read(port::CMD) & (cmd::CR | cmd::FR), cmd::CR | cmd::FR);
    }

    /// Resets the port with COMRESET, and starts it.
    fn reset(&mut self) {
        self.set(port::CMD, cmd::FRE);
        self.set(port::SCTL, 1);
        self.pass(Nanos::from_millis(1));
        assert_eq!(ssts::det(self.read(port::SSTS)), ssts::DET_PRESENT);
        self.set(port::SCTL, 0);
        self.pass(Nanos::from_millis(2));
        assert_eq!(ssts::det(self.read(port::SSTS)), ssts::DET_UP);
        self.start();
    }

    fn header(&self, slot: usize, header: &CommandHeader) {
        self.region.write(LIST + slot * 32, header.as_bytes());
    }

    fn put(&self, slot: usize, fis: &RegisterH2d, write: bool, regions: &[PrdtEntry]) {
        let table = TABLE + slot * 1024;
        self.region.write(table, fis.as_bytes());
        for (i, region) in regions.iter().enumerate() {
            self.region.write(table + CommandTable::PRDT + i * 16, region.as_bytes());
        }
        let at = self.at.0 + table as u64;
        self.header(slot, &CommandHeader::new(at, write, regions.len() as u16));
    }

    fn data(&self, bytes: u32) -> PrdtEntry {
        PrdtEntry::new(self.at.0 + DATA as u64, bytes)
    }

    fn issue(&mut self, queued: u32, slots: u32) {
        self.function.set_bits(hba::port(0, port::SACT), queued);
        self.function.set_bits(hba::port(0, port::CI), slots);
        self.pass(Nanos::from_millis(1));
    }

    /// Issues a queued command in slot 0 and returns the error bits of PxIS.
    fn queued(&mut self) -> u32 {
        self.issue(1, 1);
        self.read(port::IS) & is::ERRORS
    }

    /// Checks that the port still works.
    fn check_works(&mut self) {
        self.put(3, &RegisterH2d::read_queued(0, 1, 3), false, &[self.data(512)]);
        self.issue(8, 8);
        assert_eq!(self.read(port::SACT) | self.read(port::CI), 0);
        assert_eq!(self.read(port::IS) & is::ERRORS, 0);
    }
}

#[test]
fn a_controller_describes_itself() {
    let bare = RawHost::new();
    let cap = bare.function.read(hba::CAP);
    assert_eq!((hba::cap::ports(cap), hba::cap::slots(cap)), (2, 32));
    assert_eq!(bare.function.read(hba::PI), 3);
    assert_eq!(bare.function.read(hba::VS), hba::VERSION_1_3_1);
    assert_eq!(bare.read(port::SSTS), ssts::DET_UP | ssts::GEN3_ACTIVE);
    assert_eq!(bare.read(port::SIG), port::SIGNATURE_ATA);
}

#[test]
fn a_queued_command_ends_with_its_fis_and_its_bits() {
    let mut bare = RawHost::new();
    bare.put(5, &RegisterH2d::write_queued(9, 1, 5, false), true, &[bare.data(512)]);
    bare.region.fill(DATA, 512, 0xa5);
    bare.issue(1 << 5, 1 << 5);
    assert_eq!((bare.read(port::SACT), bare.read(port::CI)), (0, 0));
    assert_eq!(bare.read(port::IS), is::SDBS);
    let mut fis = [0; 8];
    bare.region.read(FIS + received::SET_DEVICE_BITS, &mut fis);
    assert_eq!(fis, [0xa1, 0x40, 0x40, 0, 1 << 5, 0, 0, 0]);
    assert_eq!(bare.function.read(hba::IS), 0, "with PxIE clear, the port sets no bit in IS");
    bare.set(port::IE, is::SDBS);
    bare.pass(Nanos(1));
    assert_eq!(bare.function.read(hba::IS), 1);
    // Clearing only IS has no lasting effect.
    bare.function.clear_bits(hba::IS, 1);
    bare.pass(Nanos(1));
    assert_eq!(bare.function.read(hba::IS), 1);
    bare.function.clear_bits(hba::port(0, port::IS), u32::MAX);
    bare.function.clear_bits(hba::IS, 1);
    bare.pass(Nanos(1));
    assert_eq!(bare.function.read(hba::IS), 0);
}

#[test]
fn commands_that_are_not_queued_end_with_their_bytes_counted() {
    let mut bare = RawHost::new();
    bare.put(0, &RegisterH2d::identify(), false, &[bare.data(512)]);
    bare.issue(0, 1);
    assert_eq!((bare.read(port::CI), bare.read(port::IS)), (0, is::PSS));
    let mut page = [0; 512];
    bare.region.read(DATA, &mut page);
    let identify = ahci::Identify::from_bytes(&page).unwrap();
    assert_eq!((identify.sectors, identify.queue_depth), (1 << 14, 32));
    let mut header = [0; 32];
    bare.region.read(LIST, &mut header);
    assert_eq!(CommandHeader::read_from_bytes(&header).unwrap().prdbc.get(), 512);
    bare.set(port::IS, 0);
    bare.put(1, &RegisterH2d::flush(), false, &[]);
    bare.issue(0, 2);
    assert_eq!((bare.read(port::CI), bare.read(port::IS)), (0, is::DHRS));
}

#[test]
fn wild_addresses_stop_the_port_until_it_is_restarted() {
    let fis = RegisterH2d::read_queued(0, 8, 0);
    let wild = [0, 0x1000, u64::MAX - 4095, 1 << 62, (1 << 40) + BYTES as u64];
    let mut bare = RawHost::new();
    for address in wild {
        let address = address & !1;
        // A region, a table, and a list at unregistered addresses.
        bare.put(0, &fis, false, &[PrdtEntry::new(address, 4096)]);
        assert_eq!(bare.queued(), is::HBFS, "region at {address:#x}");
        bare.function.set_bits(hba::port(0, port::CI), 2);
        bare.pass(Nanos::from_millis(1));
        assert_eq!(bare.read(port::CI) & 2, 2, "a stopped port executes no command");
        bare.start();
        bare.put(0, &fis, false, &[]);
        bare.header(0, &CommandHeader::new(address, false, 1));
        assert_eq!(bare.queued(), is::HBFS, "table at {address:#x}");
        bare.start();
        let (low, high) = (bare.read(port::CLB), bare.read(port::CLBU));
        bare.set(port::CLB, address as u32);
        bare.set(port::CLBU, (address >> 32) as u32);
        assert_eq!(bare.queued(), is::HBFS, "list at {address:#x}");
        bare.set(port::CLB, low);
        bare.set(port::CLBU, high);
        bare.start();
        // The address of the received FIS area is checked when the first FIS is stored.
        let (low, high) = (bare.read(port::FB), bare.read(port::FBU));
        bare.set(port::FB, address as u32);
        bare.set(port::FBU, (address >> 32) as u32);
        bare.put(0, &fis, false, &[bare.data(4096)]);
        assert_eq!(bare.queued(), is::HBFS, "FISes at {address:#x}");
        bare.set(port::FB, low);
        bare.set(port::FBU, high);
        bare.start();
        bare.check_works();
    }
    assert_eq!(bare.controller.stats().drives[0].fatal_errors, 20);
}

#[test]
fn regions_that_are_short_odd_or_none() {
    let mut bare = RawHost::new();
    for write in [false, true] {
        let fis = match write {
            false => RegisterH2d::read_queued(0, 8, 0),
            true => RegisterH2d::write_queued(0, 8, 0, false),
        };
        let short = if write { is::IFS } else { is::OFS | is::IFS };
        let data = bare.data(2048);
        let odd_address = PrdtEntry::new(bare.at.0 + DATA as u64 + 1, 4096);
        let odd_length = PrdtEntry { dbc: 4094.into(), ..bare.data(4096) };
        let past_the_end = PrdtEntry::new(bare.at.0 + BYTES as u64 - 2048, 4096);
        for (regions, expected) in [
            (&[][..], short),
            (&[data][..], short),
            (&[data, odd_length][..], is::HBFS),
            (&[odd_address][..], is::HBFS),
            (&[past_the_end][..], is::HBFS),
            (&[data, PrdtEntry::new(0, 2048)][..], is::HBFS),
            // Regions beyond the data are not checked.
            (&[data, data, odd_address][..], 0),
        ] {
            bare.put(0, &fis, write, regions);
            assert_eq!(bare.queued(), expected, "write {write}, {regions:?}");
            bare.start();
        }
        // A table that exceeds its memory region.
        let at = bare.at.0 + BYTES as u64 - 1024;
        bare.region.write(BYTES - 1024, fis.as_bytes());
        bare.header(0, &CommandHeader::new(at, write, 65_535));
        assert_eq!(bare.queued(), is::HBFS);
        bare.start();
        bare.check_works();
    }
}

#[test]
fn what_is_no_command_is_none() {
    let mut bare = RawHost::new();
    let fis = RegisterH2d::read_queued(0, 1, 0);
    let data = bare.data(512);
    let kinds = [
        RegisterH2d { kind: 0x34, ..fis },
        RegisterH2d { flags: 0, ..fis },
        RegisterH2d::default(),
    ];
    for bad in kinds {
        bare.put(0, &bad, false, &[data]);
        assert_eq!(bare.queued(), is::IFS, "{bad:?}");
        bare.start();
    }
    for length in [0, 1, 4, 17, 31] {
        bare.put(0, &fis, false, &[data]);
        let header = CommandHeader::new(bare.at.0 + TABLE as u64, false, 1);
        bare.header(0, &CommandHeader { flags: length.into(), ..header });
        assert_eq!(bare.queued(), is::IFS, "{length}");
        bare.start();
    }
    // Unsupported commands, and commands with unsupported parameters.
    let unknown = [
        RegisterH2d { command: 0, ..RegisterH2d::flush() },
        RegisterH2d { command: 0x25, ..fis },
        RegisterH2d::trim(0),
        RegisterH2d::trim(9),
        RegisterH2d { features_low: 0, ..RegisterH2d::trim(1) },
        RegisterH2d::read_log(0x11),
        RegisterH2d::read_queued(0, 1, 7),
    ];
    for bad in unknown {
        bare.put(0, &bad, false, &[data]);
        assert_eq!(bare.queued(), is::TFES, "{bad:?}");
        let file = bare.read(port::TFD);
        assert_eq!(file, 0x41 | u32::from(ata::error::ABRT) << 8, "{bad:?}");
        bare.start();
        bare.check_works();
    }
    let atapi = CommandHeader::new(bare.at.0 + TABLE as u64, false, 1);
    bare.put(0, &fis, false, &[data]);
    bare.header(0, &CommandHeader { flags: (5 | CommandHeader::ATAPI).into(), ..atapi });
    assert_eq!(bare.queued(), is::TFES);
    // A write whose header has W clear.
    bare.start();
    bare.put(0, &RegisterH2d::write_queued(0, 1, 0, false), false, &[data]);
    assert_eq!(bare.queued(), is::TFES);
}

#[test]
fn bits_without_meaning_mean_nothing() {
    let mut bare = RawHost::new();
    // PxSACT without PxCI issues no command. The bits stay until the port is stopped.
    bare.function.set_bits(hba::port(0, port::SACT), 0xff00_0000);
    bare.pass(Nanos::from_millis(1));
    bare.check_works_with(0xff00_0000);
    bare.start();
    // PxCI without PxSACT: the drive executes the command, and the host cannot see the completion.
    bare.put(3, &RegisterH2d::read_queued(0, 1, 3), false, &[bare.data(512)]);
    bare.issue(0, 8);
    assert_eq!((bare.read(port::CI), bare.read(port::IS)), (0, is::SDBS));
    // Write ones, and then random values, to every register.
    let mut random = rng::Rng::new(5);
    for round in 0..2_000 {
        let register = 4 * random.below(bare.function.register_bytes() as u64 / 4) as usize;
        let value = if round % 10 == 0 { u32::MAX } else { random.next_u64() as u32 };
        bare.function.write(register, value);
        bare.pass(Nanos::from_micros(300));
    }
    // A controller reset restores everything.
    bare.function.write(hba::GHC, hba::ghc::HR);
    bare.pass(Nanos::from_millis(2));
    assert_eq!(bare.function.read(hba::GHC), hba::ghc::AE);
    let (low, high) = (bare.at.0 as u32, (bare.at.0 >> 32) as u32);
    for (register, value) in
        [(port::CLB, low), (port::CLBU, high), (port::FB, low + FIS as u32), (port::FBU, high)]
    {
        bare.set(register, value);
    }
    bare.start();
    bare.check_works();
}

impl RawHost {
    fn check_works_with(&mut self, stale: u32) {
        self.put(3, &RegisterH2d::read_queued(0, 1, 3), false, &[self.data(512)]);
        self.issue(8, 8);
        assert_eq!((self.read(port::SACT), self.read(port::CI)), (stale, 0));
    }
}

#[test]
fn a_drive_that_failed_a_queued_command_takes_none_before_its_log_is_read() {
    let mut bare = RawHost::new();
    let sectors = 7..8;
    bare.controller.inject_sector_error(
        0,
        controller::InjectedSectorError { sectors, reads: true, writes: false },
    );
    for slot in 0..4 {
        let fis = RegisterH2d::read_queued(5 + slot, 1, slot as u8);
        bare.put(slot as usize, &fis, false, &[bare.data(512)]);
    }
    bare.issue(15, 15);
    assert_eq!(bare.read(port::IS) & is::ERRORS, is::TFES);
    assert_eq!(bare.read(port::TFD), 0x41 | u32::from(ata::error::UNC) << 8);
    assert_ne!(bare.read(port::SACT) & 4, 0, "the failed command stays set in PxSACT");
    assert_eq!(bare.read(port::CI), 0);
    bare.start();
    assert_eq!(bare.queued(), is::TFES, "queued commands fail until the error log is read");
    bare.start();
    bare.put(0, &RegisterH2d::flush(), false, &[]);
    bare.issue(0, 1);
    assert_eq!(
        bare.read(port::IS) & is::ERRORS,
        is::TFES,
        "other commands fail until the error log is read"
    );
    bare.start();
    bare.put(0, &RegisterH2d::read_log(ata::QueuedErrorLog::LOG), false, &[bare.data(512)]);
    bare.issue(0, 1);
    assert_eq!((bare.read(port::CI), bare.read(port::IS)), (0, is::PSS));
    let mut page = [0; 512];
    bare.region.read(DATA, &mut page);
    let log = ata::QueuedErrorLog::from_bytes(&page).unwrap();
    assert_eq!((log.not_queued, log.tag, log.error, log.lba), (false, 2, ata::error::UNC, 7));
    bare.set(port::IS, 0);
    bare.check_works();
    // A non-queued command among queued ones fails all of them.
    bare.start();
    for slot in 0..3 {
        let fis = RegisterH2d::read_queued(0, 1, slot as u8);
        bare.put(slot as usize, &fis, false, &[bare.data(512)]);
    }
    bare.put(2, &RegisterH2d::flush(), false, &[]);
    bare.issue(3, 7);
    assert_eq!(bare.read(port::IS) & is::ERRORS, is::TFES);
    assert_eq!(bare.read(port::SACT), 3, "none of the queued commands completed");
    bare.reset();
    bare.check_works();
}

#[test]
fn random_memory_as_command_list_is_survived() {
    let mut bare = RawHost::new();
    let mut random = rng::Rng::new(17);
    for round in 0..400 {
        for word in (0..TABLE + 32 * 1024).step_by(8) {
            bare.region.write(word, &random.next_u64().to_le_bytes());
        }
        if round % 2 == 0 {
            // Headers with valid addresses; their FISes resemble commands.
            for slot in 0..32 {
                let table = bare.at.0 + TABLE as u64 + slot * 1024;
                let regions = random.below(64) as u16;
                bare.header(
                    slot as usize,
                    &CommandHeader::new(table, random.below(2) == 0, regions),
                );
                let command = [0x60, 0x61, 0xea, 0x06, 0xec, 0x2f][random.below(6) as usize];
                let fis = RegisterH2d {
                    command,
                    ..RegisterH2d::read_queued(
                        random.below(1 << 15),
                        1 + random.below(9) as u32,
                        slot as u8,
                    )
                };
                bare.region.write(TABLE + slot as usize * 1024, fis.as_bytes());
            }
        }
        bare.issue(random.next_u64() as u32, random.next_u64() as u32);
        match round % 3 {
            0 => bare.reset(),
            _ => bare.start(),
        }
    }
    bare.reset();
    bare.check_works();
}

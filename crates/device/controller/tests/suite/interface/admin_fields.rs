//! The answers to admin commands, byte by byte, as a host that knows only the specification reads
//! them; and log pages from every offset.

// guarantee: B-93

use controller::{
    AccessPolicy, AccessScope, Controller, ControllerConfig, DriveConfig, PersonalityKind,
    WriteBuffer,
};
use mem::PAGE_BYTES;
use nvme::{AdminCommand, Sqe, Status, log_page, opcode};
use transport::Port;

use crate::hostile::host::{Host, block_config, configs};

/// A field: first byte, number of bytes, name, and value.
type Field = (usize, usize, &'static str, u128);

fn text(field: &[u8]) -> String {
    field.iter().map(|byte| char::from(*byte)).collect()
}

/// Checks fields, and that all bytes that are no field are zero.
fn check(data: &[u8], fields: &[Field], texts: &[(usize, usize, &str)]) {
    let mut rest = data.to_vec();
    for (first, bytes, name, value) in fields {
        let field = &data[*first..first + bytes];
        let found = field.iter().rev().fold(0u128, |sum, byte| sum << 8 | u128::from(*byte));
        assert_eq!(found, *value, "{name}, bytes {}:{first}", first + bytes - 1);
        rest[*first..first + bytes].fill(0);
    }
    for (first, bytes, expected) in texts {
        assert_eq!(text(&data[*first..first + bytes]), *expected, "byte {first}");
        rest[*first..first + bytes].fill(0);
    }
    let other = rest.iter().position(|byte| *byte != 0);
    assert_eq!(other, None, "a byte without a field");
}

/// Executes a command that returns up to two pages.
fn read(host: &mut Host, drive: &mut Controller, mut sqe: Sqe) -> Result<Vec<u8>, Status> {
    host.memory.fill(0, 2 * PAGE_BYTES, 0xa5);
    sqe.set_prp(host.at.0, host.at.offset(PAGE_BYTES as u64).0);
    let status = host.admin(drive, sqe).status;
    let mut data = vec![0; 2 * PAGE_BYTES];
    host.memory.read(0, &mut data);
    if status.is_success() { Ok(data) } else { Err(status) }
}

fn identify(
    host: &mut Host,
    drive: &mut Controller,
    cns: u8,
    nsid: u32,
) -> Result<Vec<u8>, Status> {
    let sqe = AdminCommand::Identify { cns, nsid }.to_sqe();
    read(host, drive, sqe).map(|mut data| {
        data.truncate(PAGE_BYTES);
        data
    })
}

fn log(
    host: &mut Host,
    drive: &mut Controller,
    lid: u8,
    (offset, bytes): (u64, u64),
) -> Result<Vec<u8>, Status> {
    let log = AdminCommand::GetLogPage { lid, nsid: u32::MAX, bytes, offset, retain: true };
    read(host, drive, log.to_sqe()).map(|mut data| {
        data.truncate(bytes as usize);
        data
    })
}

#[test]
fn identify_controller_is_what_the_specification_asks_for() {
    let mut config = block_config();
    config.write_buffer = WriteBuffer::Volatile { bytes: 1 << 20 };
    let mut drive = Controller::new(config).unwrap();
    let mut host = Host::new(&mut drive);
    let capacity = u128::from(drive.sectors()) * 4096;
    let data = identify(&mut host, &mut drive, 1, 0).unwrap();
    let fields: [Field; 30] = [
        (0, 2, "VID", 0),
        (72, 1, "RAB: bursts of 8", 3),
        (76, 1, "CMIC", 0),
        (77, 1, "MDTS: no limit", 0),
        (78, 2, "CNTLID", 0),
        (80, 4, "VER: 1.4", 0x0001_0400),
        (92, 4, "OAES: changed namespaces", 1 << 8),
        (96, 4, "CTRATT: namespace granularities", 1 << 7),
        (111, 1, "CNTRLTYPE: an I/O controller", 1),
        (256, 2, "OACS: Get LBA Status, namespaces, Format NVM", 1 << 9 | 1 << 3 | 1 << 1),
        (258, 1, "ACL", 0),
        (259, 1, "AERL: 4 requests", 3),
        (260, 1, "FRMW: one slot, read only", 3),
        (261, 1, "LPA: effects log, extended data", 0b110),
        (262, 1, "ELPE: 64 entries", 63),
        (263, 1, "NPSS: one power state", 0),
        (266, 2, "WCTEMP", 343),
        (268, 2, "CCTEMP", 353),
        (280, 16, "TNVMCAP", capacity),
        (320, 2, "KAS: no timer without registers", 0),
        (328, 4, "SANICAP: block erase, overwrite, NDI, no modified media", 0x6000_0006),
        (512, 1, "SQES: 64 bytes", 0x66),
        (513, 1, "CQES: 16 bytes", 0x44),
        (514, 2, "MAXCMD", 4096),
        (516, 4, "NN", 32),
        (520, 2, "ONCS: Compare to Write Zeroes, Verify, Copy", 0b1_1000_1111),
        (525, 1, "VWC: present, and Flush of all namespaces", 0b111),
        (534, 2, "OCFS: Copy descriptors of format 0", 1),
        (536, 4, "SGLS: any alignment, bit buckets", 0x0001_0001),
        (540, 4, "MNAN", 32),
    ];
    let nqn = format!("nqn.2026-01.io.sluice:test{}", "\0".repeat(256 - 26));
    let texts = [
        (4, 20, "test                "),
        (24, 40, "Sluice block drive                      "),
        (64, 8, "1.0     "),
        (768, 256, nqn.as_str()),
    ];
    check(&data, &fields, &texts);
}

#[test]
fn identify_namespace_is_what_the_specification_asks_for() {
    let mut drive = Controller::new(block_config()).unwrap();
    let mut host = Host::with_queue(&mut drive);
    host.check_serves(&mut drive);
    let sectors = u128::from(drive.sectors());
    let data = identify(&mut host, &mut drive, 0, 1).unwrap();
    let nguid = u128::from_le_bytes(data[104..120].try_into().unwrap());
    check(
        &data,
        &[
            (0, 8, "NSZE", sectors),
            (8, 8, "NCAP", sectors),
            (16, 8, "NUSE: one sector was written", 1),
            (24, 1, "NSFEAT: NPWG to NOWS", 1 << 4),
            (25, 1, "NLBAF", 0),
            (26, 1, "FLBAS", 0),
            (27, 1, "MC", 0),
            (33, 1, "DLFEAT: zeros, by Write Zeroes too", 0b1001),
            (48, 16, "NVMCAP", sectors * 4096),
            (74, 2, "MSSRL: 256 KiB", 64),
            (76, 4, "MCL: 1 MiB", 256),
            (80, 1, "MSRC", 127),
            (99, 1, "NSATTR", 0),
            (104, 16, "NGUID", nguid),
            (120, 8, "EUI64", 0),
            (128, 4, "LBAF0: 4096 bytes", 12 << 16),
        ],
        &[],
    );
    assert_ne!(nguid, 0);
    // The descriptor list has the same identifier.
    let list = identify(&mut host, &mut drive, 3, 1).unwrap();
    check(&list, &[(0, 1, "NIDT: NGUID", 2), (1, 1, "NIDL", 16), (4, 16, "NID", nguid)], &[]);
    let active = identify(&mut host, &mut drive, 2, 0).unwrap();
    check(&active, &[(0, 4, "the only namespace", 1)], &[]);
}

// guarantee: B-95

#[test]
fn a_namespace_with_protection_information_says_so() {
    let mut config =
        DriveConfig { protection: Some(nvme::ProtectionType::Type1), ..block_config() };
    let media::MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.geometry.oob_bytes = 24;
    let mut drive = Controller::new(config).unwrap();
    let mut host = Host::new(&mut drive);
    let sectors = u128::from(drive.sectors());
    let data = identify(&mut host, &mut drive, 0, 1).unwrap();
    let nguid = u128::from_le_bytes(data[104..120].try_into().unwrap());
    check(
        &data,
        &[
            (0, 8, "NSZE", sectors),
            (8, 8, "NCAP", sectors),
            (16, 8, "NUSE", 0),
            (24, 1, "NSFEAT: NPWG to NOWS", 1 << 4),
            (25, 1, "NLBAF", 0),
            (26, 1, "FLBAS: metadata in a separate buffer", 0),
            (27, 1, "MC: a separate buffer", 1 << 1),
            (28, 1, "DPC: type 1, last eight bytes", 1 | 1 << 4),
            (29, 1, "DPS: type 1", 1),
            (33, 1, "DLFEAT: zeros, by Write Zeroes too, guard FFFFh", 0b1001),
            (48, 16, "NVMCAP", sectors * 4096),
            (74, 2, "MSSRL: 256 KiB", 64),
            (76, 4, "MCL: 1 MiB", 256),
            (80, 1, "MSRC", 127),
            (104, 16, "NGUID", nguid),
            (128, 4, "LBAF0: 4096 bytes, 8 bytes of metadata", 12 << 16 | 8),
        ],
        &[],
    );
    // End-to-end protection needs no attribute of the controller; it has a list of granularities.
    let controller = identify(&mut host, &mut drive, 1, 0).unwrap();
    assert_eq!(controller[96..100], [1 << 7, 0, 0, 0], "CTRATT");
}

#[test]
fn identifiers_of_namespaces_are_stable_and_unique() {
    let nguid = |drive: &mut Controller, port: Option<AccessPolicy>| {
        let mut host = match port {
            None => Host::new(drive),
            Some(policy) => {
                let port = Port::new().unwrap();
                drive.attach_as(&port, policy).unwrap();
                Host::on_port(port)
            }
        };
        let data = identify(&mut host, drive, 0, 1).unwrap();
        data[104..120].to_vec()
    };
    let mut first = Controller::new(block_config()).unwrap();
    let whole = nguid(&mut first, None);
    assert_eq!(&whole[8..11], [0x02, 0x53, 0x4c], "locally administered");
    let mut powered_on = first.power_cut().power_on().unwrap();
    assert_eq!(nguid(&mut powered_on, None), whole);
    assert_eq!(nguid(&mut Controller::new(block_config()).unwrap(), None), whole);
    let part = |first, count| Some(AccessPolicy::for_scope(AccessScope::Sectors { first, count }));
    let mut all = vec![
        whole,
        nguid(&mut powered_on, part(0, 8)),
        nguid(&mut powered_on, part(8, 8)),
        nguid(&mut powered_on, part(8, 9)),
    ];
    let other = DriveConfig { name: "test2".into(), ..block_config() };
    all.push(nguid(&mut Controller::new(other).unwrap(), None));
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn structures_of_other_versions_and_features_are_refused() {
    let mut drive = Controller::new(block_config()).unwrap();
    let mut host = Host::new(&mut drive);
    let supported = [5, 6, 7, 8, 0x10, 0x11, 0x12, 0x13, 0x16, 0x1a, 0x1b, 0x1c];
    for cns in (4..=u8::MAX).filter(|cns| !supported.contains(cns)) {
        let status = identify(&mut host, &mut drive, cns, 1).unwrap_err();
        assert!(status.is(Status::INVALID_FIELD), "CNS {cns:#04x}: {status}");
    }
    for (cns, nsid) in [(0, 0), (0, 33), (0, u32::MAX - 1), (2, u32::MAX), (3, 0), (3, 2)] {
        let status = identify(&mut host, &mut drive, cns, nsid).unwrap_err();
        assert!(status.is(Status::INVALID_NAMESPACE), "CNS {cns}, {nsid:#x}: {status}");
    }
    let keep_alive = host.admin(&mut drive, AdminCommand::KeepAlive.to_sqe());
    assert!(keep_alive.status.is(Status::INVALID_OPCODE), "no timer without registers");
}

/// The effects log has exactly the commands that the drive does not refuse as unknown.
#[test]
fn the_effects_log_is_what_the_drive_does() {
    for mut config in configs() {
        config.controller = ControllerConfig { doorbell_buffer: true, ..config.controller };
        let is_open_channel = config.personality == PersonalityKind::OpenChannel;
        let mut drive = Controller::new(config).unwrap();
        let mut host = Host::with_queue(&mut drive);
        let page = log(&mut host, &mut drive, log_page::EFFECTS, (0, 4096)).unwrap();
        let entry = |index: usize| u32::from_le_bytes(page[4 * index..][..4].try_into().unwrap());
        assert!(page[2048..].iter().all(|byte| *byte == 0), "reserved");
        for opcode in 0..=u8::MAX {
            // An event request does not complete, and a deleted queue would be missed.
            if opcode != 0x0c {
                let status = host.admin(&mut drive, Sqe::new(opcode, 1)).status;
                let known = !status.is(Status::INVALID_OPCODE);
                let effects = entry(opcode.into());
                assert_eq!(effects & 1, u32::from(known), "admin {opcode:#04x}: {status}");
                // Logical block contents and namespace inventory change.
                let changes = match opcode {
                    0x80 | 0x84 => 0b001,
                    0x0d => 0b101,
                    0x15 => 0b100,
                    _ => 0,
                };
                let changes = if known { changes } else { 0 };
                assert_eq!(effects >> 1, changes, "admin {opcode:#04x}");
            }
            // At address 0, so that known commands fail in other ways, or succeed.
            let mut sqe = match opcode {
                opcode::io::LBA_STATUS => Sqe::lba_status(1, 0, 1, 1),
                _ => Sqe::new(opcode, 1),
            };
            sqe.set_prp(host.at.0, 0);
            let status = host.io(&mut drive, sqe).status;
            let known = !status.is(Status::INVALID_OPCODE);
            let effects = entry(256 + usize::from(opcode));
            assert_eq!(effects & 1, u32::from(known), "I/O {opcode:#04x}: {status}");
            assert!(effects <= 3);
        }
        assert_eq!(entry(0x0c), 1);
        assert_eq!((entry(256), entry(256 + 1), entry(256 + 2)), (1, 3, 1), "flush, write, read");
        assert_eq!(entry(256 + 8), if is_open_channel { 0 } else { 3 }, "write zeroes");
    }
}

/// Every log page in parts is the whole page; an offset past the end is refused.
#[test]
fn log_pages_have_offsets_and_an_end() {
    for config in configs() {
        let mut drive = Controller::new(config).unwrap();
        let mut host = Host::with_queue(&mut drive);
        host.admin(&mut drive, Sqe::new(0xff, 1));
        for lid in 0..=u8::MAX {
            let whole = match log(&mut host, &mut drive, lid, (0, 8192)) {
                Ok(whole) => whole,
                Err(status) => {
                    let refused = [
                        Status::INVALID_LOG_PAGE,
                        Status::INVALID_NAMESPACE,
                        Status::INVALID_FIELD,
                    ];
                    assert!(refused.iter().any(|s| status.is(*s)), "page {lid:#04x}: {status}");
                    continue;
                }
            };
            for offset in [4, 60, 512, 4092] {
                let Ok(part) = log(&mut host, &mut drive, lid, (offset, 8)) else { continue };
                // Bytes past the end are not transferred.
                assert_eq!(part, whole[offset as usize..][..8], "page {lid:#04x} from {offset}");
            }
            let status = log(&mut host, &mut drive, lid, (1 << 40, 8)).unwrap_err();
            assert!(status.is(Status::INVALID_FIELD), "page {lid:#04x}: {status}");
            let mut odd =
                AdminCommand::GetLogPage { lid, nsid: u32::MAX, bytes: 8, offset: 0, retain: true }
                    .to_sqe();
            odd.cdw12 = 2.into();
            assert!(read(&mut host, &mut drive, odd).unwrap_err().is(Status::INVALID_FIELD));
        }
    }
}

/// Health events: temperature, spare capacity and a read-only drive, if the host has enabled them,
/// once until the health log is read.
#[test]
fn health_events_are_reported_once_until_the_log_is_read() {
    let mut drive = Controller::new(block_config()).unwrap();
    let mut host = Host::new(&mut drive);
    let set = |fid, value| AdminCommand::SetFeatures { fid, save: false, value }.to_sqe();
    let config = nvme::feature::ASYNC_EVENT;
    let threshold = nvme::feature::TEMPERATURE_THRESHOLD;
    let request = |host: &mut Host, drive: &mut Controller| {
        let mut sqe = AdminCommand::AsyncEventRequest.to_sqe();
        sqe.cid = 1_000.into();
        host.admin.0.push(&sqe).unwrap();
        host.admin.0.ring();
        host.drain(drive);
    };
    let event = |host: &mut Host| {
        let cqe = host.admin.1.pop()?;
        host.admin.1.release();
        host.admin.0.update_head(cqe.sq_head);
        assert_eq!(cqe.cid, 1_000);
        Some(cqe.result)
    };
    let silent = |host: &mut Host, drive: &mut Controller, sqe| {
        assert_eq!(host.admin(drive, sqe).status, Status::SUCCESS);
    };
    // A condition whose event is not enabled.
    silent(&mut host, &mut drive, set(threshold, 300));
    request(&mut host, &mut drive);
    assert_eq!(event(&mut host), None);
    silent(&mut host, &mut drive, set(threshold, 343));
    silent(&mut host, &mut drive, set(config, 0b1111));
    // The completion of the command comes after the event, or before it.
    let mut hot = set(threshold, 300);
    hot.cid = 1_001.into();
    host.admin.0.push(&hot).unwrap();
    host.admin.0.ring();
    host.drain(&mut drive);
    let mut results = Vec::new();
    while let Some(cqe) = host.admin.1.pop() {
        host.admin.1.release();
        host.admin.0.update_head(cqe.sq_head);
        results.push((cqe.cid, cqe.result));
    }
    results.sort_unstable();
    assert_eq!(results, [(1_000, 0x02_0101), (1_001, 0)], "temperature");
    request(&mut host, &mut drive);
    assert_eq!(event(&mut host), None, "reported once");
    let health = |retain| {
        let lid = log_page::HEALTH;
        AdminCommand::GetLogPage { lid, nsid: u32::MAX, bytes: 512, offset: 0, retain }.to_sqe()
    };
    for retain in [true, false] {
        let mut sqe = health(retain);
        sqe.set_prp(host.at.0, 0);
        silent(&mut host, &mut drive, sqe);
    }
    assert_eq!(event(&mut host), None, "nothing is new");
    // The condition ends and begins again.
    silent(&mut host, &mut drive, set(threshold, 343));
    let mut hot = set(threshold, 310);
    hot.cid = 1_000.into();
    host.admin.0.push(&hot).unwrap();
    host.admin.0.ring();
    host.drain(&mut drive);
    let all = [event(&mut host), event(&mut host), event(&mut host)];
    assert!(all.contains(&Some(0x02_0101)), "{all:?}");
}

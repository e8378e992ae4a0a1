//! Sanitize: what it removes, what it refuses meanwhile, how it fails, and power cuts at any time.

mod commands;
mod failures;
mod operations;
mod power_cuts;

use controller::Controller;
use media::{BufferSlot, PhysSector};
use nvme::{
    AdminCommand, Cqe, SanitizeAction, SanitizeCommand, SanitizeLog, Sqe, Status, log_page,
};
use time::Component;

use crate::block_commands::harness::Bench;
use crate::hostile::host::Host;
use crate::interface::events::log_page_of;

/// Sanitize with an action, which allows the host to leave the failure mode.
fn sanitize(action: SanitizeAction) -> Sqe {
    let command = SanitizeCommand { allows_exit: true, ..SanitizeCommand::new(action) };
    AdminCommand::Sanitize(command).to_sqe()
}

fn block_erase() -> Sqe {
    sanitize(SanitizeAction::BlockErase)
}

/// Writes every block, and many of them again, so that there is stale data.
fn fill(b: &mut Bench, block_bytes: usize) {
    let blocks = b.drive.sectors();
    for lba in (0..blocks).chain((0..blocks).step_by(3)) {
        b.write(lba * 37 % blocks, 1, block_bytes, (lba % 200) as u8 + 1);
    }
}

/// Submits an admin command, and runs the drive for one instant. Returns its completion.
fn send(host: &mut Host, drive: &mut Controller, mut sqe: Sqe) -> Option<Cqe> {
    host.cid += 1;
    sqe.cid = host.cid.into();
    host.admin.0.push(&sqe).unwrap();
    host.admin.0.ring();
    while drive.poll(host.now) {}
    let cqe = host.admin.1.pop()?;
    host.admin.1.release();
    host.admin.0.update_head(cqe.sq_head);
    Some(cqe)
}

/// Executes an admin command at one instant.
fn now(b: &mut Bench, sqe: Sqe) -> Status {
    send(&mut b.host, &mut b.drive, sqe).expect("the command completes at once").status
}

/// Runs the drive for up to `events` instants, as long as it has something to do.
fn run(b: &mut Bench, events: u64) {
    for _ in 0..events {
        while b.drive.poll(b.host.now) {}
        match b.drive.deadline() {
            time::Nanos::MAX => return,
            at => b.host.now = b.host.now.max(at),
        }
    }
    while b.drive.poll(b.host.now) {}
}

/// Returns the sanitize status log at one instant.
fn log(b: &mut Bench) -> SanitizeLog {
    let (lid, nsid, bytes) = (log_page::SANITIZE, u32::MAX, 512);
    let mut sqe = AdminCommand::GetLogPage { lid, nsid, bytes, offset: 0, retain: true }.to_sqe();
    sqe.set_prp(b.host.at.0, 0);
    assert_eq!(now(b, sqe), Status::SUCCESS);
    let mut page = [0; 512];
    b.host.memory.read(0, &mut page);
    SanitizeLog::from_bytes(page)
}

/// Returns the number of sectors of the media, and of slots of the write buffer, that are filled with
/// a value of a host: bytes that are equal and not zero. Padding and metadata are none of them.
fn host_sectors(b: &mut Bench) -> usize {
    let slots = b.drive.ftl().unwrap().slots();
    let nand = b.drive.nand_mut().unwrap();
    let (sectors, bytes) = (nand.layout().sector_count(), nand.layout().sector_bytes() as usize);
    let has_value = |data: &[u8]| {
        data.chunks(512).any(|block| block[0] != 0 && block.iter().all(|byte| *byte == block[0]))
    };
    let mut data = vec![0; bytes];
    let mut found = 0;
    for phys in (0..sectors).map(PhysSector) {
        nand.read_bytes(phys, &mut data);
        found += usize::from(has_value(&data));
    }
    for slot in (0..slots).map(BufferSlot) {
        if let Some((region, at)) = nand.slot_data(slot) {
            region.read(at, &mut data);
            found += usize::from(has_value(&data));
        }
    }
    found
}

/// Checks that the drive has no data, and works.
fn assert_clean(b: &mut Bench, block_bytes: usize) {
    assert_eq!(host_sectors(b), 0, "old data is on the media");
    assert_eq!(b.drive.check_invariants(), Ok(()));
    for lba in 0..b.drive.sectors() {
        assert_eq!(b.read(lba, 1, block_bytes), Ok(vec![0]), "block {lba}");
    }
}

/// Checks a Get Log Page with Retain Asynchronous Event cleared.
fn read_log(b: &mut Bench) {
    let page = (log_page::SANITIZE, 0);
    log_page_of(&mut b.host, &mut b.drive, page, (0, 512), false).unwrap();
}

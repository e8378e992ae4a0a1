//! `sluice_fault_inject()`: faults of a drive that this program has opened.

// guarantee: B-65, B-84, B-85, B-97

use crate::support;

use std::ffi::CString;
use std::ptr::{null, null_mut};

use sluice_c::*;

/// A drive that stores its data, and is full of it.
const SCENARIO: &str = "[drive]\nname = \"d\"\npreset = \"femu-default\"\ndata = \"memory\"\n\
    geometry = { channels = 2, pus = 2, chunks = 24, pages = 32 }\n\
    [precondition]\nfill = \"sequential\"\n";

/// A drive that is open, with a handle and a buffer of a sector.
struct OpenDrive {
    device: *mut sluice_device,
    queue: *mut sluice_queue,
    handle: *mut sluice_handle,
    buffer: *mut sluice_buffer,
}

impl OpenDrive {
    /// Opens the drive of a scenario.
    fn new(scenario: &str) -> OpenDrive {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("d.toml");
        std::fs::write(&file, scenario).unwrap();
        let what = CString::new(file.to_str().unwrap()).unwrap();
        let (mut device, mut queue, mut handle) = (null_mut(), null_mut(), null_mut());
        let mut buffer = null_mut();
        ok!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device));
        ok!(sluice_queue_create(device, null(), &mut queue));
        ok!(sluice_handle_create(queue, null(), &mut handle));
        ok!(sluice_buffer_create(device, 4096, &mut buffer));
        OpenDrive { device, queue, handle, buffer }
    }

    /// Reads a sector into the buffer.
    fn read(&self, lba: u64) -> i32 {
        // SAFETY: the objects are alive.
        unsafe { sluice_read(self.handle, lba, 1, self.buffer, 0) }
    }

    fn close(self) {
        // SAFETY: nothing else uses the objects.
        unsafe { sluice_buffer_destroy(self.buffer) };
        ok!(sluice_handle_destroy(self.handle));
        ok!(sluice_queue_destroy(self.queue));
        ok!(sluice_close(self.device));
    }
}

#[test]
fn a_format_and_sanitize_leave_zeros() {
    let drive = OpenDrive::new(SCENARIO);
    // SAFETY: the buffer is alive.
    let data = unsafe { sluice_buffer_data(drive.buffer) }.cast::<u8>();
    for fault in [
        c"format erase=true",
        c"format",
        c"sanitize action=block-erase",
        c"sanitize action=overwrite",
    ] {
        // SAFETY: the buffer has the size of a sector.
        unsafe { data.write_bytes(0x55, 4096) };
        ok!(sluice_write(drive.handle, 9, 1, drive.buffer, 0, 0));
        ok!(sluice_fault_inject(drive.device, null(), fault.as_ptr()));
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            assert!(std::time::Instant::now() < end, "{fault:?} does not end");
            match drive.read(9) {
                0 => break,
                error => assert_eq!(error, -libc::EBUSY),
            }
        }
        // SAFETY: as above.
        let is_zero = unsafe { (0..4096).all(|at| data.add(at).read() == 0) };
        assert!(is_zero, "{fault:?}");
    }
    let crypto = c"sanitize action=crypto-erase".as_ptr();
    expect!(sluice_fault_inject(drive.device, null(), crypto), EINVAL, "overwrite");
    expect!(sluice_fault_inject(drive.device, null(), c"sanitize".as_ptr()), EINVAL, "`action`");
    drive.close();
}

#[test]
fn faults_reach_the_drive_and_others_are_refused() {
    let drive = OpenDrive::new(SCENARIO);
    let device = drive.device;
    assert_eq!(drive.read(9), 0);
    ok!(sluice_fault_inject(device, null(), c"uncorrectable lba=9".as_ptr()));
    assert_eq!(drive.read(9), -libc::EIO);
    assert_eq!(drive.read(8), 0);
    // Far from sector 9: the drive relocates the line with the uncorrectable sector, and its own
    // read would meet the failure.
    ok!(sluice_fault_inject(device, c"d".as_ptr(), c"read-failure lba=1000".as_ptr()));
    assert_eq!((drive.read(1000), drive.read(1000)), (-libc::EIO, 0));
    let d = c"d".as_ptr();
    expect!(sluice_fault_inject(null(), d, c"power-cut".as_ptr()), EINVAL, "`device`");
    expect!(sluice_fault_inject(device, d, null()), EINVAL, "`fault`");
    expect!(sluice_fault_inject(device, d, c"".as_ptr()), EINVAL, "die-failure");
    expect!(sluice_fault_inject(device, d, c"die-failure".as_ptr()), EINVAL, "`pu`");
    expect!(sluice_fault_inject(device, d, c"die-failure pu=4".as_ptr()), EINVAL, "there are 4");
    expect!(sluice_fault_inject(device, d, c"die-failure pu".as_ptr()), EINVAL, "pu");
    expect!(
        sluice_fault_inject(device, c"x".as_ptr(), c"power-cut".as_ptr()),
        EINVAL,
        "there are: d"
    );
    drive.close();
    // SAFETY: nothing else uses the object.
    unsafe {
        let mut null_device = null_mut();
        let what = c"null:1M".as_ptr();
        assert_eq!(sluice_open_version(SLUICE_VERSION, what, null(), &mut null_device), 0);
        let refused = sluice_fault_inject(null_device, null(), c"power-cut".as_ptr());
        assert_eq!(refused, -libc::EOPNOTSUPP, "{}", support::last_error());
        assert_eq!(sluice_close(null_device), 0);
    }
}

#[test]
fn corrupted_data_is_an_error_with_protection_information() {
    for is_protected in [false, true] {
        let protection = if is_protected { "type1" } else { "none" };
        let keys = format!("[drive]\nprotection = \"{protection}\"\n");
        let text = SCENARIO.replacen("[drive]\n", &keys, 1).replacen(
            "geometry = {",
            "geometry = { oob_bytes = 24,",
            1,
        );
        let drive = OpenDrive::new(&text);
        ok!(sluice_fault_inject(drive.device, null(), c"corrupted-data lba=9".as_ptr()));
        assert_eq!(drive.read(9), if is_protected { -libc::EILSEQ } else { 0 });
        assert_eq!(drive.read(8), 0);
        let reference = c"corrupted-data lba=8 what=reference-tag".as_ptr();
        if is_protected {
            ok!(sluice_fault_inject(drive.device, null(), reference));
            assert_eq!(drive.read(8), -libc::EILSEQ);
        } else {
            expect!(sluice_fault_inject(drive.device, null(), reference), EINVAL, "protection");
        }
        drive.close();
    }
}

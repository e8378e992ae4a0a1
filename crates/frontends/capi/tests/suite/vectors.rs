//! `sluice_vector_*()`: geometry, addresses, chunks; reads, writes, erases and copies of 1 to 64
//! addresses, serial and concurrent; status bits; refused arguments.

// guarantee: S-16

use crate::support;
mod served;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use sluice_c::*;
use support::last_error;

const SECTOR: usize = 4096;
const DRIVE: &str = "[drive]\nname = \"d0\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
                     geometry = { channels = 2, pus = 4, chunks = 24, pages = 64 }\n\
                     timing = { read = \"5us\", program = \"10us\", erase = \"20us\" }\n";

/// An open-channel drive of a scenario, with a vector queue and a buffer of 64 sectors.
struct Vectors {
    device: *mut sluice_device,
    queue: *mut sluice_vector_queue,
    buffer: *mut sluice_buffer,
    geometry: sluice_vector_geometry,
    _folder: tempfile::TempDir,
}

impl Vectors {
    fn new(wait: u32) -> Vectors {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("drive.toml");
        std::fs::write(&file, DRIVE).unwrap();
        let what = CString::new(file.to_str().unwrap()).unwrap();
        Vectors::open(&what, wait, folder)
    }

    fn open(what: &CStr, waits: u32, folder: tempfile::TempDir) -> Vectors {
        let (mut device, mut queue, mut buffer) = (null_mut(), null_mut(), null_mut());
        ok!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device));
        let options = options!(sluice_vector_queue_options { depth: 16, wait: waits });
        ok!(sluice_vector_queue_create(device, &options, &mut queue));
        ok!(sluice_buffer_create(device, 64 * SECTOR, &mut buffer));
        let mut geometry = options!(sluice_vector_geometry {});
        ok!(sluice_vector_get_geometry(device, &mut geometry));
        Vectors { device, queue, buffer, geometry, _folder: folder }
    }

    fn address(&self, group: u32, pu: u32, chunk: u32, sector: u32) -> u64 {
        let mut address = 0;
        ok!(sluice_vector_address(self.device, group, pu, chunk, sector, &mut address));
        address
    }

    /// Returns the addresses of `count` sectors of a chunk, beginning with `first`.
    fn run(&self, pu: u32, chunk: u32, first: u32, count: u32) -> Vec<u64> {
        let (group, pu) = (pu / self.geometry.pus, pu % self.geometry.pus);
        (first..first + count).map(|sector| self.address(group, pu, chunk, sector)).collect()
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the buffer is live and has this size, and no command uses it now.
        unsafe { sluice_buffer_data(self.buffer).cast::<u8>().write_bytes(byte, 64 * SECTOR) };
    }

    fn byte(&self, at: usize) -> u8 {
        // SAFETY: as above.
        unsafe { sluice_buffer_data(self.buffer).cast::<u8>().add(at).read() }
    }

    fn chunk(&self, index: u64) -> sluice_chunk {
        // SAFETY: all-zero bytes are a valid value of the struct.
        let mut chunk = unsafe { std::mem::zeroed() };
        ok!(sluice_vector_get_chunks(self.device, index, 1, &mut chunk));
        chunk
    }
}

impl Drop for Vectors {
    fn drop(&mut self) {
        ok!(sluice_vector_queue_destroy(self.queue));
        // SAFETY: no call uses the buffer any more.
        unsafe { sluice_buffer_destroy(self.buffer) };
        ok!(sluice_close(self.device));
    }
}

fn request(op: u32, addresses: &[u64]) -> sluice_vector_request {
    // SAFETY: all-zero bytes are a valid value of the struct.
    let zero: sluice_vector_request = unsafe { std::mem::zeroed() };
    let (count, addresses) = (addresses.len() as u32, addresses.as_ptr());
    sluice_vector_request { op, count, addresses, ..zero }
}

#[test]
fn a_drives_shape_is_told_and_its_addresses_made() {
    let v = Vectors::new(SLUICE_WAIT_POLL);
    let g = v.geometry;
    assert_eq!((g.groups, g.pus, g.chunks, g.sector_bytes), (2, 4, 24, SECTOR as u32));
    assert_eq!((g.first_pu, g.pu_count), (0, 8));
    assert!(g.ws_min > 0 && g.ws_opt.is_multiple_of(g.ws_min) && g.max_addresses == 64);
    let packed = |group: u64, pu: u64, chunk: u64, sector: u64| {
        ((group << g.pu_bits | pu) << g.chunk_bits | chunk) << g.sector_bits | sector
    };
    for parts in [(0, 0, 0, 0), (1, 3, 23, g.sectors - 1), (1, 0, 5, 7)] {
        let (group, pu, chunk, sector) = parts;
        let address = packed(group.into(), pu.into(), chunk.into(), sector.into());
        assert_eq!(v.address(group, pu, chunk, sector), address, "{parts:?}");
    }
    let mut address = 9;
    for (group, pu, chunk, sector) in
        [(2, 0, 0, 0), (0, 4, 0, 0), (0, 0, 24, 0), (0, 0, 0, g.sectors)]
    {
        let place = &mut address;
        expect!(
            sluice_vector_address(v.device, group, pu, chunk, sector, place),
            ERANGE,
            "has no sector"
        );
    }
    assert_eq!(address, 9);
    let all = 2 * 4 * 24;
    // SAFETY: all-zero bytes are a valid value of the struct.
    let mut chunks: Vec<sluice_chunk> = vec![unsafe { std::mem::zeroed() }; all];
    ok!(sluice_vector_get_chunks(v.device, 0, all as u64, chunks.as_mut_ptr()));
    for (n, chunk) in chunks.iter().enumerate() {
        let (pu, number) = (n as u32 / 24, n as u32 % 24);
        assert_eq!(chunk.address, v.address(pu / 4, pu % 4, number, 0));
        assert_eq!((chunk.sectors, chunk.write_pointer), (g.sectors.into(), 0));
        assert_eq!(chunk.state, SLUICE_CHUNK_FREE);
    }
    ok!(sluice_vector_get_chunks(v.device, 0, 0, null_mut()));
}

/// Writes, reads, copies and erases; the reported chunk states follow.
fn lives(v: Vectors) {
    let unit = v.geometry.ws_min;
    let mut failed = 77;
    for pu in 0..8 {
        let addresses = v.run(pu, 1, 0, unit);
        v.fill(pu as u8 + 1);
        ok!(sluice_vector_write(v.queue, addresses.as_ptr(), unit, v.buffer, 0, &mut failed));
        assert_eq!(failed, 0);
        let chunk = v.chunk(u64::from(pu) * 24 + 1);
        assert_eq!((chunk.state, chunk.write_pointer), (SLUICE_CHUNK_OPEN, unit.into()));
    }
    // One command reads a sector of every parallel unit, each to a different offset of the buffer.
    let mixed: Vec<u64> = (0..8).rev().map(|pu| v.run(pu, 1, 0, 1)[0]).collect();
    v.fill(0xee);
    ok!(sluice_vector_read(v.queue, mixed.as_ptr(), 8, v.buffer, 512, null_mut()));
    for n in 0..8 {
        assert_eq!(v.byte(512 + n * SECTOR), 8 - n as u8);
        assert_eq!(v.byte(512 + n * SECTOR + SECTOR - 1), 8 - n as u8);
    }
    assert_eq!((v.byte(511), v.byte(512 + 8 * SECTOR)), (0xee, 0xee));

    if v.geometry.flags & SLUICE_VECTOR_CAN_COPY != 0 {
        let (from, to) = (v.run(2, 1, 0, unit), v.run(5, 7, 0, unit));
        ok!(sluice_vector_copy(v.queue, from.as_ptr(), to.as_ptr(), unit, &mut failed));
        ok!(sluice_vector_read(v.queue, to.as_ptr(), unit, v.buffer, 0, &mut failed));
        assert_eq!((v.byte(0), v.byte(unit as usize * SECTOR - 1)), (3, 3));
    } else {
        let (from, to) = (v.run(2, 1, 0, unit), v.run(5, 7, 0, unit));
        expect!(
            sluice_vector_copy(v.queue, from.as_ptr(), to.as_ptr(), unit, &mut failed),
            EOPNOTSUPP,
            "CAN_COPY"
        );
    }

    // Some addresses of the command fail; the status bits mark each of them.
    let half = [mixed[0], v.run(0, 9, 0, 1)[0], mixed[2], v.run(1, 9, 3, 1)[0]];
    expect!(
        sluice_vector_read(v.queue, half.as_ptr(), 4, v.buffer, 0, &mut failed),
        ENODATA,
        "failed: 0xa"
    );
    assert_eq!((failed, v.byte(0), v.byte(2 * SECTOR)), (0b1010, 8, 6));
    // Writes beside the write pointer fail.
    let far = v.run(3, 1, 3 * unit, unit);
    let answer = expect_failed(&v, &far);
    assert_eq!(answer, -libc::ESPIPE, "{}", last_error());
    // An erased chunk is free, and can be written from its start.
    let all: Vec<u64> = (0..8).map(|pu| v.run(pu, 1, 0, 1)[0]).collect();
    ok!(sluice_vector_erase(v.queue, all.as_ptr(), 8, &mut failed));
    for pu in 0..8 {
        assert_eq!(v.chunk(pu * 24 + 1).state, SLUICE_CHUNK_FREE);
    }
    let answer = unsafe_read(&v, &mixed);
    assert_eq!(answer, -libc::ENODATA, "{}", last_error());
    let again = v.run(0, 1, 0, unit);
    ok!(sluice_vector_write(v.queue, again.as_ptr(), unit, null(), 0, null_mut()));
    v.fill(0xee);
    ok!(sluice_vector_read(v.queue, again.as_ptr(), unit, v.buffer, 0, null_mut()));
    assert_eq!(v.byte(0), 0, "a write without a buffer writes zeros");
    ok!(sluice_vector_read(v.queue, again.as_ptr(), unit, null_mut(), 0, null_mut()));
}

fn expect_failed(v: &Vectors, addresses: &[u64]) -> i32 {
    let (count, mut failed) = (addresses.len() as u32, 0);
    let list = addresses.as_ptr();
    // SAFETY: the pointers are to live objects.
    let answer = unsafe { sluice_vector_write(v.queue, list, count, v.buffer, 0, &mut failed) };
    assert_ne!(failed, 0);
    answer
}

fn unsafe_read(v: &Vectors, addresses: &[u64]) -> i32 {
    let count = addresses.len() as u32;
    // SAFETY: the pointers are to live objects.
    unsafe { sluice_vector_read(v.queue, addresses.as_ptr(), count, v.buffer, 0, null_mut()) }
}

#[test]
fn sectors_are_written_read_copied_and_erased_by_polling() {
    lives(Vectors::new(SLUICE_WAIT_POLL));
}

#[test]
fn the_same_asleep() {
    lives(Vectors::new(SLUICE_WAIT_EVENT));
}

#[test]
fn out_of_band_bytes_travel_with_their_sectors() {
    let v = Vectors::new(SLUICE_WAIT_POLL);
    let (unit, oob_bytes) = (v.geometry.ws_min, v.geometry.oob_bytes);
    assert!(oob_bytes > 0);
    let mut oob = null_mut();
    ok!(sluice_buffer_create(v.device, SECTOR, &mut oob));
    // SAFETY: the buffer is live and has the size of a page.
    let bytes = unsafe { sluice_buffer_data(oob) }.cast::<u8>();
    let length = (unit * oob_bytes) as usize;
    for at in 0..length {
        // SAFETY: the offset is less than a page.
        unsafe { bytes.add(8 + at).write(at as u8) };
    }
    let addresses = v.run(4, 0, 0, unit);
    let write = sluice_vector_request {
        buffer: v.buffer,
        oob,
        oob_offset: 8,
        user_data: 5,
        ..request(SLUICE_VECTOR_WRITE, &addresses)
    };
    // SAFETY: all-zero bytes are a valid value of the struct.
    let mut ended: sluice_vector_completion = unsafe { std::mem::zeroed() };
    ok!(sluice_vector_run(v.queue, &write, &mut ended));
    assert_eq!((ended.user_data, ended.error, ended.failed, ended.flags), (5, 0, 0, 0));
    // SAFETY: as above.
    unsafe { bytes.write_bytes(0xee, SECTOR) };
    let read = sluice_vector_request { oob_offset: 64, ..request(SLUICE_VECTOR_READ, &addresses) };
    let read = sluice_vector_request { buffer: v.buffer, oob, ..read };
    ok!(sluice_vector_run(v.queue, &read, &mut ended));
    assert_eq!(ended.error, 0);
    for at in 0..length {
        // SAFETY: the offset is less than a page.
        assert_eq!(unsafe { bytes.add(64 + at).read() }, at as u8, "byte {at}");
    }
    // A copy has bytes of its own, if any are given.
    for (chunk, has_oob) in [(5, true), (6, false)] {
        let targets = v.run(4, chunk, 0, unit);
        // SAFETY: as above.
        unsafe { bytes.write_bytes(0x77, length) };
        let copy = sluice_vector_request {
            targets: targets.as_ptr(),
            oob: if has_oob { oob } else { null_mut() },
            ..request(SLUICE_VECTOR_COPY, &addresses)
        };
        ok!(sluice_vector_run(v.queue, &copy, &mut ended));
        assert_eq!(ended.error, 0);
        let read = sluice_vector_request { addresses: targets.as_ptr(), ..read };
        ok!(sluice_vector_run(v.queue, &read, &mut ended));
        assert_eq!(ended.error, 0);
        for at in 0..length {
            let expected = if has_oob { 0x77 } else { at as u8 };
            // SAFETY: the offset is less than a page.
            assert_eq!(unsafe { bytes.add(64 + at).read() }, expected, "byte {at} in {chunk}");
        }
    }
    // SAFETY: no call uses the buffer any more.
    unsafe { sluice_buffer_destroy(oob) };
}

/// Submits more commands than the queue holds, with waiting calls in between: each completes
/// exactly once.
fn many(v: Vectors) {
    let unit = v.geometry.ws_min;
    let (units, pus) = (4u32, 8u32);
    let lists: Vec<Vec<u64>> = (0..units)
        .flat_map(|u| (0..pus).map(move |pu| (u, pu)))
        .map(|(u, pu)| v.run(pu, 2, u * unit, unit))
        .collect();
    v.fill(0x33);
    let requests: Vec<_> = (0u64..)
        .zip(&lists)
        .map(|(user_data, list)| sluice_vector_request {
            buffer: v.buffer,
            user_data,
            ..request(SLUICE_VECTOR_WRITE, list)
        })
        .collect();
    // SAFETY: all-zero bytes are a valid value of the struct.
    let mut ended: Vec<sluice_vector_completion> = vec![unsafe { std::mem::zeroed() }; 64];
    let (mut sent, mut seen, mut busy) = (0, vec![0; lists.len()], 0);
    while seen.contains(&0) {
        let left = &requests[sent..];
        // SAFETY: the pointers are to live objects.
        let taken = unsafe { sluice_vector_submit(v.queue, left.as_ptr(), left.len()) };
        assert!(
            taken > 0 || taken == -libc::EAGAIN || left.is_empty(),
            "{taken}: {}",
            last_error()
        );
        busy += usize::from(taken < left.len() as i32);
        sent += taken.max(0) as usize;
        // SAFETY: as above.
        assert!(unsafe { sluice_vector_outstanding(v.queue) } <= 16);
        // A waiting call, while other commands are in flight.
        let own = v.run(sent as u32 % 8, 20, 0, 1);
        assert_eq!(unsafe_read(&v, &own), -libc::ENODATA);
        // SAFETY: as above.
        let count = unsafe {
            sluice_vector_wait(v.queue, ended.as_mut_ptr(), 64, 4, SLUICE_TIMEOUT_INFINITE)
        };
        assert!(count >= 0, "{}", last_error());
        for done in &ended[..count as usize] {
            assert_eq!((done.error, done.failed), (0, 0), "{}", done.status);
            seen[done.user_data as usize] += 1;
        }
    }
    assert!(seen.iter().all(|n| *n == 1) && busy > 0, "{seen:?}, {busy} times full");
    // SAFETY: as above.
    unsafe {
        assert_eq!(sluice_vector_outstanding(v.queue), 0);
        assert_eq!(sluice_vector_reap(v.queue, ended.as_mut_ptr(), 64), 0);
        let begin = std::time::Instant::now();
        assert_eq!(
            sluice_vector_wait(v.queue, ended.as_mut_ptr(), 64, 1, SLUICE_TIMEOUT_INFINITE),
            0
        );
        assert!(
            begin.elapsed().as_secs() < 5,
            "the wait must return at once, because nothing is outstanding"
        );
        // Left outstanding, to be completed by the destruction of the queue.
        let read = request(SLUICE_VECTOR_READ, &lists[0]);
        assert_eq!(sluice_vector_submit(v.queue, &read, 1), 1);
    }
}

#[test]
fn many_at_once_end_once_each() {
    many(Vectors::new(SLUICE_WAIT_POLL));
}

#[test]
fn many_at_once_end_once_each_asleep() {
    many(Vectors::new(SLUICE_WAIT_EVENT));
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let v = Vectors::new(SLUICE_WAIT_POLL);
    let stand = support::Stand::new();
    let a = v.run(0, 0, 0, 64);
    let (list, queue) = (a.as_ptr(), v.queue);
    let mut none: *mut sluice_vector_queue = null_mut();
    let device = v.device;
    expect!(sluice_vector_queue_create(null(), null(), &mut none), EINVAL, "`device`");
    expect!(sluice_vector_queue_create(device, null(), null_mut()), EINVAL, "`queue`");
    expect!(
        sluice_vector_queue_create(stand.device, null(), &mut none),
        EOPNOTSUPP,
        "open-channel"
    );
    let wrong = options!(sluice_vector_queue_options { depth: 65_535 });
    expect!(sluice_vector_queue_create(device, &wrong, &mut none), EINVAL, "depth = 65535");
    let wrong = options!(sluice_vector_queue_options { wait: SLUICE_WAIT_HYBRID });
    expect!(sluice_vector_queue_create(device, &wrong, &mut none), EINVAL, "wait = 2");
    let wrong = options!(sluice_vector_queue_options { size: 12 });
    expect!(sluice_vector_queue_create(device, &wrong, &mut none), EINVAL, "sizeof");
    expect!(sluice_queue_create(device, null(), &mut null_mut()), EOPNOTSUPP, "target");
    let mut geometry = options!(sluice_vector_geometry {});
    expect!(sluice_vector_get_geometry(null(), &mut geometry), EINVAL, "`device`");
    expect!(sluice_vector_get_geometry(device, null_mut()), EINVAL, "`geometry`");
    expect!(sluice_vector_get_geometry(stand.device, &mut geometry), EOPNOTSUPP, "open-channel");
    geometry.size = 0;
    expect!(sluice_vector_get_geometry(device, &mut geometry), EINVAL, "sizeof");
    expect!(sluice_vector_address(device, 0, 0, 0, 0, null_mut()), EINVAL, "`address`");
    expect!(sluice_vector_address(stand.device, 0, 0, 0, 0, &mut 0), EOPNOTSUPP, "open-channel");
    expect!(sluice_vector_get_chunks(device, 0, 1, null_mut()), EINVAL, "`chunks`");
    // SAFETY: all-zero bytes are a valid value of the struct.
    let mut chunk: sluice_chunk = unsafe { std::mem::zeroed() };
    expect!(sluice_vector_get_chunks(device, 192, 1, &mut chunk), ERANGE, "192");
    expect!(sluice_vector_get_chunks(device, u64::MAX, 2, &mut chunk), ERANGE, "chunks");
    expect!(sluice_vector_get_chunks(stand.device, 0, 1, &mut chunk), EOPNOTSUPP, "open-channel");

    let failed = null_mut();
    expect!(sluice_vector_read(null_mut(), list, 1, v.buffer, 0, failed), EINVAL, "`queue`");
    expect!(sluice_vector_read(queue, null(), 1, v.buffer, 0, failed), EINVAL, "`addresses`");
    for count in [0, 65, u32::MAX] {
        expect!(sluice_vector_read(queue, list, count, v.buffer, 0, failed), EINVAL, "count = ");
        expect!(sluice_vector_erase(queue, list, count, failed), EINVAL, "1 to 64");
    }
    expect!(sluice_vector_read(queue, list, 64, v.buffer, 512, failed), EINVAL, "ends inside");
    expect!(sluice_vector_read(queue, list, 1, v.buffer, 8, failed), EINVAL, "buffer_offset = 8");
    expect!(sluice_vector_read(queue, list, 1, v.buffer, u64::MAX - 511, failed), EINVAL, "inside");
    expect!(
        sluice_vector_read(queue, list, 1, null_mut(), 512, failed),
        EINVAL,
        "without a buffer"
    );
    expect!(sluice_vector_read(queue, list, 1, stand.buffer, 0, failed), EXDEV, "another device");
    expect!(sluice_vector_write(queue, list, 1, stand.buffer, 0, failed), EXDEV, "another device");
    expect!(sluice_vector_copy(queue, list, null(), 1, failed), EINVAL, "`targets`");
    let bad = [u64::MAX];
    let mut bits = 0;
    let answer = unsafe_read(&v, &bad);
    assert!(answer < 0, "an address outside the drive's geometry must fail: {answer}");
    expect!(sluice_vector_erase(queue, bad.as_ptr(), 1, &mut bits), ERANGE, "failed: 0x1");
    assert_eq!(bits, 1);

    // SAFETY: all-zero bytes are a valid value of the struct.
    let mut ended: sluice_vector_completion = unsafe { std::mem::zeroed() };
    let read = request(SLUICE_VECTOR_READ, &a[..1]);
    for (wrong, says) in [
        (sluice_vector_request { op: 9, ..read }, "op = 9"),
        (sluice_vector_request { op: 0, ..read }, "op = 0"),
        (sluice_vector_request { flags: 1, ..read }, "flags = 1"),
        (sluice_vector_request { reserved: 1, ..read }, "reserved = 1"),
        (sluice_vector_request { user_data: 1 << 63, ..read }, "below 2^63"),
        (sluice_vector_request { targets: list, ..read }, "no copy"),
        (
            sluice_vector_request { op: SLUICE_VECTOR_ERASE, buffer: v.buffer, ..read },
            "moves no data",
        ),
        (sluice_vector_request { op: SLUICE_VECTOR_ERASE, oob: v.buffer, ..read }, "moves no data"),
        (sluice_vector_request { oob: v.buffer, oob_offset: 4, ..read }, "oob_offset = 4"),
        (sluice_vector_request { oob_offset: 8, ..read }, "without a buffer"),
    ] {
        expect!(sluice_vector_run(queue, &wrong, &mut ended), EINVAL, says);
        expect!(sluice_vector_submit(queue, &wrong, 1), EINVAL, says);
    }
    expect!(sluice_vector_run(queue, null(), &mut ended), EINVAL, "`request`");
    expect!(sluice_vector_run(queue, &read, null_mut()), EINVAL, "`completion`");
    expect!(sluice_vector_submit(queue, null(), 1), EINVAL, "`requests`");
    expect!(sluice_vector_submit(null_mut(), &read, 1), EINVAL, "`queue`");
    expect!(sluice_vector_reap(queue, null_mut(), 1), EINVAL, "`completions`");
    expect!(sluice_vector_wait(queue, null_mut(), 1, 1, 0), EINVAL, "`completions`");
    expect!(sluice_vector_wait(queue, &mut ended, 0, 0, 0), EINVAL, "room = 0");
    expect!(sluice_vector_outstanding(null()), EINVAL, "`queue`");
    // Valid commands are accepted, and the rest is returned.
    let two = [read, sluice_vector_request { op: 9, ..read }];
    // SAFETY: the pointers are to live objects, or NULL.
    unsafe {
        assert_eq!(sluice_vector_submit(queue, two.as_ptr(), 2), 1);
        assert_eq!(sluice_vector_wait(queue, &mut ended, 1, 1, SLUICE_TIMEOUT_INFINITE), 1);
        assert_eq!(sluice_vector_submit(queue, null(), 0), 0);
        assert_eq!(sluice_vector_queue_destroy(null_mut()), 0);
    }
    assert_eq!((ended.error, ended.failed), (-libc::ENODATA, 1));
}

/// A call from a second thread fails while another thread is inside the queue.
#[test]
fn a_second_thread_is_refused_while_one_is_inside() {
    let v = Vectors::new(SLUICE_WAIT_POLL);
    let queue = v.queue as usize;
    let lists: Vec<u64> = v.run(0, 0, 0, 1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let queue = queue as *mut sluice_vector_queue;
                // SAFETY: the pointers are to live objects.
                let answer = unsafe {
                    sluice_vector_read(queue, lists.as_ptr(), 1, null_mut(), 0, null_mut())
                };
                assert!([-libc::ENODATA, -libc::EBUSY].contains(&answer), "{answer}");
            }
        });
        let begin = std::time::Instant::now();
        let refused = loop {
            // SAFETY: as above.
            let answer = unsafe { sluice_vector_outstanding(v.queue) };
            if answer == -libc::EBUSY || begin.elapsed().as_secs() > 20 {
                break answer;
            }
        };
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(refused, -libc::EBUSY);
        assert!(last_error().contains("one thread at a time"), "{}", last_error());
    });
}

//! The calls against a model: with every kind of handle, reads return the data written last.
//!
//! Queues, schedulers, lanes, caches, wait modes and kinds of memory are chosen at random. The
//! handle is destroyed repeatedly and created with other options, which must not lose data. A
//! failing seed is printed; `SLUICE_SEED=n` replays it.

// guarantee: S-14

use crate::harness;

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::null_mut;

use controller::PersonalityKind;
use rng::Rng;
use sluice_c::*;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;

/// A call that must succeed.
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: pointers are to live objects and to memory of this test.
        let answer = unsafe { $call };
        assert!(answer >= 0, "{}: {} ({answer})", stringify!($call), last_error());
        answer
    }};
}

fn last_error() -> String {
    // SAFETY: the text is valid until this thread's next failure.
    unsafe { CStr::from_ptr(sluice_last_error()) }.to_string_lossy().into_owned()
}

/// Returns a struct with its size; all other members are zero.
macro_rules! sized {
    ($of:ty) => {{
        // SAFETY: all-zero bytes are a valid value of every struct of the header.
        let mut value: $of = unsafe { std::mem::zeroed() };
        value.size = size_of::<$of>();
        value
    }};
}

/// Kind of the opened device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    File,
    Drive,
    /// A `pblk` with two shards, from a scenario with an image.
    Target,
}

const SCENARIO: &str = "[drive]\npreset = \"femu-default\"\ncell = \"mlc\"\npaired_page_distance = 2\n\
    geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }\n\
    personality = \"open-channel\"\ndata = \"file\"\npath = \"drive.img\"\n\
    [target]\nkind = \"pblk\"\nover_provisioning = 0.3\n";

struct Run {
    rng: Rng,
    device: *mut sluice_device,
    on: On,
    path: CString,
    queues: Vec<*mut sluice_queue>,
    poller: *mut sluice_poller,
    handle: *mut sluice_handle,
    buffer: *mut sluice_buffer,
    sector: u64,
    model: Vec<u8>,
    /// Number of calls of the selector; the callback's argument.
    asked: Box<u64>,
}

unsafe extern "C" fn select(arg: *mut c_void, op: u32, lba: u64, _: u32, queues: usize) -> usize {
    // SAFETY: `asked` of the run, which outlives its handles; calls are serial.
    unsafe { *arg.cast::<u64>() += 1 };
    assert!(op >= 1);
    lba as usize % (2 * queues)
}

const BUFFER_BLOCKS: usize = 64;
/// Queue depths; 0 selects the device's depth.
const DEPTHS: [u32; 4] = [0, 1, 7, 300];

/// Location of a segment of a transfer.
#[derive(Clone, Copy, Debug)]
enum Segment {
    Buffer { at: usize, len: usize },
    Memory { at: usize, len: usize },
}

fn vector(buffer: *mut u8, memory: &mut [u8], segments: &[Segment]) -> Vec<libc::iovec> {
    let segments = segments.iter().map(|segment| match *segment {
        Segment::Buffer { at, len } => (buffer.wrapping_add(at), len),
        Segment::Memory { at, len } => (memory.as_mut_ptr().wrapping_add(at), len),
    });
    segments.map(|(at, iov_len)| libc::iovec { iov_base: at.cast(), iov_len }).collect()
}

impl Run {
    /// Starts a run on the file or scenario at `path`, or on a new drive.
    fn new(seed: u64, on: On, path: &Path) -> Run {
        let mut run = Run {
            rng: Rng::new(seed),
            device: null_mut(),
            on,
            path: CString::new(path.to_str().unwrap()).unwrap(),
            queues: Vec::new(),
            poller: null_mut(),
            handle: null_mut(),
            buffer: null_mut(),
            sector: 0,
            model: vec![0; BLOCKS as usize * BLOCK],
            asked: Box::new(0),
        };
        run.open();
        run.make();
        run
    }

    fn open(&mut self) {
        let mut options = sized!(sluice_open_options);
        match self.on {
            On::File => {
                if self.rng.chance(0.2) {
                    options.flags = SLUICE_OPEN_BUFFERED;
                }
                options.queue_depth = DEPTHS[self.rng.below(4) as usize];
            }
            On::Target => options.queues = 2,
            On::Drive => {}
        }
        if self.on == On::Drive {
            self.device =
                Box::into_raw(sluice_device::from_device(harness::drive(PersonalityKind::Block)));
        } else {
            let path = self.path.as_ptr();
            ok!(sluice_open_version(SLUICE_VERSION, path, &options, &mut self.device));
        }
        let mut info = sized!(sluice_device_info);
        ok!(sluice_device_get_info(self.device, &mut info));
        assert!(info.sectors * u64::from(info.sector_bytes) >= BLOCKS * BLOCK as u64);
        let kind = match self.on {
            On::File => SLUICE_KIND_FILE,
            On::Drive => SLUICE_KIND_DRIVE,
            On::Target => SLUICE_KIND_TARGET,
        };
        assert_eq!(info.kind, kind);
        self.sector = info.sector_bytes.into();
        ok!(sluice_buffer_create(self.device, BUFFER_BLOCKS * BLOCK, &mut self.buffer));
    }

    /// Closes the device, after its objects were destroyed.
    fn close(&mut self) {
        ok!(sluice_close(self.device));
        // SAFETY: no call uses the buffer any more.
        unsafe { sluice_buffer_destroy(self.buffer) };
    }

    /// Creates queues and a handle over them with random options.
    fn make(&mut self) {
        let rng = &mut self.rng;
        let watched = rng.chance(0.2);
        let shared = watched || rng.chance(0.4);
        let names = [c"none", c"deadline", c"kyber", c"fair", c"priority"];
        let scheduler = rng.chance(0.4).then(|| names[rng.below(5) as usize]);
        // SAFETY: all-zero bytes are a valid value.
        let mut group: sluice_group = unsafe { std::mem::zeroed() };
        group.group = 3;
        group.weight = if scheduler == Some(c"fair") { 200 } else { 0 };
        group.priority = if scheduler == Some(c"priority") { 2 } else { 0 };
        group.writes_per_sec = if rng.chance(0.3) { 100_000 } else { 0 };
        let silent = self.on == On::Drive && rng.chance(0.3);
        let most = if self.on == On::Target { 2 } else { 3 };
        for _ in 0..1 + rng.below(most) {
            let mut options = sized!(sluice_queue_options);
            options.flags = if shared { SLUICE_QUEUE_SHARED } else { 0 };
            if self.on == On::Drive {
                options.flags |= if silent { SLUICE_QUEUE_NO_INTERRUPTS } else { 0 };
                options.depth = DEPTHS[rng.below(3) as usize];
            }
            if let Some(name) = scheduler {
                options.scheduler = name.as_ptr();
                (options.groups, options.group_count) = (&group, 1);
                options.device_depth = [0, 1, 4][rng.below(3) as usize];
            }
            let mut queue = null_mut();
            ok!(sluice_queue_create(self.device, &options, &mut queue));
            self.queues.push(queue);
        }
        if watched {
            let mut options = sized!(sluice_poller_options);
            options.period = rng.below(3) as u32;
            options.period_ns = if options.period == SLUICE_PERIOD_FIXED { 20_000 } else { 0 };
            ok!(sluice_poller_create(self.device, &options, &mut self.poller));
            for queue in &self.queues {
                ok!(sluice_poller_watch(self.poller, *queue));
            }
        }
        let mut options = sized!(sluice_handle_options);
        options.wait = rng.below(3) as u32;
        if silent && !watched && options.wait == SLUICE_WAIT_EVENT {
            let queue = self.queues[0];
            // SAFETY: the pointers are to live objects.
            let refused = unsafe { sluice_handle_create(queue, &options, &mut self.handle) };
            assert_eq!(refused, -libc::EINVAL, "no interrupt would wake the handle");
            assert!(last_error().contains("SLUICE_QUEUE_NO_INTERRUPTS"), "{}", last_error());
            options.wait = SLUICE_WAIT_POLL;
        }
        options.group = if scheduler.is_some() { 3 } else { 0 };
        if rng.chance(0.5) {
            options.cache_bytes = [64, 100, 1000][rng.below(3) as usize] * BLOCK as u64;
            options.cache_flags = rng.below(8) as u32;
            options.cache_depth = [0, 3][rng.below(2) as usize];
        }
        let several = self.queues.len() > 1;
        options.selector = if several { rng.below(4) as u32 } else { 0 };
        match options.selector {
            SLUICE_SELECT_BY_SIZE => options.select_sectors = 16,
            SLUICE_SELECT_CALLBACK => {
                options.select = Some(select);
                options.select_arg = std::ptr::from_mut(&mut *self.asked).cast();
            }
            _ => {}
        }
        if several {
            let (queues, count) = (self.queues.as_ptr(), self.queues.len());
            ok!(sluice_handle_create_mq(queues, count, &options, &mut self.handle));
        } else {
            ok!(sluice_handle_create(self.queues[0], &options, &mut self.handle));
        }
    }

    fn take_apart(&mut self) {
        let asked = *self.asked;
        ok!(sluice_handle_destroy(self.handle));
        assert!(asked <= *self.asked);
        ok!(sluice_poller_destroy(self.poller));
        (self.handle, self.poller) = (null_mut(), null_mut());
        for queue in self.queues.drain(..) {
            ok!(sluice_queue_destroy(queue));
        }
    }

    /// Returns the first sector and the number of sectors of a request.
    fn range(&mut self, most: u64) -> (u64, u64) {
        let all = BLOCKS * BLOCK as u64 / self.sector;
        let sectors = 1 + self.rng.below(most.min(all));
        (self.rng.below(all - sectors + 1), sectors)
    }

    fn bytes(&self, lba: u64, sectors: u64) -> std::ops::Range<usize> {
        (lba * self.sector) as usize..((lba + sectors) * self.sector) as usize
    }

    fn data(&self) -> *mut u8 {
        // SAFETY: the buffer is live.
        unsafe { sluice_buffer_data(self.buffer) }.cast()
    }

    /// Returns the bytes of the buffer from `at`.
    fn buffered(&self, at: usize, len: usize) -> Vec<u8> {
        // SAFETY: the range is inside the buffer, and no command is in flight.
        unsafe { std::slice::from_raw_parts(self.data().add(at), len) }.to_vec()
    }

    fn fill(&mut self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let first = self.rng.next_u64();
        for (i, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = first.wrapping_add(i as u64).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        // SAFETY: the range is inside the buffer, and no command is in flight.
        unsafe { self.data().add(at).copy_from_nonoverlapping(bytes.as_ptr(), len) };
        bytes
    }

    fn one_after_the_other(&mut self) {
        let most = (BUFFER_BLOCKS / 2 * BLOCK) as u64 / self.sector;
        let (lba, sectors) = self.range(most);
        let range = self.bytes(lba, sectors);
        let at = 512 * self.rng.below(64) as usize;
        let (count, offset) = (sectors as u32, range.start as u64);
        match self.rng.below(10) {
            0 => {
                self.fill(0, 0);
                ok!(sluice_read(self.handle, lba, count, self.buffer, at as u64));
                assert!(self.buffered(at, range.len()) == self.model[range], "sluice_read");
            }
            1 => {
                let flags = if self.rng.chance(0.2) { SLUICE_FUA } else { 0 };
                let bytes = self.fill(at, range.len());
                ok!(sluice_write(self.handle, lba, count, self.buffer, at as u64, flags));
                self.model[range].copy_from_slice(&bytes);
            }
            2 => {
                let mut into = vec![0; range.len()];
                let read =
                    ok!(sluice_pread(self.handle, into.as_mut_ptr().cast(), into.len(), offset));
                assert!(read as usize == range.len() && into == self.model[range], "sluice_pread");
            }
            3 => {
                let bytes = self.fill(0, range.len());
                ok!(sluice_pwrite(self.handle, bytes.as_ptr().cast(), bytes.len(), offset));
                self.model[range].copy_from_slice(&bytes);
            }
            4 => {
                // SAFETY: `at` is inside the buffer.
                let memory = unsafe { self.data().add(at) }.cast::<c_void>();
                ok!(sluice_pread(self.handle, memory, range.len(), offset));
                assert!(
                    self.buffered(at, range.len()) == self.model[range],
                    "sluice_pread into a buffer"
                );
            }
            5 => {
                let bytes = self.fill(at, range.len());
                // SAFETY: `at` is inside the buffer.
                let memory = unsafe { self.data().add(at) }.cast::<c_void>();
                ok!(sluice_pwrite(self.handle, memory, range.len(), offset));
                self.model[range].copy_from_slice(&bytes);
            }
            6 => {
                let (mut memory, segments) = self.segments(range.len());
                let vector = vector(self.data(), &mut memory, &segments);
                ok!(sluice_preadv(self.handle, vector.as_ptr(), vector.len() as i32, offset));
                let mut read = Vec::new();
                for segment in &segments {
                    match *segment {
                        Segment::Buffer { at, len } => read.extend(self.buffered(at, len)),
                        Segment::Memory { at, len } => read.extend(&memory[at..at + len]),
                    }
                }
                assert!(read == self.model[range], "sluice_preadv {segments:?}");
            }
            7 => {
                let (mut memory, segments) = self.segments(range.len());
                let mut written = Vec::new();
                for segment in &segments {
                    match *segment {
                        Segment::Buffer { at, len } => written.extend(self.fill(at, len)),
                        Segment::Memory { at, len } => {
                            memory[at..at + len].fill(self.rng.next_u64() as u8);
                            written.extend(&memory[at..at + len]);
                        }
                    }
                }
                let vector = vector(self.data(), &mut memory, &segments);
                let count = vector.len() as i32;
                let done = ok!(sluice_pwritev(self.handle, vector.as_ptr(), count, offset));
                assert_eq!(done as usize, range.len());
                self.model[range].copy_from_slice(&written);
            }
            8 => {
                ok!(sluice_discard(self.handle, lba, count));
                self.model[range].fill(0);
            }
            _ => {
                let flags = if self.rng.chance(0.5) { SLUICE_DEALLOCATE } else { 0 };
                ok!(sluice_write_zeroes(self.handle, lba, count, flags));
                self.model[range].fill(0);
            }
        }
    }

    /// Returns segments of `bytes` bytes in total, in the buffer and in the returned memory. Some
    /// are sectors that the device can reach directly, others are not.
    fn segments(&mut self, bytes: usize) -> (Vec<u8>, Vec<Segment>) {
        let mut segments = Vec::new();
        let (mut left, mut used, mut begun) = (bytes, 0, 0);
        while left > 0 {
            let len = match self.rng.below(4) {
                0 => 1 + self.rng.below(700) as usize,
                1 => self.sector as usize,
                2 => 0,
                _ => self.sector as usize * (1 + self.rng.below(40) as usize),
            };
            let len = len.min(left);
            let gap = if self.rng.chance(0.5) { 0 } else { 512 };
            let at = used + gap + if self.rng.chance(0.1) { 8 } else { 0 };
            if self.rng.chance(0.7) && at + len <= BUFFER_BLOCKS * BLOCK {
                segments.push(Segment::Buffer { at, len });
                used = (at + len).next_multiple_of(512);
            } else {
                segments.push(Segment::Memory { at: begun, len });
                begun += len;
            }
            left -= len;
        }
        (vec![0; begun], segments)
    }

    /// Submits up to as many requests as the buffer has blocks; no two of them overlap.
    fn many_at_once(&mut self) {
        let mut wanted: Vec<(sluice_request, Option<Vec<u8>>)> = Vec::new();
        let mut taken = vec![false; BLOCKS as usize];
        let sectors = (BLOCK as u64 / self.sector) as u32;
        for place in 0..1 + self.rng.below(BUFFER_BLOCKS as u64) {
            let block = self.rng.below(BLOCKS);
            if std::mem::replace(&mut taken[block as usize], true) {
                continue;
            }
            // SAFETY: all-zero bytes are a valid value.
            let mut request: sluice_request = unsafe { std::mem::zeroed() };
            request.op = if self.rng.chance(0.5) { SLUICE_OP_READ } else { SLUICE_OP_WRITE };
            (request.lba, request.sectors) = (block * u64::from(sectors), sectors);
            (request.buffer, request.buffer_offset) = (self.buffer, place * BLOCK as u64);
            request.user_data = wanted.len() as u64 | 1 << 60;
            let write = request.op == SLUICE_OP_WRITE;
            let bytes = write.then(|| self.fill(place as usize * BLOCK, BLOCK));
            wanted.push((request, bytes));
        }
        let requests: Vec<sluice_request> = wanted.iter().map(|(request, _)| *request).collect();
        let (mut begun, mut ended) = (0, vec![false; wanted.len()]);
        let mut left = wanted.len();
        while left > 0 {
            let rest = &requests[begun..];
            // SAFETY: the requests and their buffer are live.
            let answer = unsafe { sluice_submit(self.handle, rest.as_ptr(), rest.len()) };
            assert!(answer >= 0 || answer == -libc::EAGAIN, "{}", last_error());
            begun += answer.max(0) as usize;
            // SAFETY: all-zero bytes are a valid value.
            let mut came: [sluice_completion; 5] = unsafe { std::mem::zeroed() };
            let count = match self.rng.chance(0.5) {
                true => ok!(sluice_reap(self.handle, came.as_mut_ptr(), came.len())),
                false => {
                    let min = 1 + self.rng.below(5) as usize;
                    let timeout =
                        if self.rng.chance(0.5) { SLUICE_TIMEOUT_INFINITE } else { 50_000 };
                    ok!(sluice_wait(self.handle, came.as_mut_ptr(), came.len(), min, timeout))
                }
            };
            for completion in &came[..count as usize] {
                assert_eq!(completion.error, 0);
                let index = (completion.user_data & !(1 << 60)) as usize;
                assert!(!std::mem::replace(&mut ended[index], true), "a request completed twice");
                left -= 1;
            }
        }
        assert_eq!(ok!(sluice_handle_outstanding(self.handle)), 0);
        for (request, bytes) in wanted {
            let range = self.bytes(request.lba, request.sectors.into());
            match bytes {
                Some(bytes) => self.model[range].copy_from_slice(&bytes),
                None => {
                    let read = self.buffered(request.buffer_offset as usize, BLOCK);
                    assert!(read == self.model[range], "block {}", request.lba);
                }
            }
        }
    }

    fn stats(&self) -> sluice_handle_stats {
        let mut stats = sized!(sluice_handle_stats);
        ok!(sluice_handle_get_stats(self.handle, &mut stats));
        stats
    }
}

fn case(seed: u64, on: On) {
    let folder = tempfile::tempdir().unwrap();
    let path = match on {
        On::File | On::Drive => folder.path().join("file.img"),
        On::Target => folder.path().join("drive.toml"),
    };
    match on {
        On::File => std::fs::File::create(&path).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap(),
        On::Target => std::fs::write(&path, SCENARIO).unwrap(),
        On::Drive => {}
    }
    let mut run = Run::new(seed, on, &path);
    for _ in 0..6 {
        for _ in 0..25 {
            match run.rng.below(4) {
                0 => run.many_at_once(),
                1 if run.rng.chance(0.1) => {
                    ok!(sluice_flush(run.handle));
                    assert_eq!(run.stats().cache_dirty, 0);
                }
                _ => run.one_after_the_other(),
            }
        }
        let stats = run.stats();
        assert!(stats.reads > 0 && stats.writes > 0 && stats.errors == 0 && stats.outstanding == 0);
        run.take_apart();
        // Destroying the handle must have written back its cached data.
        if on == On::File {
            assert!(std::fs::read(&path).unwrap() == run.model, "contents of the file");
        }
        if on == On::Target {
            run.close();
            run.open();
        }
        run.make();
        let mut all = vec![0u8; run.model.len()];
        ok!(sluice_pread(run.handle, all.as_mut_ptr().cast(), all.len(), 0));
        assert!(all == run.model, "data read by the next handle");
    }
    run.take_apart();
    run.close();
}

fn cases(on: On) {
    let number = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("SLUICE_CASES").unwrap_or(6) + 1,
    };
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| case(seed, on)) {
            eprintln!("seed {seed} fails; replay it with SLUICE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn what_is_read_is_what_was_written_last_on_a_file() {
    cases(On::File);
}

#[test]
fn what_is_read_is_what_was_written_last_on_a_drive() {
    cases(On::Drive);
}

#[test]
fn what_is_read_is_what_was_written_last_on_a_target_that_is_opened_again() {
    cases(On::Target);
}

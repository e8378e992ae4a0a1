//! `sluice::open`: every form, what is refused, and what survives closing and opening again.

// guarantee: A-01, A-02, A-03, A-15, B-21, B-26, B-27, B-35, B-36, B-44

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use driver::DoorbellUse;
use scenario::Scenario;
use sluice_open::{FileOptions, OpenOptions, TargetOpenError, open_scenario};
use user_io::{DeviceKind, Handle, IoDevice, IoError, Payload, QueueConfig, Request, WaitMode};

const SECTOR: usize = 4096;

/// Small enough to be filled in no time: 8 parallel units with paired pages.
const GEOMETRY: &str = "preset = \"femu-default\"\ncell = \"mlc\"\npaired_page_distance = 2\n\
    geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }\n";

struct TestDir {
    dir: tempfile::TempDir,
}

impl TestDir {
    fn new() -> TestDir {
        TestDir { dir: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a scenario, and says how it is opened.
    fn scenario(&self, text: &str) -> String {
        let file = self.path("drive.toml");
        std::fs::write(&file, text).expect("a scenario");
        file.to_str().expect("a name").to_owned()
    }
}

fn open(what: &str) -> Result<IoDevice, TargetOpenError> {
    sluice_open::open(what, &OpenOptions::default())
}

fn handle(device: &IoDevice) -> Handle<user_io::Queue> {
    let queue = device.create_queue(QueueConfig::default()).expect("a queue");
    Handle::new(device, queue).expect("a handle")
}

/// Returns the contents of sector `lba` after its `round`th write.
fn byte(lba: u64, round: u8) -> u8 {
    (lba as u8).wrapping_mul(31) ^ round
}

fn write<D: block::BlockDevice>(
    handle: &mut Handle<D>,
    device: &IoDevice,
    sectors: impl Iterator<Item = u64>,
    round: u8,
) {
    let bytes = device.limits().sector_bytes as usize;
    let data = device.buffer(bytes).expect("memory");
    for lba in sectors {
        data.fill(0, bytes, byte(lba, round));
        handle.write(lba, &data, false).expect("a write");
    }
}

fn check<D: block::BlockDevice>(
    handle: &mut Handle<D>,
    device: &IoDevice,
    sectors: impl Iterator<Item = u64>,
    round: u8,
) {
    let bytes = device.limits().sector_bytes as usize;
    let data = device.buffer(bytes).expect("memory");
    let mut back = vec![0; bytes];
    for lba in sectors {
        data.fill(0, bytes, 0xee);
        handle.read(lba, &data).expect("a read");
        data.read(0, &mut back);
        assert!(back.iter().all(|b| *b == byte(lba, round)), "sector {lba}: {}", back[0]);
    }
}

/// Writes, flushes and checks sectors in a thread for each core, which has those of its own.
fn write_on_cores(device: &IoDevice, cores: u64, sectors: Range<u64>, round: u8) {
    std::thread::scope(|threads| {
        for core in 0..cores {
            let (mut handle, sectors) = (handle(device), sectors.clone());
            threads.spawn(move || {
                let own = || sectors.clone().filter(|lba| lba % cores == core);
                write(&mut handle, device, own(), round);
                handle.flush().expect("a flush");
                check(&mut handle, device, own(), round);
            });
        }
    });
}

/// A drive whose controller fails is reset by its driver, which watches its registers.
#[test]
fn a_drive_with_registers_is_reset_when_its_controller_fails() {
    let text = "[drive]\npreset = \"femu-default\"\ngeometry = { chunks = 16 }\n\
        controller = { registers = true }\n";
    let scenario = Scenario::parse(Path::new("s.toml"), text).unwrap();
    let (device, control) = open_scenario(&scenario, None, &OpenOptions::default()).unwrap();
    let mut reads = handle(&device);
    let buffer = device.buffer(SECTOR).unwrap();
    reads.read(0, &buffer).unwrap();
    control.inject_fault(None, controller::Fault::ControllerFatal).unwrap();
    let lost = reads.read(0, &buffer).unwrap_err();
    assert!(!lost.is_removed(), "{lost}");
    reads.read(0, &buffer).unwrap();
}

#[test]
fn null_is_as_large_and_as_deep_as_it_was_asked_for() {
    let device = open("null").unwrap();
    assert_eq!((device.kind(), device.limits().bytes()), (DeviceKind::Null, 1 << 40));
    let options = OpenOptions { depth: Some(2), queues: Some(9), ..OpenOptions::default() };
    let device = sluice_open::open("null:1M", &options).unwrap();
    assert_eq!((device.limits().bytes(), device.limits().queue_depth), (1 << 20, 2));
    let mut handle = handle(&device);
    for tag in 0..2 {
        handle.submit(Request::read(0, 8, Payload::BitBucket, tag)).unwrap();
    }
    let third = handle.submit(Request::read(0, 8, Payload::BitBucket, 2));
    assert!(matches!(third, Err(IoError::Busy(_))), "{third:?}");
    assert!(handle.wait().unwrap().status.is_success());
}

#[test]
fn a_file_keeps_what_was_written_and_is_opened_as_asked() {
    let place = TestDir::new();
    let path = place.path("disk.img");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let what = path.to_str().unwrap();
    let file = FileOptions { direct: false, sector_bytes: Some(4096), ..FileOptions::default() };
    let options = OpenOptions { file, depth: Some(8), ..OpenOptions::default() };
    let device = sluice_open::open(what, &options).unwrap();
    assert_eq!((device.kind(), device.limits().queue_depth), (DeviceKind::File, 8));
    let mut first = handle(&device);
    write(&mut first, &device, 0..256, 1);
    first.flush().unwrap();
    drop((first, device));

    let read_only = OpenOptions { read_only: true, ..options };
    let device = sluice_open::open(what, &read_only).unwrap();
    let mut again = handle(&device);
    check(&mut again, &device, 0..256, 1);
    let data = device.buffer(SECTOR).unwrap();
    let refused = again.write(0, &data, false).unwrap_err();
    assert!(refused.status().is_some(), "{refused}");
}

#[test]
fn what_cannot_be_opened_is_said_with_what_can() {
    let place = TestDir::new();
    let dir = place.path("dir.toml");
    std::fs::create_dir(&dir).unwrap();
    let dir = dir.to_str().unwrap().to_owned();
    let gone = place.path("gone.img").to_str().unwrap().to_owned();
    for (what, says) in [
        (dir.as_str(), "is a directory"),
        ("/tmp", "is a directory"),
        (gone.as_str(), "gone.img"),
        ("/no/such/scenario.toml#a", "/no/such/scenario.toml"),
        ("vfio:somewhere", "vfio:0000:01:00.0"),
    ] {
        let error = open(what).unwrap_err();
        let said = error.to_string();
        assert!(error.is_usage() && said.contains(says), "{what}: {said}");
        assert!(said.contains("null:SIZE"), "{what}: {said}");
    }
    // No machine has that many domains.
    let error = open("vfio:7ffffff0:01:00.0").unwrap_err();
    assert!(matches!(error, TargetOpenError::Controller(_)) && error.is_usage());
    assert!(error.to_string().contains("sluice device list"), "{error}");
    let error = open("/dev/null").unwrap_err();
    assert!(matches!(error, TargetOpenError::Device(_)) && error.to_string().contains("/dev/null"));
    let error = open("sluice:///run/x.sock#log").unwrap_err();
    let said = error.to_string();
    assert!(
        matches!(error, TargetOpenError::Device(_)) && said.contains("no server at /run/x.sock"),
        "{said}"
    );
    let wrong = place.scenario("[drive]\npreset = \"no such\"\n");
    assert!(matches!(open(&wrong), Err(TargetOpenError::Scenario(_))));
}

#[test]
fn options_that_cannot_be_honoured_are_refused() {
    let place = TestDir::new();
    let block = place.scenario(&format!("[drive]\nname = \"d\"\n{GEOMETRY}"));
    let plain = OpenOptions::default();
    for (what, options, option) in [
        ("null", OpenOptions { read_only: true, ..plain.clone() }, "read_only"),
        ("null", OpenOptions { drive_core: Some(0), ..plain.clone() }, "drive_core"),
        ("null", OpenOptions { doorbells: DoorbellUse::Registers, ..plain.clone() }, "doorbells"),
        ("null", OpenOptions { depth: Some(0), ..plain.clone() }, "depth"),
        ("sluice:///x", OpenOptions { read_only: true, ..plain.clone() }, "read_only"),
        (&block, OpenOptions { read_only: true, ..plain.clone() }, "read_only"),
        (&block, OpenOptions { doorbells: DoorbellUse::Registers, ..plain.clone() }, "doorbells"),
        (&block, OpenOptions { queues: Some(0), ..plain.clone() }, "queues"),
        (&block, OpenOptions { queues: Some(u16::MAX), ..plain.clone() }, "queues"),
        (&block, OpenOptions { depth: Some(0), ..plain.clone() }, "depth"),
        (&block, OpenOptions { depth: Some(u16::MAX), ..plain.clone() }, "depth"),
    ] {
        let error = sluice_open::open(what, &options).unwrap_err();
        let TargetOpenError::Option { option: named, .. } = &error else {
            panic!("{what}: {error}")
        };
        assert_eq!(*named, option, "{what}: {error}");
        assert!(error.is_usage());
    }
    let layered = format!("[drive]\n{GEOMETRY}[path]\nqueue_model = \"mq\"\ncores = 2\n");
    let queues = |queues| OpenOptions { queues: Some(queues), ..OpenOptions::default() };
    let error = sluice_open::open(&place.scenario(&layered), &queues(3)).unwrap_err();
    assert!(error.to_string().contains("1 to 2: each core"), "{error}");
    let bare = format!("[drive]\n{GEOMETRY}personality = \"open-channel\"\n");
    let filled = place.scenario(&format!("{bare}[precondition]\nfill = \"sequential\"\n"));
    let error = open(&filled).unwrap_err();
    assert!(error.to_string().contains("precondition"), "{error}");
    let shards = OpenOptions { queues: Some(2), ..plain };
    let mapped = place.scenario(&format!("{bare}device_l2p = true\n[target]\nkind = \"rrpc\"\n"));
    let error = sluice_open::open(&mapped, &shards).unwrap_err();
    assert!(error.to_string().contains("queues = 2"), "{error}");
}

#[test]
fn one_of_several_drives_is_named() {
    let place = TestDir::new();
    let drive = |name: &str, bytes: &str| {
        format!("[[drive]]\nname = \"{name}\"\npreset = \"nvme-null\"\ncapacity = \"{bytes}\"\n")
    };
    let what = place.scenario(&(drive("a", "64M") + &drive("b", "128M")));
    assert_eq!(open(&format!("{what}#b")).unwrap().limits().bytes(), 128 << 20);
    let device = open(&format!("{what}#a")).unwrap();
    assert_eq!((device.name(), device.limits().bytes()), ("a", 64 << 20));
    for asked in [what.clone(), format!("{what}#c")] {
        let error = open(&asked).unwrap_err();
        assert!(error.to_string().contains("#a, #b"), "{error}");
    }
}

/// A scenario whose drive has an image beside it.
fn imaged(place: &TestDir, keys: &str, rest: &str) -> String {
    let keys = format!("{GEOMETRY}{keys}data = \"file\"\npath = \"drive.img\"\n");
    place.scenario(&format!("[drive]\nname = \"d0\"\n{keys}{rest}"))
}

/// Opens, writes, closes without a flush, and opens again.
fn survives(what: &str, options: &OpenOptions, kind: DeviceKind) {
    let (closed, errors) = mpsc::channel();
    let options = OpenOptions { close_errors: Some(closed), ..options.clone() };
    for round in 0..3 {
        let device = sluice_open::open(what, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(device.kind(), kind);
        let mut handle = handle(&device);
        if round > 0 {
            check(&mut handle, &device, 0..300, round - 1);
        }
        write(&mut handle, &device, 0..300, round);
        check(&mut handle, &device, 0..300, round);
        if round == 1 {
            // Given up with writes under way, of what they find there.
            let data = device.buffer(SECTOR).unwrap();
            for lba in 0..16 {
                data.fill(0, SECTOR, byte(lba, round));
                let write = Request::write(lba, 1, data.payload(), lba);
                handle.submit(write).unwrap();
                handle.wait().unwrap();
                let write = Request::write(lba, 1, data.payload(), lba);
                handle.submit(write).unwrap();
                handle.poll();
                while handle.outstanding() > 0 && lba < 15 {
                    handle.wait();
                }
            }
            drop(handle);
            drop(data);
        }
    }
    let said: Vec<_> = errors.try_iter().map(|e| e.to_string()).collect();
    assert!(said.is_empty(), "{said:?}");
}

#[test]
fn a_drive_that_manages_its_flash_keeps_its_data() {
    let place = TestDir::new();
    let buffer = "write_buffer = { kind = \"volatile\", size = \"1M\" }\n";
    survives(&imaged(&place, buffer, ""), &OpenOptions::default(), DeviceKind::Drive);
}

#[test]
fn a_target_is_flushed_when_it_is_closed() {
    for (keys, target) in [
        ("", "[target]\nkind = \"pblk\"\n"),
        ("device_l2p = true\n", "[target]\nkind = \"rrpc\"\nover_provisioning = 0.3\n"),
    ] {
        let place = TestDir::new();
        let what = imaged(&place, &format!("personality = \"open-channel\"\n{keys}"), target);
        survives(&what, &OpenOptions::default(), DeviceKind::Target);
        let device = open(&what).unwrap();
        let only = device.create_queue(QueueConfig::default()).unwrap();
        let second = device.create_queue(QueueConfig::default()).unwrap_err();
        assert!(second.to_string().contains("1 queues"), "{second}");
        let mut first = Handle::new(&device, only).unwrap();
        for tag in 0..20 {
            first.submit(Request::write(tag, 1, Payload::BitBucket, tag)).unwrap();
        }
        drop(first);
        // The device is usable again, and completions of the previous handle are not delivered.
        let mut again = handle(&device);
        again.submit(Request::read(0, 1, Payload::BitBucket, 77)).unwrap();
        assert_eq!(again.wait().map(|done| done.tag), Some(77));
        assert_eq!((again.outstanding(), again.wait()), (0, None));
    }
}

/// The image of a target has its number of shards, or none, and another one is refused by both.
#[test]
fn an_image_is_refused_with_other_shards_than_its_own() {
    let target = "[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n";
    let with = |queues| OpenOptions { queues: Some(queues), ..OpenOptions::default() };
    for (own, says, others) in [(2, "2 shards", [1, 3, 4]), (1, "1 shard", [2, 3, 4])] {
        let place = TestDir::new();
        let what = imaged(&place, "personality = \"open-channel\"\n", target);
        let device = sluice_open::open(&what, &with(own)).unwrap();
        let mut first = handle(&device);
        write(&mut first, &device, 0..100, 2);
        first.flush().expect("a flush");
        drop((first, device));
        for queues in others {
            let error = sluice_open::open(&what, &with(queues)).unwrap_err();
            let says = format!("drive d0 has {says}, not {queues}: set target.shards = {own}");
            assert!(error.is_usage() && error.to_string().contains(&says), "{error}");
        }
        let device = sluice_open::open(&what, &with(own)).unwrap();
        check(&mut handle(&device), &device, 0..100, 2);
    }
}

#[test]
fn a_sharded_target_needs_only_one_of_its_queues() {
    let place = TestDir::new();
    let target = "[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n";
    let what = imaged(&place, "personality = \"open-channel\"\n", target);
    let two = OpenOptions { queues: Some(2), ..OpenOptions::default() };
    survives(&what, &two, DeviceKind::Target);

    // Several stripes: what one queue is asked is for both shards; and sleeping misses nothing.
    let device = sluice_open::open(&what, &two).unwrap();
    let mut first = handle(&device);
    first.set_wait(WaitMode::Interrupt).unwrap();
    check(&mut first, &device, 0..300, 2);
    let mut second = handle(&device);
    let left = AtomicUsize::new(2);
    std::thread::scope(|s| {
        let (device, left) = (&device, &left);
        // Each other's sectors need this one's polls until both are done.
        let done = |handle: &mut Handle<_>| {
            left.fetch_sub(1, Ordering::Relaxed);
            while left.load(Ordering::Relaxed) > 0 {
                handle.poll();
            }
        };
        let second = &mut second;
        s.spawn(move || {
            write(second, device, 300..600, 7);
            check(second, device, 300..600, 7);
            done(second);
        });
        write(&mut first, device, 0..300, 9);
        check(&mut first, device, 0..300, 9);
        done(&mut first);
    });
    let none = device.create_queue(QueueConfig::default()).unwrap_err();
    drop((first, second));
    assert!(device.create_queue(QueueConfig::default()).is_ok(), "{none}");
    drop(device);

    let three = OpenOptions { queues: Some(3), ..OpenOptions::default() };
    let error = sluice_open::open(&what, &three).unwrap_err();
    assert!(matches!(error, TargetOpenError::Stack(_)), "{error}");
    assert!(open(&what).is_err(), "it is not one that is not sharded");
    let device = sluice_open::open(&what, &two).unwrap();
    check(&mut handle(&device), &device, 0..300, 9);
    check(&mut handle(&device), &device, 300..600, 7);
}

/// A handle that sleeps does not depend on the shard of a handle that was dropped meanwhile.
#[test]
fn the_shard_of_a_dropped_handle_is_polled_by_one_that_sleeps() {
    let place = TestDir::new();
    let target = "[target]\nkind = \"pblk\"\nover_provisioning = 0.3\nshards = 2\n\
                  [path]\ncompletion = \"interrupt\"\n";
    let what = imaged(&place, "personality = \"open-channel\"\n", target);
    let device = open(&what).unwrap();
    for round in 0..20 {
        std::thread::scope(|s| {
            let (mut short, mut long) = (handle(&device), handle(&device));
            let device = &device;
            s.spawn(move || write(&mut short, device, 0..4 + round, 3));
            write(&mut long, device, 100..200, 5);
            check(&mut long, device, 100..200, 5);
        });
    }
}

#[test]
fn an_open_channel_drive_without_a_target_takes_vector_commands() {
    let place = TestDir::new();
    let what = place.scenario(&format!("[drive]\n{GEOMETRY}personality = \"open-channel\"\n"));
    let device = open(&what).unwrap();
    assert!(device.drive_info().is_some_and(|info| info.open_channel.is_some()));
    assert!(device.create_queue(QueueConfig::default()).is_err());
    let queue = device.vector_queue(QueueConfig::default()).unwrap();
    assert!(queue.max_sectors() > 0);
    device.destroy_vector_queue(queue);
}

#[test]
fn a_drive_is_preconditioned_and_can_be_looked_at() {
    let text = format!("[drive]\n{GEOMETRY}[precondition]\nfill = \"sequential\"\n");
    let scenario = Scenario::parse(Path::new("x.toml"), &text).unwrap();
    let (device, view) = open_scenario(&scenario, None, &OpenOptions::default()).unwrap();
    let mut handle = handle(&device);
    for tag in 0..50 {
        handle.submit(Request::read(tag, 1, Payload::BitBucket, tag)).unwrap();
        assert!(handle.wait().unwrap().status.is_success());
    }
    let stats = view.stats().expect("the drive answers");
    assert_eq!((stats.reads, stats.writes), (50, 0), "the filling is not counted");
    assert!(stats.media.is_some_and(|media| media.reads >= 1), "it had been filled");
    drop((handle, device));
    assert!(view.stats().is_some(), "the last answer is kept");
}

/// Each core of a block layer has a queue of its own, over a drive, a target and its shards. Four
/// threads write, flush and read; a core may wait for the completions that another core finds.
#[test]
fn a_block_layer_is_opened_with_a_queue_per_core() {
    let place = TestDir::new();
    let open_channel = format!("[drive]\n{GEOMETRY}personality = \"open-channel\"\n");
    let beneath = [
        ("drive", format!("[drive]\n{GEOMETRY}")),
        ("pblk", format!("{open_channel}[target]\nkind = \"pblk\"\n")),
        ("shards", format!("{open_channel}[target]\nkind = \"pblk\"\nshards = 2\n")),
        ("rrpc", format!("{open_channel}device_l2p = true\n[target]\nkind = \"rrpc\"\n")),
    ];
    for (name, drive) in beneath {
        for path in
            ["\"sq\"\ncores = 4", "\"mq\"\ncores = 4", "\"mq\"\ncores = 3\nstaging = \"global\""]
        {
            let layered = place.scenario(&format!("{drive}[path]\nqueue_model = {path}\n"));
            let device = open(&layered).unwrap_or_else(|error| panic!("{name} {path}: {error}"));
            assert_eq!(device.kind(), DeviceKind::Target);
            let cores = if path.contains("cores = 4") { 4 } else { 3 };
            write_on_cores(&device, cores, 0..cores * 40, 7);
            let error = device.create_queue(QueueConfig::default());
            assert!(error.is_ok(), "{name} {path}: the queues were returned");
        }
    }
}

/// Two targets of one drive, and a set of two drives, each with an image.
fn named_paths(place: &TestDir) -> String {
    let drive = |name: &str, rest: &str| {
        let image = place.path(&format!("{name}.img"));
        format!("[[drive]]\nname = \"{name}\"\n{GEOMETRY}data = \"file\"\npath = {image:?}\n{rest}")
    };
    let target = |name: &str, pus: &str| {
        format!("[[target]]\nname = \"{name}\"\ndrive = \"oc\"\nkind = \"pblk\"\npus = \"{pus}\"\n")
    };
    let path = |name: &str, over: &str, rest: &str| {
        format!("[[path]]\nname = \"{name}\"\nover = \"{over}\"\n{rest}")
    };
    let mq = "queue_model = \"mq\"\ncores = 2\n";
    [
        drive("oc", "personality = \"open-channel\"\n"),
        drive("a", ""),
        drive("b", ""),
        target("left", "0-3"),
        target("right", "4-7"),
        "[[set]]\nname = \"ab\"\nmembers = [\"a\", \"b\"]\nstripe = \"16K\"\n".into(),
        path("l", "left", ""),
        path("r", "right", mq),
        path("s", "ab", mq),
    ]
    .concat()
}

#[test]
fn named_paths_are_opened_by_name_and_keep_their_data() {
    let place = TestDir::new();
    let what = place.scenario(&named_paths(&place));
    let (send, failed) = mpsc::channel();
    let options = OpenOptions { close_errors: Some(send), ..OpenOptions::default() };
    for (round, name) in [(3, "l"), (5, "r"), (7, "s")] {
        let device = sluice_open::open(&format!("{what}#{name}"), &options).unwrap();
        assert_eq!((device.kind(), device.name()), (DeviceKind::Target, name));
        let mut handle = handle(&device);
        write(&mut handle, &device, 0..300, round);
        handle.flush().expect("a flush");
    }
    // Each is opened again, alone; of the set, both drives are there.
    for (round, name) in [(7, "s"), (3, "l"), (5, "r")] {
        let device = sluice_open::open(&format!("{what}#{name}"), &options).unwrap();
        check(&mut handle(&device), &device, 0..300, round);
    }
    let scenario = Scenario::load(Path::new(&what)).unwrap();
    let (device, view) = open_scenario(&scenario, Some("s"), &options).unwrap();
    write_on_cores(&device, 2, 1_000..1_000 + 2 * 200, 9);
    let stats = view.all_stats().expect("an answer");
    let written: Vec<u64> = stats.iter().map(|(_, drive)| drive.bytes_written).collect();
    assert_eq!(written.iter().sum::<u64>(), 400 * SECTOR as u64);
    assert!(written.iter().all(|bytes| *bytes > 150 * SECTOR as u64), "{written:?}");
    assert!(stats.iter().map(|(name, _)| name).eq(["a", "b"]), "{stats:?}");
    drop(device);
    assert_eq!(failed.try_iter().map(|e| e.to_string()).collect::<Vec<_>>(), [""; 0]);
}

/// A stripe of two SATA drives, and a third drive.
fn sata_drives(path: &str) -> String {
    let drive = |i| format!("[[drive]]\nname = \"disk{i}\"\nkind = \"ahci\"\ncapacity = \"64M\"\n");
    let set = "[[set]]\nname = \"ab\"\nmembers = [\"disk0\", \"disk1\"]\nstripe = \"16K\"\n";
    (0..3).map(drive).collect::<String>()
        + set
        + &format!("[[path]]\nname = \"s\"\nover = \"ab\"\n{path}")
        + &format!("[[path]]\nname = \"one\"\nover = \"disk2\"\n{path}")
}

#[test]
fn sata_drives_and_a_stripe_of_them_are_opened_in_real_time() {
    let place = TestDir::new();
    let (send, failed) = mpsc::channel();
    let options = OpenOptions { close_errors: Some(send), ..OpenOptions::default() };
    for (path, cores) in [
        ("", 1u64),
        ("queue_model = \"sq\"\ncores = 3\n", 3),
        ("queue_model = \"mq\"\ncores = 3\nqueues = 1\n", 3),
        ("queue_model = \"mq\"\ncores = 2\nstaging = \"global\"\n", 2),
    ] {
        let what = place.scenario(&sata_drives(path));
        for name in ["s", "one"] {
            let scenario = Scenario::load(Path::new(&what)).unwrap();
            let (device, view) = open_scenario(&scenario, Some(name), &options).unwrap();
            assert_eq!((device.kind(), device.name()), (DeviceKind::Target, name));
            assert_eq!(device.limits().sector_bytes, 512);
            write_on_cores(&device, cores, 0..cores * 100, 7);
            let drives = view.all_stats().expect("an answer");
            let names = if name == "s" { &["disk0", "disk1"][..] } else { &["disk2"] };
            assert!(drives.iter().map(|(name, _)| name).eq(names), "{path}{name}");
            let written: u64 = drives.iter().map(|(_, drive)| drive.bytes_written).sum();
            assert_eq!(written, cores * 100 * 512, "{path}{name}");
            assert!(drives.iter().all(|(_, drive)| drive.bytes_written > 0 && drive.errors == 0));
        }
    }
    // Without named paths, the drive itself is opened.
    let what = place.scenario("[drive]\nkind = \"ahci\"\n[precondition]\nfill = \"none\"\n");
    let device = sluice_open::open(&what, &options).unwrap();
    assert_eq!((device.name(), device.limits().bytes()), ("drive0", 500_118_192 * 512));
    let mut handle = handle(&device);
    write(&mut handle, &device, 0..10, 1);
    check(&mut handle, &device, 0..10, 1);
    drop((handle, device));
    let two = OpenOptions { queues: Some(2), ..OpenOptions::default() };
    let error = sluice_open::open(&what, &two).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("1 to 1"), "{error}");
    assert_eq!(failed.try_iter().map(|e| e.to_string()).collect::<Vec<_>>(), [""; 0]);
}

/// Two files of this machine, alone and as a stripe.
fn files(place: &TestDir, path: &str) -> String {
    let drive = |name: &str| {
        let file = place.path(&format!("{name}.disk"));
        if !file.exists() {
            std::fs::File::create(&file).unwrap().set_len(8 << 20).unwrap();
        }
        format!(
            "[[drive]]\nname = \"{name}\"\nkind = \"file\"\npath = {file:?}\ndirect = false\n\
             sector_bytes = 4096\n"
        )
    };
    drive("a")
        + &drive("b")
        + &drive("c")
        + "[[set]]\nname = \"ab\"\nmembers = [\"a\", \"b\"]\nstripe = \"16K\"\n"
        + &format!("[[path]]\nname = \"s\"\nover = \"ab\"\n{path}")
        + &format!("[[path]]\nname = \"one\"\nover = \"c\"\n{path}")
}

#[test]
fn files_of_this_machine_are_opened_with_every_block_layer() {
    let place = TestDir::new();
    let (send, failed) = mpsc::channel();
    let options = OpenOptions { close_errors: Some(send), ..OpenOptions::default() };
    for (round, (path, cores)) in [
        ("", 1u64),
        ("queue_model = \"sq\"\ncores = 3\n", 3),
        ("queue_model = \"mq\"\ncores = 3\n", 3),
        ("queue_model = \"mq\"\ncores = 3\nqueues = 2\n", 3),
    ]
    .into_iter()
    .enumerate()
    {
        let what = place.scenario(&files(&place, path));
        for name in ["s", "one"] {
            let device = sluice_open::open(&format!("{what}#{name}"), &options).unwrap();
            assert_eq!((device.kind(), device.name()), (DeviceKind::Target, name));
            write_on_cores(&device, cores, 0..cores * 100, round as u8);
            drop(device);
            // The data is in the files.
            let device = sluice_open::open(&format!("{what}#{name}"), &options).unwrap();
            check(&mut handle(&device), &device, 0..cores * 100, round as u8);
        }
    }
    let bytes = std::fs::read(place.path("c.disk")).unwrap();
    assert_eq!(bytes[5 * SECTOR], byte(5, 3), "sectors are where a program finds them");
    assert_eq!(failed.try_iter().map(|e| e.to_string()).collect::<Vec<_>>(), [""; 0]);
}

/// One payload reaches members of several kinds: they use the memory of the SATA drives' controller.
#[test]
fn a_stripe_has_members_of_every_kind() {
    let place = TestDir::new();
    let (send, failed) = mpsc::channel();
    let options = OpenOptions { close_errors: Some(send), ..OpenOptions::default() };
    let file = place.path("f.disk");
    std::fs::File::create(&file).unwrap().set_len(8 << 20).unwrap();
    let sata = "kind = \"ahci\"\ncapacity = \"64M\"\nsata.sector_bytes = 4096\n";
    let drives = format!(
        "[[drive]]\nname = \"n\"\n{GEOMETRY}[[drive]]\nname = \"f\"\nkind = \"file\"\n\
         path = {file:?}\ndirect = false\nsector_bytes = 4096\n\
         [[drive]]\nname = \"s\"\n{sata}[[drive]]\nname = \"t\"\n{sata}",
    );
    for (members, emulated) in [("\"n\", \"f\"", 1), ("\"f\", \"t\", \"n\", \"s\"", 3)] {
        for layer in ["", "[path]\nqueue_model = \"mq\"\ncores = 2\n"] {
            let set = format!("[[set]]\nname = \"all\"\nmembers = [{members}]\nstripe = \"16K\"\n");
            let what = place.scenario(&format!("{drives}{set}{layer}"));
            let scenario = Scenario::load(Path::new(&what)).unwrap();
            let (device, view) = open_scenario(&scenario, Some("all"), &options).unwrap();
            let mut handle = handle(&device);
            write(&mut handle, &device, 0..64, 5);
            handle.flush().expect("a flush");
            check(&mut handle, &device, 0..64, 5);
            let stats = view.all_stats().expect("an answer");
            let names = stats.iter().map(|(name, _)| name.as_str());
            assert!(names.eq(["n", "s", "t"].into_iter().take(emulated)), "{stats:?}");
            let count = members.split(',').count() as u64;
            for (name, drive) in &stats {
                assert_eq!(drive.bytes_written, 64 / count * SECTOR as u64, "{name}");
            }
        }
    }
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes[3 * SECTOR], byte(3, 5), "the file is the first member");
    assert_eq!(failed.try_iter().map(|e| e.to_string()).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn devices_that_are_not_there_are_told_by_name() {
    let place = TestDir::new();
    let real = |keys: &str| format!("[drive]\nname = \"d\"\n{keys}");
    let here = files(&place, "");
    let (file, _) = here.split_once("[[drive]]\nname = \"b\"").unwrap();
    for (text, says) in [
        (real("kind = \"file\"\npath = \"gone.img\"\n"), "gone.img"),
        (real("kind = \"kernel\"\npath = \"/dev/null\"\n"), "/dev/null"),
        // No machine has that many domains.
        (real("kind = \"pci\"\naddress = \"7ffffff0:01:00.0\"\n"), "7ffffff0:01:00.0"),
        (
            format!("{file}[precondition]\nfill = \"sequential\"\n"),
            "[precondition] runs in virtual time",
        ),
    ] {
        let error = open(&place.scenario(&text)).unwrap_err().to_string();
        assert!(error.contains("drive ") && error.contains(says), "{error}");
    }
}

#[test]
fn a_path_that_does_not_exist_is_refused_with_the_names() {
    let place = TestDir::new();
    let what = place.scenario(&named_paths(&place));
    for (name, says) in [("", "it has several paths"), ("#oc", "it has no path \"oc\"")] {
        let error = open(&format!("{what}{name}")).unwrap_err();
        assert!(error.is_usage(), "{error}");
        let text = error.to_string();
        assert!(text.contains(says) && text.contains("#l, #r, #s"), "{text}");
    }
    let three = OpenOptions { queues: Some(3), ..OpenOptions::default() };
    for name in ["r", "s"] {
        let error = sluice_open::open(&format!("{what}#{name}"), &three).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("1 to 2"), "{error}");
    }
}

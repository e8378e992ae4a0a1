//! Planted breaks: each is reported by the name of its part.

use testkit::volatile_device::VolatileDevice;
use time::Nanos;

use crate::pipeline::Core;
use crate::{
    BlockingVolume, FormatOptions, Ino, InodeKind, InodePermissions, Name, Options, RequestBuffer,
    Time, Volume, VolumeOp, VolumePart, VolumeRequest, format,
};

fn tick(device: &mut VolatileDevice) -> Nanos {
    device.now += Nanos::from_micros(1);
    device.now
}

/// A volume with files, unwritten data and requests in flight.
fn busy() -> Volume<VolatileDevice> {
    let mut device = VolatileDevice::for_volume(512, 512);
    format(&mut device, &FormatOptions::default(), tick).expect("an empty volume");
    let options = Options { cache_pages: 16, ..Options::default() };
    let mut session =
        BlockingVolume::open(device, options, tick as fn(&mut VolatileDevice) -> Nanos)
            .expect("a formatted volume");
    let dir = session.make_directory(Ino::ROOT, "dir").expect("a directory");
    let file = session.create(dir, "file").expect("a file");
    session.write(file, 0, &[1; 20_000]).expect("space for data");
    session.sync(file).expect("durable data");
    session.write(file, 100, &[2; 30_000]).expect("space for data");
    let mut volume = session.into_volume();
    volume.check_invariants().expect("nothing is broken yet");
    let (_, iova) = volume.memory().allocate_registered(4096).expect("memory");
    let data = RequestBuffer { iova, len: 4096 };
    let (name, access) = (Name::new("other").expect("a name"), InodePermissions::default());
    let ops = [
        VolumeOp::Write { ino: file, offset: 65_536, data },
        VolumeOp::Create { dir, name, access, exclusive: true, open: false },
        VolumeOp::Sync { ino: file, data_only: false },
        VolumeOp::Read { ino: file, offset: 7, data },
    ];
    volume.device_mut().lazy = true;
    for (id, op) in (0..).zip(ops) {
        let request = VolumeRequest { id, op, time: Time(0) };
        volume.submit(Nanos(0), request).expect("few requests are in flight");
    }
    let now = tick(volume.device_mut());
    volume.poll_device(now);
    volume.check_invariants().expect("nothing is broken yet");
    assert!(volume.in_flight() > 0, "the sync waits for the device");
    volume
}

fn first_file(core: &Core) -> Ino {
    let mut files = core.tree.iter().filter(|(_, node)| node.kind == InodeKind::File);
    files.next().expect("a file").0
}

#[test]
fn a_broken_invariant_is_reported_by_name() {
    type Plant = (VolumePart, &'static str, fn(&mut Core));
    let plants: &[Plant] = &[
        (VolumePart::Requests, "a slot is free or queued", |core| core.requests.break_free()),
        (VolumePart::Transfers, "requests of all transfers are queued or submitted", |core| {
            core.transfers.break_in_flight();
        }),
        (VolumePart::Allocator, "free blocks", |core| core.allocator.break_free_blocks()),
        (VolumePart::Allocator, "every data block has one owner", |core| {
            core.allocator.allocate(None, 1).expect("a free block");
        }),
        (VolumePart::Allocator, "blocks promised to pages and requests", |core| {
            assert!(core.allocator.reserve_delalloc(1));
        }),
        (VolumePart::Inodes, "bytes of all records", |core| core.tree.break_bytes()),
        (VolumePart::Inodes, "requests that pin an inode", |core| {
            let file = first_file(core);
            core.tree.existing_mut(file).state.users.break_pins();
        }),
        (VolumePart::Inodes, "transfers in flight of an inode", |core| {
            let file = first_file(core);
            core.tree.existing_mut(file).state.io.begin();
        }),
        (VolumePart::Pages, "the journaled pages are listed", |core| core.page_cache.break_count()),
        (VolumePart::Pages, "a journaled block is listed", |core| {
            let file = first_file(core);
            core.tree.existing_mut(file).state.pages.mark_journaled(0);
        }),
        (VolumePart::Staging, "every buffer is free or in use", |core| core.staging.break_lose()),
        (VolumePart::Writeback, "an inode is queued as due once", |core| {
            core.writeback.break_queue(first_file(core));
        }),
        (VolumePart::Barriers, "a flush covers completed writes", |core| {
            core.barriers.break_flushed();
        }),
        (
            VolumePart::Barriers,
            "barriers are acknowledged, covered and durable in this order",
            |core| {
                core.barriers.ordered.break_durable();
            },
        ),
        (VolumePart::Barriers, "pages are counted while a barrier is pending", |core| {
            core.page_cache.begin_counting();
            let dirty: Vec<_> = core.tree.iter().flat_map(|(_, n)| n.state.pages.iter()).collect();
            dirty.into_iter().for_each(|(_, id)| core.page_cache.count_before(id));
        }),
        (VolumePart::Log, "transactions before the one being committed are durable", |core| {
            core.log.break_durable();
        }),
        (VolumePart::Checkpoint, "a segment buffer is free or in flight", |core| {
            core.checkpoint.break_buffers();
        }),
    ];
    for (part, invariant, break_it) in plants {
        let mut volume = busy();
        break_it(&mut volume.core);
        let found = volume.check_invariants().expect_err(invariant);
        assert_eq!((found.part, found.invariant), (*part, *invariant), "{found}");
        let text = found.to_string();
        assert!(text.starts_with(&format!("{part}: {invariant} is broken for ")), "{text}");
        assert!(text.contains(&found.expected) && text.contains(&found.found), "{text}");
    }
}

#[test]
#[should_panic(expected = "transfers: a completion has tag 4711, and no transfer in flight has it")]
fn a_completion_without_a_transfer_stops_the_volume() {
    let completion = block::Completion { tag: 4711, status: nvme::Status::SUCCESS, result: 0 };
    busy().core.on_transfer_complete(&completion);
}

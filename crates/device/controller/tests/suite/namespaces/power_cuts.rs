//! Power cuts at every event of a creation, a deletion, an attachment and a format of one of several
//! namespaces: the table is the old one or the new one, other namespaces keep their contents, and
//! a new namespace is zeros.

// guarantee: B-94

use controller::{DriveConfig, Fault, WriteBuffer};
use nvme::{NewNamespace, SecureErase, Sqe, Status};

use super::harness::NamespaceBench;
use crate::hostile::host::block_config;

/// Sizes of the namespaces of a case: 1 to 4.
const BLOCKS: [u64; 4] = [100, 60, 80, 40];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Create,
    Delete,
    DeleteAll,
    Detach,
    Attach,
    Format(SecureErase),
    FormatAll,
}

const CHANGES: [Change; 8] = [
    Change::Create,
    Change::Delete,
    Change::DeleteAll,
    Change::Detach,
    Change::Attach,
    Change::Format(SecureErase::None),
    Change::Format(SecureErase::UserData),
    Change::FormatAll,
];

/// The namespace that changes.
const CHANGED: u32 = 2;

fn value(nsid: u32, lba: u64) -> u8 {
    (nsid as u8) * 40 + (lba % 37) as u8
}

/// Returns a drive with four namespaces in fragments, all blocks written and flushed, and a namespace
/// deleted whose blocks were written, too.
fn prepared(config: DriveConfig) -> NamespaceBench {
    let mut b = NamespaceBench::new(config);
    assert_eq!(b.delete(1), Status::SUCCESS);
    let gaps: Vec<u32> = (0..12).map(|_| b.add(30)).collect();
    let blocks = b.unallocated() / 4096;
    let rest = b.add(blocks);
    for lba in (0..b.namespace(rest).nsze.get()).step_by(16) {
        let count = (b.namespace(rest).nsze.get() - lba).min(16);
        assert_eq!(b.write(rest, lba, &vec![0xdd; count as usize]), Status::SUCCESS);
    }
    for nsid in &gaps {
        assert_eq!(b.write(*nsid, 0, &[0xcc; 30]), Status::SUCCESS);
    }
    gaps.iter().step_by(2).for_each(|nsid| assert_eq!(b.delete(*nsid), Status::SUCCESS));
    assert_eq!(b.delete(gaps[1]), Status::SUCCESS);
    assert_eq!(b.delete(rest), Status::SUCCESS);
    gaps[3..].iter().step_by(2).for_each(|nsid| assert_eq!(b.delete(*nsid), Status::SUCCESS));
    for (nsid, blocks) in (1..).zip(BLOCKS) {
        assert_eq!(b.add(blocks), nsid);
        for lba in (0..blocks).step_by(20) {
            let values: Vec<u8> = (lba..lba + 20).map(|lba| value(nsid, lba)).collect();
            assert_eq!(b.write(nsid, lba, &values), Status::SUCCESS);
        }
    }
    b.flush();
    b
}

/// Checks a drive after a power cut, and that it works.
fn check(mut b: NamespaceBench, change: Change, ended: bool) {
    assert_eq!(b.drive.check_invariants(), Ok(()));
    let listed: Vec<(u32, bool)> =
        b.drive.namespaces().iter().map(|n| (n.nsid, n.is_attached)).collect();
    let others = [(1, true), (3, true), (4, true)];
    let old = [(1, true), (2, true), (3, true), (4, true)];
    let detached = [(1, true), (2, false), (3, true), (4, true)];
    let created = [(1, true), (2, true), (3, true), (4, true), (5, false)];
    let (before, after) = match change {
        Change::Create => (&old[..], &created[..]),
        Change::Delete => (&old[..], &others[..]),
        Change::DeleteAll => (&old[..], &[][..]),
        Change::Detach => (&old[..], &detached[..]),
        Change::Attach => (&detached[..], &old[..]),
        Change::Format(_) | Change::FormatAll => (&old[..], &old[..]),
    };
    assert!(listed == after || listed == before && !ended, "{change:?}: {listed:?}");
    for (nsid, is_attached) in &listed {
        if !is_attached {
            assert_eq!(b.attach(*nsid, true), Status::SUCCESS);
        }
        let Some(blocks) = BLOCKS.get(*nsid as usize - 1) else {
            // The new one.
            let blocks = b.namespace(*nsid).nsze.get();
            assert!(b.read_all(*nsid, blocks).iter().all(|value| *value == 0), "stale contents");
            continue;
        };
        let is_formatted = match change {
            Change::Format(_) => *nsid == CHANGED,
            Change::FormatAll => true,
            _ => false,
        };
        for (lba, found) in (0..).zip(b.read_all(*nsid, *blocks)) {
            let kept = found == value(*nsid, lba) && !(is_formatted && ended);
            assert!(kept || is_formatted && found == 0, "{change:?}: {nsid}, block {lba}: {found}");
        }
    }
    // All capacity can be allocated, and reads as zeros.
    let blocks = b.unallocated() / 4096;
    if blocks > 0 {
        let nsid = b.add(blocks);
        assert!(b.read_all(nsid, blocks).iter().all(|value| *value == 0), "stale contents");
        // Also after another power cut, with nothing flushed.
        b = b.restart();
        assert!(b.read_all(nsid, blocks).iter().all(|value| *value == 0), "stale contents");
        assert_eq!(b.write(nsid, blocks - 1, &[9]), Status::SUCCESS);
    }
}

fn start(b: &mut NamespaceBench, change: Change) {
    let sqe = match change {
        Change::Create => {
            let blocks = b.unallocated() / 4096;
            b.create_entry(NewNamespace::with_blocks(blocks))
        }
        Change::Delete => NamespaceBench::delete_entry(CHANGED),
        Change::DeleteAll => NamespaceBench::delete_entry(u32::MAX),
        Change::Detach => b.attach_entry(CHANGED, false),
        Change::Attach => {
            assert_eq!(b.attach(CHANGED, false), Status::SUCCESS);
            b.attach_entry(CHANGED, true)
        }
        Change::Format(erase) => NamespaceBench::format_entry(CHANGED, erase),
        Change::FormatAll => NamespaceBench::format_entry(u32::MAX, SecureErase::None),
    };
    b.send(sqe);
}

#[test]
fn a_power_cut_leaves_the_old_namespaces_or_the_new_ones() {
    let (mut cut, mut ended) = (0, 0);
    for write_buffer in [
        WriteBuffer::Volatile { bytes: 1 << 18 },
        WriteBuffer::PowerLossProtected { bytes: 1 << 18 },
    ] {
        for change in CHANGES {
            for events in (0..24).chain((24..1_500).step_by(211)) {
                let mut b = prepared(DriveConfig { write_buffer, ..block_config() });
                start(&mut b, change);
                let status = b.run(events);
                assert!(status.is_none_or(Status::is_success), "{status:?}");
                cut += u64::from(status.is_none());
                ended += u64::from(status.is_some());
                check(b.restart(), change, status.is_some());
            }
        }
    }
    assert!(cut > 50 && ended > 100, "{cut} cut, {ended} ended");
}

/// Hosts stay attached; commands of other namespaces are in flight.
#[test]
fn a_power_cut_with_attached_hosts_ends_the_change() {
    for change in CHANGES {
        for after_ops in [0, 1, 2, 5, 9] {
            let mut b = prepared(block_config());
            let mut write = Sqe::write(3, 0, 1, false);
            b.fill(&[value(3, 0)]);
            write.set_sgl(b.host.block(0, 4096));
            b.host.submit(write);
            start(&mut b, change);
            b.run(u64::from(after_ops == 0) * 2);
            b.drive.inject_fault(b.host.now, Fault::PowerCut { after_ops }).unwrap();
            let status = b.run(100_000);
            let is_known = status.is_none_or(|s| s.is_success() || s == Status::POWER_LOSS);
            assert!(is_known, "{change:?}: {status:?}");
            let mut host = crate::hostile::host::Host::with_queue(&mut b.drive);
            host.now = b.host.now;
            b.host = host;
            check(b, change, status.is_some_and(Status::is_success));
        }
    }
}

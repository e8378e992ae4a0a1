//! Identify data of several namespaces, byte by byte.

// guarantee: B-88

use controller::DriveConfig;
use nvme::Status;

use super::harness::NamespaceBench;
use crate::hostile::host::block_config;

/// A field: first byte, bytes, and value.
type Field = (usize, usize, u128);

/// Checks fields, and that all other bytes are zero.
fn check(name: &str, data: &[u8; 4096], fields: &[Field]) {
    let mut rest = *data;
    for (first, bytes, value) in fields {
        let field = &data[*first..first + bytes];
        let found = field.iter().rev().fold(0u128, |sum, byte| sum << 8 | u128::from(*byte));
        assert_eq!(found, *value, "{name}, bytes {}:{first}", first + bytes - 1);
        rest[*first..first + bytes].fill(0);
    }
    assert_eq!(rest.iter().position(|byte| *byte != 0), None, "{name}: a byte without a field");
}

/// Capabilities that all namespaces have.
const COMMON: [Field; 6] =
    [(24, 1, 1 << 4), (33, 1, 0b1001), (74, 2, 64), (76, 4, 256), (80, 1, 127), (128, 4, 12 << 16)];

#[test]
fn every_structure_has_the_fields_of_the_specification() {
    let mut b = NamespaceBench::new(block_config());
    let capacity = u128::from(b.drive.sectors());
    assert_eq!(b.delete(1), Status::SUCCESS);
    assert_eq!((b.create(10), b.create(20), b.create(30)), (Ok(1), Ok(2), Ok(3)));
    assert_eq!((b.attach(1, true), b.attach(3, true)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(b.write(3, 5, &[1; 4]), Status::SUCCESS);
    let nguid = |b: &NamespaceBench, nsid| {
        let found = b.drive.namespaces().into_iter().find(|n| n.nsid == nsid).unwrap();
        u128::from_le_bytes(found.nguid)
    };
    let namespace = |b: &NamespaceBench, nsid: u32, blocks: u128, mapped: u128| {
        let id = nguid(b, nsid);
        let own: [Field; 5] = [
            (0, 8, blocks),
            (8, 8, blocks),
            (16, 8, mapped),
            (48, 16, blocks << 12),
            (104, 16, id),
        ];
        [&own[..], &COMMON].concat()
    };
    let controller = b.identify(1, 0).unwrap();
    let field = |at: usize, bytes: usize| -> u128 {
        controller[at..at + bytes].iter().rev().fold(0, |sum, byte| sum << 8 | u128::from(*byte))
    };
    assert_eq!((field(516, 4), field(540, 4), field(524, 1)), (32, 32, 0), "NN, MNAN, FNA");
    assert_eq!((field(280, 16), field(296, 16)), (capacity << 12, (capacity - 60) << 12));
    let (one, three) = (namespace(&b, 1, 10, 0), namespace(&b, 3, 30, 4));
    let two = namespace(&b, 2, 20, 0);
    let ids = [(0, 1, 2u128), (1, 1, 16), (4, 16, nguid(&b, 3))];
    // Identifiers of the structure and the namespace, and fields.
    for (cns, nsid, fields) in [
        (0x00, 1, &one[..]),
        (0x00, 2, &[]),
        (0x00, 3, &three),
        (0x00, 4, &[]),
        (0x00, u32::MAX, &COMMON),
        (0x02, 0, &[(0, 4, 1), (4, 4, 3)]),
        (0x02, 1, &[(0, 4, 3)]),
        (0x03, 3, &ids),
        (0x05, 3, &[]),
        (0x05, 2, &[]),
        (0x05, u32::MAX, &[]),
        (0x06, 0, &[]),
        (0x07, 0, &[(0, 4, 1), (4, 4, 3)]),
        (0x08, 1, &[(14, 1, 1)]),
        (0x08, 2, &[]),
        (0x08, u32::MAX, &[(14, 1, 1)]),
        (0x10, 0, &[(0, 4, 1), (4, 4, 2), (8, 4, 3)]),
        (0x10, 2, &[(0, 4, 3)]),
        (0x11, 2, &two),
        (0x11, 3, &three),
        (0x11, 9, &[]),
        (0x12, 1, &[(0, 2, 1)]),
        (0x12, 2, &[]),
        (0x12 | 1 << 16, 1, &[]),
        (0x13, 0, &[(0, 2, 1)]),
        (0x13 | 1 << 16, 0, &[]),
        (0x16, 0, &[(32, 8, 4096), (40, 8, 4096)]),
        (0x1a, 1, &[(0, 4, 2), (4, 4, 3)]),
        (0x1b, 2, &[]),
        (0x1c, 0, &[(0, 8, 1)]),
    ] {
        let name = format!("CNS {cns:#x} of {nsid:#x}");
        let data = b.identify(cns, nsid).unwrap_or_else(|status| panic!("{name}: {status}"));
        check(&name, &data, fields);
    }
    for (cns, nsid, status) in [
        (0x00, 0, Status::INVALID_NAMESPACE),
        (0x00, 33, Status::INVALID_NAMESPACE),
        (0x02, u32::MAX - 1, Status::INVALID_NAMESPACE),
        (0x03, 2, Status::INVALID_NAMESPACE),
        (0x03, u32::MAX, Status::INVALID_NAMESPACE),
        (0x05, 33, Status::INVALID_NAMESPACE),
        (0x08, 0, Status::INVALID_NAMESPACE),
        (0x10, u32::MAX, Status::INVALID_NAMESPACE),
        (0x11, 0, Status::INVALID_NAMESPACE),
        (0x11, u32::MAX, Status::INVALID_NAMESPACE),
        (0x12, 9, Status::INVALID_FIELD),
        (0x12, u32::MAX, Status::INVALID_FIELD),
        (0x12, 33, Status::INVALID_NAMESPACE),
        (0x14, 0, Status::INVALID_FIELD),
        (0x1b, 0, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(b.identify(cns, nsid).unwrap_err(), status, "CNS {cns:#x} of {nsid:#x}");
    }
    // Other command sets than that of NVM.
    for cns in [5, 6, 7, 0x1a, 0x1b] {
        let mut sqe = nvme::AdminCommand::Identify { cns, nsid: 1 }.to_sqe();
        sqe.cdw11 = (1 << 24).into();
        assert_eq!(b.query(sqe).unwrap_err(), Status::INVALID_FIELD, "CNS {cns:#x}");
    }
}

#[test]
fn identifiers_are_stable_and_never_used_again() {
    let mut b = NamespaceBench::new(block_config());
    let original = b.namespace(1).nguid;
    let mut all = vec![original];
    for _ in 0..5 {
        assert_eq!(b.delete(1), Status::SUCCESS);
        let (first, second) = (b.add(10), b.add(b.drive.sectors() - 10));
        all.extend([b.namespace(first).nguid, b.namespace(second).nguid]);
        assert_eq!(b.delete(first), Status::SUCCESS);
        b = b.restart();
        assert_eq!(b.namespace(second).nguid, *all.last().unwrap(), "after a power cut");
        assert_eq!(b.delete(second), Status::SUCCESS);
        b.add(b.drive.sectors());
        all.push(b.namespace(1).nguid);
    }
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
    assert!(all.iter().all(|nguid| nguid[8..11] == [0x02, 0x53, 0x4c]));
    let other = DriveConfig { name: "test2".into(), ..block_config() };
    let mut other = NamespaceBench::new(other);
    assert_eq!(other.delete(1), Status::SUCCESS);
    other.add(10);
    assert!(!all.contains(&other.namespace(1).nguid));
    // A new drive again.
    assert_eq!(NamespaceBench::new(block_config()).namespace(1).nguid, original);
}

#[test]
fn utilization_is_that_of_the_namespace() {
    for lba_bytes in [None, Some(512)] {
        let mut b = NamespaceBench::new(DriveConfig { lba_bytes, ..block_config() });
        assert_eq!(b.delete(1), Status::SUCCESS);
        let small: Vec<u32> = (0..4).map(|_| b.add(8)).collect();
        b.delete(small[0]);
        b.delete(small[2]);
        let blocks = b.unallocated() / b.block_bytes as u64;
        let large = b.add(blocks);
        let unit = 4096 / b.block_bytes as u64;
        for lba in 0..16 * unit {
            assert_eq!(b.write(large, lba, &[1]), Status::SUCCESS);
        }
        assert_eq!(b.write(small[1], 0, &[1; 8]), Status::SUCCESS);
        assert_eq!(b.namespace(large).nuse.get(), 16 * unit);
        assert_eq!((b.namespace(small[1]).nuse.get(), b.namespace(small[3]).nuse.get()), (8, 0));
        assert_eq!(b.delete(large), Status::SUCCESS);
        assert_eq!(b.namespace(small[1]).nuse.get(), 8);
        let large = b.add(blocks);
        assert_eq!(b.namespace(large).nuse.get(), 0);
    }
}

//! Entries with random bits.

use std::collections::HashSet;

use controller::Controller;
use mem::PAGE_BYTES;
use nvme::{Sqe, opcode};
use proptest::prelude::*;

use super::host::{DEPTH, Host, MEMORY, configs};

/// Generates a random entry whose fields are often nearly valid.
fn entry(opcodes: Vec<u8>, at: u64) -> impl Strategy<Value = Sqe> {
    let pointer = prop_oneof![
        3 => (0..MEMORY as u64 / 512).prop_map(move |i| at + i * 512),
        1 => (0..MEMORY as u64).prop_map(move |i| at + i),
        1 => any::<u64>(),
        1 => Just(0),
    ];
    let length = prop_oneof![Just(4096u64), Just(16), 0..70_000u64, any::<u64>()];
    let kind = prop_oneof![Just(0u64), Just(0x10u64), Just(0x20), Just(0x30), 0..256u64];
    let second = prop_oneof![
        pointer.clone(),
        (length, kind).prop_map(|(n, k)| (n & 0xffff_ffff) | k << 56),
    ];
    let small = prop_oneof![4 => 0..64u32, 1 => any::<u32>(), 1 => Just(0x0400_0003)];
    let opcode = prop_oneof![8 => proptest::sample::select(opcodes), 1 => any::<u8>()];
    let flags = prop_oneof![3 => Just(0u8), 3 => Just(0x40), 1 => any::<u8>()];
    let nsid = prop_oneof![8 => Just(1u32), 1 => any::<u32>()];
    (
        (opcode, flags, nsid, pointer.clone()),
        (pointer, second, small.clone(), prop_oneof![8 => Just(0u32), 1 => any::<u32>()]),
        (small.clone(), small.clone(), small.clone(), small),
    )
        .prop_map(
            |((op, flags, nsid, mptr), (first, second, d10, d11), (d12, d13, d14, d15))| {
                let mut sqe = Sqe::new(op, nsid);
                sqe.flags = flags;
                sqe.mptr = if mptr.is_multiple_of(3) { mptr } else { 0 }.into();
                sqe.set_prp(first, second);
                sqe.flags = flags;
                (sqe.cdw10, sqe.cdw11) = (d10.into(), d11.into());
                (sqe.cdw12, sqe.cdw13) = (d12.into(), d13.into());
                (sqe.cdw14, sqe.cdw15) = (d14.into(), d15.into());
                sqe
            },
        )
}

fn io_opcodes() -> Vec<u8> {
    use opcode::io::*;
    let vector = [VECTOR_READ, VECTOR_WRITE, VECTOR_RESET, VECTOR_COPY];
    let plain = [READ, WRITE, FLUSH, WRITE_ZEROES, DATASET_MANAGEMENT, LBA_STATUS];
    let checks = [COMPARE, VERIFY, WRITE_UNCORRECTABLE, COPY];
    [plain.as_slice(), &vector, &checks].concat()
}

/// Fills memory with values that may be parsed as PRP entries, SGL descriptors, ranges and physical
/// addresses.
fn scribble(host: &Host, seed: u64) {
    let mut rng = rng::Rng::new(seed);
    for word in 0..MEMORY / 8 {
        let value = match rng.below(6) {
            0 => host.at.0 + rng.below(MEMORY as u64 / 16) * 16,
            1 => host.at.0 + rng.below(MEMORY as u64 / PAGE_BYTES as u64) * PAGE_BYTES as u64,
            2 => rng.below(256),
            3 => rng.below(4096) | [0x00, 0x20, 0x30, 0x10][rng.below(4) as usize] << 56,
            4 => rng.next_u64(),
            _ => 0,
        };
        host.memory.write(word * 8, &value.to_le_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_io_entry_gets_exactly_one_completion(
        which in 0..5usize,
        seed in any::<u64>(),
        entries in proptest::collection::vec(entry(io_opcodes(), 1 << 40 | 2 << 40), 1..200),
    ) {
        let config = configs().swap_remove(which);
        let mut d = Controller::new(config).unwrap();
        let mut host = Host::with_queue(&mut d);
        scribble(&host, seed);
        let delta = host.at.0.wrapping_sub(1 << 40 | 2 << 40);
        let mut open = HashSet::new();
        for (i, mut sqe) in entries.into_iter().enumerate() {
            let shift = |p: u64| if p >> 41 == 1 { p.wrapping_add(delta) } else { p };
            let flags = sqe.flags;
            let [first, second] = sqe.dptr.map(|w| w.get());
            sqe.set_prp(shift(first), shift(second));
            sqe.flags = flags;
            sqe.mptr = shift(sqe.mptr.get()).into();
            prop_assert!(open.insert(host.submit(sqe)));
            if i % 7 == 0 || open.len() >= usize::from(DEPTH) - 2 {
                host.drain(&mut d);
                while let Some(cqe) = host.reap() {
                    prop_assert!(open.remove(&cqe.cid), "a command completes twice");
                }
                prop_assert!(open.is_empty(), "every command must complete");
            }
        }
        host.drain(&mut d);
        while let Some(cqe) = host.reap() {
            prop_assert!(open.remove(&cqe.cid), "a command completes twice");
        }
        prop_assert!(open.is_empty(), "every command must complete");
        prop_assert!(d.is_idle());
        if which != 1 {
            host.check_serves(&mut d);
        }
    }

    #[test]
    fn any_admin_entry_gets_at_most_one_completion(
        which in 0..5usize,
        seed in any::<u64>(),
        entries in proptest::collection::vec(
            entry((0..0x16).chain([0x86, 0xe2]).collect(), 1 << 40 | 2 << 40), 1..100),
    ) {
        let mut d = Controller::new(configs().swap_remove(which)).unwrap();
        let mut host = Host::new(&mut d);
        scribble(&host, seed);
        let delta = host.at.0.wrapping_sub(1 << 40 | 2 << 40);
        let mut waiting = 0;
        for mut sqe in entries {
            let shift = |p: u64| if p >> 41 == 1 { p.wrapping_add(delta) } else { p };
            let flags = sqe.flags;
            let [first, second] = sqe.dptr.map(|w| w.get());
            sqe.set_prp(shift(first), shift(second));
            sqe.flags = flags;
            host.cid += 1;
            sqe.cid = host.cid.into();
            host.admin.0.push(&sqe).unwrap();
            host.admin.0.ring();
            host.drain(&mut d);
            match host.admin.1.pop() {
                Some(cqe) => {
                    prop_assert_eq!(cqe.cid, host.cid);
                    prop_assert!(host.admin.1.pop().is_none());
                    host.admin.1.release();
                    host.admin.0.update_head(cqe.sq_head);
                }
                // Asynchronous event requests wait for events.
                None => waiting += 1,
            }
        }
        prop_assert!(waiting <= 4, "{waiting} commands did not complete");
        prop_assert_eq!(d.check_invariants(), Ok(()));
        // Another host is not affected, unless its namespace was deleted or detached.
        let mut other = Host::with_queue(&mut d);
        let namespaces = d.namespaces();
        let has_namespace = namespaces.iter().any(|n| n.nsid == 1 && n.is_attached && n.blocks > 3);
        if !has_namespace {
            let status = other.io(&mut d, Sqe::verify(1, 3, 1)).status;
            prop_assert!(!status.is_success(), "a block of no namespace");
        } else if which != 1 {
            other.check_serves(&mut d);
        }
    }
}

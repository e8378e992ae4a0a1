//! The cost of parsing an entry, which is on the path of every command of an emulated drive.

use divan::{Bencher, black_box, counter::ItemsCount};
use sluice_nvme::{IoCommand, Ppa, PpaList, Sqe};

fn main() {
    divan::main();
}

const COMMANDS: usize = 1024;

fn mix() -> Vec<Sqe> {
    (0..COMMANDS as u64)
        .map(|i| match i * 7 % 4 {
            0 => Sqe::write(1, i, 8, i % 8 == 0),
            1 => Sqe::vector_read(1, PpaList::One(Ppa(i))),
            _ => Sqe::read(1, i, 8),
        })
        .collect()
}

/// Nanoseconds for parsing 1024 entries of three kinds.
#[divan::bench]
fn parse(bencher: Bencher<'_, '_>) {
    let entries = mix();
    bencher.counter(ItemsCount::new(COMMANDS)).bench_local(|| {
        for sqe in &entries {
            black_box(match IoCommand::parse(black_box(sqe)) {
                Ok(IoCommand::Read { slba, nlb, .. }) => slba + u64::from(nlb),
                Ok(IoCommand::Write { slba, nlb, fua, .. }) => {
                    slba ^ u64::from(nlb) ^ u64::from(fua)
                }
                Ok(IoCommand::VectorRead { addresses: PpaList::One(ppa), .. }) => ppa.0,
                _ => 0,
            });
        }
    });
}

/// Nanoseconds for encoding 1024 entries.
#[divan::bench]
fn construct(bencher: Bencher<'_, '_>) {
    bencher.counter(ItemsCount::new(COMMANDS)).bench_local(|| {
        for i in 0..COMMANDS as u64 {
            black_box(Sqe::read(1, black_box(i), 8));
        }
    });
}

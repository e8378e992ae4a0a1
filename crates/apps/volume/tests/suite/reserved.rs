//! Reserved blocks: writes that have them do not fail for lack of blocks or metadata space,
//! whatever other operations run; no block is lost.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-volume --test
//! suite reserved::`.

// guarantee: D-15

use crate::common;

use common::{Open, formatted, open, pattern, try_open};
use mem::{Iova, SharedRegion};
use rng::Rng;
use time::Component as _;
use volume::{
    BLOCK, Error, Ino, Name, OpResult, Options, QueueFull, RequestBuffer, Time, VolumeCompletion,
    VolumeOp, VolumeRequest,
};

const ROOT: Ino = Ino::ROOT;
const BYTES: usize = 40_000;

/// Maximum number of blocks that a write touches, as `exec_proto::posted::blocks_touched_max`.
fn blocks(len: usize) -> u64 {
    (len / BLOCK) as u64 + 3
}

/// Writes with reserved blocks, behind other operations in flight.
fn write_reserved(
    fs: &mut Open,
    op: VolumeOp,
    room: u64,
    others: &[VolumeOp],
) -> Result<OpResult, Error> {
    let store = fs.volume_mut();
    let now = common::tick(store.device_mut());
    let request = |id, op| VolumeRequest { id, op, time: Time(0) };
    let (first, last) = others.split_at(others.len() / 2);
    first.iter().for_each(|op| store.submit(now, request(0, *op)).unwrap());
    assert_eq!(store.submit_reserved(now, request(1, op), room), Ok::<(), QueueFull>(()));
    last.iter().for_each(|op| store.submit(now, request(0, *op)).unwrap());
    let (mut left, mut ended) = (1 + others.len(), None);
    let mut looks = 0;
    while left > 0 {
        looks += 1;
        assert!(looks < 100_000, "{op:?} does not complete: {store:?}");
        let now = common::tick(store.device_mut());
        store.poll(now);
        while let Some(VolumeCompletion { id, result }) = store.reap() {
            left -= 1;
            ended = if id == 1 { Some(result) } else { ended };
        }
    }
    ended.unwrap()
}

struct Case {
    fs: Open,
    files: Vec<Ino>,
    iova: Iova,
    reserved: u64,
    names: u32,
}

impl Case {
    /// Executes a request; fails if it does not complete.
    fn run(&mut self, op: VolumeOp) -> Result<OpResult, Error> {
        write_reserved(&mut self.fs, op, 0, &[])
    }

    fn step(&mut self, rng: &mut Rng) -> (u64, u64) {
        let file = self.files[rng.below(self.files.len() as u64) as usize];
        let offset = rng.below(40) * BYTES as u64 + rng.below(5000);
        let most = if rng.chance(0.7) { 300 } else { BYTES as u64 };
        let len = 1 + rng.below(most);
        let data = RequestBuffer { iova: self.iova, len: len as u32 };
        let op = match rng.chance(0.3) {
            true => VolumeOp::Append { ino: file, data },
            false => VolumeOp::Write { ino: file, offset, data },
        };
        let (mut kept, mut refused) = (0, 0);
        let result = match rng.below(20) {
            0..5 => {
                let want = 1 + rng.below(if self.names > 0 { 12 } else { 40 });
                let (room, free) =
                    (self.fs.volume().has_free_blocks(want), self.fs.volume().statfs().free);
                assert_eq!(self.fs.volume_mut().reserve(want), room);
                assert_eq!(
                    self.fs.volume().statfs().free,
                    free,
                    "reserved blocks still count as free"
                );
                self.reserved += if room { want } else { 0 };
                Ok(OpResult::Done)
            }
            5..9 if self.reserved >= blocks(len as usize) => {
                let room = blocks(len as usize);
                self.reserved -= room;
                let other = |ino: &Ino| VolumeOp::Append {
                    ino: *ino,
                    data: RequestBuffer { len: 9000, ..data },
                };
                let others: Vec<_> = self.files.iter().map(other).collect();
                let others = &others[..if rng.chance(0.3) { others.len() } else { 0 }];
                match write_reserved(&mut self.fs, op, room, others) {
                    Ok(OpResult::Bytes { len: done, .. }) => assert_eq!(u64::from(done), len),
                    other => panic!("{other:?} of {op:?}"),
                }
                kept = 1;
                Ok(OpResult::Done)
            }
            9 => {
                let back = rng.below(self.reserved + 1);
                self.fs.volume_mut().unreserve(back);
                self.reserved -= back;
                Ok(OpResult::Done)
            }
            10 => self.run(VolumeOp::Truncate { ino: file, size: rng.below(offset + 1) }),
            11 => self.run(VolumeOp::Sync { ino: file, data_only: rng.chance(0.5) }),
            12 => {
                let len = 1 + rng.below(400_000);
                self.run(VolumeOp::Allocate { ino: file, offset, len, keep_size: true })
            }
            13 => self.run(VolumeOp::Punch { ino: file, offset, len: 1 + rng.below(100_000) }),
            14..16 => {
                self.names += 1;
                let long = format!("{:0200}", self.names);
                self.fs.make_directory(ROOT, &long).map(|_| OpResult::Done)
            }
            16 if self.names > 0 && rng.chance(0.8) => {
                let name = Name::new(format!("{:0200}", self.names)).unwrap();
                self.names -= 1;
                self.run(VolumeOp::RemoveDirectory { dir: ROOT, name })
            }
            _ => self.run(op),
        };
        match result {
            Ok(_) => {}
            Err(Error::NoSpace | Error::NoMetadataSpace | Error::NotFound) => refused = 1,
            Err(error) => panic!("{error}"),
        }
        (kept, refused)
    }
}

#[test]
fn reserved_writes_do_not_end_for_lack_of_space() {
    let given = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let (mut kept, mut refused) = (0, 0);
    for seed in given.map_or(0..200u64, |seed| seed..seed + 1) {
        let mut rng = Rng::new(seed);
        let options =
            Options { cache_pages: [16, 64, 4096][seed as usize / 2 % 3], ..Options::default() };
        let mut fs = try_open(formatted(512, 300 + rng.below(200)), options).unwrap();
        let free = fs.volume().statfs().free;
        let region = SharedRegion::anonymous(BYTES.next_multiple_of(4096)).unwrap();
        region.write(0, &pattern(seed, BYTES));
        let at = fs.volume().memory().register(&region).unwrap();
        let files = (0..6).map(|i| fs.create(ROOT, &format!("f{i}")).unwrap()).collect();
        // Half of the volumes have little space left for metadata.
        let mut names = 0;
        let full = |fs: &mut Open, name| fs.make_directory(ROOT, &format!("{name:0200}")).is_err();
        while seed % 2 == 1 && !full(&mut fs, names + 1) {
            names += 1;
        }
        for _ in 0..rng.below(8).min(names.into()) {
            let name = Name::new(format!("{names:0200}")).unwrap();
            fs.run(VolumeOp::RemoveDirectory { dir: ROOT, name }).unwrap();
            names -= 1;
        }
        let mut case = Case { fs, files, iova: at, reserved: 0, names };
        for step in 0..300 {
            let counts =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.step(&mut rng)));
            let (one, other) = counts.unwrap_or_else(|_| panic!("seed {seed}, step {step}"));
            (kept, refused) = (kept + one, refused + other);
        }
        // Every block is free again.
        case.fs.volume_mut().unreserve(case.reserved);
        for file in 0..6 {
            let name = Name::new(format!("f{file}")).unwrap();
            case.fs.run(VolumeOp::Unlink { dir: ROOT, name }).unwrap();
        }
        (0..3).for_each(|_| assert!(case.fs.run(VolumeOp::SyncAll).is_ok()));
        assert_eq!(case.fs.volume().statfs().free, free, "seed {seed}");
        open(case.fs.close().unwrap());
    }
    if given.is_none() {
        assert!(kept > 500 && refused > 200, "{kept} kept, {refused} refused");
    }
}

#[test]
fn reserved_blocks_are_not_given_to_others() {
    let mut fs = open(formatted(512, 400));
    let free = fs.volume().statfs().free;
    let file = fs.create(ROOT, "f").unwrap();
    assert!(!fs.volume_mut().reserve(free + 1));
    assert!(fs.volume_mut().reserve(10));
    let all =
        |ino| VolumeOp::Allocate { ino, offset: 0, len: free * BLOCK as u64, keep_size: true };
    assert_eq!(fs.run(all(file)), Err(Error::NoSpace));
    fs.volume_mut().unreserve(10);
    assert!(fs.run(all(file)).is_ok());
    assert!(
        !fs.volume_mut().reserve(1)
            && !fs.volume().has_free_blocks(1)
            && fs.volume().has_free_blocks(0)
    );
}

#[test]
#[should_panic(expected = "3 blocks that were not reserved")]
fn what_was_not_reserved_cannot_be_given_back() {
    let mut fs = open(formatted(512, 400));
    assert!(fs.volume_mut().reserve(2));
    fs.volume_mut().unreserve(3);
}

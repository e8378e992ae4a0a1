//! A `kill -9` of a process with an open image has the effect of a power cut.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use media::{ChunkId, ChunkState, DataStore, MediaError, Nand, NandConfig, UnitInChunk};
use rng::Rng;
use testkit::test_path;

use super::fixture::{config, stage, verify};

const IMAGE: &str = "SLUICE_TEST_IMAGE";
const SEED: &str = "SLUICE_TEST_SEED";

fn image_config(path: PathBuf) -> NandConfig {
    NandConfig { data: DataStore::File(path), ..config() }
}

/// Returns the generation of a chunk after a number of erases.
fn stamp(wear: u32) -> u64 {
    u64::from(wear) + 1
}

/// The child: programs and erases chunks at random until it is killed, and reports each operation.
#[test]
#[ignore = "the child of the test below"]
fn child() {
    let (Ok(image), Ok(seed)) = (std::env::var(IMAGE), std::env::var(SEED)) else {
        return;
    };
    let mut n = Nand::open(image_config(image.into())).unwrap();
    let mut rng = Rng::new(seed.parse().unwrap());
    let mut out = std::io::stderr();
    loop {
        let chunk = ChunkId(rng.below(u64::from(n.layout().chunk_count())) as u32);
        let info = n.chunk_info(chunk).unwrap();
        let line = if info.state == ChunkState::Closed {
            // The child reports an erase before it starts: the contents of the chunk may be lost
            // from now on.
            out.write_all(format!("E {} {}\n", chunk.0, info.wear + 1).as_bytes()).unwrap();
            n.begin_erase(chunk).unwrap();
            std::thread::yield_now();
            n.complete_erase(chunk).unwrap();
            continue;
        } else {
            let unit = info.write_pointer / n.layout().write_unit();
            stage(&mut n, chunk, unit, stamp(info.wear)).unwrap();
            n.begin_program(chunk, UnitInChunk(unit)).unwrap();
            std::thread::yield_now();
            n.complete_program(chunk, UnitInChunk(unit)).unwrap();
            // The child writes each report with one call, which a pipe accepts entirely or not at
            // all.
            format!("P {} {} {}\n", chunk.0, info.wear, unit)
        };
        out.write_all(line.as_bytes()).unwrap();
    }
}

#[test]
fn a_kill_is_a_power_cut() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("drive.img");
    let n = Nand::create(image_config(path.clone())).unwrap();
    let (chunks, units, per_unit) =
        (n.layout().chunk_count(), n.layout().units_per_chunk(), n.layout().write_unit());
    drop(n);
    let mut torn_units = 0;
    // Per chunk: wear, and the number of units that the child reported as programmed at that wear.
    let mut said = vec![(0u32, 0u32); chunks as usize];
    for round in 0..30u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test_path!(child), "--ignored", "--nocapture", "--test-threads=1"])
            .env(IMAGE, &path)
            .env(SEED, round.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let kill_after = 200 + 37 * round as usize;
        for (i, line) in lines.enumerate() {
            let line = line.unwrap();
            if i == kill_after {
                child.kill().unwrap();
            }
            let words: Vec<&str> = line.split(' ').collect();
            let number = |i: usize| words[i].parse::<u32>().unwrap();
            match words[..] {
                ["P", _, _, _] => said[number(1) as usize] = (number(2), number(3) + 1),
                ["E", _, _] => said[number(1) as usize] = (number(2), 0),
                _ => panic!("unexpected report of the child: {line}"),
            }
        }
        child.wait().unwrap();

        let mut n = Nand::open(image_config(path.clone())).unwrap();
        for chunk in (0..chunks).map(ChunkId) {
            let info = n.chunk_info(chunk).unwrap();
            let (wear, programmed) = said[chunk.0 as usize];
            // A reported erase may not have started.
            let erase_pending = programmed == 0 && info.wear + 1 == wear;
            assert!(info.wear == wear || erase_pending, "{chunk}: {info:?}, reported wear {wear}");
            if info.wear == wear {
                assert!(info.write_pointer / per_unit >= programmed, "{chunk} has lost units");
            }
            let mut torn_here = 0;
            for sector in 0..units * per_unit {
                let phys = n.layout().phys(chunk, sector);
                match verify(&mut n, phys, stamp(info.wear)) {
                    Ok(()) => assert!(sector < info.write_pointer),
                    Err(MediaError::Torn { .. }) => torn_here += 1,
                    Err(MediaError::Unwritten { .. }) => assert!(sector >= info.write_pointer),
                    Err(MediaError::PairNotProgrammed { .. }) => {
                        assert_eq!(info.state, ChunkState::Open);
                    }
                    Err(MediaError::EraseInterrupted { .. }) => {
                        assert_eq!((info.state, programmed), (ChunkState::Closed, 0));
                    }
                    Err(e) => panic!("{e}"),
                }
            }
            torn_units += torn_here / per_unit;
            said[chunk.0 as usize] = (info.wear, info.write_pointer / per_unit);
        }
    }
    println!("{torn_units} torn units in sight over 30 kills");
}

//! Random operations compared with a simple, slow model.

use media::{
    CellType, ChunkId, ChunkState, DataStore, InjectedFault, MediaError, Nand, NandConfig,
    Operation, UnitInChunk,
};
use proptest::prelude::*;

use super::fixture::{config, stage, verify};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Stages and begins a program, at the write pointer or `off` units from it.
    Begin {
        chunk: u32,
        off: i32,
    },
    End {
        chunk: u32,
    },
    BeginErase {
        chunk: u32,
    },
    EndErase {
        chunk: u32,
    },
    FailNextProgram,
    FailNextErase,
    Spoil {
        chunk: u32,
        sector: u32,
    },
    GoBad {
        chunk: u32,
    },
    Cut,
    Reopen,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Unit {
    Good(u64),
    Torn,
    Failed,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    units: Vec<Unit>,
    spoiled: Vec<u32>,
    programming: Option<u64>,
    erasing: bool,
    interrupted: bool,
    bad: bool,
    wear: u32,
}

impl Chunk {
    fn is_closed(&self) -> bool {
        self.units.contains(&Unit::Failed)
    }

    fn info(&self, cfg: &NandConfig) -> (ChunkState, u32, u32) {
        let full = cfg.geometry.sectors_per_chunk();
        let good = self.units.iter().filter(|u| **u != Unit::Failed).count() as u32;
        let pointer = good * cfg.write_unit();
        let (state, pointer) = if self.bad {
            (ChunkState::Offline, 0)
        } else if self.erasing || self.interrupted {
            (ChunkState::Closed, full)
        } else if self.is_closed() || pointer == full {
            (ChunkState::Closed, pointer)
        } else if pointer == 0 && self.programming.is_none() {
            (ChunkState::Free, 0)
        } else {
            (ChunkState::Open, pointer)
        };
        (state, self.wear, pointer)
    }

    fn expected_read(&self, cfg: &NandConfig, sector: u32) -> Result<u64, &'static str> {
        if self.bad {
            return Err("bad");
        }
        if self.erasing {
            return Err("erasing");
        }
        if self.interrupted {
            return Err("interrupted");
        }
        let unit = (sector / cfg.write_unit()) as usize;
        let stamp = match self.units.get(unit) {
            None => return Err("unwritten"),
            Some(Unit::Failed) => return Err("failed"),
            Some(Unit::Torn) => return Err("torn"),
            Some(Unit::Good(stamp)) => *stamp,
        };
        let stripe = cfg.geometry.sectors_per_stripe();
        let pages = self.units.len() as u32 * cfg.pages_per_program();
        let over = pages == cfg.geometry.pages || self.is_closed();
        if !over && sector / stripe + cfg.paired_page_distance >= pages {
            return Err("unpaired");
        }
        if self.spoiled.contains(&sector) {
            return Err("uncorrectable");
        }
        Ok(stamp)
    }
}

fn name(error: MediaError) -> &'static str {
    match error {
        MediaError::ChunkBad { .. } => "bad",
        MediaError::Busy { with: Operation::Erase, .. } => "erasing",
        MediaError::Busy { .. } => "programming",
        MediaError::EraseInterrupted { .. } => "interrupted",
        MediaError::Unwritten { .. } => "unwritten",
        MediaError::FailedUnit { .. } => "failed",
        MediaError::Torn { .. } => "torn",
        MediaError::PairNotProgrammed { .. } => "unpaired",
        MediaError::Uncorrectable { .. } => "uncorrectable",
        MediaError::OutOfOrder { .. } => "out of order",
        MediaError::ClosedEarly { .. } => "closed",
        MediaError::ProgramFailed { .. } => "program failed",
        MediaError::EraseFailed { .. } => "erase failed",
        MediaError::NotBegun { .. } => "not begun",
        e => panic!("{e}"),
    }
}

const CHUNKS: u32 = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let chunk = 0..CHUNKS;
    let step = prop_oneof![
        30 => (chunk.clone(), prop_oneof![9 => Just(0), 1 => -2..3i32])
            .prop_map(|(chunk, off)| Step::Begin { chunk, off }),
        30 => chunk.clone().prop_map(|chunk| Step::End { chunk }),
        6 => chunk.clone().prop_map(|chunk| Step::BeginErase { chunk }),
        6 => chunk.clone().prop_map(|chunk| Step::EndErase { chunk }),
        1 => Just(Step::FailNextProgram),
        1 => Just(Step::FailNextErase),
        2 => (chunk.clone(), 0..24u32).prop_map(|(chunk, sector)| Step::Spoil { chunk, sector }),
        1 => chunk.prop_map(|chunk| Step::GoBad { chunk }),
        2 => Just(Step::Cut),
        2 => Just(Step::Reopen),
        1 => Just(Step::Release),
    ];
    prop::collection::vec(step, 1..120)
}

fn shapes() -> impl Strategy<Value = NandConfig> {
    let cells = prop_oneof![
        Just((CellType::Slc, false, 0..1u32)),
        Just((CellType::Mlc, false, 1..4)),
        Just((CellType::Tlc, false, 2..6)),
        Just((CellType::Tlc, true, 0..1)),
        Just((CellType::Qlc, true, 0..1)),
    ];
    (cells.prop_flat_map(|(c, o, d)| (Just(c), Just(o), d)), 1..3u32).prop_map(
        |((cell, one_shot, pair_distance), planes)| {
            let mut cfg = config();
            (cfg.cell, cfg.one_shot, cfg.paired_page_distance) = (cell, one_shot, pair_distance);
            let g = &mut cfg.geometry;
            (g.channels, g.pus, g.chunks, g.planes) = (1, 2, CHUNKS / 2, planes);
            (g.page_bytes, g.oob_bytes) = (512 * (3 - planes), 8);
            cfg
        },
    )
}

fn check(n: &mut Nand, cfg: &NandConfig, model: &[Chunk]) {
    for (id, m) in (0..).map(ChunkId).zip(model) {
        let info = n.chunk_info(id).unwrap();
        assert_eq!((info.state, info.wear, info.write_pointer), m.info(cfg), "{id} {m:?}");
        for sector in 0..cfg.geometry.sectors_per_chunk() {
            let phys = n.layout().phys(id, sector);
            match m.expected_read(cfg, sector) {
                Ok(stamp) => verify(n, phys, stamp).unwrap(),
                Err(why) => assert_eq!(n.check_read(phys).map_err(name), Err(why), "{phys}"),
            }
        }
    }
}

fn run(mut cfg: NandConfig, steps: &[Step], file: bool) {
    let dir = tempfile::TempDir::new().unwrap();
    if file {
        cfg.data = DataStore::File(dir.path().join("drive.img"));
    }
    let mut n = Nand::create(cfg.clone()).unwrap();
    let mut model = vec![Chunk::default(); CHUNKS as usize];
    let units = cfg.geometry.sectors_per_chunk() / cfg.write_unit();
    let (mut stamp, mut fail_programs, mut fail_erases) = (0, 0, 0);
    for step in steps {
        match *step {
            Step::Begin { chunk, off } => {
                let (id, m) = (ChunkId(chunk), &mut model[chunk as usize]);
                let next = if m.interrupted || m.erasing { units } else { m.units.len() as u32 };
                let Some(unit) = next.checked_add_signed(off) else {
                    continue;
                };
                stamp += 1;
                let want = if m.bad {
                    Err("bad")
                } else if m.interrupted {
                    Err("interrupted")
                } else if m.is_closed() {
                    Err("closed")
                } else if m.programming.is_some() {
                    Err("programming")
                } else if m.erasing {
                    Err("erasing")
                } else if off != 0 || next == units {
                    Err("out of order")
                } else {
                    stage(&mut n, id, unit, stamp).unwrap();
                    m.programming = Some(stamp);
                    Ok(())
                };
                assert_eq!(n.begin_program(id, UnitInChunk(unit)).map_err(name), want, "{step:?}");
            }
            Step::End { chunk } => {
                let (id, m) = (ChunkId(chunk), &mut model[chunk as usize]);
                let unit = m.units.len() as u32;
                let want = match m.programming.take() {
                    None => Err("not begun"),
                    Some(_) if m.bad => Err("bad"),
                    Some(_) if fail_programs > 0 => {
                        fail_programs -= 1;
                        m.units.push(Unit::Failed);
                        Err("program failed")
                    }
                    Some(stamp) => {
                        m.units.push(Unit::Good(stamp));
                        Ok(())
                    }
                };
                assert_eq!(
                    n.complete_program(id, UnitInChunk(unit)).map_err(name),
                    want,
                    "{step:?}"
                );
            }
            Step::BeginErase { chunk } => {
                let (id, m) = (ChunkId(chunk), &mut model[chunk as usize]);
                let want = if m.bad {
                    Err("bad")
                } else if m.programming.is_some() {
                    Err("programming")
                } else if m.erasing {
                    Err("erasing")
                } else {
                    *m = Chunk { erasing: true, wear: m.wear + 1, ..Chunk::default() };
                    Ok(())
                };
                assert_eq!(n.begin_erase(id).map_err(name), want, "{step:?}");
            }
            Step::EndErase { chunk } => {
                let (id, m) = (ChunkId(chunk), &mut model[chunk as usize]);
                let want = if !m.erasing {
                    Err("not begun")
                } else if m.bad {
                    Err("bad")
                } else if fail_erases > 0 {
                    fail_erases -= 1;
                    m.bad = true;
                    Err("erase failed")
                } else {
                    Ok(())
                };
                m.erasing = false;
                assert_eq!(n.complete_erase(id).map_err(name), want, "{step:?}");
            }
            Step::FailNextProgram => {
                n.inject(InjectedFault::NextProgram).unwrap();
                fail_programs += 1;
            }
            Step::FailNextErase => {
                n.inject(InjectedFault::NextErase).unwrap();
                fail_erases += 1;
            }
            Step::Spoil { chunk, sector } => {
                let sector = sector % cfg.geometry.sectors_per_chunk();
                let phys = n.layout().phys(ChunkId(chunk), sector);
                n.inject(InjectedFault::Uncorrectable { phys }).unwrap();
                model[chunk as usize].spoiled.push(sector);
            }
            Step::GoBad { chunk } => {
                n.inject(InjectedFault::ChunkBad { chunk: ChunkId(chunk) }).unwrap();
                model[chunk as usize].bad = true;
            }
            Step::Cut | Step::Reopen => {
                let reopen = matches!(step, Step::Reopen) && file;
                if reopen {
                    drop(n);
                    n = Nand::open(cfg.clone()).unwrap();
                    (fail_programs, fail_erases) = (0, 0);
                } else {
                    n.power_cut();
                }
                for m in &mut model {
                    if m.programming.take().is_some() && !m.bad {
                        m.units.push(Unit::Torn);
                    }
                    m.interrupted |= std::mem::take(&mut m.erasing) && !m.bad;
                    if reopen {
                        m.spoiled.clear();
                    }
                }
            }
            Step::Release => n.release_free().unwrap(),
        }
        // The counters that the model does not track must not keep values of an earlier state.
        assert!(n.stats().wear.max < 1000);
    }
    check(&mut n, &cfg, &model);
    if file {
        n.power_cut();
        drop(n);
        for m in &mut model {
            if m.programming.take().is_some() && !m.bad {
                m.units.push(Unit::Torn);
            }
            m.interrupted |= std::mem::take(&mut m.erasing) && !m.bad;
            m.spoiled.clear();
        }
        let mut n = Nand::open(cfg.clone()).unwrap();
        check(&mut n, &cfg, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_do_what_the_model_does(cfg in shapes(), steps in steps()) {
        run(cfg, &steps, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_on_an_image_do_what_the_model_does(cfg in shapes(), steps in steps()) {
        run(cfg, &steps, true);
    }
}

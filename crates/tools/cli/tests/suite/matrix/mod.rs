//! Every combination that `sluice matrix` lists as running runs: a random mix of writes, reads and
//! flushes whose data is compared. A refused one is refused by every front end with the listed reason.
//! The combinations that need hardware run in the guests of `make test-guest` (`hardware.rs`).
//!
//! `UPDATE=1 cargo test -p sluice-cli --test suite matrix` writes `docs/matrix.md`.

// guarantee: B-18

mod hardware;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::open::{OpenOptions, open};
use ::sim::{SimError, SimOptions, simulate};
use rng::Rng;
use scenario::choice::{
    BlockChoice, Choice, DriveChoice, FrontEnd, Impossible, SchedulerChoice, TargetChoice,
};
use scenario::{CompletionMethod, Scenario};
use serde_json::Value;
use testkit::nbd_client::NbdClient;
use user_io::{DeviceKind, Handle, IoDevice, QueueConfig};

use crate::served::Server;

const SECTOR: usize = 4096;
/// Sectors of one submitter.
const OWN: u64 = 64;
const OPERATIONS: u32 = 120;

/// Returns the combinations of a front end: every scheduler and every method of completion with all
/// drives, targets and block layers, and all pairs of them on a drive.
fn of(front: FrontEnd) -> impl Iterator<Item = Choice> {
    let is_pair = |choice: &Choice| {
        choice.scheduler == SchedulerChoice::None
            || choice.completion == CompletionMethod::Poll
            || (choice.drive, choice.target) == (DriveChoice::Block, TargetChoice::None)
    };
    Choice::all().filter(move |choice| choice.front == front && is_pair(choice))
}

/// Returns whether the drive keeps data.
fn keeps_data(choice: &Choice) -> bool {
    choice.drive != DriveChoice::Null
}

/// Writes the scenario of a choice into a folder, with the file of a drive that is one.
fn write_scenario(dir: &Path, choice: &Choice) -> PathBuf {
    let path = dir.join("m.toml");
    std::fs::write(&path, choice.scenario()).unwrap();
    if choice.drive == DriveChoice::File {
        make_file(dir);
    }
    path
}

fn make_file(dir: &Path) {
    let file = std::fs::File::create(dir.join("disk.img")).unwrap();
    file.set_len(32 << 20).unwrap();
}

/// A step of the mix on the sectors of one submitter.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        sector: u64,
        byte: u8,
    },
    /// The expected byte; `None` where the drive keeps no data.
    Read {
        sector: u64,
        byte: Option<u8>,
    },
    Flush,
}

/// Returns a mix of steps; its last steps read every sector. On hardware, which has the data of earlier
/// tests, its first steps write zeros to every sector.
fn mix(seed: u64, choice: &Choice) -> Vec<Step> {
    let keeps_data = keeps_data(choice);
    let mut rng = Rng::new(seed);
    let mut model = vec![0u8; OWN as usize];
    let read = |model: &[u8], sector: u64| Step::Read {
        sector,
        byte: keeps_data.then(|| model[sector as usize]),
    };
    let mut steps = Vec::new();
    if choice.needs_hardware() {
        steps.extend((0..OWN).map(|sector| Step::Write { sector, byte: 0 }));
    }
    for i in 0..OPERATIONS {
        let sector = rng.below(OWN);
        steps.push(match rng.below(10) {
            0 => Step::Flush,
            1..6 => {
                let byte = (i as u8) | 1;
                model[sector as usize] = byte;
                Step::Write { sector, byte }
            }
            _ => read(&model, sector),
        });
    }
    steps.push(Step::Flush);
    steps.extend((0..OWN).map(|sector| read(&model, sector)));
    steps
}

#[test]
fn the_document_is_the_output() {
    let out = Command::new(env!("CARGO_BIN_EXE_sluice")).arg("matrix").output().unwrap();
    assert!(out.status.success());
    let page = String::from_utf8(out.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/matrix.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(page == committed, "docs/matrix.md differs: run this test with UPDATE=1");

    let out = Command::new(env!("CARGO_BIN_EXE_sluice")).args(["matrix", "--json"]).output();
    let json: Value = serde_json::from_slice(&out.unwrap().stdout).unwrap();
    let cells = json["combinations"].as_array().unwrap();
    assert_eq!(cells.len(), Choice::all().count());
    for (cell, choice) in cells.iter().zip(Choice::all()) {
        assert_eq!(cell["target"], choice.target.word());
        match choice.check() {
            Ok(()) => {
                let runs = if choice.needs_hardware() { "needs hardware" } else { "runs" };
                assert!(cell["verdict"] == runs && cell["reason"].is_null(), "{cell}");
            }
            Err(why) => {
                assert_eq!(cell["verdict"], "refused");
                assert_eq!(cell["reason"], why.to_string());
            }
        }
    }
}

/// Records are put, and read and updated by two jobs; all values are compared.
const JOBS_ON_KEYS: &str = "[[job]]\nname = \"load\"\npath = \"path\"\nycsb = \"load\"\n\
    recordcount = 200\nbs = 1000\niodepth = 8\nverify = \"crc32c\"\n\
    [[job]]\nname = \"mix\"\npath = \"path\"\nstonewall = true\nycsb = \"a\"\nrecordcount = 200\n\
    operationcount = 400\nbs = 1000\niodepth = 8\nverify = \"crc32c\"\n";

/// Two jobs on parallel units of their own write chunks and read them back.
const JOBS_ON_UNITS: &str = "[[job]]\nname = \"a\"\npath = \"path\"\npus = \"0-3\"\nrw = \"randrw\"\n\
    bs = \"64k\"\niodepth = 4\nsize = \"4m\"\nio_size = \"8m\"\nverify = \"crc32c\"\n\
    [[job]]\nname = \"b\"\npath = \"path\"\npus = \"4-7\"\nrw = \"write\"\nbs = \"64k\"\niodepth = 4\n\
    size = \"4m\"\nio_size = \"8m\"\nverify = \"crc32c\"\n";

#[test]
fn every_combination_is_simulated_or_refused() {
    let mut ran = 0;
    for choice in of(FrontEnd::Simulation) {
        let verify = if keeps_data(&choice) { "verify = \"crc32c\"\n" } else { "" };
        let job = |name: &str, offset: &str| {
            format!(
                "[[job]]\nname = \"{name}\"\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 8\nsize = \"256k\"\n\
                 offset = \"{offset}\"\nfsync = 16\nend_fsync = 1\n{verify}"
            )
        };
        let jobs = match choice.target {
            TargetChoice::Kv => JOBS_ON_KEYS.to_owned(),
            TargetChoice::Ppa => JOBS_ON_UNITS.to_owned(),
            _ => job("a", "0") + &job("b", "1m"),
        };
        let text = choice.scenario() + &jobs;
        let parsed = Scenario::parse(Path::new("m.toml"), &text);
        let ran_it =
            parsed.map_err(SimError::from).and_then(|s| simulate(&s, SimOptions::default()));
        match (choice.check(), ran_it) {
            (Ok(()), Ok(outcome)) => {
                assert_eq!(outcome.failures(), [""; 0], "{choice:?}");
                let ios = |i: usize| -> u64 {
                    outcome.paths[0].run.jobs[i].directions.iter().map(|d| d.ios).sum()
                };
                assert!(ios(0) >= 64 && ios(1) >= 64, "{choice:?}");
                let layered = choice.block != BlockChoice::Raw;
                assert_eq!(outcome.paths[0].block_layer.is_some(), layered, "{choice:?}");
                ran += 1;
            }
            (Err(why), Err(error)) => assert_same_reason(&choice, &why, &error.to_string()),
            (verdict, result) => panic!("{choice:?}: {verdict:?}, but {:?}", result.err()),
        }
    }
    assert!(ran > 80, "{ran}");
}

fn assert_same_reason(choice: &Choice, why: &Impossible, error: &str) {
    for part in [why.to_string(), why.help()] {
        assert!(error.contains(&part), "{choice:?}: {error}, not {part}");
    }
}

#[test]
fn every_combination_is_opened_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut ran = 0;
    for (seed, choice) in of(FrontEnd::Application).enumerate() {
        let path = write_scenario(dir.path(), &choice);
        let opened = open(path.to_str().unwrap(), &OpenOptions::default());
        match (choice.check(), opened) {
            (Ok(()), Ok(device))
                if choice.target == TargetChoice::None
                    && matches!(
                        choice.drive,
                        DriveChoice::OpenChannel | DriveChoice::OpenChannelWithMap
                    ) =>
            {
                let queue = device.vector_queue(QueueConfig::default()).unwrap();
                assert!(device.kind() == DeviceKind::Drive && queue.max_sectors() > 0);
                device.destroy_vector_queue(queue);
                ran += 1;
            }
            // The guests of `make test-guest` have controllers. Here none has this name.
            (Ok(()), Err(error)) if choice.needs_hardware() => {
                let name = if choice.drive == DriveChoice::Pci { "7ffffff0" } else { "ng4095n1" };
                assert!(error.to_string().contains(name), "{choice:?}: {error}");
            }
            (Ok(()), Ok(device)) => {
                run_threads(&choice, &device, submitters(&choice), seed as u64);
                ran += 1;
            }
            (Err(why), Err(error)) => assert_same_reason(&choice, &why, &error.to_string()),
            (verdict, result) => panic!("{choice:?}: {verdict:?}, but {:?}", result.err()),
        }
    }
    assert!(ran > 80, "{ran}");
}

/// Returns the number of queues that submit to an opened combination: one per core of the block
/// layer. A target without a block layer has one per shard.
fn submitters(choice: &Choice) -> u16 {
    match (choice.block, choice.drive, choice.target) {
        (BlockChoice::SingleQueue | BlockChoice::MultiQueue | BlockChoice::OneStaging, ..) => {
            Choice::CORES
        }
        // One command list, and one ring.
        (_, DriveChoice::Ahci | DriveChoice::File | DriveChoice::Kernel, _) => 1,
        (.., TargetChoice::None | TargetChoice::Shards) => 2,
        (.., TargetChoice::Pblk | TargetChoice::Rrpc | TargetChoice::Rules) => 1,
        // No block requests.
        (.., TargetChoice::Kv | TargetChoice::Ppa) => 0,
    }
}

/// Runs the mix on as many queues as there are `submitters`, each on a thread of its own.
fn run_threads(choice: &Choice, device: &IoDevice, submitters: u16, seed: u64) {
    std::thread::scope(|scope| {
        for thread in 0..u64::from(submitters) {
            let queue = device.create_queue(QueueConfig::default()).unwrap();
            let mut handle = Handle::new(device, queue).unwrap();
            scope.spawn(move || {
                let data = device.buffer(SECTOR).unwrap();
                let lba = |sector: u64| thread + sector * u64::from(submitters);
                let sectors = (SECTOR as u32 / device.limits().sector_bytes) as u64;
                for step in mix(seed + thread, choice) {
                    match step {
                        Step::Write { sector, byte } => {
                            data.fill(0, SECTOR, byte);
                            handle.write(lba(sector) * sectors, &data, false).unwrap();
                        }
                        Step::Read { sector, byte } => {
                            data.fill(0, SECTOR, 0xee);
                            handle.read(lba(sector) * sectors, &data).unwrap();
                            let mut back = vec![0; SECTOR];
                            data.read(0, &mut back);
                            let same = byte.is_none_or(|byte| back.iter().all(|b| *b == byte));
                            assert!(same, "{choice:?}: sector {sector}: {} {byte:?}", back[0]);
                        }
                        Step::Flush => handle.flush().unwrap(),
                    }
                }
            });
        }
    });
}

/// Serves a scenario with the choice to two NBD clients.
fn serve(dir: &Path, choice: &Choice, scenario: &str, seed: u64) {
    let server = Server::start(dir, scenario);
    let mut clients: Vec<NbdClient> =
        (0..2).map(|_| NbdClient::transmission(&server.socket)).collect();
    let steps = |who| mix(seed + who, choice);
    for both in std::iter::zip(steps(0), steps(1)) {
        for (who, step) in (0..).zip([both.0, both.1]) {
            let client = &mut clients[who as usize];
            let at = |sector: u64| (who * OWN + sector) * SECTOR as u64;
            match step {
                Step::Write { sector, byte } => {
                    client.write(at(sector), &[byte; SECTOR]).unwrap();
                }
                Step::Read { sector, byte } => {
                    let back = client.read(at(sector), SECTOR as u32).unwrap();
                    let same = byte.is_none_or(|byte| back.iter().all(|b| *b == byte));
                    assert!(same, "{choice:?}: sector {sector}: {} {byte:?}", back[0]);
                }
                Step::Flush => client.flush().unwrap(),
            }
        }
    }
    clients.into_iter().for_each(NbdClient::disconnect);
    server.stop();
}

#[test]
fn every_combination_is_served() {
    let mut served = 0;
    for choice in of(FrontEnd::Server).filter(|choice| choice.check().is_ok()) {
        if choice.needs_hardware() {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        if choice.drive == DriveChoice::File {
            make_file(dir.path());
        }
        serve(dir.path(), &choice, &choice.scenario(), served);
        served += 1;
    }
    assert!(served > 90, "{served}");
}

#[test]
fn a_server_refuses_with_the_reason_of_the_matrix() {
    // One combination per reason.
    let mut told = BTreeSet::new();
    for choice in of(FrontEnd::Server) {
        let Err(why) = choice.check() else { continue };
        if choice.scheduler == SchedulerChoice::Kyber || !told.insert(why.to_string()) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = write_scenario(dir.path(), &choice);
        let socket = format!("unix:{}", dir.path().join("s").display());
        let out = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .arg("serve")
            .arg(&path)
            .args(["--nbd", &socket])
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(2), "{choice:?}");
        // Messages are wrapped.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let error = words(&String::from_utf8(out.stderr).unwrap().replace('│', " "));
        assert!(error.contains(&words(&why.to_string())), "{choice:?}: {error}, not {why}");
    }
    assert!(told.len() >= 5, "{told:?}");
}

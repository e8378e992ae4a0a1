//! States of preconditioned drives in files: a drive that starts from one behaves as the drive that was
//! preconditioned, whatever its FTL; a file that is not its state is refused and left as it is; the
//! folder keeps its limits.

// guarantee: B-48

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rng::Rng;
use scenario::{Scenario, StateFolder};
use sluice_stack::{
    PrepareEvent, RunObserver, Stack, StackError, StateError, StateKey, StateUse, co_simulate,
    keep_states, precondition_stack, prepare_drive, prepare_paths,
};
use tempfile::TempDir;
use time::VirtualRunner;
use workload::{IoCpuCosts, JobRunner, JobSpec};

const SEED: u64 = 7;
const DRIVE: &str = "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, chunks = 48, pages = 32 }\n\
    write_buffer.size = \"1M\"\nftl.over_provisioning = 0.2\n";
const FILLED: &str = "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n";

fn scenario(text: &str, folder: &Path) -> Scenario {
    let mut scenario = Scenario::parse(Path::new("t.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    let (path, bytes_max, worth) = (folder.to_owned(), StateFolder::BYTES_MAX, Duration::ZERO);
    scenario.precondition.states = Some(StateFolder { path, bytes_max, worth });
    scenario
}

fn small(folder: &Path) -> Scenario {
    scenario(&format!("{DRIVE}{FILLED}"), folder)
}

/// Builds the stack of the only drive and preconditions it.
fn prepare(scenario: &Scenario) -> Result<(Stack, Option<StateUse>), StackError> {
    let (plan, what) = (&scenario.drives[0], &scenario.precondition);
    let stack = Stack::build(plan, None)?;
    precondition_stack(stack, plan, what, &mut VirtualRunner::new(), SEED, &mut |_| {})
}

/// Prepares a stack whose state must be kept; returns its file.
fn keep(scenario: &Scenario) -> PathBuf {
    match prepare(scenario) {
        Ok((_, Some(StateUse::Kept(path, bytes)))) => {
            assert_eq!(path.metadata().unwrap().len(), bytes);
            path
        }
        other => panic!("{:?}", other.map(|(_, used)| used)),
    }
}

/// Returns the error with which a file is refused.
fn rejection(scenario: &Scenario) -> StateError {
    match prepare(scenario) {
        Err(StackError::State { source, .. }) => source,
        other => panic!("{:?}", other.map(|(_, used)| used)),
    }
}

/// Runs a mix of reads and writes; returns all that can be observed of it.
fn observe(mut stack: Stack) -> String {
    let pairs = [
        ("rw", "randrw"),
        ("bs", "4k"),
        ("iodepth", "16"),
        ("norandommap", "1"),
        ("io_size", "40m"),
    ];
    let pairs = pairs.into_iter().map(|(key, value)| (key, value, 1));
    let (spec, _) = JobSpec::from_pairs("mix", Path::new("t.toml"), pairs).unwrap();
    let mut runner = VirtualRunner::new();
    let device = &mut stack.device;
    let mut jobs = JobRunner::new(device, vec![spec], IoCpuCosts::default(), 3).unwrap();
    co_simulate(&mut runner, &mut jobs, &mut stack.drive, RunObserver::new(&mut |_, _, _| true));
    let run = jobs.finish().unwrap();
    let job = &run.jobs[0];
    assert!(job.requests.completed > 5_000, "{:?}", job.requests);
    stack.drive.check_invariants().unwrap_or_else(|e| panic!("{e}"));
    format!("{:?} {:?} {:?} {:?}", runner.now(), job, stack.ftl_stats(), stack.drive.stats())
}

#[test]
fn every_drive_starts_from_its_file_as_it_was_preconditioned() {
    let open_channel = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"none\"\n\
        geometry = { channels = 2, pus = 2, pages = 32, chunks = 48 }\n";
    let l2p = open_channel.replace("data = \"none\"", "data = \"memory\"\ndevice_l2p = true");
    let mut texts: Vec<String> = ["greedy", "cost-benefit", "fifo", "cost-wear"]
        .into_iter()
        .map(|policy| format!("{DRIVE}ftl.victim_policy = \"{policy}\"\n{FILLED}"))
        .collect();
    let data = DRIVE.replace("\"none\"", "\"memory\"");
    texts.extend([
        format!("{data}ftl.l2p_cache = \"128K\"\n{FILLED}"),
        format!("{DRIVE}ftl.active_pus = 1\nftl.static_wear_leveling = 20\n{FILLED}"),
        format!("{data}ftl.p2l = \"media\"\nftl.line_metadata = true\n{FILLED}"),
        format!("{data}{FILLED}"),
        format!("{DRIVE}errors.program_failure_rate = 1e-5\n{FILLED}"),
        format!("{open_channel}[target]\nkind = \"pblk\"\n{FILLED}"),
        format!("{}[target]\nkind = \"pblk\"\n{FILLED}", open_channel.replace("none", "memory")),
        format!("{l2p}[target]\nkind = \"rrpc\"\n{FILLED}"),
        format!("[drive]\npreset = \"pcm\"\ncapacity = \"16M\"\n{FILLED}"),
        format!("[drive]\npreset = \"nvme-null\"\ncapacity = \"16M\"\n{FILLED}"),
    ]);
    for text in texts {
        let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let direct =
            Scenario::parse(Path::new("t.toml"), &text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let file = keep(&scenario(&text, first.path()));
        // Preconditioning a second time writes the same bytes.
        let again = keep(&scenario(&text, second.path()));
        assert!(fs::read(&file).unwrap() == fs::read(&again).unwrap(), "{text}");
        let (loaded, used) = prepare(&scenario(&text, first.path())).unwrap();
        assert_eq!(used, Some(StateUse::Loaded(file)), "{text}");
        let (expected, none) = prepare(&direct).unwrap();
        assert_eq!(none, None, "{text}");
        assert_eq!(observe(loaded), observe(expected), "{text}");
    }
}

#[test]
fn a_damaged_file_is_refused_and_left_as_it_is() {
    let folder = TempDir::new().unwrap();
    let scenario = small(folder.path());
    let file = keep(&scenario);
    let whole = fs::read(&file).unwrap();
    let mut rng = Rng::new(1);
    for case in 0..200 {
        let mut bytes = whole.clone();
        if case % 4 == 0 {
            bytes.truncate(rng.below(whole.len() as u64) as usize);
        } else {
            // A quarter of the changes is in the header and the inputs.
            let end = if case % 4 == 1 { 4096 } else { whole.len() as u64 };
            bytes[rng.below(end) as usize] ^= 1 << rng.below(8);
        }
        fs::write(&file, &bytes).unwrap();
        let error = rejection(&scenario);
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
        assert!(
            matches!(
                error,
                StateError::NotAState { .. }
                    | StateError::Damaged { .. }
                    | StateError::Version { .. }
            ),
            "{case}: {error}"
        );
        assert!(fs::read(&file).unwrap() == bytes, "{case}: the file was changed");
    }
    fs::write(&file, &whole).unwrap();
    assert!(matches!(prepare(&scenario).unwrap().1, Some(StateUse::Loaded(_))));
}

#[test]
fn the_state_of_another_drive_or_program_is_refused_by_what_differs() {
    let folder = TempDir::new().unwrap();
    let file = keep(&small(folder.path()));
    let refused = |text: &str, found: &str, wanted: &str| {
        let scenario = scenario(text, folder.path());
        let key = StateKey::new(&scenario.drives[0], &scenario.precondition, SEED);
        let path = folder.path().join(key.file_name());
        assert_ne!(path, file, "{text}");
        fs::copy(&file, &path).unwrap();
        match rejection(&scenario) {
            StateError::Foreign { found: f, wanted: w, .. } => {
                assert!(f.contains(found) && w.contains(wanted), "{f} {w}");
            }
            other => panic!("{text}: {other}"),
        }
    };
    refused(&format!("{}{FILLED}", DRIVE.replace("pus = 2", "pus = 4")), "pus: 2", "pus: 4");
    refused(&format!("{DRIVE}{}", FILLED.replace("1x", "2x")), "1.0", "2.0");
    let policy = format!("{DRIVE}ftl.victim_policy = \"fifo\"\n{FILLED}");
    refused(&policy, "victim_policy: Greedy", "victim_policy: Fifo");
    // The name of a drive and where its states are kept are no part of its state.
    let named = scenario(&format!("{DRIVE}name = \"other\"\n{FILLED}"), folder.path());
    assert!(matches!(prepare(&named).unwrap().1, Some(StateUse::Loaded(_))));
    // A file of another program has its version in the first line of the inputs.
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(7).position(|window| window == b"sluice ").unwrap() + 7;
    bytes[at] = b'9';
    let text_bytes = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
    let crc = crc32c::crc32c(&bytes[64..64 + text_bytes]).to_le_bytes();
    bytes[48..52].copy_from_slice(&crc);
    let seal = crc32c::crc32c(&bytes[..60]).to_le_bytes();
    bytes[60..64].copy_from_slice(&seal);
    fs::write(&file, &bytes).unwrap();
    match rejection(&small(folder.path())) {
        StateError::Foreign { found, wanted, .. } => {
            assert!(found.starts_with("sluice 9") && wanted.starts_with("sluice 0"), "{found}");
        }
        other => panic!("{other}"),
    }
    // And one of another version of the file's form has it in its header.
    bytes[8] = 9;
    fs::write(&file, &bytes).unwrap();
    assert!(matches!(rejection(&small(folder.path())), StateError::Version { found: 9, .. }));
}

#[test]
fn a_folder_that_cannot_be_written_or_is_too_small_is_told_and_nothing_is_left_behind() {
    let folder = TempDir::new().unwrap();
    let not_kept = |scenario: &Scenario, says: &str| match prepare(scenario).unwrap().1 {
        Some(StateUse::NotKept(why)) => assert!(why.contains(says), "{why}"),
        other => panic!("{other:?}"),
    };
    // A folder below a file.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    not_kept(&small(&file.join("states")), "creating");
    let mut limited = small(&folder.path().join("states"));
    for bytes_max in [0, 100, 4096, 100_000] {
        limited.precondition.states.as_mut().unwrap().bytes_max = bytes_max;
        not_kept(&limited, &format!("larger than the limit of {bytes_max} bytes"));
        assert_eq!(fs::read_dir(folder.path().join("states")).unwrap().count(), 0);
    }
    // A state whose preconditioning took less time than `worth` is not kept.
    let mut quick = small(folder.path());
    quick.precondition.states.as_mut().unwrap().worth = Duration::from_secs(3600);
    assert_eq!(prepare(&quick).unwrap().1, None);
}

#[test]
fn the_least_recently_used_states_are_removed_for_a_new_one() {
    let folder = TempDir::new().unwrap();
    let seeded = |seed: u64| {
        let text = format!("{DRIVE}{}", FILLED.replace("1x", &format!("0.{seed}x")));
        scenario(&text, folder.path())
    };
    let files: Vec<PathBuf> = (1..4).map(|seed| keep(&seeded(seed))).collect();
    let hours = |age: u64| SystemTime::now() - Duration::from_secs(3600 * age);
    for (file, age) in files.iter().zip([3, 2, 1]) {
        fs::File::open(file).unwrap().set_modified(hours(age)).unwrap();
    }
    // The first is used, so that the second is the oldest.
    assert!(matches!(prepare(&seeded(1)).unwrap().1, Some(StateUse::Loaded(_))));
    let mut another = seeded(4);
    let bytes = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    another.precondition.states.as_mut().unwrap().bytes_max = bytes;
    let kept = keep(&another);
    assert!(kept.exists() && files[0].exists() && !files[1].exists());
}

#[test]
fn what_an_ended_process_began_is_removed_and_an_interruption_keeps_nothing() {
    let folder = TempDir::new().unwrap();
    let (dead, alive, foreign) = (
        folder.path().join("0.1.0.part"),
        folder.path().join("0.2.0.part"),
        folder.path().join("letter.txt"),
    );
    for path in [&dead, &alive, &foreign] {
        fs::write(path, "half").unwrap();
    }
    let held = fs::File::open(&alive).unwrap();
    held.lock().unwrap();
    let scenario = small(folder.path());
    let (plan, what) = (&scenario.drives[0], &scenario.precondition);
    let stopped = std::panic::catch_unwind(|| {
        let stack = Stack::build(plan, None).unwrap();
        let mut stop = |part: f64| assert!(part < 0.5, "interrupted");
        precondition_stack(stack, plan, what, &mut VirtualRunner::new(), SEED, &mut stop)
            .map(|_| ())
    });
    assert!(stopped.is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    keep(&scenario);
    assert!(!dead.exists() && alive.exists() && foreign.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn two_that_keep_the_same_state_at_once_agree() {
    let folder = TempDir::new().unwrap();
    let scenario = small(folder.path());
    let uses: Vec<StateUse> = std::thread::scope(|scope| {
        let run = || prepare(&scenario).unwrap().1.unwrap();
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for used in uses {
        assert!(!matches!(used, StateUse::NotKept(_)), "{used:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(matches!(prepare(&scenario).unwrap().1, Some(StateUse::Loaded(_))));
}

#[test]
fn what_was_kept_in_virtual_time_is_served_also_to_the_members_of_a_set() {
    let folder = TempDir::new().unwrap();
    let uses = |scenario: &Scenario, is_served: bool| {
        let mut uses = Vec::new();
        let mut tell = |event: PrepareEvent<'_>| {
            if let PrepareEvent::State(name, used) = event {
                uses.push((name.to_owned(), used.clone()));
            }
        };
        match is_served {
            true => prepare_paths(scenario, &mut tell).map(|_| ()).unwrap(),
            false => keep_states(scenario, &mut tell).unwrap(),
        }
        uses
    };
    let member = |name: &str, pus: u32| {
        let drive =
            DRIVE.replace("[drive]", "[[drive]]").replace("pus = 2", &format!("pus = {pus}"));
        format!("{drive}name = \"{name}\"\n")
    };
    let text = format!(
        "{}{}[[set]]\nname = \"s\"\nmembers = [\"a\", \"b\"]\nstripe = \"64K\"\n\
         [[path]]\nname = \"p\"\nover = \"s\"\n{FILLED}",
        member("a", 2),
        member("b", 4),
    );
    let scenario = scenario(&text, folder.path());
    let kept = uses(&scenario, false);
    assert!(kept.iter().all(|(_, used)| matches!(used, StateUse::Kept(..))), "{kept:?}");
    let served = uses(&scenario, true);
    for ((name, kept), (served_name, served)) in kept.iter().zip(&served) {
        let StateUse::Kept(path, _) = kept else { panic!("{kept:?}") };
        assert_eq!((name, &StateUse::Loaded(path.clone())), (served_name, served));
    }
    assert_eq!((kept.len(), served.len()), (2, 2));
    // A drive alone, as `sluice serve` prepares it.
    let alone = small(folder.path());
    let mut loaded = Vec::new();
    for _ in 0..2 {
        let plan = &alone.drives[0];
        prepare_drive(&alone, 0, plan, &mut |event| {
            if let PrepareEvent::State(_, used) = event {
                loaded.push(matches!(used, StateUse::Loaded(_)));
            }
        })
        .unwrap();
    }
    // The seed of this preparation is the scenario's.
    assert_eq!(loaded.len(), 2);
    assert!(loaded[1], "{loaded:?}");
}

//! The combinations with the verdict `needs hardware`, sets with such a drive, and fio on a server of
//! one, in the guests of `make test-guest`: by the kernel's driver (`SLUICE_NAMESPACES`) and by VFIO
//! (`SLUICE_CONTROLLER`).

// guarantee: B-40

use std::path::Path;

use ::open::{OpenOptions, open};
use driver::pci::PciDriver;
use scenario::CompletionMethod;
use scenario::choice::{BlockChoice, Choice, DriveChoice, FrontEnd, SchedulerChoice, TargetChoice};
use user_io::DeviceKind;

use super::{make_file, of, run_threads, serve, submitters};
use crate::controller::{named, nodes};
use crate::served::{Server, fio_ok, number};

/// A controller of the guest, by the kernel's driver or by this process.
struct Hardware {
    drive: DriveChoice,
    /// The drive's path or address. It has sectors of 512 bytes.
    device: String,
    /// Path or address, and further keys, of a namespace with sectors of 4096 bytes.
    large: (String, &'static str),
}

impl Hardware {
    fn kernel() -> Hardware {
        // The guest's script names the namespace with small sectors first.
        let nodes = nodes(DeviceKind::Passthrough);
        let (device, large) = (nodes[0].clone(), (nodes[1].clone(), ""));
        Hardware { drive: DriveChoice::Kernel, device, large }
    }

    fn pci() -> Hardware {
        let device = named().0.to_string();
        let large = (device.clone(), "namespace = 2\n");
        Hardware { drive: DriveChoice::Pci, device, large }
    }

    /// Returns a combination without a scheduler whose submitters poll.
    fn choice(&self, front: FrontEnd, block: BlockChoice) -> Choice {
        Choice {
            front,
            drive: self.drive,
            target: TargetChoice::None,
            block,
            scheduler: SchedulerChoice::None,
            completion: CompletionMethod::Poll,
        }
    }

    /// Returns why this guest has no drive of this kind, and a word of the error that says so.
    fn missing(&self) -> Option<(&'static str, &'static str)> {
        match self.drive {
            DriveChoice::Pci if named().1 == PciDriver::UioPciGeneric => Some((
                "drives with kind = \"pci\" are bound to vfio-pci, which needs an IOMMU",
                "uio_pci_generic",
            )),
            _ => None,
        }
    }

    /// Returns a section `[[drive]]` of a choice's drive, and the rest of the choice's scenario.
    fn section(&self, choice: &Choice, name: &str, more: &str) -> (String, String) {
        let text = choice.scenario_on(&self.large.0);
        let (drive, path) = text.split_once("[path]\n").unwrap();
        let keys = drive.strip_prefix("[drive]\n").unwrap();
        (format!("[[drive]]\nname = \"{name}\"\n{keys}{more}"), format!("[path]\n{path}"))
    }

    /// Returns a scenario of a set of this drive, a file and an emulated drive; `members` has their
    /// names in the order of the stripe: `real`, `file` and `emulated`.
    fn set(&self, choice: &Choice, members: &[&str]) -> String {
        let sections = members.iter().map(|name| {
            let (drive, more) = match *name {
                "real" => (self.drive, self.large.1),
                "file" => (DriveChoice::File, "sector_bytes = 4096\n"),
                _ => (DriveChoice::Block, ""),
            };
            self.section(&Choice { drive, ..*choice }, name, more).0
        });
        let (sections, path) = (sections.collect::<String>(), self.section(choice, "", "").1);
        format!("{sections}[[set]]\nname = \"set\"\nstripe = \"8k\"\nmembers = {members:?}\n{path}")
    }
}

/// Runs the mix on every combination of the hardware, opened and served. One that is not in this
/// guest is named with the reason, and is refused.
fn run_cells(hardware: &Hardware) {
    let cells = FrontEnd::ALL.iter().flat_map(|front| of(*front));
    let cells = cells.filter(|choice| choice.drive == hardware.drive && choice.needs_hardware());
    let (mut ran, mut failed) = ([0; 3], Vec::new());
    for (seed, choice) in (0..).zip(cells) {
        let dir = tempfile::tempdir().unwrap();
        let text = choice.scenario_on(&hardware.device);
        if let Some((reason, word)) = hardware.missing() {
            let error = error_of(dir.path(), &choice, &text);
            assert!(error.contains(word), "{choice:?}: {error}, not {word}");
            println!("not in this guest: {choice:?}: {reason}");
            continue;
        }
        match choice.front {
            FrontEnd::Server => serve(dir.path(), &choice, &text, seed),
            _ => match open_in(dir.path(), &text) {
                Ok(device) => run_threads(&choice, &device, submitters(&choice), seed),
                Err(error) => failed.push(format!("{choice:?}: {error}")),
            },
        }
        ran[choice.front as usize] += 1;
    }
    assert!(failed.is_empty(), "{failed:#?}");
    println!("{}: {ran:?} combinations of {:?}", hardware.device, FrontEnd::ALL);
    let expected = if hardware.missing().is_some() { [0; 3] } else { [0, 23, 23] };
    assert_eq!(ran, expected);
}

/// Opens a scenario that is written into a folder.
fn open_in(dir: &Path, text: &str) -> Result<user_io::IoDevice, ::open::TargetOpenError> {
    let path = dir.join("m.toml");
    std::fs::write(&path, text).unwrap();
    open(path.to_str().unwrap(), &OpenOptions::default())
}

/// Returns the error with which a combination is refused.
fn error_of(dir: &Path, choice: &Choice, text: &str) -> String {
    if choice.front != FrontEnd::Server {
        return open_in(dir, text).err().unwrap_or_else(|| panic!("{choice:?} runs")).to_string();
    }
    let mut server = Server::launch(dir, text, &[]);
    assert!(!server.wait().success(), "{choice:?} is served");
    server.stderr()
}

/// Runs the mix on sets of the drive and others, whose payloads are in one memory.
fn run_sets(hardware: &Hardware) {
    if let Some((reason, _)) = hardware.missing() {
        println!("not in this guest: sets: {reason}");
        return;
    }
    let orders: [&[&str]; 3] =
        [&["real", "file"], &["file", "real"], &["emulated", "file", "real"]];
    for (seed, members) in (0..).zip(orders) {
        let dir = tempfile::tempdir().unwrap();
        make_file(dir.path());
        for block in [BlockChoice::Raw, BlockChoice::SingleQueue, BlockChoice::MultiQueue] {
            let choice = hardware.choice(FrontEnd::Application, block);
            let text = hardware.set(&choice, members);
            let device = open_in(dir.path(), &text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert_eq!(device.kind(), DeviceKind::Target);
            // Without a block layer a set has one queue.
            let submitters = if block == BlockChoice::Raw { 1 } else { Choice::CORES };
            run_threads(&choice, &device, submitters, seed);
        }
        let choice = hardware.choice(FrontEnd::Server, BlockChoice::MultiQueue);
        serve(dir.path(), &choice, &hardware.set(&choice, members), seed);
        println!("set of {members:?}, one of them {}: opened and served", hardware.large.0);
    }
}

/// fio verifies what it wrote through a server of the drive.
fn run_fio(hardware: &Hardware) {
    if let Some((reason, _)) = hardware.missing() {
        println!("not in this guest: fio on a server: {reason}");
        return;
    }
    for block in [BlockChoice::Raw, BlockChoice::MultiQueue] {
        let dir = tempfile::tempdir().unwrap();
        let choice = hardware.choice(FrontEnd::Server, block);
        let server = Server::start(dir.path(), &choice.scenario_on(&hardware.device));
        let ran = fio_ok(
            &server,
            &[
                "--rw=randwrite",
                "--bsrange=4k-64k",
                "--size=4m",
                "--iodepth=4",
                "--fsync=16",
                "--verify=crc32c",
                "--verify_fatal=1",
            ],
        );
        let bytes = number(&ran, "/jobs/0/read/io_bytes");
        assert!(bytes >= 4 << 20, "fio must read back all that it wrote: {bytes}");
        server.stop();
        println!("fio on a server of {}: {}: {bytes} bytes", hardware.device, block.word());
    }
}

#[test]
#[ignore = "needs a controller under the kernel's driver (make test-guest)"]
fn kernel_matrix_runs() {
    run_cells(&Hardware::kernel());
}

#[test]
#[ignore = "needs a controller under the kernel's driver (make test-guest)"]
fn kernel_matrix_sets_with_a_file() {
    run_sets(&Hardware::kernel());
}

#[test]
#[ignore = "needs a controller under the kernel's driver (make test-guest)"]
fn kernel_matrix_is_served_to_fio() {
    run_fio(&Hardware::kernel());
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_matrix_runs() {
    run_cells(&Hardware::pci());
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_matrix_sets_with_a_file() {
    run_sets(&Hardware::pci());
}

#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_matrix_is_served_to_fio() {
    run_fio(&Hardware::pci());
}

//! [`KeptMachine`]: the measured numbers of this machine, kept in a file, for `machine = "this"`.
//!
//! The file is that of a processor, a number of CPUs and a program: its name has all three, and so has
//! its description, which results show. It is written once. Of several programs that measure at a
//! time, the first to end keeps its numbers, and the others take those.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use event::AllowedCpus;
use machine::{MachineModel, MachineModelError};

use crate::BenchError;

/// The program that measures: its version, and a digest of its sources if it is built from a
/// repository.
const PROGRAM: &str = concat!(env!("CARGO_PKG_VERSION"), " ", env!("SLUICE_CALIBRATION_BUILD"));

/// Error of the measured numbers of this machine.
#[derive(Debug, thiserror::Error)]
pub enum KeptMachineError {
    /// The file cannot be read or written.
    #[error("the numbers of this machine, {}: {source}", path.display())]
    Io {
        /// Path of the file or its folder.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file is damaged.
    #[error("{}: {problem}; remove the file, so that this machine is measured again", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// The problem.
        problem: MachineModelError,
    },
    /// The file is of another machine or another program.
    #[error("{} is of {found}, and this is {expected}: remove the file", path.display())]
    Other {
        /// Path of the file.
        path: PathBuf,
        /// Description in the file.
        found: String,
        /// Description of this machine.
        expected: String,
    },
    /// The machine cannot be measured.
    #[error("measuring this machine: {0}")]
    Measure(#[from] BenchError),
}

/// The measured numbers of this machine, and the file that has them.
#[derive(Clone, Debug)]
pub struct KeptMachine {
    /// The numbers.
    pub model: MachineModel,
    /// Path of the file.
    pub path: PathBuf,
    /// Whether they were measured now.
    pub is_new: bool,
}

impl KeptMachine {
    /// Returns the description of this machine: its processor, its CPUs, and the program.
    pub fn description() -> String {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let name = name.map_or("unknown processor", |(_, name)| name.trim());
        // It is a string of TOML.
        let name: String = name.chars().filter(|c| !matches!(c, '"' | '\\')).collect();
        let count = AllowedCpus::allowed().count();
        format!("{name}, {count} CPUs, measured by sluice {}", PROGRAM.trim())
    }

    /// Returns the path of the file of this machine in a folder.
    pub fn path_in(folder: &Path) -> PathBuf {
        let mut name = String::new();
        for c in KeptMachine::description().chars() {
            match c {
                c if c.is_ascii_alphanumeric() || c == '.' => name.push(c.to_ascii_lowercase()),
                _ if name.ends_with('-') => {}
                _ => name.push('-'),
            }
        }
        folder.join(format!("{}.toml", name.trim_matches('-')))
    }

    /// Returns the numbers of this machine that a folder keeps. If it has none, they are those of
    /// `measure`, which returns a text with the description that it is given, and are kept.
    ///
    /// # Errors
    /// [`KeptMachineError`]: a file that cannot be read or written, that is damaged, or that is of
    /// another machine; and the error of `measure`.
    pub fn load(
        folder: &Path,
        measure: impl FnOnce(&str) -> Result<String, BenchError>,
    ) -> Result<KeptMachine, KeptMachineError> {
        let path = KeptMachine::path_in(folder);
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| KeptMachineError::Io { path, source }
        };
        let mut is_new = false;
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = measure(&KeptMachine::description())?;
                fs::create_dir_all(folder).map_err(failed(folder))?;
                is_new = keep(&path, &text).map_err(failed(&path))?;
                fs::read_to_string(&path)
            }
            read => read,
        };
        let text = text.map_err(failed(&path))?;
        let model = match MachineModel::parse(&text) {
            Ok(model) => model,
            Err(problem) => return Err(KeptMachineError::Damaged { path, problem }),
        };
        let expected = KeptMachine::description();
        if model.about() != expected {
            let found = model.about().to_owned();
            return Err(KeptMachineError::Other { path, found, expected });
        }
        Ok(KeptMachine { model, path, is_new })
    }
}

/// Writes a file that does not exist, as a whole. Returns whether it did not exist.
fn keep(path: &Path, text: &str) -> io::Result<bool> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let linked = fs::write(&part, text).and_then(|()| fs::hard_link(&part, path));
    // A part that stays is no file of a machine.
    let _ = fs::remove_file(&part);
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of a machine with this description and clock rate.
    fn text(about: &str, ghz: f64) -> String {
        let i7 = include_str!("../../../../base/machine/models/i7-4770.toml");
        let lines = i7.lines().map(|line| match line {
            line if line.starts_with("about = ") => format!("about = \"{about}\"\n"),
            line if line.starts_with("name = ") => "name = \"this\"\n".to_owned(),
            line => format!("{}\n", line.replace("value = 3.4", &format!("value = {ghz}"))),
        });
        lines.collect()
    }

    fn never(_: &str) -> Result<String, BenchError> {
        panic!("it is measured once")
    }

    // guarantee: B-74
    #[test]
    fn a_machine_is_measured_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a/b");
        let first = KeptMachine::load(&folder, |about| Ok(text(about, 2.5))).unwrap();
        assert_eq!((first.is_new, &first.path), (true, &KeptMachine::path_in(&folder)));
        assert_eq!(first.model.about(), KeptMachine::description());
        assert_eq!(first.model.cycles(5), time::Nanos(2));
        let again = KeptMachine::load(&folder, never).unwrap();
        assert_eq!((again.is_new, again.model), (false, first.model.clone()));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
        // Another program has measured meanwhile: its numbers stay.
        fs::remove_file(&first.path).unwrap();
        let other = KeptMachine::load(&folder, |about| {
            fs::write(&first.path, text(about, 1.0)).unwrap();
            Ok(text(about, 9.0))
        });
        let other = other.unwrap();
        assert_eq!((other.is_new, other.model.cycles(5)), (false, time::Nanos(5)));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    // guarantee: B-74
    #[test]
    fn a_file_that_is_damaged_or_of_another_machine_is_refused_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = KeptMachine::path_in(folder.path());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.is_ascii() && !name.contains(' '), "{name}");
        let whole = text(&KeptMachine::description(), 3.0);
        for (bad, part) in [
            (whole[..whole.len() / 2].to_owned(), "remove the file, so that"),
            (whole.replace("{ value = 0.6, source", "{ value = 0.6, sources"), "unknown field"),
            (text("another machine", 3.0), "is of another machine, and this is "),
        ] {
            fs::write(&path, bad).unwrap();
            let error = KeptMachine::load(folder.path(), never).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(&name), "{error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = KeptMachine::load(folder.path(), never).unwrap_err();
        assert!(matches!(error, KeptMachineError::Io { .. }), "{error}");
    }

    #[test]
    fn a_measurement_that_fails_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let failed =
            KeptMachine::load(folder.path(), |_| Err(BenchError::Setup("no clock".into())));
        assert_eq!(failed.unwrap_err().to_string(), "measuring this machine: no clock");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

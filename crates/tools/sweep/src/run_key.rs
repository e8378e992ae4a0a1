//! [`RunKey`]: all inputs that the result of a run depends on.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use scenario::{ChangedSettings, Scenario, ServeSpec};
use sim::RunNeeds;
use stack::image;
use twox_hash::XxHash3_128;
use workload::{JobError, JobSource, JobSpec, parse_job_file};

use crate::SweepError;

/// All inputs that the result of a run depends on: the program, the scenario with its defaults, the
/// jobs, and the seed.
///
/// Comments, the order of keys, and the title and question of a scenario have no effect. The options
/// of jobs have effect as they are written, because results show them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunKey {
    text: String,
}

impl RunKey {
    /// The program that makes a result: its version, and a digest of the sources that decide results
    /// if it is built from a repository.
    pub const PROGRAM: &str =
        concat!("sluice ", env!("CARGO_PKG_VERSION"), " ", env!("SLUICE_RESULTS_BUILD"));

    /// Returns the key of a run of the scenario with these job files in addition.
    ///
    /// # Errors
    /// [`SweepError::NotStorable`] if a drive has an image or a job writes logs or has a trace that
    /// cannot be read, and [`SweepError::Run`] if a job is invalid.
    pub fn new(scenario: &Scenario, job_files: &[PathBuf]) -> Result<RunKey, SweepError> {
        let refuse =
            |reason: String| SweepError::NotStorable { file: scenario.file.clone(), reason };
        if let Some(drive) = scenario.drives.iter().find(|drive| image(drive).is_some()) {
            return Err(refuse(format!(
                "drive {} has an image, whose contents a store of runs does not identify: set data = \
                 \"memory\"",
                drive.config.name
            )));
        }
        if scenario.host.this_machine.is_some() {
            let reason = "the numbers of machine = \"this\" are not known, and results depend on them: \
                          name the file that `sluice calibrate --sheet` writes";
            return Err(refuse(reason.into()));
        }
        if RunNeeds::of_run(scenario, job_files, false)?.writes_files {
            let reason = "a job writes logs, which a stored run would not write again: remove them";
            return Err(refuse(reason.into()));
        }
        let order = if cfg!(target_endian = "big") { "big" } else { "little" };
        let mut text = format!("{}, {order}-endian\n{:#?}\n", RunKey::PROGRAM, canonical(scenario));
        let failed = |error: JobError| SweepError::Run(error.into());
        let source = JobSource::new(&scenario.file, scenario.text.clone());
        let first = scenario.paths().first().map(|path| path.name.clone()).unwrap_or_default();
        let mut jobs: Vec<(String, JobSpec)> = Vec::new();
        for table in &scenario.jobs {
            let (spec, _) = table.spec(&source).map_err(failed)?;
            let over = table.path.as_ref().or(table.drive.as_ref()).map(|(name, _)| name);
            jobs.push((format!("{} {:?}", over.unwrap_or(&first), table.group), spec));
        }
        for file in scenario.job_files.iter().map(|(path, _)| path).chain(job_files) {
            let parsed = parse_job_file(file).map_err(failed)?;
            jobs.extend(parsed.jobs.into_iter().map(|spec| ("each path".to_owned(), spec)));
        }
        for (over, mut spec) in jobs {
            spec.report.options.sort();
            spec.report.globals.sort();
            if let Some(replay) = &mut spec.replay {
                let digest = file_digest(&replay.path).map_err(|error| {
                    refuse(format!("cannot read the trace {}: {error}", replay.path.display()))
                })?;
                replay.path = format!("{digest:032x}").into();
            }
            // Writing to a string cannot fail.
            let _ = writeln!(text, "job on {over}: {spec:#?}");
        }
        Ok(RunKey { text })
    }

    /// Returns the digest, which names the file of the run.
    pub fn digest(&self) -> u128 {
        XxHash3_128::oneshot(self.text.as_bytes())
    }

    /// Returns the name of the run's file: the digest, 32 hexadecimal digits, and `.json`.
    pub fn file_name(&self) -> String {
        format!("{:032x}.json", self.digest())
    }

    /// Returns the inputs, one per line; the first is the program.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Returns the scenario without its jobs and without all that has no effect on results.
fn canonical(scenario: &Scenario) -> Scenario {
    let mut canonical = scenario.clone();
    canonical.file = PathBuf::new();
    canonical.text = "".into();
    canonical.title.clear();
    canonical.question.clear();
    canonical.jobs.clear();
    canonical.job_files.clear();
    canonical.former_spellings.clear();
    canonical.serving = ServeSpec::default();
    canonical.precondition.states = None;
    for path in &mut canonical.composition.paths {
        path.line = 0;
    }
    for target in &mut canonical.composition.targets {
        target.target.clear_source();
    }
    for timed in &mut canonical.changes {
        timed.line = 0;
        match &mut timed.settings {
            ChangedSettings::Ftl { changes, .. } => changes.iter_mut().for_each(|c| c.1 = 0),
            ChangedSettings::Group { changes, .. } => changes.iter_mut().for_each(|c| c.1 = 0),
            ChangedSettings::Fault { .. } => {}
        }
    }
    canonical
}

fn file_digest(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut hasher = XxHash3_128::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish_128()),
            read => hasher.write(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "title = \"a\"\n[drive]\npreset = \"femu-default\"\ngeometry.chunks = 16\n\
        [[job]]\nname = \"w\"\nrw = \"write\"\nbs = \"4k\"\nsize = \"1m\"\n";

    fn key_of(file: &str, text: &str) -> RunKey {
        let scenario = Scenario::parse(Path::new(file), text).unwrap();
        RunKey::new(&scenario, &[]).unwrap()
    }

    fn key(text: &str) -> RunKey {
        key_of("a.toml", text)
    }

    // guarantee: B-58
    #[test]
    fn comments_order_titles_and_defaults_have_no_effect() {
        let same = [
            TEXT.replace(
                "title = \"a\"\n",
                "# more\n\n\ntitle = \"b\"\nquestion = \"Why?\"\nseed = 1\n",
            ),
            TEXT.replace("bs = \"4k\"\nsize = \"1m\"\n", "size = \"1m\"\nbs = \"4k\"\n"),
            TEXT.replace("chunks = 16\n", "chunks = 16\npage_register = true\n"),
            TEXT.replace("name = \"w\"\n", "name = \"w\"\ndrive = \"drive0\"\n"),
        ];
        for text in same {
            assert_eq!(key(&text), key(TEXT), "{text}");
        }
        assert_eq!(key_of("elsewhere/b.toml", TEXT), key(TEXT));
    }

    // guarantee: B-58
    #[test]
    fn every_input_of_a_run_has_effect() {
        let other = [
            format!("seed = 2\n{TEXT}"),
            TEXT.replace("16", "17"),
            TEXT.replace("4k", "8k"),
            TEXT.replace("1m", "2m"),
            TEXT.replace("\"w\"", "\"v\""),
            format!("{TEXT}iodepth = 2\n"),
            format!("{TEXT}[precondition]\nfill = \"sequential\"\n"),
            format!("{TEXT}[path]\nqueue_model = \"mq\"\n"),
            format!("{TEXT}[host]\nsubmit_cost = \"1us\"\n"),
        ];
        let mut names: Vec<String> = other.iter().map(|text| key(text).file_name()).collect();
        names.push(key(TEXT).file_name());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), other.len() + 1);
        assert!(key(TEXT).text().starts_with("sluice "), "the program is an input");
    }

    // guarantee: B-58
    #[test]
    fn a_trace_is_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let jobs = folder.path().join("replay.fio");
        let trace = folder.path().join("trace.csv");
        std::fs::write(&jobs, format!("[r]\nread_iolog={}\n", trace.display())).unwrap();
        let scenario = Scenario::parse(Path::new("a.toml"), TEXT).unwrap();
        let key = || RunKey::new(&scenario, std::slice::from_ref(&jobs));
        let missing = key().unwrap_err().to_string();
        assert!(missing.contains("cannot read the trace"), "{missing}");
        std::fs::write(&trace, "fio version 2 iolog\n").unwrap();
        let first = key().unwrap();
        std::fs::write(&trace, "fio version 2 iolog\nd add\n").unwrap();
        assert_ne!(key().unwrap(), first);
    }

    // guarantee: B-74
    #[test]
    fn the_numbers_of_this_machine_are_inputs() {
        let text = format!("{TEXT}[host]\nmachine = \"this\"\n");
        let scenario = Scenario::parse(Path::new("a.toml"), &text).unwrap();
        let error = RunKey::new(&scenario, &[]).unwrap_err();
        assert!(error.to_string().contains("are not known"), "{error}");
        let key = |name: &str| {
            let model = scenario::MachineModel::built_in(name).unwrap();
            let mut scenario = scenario.clone();
            scenario.set_this_machine(&model).unwrap();
            RunKey::new(&scenario, &[]).unwrap()
        };
        assert_ne!(key("i7-4770"), key("i7-5820k"));
        assert_eq!(key("i7-4770"), key("i7-4770"));
    }

    #[test]
    fn runs_on_images_and_with_logs_are_refused() {
        let image = TEXT.replace("[[job]]", "data = \"file\"\npath = \"d.img\"\n[[job]]");
        let logs = format!("{TEXT}write_lat_log = \"x\"\n");
        for (text, reason) in [(image, "has an image"), (logs, "writes logs")] {
            let scenario = Scenario::parse(Path::new("a.toml"), &text).unwrap();
            let error = RunKey::new(&scenario, &[]).unwrap_err();
            assert!(matches!(error, SweepError::NotStorable { .. }), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}

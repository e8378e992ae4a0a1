//! [`rows`]: one row for each job and direction of a run.

use std::path::PathBuf;

use serde_json::{Number, Value};

use crate::{BaseScenario, COLUMNS, GridPoint};

/// Whether a run has its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// All requests succeeded.
    Ok,
    /// The run has an error, or some of its requests have.
    Failed,
}

impl RunStatus {
    /// Returns the word of tables.
    pub fn word(self) -> &'static str {
        match self {
            RunStatus::Ok => "ok",
            RunStatus::Failed => "failed",
        }
    }
}

/// One direction of a job of a run, or a run that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The values of the sweep's keys, in their order.
    pub parameters: Vec<String>,
    /// The seed; `None` if it is unknown because the scenario is invalid.
    pub seed: Option<u64>,
    /// Name of the job; empty if the run failed.
    pub job: String,
    /// `read`, `write` or `trim`; empty if the job moved nothing.
    pub direction: String,
    /// Whether the run has its results.
    pub status: RunStatus,
    /// The error of a failed run, on one line; else empty.
    pub error: String,
    /// The command that repeats the run.
    pub replay: String,
    /// A value for each of [`COLUMNS`]; `None` if the run does not have it.
    pub values: Vec<Option<Number>>,
}

/// Returns the rows of a run, whose JSON is as `sluice sim --json` has it: one for each direction in
/// which a job moved data.
pub fn rows(point: &GridPoint, replay: &str, run: &Value) -> Vec<Row> {
    let section = &run["sluice"];
    let failure = section["failures"].get(0).and_then(Value::as_str);
    let row = |job: &Value, direction: &str| {
        let of_direction = job.get(direction);
        Row {
            parameters: parameters(point),
            seed: section["seed"].as_u64(),
            job: job["jobname"].as_str().unwrap_or_default().to_owned(),
            direction: direction.to_owned(),
            status: if failure.is_some() { RunStatus::Failed } else { RunStatus::Ok },
            error: one_line(failure.unwrap_or_default()),
            replay: replay.to_owned(),
            values: COLUMNS.iter().map(|column| column.value(run, of_direction)).collect(),
        }
    };
    let mut rows = Vec::new();
    for job in run["jobs"].as_array().into_iter().flatten() {
        let moves = |direction: &&str| job[direction]["total_ios"].as_u64().unwrap_or(0) > 0;
        let moved: Vec<&str> = ["read", "write", "trim"].into_iter().filter(moves).collect();
        rows.extend(moved.iter().map(|direction| row(job, direction)));
        if moved.is_empty() {
            rows.push(row(job, ""));
        }
    }
    rows
}

/// Returns the row of a run that failed.
pub fn failed_row(point: &GridPoint, seed: Option<u64>, replay: &str, error: &str) -> Row {
    Row {
        parameters: parameters(point),
        seed,
        job: String::new(),
        direction: String::new(),
        status: RunStatus::Failed,
        error: one_line(error),
        replay: replay.to_owned(),
        values: vec![None; COLUMNS.len()],
    }
}

/// Returns the command that repeats the run of a point, with arguments in quotes where a shell needs
/// them.
pub fn replay_command(base: &BaseScenario, job_files: &[PathBuf], point: &GridPoint) -> String {
    let files = [&base.file].into_iter().chain(job_files);
    let mut words: Vec<String> = vec!["sluice".into(), "sim".into()];
    words.extend(files.map(|file| quoted(&file.to_string_lossy())));
    for assignment in base.settings().iter().chain(&point.assignments) {
        words.extend(["--set".into(), quoted(&assignment.text())]);
    }
    if let Some(seed) = point.seed {
        words.extend(["--seed".into(), seed.to_string()]);
    }
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=,:+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

fn parameters(point: &GridPoint) -> Vec<String> {
    point.assignments.iter().map(|assignment| assignment.value.text().to_owned()).collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::{Column, Grid, Setting};

    fn point(sets: &[&str], seed: Option<u64>) -> GridPoint {
        let settings = sets.iter().map(|set| Setting::parse(set).unwrap()).collect();
        let mut point = Grid::new(settings, None).unwrap().points().swap_remove(0);
        point.seed = seed;
        point
    }

    #[test]
    fn each_direction_with_requests_has_a_row() {
        let moved =
            json!({ "total_ios": 3, "iops": 1.5, "clat_ns": { "percentile": { "99.000000": 7 } } });
        let idle = json!({ "total_ios": 0, "iops": 0.0 });
        let run = json!({
            "jobs": [
                { "jobname": "a", "read": moved, "write": moved, "trim": idle },
                { "jobname": "b", "read": idle, "write": idle, "trim": idle },
            ],
            "sluice": {
                "seed": 5, "elapsed_ns": 9, "failures": [],
                "drives": [{ "write_amplification": 2.5 }, {}],
            },
        });
        let all = rows(&point(&["x=1"], None), "replay", &run);
        let names: Vec<_> = all.iter().map(|r| (r.job.as_str(), r.direction.as_str())).collect();
        assert_eq!(names, [("a", "read"), ("a", "write"), ("b", "")]);
        let value = |row: &Row, name: &str| {
            row.values[Column::index_of(name).unwrap()].as_ref().and_then(Number::as_f64)
        };
        assert_eq!(value(&all[0], "iops"), Some(1.5));
        assert_eq!(value(&all[1], "clat_p99_ns"), Some(7.0));
        assert_eq!(value(&all[1], "clat_p50_ns"), None);
        assert_eq!((value(&all[2], "iops"), value(&all[2], "elapsed_ns")), (None, Some(9.0)));
        assert_eq!(value(&all[0], "write_amplification"), Some(2.5));
        assert_eq!((all[0].seed, all[0].status), (Some(5), RunStatus::Ok));
        let mut failed = run.clone();
        failed["sluice"]["failures"] = json!(["3 reads\n failed"]);
        failed["sluice"]["drives"][1] = json!({ "write_amplification": 1.0 });
        let all = rows(&point(&["x=1"], None), "replay", &failed);
        assert_eq!((all[0].status, all[0].error.as_str()), (RunStatus::Failed, "3 reads failed"));
        assert_eq!(value(&all[0], "write_amplification"), None, "two drives have one");
    }

    #[test]
    fn a_replay_is_quoted_for_a_shell() {
        let base = BaseScenario::new(Path::new("my file.toml"), "");
        let point = point(&["job.bs=4k", "title=it's", "a=[1, 2]"], Some(3));
        assert_eq!(
            replay_command(&base, &["j.fio".into()], &point),
            "sluice sim 'my file.toml' j.fio --set job.bs=4k --set 'title=\"it'\\''s\"' --set 'a=[1, 2]' \
             --seed 3"
        );
    }
}

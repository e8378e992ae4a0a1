//! [`Fio`]: fio as the reference of the measurements.

use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use time::Nanos;

use super::Cost;
use crate::BenchError;

/// An installed fio.
#[derive(Debug)]
pub(super) struct Fio;

impl Fio {
    /// Finds fio on the path.
    ///
    /// # Errors
    /// [`BenchError::Program`] with the way to install it.
    pub(super) fn find() -> Result<Fio, BenchError> {
        Fio::called("fio")
    }

    fn called(program: &'static str) -> Result<Fio, BenchError> {
        match Command::new(program).arg("--version").output() {
            Ok(out) if out.status.success() => Ok(Fio),
            Ok(out) => Err(BenchError::Io(io::Error::other(format!(
                "{program} --version: {}",
                String::from_utf8_lossy(&out.stderr).trim()
            )))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(BenchError::Program {
                program,
                why: "this group is measured beside it",
                install: "apt-get install fio, dnf install fio",
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs random reads that bypass the page cache, for `runtime`.
    ///
    /// # Errors
    /// If fio fails or prints unexpected output.
    pub(super) fn random_reads(
        &self,
        path: &Path,
        engine: &str,
        block: u32,
        depth: u16,
        runtime: Nanos,
    ) -> Result<Cost, BenchError> {
        let out = Command::new("fio")
            .arg("--name=reads")
            .arg(format!("--filename={}", path.display()))
            .args(["--rw=randread", "--direct=1", "--norandommap", "--time_based", "--readonly"])
            .arg(format!("--ioengine={engine}"))
            .arg(format!("--bs={block}"))
            .arg(format!("--iodepth={depth}"))
            .arg(format!("--runtime={}ms", runtime.0 / 1_000_000))
            .arg("--output-format=json")
            .output()?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            return Err(
                io::Error::other(format!("fio --ioengine={engine}: {}", said.trim())).into()
            );
        }
        cost(&String::from_utf8_lossy(&out.stdout))
            .ok_or_else(|| io::Error::other(format!("fio --ioengine={engine}: no result")).into())
    }
}

/// Parses fio's results of its only job. Warnings may precede the JSON.
fn cost(text: &str) -> Option<Cost> {
    let said: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = said.get("jobs")?.get(0)?;
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_f64);
    let read = job.get("read")?;
    let (iops, ios) = (number(read, "iops")?, number(read, "total_ios")?);
    let share = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
    let cpu_ns = share * number(job, "job_runtime")? * 1e6 / ios;
    (iops > 0.0 && cpu_ns.is_finite()).then_some(Cost { iops, cpu_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_past_warnings() {
        let text = "fio: a warning\n{\"jobs\": [{\"job_runtime\": 1000, \"usr_cpu\": 10.0, \
                    \"sys_cpu\": 30.0, \"read\": {\"iops\": 50000.0, \"total_ios\": 50000}}]}";
        let cost = cost(text).unwrap();
        assert_eq!((cost.iops, cost.cpu_ns), (50_000.0, 8_000.0));
    }

    #[test]
    fn what_is_no_result_is_none() {
        for text in [
            "",
            "fio: error",
            "{}",
            "{\"jobs\": []}",
            "{\"jobs\": [{\"job_runtime\": 0, \"usr_cpu\": 0, \"sys_cpu\": 0, \
             \"read\": {\"iops\": 0, \"total_ios\": 0}}]}",
        ] {
            assert!(cost(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_missing_fio_is_an_error_that_says_how_to_install_it() {
        let error = Fio::called("fio-that-is-not-there").unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("fio-that-is-not-there") && said.contains("apt-get install"),
            "{said}"
        );
    }
}

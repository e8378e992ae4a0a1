//! [`FlashDrive`]: the three drives of \[LightNVM17\], figures 6 and 7: flash that the host manages
//! with pblk, over all parallel units or four of them, and an NVMe SSD that manages its own. Each
//! is emulated in the process of `sluice exec`, with its data in memory, and has a volume without
//! files at the start of every program.

use std::path::Path;

use super::BENCH;
use super::harness::ProgramDir;
use super::rows::Metric;
use crate::{BenchError, Measurement, Samples, Sink};

/// A drive, and the side that manages its flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlashDrive {
    /// A data-center NVMe SSD, which manages its flash.
    Nvme,
    /// Pblk on the open-channel SSD of the paper, which writes to all 128 parallel units.
    AllPus,
    /// Pblk on that drive, which writes to four parallel units at a time.
    FourPus,
}

impl FlashDrive {
    /// In the order of samples.
    pub(super) const ALL: [FlashDrive; 3] =
        [FlashDrive::Nvme, FlashDrive::AllPus, FlashDrive::FourPus];

    /// Returns the name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            FlashDrive::Nvme => "drive-managed NVMe SSD",
            FlashDrive::AllPus => "pblk, 128 active PUs",
            FlashDrive::FourPus => "pblk, 4 active PUs",
        }
    }

    /// Returns the scenario: the paper's NVMe SSD with fewer chunks, or its open-channel SSD with a
    /// write buffer of pblk as large as that of the NVMe SSD.
    fn scenario(self) -> String {
        let pblk = |active_pus: u32| {
            format!(
                "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[target]\nkind = \"pblk\"\n\
                 active_pus = {active_pus}\nwrite_buffer = \"16M\"\nover_provisioning = 0.25\n"
            )
        };
        match self {
            FlashDrive::Nvme => {
                "[drive]\npreset = \"dc-nvme-mlc\"\n[drive.geometry]\nchunks = 64\n".to_owned()
            }
            FlashDrive::AllPus => pblk(128),
            FlashDrive::FourPus => pblk(4),
        }
    }

    /// Writes the scenario into a directory of the host and returns a directory on the drive.
    ///
    /// # Errors
    /// If the scenario cannot be written.
    pub(super) fn program_dir(self, scratch: &Path) -> Result<ProgramDir, BenchError> {
        let scenario = scratch.join("drive.toml");
        std::fs::write(&scenario, self.scenario())?;
        Ok(ProgramDir::on_new_volume(scratch.join("volume"), &scenario))
    }
}

/// Samples of the three drives, in the order of [`FlashDrive::ALL`].
pub(super) type DriveSamples<T> = [Vec<T>; 3];

/// Returns the samples of three interleaved drives.
///
/// # Errors
/// If there are not exactly three.
pub(super) fn by_drive<T>(samples: Vec<Vec<T>>) -> Result<DriveSamples<T>, BenchError> {
    samples.try_into().map_err(|_| BenchError::Thread("three drives"))
}

/// Writes one metric of a load for each drive. The reference is the paper's value, where there is
/// one; else, for pblk, the value of the NVMe SSD in this run.
///
/// # Errors
/// If a value is not a number, or if the output fails.
pub(super) fn push_rows<T>(
    sink: &mut Sink<'_>,
    case: &str,
    Metric(metric, unit): Metric,
    samples: &DriveSamples<T>,
    number: impl Fn(&T) -> f64,
    paper: [Option<f64>; 3],
    bound: impl Fn(FlashDrive, Measurement) -> Measurement,
) -> Result<(), BenchError> {
    let mut nvme = None;
    for ((drive, samples), paper) in FlashDrive::ALL.into_iter().zip(samples).zip(paper) {
        let case = format!("{case}, {}", drive.name());
        let values = Samples::new(samples.iter().map(&number).collect())
            .ok_or_else(|| BenchError::NoValue { case: case.clone(), metric })?;
        let row = Measurement::median(BENCH, case, metric, &values, unit);
        let row = match (paper, nvme) {
            (Some(paper), _) => row.with_reference("paper", paper),
            (None, Some(nvme)) => row.with_reference(FlashDrive::Nvme.name(), nvme),
            (None, None) => row,
        };
        nvme.get_or_insert(values.median());
        sink.push(bound(drive, row))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::Format;

    #[test]
    fn pblk_differs_in_its_active_units_only() {
        let [all, four] = [FlashDrive::AllPus, FlashDrive::FourPus].map(FlashDrive::scenario);
        assert_eq!(all.replace("active_pus = 128", "active_pus = 4"), four);
        for drive in FlashDrive::ALL {
            let parsed = scenario::Scenario::parse(Path::new("bench"), &drive.scenario()).unwrap();
            assert_eq!(parsed.drives.len(), 1, "{drive:?}");
        }
    }

    #[test]
    fn references_are_the_paper_or_the_nvme_ssd() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        let samples = [vec![3.0, 1.0, 2.0], vec![4.0], vec![8.0]];
        let bound = |drive, row: Measurement| match drive {
            FlashDrive::FourPus => row.at_most(7.0),
            _ => row,
        };
        let paper = [None, Some(2.0), None];
        push_rows(&mut sink, "a", Metric("rate", "1/s"), &samples, |v| *v, paper, bound).unwrap();
        let none: DriveSamples<f64> = [vec![1.0], vec![f64::NAN], vec![1.0]];
        let nan = push_rows(&mut sink, "a", Metric("b", "1"), &none, |v| *v, paper, bound);
        assert!(nan.is_err());
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!((&rows[0]["value"], rows[0].get("reference")), (&2.0.into(), None));
        assert_eq!(
            (&rows[1]["reference"]["what"], &rows[1]["ratio"]),
            (&"paper".into(), &2.0.into())
        );
        let last = (&rows[2]["reference"]["what"], &rows[2]["ratio"], &rows[2]["verdict"]);
        assert_eq!(last, (&"drive-managed NVMe SSD".into(), &4.0.into(), &"fail".into()));
        assert!(rows[1].get("verdict").is_none());
    }
}

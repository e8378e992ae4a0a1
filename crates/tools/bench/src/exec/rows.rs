//! [`Rows`]: results of both paths, `sluice exec` and the kernel.

use super::BENCH;
use super::harness::BackingDevice;
use crate::{BenchError, Measurement, Samples, Sink};

/// Results of one case.
pub(super) struct Rows<'a, 'w> {
    pub(super) sink: &'a mut Sink<'w>,
    /// Load of the program.
    pub(super) case: String,
    pub(super) backing: BackingDevice,
}

/// Samples of both paths, in the order of [`IoPath::ALL`](super::harness::IoPath::ALL).
pub(super) type PairedSamples<T> = [Vec<T>; 2];

/// Returns the samples of two interleaved paths.
///
/// # Errors
/// If there are not exactly two.
pub(super) fn pair<T>(samples: Vec<Vec<T>>) -> Result<PairedSamples<T>, BenchError> {
    samples.try_into().map_err(|_| BenchError::Thread("both ways"))
}

/// A metric: its name and its unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metric(pub(super) &'static str, pub(super) &'static str);

impl Rows<'_, '_> {
    fn samples(&self, metric: &'static str, values: Vec<f64>) -> Result<Samples, BenchError> {
        Samples::new(values).ok_or_else(|| BenchError::NoValue { case: self.case.clone(), metric })
    }

    /// Writes one metric of all samples; `bound` sets its bound relative to the kernel's value.
    ///
    /// # Errors
    /// If a value is not a number, or if the output fails.
    pub(super) fn push<T>(
        &mut self,
        Metric(metric, unit): Metric,
        samples: &PairedSamples<T>,
        number: impl Fn(&T) -> f64,
        bound: impl FnOnce(Measurement, f64) -> Measurement,
    ) -> Result<(), BenchError> {
        let [exec, kernel] = samples;
        let exec = self.samples(metric, exec.iter().map(&number).collect())?;
        let kernel = self.samples(metric, kernel.iter().map(&number).collect())?;
        let case = format!("{}, {}, sluice exec", self.case, self.backing.name());
        let row = Measurement::new(BENCH, case, metric, exec.median(), unit);
        let row = row.with_reference(self.backing.kernel_path(), kernel.median());
        self.sink.push(bound(row, kernel.median()))
    }

    /// Writes the interquartile spread of the samples of both paths.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub(super) fn spread<T>(
        &mut self,
        metric: &'static str,
        samples: &PairedSamples<T>,
        number: impl Fn(&T) -> f64,
    ) -> Result<(), BenchError> {
        let spread = |samples: &Vec<T>| {
            let samples = self.samples(metric, samples.iter().map(&number).collect())?;
            Ok::<f64, BenchError>(samples.spread() * 100.0)
        };
        let [exec, kernel] = [spread(&samples[0])?, spread(&samples[1])?];
        let case = format!("{}, {}, sluice exec", self.case, self.backing.name());
        let row = Measurement::new(BENCH, case, metric, exec, "%");
        self.sink.push(row.with_reference(self.backing.kernel_path(), kernel))
    }
}

/// Sets no bound.
pub(super) fn without_bound(row: Measurement, _: f64) -> Measurement {
    row
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::Format;

    #[test]
    fn medians_stand_beside_the_kernel() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        let (below, case) = (BackingDevice::Nand, "a program".to_owned());
        let mut rows = Rows { sink: &mut sink, case, backing: below };
        let samples = [vec![3.0, 1.0, 2.0], vec![1.0, 1.0, 5.0]];
        rows.push(
            Metric("rate", "1/s"),
            &samples,
            |v| *v,
            |row, kernel| row.at_least(kernel * 3.0),
        )
        .unwrap();
        rows.spread("rate_spread", &samples, |v| *v).unwrap();
        assert!(
            rows.push(Metric("rate", "1/s"), &[vec![], vec![1.0]], |v| *v, without_bound).is_err()
        );
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!((&lines[0]["ratio"], &lines[0]["verdict"]), (&2.0.into(), &"fail".into()));
        assert_eq!(lines[0]["case"], "a program, drive consumer-nvme, sluice exec");
        assert_eq!(lines[1]["value"], 100.0);
        assert_eq!(lines.len(), 2);
    }
}

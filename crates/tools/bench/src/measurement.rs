//! [`Measurement`]: one result with its reference and its bound.

use serde_json::{Value, json};

use super::Samples;

/// The part of a run that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredInterval {
    /// Time before the measurement begins.
    pub ramp: time::Nanos,
    /// Length of the measurement.
    pub time: time::Nanos,
}

/// Measurement of the same run that a result is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Description of the reference.
    pub what: String,
    /// Its value, in the unit of the result.
    pub value: f64,
}

/// The range of the samples that a result is a quantile of: the median, or the one that its metric names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSpread {
    /// How many samples were taken.
    pub samples: usize,
    /// The least of them.
    pub min: f64,
    /// The largest of them.
    pub max: f64,
}

/// Required range of a result, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Minimum, if there is one.
    pub min: Option<f64>,
    /// Maximum, if there is one.
    pub max: Option<f64>,
}

impl Bound {
    /// Returns whether a value is within the bound.
    pub fn contains(&self, value: f64) -> bool {
        self.min.is_none_or(|least| value >= least) && self.max.is_none_or(|most| value <= most)
    }

    fn limits(&self) -> impl Iterator<Item = f64> {
        self.min.into_iter().chain(self.max)
    }
}

/// Whether a result is within its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within the bound.
    Pass,
    /// Outside the bound.
    Fail,
}

impl Verdict {
    /// Returns `pass` or `fail`.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
        }
    }
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Group that measured it.
    pub bench: &'static str,
    /// Measured case.
    pub case: String,
    /// Metric of the case.
    pub metric: &'static str,
    /// Value of the metric.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// Value to compare with.
    pub reference: Option<Reference>,
    /// Bound of the value.
    pub bound: Option<Bound>,
    /// The samples that it is a quantile of.
    pub spread: Option<SampleSpread>,
}

impl Measurement {
    /// Returns a result without a reference.
    pub fn new(
        bench: &'static str,
        case: impl Into<String>,
        metric: &'static str,
        value: f64,
        unit: &'static str,
    ) -> Measurement {
        Measurement {
            bench,
            case: case.into(),
            metric,
            value,
            unit,
            reference: None,
            bound: None,
            spread: None,
        }
    }

    /// The median of samples, with their spread.
    pub fn median(
        bench: &'static str,
        case: impl Into<String>,
        metric: &'static str,
        samples: &Samples,
        unit: &'static str,
    ) -> Measurement {
        Measurement::new(bench, case, metric, samples.median(), unit).with_spread(samples)
    }

    /// The result with the spread of its samples.
    #[must_use]
    pub fn with_spread(mut self, samples: &Samples) -> Measurement {
        let (min, max) = (samples.quantile(0.0), samples.quantile(1.0));
        self.spread = Some(SampleSpread { samples: samples.count(), min, max });
        self
    }

    /// Sets the reference: a value from the same run in the same unit.
    #[must_use]
    pub fn with_reference(mut self, what: impl Into<String>, value: f64) -> Measurement {
        self.reference = Some(Reference { what: what.into(), value });
        self
    }

    /// Sets the minimum of the result.
    #[must_use]
    pub fn at_least(mut self, least: f64) -> Measurement {
        let most = self.bound.and_then(|b| b.max);
        self.bound = Some(Bound { min: Some(least), max: most });
        self
    }

    /// Sets the maximum of the result.
    #[must_use]
    pub fn at_most(mut self, most: f64) -> Measurement {
        let least = self.bound.and_then(|b| b.min);
        self.bound = Some(Bound { min: least, max: Some(most) });
        self
    }

    /// Bounds the difference from `value` to a `share` of it (0.05: 5 %).
    #[must_use]
    pub fn within(self, share: f64, value: f64) -> Measurement {
        let off = share.abs() * value.abs();
        self.at_least(value - off).at_most(value + off)
    }

    /// Returns whether the result is within its bound; `None` without a bound.
    pub fn verdict(&self) -> Option<Verdict> {
        let bound = self.bound?;
        Some(if bound.contains(self.value) { Verdict::Pass } else { Verdict::Fail })
    }

    /// Returns the value divided by the reference; `None` if that is not a number.
    pub fn ratio(&self) -> Option<f64> {
        let ratio = self.value / self.reference.as_ref()?.value;
        ratio.is_finite().then_some(ratio)
    }

    /// Returns whether every number in it is finite.
    pub fn is_finite(&self) -> bool {
        self.value.is_finite()
            && self.reference.as_ref().is_none_or(|r| r.value.is_finite())
            && self.bound.iter().flat_map(Bound::limits).all(f64::is_finite)
    }

    /// As one JSON object without a line break, its keys in a fixed order; `samples`, `min` and `max`, `reference` and
    /// `ratio`, `bound` and `verdict` only where there are some.
    pub fn to_json_line(&self) -> String {
        let mut pairs: Vec<(&str, Value)> = vec![
            ("bench", self.bench.into()),
            ("case", self.case.as_str().into()),
            ("metric", self.metric.into()),
            ("value", rounded(self.value).into()),
            ("unit", self.unit.into()),
        ];
        if let Some(SampleSpread { samples, min, max }) = self.spread {
            pairs.push(("samples", samples.into()));
            pairs.push(("min", rounded(min).into()));
            pairs.push(("max", rounded(max).into()));
        }
        if let Some(Reference { what, value }) = &self.reference {
            pairs.push(("reference", json!({ "what": what, "value": rounded(*value) })));
        }
        if let Some(ratio) = self.ratio() {
            pairs.push(("ratio", rounded(ratio).into()));
        }
        if let (Some(Bound { min: least, max: most }), Some(verdict)) = (self.bound, self.verdict())
        {
            let limits = [("least", least), ("most", most)];
            let limits = limits.into_iter().filter_map(|(k, v)| Some((k.to_owned(), rounded(v?))));
            let limits: serde_json::Map<String, Value> =
                limits.map(|(k, v)| (k, v.into())).collect();
            pairs.push(("bound", limits.into()));
            pairs.push(("verdict", verdict.as_str().into()));
        }
        let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
        format!("{{{}}}", pairs.join(","))
    }
}

/// Rounds to six significant digits, which exceed the precision of a clock.
fn rounded(value: f64) -> f64 {
    // Round through decimal digits, because scaling by a power of ten is not exact.
    format!("{value:.5e}").parse().ok().filter(|r: &f64| r.is_finite()).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn keys(m: &Measurement) -> Vec<String> {
        let line = m.to_json_line();
        let object: Map<String, Value> = serde_json::from_str(&line).unwrap();
        let mut keys: Vec<String> = object.keys().cloned().collect();
        keys.sort_by_key(|key| line.find(&format!("\"{key}\":")));
        keys
    }

    #[test]
    fn the_object_has_the_documented_keys_and_no_others() {
        let bare = Measurement::new("ring", "a \"quoted\" case", "ns_per_command", 1.0, "ns");
        assert_eq!(keys(&bare), ["bench", "case", "metric", "value", "unit"]);
        let compared = bare.with_reference("b", 0.5);
        let all = ["bench", "case", "metric", "value", "unit", "reference", "ratio"];
        assert_eq!(keys(&compared), all);
        let object: Value = serde_json::from_str(&compared.to_json_line()).unwrap();
        assert_eq!(object["ratio"], 2.0);
        assert_eq!(object["reference"], json!({ "what": "b", "value": 0.5 }));
    }

    #[test]
    fn a_median_has_the_spread_of_its_samples() {
        let samples = Samples::new(vec![3.0, 1.0, 2.0]).unwrap();
        let m = Measurement::median("ring", "a", "m", &samples, "ns").at_most(2.0);
        assert_eq!(m.verdict(), Some(Verdict::Pass));
        let all = ["bench", "case", "metric", "value", "unit", "samples", "min", "max", "bound"];
        assert_eq!(keys(&m)[..9], all);
        let object: Value = serde_json::from_str(&m.to_json_line()).unwrap();
        let number = |key: &str| object[key].as_f64().unwrap();
        assert_eq!(["value", "samples", "min", "max"].map(number), [2.0, 3.0, 1.0, 3.0]);
    }

    #[test]
    fn a_bound_can_be_missed_on_either_side() {
        let m = |value| Measurement::new("ring", "a", "m", value, "ns");
        assert_eq!(m(1.0).verdict(), None);
        let verdicts = |m: Measurement| m.verdict().unwrap();
        assert_eq!(verdicts(m(80.0).at_most(80.0)), Verdict::Pass);
        assert_eq!(verdicts(m(80.1).at_most(80.0)), Verdict::Fail);
        assert_eq!(verdicts(m(9.9).at_least(10.0)), Verdict::Fail);
        for (value, verdict) in [
            (94.9, Verdict::Fail),
            (95.0, Verdict::Pass),
            (105.0, Verdict::Pass),
            (105.1, Verdict::Fail),
        ] {
            assert_eq!(verdicts(m(value).within(0.05, 100.0)), verdict, "{value}");
        }
        assert!(!m(1.0).at_most(f64::NAN).is_finite());
        let failed = m(2.0).with_reference("paper", 1.0).at_most(1.5);
        let all =
            ["bench", "case", "metric", "value", "unit", "reference", "ratio", "bound", "verdict"];
        assert_eq!(keys(&failed), all);
        let object: Value = serde_json::from_str(&failed.to_json_line()).unwrap();
        assert_eq!(object["verdict"], "fail");
        assert_eq!(object["bound"], json!({ "most": 1.5 }));
        let both: Value = serde_json::from_str(&m(2.0).within(0.5, 2.0).to_json_line()).unwrap();
        assert_eq!(both["bound"], json!({ "least": 1.0, "most": 3.0 }));
    }

    #[test]
    fn a_ratio_to_nothing_is_left_out() {
        let m = Measurement::new("ring", "a", "m", 1.0, "ns").with_reference("zero", 0.0);
        assert!(m.is_finite());
        assert_eq!(m.ratio(), None);
        assert!(!keys(&m).contains(&"ratio".to_owned()));
    }

    #[test]
    fn numbers_keep_six_digits() {
        for (value, shown) in [
            (0.0, 0.0),
            (1.234_567_8, 1.234_57),
            (19_907_731.2, 19_907_700.0),
            (0.000_123_456_78, 0.000_123_457),
            (f64::MAX, 1.797_69e308),
        ] {
            assert_eq!(rounded(value), shown);
        }
    }
}

//! [`Measurement`]: one result, and what it is compared with.

use serde_json::{Value, json};

/// What the same run measured to compare a result with.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// What it is.
    pub what: String,
    /// Its value, in the result's unit.
    pub value: f64,
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The group that measured it.
    pub bench: &'static str,
    /// What was measured.
    pub case: String,
    /// Of it.
    pub metric: &'static str,
    /// How much.
    pub value: f64,
    /// In which unit.
    pub unit: &'static str,
    /// What to compare it with.
    pub reference: Option<Reference>,
}

impl Measurement {
    /// A result that is compared with nothing.
    pub fn new(
        bench: &'static str,
        case: impl Into<String>,
        metric: &'static str,
        value: f64,
        unit: &'static str,
    ) -> Measurement {
        Measurement { bench, case: case.into(), metric, value, unit, reference: None }
    }

    /// The result beside what the same run measured in the same unit.
    #[must_use]
    pub fn against(mut self, what: impl Into<String>, value: f64) -> Measurement {
        self.reference = Some(Reference { what: what.into(), value });
        self
    }

    /// The value divided by the reference's; `None` where that is no number.
    pub fn ratio(&self) -> Option<f64> {
        let ratio = self.value / self.reference.as_ref()?.value;
        ratio.is_finite().then_some(ratio)
    }

    /// Whether every number in it is one.
    pub fn is_finite(&self) -> bool {
        self.value.is_finite() && self.reference.as_ref().is_none_or(|r| r.value.is_finite())
    }

    /// As one JSON object without a line break, its keys in a fixed order; `reference` and `ratio`
    /// only where there are some.
    pub fn to_json_line(&self) -> String {
        let mut pairs: Vec<(&str, Value)> = vec![
            ("bench", self.bench.into()),
            ("case", self.case.as_str().into()),
            ("metric", self.metric.into()),
            ("value", rounded(self.value).into()),
            ("unit", self.unit.into()),
        ];
        if let Some(Reference { what, value }) = &self.reference {
            pairs.push(("reference", json!({ "what": what, "value": rounded(*value) })));
        }
        if let Some(ratio) = self.ratio() {
            pairs.push(("ratio", rounded(ratio).into()));
        }
        let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
        format!("{{{}}}", pairs.join(","))
    }
}

/// To six significant digits: a clock says no more.
fn rounded(value: f64) -> f64 {
    // Through decimal digits: scaling by a power of ten is not exact.
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
    fn the_object_has_the_promised_keys_and_no_others() {
        let bare = Measurement::new("ring", "a \"quoted\" case", "ns_per_command", 1.0, "ns");
        assert_eq!(keys(&bare), ["bench", "case", "metric", "value", "unit"]);
        let compared = bare.against("b", 0.5);
        let all = ["bench", "case", "metric", "value", "unit", "reference", "ratio"];
        assert_eq!(keys(&compared), all);
        let object: Value = serde_json::from_str(&compared.to_json_line()).unwrap();
        assert_eq!(object["ratio"], 2.0);
        assert_eq!(object["reference"], json!({ "what": "b", "value": 0.5 }));
    }

    #[test]
    fn a_ratio_to_nothing_is_left_out() {
        let m = Measurement::new("ring", "a", "m", 1.0, "ns").against("zero", 0.0);
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

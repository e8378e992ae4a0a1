//! [`Measurement`]: one result, and what it is compared with.

use serde_json::{Map, Value, json};

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

    /// As one JSON object; `reference` and `ratio` only where there are some.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("bench".into(), self.bench.into());
        object.insert("case".into(), self.case.as_str().into());
        object.insert("metric".into(), self.metric.into());
        object.insert("value".into(), rounded(self.value).into());
        object.insert("unit".into(), self.unit.into());
        if let Some(reference) = &self.reference {
            let value = rounded(reference.value);
            object.insert("reference".into(), json!({ "what": reference.what, "value": value }));
        }
        if let Some(ratio) = self.ratio() {
            object.insert("ratio".into(), rounded(ratio).into());
        }
        Value::Object(object)
    }
}

/// To thousandths: a clock says no more.
fn rounded(value: f64) -> f64 {
    let scaled = (value * 1e3).round() / 1e3;
    if scaled.is_finite() { scaled } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_the_promised_keys_and_no_others() {
        let bare = Measurement::new("ring", "a", "ns_per_command", 1.23456, "ns");
        let keys = |m: &Measurement| -> Vec<String> {
            m.to_json().as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default()
        };
        let mut expected = vec!["bench", "case", "metric", "value", "unit"];
        expected.sort_unstable();
        assert_eq!(sorted(keys(&bare)), expected);
        assert_eq!(bare.to_json()["value"], 1.235);
        let compared = bare.against("b", 0.5);
        expected.extend(["reference", "ratio"]);
        expected.sort_unstable();
        assert_eq!(sorted(keys(&compared)), expected);
        assert_eq!(compared.to_json()["ratio"], 2.469);
        assert_eq!(compared.to_json()["reference"], json!({ "what": "b", "value": 0.5 }));
    }

    #[test]
    fn a_ratio_to_nothing_is_left_out() {
        let m = Measurement::new("ring", "a", "m", 1.0, "ns").against("zero", 0.0);
        assert!(m.is_finite());
        assert_eq!(m.ratio(), None);
        assert!(m.to_json().get("ratio").is_none());
    }

    fn sorted(mut keys: Vec<String>) -> Vec<String> {
        keys.sort_unstable();
        keys
    }
}

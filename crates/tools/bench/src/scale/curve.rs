//! [`ScalingCurve`]: the cost of a simulated I/O by one parameter of a scenario, and its bound.

use super::super::{BenchError, Measurement, Samples, Sink};
use super::BENCH;

/// Growth per doubling that a curve may have, as a share of the cost at its first point.
pub(super) const GROWTH_PER_DOUBLING: f64 = 0.25;

/// Returns the maximum cost at `n`, if it is `first_cost` at `first`.
pub(super) fn bound(first: u64, first_cost: f64, n: u64) -> f64 {
    first_cost * (1.0 + GROWTH_PER_DOUBLING * doublings(first, n))
}

fn doublings(first: u64, last: u64) -> f64 {
    (last as f64 / first as f64).log2()
}

/// One curve. Points are added in ascending order.
#[derive(Debug)]
pub(super) struct ScalingCurve {
    /// The parameter.
    axis: &'static str,
    /// The requests.
    load: &'static str,
    metric: &'static str,
    /// Value of the parameter, and cost in nanoseconds.
    points: Vec<(u64, f64)>,
}

impl ScalingCurve {
    pub(super) fn new(
        axis: &'static str,
        load: &'static str,
        metric: &'static str,
    ) -> ScalingCurve {
        ScalingCurve { axis, load, metric, points: Vec::new() }
    }

    /// Returns the case of a point.
    pub(super) fn case(&self, n: u64) -> String {
        format!("{} {n}, {}", self.axis, self.load)
    }

    /// Adds the cost at `n`.
    pub(super) fn push(
        &mut self,
        n: u64,
        cost: &Samples,
        sink: &mut Sink<'_>,
    ) -> Result<(), BenchError> {
        self.points.push((n, cost.median()));
        let row = Measurement::median(BENCH, self.case(n), self.metric, cost, "ns");
        sink.push(match self.points[0] {
            (first, _) if first == n => row,
            (first, first_cost) => row
                .with_reference(format!("{} {first}", self.axis), first_cost)
                .at_most(bound(first, first_cost, n)),
        })
    }

    /// Adds the growth over the curve: from its first to its last point, and per doubling.
    pub(super) fn finish(self, sink: &mut Sink<'_>) -> Result<(), BenchError> {
        let (Some((first, low)), Some((last, high))) = (self.points.first(), self.points.last())
        else {
            return Ok(());
        };
        if first == last {
            return Ok(());
        }
        let case = format!("{} {first} to {last}, {}", self.axis, self.load);
        let (ratio, doublings) = (high / low, doublings(*first, *last));
        sink.push(Measurement::new(BENCH, &case, "growth", ratio, ""))?;
        let each = ratio.powf(1.0 / doublings);
        sink.push(Measurement::new(BENCH, case, "growth_per_doubling", each, ""))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Format, Verdict};
    use super::*;

    /// The verdicts of a curve whose cost is `cost(n)`.
    fn verdicts(cost: impl Fn(f64) -> f64) -> Vec<Verdict> {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        let mut curve = ScalingCurve::new("jobs", "reads", "cpu_per_io");
        for n in [1, 4, 16, 64, 256, 1024] {
            let samples = Samples::new(vec![cost(n as f64)]).unwrap();
            curve.push(n, &samples, &mut sink).unwrap();
        }
        curve.finish(&mut sink).unwrap();
        let judged = sink.finish().unwrap();
        judged.iter().filter_map(Measurement::verdict).collect()
    }

    #[test]
    fn a_logarithmic_curve_passes_and_a_linear_one_fails() {
        assert_eq!(verdicts(|n| 300.0 + 60.0 * n.log2()), [Verdict::Pass; 5]);
        assert_eq!(verdicts(|_| 300.0), [Verdict::Pass; 5]);
        assert!(verdicts(|n| 300.0 * n).contains(&Verdict::Fail));
        // A nanosecond for each of them: a scan of a list.
        assert!(verdicts(|n| 300.0 + n).contains(&Verdict::Fail));
        assert!(verdicts(|n| 300.0 * n.powf(0.5)).contains(&Verdict::Fail));
    }
}

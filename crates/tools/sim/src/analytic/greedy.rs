//! Closed forms of GC's write amplification under uniform random writes \[Desnoyers12\], equation 12.
//!
//! Let α = physical / logical sectors (without reserved free units), N the sectors per reclaimed
//! unit, and k = 1 + 1/(2N). Greedy collection amplifies writes by A(kα)/k, and FIFO collection by
//! A(α), where A(x) = x / (x + W₀(−x·e⁻ˣ)).

/// Returns the principal branch of Lambert's W at −x·e⁻ˣ for x ≥ 1. It is the solution w ∈ [−1, 0)
/// of w·eʷ = −x·e⁻ˣ other than w = −x.
fn w0_of_x(x: f64) -> f64 {
    if x <= 1.0 {
        return -1.0;
    }
    let z = -x * (-x).exp();
    // 1 + e·z without cancellation, with d = x − 1: 1 − (1 + d)·e⁻ᵈ.
    let d = x - 1.0;
    let room = -(-d).exp_m1() - d * (-d).exp();
    let mut w = if room < 0.3 {
        // Series at the branch point, [LambertW96], equation 4.22.
        let p = (2.0 * room).sqrt();
        -1.0 + p * (1.0 - p * (1.0 / 3.0 - p * 11.0 / 72.0))
    } else {
        z
    };
    // Halley's method ([LambertW96], equation 5.9) triples the digits in each iteration.
    for _ in 0..20 {
        let e = w.exp();
        let f = w * e - z;
        let step = f / (e * (w + 1.0) - (w + 2.0) * f / (2.0 * w + 2.0));
        if !step.is_finite() {
            break;
        }
        w -= step;
        if step.abs() <= 1e-16 * w.abs() {
            break;
        }
    }
    w.clamp(-1.0, 0.0)
}

/// Returns A(x): the amplification of a unit that is reclaimed after everything has been written x
/// times. It grows without limit as x falls to 1; the result is `None` for x ≤ 1.
fn a(x: f64) -> Option<f64> {
    let a = x / (x + w0_of_x(x));
    (x > 1.0 && a.is_finite()).then_some(a)
}

/// Returns the write amplification of greedy collection at `over_provisioning` (physical/logical −
/// 1) with `sectors` per reclaimed unit; `None` if it is unbounded.
pub fn greedy(over_provisioning: f64, sectors: u64) -> Option<f64> {
    let k = 1.0 + 1.0 / (2.0 * sectors.max(1) as f64);
    a(k * (1.0 + over_provisioning)).map(|a| (a / k).max(1.0))
}

/// Returns the write amplification of FIFO collection at `over_provisioning` (physical/logical −
/// 1); `None` if it is unbounded.
pub fn fifo(over_provisioning: f64) -> Option<f64> {
    a(1.0 + over_provisioning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meets_the_published_values() {
        for (over_provisioning, published) in
            [(0.07, 7.00), (0.11, 4.86), (0.20, 3.05), (0.28, 2.40), (0.50, 1.68)]
        {
            let computed = greedy(over_provisioning, 64).unwrap();
            assert!((computed - published).abs() < 0.006, "{over_provisioning}: {computed}");
        }
    }

    #[test]
    fn w_solves_its_equation_everywhere() {
        for i in 1..4000 {
            let x = 1.0 + f64::from(i * i) * 1e-6;
            let w = w0_of_x(x);
            assert!((-1.0..0.0).contains(&w), "{x}: {w}");
            let (left, right) = (w * w.exp(), -x * (-x).exp());
            assert!((left - right).abs() <= 1e-15, "{x}: {left} {right}");
            // The result is on the principal branch; it is not the trivial solution −x.
            assert!(w > -x || x == 1.0);
        }
    }

    #[test]
    fn falls_with_spare_space_and_never_below_one() {
        let mut last = f64::MAX;
        for percent in 1..300 {
            let wa = greedy(f64::from(percent) / 100.0, 64).unwrap();
            assert!(wa < last && wa >= 1.0, "{percent}: {wa}");
            assert!(fifo(f64::from(percent) / 100.0).unwrap() > wa, "greedy is never worse");
            last = wa;
        }
        assert_eq!(fifo(0.0), None);
    }
}

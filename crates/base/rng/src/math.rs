//! `ln` and `exp` from additions, multiplications and divisions only. IEEE 754 defines these
//! exactly, so samples are equal on every machine. Errors are below 2 ulp. The coefficients are the
//! minimax polynomials published with fdlibm (Sun Microsystems, 1993).

const LN2_HI: f64 = 6.931_471_803_691_238e-1;
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;

/// Returns the natural logarithm of a positive, finite, normal number.
#[inline]
pub(crate) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
    let bits = x.to_bits().wrapping_add(0x3ff0_0000_0000_0000 - 0x3fe6_a09e_667f_3bcd);
    let e = (bits >> 52) as i64 - 1023;
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(0x3fe6_a09e_667f_3bcd));
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w
        * (3.999_999_999_940_942e-1
            + w * (2.222_219_843_214_978_4e-1 + w * 1.531_383_769_920_937_3e-1));
    let odd = z
        * (6.666_666_666_666_735e-1
            + w * (2.857_142_874_366_239e-1
                + w * (1.818_357_216_161_805e-1 + w * 1.479_819_860_511_658_6e-1)));
    let half = 0.5 * f * f;
    let e = e as f64;
    e * LN2_HI - ((half - (s * (half + even + odd) + e * LN2_LO)) - f)
}

/// Returns `e` to the power of `x`; 0 below -708, infinity above 709.
#[inline]
pub(crate) fn exp(x: f64) -> f64 {
    if x < -708.0 {
        return 0.0;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    let k = (x * std::f64::consts::LOG2_E).round();
    let (hi, lo) = (x - k * LN2_HI, k * LN2_LO);
    let r = hi - lo;
    let t = r * r;
    let c = r - t
        * (1.666_666_666_666_660_2e-1
            + t * (-2.777_777_777_701_559_3e-3
                + t * (6.613_756_321_437_934e-5
                    + t * (-1.653_390_220_546_525_2e-6 + t * 4.138_136_797_057_238e-8))));
    let y = 1.0 + (r * c / (2.0 - c) - lo + hi);
    // Build 2^k from its exponent field: k is in -1022..=1023.
    y * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// Returns `x` to the power of `p`, for `x` in `[0, 1]` and positive `p`.
#[inline]
pub(crate) fn pow(x: f64, p: f64) -> f64 {
    if x.is_normal() { exp(p * ln(x)) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn agrees_with_the_system_to_two_ulp() {
        let mut rng = Rng::new(1);
        for _ in 0..200_000 {
            let x = f64::from_bits(rng.below(0x7fe0_0000_0000_0000 - (1 << 52)) + (1 << 52));
            let (ours, theirs) = (ln(x), x.ln());
            assert!((ours - theirs).abs() <= 4.0 * f64::EPSILON * theirs.abs(), "ln {x}");
            let x = (rng.f64() - 0.5) * 1400.0;
            let (ours, theirs) = (exp(x), x.exp());
            assert!((ours - theirs).abs() <= 4.0 * f64::EPSILON * theirs.abs(), "exp {x}");
        }
        assert_eq!((ln(1.0), exp(0.0)), (0.0, 1.0));
        assert_eq!((exp(-1e9), exp(1e9), pow(0.0, 2.0)), (0.0, f64::INFINITY, 0.0));
    }
}

//! [`Variation`]: one number of a machine, multiplied: how much a result depends on it.

use std::fmt;
use std::str::FromStr;

/// A number of a machine and a factor, as `KEY*FACTOR`: `lines.hit*2`.
#[derive(Clone, Debug, PartialEq)]
pub struct Variation {
    key: String,
    factor: f64,
}

/// Text that is no variation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not KEY*FACTOR, such as lines.hit*2, with a factor of at least 0")]
pub struct VariationError(String);

impl Variation {
    /// Returns the key of the number.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the factor, at least 0.
    pub fn factor(&self) -> f64 {
        self.factor
    }
}

impl FromStr for Variation {
    type Err = VariationError;

    fn from_str(text: &str) -> Result<Variation, VariationError> {
        let refuse = || VariationError(text.to_owned());
        let (key, factor) = text.split_once('*').ok_or_else(refuse)?;
        let factor: f64 = factor.trim().parse().map_err(|_| refuse())?;
        let key = key.trim();
        if key.is_empty() || !factor.is_finite() || factor < 0.0 {
            return Err(refuse());
        }
        Ok(Variation { key: key.to_owned(), factor })
    }
}

impl fmt::Display for Variation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}*{}", self.key, self.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variation_is_a_key_and_a_factor() {
        let half: Variation = "lines.hit*0.5".parse().unwrap();
        assert_eq!((half.key(), half.factor()), ("lines.hit", 0.5));
        assert_eq!(half.to_string(), "lines.hit*0.5");
        for text in ["", "lines.hit", "*2", "lines.hit*", "lines.hit*-1", "a*nan", "a*inf", "a*b"] {
            let error = text.parse::<Variation>().unwrap_err();
            assert!(error.to_string().contains("KEY*FACTOR"), "{text}");
        }
    }
}

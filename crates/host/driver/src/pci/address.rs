//! [`PciAddress`]: domain, bus, device and function, in Linux's notation.

use std::fmt;
use std::str::FromStr;

/// A PCI function: `0000:01:00.0` is domain, bus, device and function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

/// A text that is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no PCI address: domain:bus:device.function, for example 0000:01:00.0")]
pub struct ParsePciAddressError {
    /// The text.
    pub text: String,
}

/// Parses a number of 1 to `digits` hexadecimal digits, without a sign.
fn hex(text: &str, digits: usize) -> Option<u32> {
    let fits = (1..=digits).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    fits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

impl FromStr for PciAddress {
    type Err = ParsePciAddressError;

    /// Parses an address. A missing domain is 0.
    fn from_str(text: &str) -> Result<PciAddress, ParsePciAddressError> {
        let parsed = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let (device, function) = (hex(device, 2)?, hex(function, 1)?);
            (device < 32 && function < 8).then_some(PciAddress {
                domain: hex(domain, 8)?,
                bus: hex(bus, 2)? as u8,
                device: device as u8,
                function: function as u8,
            })
        };
        parsed().ok_or_else(|| ParsePciAddressError { text: text.to_owned() })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for (text, said) in [
            ("0000:01:00.0", "0000:01:00.0"),
            ("01:1f.7", "0000:01:1f.7"),
            ("10000:E1:02.3", "10000:e1:02.3"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), said);
        }
        for wrong in [
            "",
            "01:00",
            "0000:01:20.0",
            "0000:01:00.8",
            "0:1:2:3.0",
            "+1:00.0",
            "01:00.0/x",
            "é:0.0",
        ] {
            assert!(wrong.parse::<PciAddress>().unwrap_err().to_string().contains("0000:01:00.0"));
        }
    }
}

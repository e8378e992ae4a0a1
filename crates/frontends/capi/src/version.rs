//! The library's version, and its compatibility with headers (semantic versioning 2.0, clauses 4
//! and 8).

use crate::error::CallError;

/// Major version of the header. The library refuses headers with another major version.
pub const SLUICE_VERSION_MAJOR: u32 = 0;
/// Minor version of the header. While the major version is 0, the library refuses headers with
/// another minor version; later, headers with a larger one than its own.
pub const SLUICE_VERSION_MINOR: u32 = 1;
/// Patch version of the header. It does not affect compatibility.
pub const SLUICE_VERSION_PATCH: u32 = 0;
/// Version of the header, which `sluice_open()` passes to the library.
pub const SLUICE_VERSION: u32 =
    (SLUICE_VERSION_MAJOR << 16) | (SLUICE_VERSION_MINOR << 8) | SLUICE_VERSION_PATCH;

const fn parse_number(text: &str) -> u32 {
    let (bytes, mut at, mut number) = (text.as_bytes(), 0, 0);
    while at < bytes.len() {
        number = number * 10 + (bytes[at] - b'0') as u32;
        at += 1;
    }
    number
}

// The constants are literals, so that the header has them as such, and must equal the package's
// version.
const _: () = assert!(
    SLUICE_VERSION_MAJOR == parse_number(env!("CARGO_PKG_VERSION_MAJOR"))
        && SLUICE_VERSION_MINOR == parse_number(env!("CARGO_PKG_VERSION_MINOR"))
        && SLUICE_VERSION_PATCH == parse_number(env!("CARGO_PKG_VERSION_PATCH"))
);

/// A version, formatted for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(pub(crate) u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0 >> 16, self.0 >> 8 & 0xff, self.0 & 0xff)
    }
}

/// Returns whether a library of version `library` supports a header of version `header`.
fn serves(library: u32, header: u32) -> bool {
    let (major, minor) = (|v: u32| v >> 16, |v: u32| v >> 8 & 0xff);
    let minor_fits = match major(library) {
        0 => minor(header) == minor(library),
        _ => minor(header) <= minor(library),
    };
    major(header) == major(library) && minor_fits
}

/// Refuses a header that this library does not support.
pub(crate) fn check(header: u32) -> Result<(), CallError> {
    match serves(SLUICE_VERSION, header) {
        true => Ok(()),
        false => Err(CallError::Version { header: Version(header) }),
    }
}

/// Returns the version of the library.
///
/// `SLUICE_VERSION` is the version of the header. `sluice_open()` compares the two, and refuses an
/// incompatible header with `-ELIBBAD`.
///
/// # Returns
///
/// `major << 16 | minor << 8 | patch`.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_version() -> u32 {
    SLUICE_VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_same_line_are_served() {
        let v = |major: u32, minor: u32, patch: u32| major << 16 | minor << 8 | patch;
        for (library, header, fits) in [
            (v(0, 1, 0), v(0, 1, 0), true),
            (v(0, 1, 0), v(0, 1, 7), true),
            (v(0, 1, 0), v(0, 2, 0), false),
            (v(0, 2, 0), v(0, 1, 0), false),
            (v(1, 4, 0), v(1, 3, 9), true),
            (v(1, 4, 0), v(1, 5, 0), false),
            (v(1, 4, 0), v(2, 0, 0), false),
            (v(1, 0, 0), v(0, 1, 0), false),
        ] {
            assert_eq!(
                serves(library, header),
                fits,
                "{} and {}",
                Version(library),
                Version(header)
            );
        }
        assert!(check(sluice_version()).is_ok());
        let error = check(v(0, 9, 3)).unwrap_err();
        assert_eq!(error.errno(), libc::ELIBBAD);
        assert!(error.to_string().contains("0.9.3"), "{error}");
    }
}

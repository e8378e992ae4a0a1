//! Extensible structs: the first member is the size of the caller's version of the struct
//! (`openat2(2)`, "Extensibility").
//!
//! A zeroed member selects its default. If the caller's version is older than the library's, the
//! additional members of the library get their defaults. If the caller's version is newer, its
//! additional members must be zero.

use std::mem::{MaybeUninit, size_of};

use crate::error::CallError;

/// Maximum size that is accepted: a page, as for `openat2(2)`.
const SIZE_MAX: usize = 4096;

/// A struct whose first member is a `size_t` with its size.
///
/// # Safety
/// The struct is `repr(C)`, begins with a `usize`, has no padding, and all-zero bytes are a valid
/// value.
pub(crate) unsafe trait ExtensibleStruct: Copy {
    /// Its name in C.
    const NAME: &'static str;
}

fn check<T: ExtensibleStruct>(size: usize) -> Result<(), CallError> {
    let known = size_of::<T>();
    if size > SIZE_MAX {
        return Err(CallError::TooNew { name: T::NAME, size, known });
    }
    if size < size_of::<usize>() || !size.is_multiple_of(8) {
        return Err(CallError::Size { name: T::NAME, size, known });
    }
    Ok(())
}

/// Reads a caller's struct; `NULL` yields the defaults.
///
/// # Safety
/// `from` is `NULL`, or aligned and readable for as many bytes as its first member says.
pub(crate) unsafe fn read_struct<T: ExtensibleStruct>(from: *const T) -> Result<T, CallError> {
    let mut known = MaybeUninit::<T>::zeroed();
    if from.is_null() {
        // SAFETY: zeros are a value of the struct (`ExtensibleStruct`).
        return Ok(unsafe { known.assume_init() });
    }
    // SAFETY: not NULL, aligned, and the first member is a `usize`.
    let size = unsafe { from.cast::<usize>().read() };
    check::<T>(size)?;
    let common = size.min(size_of::<T>());
    // SAFETY: the caller's struct has `size` bytes, ours at least `common`, and they do not overlap.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping(known.as_mut_ptr().cast(), common) };
    for at in common..size {
        // SAFETY: inside the caller's `size` bytes.
        if unsafe { from.cast::<u8>().add(at).read() } != 0 {
            return Err(CallError::TooNew { name: T::NAME, size, known: size_of::<T>() });
        }
    }
    // SAFETY: the known prefix has the caller's bytes with C's layout, the rest is zero.
    Ok(unsafe { known.assume_init() })
}

/// Writes as much of a struct as the caller's version has; additional members of the caller become
/// zero.
///
/// # Safety
/// `into` is `NULL`, or aligned and writable for as many bytes as its first member says.
pub(crate) unsafe fn write_struct<T: ExtensibleStruct>(
    name: &'static str,
    into: *mut T,
    value: &T,
) -> Result<(), CallError> {
    if into.is_null() {
        return Err(CallError::Null(name));
    }
    // SAFETY: not NULL, aligned, and the first member is a `usize`.
    let size = unsafe { into.cast::<usize>().read() };
    check::<T>(size)?;
    let common = size.min(size_of::<T>());
    let from: *const T = value;
    // SAFETY: the caller's struct has `size` bytes, ours at least `common`; neither begins before its
    // second member here, so that the caller's size stays.
    unsafe {
        let skip = size_of::<usize>();
        let (from, into) = (from.cast::<u8>().add(skip), into.cast::<u8>().add(skip));
        from.copy_to_nonoverlapping(into, common - skip);
        into.add(common - skip).write_bytes(0, size - common);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Known {
        size: usize,
        a: u64,
        b: u32,
        c: u32,
    }

    // SAFETY: plain numbers without padding.
    unsafe impl ExtensibleStruct for Known {
        const NAME: &'static str = "struct known";
    }

    fn taken(words: &[usize]) -> Result<Known, CallError> {
        // SAFETY: the tests pass sizes that the words have, or that are refused before they are
        // read.
        unsafe { read_struct(words.as_ptr().cast()) }
    }

    #[test]
    fn what_a_caller_does_not_know_is_the_default_and_what_it_does_not_use_is_understood() {
        // SAFETY: NULL.
        let none = unsafe { read_struct::<Known>(std::ptr::null()) }.unwrap();
        assert_eq!(none, Known { size: 0, a: 0, b: 0, c: 0 });
        assert_eq!(taken(&[8, 7]).unwrap().a, 0);
        assert_eq!(taken(&[16, 7, 9]).unwrap(), Known { size: 16, a: 7, b: 0, c: 0 });
        let all = Known { size: 24, a: 7, b: 9, c: 1 };
        assert_eq!(taken(&[24, 7, 9 | 1 << 32]).unwrap(), all);
        assert_eq!(taken(&[40, 7, 9, 0, 0]).unwrap().b, 9);
    }

    #[test]
    fn other_sizes_are_refused() {
        for (words, errno) in [
            (&[40, 7, 9, 0, 1][..], libc::E2BIG),
            (&[32, 7, 9, 1 << 56][..], libc::E2BIG),
            (&[usize::MAX - 7][..], libc::E2BIG),
            (&[4104][..], libc::E2BIG),
            (&[0][..], libc::EINVAL),
            (&[4][..], libc::EINVAL),
            (&[20, 7, 9][..], libc::EINVAL),
        ] {
            let error = taken(words).unwrap_err();
            assert_eq!(error.errno(), errno, "{words:?}: {error}");
            assert!(error.to_string().contains("struct known"), "{error}");
        }
    }

    #[test]
    fn answers_are_as_long_as_the_caller_knows() {
        let value = Known { size: 24, a: 7, b: 9, c: 1 };
        let given = |size: usize| {
            let mut words = [size, 99, 99, 99, 99];
            // SAFETY: the words have every size below.
            unsafe { write_struct("into", words.as_mut_ptr().cast::<Known>(), &value) }.unwrap();
            words
        };
        assert_eq!(given(8), [8, 99, 99, 99, 99]);
        assert_eq!(given(16), [16, 7, 99, 99, 99]);
        assert_eq!(given(24), [24, 7, 9 | 1 << 32, 99, 99]);
        assert_eq!(given(32), [32, 7, 9 | 1 << 32, 0, 99]);
        // SAFETY: NULL.
        let null = unsafe { write_struct("into", std::ptr::null_mut(), &value) };
        assert_eq!(null.unwrap_err().to_string(), "`into` is NULL");
    }
}

//! [`Reader`], [`PutBytes`] and [`SliceWriter`]: fields of formats and messages. Integers are little
//! endian, or *varints*: 7 bits per byte, least significant first, the top bit set on all but the
//! last byte.
//!
//! Invariant: input is not trusted. A reader never reads past its end; its methods return `None` if
//! the input is too short or invalid.

/// Reads fields in order.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Returns the bytes that were not read.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns whether all input was read.
    #[inline]
    pub const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns `value` if all input was read.
    #[inline]
    pub fn finish<T>(self, value: T) -> Option<T> {
        self.is_at_end().then_some(value)
    }

    /// Reads `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(field)
    }

    /// Reads `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*field)
    }

    /// Reads `N` reserved bytes, which must be zero.
    #[inline]
    pub fn zeros<const N: usize>(&mut self) -> Option<()> {
        (self.array::<N>()? == [0; N]).then_some(())
    }

    /// Reads a byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads a byte that is 0 or 1.
    #[inline]
    pub fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Reads 2 bytes.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads 4 bytes.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads 8 bytes.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads 16 bytes.
    #[inline]
    pub fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// Reads 8 bytes.
    #[inline]
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// Reads a varint of at most 64 bits.
    pub fn varint(&mut self) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte may contribute one bit only.
            if shift == 63 && bits > 1 {
                return None;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    }

    /// Reads a varint of at most 32 bits.
    pub fn varint_u32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }
}

/// Appends fields to a buffer.
pub trait PutBytes {
    /// Appends bytes. A [`SliceWriter`] panics past its end.
    fn put(&mut self, field: &[u8]) -> &mut Self;

    /// Appends a byte.
    #[inline]
    fn put_u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    /// Appends a byte that is 0 or 1.
    #[inline]
    fn put_flag(&mut self, value: bool) -> &mut Self {
        self.put_u8(value.into())
    }

    /// Appends 2 bytes.
    #[inline]
    fn put_u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends 4 bytes.
    #[inline]
    fn put_u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends 8 bytes.
    #[inline]
    fn put_u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends 16 bytes.
    #[inline]
    fn put_u128(&mut self, value: u128) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends 8 bytes.
    #[inline]
    fn put_i64(&mut self, value: i64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends `count` reserved bytes, which are zero.
    fn put_zeros(&mut self, count: usize) -> &mut Self {
        for _ in 0..count {
            self.put_u8(0);
        }
        self
    }

    /// Appends a varint.
    fn put_varint(&mut self, mut n: u64) -> &mut Self {
        while n >= 0x80 {
            self.put_u8(n as u8 | 0x80);
            n >>= 7;
        }
        self.put_u8(n as u8)
    }
}

impl PutBytes for Vec<u8> {
    #[inline]
    fn put(&mut self, field: &[u8]) -> &mut Self {
        self.extend_from_slice(field);
        self
    }
}

/// Writes fields to a buffer of fixed size, in order.
#[derive(Debug)]
pub struct SliceWriter<'a> {
    bytes: &'a mut [u8],
    position: usize,
}

impl<'a> SliceWriter<'a> {
    /// Creates a writer that starts at the first byte.
    pub fn new(bytes: &'a mut [u8]) -> SliceWriter<'a> {
        SliceWriter { bytes, position: 0 }
    }

    /// Returns the number of bytes written.
    pub fn len(&self) -> usize {
        self.position
    }

    /// Returns whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.position == 0
    }
}

impl PutBytes for SliceWriter<'_> {
    #[inline]
    fn put(&mut self, field: &[u8]) -> &mut Self {
        put_at(self.bytes, self.position, field);
        self.position += field.len();
        self
    }
}

/// Copies a field to offset `at`.
///
/// # Panics
/// If the field does not fit.
#[inline]
pub fn put_at(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// Returns the 2 bytes at offset `at`; `None` if there are fewer.
#[inline]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the 4 bytes at offset `at`; `None` if there are fewer.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the 8 bytes at offset `at`; `None` if there are fewer.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        bytes.put_u8(1).put_u16(0x0203).put_u32(4).put_u64(5).put_u128(6).put_i64(-7);
        bytes.put_flag(true).put_zeros(3).put_varint(300).put(b"end");
        assert_eq!(bytes[..7], [1, 3, 2, 4, 0, 0, 0], "little endian");
        let mut r = Reader::new(&bytes);
        assert_eq!((r.u8(), r.u16(), r.u32()), (Some(1), Some(0x0203), Some(4)));
        assert_eq!((r.u64(), r.u128(), r.i64()), (Some(5), Some(6), Some(-7)));
        assert_eq!((r.flag(), r.zeros::<3>(), r.varint_u32()), (Some(true), Some(()), Some(300)));
        assert_eq!((r.rest(), r.bytes(4), r.array()), (&b"end"[..], None, Some(*b"end")));
        assert_eq!((r.is_at_end(), r.u8(), r.finish(9)), (true, None, Some(9)));
        assert_eq!(
            (u16_at(&bytes, 1), u32_at(&bytes, 3), u64_at(&bytes, 7)),
            (Some(0x0203), Some(4), Some(5))
        );
        assert_eq!((u32_at(&bytes, bytes.len() - 3), u16_at(&bytes, usize::MAX)), (None, None));
    }

    #[test]
    fn invalid_input_is_refused() {
        assert_eq!(Reader::new(&[2]).flag(), None);
        assert_eq!(Reader::new(&[0, 1]).zeros::<2>(), None);
        assert_eq!(Reader::new(&[0xff; 10]).varint(), None, "more than 64 bits");
        assert_eq!(Reader::new(&[0xff; 5]).varint(), None, "no end");
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x1f]).varint_u32(), None);
        assert_eq!(Reader::new(&[0]).finish(()), None);
    }

    #[test]
    fn varints_survive() {
        for n in (0..64).flat_map(|shift| [1u64 << shift, (1 << shift) - 1]).chain([u64::MAX]) {
            let mut bytes = Vec::new();
            bytes.put_varint(n);
            assert_eq!(Reader::new(&bytes).varint(), Some(n));
            assert!(bytes.len() <= 10);
        }
    }

    #[test]
    fn a_slice_is_filled_in_order() {
        let mut bytes = [9; 5];
        let mut w = SliceWriter::new(&mut bytes);
        assert!(w.is_empty());
        w.put_u16(1).put_zeros(2);
        assert_eq!((w.len(), bytes), (4, [1, 0, 0, 0, 9]));
    }
}

//! Saving memory: [`SharedRegion`] and [`HugeArray`] in serde's data model.
//!
//! A region is its length in bytes and the segments of [`SEGMENT_BYTES`] that are not zero, each
//! with its offset. So the saved form is no larger than what was written to the memory.

use std::fmt::{self, Formatter};

use serde::de::{DeserializeSeed, Error, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{HugeArray, SharedRegion};

/// Bytes of a segment; the last one of a region may be shorter.
const SEGMENT_BYTES: usize = 1 << 20;

/// The segments of a region that are not zero.
struct WrittenSegments<'a>(&'a SharedRegion);

impl WrittenSegments<'_> {
    /// Calls `each` with the offset and the bytes of each segment that is not zero.
    fn each<E>(&self, mut each: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut buffer = vec![0u8; SEGMENT_BYTES.min(self.0.len())];
        for at in (0..self.0.len()).step_by(SEGMENT_BYTES) {
            let segment = &mut buffer[..SEGMENT_BYTES.min(self.0.len() - at)];
            self.0.read(at, segment);
            if segment.iter().any(|byte| *byte != 0) {
                each(at as u64, segment)?;
            }
        }
        Ok(())
    }
}

/// Bytes that are saved as such, not as a sequence of numbers.
struct RawBytes<'a>(&'a [u8]);

impl Serialize for RawBytes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0)
    }
}

impl Serialize for WrittenSegments<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut count = 0;
        self.each(|_, _| {
            count += 1;
            Ok::<_, S::Error>(())
        })?;
        let mut sequence = to.serialize_seq(Some(count))?;
        self.each(|at, bytes| sequence.serialize_element(&(at, RawBytes(bytes))))?;
        sequence.end()
    }
}

impl Serialize for SharedRegion {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.len() as u64, WrittenSegments(self)).serialize(to)
    }
}

/// Creates private memory from the saved form.
struct RegionVisitor;

impl<'de> Visitor<'de> for RegionVisitor {
    type Value = SharedRegion;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("the length of a region and its segments")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<SharedRegion, A::Error> {
        let missing = || A::Error::custom("a region without length or segments");
        let len: u64 = from.next_element()?.ok_or_else(missing)?;
        let len = usize::try_from(len).map_err(A::Error::custom)?;
        let region = SharedRegion::map_anonymous(len).map_err(A::Error::custom)?;
        from.next_element_seed(SegmentsSeed(&region))?.ok_or_else(missing)?;
        Ok(region)
    }
}

/// Writes the segments to a fresh region.
struct SegmentsSeed<'a>(&'a SharedRegion);

impl<'de> DeserializeSeed<'de> for SegmentsSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for SegmentsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("segments of a region")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while from.next_element_seed(SegmentSeed(self.0))?.is_some() {}
        Ok(())
    }
}

/// Writes one segment.
struct SegmentSeed<'a>(&'a SharedRegion);

impl<'de> DeserializeSeed<'de> for SegmentSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_tuple(2, self)
    }
}

impl<'de> Visitor<'de> for SegmentSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("the offset and the bytes of a segment")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        let missing = || A::Error::custom("a segment without offset or bytes");
        let offset = from.next_element()?.ok_or_else(missing)?;
        from.next_element_seed(BytesSeed { region: self.0, offset })?.ok_or_else(missing)
    }
}

/// Writes the bytes of a segment.
struct BytesSeed<'a> {
    region: &'a SharedRegion,
    offset: u64,
}

impl<'de> DeserializeSeed<'de> for BytesSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        // The reader keeps no copy of these bytes.
        from.deserialize_byte_buf(self)
    }
}

impl Visitor<'_> for BytesSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes of a segment")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<(), E> {
        let len = self.region.len();
        let fits = |at: &usize| at.checked_add(bytes.len()).is_some_and(|end| end <= len);
        let at = usize::try_from(self.offset).ok().filter(fits);
        self.region.write(at.ok_or_else(|| E::custom("a segment outside of its region"))?, bytes);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for SharedRegion {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SharedRegion, D::Error> {
        from.deserialize_tuple(2, RegionVisitor)
    }
}

impl Serialize for HugeArray {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.region().serialize(to)
    }
}

impl<'de> Deserialize<'de> for HugeArray {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<HugeArray, D::Error> {
        let region: Option<SharedRegion> = Deserialize::deserialize(from)?;
        HugeArray::of_region(region).ok_or_else(|| D::Error::custom("a word that is not whole"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reread<T: Serialize + for<'de> Deserialize<'de>>(value: &T) -> (usize, T) {
        let saved = postcard::to_stdvec(value).unwrap();
        (saved.len(), postcard::from_bytes(&saved).unwrap())
    }

    #[test]
    fn memory_is_read_again_as_it_was_saved_and_takes_what_was_written() {
        let region = SharedRegion::map_anonymous(5 * SEGMENT_BYTES + 17).unwrap();
        region.write(SEGMENT_BYTES + 5, b"first");
        region.write(5 * SEGMENT_BYTES + 12, b"last.");
        let (saved, copy) = reread(&region);
        assert!(saved < SEGMENT_BYTES + 100, "{saved} bytes");
        assert_eq!(copy.len(), region.len());
        let (mut is, mut was) = (vec![0; region.len()], vec![0; region.len()]);
        region.read(0, &mut was);
        copy.read(0, &mut is);
        assert!(is == was);
    }

    #[test]
    fn an_array_is_read_again_as_it_was_saved() {
        let mut array = HugeArray::zeroed(1_000_003).unwrap();
        (array[0], array[1_000_002]) = (7, 9);
        let (_, copy) = reread(&array);
        assert_eq!((copy.len(), copy[0], copy[1_000_002]), (1_000_003, 7, 9));
        assert!(reread(&HugeArray::zeroed(0).unwrap()).1.is_empty());
    }

    #[test]
    fn a_segment_outside_of_its_region_and_half_a_word_are_errors() {
        let saved = postcard::to_stdvec(&(4096u64, [(4095u64, RawBytes(b"ab"))].as_slice()));
        assert!(postcard::from_bytes::<SharedRegion>(&saved.unwrap()).is_err());
        let saved = postcard::to_stdvec(&(4096u64, [(u64::MAX, RawBytes(b"ab"))].as_slice()));
        assert!(postcard::from_bytes::<SharedRegion>(&saved.unwrap()).is_err());
        let saved = postcard::to_stdvec(&Some((6u64, [(0u64, RawBytes(b"ab"))].as_slice())));
        assert!(postcard::from_bytes::<HugeArray>(&saved.unwrap()).is_err());
    }
}

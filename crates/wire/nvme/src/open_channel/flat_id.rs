//! [`PhysSector`], [`ChunkId`], [`PuId`]: the flat numbers of a drive's flash.
//!
//! Flat numbers have no holes: sectors are numbered chunk by chunk, chunks by parallel unit, and parallel units by
//! channel ([`Geometry::flat`](crate::Geometry::flat)).

collections::position_type! {
    /// A physical sector: `chunk × sectors per chunk + sector in its chunk`.
    pub struct PhysSector(pub u32), "sector ";
}

collections::id_type! {
    /// A chunk: `parallel unit × chunks per parallel unit + chunk in its parallel unit`.
    pub struct ChunkId(pub u32), "chunk ";
}

collections::id_type! {
    /// A parallel unit: `group × parallel units per group + parallel unit in its group`.
    pub struct PuId(pub u32), "PU ";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_numbers_are_as_wide_as_their_number_and_say_what_they_are() {
        assert_eq!([size_of::<PhysSector>(), size_of::<ChunkId>(), size_of::<PuId>()], [4; 3]);
        let names = [PhysSector(1).to_string(), ChunkId(2).to_string(), PuId(3).to_string()];
        assert_eq!(names, ["sector 1", "chunk 2", "PU 3"]);
        assert_eq!(ChunkId::from_index(ChunkId(9).index()), ChunkId(9));
    }

    #[test]
    fn sectors_are_counted_from_one_on() {
        let first = PhysSector(7);
        assert_eq!(first + 3, PhysSector(10));
        assert!(first.run(2).eq([PhysSector(7), PhysSector(8)]));
        assert_eq!(first.run(0).count(), 0);
    }
}

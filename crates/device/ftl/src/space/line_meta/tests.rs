use nvme::Geometry;

use super::*;
use crate::ids::{ToIndex, ToU32};
use crate::space::open_line::PreviousLine;

fn shape(chunks: u32, sectors: u32, unit: u32, sector_bytes: u32) -> FlashGeometry {
    FlashGeometry::from_geometry(&Geometry {
        groups: 1,
        pus: 4,
        chunks,
        sectors,
        sector_bytes,
        oob_bytes: 16,
        ws_min: unit,
        ws_opt: unit,
        mw_cunits: 0,
    })
}

const IDENTITY: LineIdentity =
    LineIdentity { owner: 0x006c_7466, stream: 1, open_seq: WriteSeq(1000) };

fn written(sectors: [(Option<u32>, bool); 2]) -> impl Iterator<Item = WrittenSector> {
    sectors.into_iter().map(|(lba, poison)| WrittenSector { lba: lba.map(Lba), poison })
}

#[test]
fn the_header_has_these_bytes() {
    let first = LineHeader {
        identity: IDENTITY,
        previous: Some(PreviousLine { open_seq: WriteSeq(900), first_chunk: ChunkId(7) }),
        members: vec![ChunkId(3), ChunkId(9)],
    };
    let bytes = first.encode();
    let mut expected = Vec::new();
    expected.extend(b"SLUICLNF");
    expected.extend([1, 0, 1, 0]);
    expected.extend([0x66, 0x74, 0x6c, 0]);
    expected.extend([0xe8, 3, 0, 0, 0, 0, 0, 0]);
    expected.extend([0x84, 3, 0, 0, 0, 0, 0, 0]);
    expected.extend([7, 0, 0, 0, 2, 0, 0, 0]);
    expected.extend([0; 8]);
    expected.extend([3, 0, 0, 0, 9, 0, 0, 0]);
    let crc = crc32c::crc32c(&expected);
    expected[40..44].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(bytes, expected);
    let shape = shape(4, 64, 4, 512);
    let decode = |owner, members, bytes: &[u8]| LineHeader::decode(&shape, owner, members, bytes);
    let mut sector = bytes.clone();
    sector.resize(512, 0);
    assert_eq!(decode(IDENTITY.owner, 2, &sector), Some(first.clone()));
    assert_eq!(decode(IDENTITY.owner + 1, 2, &sector), None, "somebody else's");
    assert_eq!(decode(IDENTITY.owner, 3, &sector), None, "of another width");
    assert_eq!(decode(IDENTITY.owner, 2, &bytes[..55]), None, "cut short");
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 0x10;
        assert_eq!(decode(IDENTITY.owner, 2, &damaged), None, "byte {i}");
    }
    let alone = LineHeader { previous: None, members: vec![ChunkId(3), ChunkId(99)], ..first };
    assert_eq!(decode(IDENTITY.owner, 2, &alone.encode()), None, "there is no chunk 99");
}

#[test]
fn the_footer_has_these_bytes() {
    let shape = shape(4, 4, 2, 512);
    let mut list = P2lTable::new(&shape, 2, IDENTITY.open_seq);
    list.record(0, 2, WriteSeq(1003), written([(Some(5), false), (Some(6), true)]));
    list.record(1, 0, WriteSeq(998), written([(None, false), (Some(0), false)]));
    list.record(1, 2, WriteSeq(1004), written([(Some(8), false), (Some(9), false)]));
    list.erase_unit(1, 2);
    let bytes = LineFooter::encode(IDENTITY, &[ChunkId(3), ChunkId(9)], &list).unwrap();
    let mut expected = Vec::new();
    expected.extend(b"SLUICLNL");
    expected.extend([1, 0, 1, 0]);
    expected.extend([0x66, 0x74, 0x6c, 0]);
    expected.extend([0xe8, 3, 0, 0, 0, 0, 0, 0]);
    expected.extend([2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0]);
    expected.extend([0; 12]);
    expected.extend([3, 0, 0, 0, 9, 0, 0, 0]);
    expected.extend([0, 0, 0, 0x80, 3, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0x80]);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0x80]);
    expected.extend([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let crc = crc32c::crc32c(&expected);
    expected[40..44].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(bytes, expected);
    let decode = |members: &[ChunkId], bytes: &[u8]| {
        LineFooter::decode(&shape, IDENTITY.owner, members, bytes)
    };
    let mut units = bytes.clone();
    units.resize(1024, 0);
    let last = decode(&[ChunkId(3), ChunkId(9)], &units).unwrap();
    assert_eq!((last.identity, &last.p2l), (IDENTITY, &list));
    assert_eq!(decode(&[ChunkId(9), ChunkId(3)], &units), None, "of other chunks");
    assert_eq!(decode(&[ChunkId(3)], &units), None);
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 1;
        assert_eq!(decode(&[ChunkId(3), ChunkId(9)], &damaged), None, "byte {i}");
    }
    let oob = |lba, poison, sequence| Some(Oob { lba, poison, metadata: false, sequence });
    assert_eq!(last.p2l.oob(0, 3), oob(Some(Lba(6)), true, WriteSeq(1003)));
    assert_eq!(
        last.p2l.oob(1, 0),
        oob(None, false, WriteSeq(998)),
        "numbered before the line was opened"
    );
    assert_eq!(last.p2l.oob(1, 1), oob(Some(Lba(0)), false, WriteSeq(998)));
    assert_eq!((last.p2l.oob(0, 0), last.p2l.oob(1, 3)), (None, None));
    assert_eq!(last.p2l.lba(0, 3), Some(Lba(6)));
}

#[test]
fn a_sequence_number_too_far_from_the_lines_makes_no_footer() {
    let shape = shape(4, 4, 2, 512);
    for (number, fits) in
        [(IDENTITY.open_seq + 0x7fff_ffff, true), (IDENTITY.open_seq + 0x8000_0000, false)]
    {
        let mut list = P2lTable::new(&shape, 1, IDENTITY.open_seq);
        list.record(0, 0, number, written([(Some(1), false); 2]));
        assert_eq!(LineFooter::encode(IDENTITY, &[ChunkId(0)], &list).is_some(), fits);
    }
}

#[test]
fn small_lines_have_none_and_in_others_it_is_little() {
    let fit = |shape: &FlashGeometry, members| {
        metadata_units(LineMetadata::Auto, shape, members).unwrap()
    };
    let must = |shape: &FlashGeometry, members| metadata_units(LineMetadata::On, shape, members);
    // Sixteen units of one sector: the header and one unit of the footer would be an eighth.
    let small = shape(4, 16, 1, 512);
    assert_eq!(fit(&small, 1), 0);
    let refused = must(&small, 1).unwrap_err();
    assert!(matches!(refused, CapacityError::LineMetadata { units: 2, of: 16, .. }), "{refused:?}");
    assert!(refused.to_string().contains("2 of a line's 16 write units"), "{refused}");
    // 4 KB sectors, 4 chunks of 256 units of 4: 20,544 bytes and the first.
    let usual = shape(4, 1024, 4, 4096);
    assert_eq!((fit(&usual, 4), must(&usual, 4)), (1 + 2, Ok(1 + 2)));
    assert_eq!(metadata_units(LineMetadata::Off, &usual, 4), Ok(0));
    // Two units of 32: only if it must be, and of 31 not even then.
    let little = |sectors| shape(4, sectors, 1, 512);
    assert_eq!((fit(&little(32), 1), must(&little(32), 1)), (0, Ok(2)));
    assert_eq!(
        (fit(&little(63), 1), fit(&little(96), 1), must(&little(31), 1).is_err()),
        (0, 3, true)
    );
    // So many chunks that their names do not fit the first unit.
    let wide = shape(4, 4096, 1, 512);
    assert_eq!(fit(&wide, 200), 0);
    let refused = must(&wide, 200).unwrap_err().to_string();
    assert!(refused.contains("848 bytes, does not fit a write unit of 512"), "{refused}");
    for (sectors, unit, bytes, members) in [(64, 1, 512, 4), (4096, 8, 4096, 128), (90, 6, 512, 9)]
    {
        let (shape, all) = (shape(200, sectors, unit, bytes), members * sectors / unit);
        let n = fit(&shape, members);
        assert!(n == 0 || n >= 2 && n * 32 <= all, "{n} of {all}");
        let list = P2lTable::new(&shape, members, WriteSeq(0));
        let names: Vec<ChunkId> = (0..members).map(ChunkId).collect();
        let last = LineFooter::encode(IDENTITY, &names, &list).unwrap();
        assert_eq!(last.len() as u64, footer_bytes(&shape, members));
        assert_eq!(list.bytes().to_u32(), 4 * members * (sectors + sectors / unit));
    }
}

#[test]
fn the_footer_is_behind_all_data_in_every_chunk() {
    for members in 1..9 {
        for last in 1..20 {
            let shape = shape(4, 96, 4, 512);
            let mut ends: Vec<u32> =
                (0..members).map(|m| data_end(&shape, members, last, m)).collect();
            let data: u32 = ends.iter().map(|e| e / 4).sum();
            assert_eq!(data + last, members * 24);
            // Each unit is written at the write pointer of its chunk.
            for piece in 0..last {
                let (member, sector) = footer_unit_location(&shape, members, last, piece);
                assert_eq!(ends[member.index()], sector, "piece {piece} of {last} on {members}");
                ends[member.index()] += 4;
            }
            assert!(ends.iter().all(|e| *e == 96));
        }
    }
}

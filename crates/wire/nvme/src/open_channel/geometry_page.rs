//! [`GeometryPage`]: the data of the Geometry command of an open-channel drive, 4096 bytes [OC20
//! §3.1].

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;
use crate::{Geometry, GeometryError, PpaFormat};

/// The reported times of the media in nanoseconds, typical and maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaTiming {
    /// Reading a write unit: typical, tRDT.
    pub read_typical: u32,
    /// Reading a write unit: maximum, tRDM.
    pub read_max: u32,
    /// Writing a write unit: typical, tWRT.
    pub write_typical: u32,
    /// Writing a write unit: maximum, tWRM.
    pub write_max: u32,
    /// Resetting a chunk: typical, tCRST.
    pub reset_typical: u32,
    /// Resetting a chunk: maximum, tCRSM.
    pub reset_max: u32,
}

/// The data of the Geometry command.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct GeometryPage {
    /// Revision of the interface, major: 2 (byte 0).
    pub major: u8,
    /// Revision of the interface, minor (byte 1).
    pub minor: u8,
    /// Reserved (bytes 7:2).
    pub reserved2: [u8; 6],
    /// Bits of an address's group field (byte 8).
    pub group_bits: u8,
    /// Bits of the parallel-unit field (byte 9).
    pub pu_bits: u8,
    /// Bits of the chunk field (byte 10).
    pub chunk_bits: u8,
    /// Bits of the logical-block field (byte 11).
    pub sector_bits: u8,
    /// Reserved (bytes 15:12).
    pub reserved12: [u8; 4],
    /// Media and controller capabilities: bit 0 vector copy, bit 1 a free chunk may be reset again,
    /// MCCAP (bytes 19:16).
    pub mccap: U32,
    /// Reserved (bytes 31:20).
    pub reserved20: [u8; 12],
    /// Wear-level index delta threshold, WIT (byte 32).
    pub wit: u8,
    /// Reserved (bytes 63:33).
    pub reserved33: [u8; 31],
    /// Groups, NUM_GRP (bytes 65:64).
    pub num_grp: U16,
    /// Parallel units per group, NUM_PU (bytes 67:66).
    pub num_pu: U16,
    /// Chunks per parallel unit, NUM_CHK (bytes 71:68).
    pub num_chk: U32,
    /// Logical blocks per chunk, CLBA (bytes 75:72).
    pub clba: U32,
    /// Reserved (bytes 127:76).
    pub reserved76: [u8; 52],
    /// Smallest write, blocks, WS_MIN (bytes 131:128).
    pub ws_min: U32,
    /// Optimal write size, blocks, WS_OPT (bytes 135:132).
    pub ws_opt: U32,
    /// Blocks that must be programmed after a block before it is readable, MW_CUNITS (bytes
    /// 139:136).
    pub mw_cunits: U32,
    /// Maximum number of open chunks, 0 for no limit, MAXOC (bytes 143:140).
    pub maxoc: U32,
    /// Maximum number of open chunks per parallel unit, 0 for no limit, MAXOCPU (bytes 147:144).
    pub maxocpu: U32,
    /// Reserved (bytes 191:148).
    pub reserved148: [u8; 44],
    /// Read, typical, ns, tRDT (bytes 195:192).
    pub trdt: U32,
    /// Read, maximum, ns, tRDM (bytes 199:196).
    pub trdm: U32,
    /// Write, typical, ns, tWRT (bytes 203:200).
    pub twrt: U32,
    /// Write, maximum, ns, tWRM (bytes 207:204).
    pub twrm: U32,
    /// Chunk reset, typical, ns, tCRST (bytes 211:208).
    pub tcrst: U32,
    /// Chunk reset, maximum, ns, tCRSM (bytes 215:212).
    pub tcrsm: U32,
    /// Reserved (bytes 3071:216).
    pub reserved216: [u8; 2856],
    /// Vendor specific (bytes 4095:3072).
    pub vendor: [u8; 1024],
}

wire!(GeometryPage, 4096);

impl GeometryPage {
    /// Bit of `mccap`: vector copy is supported.
    pub const MCCAP_COPY: u32 = 1 << 0;
    /// Bit of `mccap`: a free chunk may be reset again.
    pub const MCCAP_MULTIPLE_RESETS: u32 = 1 << 1;

    /// Creates the page of a drive with this geometry and timing. It reports no capabilities and no
    /// limit of open chunks; the caller sets them.
    ///
    /// # Errors
    /// The invalid part of the geometry, or the part that does not fit: the page has 16 bits for
    /// groups and for parallel units per group.
    pub fn new(geometry: &Geometry, timing: &MediaTiming) -> Result<GeometryPage, GeometryError> {
        let format = PpaFormat::from_geometry(geometry)?;
        let narrow = |what, n: u32| {
            u16::try_from(n).map_err(|_| GeometryError::Unfit {
                what,
                value: n.into(),
                allowed: "the Geometry command can tell of 65535 at most".to_owned(),
            })
        };
        let mut page = GeometryPage::new_zeroed();
        page.major = 2;
        page.group_bits = format.group_bits;
        page.pu_bits = format.pu_bits;
        page.chunk_bits = format.chunk_bits;
        page.sector_bits = format.sector_bits;
        page.num_grp = narrow("groups", geometry.groups)?.into();
        page.num_pu = narrow("PUs per group", geometry.pus)?.into();
        page.num_chk = geometry.chunks.into();
        page.clba = geometry.sectors.into();
        page.ws_min = geometry.ws_min.into();
        page.ws_opt = geometry.ws_opt.into();
        page.mw_cunits = geometry.mw_cunits.into();
        page.trdt = timing.read_typical.into();
        page.trdm = timing.read_max.into();
        page.twrt = timing.write_typical.into();
        page.twrm = timing.write_max.into();
        page.tcrst = timing.reset_typical.into();
        page.tcrsm = timing.reset_max.into();
        Ok(page)
    }

    /// Returns the geometry and the address format. Bytes per sector and out-of-band bytes are not
    /// in this page, but in the namespace's LBA format.
    ///
    /// # Errors
    /// [`GeometryError`] if the page is invalid: a count is zero, the write sizes do not divide a
    /// chunk, or an address field is too narrow for its count. Also if a field has over 32 bits, or
    /// all fields over 64.
    pub fn geometry(
        &self,
        sector_bytes: u32,
        oob_bytes: u32,
    ) -> Result<(Geometry, PpaFormat), GeometryError> {
        let geometry = Geometry {
            groups: self.num_grp.get().into(),
            pus: self.num_pu.get().into(),
            chunks: self.num_chk.get(),
            sectors: self.clba.get(),
            sector_bytes,
            oob_bytes,
            ws_min: self.ws_min.get(),
            ws_opt: self.ws_opt.get(),
            mw_cunits: self.mw_cunits.get(),
        };
        geometry.check()?;
        let format = PpaFormat {
            group_bits: self.group_bits,
            pu_bits: self.pu_bits,
            chunk_bits: self.chunk_bits,
            sector_bits: self.sector_bits,
        };
        let least = PpaFormat::from_geometry(&geometry)?;
        let mut bits = 0;
        for (what, has, needs) in [
            ("bits of the group field", format.group_bits, least.group_bits),
            ("bits of the PU field", format.pu_bits, least.pu_bits),
            ("bits of the chunk field", format.chunk_bits, least.chunk_bits),
            ("bits of the sector field", format.sector_bits, least.sector_bits),
        ] {
            if has < needs || has > 32 {
                return Err(GeometryError::Unfit {
                    what,
                    value: has.into(),
                    allowed: format!("its count needs at least {needs}, and 32 is the most"),
                });
            }
            bits += u32::from(has);
        }
        if bits > 64 {
            return Err(GeometryError::TooManyBits { bits });
        }
        Ok((geometry, format))
    }

    /// Returns the times of the media.
    pub fn timing(&self) -> MediaTiming {
        MediaTiming {
            read_typical: self.trdt.get(),
            read_max: self.trdm.get(),
            write_typical: self.twrt.get(),
            write_max: self.twrm.get(),
            reset_typical: self.tcrst.get(),
            reset_max: self.tcrsm.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    fn westlake() -> Geometry {
        Geometry {
            groups: 16,
            pus: 8,
            chunks: 1067,
            sectors: 4096,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 16,
            ws_opt: 16,
            mw_cunits: 128,
        }
    }

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        type G = GeometryPage;
        assert_eq!((offset_of!(G, group_bits), offset_of!(G, sector_bits)), (8, 11));
        assert_eq!((offset_of!(G, mccap), offset_of!(G, wit)), (16, 32));
        assert_eq!((offset_of!(G, num_grp), offset_of!(G, num_pu)), (64, 66));
        assert_eq!((offset_of!(G, num_chk), offset_of!(G, clba)), (68, 72));
        assert_eq!((offset_of!(G, ws_min), offset_of!(G, mw_cunits)), (128, 136));
        assert_eq!((offset_of!(G, maxoc), offset_of!(G, maxocpu)), (140, 144));
        assert_eq!((offset_of!(G, trdt), offset_of!(G, tcrsm)), (192, 212));
        assert_eq!(offset_of!(G, vendor), 3072);
    }

    #[test]
    fn a_shape_survives_the_page() {
        let timing = MediaTiming {
            read_typical: 1,
            read_max: 2,
            write_typical: 3,
            write_max: 4,
            reset_typical: 5,
            reset_max: 6,
        };
        let page = GeometryPage::new(&westlake(), &timing).unwrap();
        assert_eq!(page.as_bytes()[8..12], [4, 3, 11, 12]);
        let (geometry, format) = page.geometry(4096, 16).unwrap();
        assert_eq!(geometry, westlake());
        assert_eq!(format, PpaFormat::from_geometry(&geometry).unwrap());
        assert_eq!(page.timing(), timing);
    }

    #[test]
    fn pages_of_impossible_drives_are_refused() {
        let good = GeometryPage::new(&westlake(), &MediaTiming::default()).unwrap();
        let refused = |change: fn(&mut GeometryPage)| {
            let mut page = good;
            change(&mut page);
            page.geometry(4096, 16).unwrap_err()
        };
        assert_eq!(refused(|p| p.num_grp = 0.into()), GeometryError::Zero { what: "groups" });
        refused(|p| p.chunk_bits = 10);
        refused(|p| p.sector_bits = 33);
        refused(|p| p.ws_min = 3.into());
        refused(|p| {
            p.group_bits = 32;
            p.pu_bits = 32;
        });
        assert!(GeometryPage::new_zeroed().geometry(4096, 16).is_err());
        let wide = Geometry { groups: 70_000, ..westlake() };
        assert!(GeometryPage::new(&wide, &MediaTiming::default()).is_err());
    }
}

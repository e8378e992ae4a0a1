//! The number of parallel units that are written at a time. The rules are in
//! [`active_pus`](crate::space::active_pus).

use crate::{ActivePusError, Ftl};

impl Ftl {
    /// Sets the number of parallel units that host data is written to at a time; 0 restores the
    /// number that the FTL was opened with. Relocated data follows if it has lines of its own
    /// (hot/cold separation). The setting is not kept across restarts. Call [`kick`](Ftl::kick)
    /// afterwards.
    ///
    /// # Errors
    /// [`ActivePusError`] for more than that; nothing changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        let most = self.env.plan.active_pus;
        if count > most {
            return Err(ActivePusError { requested: count, max: most });
        }
        self.space.set_active_pus(if count == 0 { most } else { count });
        Ok(())
    }

    /// Returns the number of parallel units that are written at a time.
    pub fn active_pus(&self) -> u32 {
        self.space.active_pus()
    }

    /// Returns the number of lines opened ahead of need: each is behind another line of its stream
    /// that still takes write units.
    pub fn lines_ahead(&self) -> u32 {
        self.space.lines_ahead()
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;
    use crate::space::active_pus::WIDTH_UNLIMITED;
    use crate::{ChunkReport, FlashGeometry, Ftl, FtlConfig};

    #[test]
    fn the_configured_count_is_the_maximum() {
        let shape = FlashGeometry::from_geometry(&Geometry {
            groups: 4,
            pus: 2,
            chunks: 64,
            sectors: 64,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 8,
        });
        for (configured, most) in [(0, 8), (3, 3)] {
            let config = FtlConfig { active_pus: configured, ..FtlConfig::default() };
            let mut ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
            assert_eq!((ftl.active_pus(), ftl.space.stripe_width(most)), (most, WIDTH_UNLIMITED));
            let before = *ftl.capacity_plan();
            let e = ftl.set_active_pus(most + 1).unwrap_err();
            assert_eq!(
                (e, ftl.active_pus()),
                (ActivePusError { requested: most + 1, max: most }, most)
            );
            assert!(e.to_string().contains(&format!("1 to {most}")), "{e}");
            ftl.set_active_pus(2).unwrap();
            assert_eq!((ftl.active_pus(), ftl.space.stripe_width(most)), (2, 2));
            ftl.set_active_pus(0).unwrap();
            assert_eq!((ftl.active_pus(), ftl.space.stripe_width(most)), (most, WIDTH_UNLIMITED));
            assert_eq!(*ftl.capacity_plan(), before);
        }
    }
}

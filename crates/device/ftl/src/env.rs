//! [`Env`]: configuration that every part may read and none changes.

use crate::geometry::MapPages;
use crate::{CapacityPlan, FlashGeometry, FtlConfig};

/// The flash, the configuration, and the capacity plan that follows from both.
#[derive(Clone, Debug)]
pub(crate) struct Env {
    pub(crate) geometry: FlashGeometry,
    pub(crate) map_pages: MapPages,
    pub(crate) config: FtlConfig,
    pub(crate) plan: CapacityPlan,
}

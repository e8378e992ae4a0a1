//! [`Env`]: configuration that every part may read and none changes.

use serde::{Deserialize, Serialize};

use crate::geometry::MapPages;
use crate::ids::{LbaRun, MapPageId};
use crate::{CapacityPlan, FlashGeometry, FtlConfig};

/// The flash, the configuration, and the capacity plan that follows from both.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Env {
    pub(crate) geometry: FlashGeometry,
    pub(crate) pages: MapPages,
    pub(crate) config: FtlConfig,
    pub(crate) plan: CapacityPlan,
}

impl Env {
    /// Returns the host's logical sectors of a translation page.
    pub(crate) fn sectors_of_page(&self, page: MapPageId) -> LbaRun {
        self.pages.sectors_of(page, self.plan.logical)
    }
}

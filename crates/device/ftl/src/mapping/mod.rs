//! The maps: logical to physical (L2P), physical to logical (P2L), and translation pages on flash.

pub(crate) mod cache;
pub(crate) mod l2p;
pub(crate) mod p2l;
pub(crate) mod p2l_reader;
pub(crate) mod reconcile;
pub(crate) mod translation_page;

use std::io;

use crate::env::Env;
use cache::fetch::PageFetches;
use cache::frames::Frames;
use cache::map_cache::MapPager;
use cache::rebuild::PageRebuild;
use l2p::L2p;
use p2l::P2l;
use reconcile::Reconcile;

/// The maps, and the cache of translation pages.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) l2p: L2p,
    pub(crate) p2l: P2l,
    /// Translation pages on their way from flash.
    pub(crate) fetches: PageFetches,
    pub(crate) pager: MapPager,
    pub(crate) page_rebuild: PageRebuild,
    /// Translation pages that have not been reconciled with what a recovery found.
    pub(crate) reconcile: Reconcile,
}

impl Mapping {
    /// Empty maps; translation pages are read into slots from `first_slot` on.
    ///
    /// # Errors
    /// The error of `mmap(2)`.
    pub(crate) fn new(env: &Env, first_slot: u32) -> io::Result<Mapping> {
        let Env { geometry, config, plan } = env;
        let l2p = match plan.map_frames {
            0 => L2p::new(plan.logical + plan.map_pages)?,
            n => L2p::with_frames(Frames::new(geometry, plan.logical, plan.map_pages, n))?,
        };
        let is_cached = plan.map_frames > 0;
        Ok(Mapping {
            l2p,
            p2l: P2l::new(geometry.total_sectors(), config.p2l_location, is_cached)?,
            fetches: PageFetches::new(geometry, plan, first_slot),
            pager: MapPager::new(geometry),
            page_rebuild: PageRebuild::default(),
            reconcile: Reconcile::default(),
        })
    }
}

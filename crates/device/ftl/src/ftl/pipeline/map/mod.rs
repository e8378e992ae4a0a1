//! Transactions of the map cache: fetch, eviction, reconciliation and rebuild of translation pages.

mod background;
mod fetch;
mod paging;

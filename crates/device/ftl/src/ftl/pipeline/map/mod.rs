//! Transactions of the map cache: translation pages come, go, and are counted and rebuilt.

mod background;
mod fetch;
mod paging;

//! [`StripeLayout`]: the distribution of sectors over the members of a set, striped (RAID 0).

mod layout;

pub use layout::{StripeFragment, StripeLayout};

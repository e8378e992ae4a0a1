//! Invariants that span several parts, and the check of them all.

mod buffer;
mod durability;
mod gc;
mod mapping;
mod named;
mod requests;
mod space;
#[cfg(test)]
mod tests;

use crate::Ftl;
use crate::check::Violation;

impl Ftl {
    /// Checks the invariants of every part. May be called between any two calls of the FTL's
    /// methods. Takes time proportional to the number of sectors of the flash.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        self.check_requests()?;
        self.check_buffer()?;
        self.check_space()?;
        self.check_mapping()?;
        self.check_gc()?;
        self.check_durability()?;
        self.health.check_invariants(&self.env, self.space.table())
    }
}

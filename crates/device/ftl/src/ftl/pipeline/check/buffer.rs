//! The write buffer, compared with garbage collection.

use crate::Ftl;
use crate::check::{Subject, Violation, require_eq};
use crate::ftl::GC;

impl Ftl {
    pub(super) fn check_buffer(&self) -> Result<(), Violation> {
        self.buffer.check_invariants(&self.env)?;
        require_eq!(
            Buffer,
            "fills pending = sectors being relocated",
            Subject::Ring(GC),
            self.gc.sectors_being_read(),
            self.buffer.fills_pending(GC)
        );
        Ok(())
    }
}

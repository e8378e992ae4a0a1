//! [`RuleUpload`]: a rule program that a host sends in parts, before it installs it. As with an image
//! of firmware [NVMe1.4 §5.12], each part says where in the program it begins.

use super::config::DriveRulesError;

/// The parts of a program so far.
#[derive(Clone, Debug, Default)]
pub struct RuleUpload {
    bytes: Vec<u8>,
}

impl RuleUpload {
    /// Bytes of a program at most.
    pub(crate) const BYTES_MAX: usize = 2 << 20;

    /// Adds a part. One at 0 begins a new program; a part may be sent again.
    ///
    /// # Errors
    /// [`DriveRulesError::Upload`] if bytes before the part are missing, or if the program is too long. The
    /// parts so far remain.
    pub fn add(&mut self, offset: u64, part: &[u8]) -> Result<(), DriveRulesError> {
        let has = self.bytes.len() as u64;
        let end = offset.saturating_add(part.len() as u64);
        if offset > has || end > RuleUpload::BYTES_MAX as u64 {
            let maximum = RuleUpload::BYTES_MAX as u64;
            return Err(DriveRulesError::Upload { offset, end, has, maximum });
        }
        if offset == 0 {
            self.bytes.clear();
        }
        let (offset, end) = (offset as usize, end as usize);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(part);
        Ok(())
    }

    /// Removes and returns the program.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Loses the parts so far.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }
}

//! [`VectorHints`]: a host's hints on the use of the media by one command [LightNVM17 §3.3].
//!
//! They are in the control word of Open-Channel revision 1.2 \[OC12\]: the upper half of command
//! dword 12 of vector commands. The lower half is the zero-based number of addresses.
//!
//! ```text
//! bits 18:16  planes at once: 0 the drive's choice, 1 two, 2 four, 4 one
//! bit  23     a read may suspend a program or an erase
//! bit  31     limited retry: fail fast; also of Read and Write ([NVMe1.4 §6.9], LR)
//! ```
//! In revision 1.2, 0 means one plane. A host without hints sends 0 as well, and would get a
//! fraction of the drive's speed. Here 0 therefore leaves the choice to the drive, and 4 means one
//! plane. All other bits are reserved, because they change how data is stored (SLC mode,
//! scrambling), which a drive must not ignore.

use serde::{Deserialize, Serialize};

use crate::{Sqe, Status};

/// The number of planes that an array operation may use at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PlaneMode {
    /// The drive chooses.
    #[default]
    Auto,
    /// One plane.
    Single,
    /// Two planes.
    Dual,
    /// Four planes.
    Quad,
}

impl PlaneMode {
    /// Returns the number of planes; `None` if the drive chooses.
    #[inline]
    pub const fn planes(self) -> Option<u32> {
        match self {
            PlaneMode::Auto => None,
            PlaneMode::Single => Some(1),
            PlaneMode::Dual => Some(2),
            PlaneMode::Quad => Some(4),
        }
    }

    const fn to_bits(self) -> u32 {
        match self {
            PlaneMode::Auto => 0,
            PlaneMode::Dual => 1,
            PlaneMode::Quad => 2,
            PlaneMode::Single => 4,
        }
    }

    const fn from_bits(bits: u32) -> Option<PlaneMode> {
        match bits {
            0 => Some(PlaneMode::Auto),
            1 => Some(PlaneMode::Dual),
            2 => Some(PlaneMode::Quad),
            4 => Some(PlaneMode::Single),
            _ => None,
        }
    }
}

/// The hints of a command. By default there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VectorHints {
    /// Plane mode of the command's array operations.
    pub planes: PlaneMode,
    /// Whether the command's reads may suspend programs and erases, whatever the drive's policy.
    pub suspend: bool,
    /// Whether the drive fails a read without read retries.
    pub limited_retry: bool,
}

const PLANES_SHIFT: u32 = 16;
const PLANES: u32 = 7 << PLANES_SHIFT;
const SUSPEND: u32 = 1 << 23;
pub(crate) const LIMITED_RETRY: u32 = 1 << 31;
const CONTROL: u32 = 0xffff_0000;

impl VectorHints {
    /// No hints.
    pub const NONE: VectorHints =
        VectorHints { planes: PlaneMode::Auto, suspend: false, limited_retry: false };

    /// Position of the hints in an entry, for the error log: byte `[7:0]`, bit `[10:8]`
    /// ([`ErrorEntry::location`](crate::ErrorEntry)).
    pub const ERROR_LOCATION: u16 = 50;

    /// Encodes the upper half of command dword 12, in place.
    #[inline]
    pub const fn to_cdw12(self) -> u32 {
        let mut bits = self.planes.to_bits() << PLANES_SHIFT;
        if self.suspend {
            bits |= SUSPEND;
        }
        if self.limited_retry {
            bits |= LIMITED_RETRY;
        }
        bits
    }

    /// Decodes command dword 12 of a vector command.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for a reserved plane mode or another reserved bit.
    #[inline]
    pub const fn from_cdw12(cdw12: u32) -> Result<VectorHints, Status> {
        if cdw12 & CONTROL == 0 {
            return Ok(VectorHints::NONE);
        }
        let reserved = cdw12 & CONTROL & !(PLANES | SUSPEND | LIMITED_RETRY);
        match PlaneMode::from_bits((cdw12 & PLANES) >> PLANES_SHIFT) {
            Some(planes) if reserved == 0 => Ok(VectorHints {
                planes,
                suspend: cdw12 & SUSPEND != 0,
                limited_retry: cdw12 & LIMITED_RETRY != 0,
            }),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

impl Sqe {
    /// Returns the hints of a vector command.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for reserved bits.
    #[inline]
    pub fn hints(&self) -> Result<VectorHints, Status> {
        VectorHints::from_cdw12(self.cdw12.get())
    }

    /// Returns the vector command with these hints.
    #[inline]
    #[must_use]
    pub fn with_hints(mut self, hints: VectorHints) -> Sqe {
        self.cdw12 = (self.cdw12.get() & !CONTROL | hints.to_cdw12()).into();
        self
    }

    /// Sets limited retry of a Read or Write ([NVMe1.4 §6.9], LR).
    #[inline]
    pub fn set_limited_retry(&mut self) {
        self.cdw12 |= LIMITED_RETRY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_revision_1_2_puts_them() {
        let word = |planes, suspend, limited_retry| {
            VectorHints { planes, suspend, limited_retry }.to_cdw12() >> 16
        };
        assert_eq!(word(PlaneMode::Auto, false, false), 0);
        assert_eq!(word(PlaneMode::Dual, false, false), 0x1);
        assert_eq!(word(PlaneMode::Quad, false, false), 0x2);
        assert_eq!(word(PlaneMode::Single, false, false), 0x4);
        assert_eq!(word(PlaneMode::Auto, true, false), 0x80);
        assert_eq!(word(PlaneMode::Auto, false, true), 0x8000);
    }

    #[test]
    fn every_control_word_is_hints_or_refused() {
        let mut good = 0;
        for control in 0..=u32::from(u16::MAX) {
            let cdw12 = control << 16 | 63;
            match VectorHints::from_cdw12(cdw12) {
                Ok(hints) => {
                    assert_eq!(hints.to_cdw12() | 63, cdw12);
                    good += 1;
                }
                Err(status) => assert_eq!(status, Status::INVALID_FIELD),
            }
        }
        assert_eq!(good, 4 * 2 * 2);
        // SLC mode and the scrambler of revision 1.2.
        assert!(VectorHints::from_cdw12(0x100 << 16).is_err());
        assert!(VectorHints::from_cdw12(0x200 << 16).is_err());
    }

    #[test]
    fn hints_leave_the_count_alone() {
        let sqe = Sqe { cdw12: 63.into(), ..Sqe::default() };
        let hints = VectorHints { planes: PlaneMode::Single, suspend: true, limited_retry: true };
        let hinted = sqe.with_hints(hints);
        assert_eq!(hinted.cdw12.get() & 0xffff, 63);
        assert_eq!(hinted.hints(), Ok(hints));
        assert_eq!(hinted.with_hints(VectorHints::NONE), sqe);
    }
}

//! [`PoweredOff`]: a drive after its power failed.

use media::Nand;

use crate::drive::{Drive, Personality};
use crate::error::DriveError;
use crate::flash::FlashArray;
use crate::{DriveConfig, PersonalityKind};

/// A drive without power: what is on its medium, and nothing else.
#[derive(Debug)]
pub struct PoweredOff {
    config: DriveConfig,
    personality: Personality,
}

impl PoweredOff {
    pub(crate) fn new(config: DriveConfig, personality: Personality) -> PoweredOff {
        PoweredOff { config, personality }
    }

    /// The NAND medium, to look at or to damage while the power is off.
    pub fn nand_mut(&mut self) -> Option<&mut Nand> {
        match &mut self.personality {
            Personality::Block(d) => Some(&mut d.array.nand),
            Personality::OpenChannel(d) => Some(&mut d.array.nand),
            Personality::Null(_) | Personality::Pcm(_) => None,
        }
    }

    /// Powers the drive on again: a new controller over the same medium. A block drive recovers its
    /// mapping from what is on the media.
    ///
    /// # Errors
    /// As [`Drive::new`]; and for a block drive over a medium that keeps no data, which cannot know
    /// what was written.
    pub fn power_on(self) -> Result<Drive, DriveError> {
        let PoweredOff { config, personality } = self;
        let personality = match personality {
            Personality::Block(d) => {
                if config.personality == PersonalityKind::Block && !d.keeps_data() {
                    return Err(DriveError::Config {
                        what: "a block drive with data = \"none\" cannot be powered on again"
                            .into(),
                        allowed: "data = \"memory\" or \"file\" keeps what was written".into(),
                    });
                }
                let array = FlashArray::new(d.array.nand, &config);
                Drive::over_nand(array, PersonalityKind::Block, &config)?
            }
            Personality::OpenChannel(d) => {
                let array = FlashArray::new(d.array.nand, &config);
                Drive::over_nand(array, PersonalityKind::OpenChannel, &config)?
            }
            other => other,
        };
        Drive::with_personality(config, personality)
    }
}

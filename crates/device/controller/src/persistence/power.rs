//! [`PoweredOffController`]: a drive after a power cut.

use media::Nand;

use crate::controller::{Controller, Personality};
use crate::error::DriveError;
use crate::host_interface::device_memory::{DeviceMemory, KeptDeviceMemory};
use crate::nand_array::NandArray;
use crate::persistence::nonvolatile::NonVolatile;
use crate::personality::device_l2p::DeviceL2pTable;
use crate::{DriveConfig, PersonalityKind};

/// Memory of a controller that keeps its contents without power.
#[derive(Debug, Default)]
pub(crate) struct KeptMemory {
    /// The device L2P of an open-channel drive.
    pub(crate) device_l2p: Option<DeviceL2pTable>,
    /// The settings of a drive with its own FTL.
    pub(crate) settings: Option<NonVolatile>,
}

/// A drive without power: its medium, and its memory that capacitors protect.
#[derive(Debug)]
pub struct PoweredOffController {
    config: DriveConfig,
    personality: Personality,
    /// The memory that hosts access directly, as far as it survives.
    memory: KeptDeviceMemory,
}

impl PoweredOffController {
    pub(crate) fn new(
        config: DriveConfig,
        personality: Personality,
        memory: KeptDeviceMemory,
    ) -> PoweredOffController {
        PoweredOffController { config, personality, memory }
    }

    /// Returns the NAND medium, for inspection and fault injection while the power is off.
    pub fn nand_mut(&mut self) -> Option<&mut Nand> {
        match &mut self.personality {
            Personality::Block(d) => Some(&mut d.array.nand),
            Personality::OpenChannel(d) => Some(&mut d.array.nand),
            Personality::Null(_) | Personality::Pcm(_) => None,
        }
    }

    /// Powers the drive on: creates a new controller over the same medium. A block drive recovers
    /// its map from the media.
    ///
    /// # Errors
    /// The errors of [`Controller::new`]. Also a block drive over a medium that stores no data,
    /// because its map cannot be recovered.
    pub fn power_on(self) -> Result<Controller, DriveError> {
        let PoweredOffController { config, personality, memory } = self;
        let personality = match personality {
            Personality::Block(d) => {
                if config.personality == PersonalityKind::Block && !d.stores_data() {
                    return Err(DriveError::Config {
                        what: "a block drive with data = \"none\" cannot be powered on again"
                            .into(),
                        allowed: "data = \"memory\" or \"file\" keeps what was written".into(),
                    });
                }
                let array = NandArray::new(d.array.nand, &config);
                let kept =
                    KeptMemory { settings: Some(d.maintenance.settings), ..KeptMemory::default() };
                Controller::nand_personality(array, PersonalityKind::Block, &config, kept)?
            }
            Personality::OpenChannel(d) => {
                let array = NandArray::new(d.array.nand, &config);
                let kept = KeptMemory { device_l2p: d.device_l2p, ..KeptMemory::default() };
                Controller::nand_personality(array, PersonalityKind::OpenChannel, &config, kept)?
            }
            other => other,
        };
        let memory = DeviceMemory::power_on(&config, memory)?;
        Controller::with_personality(config, personality, memory)
    }
}

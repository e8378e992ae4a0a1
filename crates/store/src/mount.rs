//! [`Opening`]: a volume on its way to being a [`Store`].
//!
//! Everything is read and checked, and nothing written if anything is wrong. Then data that the journal has
//! is written in place, a snapshot that takes the journal in, and superblocks that name it and the owner:
//! from then on the store is ready. A power cut before leaves the files as they were.

use block::BlockDevice;
use clock::Nanos;

use crate::core::Core;
use crate::metadata_reader::{LoadedMetadata, MetadataReader};
use crate::replay::{Replay, ReplayedVolume};
use crate::superblock::Superblock;
use crate::{OpenError, Options, Owner, Volume};

/// A volume that is being opened: poll it until it is ready.
#[derive(Debug)]
pub struct Mount<D> {
    options: Options,
    state: MountState<D>,
}

#[derive(Debug)]
enum MountState<D> {
    Loading(Box<MetadataReader>, D),
    Replaying(Box<Replay>, D),
    FirstCheckpoint(Box<Volume<D>>),
    Finished,
}

/// How far it has come.
#[derive(Debug)]
pub enum MountStatus<D> {
    /// Not yet.
    Pending,
    /// The store.
    Ready(Box<Volume<D>>),
}

/// Whether a mark of somebody else stands in the way.
pub(crate) fn conflicting_owner(superblock: &Superblock, options: &Options) -> Option<Owner> {
    let Owner { boot, .. } = options.owner;
    superblock
        .owner
        .filter(|o| o.boot == boot && *o != options.owner && Some(*o) != options.take_over)
}

impl<D: BlockDevice> Mount<D> {
    /// Begins to open the volume on `device`, with which nobody else does anything meanwhile.
    ///
    /// # Errors
    /// [`OpenError::Unfit`] for options that cannot be, [`OpenError::Memory`].
    pub fn new(device: D, options: Options) -> Result<Mount<D>, OpenError> {
        options.check()?;
        let loader = Box::new(MetadataReader::new(&device, false)?);
        Ok(Mount { options, state: MountState::Loading(loader, device) })
    }

    /// Goes on.
    ///
    /// # Errors
    /// [`OpenError`]. Nothing was written, unless it is [`OpenError::Io`] of a write.
    pub fn poll(&mut self, now: Nanos) -> Result<MountStatus<D>, OpenError> {
        match std::mem::replace(&mut self.state, MountState::Finished) {
            MountState::Loading(mut loader, mut device) => {
                let result = loader.poll(&mut device, now);
                if let Some(owner) =
                    loader.known_superblock().and_then(|s| conflicting_owner(s, &self.options))
                {
                    return Err(OpenError::InUse { owner });
                }
                match result {
                    None => self.state = MountState::Loading(loader, device),
                    Some(loaded) => {
                        let replay = Replay::new(&device, loaded?, self.options.read_only)?;
                        self.state = MountState::Replaying(Box::new(replay), device);
                    }
                }
                Ok(MountStatus::Pending)
            }
            MountState::Replaying(mut replay, mut device) => {
                match replay.poll(&mut device, now) {
                    None => self.state = MountState::Replaying(replay, device),
                    Some(replayed) => {
                        let store = start_volume(device, self.options, replayed?, now)?;
                        if self.options.read_only {
                            return Ok(MountStatus::Ready(Box::new(store)));
                        }
                        self.state = MountState::FirstCheckpoint(Box::new(store));
                    }
                }
                Ok(MountStatus::Pending)
            }
            MountState::FirstCheckpoint(mut store) => {
                store.poll_device(now);
                if let Some(status) = store.core.aborted {
                    return Err(OpenError::Io { offset: 0, status });
                }
                if store.core.checkpoint.is_idle() {
                    store.core.stats.ready_at = now;
                    return Ok(MountStatus::Ready(store));
                }
                self.state = MountState::FirstCheckpoint(store);
                Ok(MountStatus::Pending)
            }
            MountState::Finished => {
                let what = "this opening has ended".to_owned();
                Err(OpenError::Unfit { what })
            }
        }
    }

    /// Gives up, and gives the device back, unless it has been given back before.
    pub fn into_device(self) -> Option<D> {
        match self.state {
            MountState::Loading(_, device) | MountState::Replaying(_, device) => Some(device),
            MountState::FirstCheckpoint(store) => Some(store.into_device()),
            MountState::Finished => None,
        }
    }

    /// When it must be polled even if the device does not move.
    pub fn deadline(&self) -> Nanos {
        match &self.state {
            MountState::Loading(_, device) | MountState::Replaying(_, device) => device.deadline(),
            MountState::FirstCheckpoint(store) => store.device().deadline(),
            MountState::Finished => Nanos::MAX,
        }
    }

    /// The device, as long as this has it: to poll what is behind it.
    pub fn device_mut(&mut self) -> Option<&mut D> {
        match &mut self.state {
            MountState::Loading(_, device) | MountState::Replaying(_, device) => Some(device),
            MountState::FirstCheckpoint(store) => Some(store.device_mut()),
            MountState::Finished => None,
        }
    }
}

/// A store of what was read, which begins with a checkpoint.
pub(crate) fn start_volume<D: BlockDevice>(
    device: D,
    options: Options,
    replayed: ReplayedVolume,
    now: Nanos,
) -> Result<Volume<D>, OpenError> {
    let ReplayedVolume { loaded, allocator: space, unwritten_blocks: kept, blocks } = replayed;
    let LoadedMetadata { mut superblock, tree, transactions, sectors, .. } = loaded;
    superblock.journal_seq += sectors;
    superblock.journal_txn += transactions;
    superblock.epoch += u64::from(!options.read_only);
    let (limits, memory) = (*device.limits(), device.memory().clone());
    // What is kept has frames besides those that were asked for.
    let frames = options.cache_pages.saturating_add(kept.len() as u32);
    let options = Options { cache_pages: frames, ..options };
    let mut core = Core::new(options, superblock, (tree, space), &limits, &memory)?;
    core.now = now;
    core.stats.recovered = transactions;
    core.stats.recovered_blocks = blocks;
    for whole in &kept {
        core.pin_journaled_block(whole);
    }
    if !options.read_only {
        // The flush of its pieces makes durable what was brought in place as well.
        core.begin_checkpoint();
    }
    Ok(Volume { device, core })
}

//! [`Opening`]: a volume on its way to being a [`Store`].
//!
//! Everything is read and checked, and nothing written if anything is wrong. Then data that the journal has
//! is written in place, a snapshot that takes the journal in, and superblocks that name it and the owner:
//! from then on the store is ready. A power cut before leaves the files as they were.

use block::Device;
use clock::Nanos;

use crate::core::Core;
use crate::loading::{Loaded, Loader};
use crate::replay::{Replay, Replayed};
use crate::superblock::Superblock;
use crate::{OpenError, Options, Owner, Store};

/// A volume that is being opened: poll it until it is ready.
#[derive(Debug)]
pub struct Opening<D> {
    options: Options,
    state: State<D>,
}

#[derive(Debug)]
enum State<D> {
    Loading(Box<Loader>, D),
    Replaying(Box<Replay>, D),
    First(Box<Store<D>>),
    Over,
}

/// How far it has come.
#[derive(Debug)]
pub enum Opened<D> {
    /// Not yet.
    Opening,
    /// The store.
    Ready(Box<Store<D>>),
}

/// Whether a mark of somebody else stands in the way.
pub(crate) fn in_use(superblock: &Superblock, options: &Options) -> Option<Owner> {
    let Owner { boot, .. } = options.owner;
    superblock
        .owner
        .filter(|o| o.boot == boot && *o != options.owner && Some(*o) != options.take_over)
}

impl<D: Device> Opening<D> {
    /// Begins to open the volume on `device`, with which nobody else does anything meanwhile.
    ///
    /// # Errors
    /// [`OpenError::Unfit`] for options that cannot be, [`OpenError::Memory`].
    pub fn new(device: D, options: Options) -> Result<Opening<D>, OpenError> {
        options.check()?;
        let loader = Box::new(Loader::new(&device, false)?);
        Ok(Opening { options, state: State::Loading(loader, device) })
    }

    /// Goes on.
    ///
    /// # Errors
    /// [`OpenError`]. Nothing was written, unless it is [`OpenError::Io`] of a write.
    pub fn poll(&mut self, now: Nanos) -> Result<Opened<D>, OpenError> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Loading(mut loader, mut device) => {
                let result = loader.poll(&mut device, now);
                if let Some(owner) = loader.known().and_then(|s| in_use(s, &self.options)) {
                    return Err(OpenError::InUse { owner });
                }
                match result {
                    None => self.state = State::Loading(loader, device),
                    Some(loaded) => {
                        let replay = Replay::new(&device, loaded?, self.options.read_only)?;
                        self.state = State::Replaying(Box::new(replay), device);
                    }
                }
                Ok(Opened::Opening)
            }
            State::Replaying(mut replay, mut device) => {
                match replay.poll(&mut device, now) {
                    None => self.state = State::Replaying(replay, device),
                    Some(replayed) => {
                        let store = begin(device, self.options, replayed?, now)?;
                        if self.options.read_only {
                            return Ok(Opened::Ready(Box::new(store)));
                        }
                        self.state = State::First(Box::new(store));
                    }
                }
                Ok(Opened::Opening)
            }
            State::First(mut store) => {
                store.poll_device(now);
                if let Some(status) = store.core.wedged {
                    return Err(OpenError::Io { offset: 0, status });
                }
                if store.core.checkpoint.is_idle() {
                    store.core.stats.ready_at = now;
                    return Ok(Opened::Ready(store));
                }
                self.state = State::First(store);
                Ok(Opened::Opening)
            }
            State::Over => {
                let what = "this opening has ended".to_owned();
                Err(OpenError::Unfit { what })
            }
        }
    }

    /// Gives up, and gives the device back, unless it has been given back before.
    pub fn into_device(self) -> Option<D> {
        match self.state {
            State::Loading(_, device) | State::Replaying(_, device) => Some(device),
            State::First(store) => Some(store.into_device()),
            State::Over => None,
        }
    }

    /// When it must be polled even if the device does not move.
    pub fn deadline(&self) -> Nanos {
        match &self.state {
            State::Loading(_, device) | State::Replaying(_, device) => device.deadline(),
            State::First(store) => store.device().deadline(),
            State::Over => Nanos::MAX,
        }
    }

    /// The device, as long as this has it: to poll what is behind it.
    pub fn device_mut(&mut self) -> Option<&mut D> {
        match &mut self.state {
            State::Loading(_, device) | State::Replaying(_, device) => Some(device),
            State::First(store) => Some(store.device_mut()),
            State::Over => None,
        }
    }
}

/// A store of what was read, which begins with a checkpoint.
pub(crate) fn begin<D: Device>(
    device: D,
    options: Options,
    replayed: Replayed,
    now: Nanos,
) -> Result<Store<D>, OpenError> {
    let Replayed { loaded, space, kept, blocks } = replayed;
    let Loaded { mut superblock, tree, transactions, sectors, .. } = loaded;
    superblock.journal_seq += sectors;
    superblock.journal_txn += transactions;
    superblock.epoch += u64::from(!options.read_only);
    let (limits, memory) = (*device.limits(), device.memory().clone());
    // What is kept has frames besides those that were asked for.
    let frames = options.frames.saturating_add(kept.len() as u32);
    let options = Options { frames, ..options };
    let mut core = Core::new(options, superblock, (tree, space), &limits, &memory)?;
    core.now = now;
    core.stats.recovered = transactions;
    core.stats.recovered_blocks = blocks;
    for whole in &kept {
        core.keep(whole);
    }
    if !options.read_only {
        // The flush of its pieces makes durable what was brought in place as well.
        core.begin_checkpoint();
    }
    Ok(Store { device, core })
}

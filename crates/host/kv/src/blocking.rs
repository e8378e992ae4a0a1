//! [`BlockingKv`]: a synchronous interface for tests and small programs, with one request at a
//! time.

use mem::PAGE_BYTES;
use time::{Component, Nanos};

use super::device::BlockingMemory;
use super::format::key::Key;
use super::recovery::scan::POLL_LIMIT;
use super::request::{KvAnswer, KvMutation, KvRequest, ValueBuffer};
use super::{Cursor, Kv, KvError};
use ocssd::vector::register;

/// A mutation of a batch, with its value.
#[derive(Clone, Copy, Debug)]
pub enum BlockingMutation<'a> {
    /// Puts a value.
    Put(&'a [u8], &'a [u8]),
    /// Replaces the value of an existing key.
    Update(&'a [u8], &'a [u8]),
    /// Deletes a key.
    Delete(&'a [u8]),
}

/// A key-value target together with the function that lets its drive run. Every call waits for its
/// completion. No other requests may be outstanding.
pub struct BlockingKv<'a> {
    kv: &'a mut Kv,
    /// Lets the drive run for a while; the time is always [`Nanos::ZERO`].
    progress: &'a mut dyn FnMut(),
}

impl std::fmt::Debug for BlockingKv<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvNow").field("kv", &self.kv).finish_non_exhaustive()
    }
}

impl<'a> BlockingKv<'a> {
    /// Creates the interface; `progress` is called while waiting.
    pub fn new(kv: &'a mut Kv, progress: &'a mut dyn FnMut()) -> BlockingKv<'a> {
        BlockingKv { kv, progress }
    }

    /// Returns the target.
    pub fn kv(&self) -> &Kv {
        self.kv
    }

    /// Puts a value.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvError> {
        let (key, room) = (Key::new(key)?, self.copy_to_memory(&[value])?[0]);
        self.run_request(KvRequest::put(key, room, 0)).map(|_| ())
    }

    /// Replaces the value of an existing key.
    ///
    /// # Errors
    /// [`KvError::NotFound`] if the key does not exist; [`KvError`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvError> {
        let (key, room) = (Key::new(key)?, self.copy_to_memory(&[value])?[0]);
        self.run_request(KvRequest::update(key, room, 0)).map(|_| ())
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// [`KvError::NotFound`] if it does not exist; [`KvError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<(), KvError> {
        self.run_request(KvRequest::delete(Key::new(key)?, 0)).map(|_| ())
    }

    /// Returns whether a key exists.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn exists(&mut self, key: &[u8]) -> Result<bool, KvError> {
        match self.run_request(KvRequest::exists(Key::new(key)?, 0))? {
            KvAnswer::Exists(bytes) => Ok(bytes.is_some()),
            KvAnswer::Done | KvAnswer::Value(_) => Ok(false),
        }
    }

    /// Returns a value; `None` if the key does not exist.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let key = Key::new(key)?;
        let KvAnswer::Exists(Some(bytes)) = self.run_request(KvRequest::exists(key.clone(), 0))?
        else {
            return Ok(None);
        };
        let room = self.value_buffer(bytes)?;
        self.run_request(KvRequest::get(key, room, 0))?;
        let mut value = vec![0; bytes as usize];
        if let Some(memory) = &self.kv.device.blocking_memory {
            memory.region.read(0, &mut value);
        }
        Ok(Some(value))
    }

    /// Applies all mutations, or none.
    ///
    /// # Errors
    /// [`KvError`]; nothing was changed.
    pub fn batch(&mut self, changes: &[BlockingMutation<'_>]) -> Result<(), KvError> {
        let values = changes.iter().map(|c| match c {
            BlockingMutation::Put(_, value) | BlockingMutation::Update(_, value) => *value,
            BlockingMutation::Delete(_) => &[],
        });
        let rooms = self.copy_to_memory(&values.collect::<Vec<_>>())?;
        let mut batch = Vec::with_capacity(changes.len());
        for (change, value) in changes.iter().zip(rooms) {
            batch.push(match change {
                BlockingMutation::Put(key, _) => KvMutation::Put { key: Key::new(key)?, value },
                BlockingMutation::Update(key, _) => {
                    KvMutation::Update { key: Key::new(key)?, value }
                }
                BlockingMutation::Delete(key) => KvMutation::Delete { key: Key::new(key)? },
            });
        }
        self.run_request(KvRequest::batch(batch, 0)).map(|_| ())
    }

    /// Makes all completed changes durable.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn sync(&mut self) -> Result<(), KvError> {
        self.run_request(KvRequest::sync(0)).map(|_| ())
    }

    /// Returns all keys that begin with `prefix`, in order.
    pub fn keys(&self, prefix: &[u8]) -> Vec<Key> {
        let mut cursor = Cursor::prefix(prefix);
        std::iter::from_fn(|| self.kv.next(&mut cursor)).map(|(key, _)| key).collect()
    }

    /// Returns a buffer for a value; it overwrites earlier buffers.
    fn value_buffer(&mut self, bytes: u64) -> Result<ValueBuffer, KvError> {
        let len = usize::try_from(bytes).map_err(|_| KvError::NoMemory)?;
        let at = match &self.kv.device.blocking_memory {
            Some(memory) if memory.region.len() >= len => memory.at,
            // A port never releases a registration, so the size doubles each time.
            _ => {
                let len = len.max(1 << 20).next_power_of_two().next_multiple_of(PAGE_BYTES);
                let memory = register(self.kv.memory(), len, "values of blocking requests");
                let (region, at) = memory.map_err(|_| KvError::NoMemory)?;
                self.kv.device.blocking_memory = Some(BlockingMemory { region, at });
                at
            }
        };
        Ok(ValueBuffer { at, bytes })
    }

    /// Copies values to registered memory, consecutively.
    fn copy_to_memory(&mut self, values: &[&[u8]]) -> Result<Vec<ValueBuffer>, KvError> {
        let mut room = self.value_buffer(values.iter().map(|v| v.len() as u64).sum())?;
        let (mut rooms, mut offset) = (Vec::with_capacity(values.len()), 0);
        for value in values {
            if let Some(memory) = &self.kv.device.blocking_memory {
                memory.region.write(offset, value);
            }
            rooms.push(ValueBuffer { bytes: value.len() as u64, ..room });
            offset += value.len();
            room.at = room.at.offset(value.len() as u64);
        }
        Ok(rooms)
    }

    fn run_request(&mut self, request: KvRequest) -> Result<KvAnswer, KvError> {
        let now = Nanos::ZERO;
        self.kv.submit(now, request).map_err(|_| KvError::Timeout)?;
        for _ in 0..POLL_LIMIT {
            let moved = self.kv.poll(now);
            if let Some(done) = self.kv.reap() {
                return done.result;
            }
            if !moved {
                (self.progress)();
            }
        }
        Err(KvError::Timeout)
    }
}

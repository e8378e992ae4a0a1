//! [`DeviceRef`]: shared state of all objects made from one device.
//!
//! Guarantee: releasing the last object that keeps a device open reports an unclean close.

use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

use open::CloseError;

use crate::error::CallError;

/// Identifies the device of a buffer, and receives an unclean close of its drive.
#[derive(Debug, Default)]
pub(crate) struct DeviceRef {
    closed: Option<Mutex<Receiver<CloseError>>>,
}

impl DeviceRef {
    pub(crate) fn with_close_receiver(closed: Receiver<CloseError>) -> DeviceRef {
        DeviceRef { closed: Some(Mutex::new(closed)) }
    }

    /// Releases an object that keeps the device open (buffers do not). The last release waits until
    /// the device is closed.
    ///
    /// # Errors
    /// [`CallError::Close`].
    pub(crate) fn release<T>(&self, object: T) -> Result<(), CallError> {
        drop(object);
        let Some(closed) = &self.closed else { return Ok(()) };
        match closed.lock().unwrap_or_else(PoisonError::into_inner).try_recv() {
            Ok(error) => Err(error.into()),
            // Other objects keep the device open, or it was closed cleanly.
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_int};
    use std::ptr::{null, null_mut};
    use std::sync::mpsc::{Sender, channel};

    use block::Raw;
    use driver::LowLevelDriver;
    use open::DriveControl;
    use user_io::{IoDevice, TargetConfig};

    use super::*;
    use crate::{
        sluice_buffer_create, sluice_buffer_destroy, sluice_close, sluice_device,
        sluice_handle_create, sluice_handle_destroy, sluice_last_error, sluice_queue_create,
        sluice_queue_destroy,
    };

    /// The thread of a drive that fails to close cleanly.
    struct Fails(Sender<CloseError>);

    impl Drop for Fails {
        fn drop(&mut self) {
            let _ = self.0.send(CloseError::Panicked { drive: "d0".into() });
        }
    }

    fn failing() -> *mut sluice_device {
        let (closed, hears) = channel();
        let null = driver::Null::default();
        let queue = Raw::new(null.create_queue(), null.limits());
        let queues: Vec<Box<dyn block::BlockDevice + Send>> = vec![Box::new(queue)];
        let device = IoDevice::target("d0".into(), queues, TargetConfig::default(), Fails(closed));
        let owner = DeviceRef::with_close_receiver(hears);
        Box::into_raw(sluice_device::boxed(device.unwrap(), DriveControl::default(), owner))
    }

    fn said(answer: c_int) {
        // SAFETY: the text is valid until this thread's next failure.
        let says = unsafe { CStr::from_ptr(sluice_last_error()) }.to_str().unwrap();
        assert_eq!(answer, -libc::EIO, "{says}");
        assert_eq!(says, "drive d0: its thread has failed; its image is as after a power cut");
    }

    /// The last object released reports how the device was closed, and no other.
    #[test]
    fn an_unclean_close_of_a_drive_is_reported_to_the_caller() {
        // SAFETY: pointers are to live objects, and each is returned once.
        unsafe {
            said(sluice_close(failing()));
            for device_first in [false, true] {
                let device = failing();
                let (mut queue, mut handle, mut buffer) = (null_mut(), null_mut(), null_mut());
                assert_eq!(sluice_queue_create(device, null(), &mut queue), 0);
                assert_eq!(sluice_handle_create(queue, null(), &mut handle), 0);
                assert_eq!(sluice_buffer_create(device, 1, &mut buffer), 0);
                if device_first {
                    assert_eq!(sluice_close(device), 0, "the queue has it still");
                }
                assert_eq!(sluice_handle_destroy(handle), 0);
                if device_first {
                    said(sluice_queue_destroy(queue));
                } else {
                    assert_eq!(sluice_queue_destroy(queue), 0, "it is open still");
                    said(sluice_close(device));
                }
                sluice_buffer_destroy(buffer);
            }
        }
    }
}

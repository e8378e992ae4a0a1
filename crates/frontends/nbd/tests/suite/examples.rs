//! The program of `examples/` serves its device.

use std::error::Error;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[path = "../../examples/mem_nbd.rs"]
#[allow(clippy::duplicate_mod, reason = "its memory is that of the tests")]
#[allow(dead_code, reason = "main() reads the arguments of a process")]
mod mem_nbd;

#[test]
fn mem_nbd_greets_its_client_and_stops() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("s");
    let stop = AtomicBool::new(false);
    let endpoint = format!("unix:{}", socket.display());
    thread::scope(|scope| {
        let server =
            scope.spawn(|| mem_nbd::serve(&endpoint, 1, 512, &stop).map_err(|e| e.to_string()));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut client = loop {
            match UnixStream::connect(&socket) {
                Ok(client) => break client,
                Err(_) if Instant::now() < deadline && !server.is_finished() => thread::yield_now(),
                Err(error) => {
                    stop.store(true, Ordering::Release);
                    return Err(error.into());
                }
            }
        };
        let mut greeting = [0; 8];
        let read = client.read_exact(&mut greeting);
        stop.store(true, Ordering::Release);
        drop(client);
        server.join().map_err(|_| "the server panicked")??;
        read?;
        assert_eq!(&greeting, b"NBDMAGIC");
        Ok(())
    })
}

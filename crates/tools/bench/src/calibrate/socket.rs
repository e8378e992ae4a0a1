//! Measures the path of an NBD client: a request of 28 bytes, and a reply of 16 bytes with 4 KiB of
//! data, over a Unix socket between two threads.
//!
//! The client writes, waits for the socket, and reads. The server works as in `sluice serve`: it
//! busy-polls the socket, and sleeps on it after a time without requests. Its reply includes the
//! times at which it received the request and started the reply. Both threads use one clock, so the
//! two directions can be separated.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use event::{AllowedCpus, RealClock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use time::Nanos;

use super::queue::whole_nanos;
use crate::{BenchError, Quantiles, RunLength, Samples, on_first_cpu};

/// Size of a request in bytes (\[NBD\], "Request message").
const REQUEST: usize = 28;
/// Size of a simple reply with 4 KiB of data (\[NBD\], "Simple reply message").
const REPLY: usize = 16 + 4096;
/// Number of outstanding requests when throughput is measured.
const OUTSTANDING: usize = 32;
/// Number of requests of a throughput sample.
const WINDOW: usize = 64;

/// Costs of a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// From the client's write until the server has the request.
    pub submit: Quantiles,
    /// From the server's write until the client has the reply.
    pub complete: Quantiles,
    /// Round trip.
    pub round_trip: Quantiles,
}

/// Costs of an NBD client's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketCosts {
    /// With the server awake; `None` if it has no CPU of its own.
    pub awake: Option<RoundTrip>,
    /// With the server asleep.
    pub asleep: RoundTrip,
    /// Time per request with 32 outstanding.
    pub pipelined: Nanos,
}

impl SocketCosts {
    /// Returns the costs for most requests of a busy client: with the server awake, if possible.
    pub fn typical(&self) -> &RoundTrip {
        self.awake.as_ref().unwrap_or(&self.asleep)
    }
}

/// Wait strategy of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerWait {
    Awake,
    Asleep,
}

/// Measures the costs.
///
/// # Errors
/// [`BenchError`] if the system refuses sockets or threads.
pub fn measure(effort: RunLength, cores: &AllowedCpus) -> Result<SocketCosts, BenchError> {
    let trips = effort.choose(5_000, 50);
    let windows = effort.choose(1_000, 4);
    let waits = if cores.has_two() { ServerWait::Awake } else { ServerWait::Asleep };
    let pipelined = between(cores, waits, |client, clock| pipelined(client, clock, windows))?;
    let pipelined = Samples::new(pipelined).map_or(0.0, |s| s.median());
    let asleep =
        between(cores, ServerWait::Asleep, |client, clock| round_trips(client, clock, trips))?;
    let awake = if cores.has_two() {
        Some(between(cores, ServerWait::Awake, |client, clock| round_trips(client, clock, trips))?)
    } else {
        None
    };
    Ok(SocketCosts { awake, asleep, pipelined: whole_nanos(pipelined) })
}

/// Runs `client` on the first CPU with a server on the second.
fn between<T: Send>(
    cores: &AllowedCpus,
    waits: ServerWait,
    client: impl FnOnce(UnixStream, RealClock) -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    let clock = RealClock::start();
    let (near, far) = UnixStream::pair()?;
    thread::scope(|scope| {
        let server = thread::Builder::new().spawn_scoped(scope, move || {
            cores.pin(1);
            serve(far, clock, waits)
        })?;
        // The client closes its end when it is done, which ends the server.
        let result = on_first_cpu(cores, move || client(near, clock));
        let served = server.join().map_err(|_| BenchError::Thread("the socket's server"))?;
        let result = result?;
        served?;
        Ok(result)
    })
}

/// Waits until the socket is readable.
fn wait(socket: &UnixStream) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Answers every request until the client closes its end.
fn serve(mut socket: UnixStream, clock: RealClock, waits: ServerWait) -> io::Result<()> {
    let mut requests = vec![0; OUTSTANDING * REQUEST];
    let mut replies = vec![0; OUTSTANDING * REPLY];
    let mut have = 0;
    loop {
        if waits == ServerWait::Asleep {
            wait(&socket)?;
        }
        match recv(&socket, &mut requests[have..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Ok(()),
            Ok((n, _)) => have += n,
            Err(Errno::AGAIN | Errno::INTR) => {
                std::hint::spin_loop();
                continue;
            }
            Err(e) => return Err(e.into()),
        }
        let had = clock.now().0.to_le_bytes();
        let count = have / REQUEST;
        let answers = &mut replies[..count * REPLY];
        for reply in answers.chunks_exact_mut(REPLY) {
            reply[..8].copy_from_slice(&had);
            reply[8..16].copy_from_slice(&clock.now().0.to_le_bytes());
        }
        requests.copy_within(count * REQUEST..have, 0);
        have -= count * REQUEST;
        socket.write_all(answers)?;
    }
}

fn round_trips(
    mut socket: UnixStream,
    clock: RealClock,
    trips: usize,
) -> Result<RoundTrip, BenchError> {
    let (mut submit, mut complete, mut both) = (Vec::new(), Vec::new(), Vec::new());
    let mut reply = [0; REPLY];
    for number in 0..trips + trips / 10 {
        let asked = clock.now();
        socket.write_all(&[0; REQUEST])?;
        wait(&socket)?;
        socket.read_exact(&mut reply)?;
        let done = clock.now();
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = reply;
        let had = Nanos(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        let began = Nanos(u64::from_le_bytes([i, j, k, l, m, n, o, p]));
        if number >= trips / 10 {
            submit.push(had.since(asked));
            complete.push(done.since(began));
            both.push(done.since(asked));
        }
    }
    let quantiles =
        |v| Quantiles::from_durations(v).ok_or(BenchError::Thread("the socket's client"));
    Ok(RoundTrip {
        submit: quantiles(submit)?,
        complete: quantiles(complete)?,
        round_trip: quantiles(both)?,
    })
}

/// Returns nanoseconds per request with [`OUTSTANDING`] outstanding, for each window of a long run.
/// Windows are short, so that most are not interrupted.
fn pipelined(
    mut socket: UnixStream,
    clock: RealClock,
    windows: usize,
) -> Result<Vec<f64>, BenchError> {
    let requests = windows * WINDOW;
    let mut began = clock.now();
    let mut samples = Vec::with_capacity(windows);
    let mut reply = [0; REPLY];
    let mut sent = 0;
    for done in 0..requests {
        while sent < requests && sent - done < OUTSTANDING {
            socket.write_all(&[0; REQUEST])?;
            sent += 1;
        }
        wait(&socket)?;
        socket.read_exact(&mut reply)?;
        if (done + 1) % WINDOW == 0 {
            let now = clock.now();
            samples.push(now.since(began).0 as f64 / WINDOW as f64);
            began = now;
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trip_has_two_halves() {
        let cores = AllowedCpus::allowed();
        let trip =
            between(&cores, ServerWait::Asleep, |socket, clock| round_trips(socket, clock, 20));
        let trip = trip.unwrap();
        assert!(trip.submit.p50 > Nanos::ZERO && trip.complete.p50 > Nanos::ZERO);
        assert!(trip.round_trip.max >= trip.submit.p50 + trip.complete.p50);
        let windows = between(&cores, ServerWait::Asleep, |s, c| pipelined(s, c, 3)).unwrap();
        assert!(windows.len() == 3 && windows.iter().all(|w| *w > 0.0));
    }
}

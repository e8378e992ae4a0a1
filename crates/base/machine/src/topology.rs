//! [`Machine`]: the number of sockets and cores, and the distances between them.
//!
//! In [SYSTOR13 §4.1], up to four sockets are linked directly. The 8-socket system has two boards
//! of four sockets, linked by an interconnect board.

use std::fmt;
use std::str::FromStr;

/// Number of sockets per board.
const BOARD: u16 = 4;

/// Maximum number of cores of a modeled machine.
pub const CORES_MAX: u32 = 512;

/// A modeled machine: `8x10` is 8 sockets of 10 cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    sockets: u16,
    cores: u16,
}

/// Error of a machine's description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// The text is not two numbers separated by `x`.
    #[error("`{0}` is not SOCKETSxCORES, as in 8x10")]
    Form(String),
    /// The number of cores is zero or too large.
    #[error("{sockets} sockets of {cores} cores: a modelled machine has 1 to {CORES_MAX} cores")]
    Size {
        /// Number of sockets.
        sockets: u16,
        /// Number of cores per socket.
        cores: u16,
    },
}

/// Distance of a transfer between two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Between cores of one socket.
    Socket,
    /// Between sockets of one board.
    Board,
    /// Between boards.
    Boards,
}

impl Distance {
    /// All distances, nearest first.
    pub const ALL: [Distance; 3] = [Distance::Socket, Distance::Board, Distance::Boards];
}

impl Machine {
    /// Returns a machine of `sockets` sockets of `cores` cores each.
    ///
    /// # Errors
    /// [`MachineError::Size`].
    pub fn new(sockets: u16, cores: u16) -> Result<Machine, MachineError> {
        let count = u32::from(sockets) * u32::from(cores);
        if count == 0 || count > CORES_MAX {
            return Err(MachineError::Size { sockets, cores });
        }
        Ok(Machine { sockets, cores })
    }

    /// Returns the number of all cores, 1 to [`CORES_MAX`].
    pub fn cores(self) -> usize {
        usize::from(self.sockets) * usize::from(self.cores)
    }

    /// Returns the number of cores per socket.
    pub fn cores_per_socket(self) -> usize {
        self.cores.into()
    }

    /// Returns the number of sockets.
    pub fn sockets(self) -> usize {
        self.sockets.into()
    }

    /// Returns whether there are two boards or more.
    pub fn has_boards(self) -> bool {
        self.sockets > BOARD
    }

    /// Returns the socket of a core; cores are numbered socket by socket.
    pub fn socket(self, core: usize) -> usize {
        core / self.cores_per_socket()
    }

    /// Returns the distance between two cores, or between a core and the memory of another's
    /// socket.
    pub fn distance(self, one: usize, other: usize) -> Distance {
        let (one, other) = (self.socket(one), self.socket(other));
        if one == other {
            Distance::Socket
        } else if one / usize::from(BOARD) == other / usize::from(BOARD) {
            Distance::Board
        } else {
            Distance::Boards
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.sockets, self.cores)
    }
}

impl FromStr for Machine {
    type Err = MachineError;

    fn from_str(text: &str) -> Result<Machine, MachineError> {
        let form = || MachineError::Form(text.to_owned());
        let (sockets, cores) = text.split_once(['x', 'X']).ok_or_else(form)?;
        let number = |text: &str| text.parse::<u16>().map_err(|_| form());
        Machine::new(number(sockets)?, number(cores)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_and_bounded() {
        let machine: Machine = "8x10".parse().unwrap();
        assert_eq!((machine.cores(), machine.to_string().as_str()), (80, "8x10"));
        for bad in ["", "8", "8x", "x10", "8x10x2", "-1x4", "8 x10", "99999x1"] {
            assert_eq!(bad.parse::<Machine>(), Err(MachineError::Form(bad.into())));
        }
        for (sockets, cores) in [(0, 4), (4, 0), (513, 1), (65535, 65535)] {
            let size = MachineError::Size { sockets, cores };
            assert_eq!(format!("{sockets}x{cores}").parse::<Machine>(), Err(size));
        }
    }

    #[test]
    fn eight_sockets_are_two_boards() {
        let machine = Machine::new(8, 10).unwrap();
        assert_eq!(machine.distance(0, 9), Distance::Socket);
        assert_eq!(machine.distance(0, 10), Distance::Board);
        assert_eq!(machine.distance(39, 0), Distance::Board);
        assert_eq!(machine.distance(40, 0), Distance::Boards);
        assert_eq!(machine.distance(40, 79), Distance::Board);
        assert!(machine.has_boards() && !Machine::new(4, 8).unwrap().has_boards());
    }
}

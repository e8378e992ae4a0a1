//! Parsers of the lines of each trace format, to [`RawOp`].

use time::Nanos;

use super::{Due, RawOp, TraceAction, TraceReader, parse};
use crate::job::Direction;

impl TraceReader {
    /// Parses one line of a fio iolog; returns `None` for a line that is not an access.
    pub(super) fn iolog(&mut self, text: &str) -> Result<Option<RawOp>, String> {
        let mut words = text.split_whitespace();
        let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
        let stamp = if self.version == 3 {
            let micros = parse(word("the timestamp")?, "the timestamp in microseconds")?;
            // As in fio 3.33, times count from the first line with a timestamp other than zero,
            // whatever its action is.
            if self.epoch.is_none() && micros > 0 {
                self.epoch = Some(micros);
            }
            Some(micros.saturating_sub(self.epoch.unwrap_or(0)).saturating_mul(1000))
        } else {
            None
        };
        let file = word("the file")?;
        let action = word("the action")?;
        let offset = words.next();
        let bytes = words.next();
        if let Some(extra) = words.next() {
            return Err(format!("`{extra}` after the length"));
        }
        let offset_of = || parse(offset.ok_or("the offset is missing")?, "the offset in bytes");
        let action = match action {
            "add" | "open" | "close" => return Ok(None),
            "wait" if self.version == 2 => {
                self.wait_ns = self.wait_ns.saturating_add(offset_of()?.saturating_mul(1000));
                return Ok(None);
            }
            "wait" => return Err("`wait` is not an action of version 3".to_owned()),
            "read" => TraceAction::Access(Direction::Read),
            "write" => TraceAction::Access(Direction::Write),
            "trim" => TraceAction::Access(Direction::Trim),
            "sync" | "datasync" => TraceAction::Flush,
            other => {
                return Err(format!(
                    "unknown action `{other}`: expected add, open, close, wait, read, write, trim, \
                     sync or datasync"
                ));
            }
        };
        if !self.matches_device(file, "file", "`replay_redirect=1` sends all to this device")? {
            return Ok(None);
        }
        let at = match stamp {
            Some(nanos) => Due::At(Nanos(nanos)),
            None => Due::After(Nanos(std::mem::take(&mut self.wait_ns))),
        };
        if action == TraceAction::Flush {
            return Ok(Some(RawOp { at, action, offset: 0, bytes: 0 }));
        }
        let bytes = parse(bytes.ok_or("the length is missing")?, "the length in bytes")?;
        Ok(Some(RawOp { at, action, offset: offset_of()?, bytes }))
    }

    /// Parses one line of an MSR Cambridge trace; returns `None` for another device.
    pub(super) fn msr(&mut self, text: &str) -> Result<Option<RawOp>, String> {
        let mut fields = text.trim().split(',').map(str::trim);
        let mut field = |what: &str| fields.next().ok_or(format!("{what} is missing"));
        let ticks = parse(field("the timestamp")?, "the timestamp in ticks of 100 ns")?;
        field("the host name")?;
        let disk = field("the disk number")?;
        let kind = field("the type")?;
        let offset = parse(field("the offset")?, "the offset in bytes")?;
        let bytes = parse(field("the size")?, "the size in bytes")?;
        let direction = if kind.eq_ignore_ascii_case("read") {
            Direction::Read
        } else if kind.eq_ignore_ascii_case("write") {
            Direction::Write
        } else {
            return Err(format!("unknown type `{kind}`: expected Read or Write"));
        };
        if !self.is_selected_device(disk)? {
            return Ok(None);
        }
        let epoch = *self.epoch.get_or_insert(ticks);
        let at = Due::At(Nanos(ticks.saturating_sub(epoch).saturating_mul(100)));
        Ok(Some(RawOp { at, action: TraceAction::Access(direction), offset, bytes }))
    }

    /// Parses one line of an MQSim trace; returns `None` for another device.
    pub(super) fn mqsim(&mut self, text: &str) -> Result<Option<RawOp>, String> {
        let mut words = text.split_whitespace();
        let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
        let nanos = parse(word("the arrival time")?, "the arrival time in nanoseconds")?;
        let device = word("the device")?;
        let sector = parse(word("the sector")?, "the first sector")?;
        let sectors = parse(word("the size")?, "the size in sectors")?;
        let direction = match word("the type")? {
            "0" => Direction::Write,
            "1" => Direction::Read,
            other => {
                return Err(format!("unknown type `{other}`: expected 0 (write) or 1 (read)"));
            }
        };
        if let Some(extra) = words.next() {
            return Err(format!("`{extra}` after the type"));
        }
        if !self.is_selected_device(device)? {
            return Ok(None);
        }
        let bytes = |n: u64| n.checked_mul(512).ok_or("a sector number over 2^55");
        let epoch = *self.epoch.get_or_insert(nanos);
        Ok(Some(RawOp {
            at: Due::At(Nanos(nanos.saturating_sub(epoch))),
            action: TraceAction::Access(direction),
            offset: bytes(sector)?,
            bytes: bytes(sectors)?,
        }))
    }
}

//! [`PartitionTableBuilder`]: the partitions and access rules of the socket of `sluice serve`, from the scenario
//! and from unassigned space.
//!
//! Guarantee: clients of the socket cannot access the NBD partition; partitions lie within their
//! drive and do not overlap.

use controller::{AccessScope, Controller};
use scenario::{DriveSpec, HostTarget, Scenario, ShareSpan, ShareSpec};
use share_proto::{AclRule, PartitionSpan, ResourceName};
use share_server::{Partition, PartitionTable};

use super::ServeError;

/// Name of the partition with the unassigned space, unless the scenario has a partition of this
/// name.
const REST: &str = "rest";

/// Partition table of a server under construction.
pub(super) struct PartitionTableBuilder {
    pub(super) table: PartitionTable,
}

/// Extent of a drive.
#[derive(Clone, Copy, Debug)]
struct DriveExtent {
    /// Number of parallel units of an open-channel drive.
    pus: Option<u32>,
    sectors: u64,
    sector_bytes: u64,
}

impl DriveExtent {
    fn from_drive(drive: &Controller) -> DriveExtent {
        use media::MediaConfig;
        let config = drive.config();
        let is_open = config.personality == controller::PersonalityKind::OpenChannel;
        let pus = match &config.media {
            MediaConfig::Nand(nand) => is_open.then_some(nand.geometry.total_pus()),
            MediaConfig::Pcm(_) | MediaConfig::Null { .. } => None,
        };
        // Partitions are parts of the first namespace.
        let namespaces = drive.namespaces();
        let sectors = namespaces.iter().find(|n| n.nsid == 1).map_or(0, |n| n.blocks);
        DriveExtent { pus, sectors, sector_bytes: config.lba_bytes().into() }
    }

    fn end(self) -> u64 {
        self.pus.map_or(self.sectors, u64::from)
    }

    /// Converts a part of the drive to a partition span.
    ///
    /// # Errors
    /// A message, if the drive does not have the part.
    fn span(self, wanted: ShareSpan) -> Result<PartitionSpan, String> {
        let sectors = |first: u64, count: u64| match first.checked_add(count) {
            _ if self.pus.is_some() => Err("it is open-channel: use `first_pu` and `pus`".into()),
            Some(end) if end <= self.sectors => Ok(PartitionSpan::Sectors { first, count }),
            _ => Err(format!("it has {} sectors of {} bytes", self.sectors, self.sector_bytes)),
        };
        match (wanted, self.pus) {
            (ShareSpan::Sectors { first, count }, _) => sectors(first, count),
            (ShareSpan::Bytes { first, bytes }, _) => {
                if bytes % self.sector_bytes != 0 {
                    return Err(format!(
                        "{bytes} bytes are no whole sectors of {}",
                        self.sector_bytes
                    ));
                }
                sectors(first, bytes / self.sector_bytes)
            }
            (ShareSpan::ParallelUnits { first, count }, Some(pus)) => {
                match first.checked_add(count) {
                    Some(end) if end <= pus => Ok(PartitionSpan::ParallelUnits { first, count }),
                    _ => Err(format!("it has {pus} parallel units")),
                }
            }
            (ShareSpan::ParallelUnits { .. }, None) => {
                Err("it manages its own media: use `first` and `sectors`".into())
            }
        }
    }

    /// Returns the largest unassigned part.
    fn largest_unassigned(self, spans: &[PartitionSpan]) -> Option<PartitionSpan> {
        let mut taken: Vec<_> = spans
            .iter()
            .map(|span| match *span {
                PartitionSpan::Sectors { first, count } => (first, first + count),
                PartitionSpan::ParallelUnits { first, count } => {
                    (first.into(), u64::from(first) + u64::from(count))
                }
            })
            .collect();
        taken.sort_unstable();
        taken.push((self.end(), self.end()));
        let (mut at, mut best) = (0, (0, 0));
        for (first, end) in taken {
            if first > at && first - at > best.1 {
                best = (at, first - at);
            }
            at = at.max(end);
        }
        let (first, count) = best;
        match self.pus {
            _ if count == 0 => None,
            // Less than the number of parallel units.
            Some(_) => {
                Some(PartitionSpan::ParallelUnits { first: first as u32, count: count as u32 })
            }
            None => Some(PartitionSpan::Sectors { first, count }),
        }
    }
}

impl PartitionTableBuilder {
    /// Returns an empty table for a server of this process's user.
    pub(super) fn new() -> PartitionTableBuilder {
        PartitionTableBuilder { table: PartitionTable::new(rustix::process::geteuid().as_raw()) }
    }

    /// Adds a drive's partitions; `nbd` tells whether NBD serves the drive as well. Returns NBD's
    /// partition.
    ///
    /// # Errors
    /// [`ServeError::Share`].
    pub(super) fn add(
        &mut self,
        scenario: &Scenario,
        plan: &DriveSpec,
        drive: &Controller,
        nbd: bool,
    ) -> Result<Option<AccessScope>, ServeError> {
        let name = &plan.config.name;
        let refused = |why: String| ServeError::Share { drive: name.clone(), why };
        if drive.application_ftl(1).is_some() {
            let why = "its rules have several applications, which are no partitions: serve each by NBD, \
                       on a [[path]] with `app`";
            return Err(refused(why.into()));
        }
        if plan.target != HostTarget::None {
            let label = plan.target.label();
            return Err(refused(format!(
                "its flash is managed by {label} on the host, which has all of it: a drive that is \
                 shared needs target.kind = \"none\""
            )));
        }
        if let Some(nsid @ (0 | 2..)) = plan.namespace {
            return Err(refused(format!(
                "its path leads to namespace {nsid}, and partitions are parts of namespace 1: \
                 serve other namespaces by NBD"
            )));
        }
        let device = ResourceName::new(name).map_err(|e| refused(e.to_string()))?;
        let mine = |share: &&ShareSpec| share.drive.as_ref().is_none_or(|drive| drive == name);
        let size = DriveExtent::from_drive(drive);
        let (mut spans, mut served, mut rules) = (Vec::new(), None, Vec::new());
        for share in scenario.serving.shares.iter().filter(mine) {
            let (line, partition) = (share.line, share.partition);
            let wrong =
                |why: String| refused(format!("partition {partition} (line {line}): {why}"));
            let span = size.span(share.span).map_err(wrong)?;
            let taken = share.nbd && nbd;
            self.add_partition(Partition { device, name: partition, span, in_use: taken }, &wrong)?;
            spans.push(span);
            if taken && served.replace(span).is_some() {
                return Err(wrong("NBD serves one partition of a drive, and has one".into()));
            }
            for (subject, grant) in &share.allow {
                rules.push(AclRule { principal: *subject, device, partition, grant: *grant });
            }
        }
        let rest = ResourceName::new(REST).map_err(|e| refused(e.to_string()))?;
        let is_used = self.table.partitions().iter().any(|p| (p.device, p.name) == (device, rest));
        if !is_used && let Some(span) = size.largest_unassigned(&spans) {
            let taken = nbd && served.is_none();
            self.add_partition(Partition { device, name: rest, span, in_use: taken }, &refused)?;
            if taken {
                served = Some(span);
            }
        }
        for rule in rules {
            self.table.allow(rule).map_err(|refusal| refused(refusal.text))?;
        }
        match (nbd, served) {
            (false, _) => Ok(None),
            (true, Some(PartitionSpan::Sectors { first, count })) => {
                Ok(Some(AccessScope::Sectors { first, count }))
            }
            (true, _) => {
                let why = "nothing is left for NBD: mark one partition with nbd = true";
                Err(refused(why.into()))
            }
        }
    }

    fn add_partition(
        &mut self,
        partition: Partition,
        wrong: &dyn Fn(String) -> ServeError,
    ) -> Result<(), ServeError> {
        self.table.add(partition).map_err(|e| wrong(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_the_largest_hole() {
        let size = DriveExtent { pus: None, sectors: 100, sector_bytes: 4096 };
        let span = |first, count| PartitionSpan::Sectors { first, count };
        assert_eq!(size.largest_unassigned(&[]), Some(span(0, 100)));
        assert_eq!(size.largest_unassigned(&[span(0, 30), span(60, 10)]), Some(span(30, 30)));
        assert_eq!(size.largest_unassigned(&[span(60, 10), span(20, 5)]), Some(span(25, 35)));
        assert_eq!(size.largest_unassigned(&[span(50, 50), span(0, 50)]), None);
        let open = DriveExtent { pus: Some(8), ..size };
        let pus = |first, count| PartitionSpan::ParallelUnits { first, count };
        assert_eq!(open.largest_unassigned(&[pus(1, 2)]), Some(pus(3, 5)));
    }

    #[test]
    fn parts_lie_on_their_drive() {
        let size = DriveExtent { pus: None, sectors: 100, sector_bytes: 4096 };
        let open = DriveExtent { pus: Some(8), ..size };
        let sectors = |first, count| ShareSpan::Sectors { first, count };
        assert!(size.span(sectors(50, 50)).is_ok() && open.span(sectors(0, 1)).is_err());
        for wanted in [sectors(50, 51), sectors(u64::MAX, 1), sectors(101, 1)] {
            assert!(size.span(wanted).unwrap_err().contains("100 sectors"), "{wanted:?}");
        }
        let bytes = |bytes| ShareSpan::Bytes { first: 0, bytes };
        assert_eq!(size.span(bytes(8192)), Ok(PartitionSpan::Sectors { first: 0, count: 2 }));
        assert!(size.span(bytes(4097)).unwrap_err().contains("whole sectors"));
        let pus = |first, count| ShareSpan::ParallelUnits { first, count };
        assert!(open.span(pus(7, 1)).is_ok() && size.span(pus(0, 1)).is_err());
        assert!(open.span(pus(7, 2)).unwrap_err().contains("8 parallel units"));
    }
}

//! `[[partition]]`: partitions of drives that `sluice serve --socket` gives to users
//! (`docs/sharing.md`).

use share_proto::{Grant, Principal, ResourceName};

use crate::error::ProblemKind;
use crate::section::{Result, Section, Value};
use crate::source::SourceSpan;
use crate::user::{self, subject};

/// Location of a partition on a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareSpan {
    /// Sectors.
    Sectors {
        /// First sector.
        first: u64,
        /// Number of sectors.
        count: u64,
    },
    /// Bytes, in complete sectors of the drive.
    Bytes {
        /// First sector.
        first: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// Parallel units.
    ParallelUnits {
        /// First parallel unit.
        first: u32,
        /// Number of parallel units.
        count: u32,
    },
}

/// A partition of a drive and its access rules.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareSpec {
    /// Name of the drive; `None` for the only one.
    pub drive: Option<String>,
    /// Name of the partition.
    pub partition: ResourceName,
    /// Location of the partition.
    pub span: ShareSpan,
    /// Whether NBD serves the partition.
    pub nbd: bool,
    /// Allowed users, with their limits.
    pub allow: Vec<(Principal, Grant)>,
    /// Line of the section, for messages.
    pub line: usize,
}

fn name(value: &Value<'_>) -> Result<ResourceName> {
    ResourceName::new(value.string()?)
        .map_err(|_| value.refuse("1 to 32 printable ASCII letters without spaces and slashes"))
}

impl ShareSpec {
    /// Reads a section; `drives` are the names of the scenario's drives.
    pub(crate) fn read(mut s: Section<'_>, drives: &[&str]) -> Result<ShareSpec> {
        let place = s.source_span();
        let mut drive = None;
        if let Some(value) = s.get("drive") {
            let word = value.string()?;
            if !drives.contains(&word) {
                return Err(value.refuse_name(drives));
            }
            drive = Some(word.to_owned());
        } else if drives.len() > 1 {
            return Err(s.missing("drive", format!("there are several: {}", drives.join(", "))));
        }
        let partition = match s.get("name") {
            Some(value) => name(&value)?,
            None => return Err(s.missing("name", "what the part is called")),
        };
        if let Some(value) = s.get("namespace")
            && value.u32()? != 1
        {
            let message = "partitions are parts of namespace 1";
            let help = "serve another namespace by NBD: `[path] namespace`";
            return Err(value.conflict(message, help));
        }
        let span = span(&mut s, &place)?;
        let mut nbd = false;
        s.set("nbd", &mut nbd, |v| v.boolean())?;
        let mut allow = Vec::new();
        if let Some(value) = s.get("allow") {
            for section in value.sections("partition.allow")? {
                allow.push(rule(section)?);
            }
        }
        if nbd && !allow.is_empty() {
            return Err(place.error(ProblemKind::Conflict {
                message: format!("{partition} is NBD's, and given to users"),
                help: "remove `nbd` or `[[partition.allow]]`: two who do not know of each other would \
                       write to the same sectors"
                    .into(),
            }));
        }
        s.finish()?;
        Ok(ShareSpec {
            drive,
            partition,
            span,
            nbd,
            allow,
            line: place.source.line_column(place.span.start).0,
        })
    }
}

fn span(s: &mut Section<'_>, place: &SourceSpan) -> Result<ShareSpan> {
    let (mut first, mut sectors, mut bytes) = (0, None, None);
    let (mut first_pu, mut pus) = (0, None);
    let of_sectors = [
        s.set("first", &mut first, |v| v.u64())?,
        s.set("sectors", &mut sectors, |v| v.u64().map(Some))?,
        s.set("size", &mut bytes, |v| v.size().map(Some))?,
    ];
    let of_pus = [
        s.set("first_pu", &mut first_pu, |v| v.u32())?,
        s.set("pus", &mut pus, |v| v.u32().map(Some))?,
    ];
    let conflict = |message: &str| {
        let help = "allowed: `first` with `sectors` or `size`, or on an open-channel drive \
                    `first_pu` with `pus`";
        Err(place.error(ProblemKind::Conflict { message: message.into(), help: help.into() }))
    };
    let by_sectors = of_sectors.iter().any(Option::is_some);
    if by_sectors && of_pus.iter().any(Option::is_some) {
        return conflict("a part is sectors or parallel units");
    }
    match (sectors, bytes, pus) {
        (Some(0), ..) => conflict("`sectors` is 0: a part of nothing"),
        (_, Some(0), _) => conflict("`size` is 0: a part of nothing"),
        (.., Some(0)) => conflict("`pus` is 0: a part of nothing"),
        (Some(count), None, None) => Ok(ShareSpan::Sectors { first, count }),
        (None, Some(bytes), None) => Ok(ShareSpan::Bytes { first, bytes }),
        (None, None, Some(count)) => Ok(ShareSpan::ParallelUnits { first: first_pu, count }),
        (Some(_), Some(_), _) => conflict("`sectors` and `size` say the same"),
        _ => conflict("a part needs to say how much it is"),
    }
}

fn rule(mut s: Section<'_>) -> Result<(Principal, Grant)> {
    let user = match s.get("user") {
        Some(value) => subject(value.string()?).map_err(|allowed| value.refuse(allowed))?,
        None => return Err(s.missing("user", user::ALLOWED)),
    };
    let mut grant = Grant::with_queues(Grant::QUEUES_DEFAULT);
    s.set("queues", &mut grant.queues, |v| match v.u16_from(1)? {
        queues @ ..=1024 => Ok(queues),
        _ => Err(v.refuse("1 to 1024")),
    })?;
    s.set("depth", &mut grant.depth, |v| v.u16_from(2))?;
    s.set("write", &mut grant.write, |v| v.boolean())?;
    let positive = |v: &Value<'_>, rate: u64| match rate {
        0 => Err(v.refuse("more than 0; without it there is no limit")),
        rate => Ok(Some(rate)),
    };
    s.set("iops", &mut grant.iops, |v| positive(v, v.u64()?))?;
    s.set("bandwidth", &mut grant.bytes_per_sec, |v| positive(v, v.bandwidth()?))?;
    s.finish()?;
    Ok((user, grant))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Scenario;

    const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n";

    fn shares(text: &str) -> std::result::Result<Vec<ShareSpec>, String> {
        let parsed = Scenario::parse(Path::new("s.toml"), &format!("{DRIVE}{text}"));
        parsed.map(|s| s.serving.shares).map_err(|e| e.to_string())
    }

    #[test]
    fn parts_and_users_are_read() {
        let text = "[[partition]]\nname = \"a\"\nfirst = 8\nsize = \"1M\"\n\
                    [[partition.allow]]\nuser = \"uid:7\"\nqueues = 2\niops = 100\nwrite = false\n\
                    [[partition.allow]]\nuser = \"anyone\"\nbandwidth = \"1MB/s\"\ndepth = 16\n\
                    [[partition]]\nname = \"b\"\nfirst_pu = 1\npus = 2\nnbd = true\n";
        let found = shares(text).unwrap();
        assert_eq!(found[0].span, ShareSpan::Bytes { first: 8, bytes: 1 << 20 });
        let mut first = Grant { write: false, iops: Some(100), ..Grant::with_queues(2) };
        assert_eq!(found[0].allow[0], (Principal::Uid(7), first));
        first = Grant { bytes_per_sec: Some(1_000_000), depth: 16, ..Grant::with_queues(4) };
        assert_eq!(found[0].allow[1], (Principal::Anyone, first));
        assert_eq!(found[1].span, ShareSpan::ParallelUnits { first: 1, count: 2 });
        assert!(found[1].nbd && found[1].line == 16, "{found:?}");
        assert_eq!(shares("").unwrap(), []);
        let one = "[[partition]]\nname = \"a\"\nsectors = 8\nnamespace = 1\n";
        assert_eq!(shares(one).unwrap().len(), 1);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        let part = |keys: &str| format!("[[partition]]\nname = \"p\"\n{keys}");
        for (text, says) in [
            ("[[partition]]\nsectors = 1\n".into(), "needs `name`"),
            ("[[partition]]\nname = \"a b\"\n".into(), "1 to 32 printable"),
            (part(""), "how much it is"),
            (part("sectors = 0\n"), "a part of nothing"),
            (part("sectors = 1\nsize = \"4k\"\n"), "say the same"),
            (part("sectors = 1\npus = 1\n"), "sectors or parallel units"),
            (part("first = 1\npus = 1\n"), "sectors or parallel units"),
            (part("sectors = 1\ndrive = \"x\"\n"), "allowed: drive0"),
            (part("sectors = 1\nnamespace = 2\n"), "partitions are parts of namespace 1"),
            (part("sectors = 1\nnamespace = \"a\"\n"), "namespace"),
            (part("sectors = 1\nallow = [{}]\n"), "needs `user`"),
            (part("sectors = 1\nallow = [{ user = \"no one here\" }]\n"), "/etc/passwd"),
            (part("sectors = 1\nallow = [{ user = \"0\", queues = 0 }]\n"), "from 1"),
            (part("sectors = 1\nallow = [{ user = \"0\", queues = 1025 }]\n"), "1 to 1024"),
            (part("sectors = 1\nallow = [{ user = \"0\", iops = 0 }]\n"), "more than 0"),
            (part("sectors = 1\nnbd = true\nallow = [{ user = \"0\" }]\n"), "NBD's, and given"),
        ] {
            let error = shares(&text).unwrap_err();
            assert!(error.starts_with("s.toml:") && error.contains(says), "{text}{error}");
        }
        let two = "[[drive]]\nname = \"a\"\npreset = \"pcm\"\n[[drive]]\nname = \"b\"\npreset = \"pcm\"\n";
        let text = format!("{two}{}", part("sectors = 1\n"));
        let error = Scenario::parse(Path::new("s.toml"), &text).unwrap_err().to_string();
        assert!(error.contains("needs `drive`") && error.contains("a, b"), "{error}");
    }
}

//! [`fio_reference`]: the reference page of fio's options, generated from the parser's tables.

use std::fmt::Write as _;

use super::option_tables::{IGNORED, REFUSED, SUPPORTED};

const INTRODUCTION: &str = "\
# fio's words

Job files, and `[[job]]` tables of scenarios, are in fio's words. This page is written from the tables of the parser
(`SLUICE_WRITE_DOCS=1 cargo test -p sluice-workload --test suite words::`); a test compares both, and compares the tables with
fio 3.33. A word that is in none of them is an error, with the word that was probably meant.

**Files.** A `[section]` is a job, `[global]` holds for all jobs after it. `#` and `;` start a comment anywhere in a
line. `include FILE` reads options from another file, which has no sections; its path is relative to the file that
includes it (fio looks in the current folder first). `${NAME}` in a value is the environment variable of that name, or
nothing. `$ncpus`, `$mb_memory` and `$pagesize` are this machine's, and may be part of a sum or product: `2*$ncpus`.

**Numbers.** Sizes count by 1024: `4k`, `1m`, `2g`. Times have a unit: `30s`, `500ms`, `100us`; without one they are
seconds or what the table says. A flag without a value is on.

**Logs** have fio's lines: milliseconds since the job's start (the end of `ramp_time`), value, direction (0 read,
1 write, 2 trim), bytes, 0, and the offset before the last if `log_offset` asks for it. Latencies are nanoseconds.
Without `log_avg_msec` there is one line per request; bandwidth is then in units of 1000 bytes per second, as fio has it,
and IOPS are 1. With it there is one line per window and direction, stamped with the window's end; bandwidth is in KiB/s,
and bytes are 0. As in fio, a last window that is not whole is in the latency logs only. What a run needs of folders must
be there: logs are opened before it starts.

**Keys.** A job with `recordcount` or `ycsb` runs on a key-value target, a job with `pus` on parallel units, every other
job on a block device. Record `i` has the key that YCSB's client gives it, and a value of `bs` bytes. Without `ycsb`, the job follows its `rw`: a read gets a
record, a write puts it, a trim deletes it, and `fsync` syncs. `offset` and `size` are in bytes of all values, whole values
each. With `ycsb=a` to `f`, the job runs `operationcount` operations of that core workload over `recordcount` records, each
clone and each loop as many; with `ycsb=load` its clones insert the records together. Values then have 1000 bytes unless `bs`
is given. A scan counts as one read and a read-modify-write as one write; a rate of IOPS counts both as one, a rate of bytes
counts all records of a scan. Each clone inserts records of its own, and reads those and the first `recordcount`. The JSON
has the operations by kind under `ycsb`. `verify` checks every value that is read: key, CRC-32C, and version.

An error of the store is the failure of its operation. A get, an update or a scan that does not find its key fails with
`errno` 5, as does a value of another size than `bs`; a full store fails puts with `errno` 28. `continue_on_error=read` covers
gets and scans, `write` all others. A delete of a key that does not exist succeeds, as the trim of an unmapped block does.
Options that select blocks (`rw`, `size`, `bssplit` and others) are errors beside `ycsb`.

**Parallel units.** A job with `pus` sends vector commands to these parallel units, by the drive's numbers, over a `ppa`
target or an open-channel drive without a target. `rw` is `write`, `read`, `randread`, `rw` or `randrw`. Writes go round the
units; in each they follow the write pointer of a chunk, then of the next chunk. A chunk with data is reset before it is
written again: resets count as trims. Of a mixed job the reads are sequential or random, and the writes always at write
pointers; it writes while there is nothing to read. Reads are of written sectors whose paired pages are written (`mw_cunits`).
A job that only reads reads them once, or for `io_size` or `runtime`. `bs` is whole write units for writes and whole sectors
for reads, at most a chunk. `size` (of all units of the job) limits the chunks of each unit. Two jobs that write to one unit
need a `stonewall` between them. `verify` checks the data of reads as on blocks; reading back covers what can be read.

A failed write or reset is the failure of its command, and ends the job unless `continue_on_error=write` (or `all`). The job
then goes on in the next chunk: a chunk that failed is neither written nor read any more.
";

/// Returns the reference page of fio's options, in Markdown.
pub fn fio_reference() -> String {
    let mut out = INTRODUCTION.to_owned();
    let names = |name: &str, aliases: &[&str]| {
        let all: Vec<String> =
            std::iter::once(&name).chain(aliases).map(|n| format!("`{n}`")).collect();
        all.join(", ")
    };
    out.push_str("\n## Supported\n\n| word | value | meaning |\n|---|---|---|\n");
    for w in SUPPORTED {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {} | {} | {} |", names(w.name, w.aliases), w.values, w.meaning);
    }
    out.push_str(
        "\n## Without effect\n\nThese are taken, change nothing, and are listed in the results as ignored. So are \
         words of a generated job beside `read_iolog`.\n\n| word | because |\n|---|---|\n",
    );
    for (name, why) in IGNORED {
        let _ = writeln!(out, "| `{name}` | {why} |");
    }
    out.push_str(
        "\n## Refused\n\nThese would change a result. A value that asks for nothing is taken and listed as ignored.\n\n\
         | word | taken values | because |\n|---|---|---|\n",
    );
    for r in REFUSED {
        let off: Vec<String> = r.off.iter().map(|v| format!("`{v}`")).collect();
        let _ = writeln!(out, "| {} | {} | {} |", names(r.name, r.aliases), off.join(", "), r.why);
    }
    out
}

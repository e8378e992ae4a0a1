//! [`DatabaseLoad`]: loads of MariaDB and PostgreSQL. [`DatabaseImage`]: the image of a drive with a
//! database, from which every run starts. The server's files are on the volume; its socket and
//! temporary files are not.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::super::child_process::{
    ChildProcess, command_dying_with_parent, command_killed_with_parent, run_to_end,
};
use super::super::setup;
use super::{DatabaseLoadSize, DriveTimes, LoadEnd, SecondWrite, TransactionCount, drive};
use crate::BenchError;

/// Connections of sysbench.
const SYSBENCH_CONNECTIONS: u32 = 8;
/// Connections of pgbench, whose transactions are short: more of them share a write of the log.
const PGBENCH_CONNECTIONS: u32 = 32;

/// Library that `sluice exec` loads into programs.
const LIBRARY: &str = "libsluice_preload.so";
/// Environment variable with its path.
const ENV_LIBRARY: &str = "SLUICE_PRELOAD";

/// Adds the directories of Debian's PostgreSQL to the path.
const POSTGRESQL_PATH: &str =
    "for bin in /usr/lib/postgresql/*/bin; do PATH=\"$bin:$PATH\"; done; ";

/// Creates MariaDB's own tables in the directory `$0`.
const MARIADB_CREATE: &str = "mariadb-install-db --no-defaults --datadir=\"$0\" \
    --auth-root-authentication-method=normal --skip-test-db --innodb-use-native-aio=0 \"$@\" >&2";

/// Starts MariaDB. The buffer pool is smaller than the tables, the redo log is small, and no page stays
/// changed for long, so that pages are written all the time.
const MARIADB: &str = "exec mariadbd --no-defaults --datadir=\"$0\" --skip-networking --skip-log-bin \
    --innodb-flush-method=O_DIRECT --innodb-use-native-aio=0 --innodb-buffer-pool-size=8M \
    --innodb-log-file-size=8M --innodb-max-dirty-pages-pct=0 --innodb-io-capacity=2000 \
    --innodb-flush-neighbors=0 --innodb-buffer-pool-dump-at-shutdown=OFF \
    --innodb-buffer-pool-load-at-startup=OFF --log-warnings=0 \"$@\"";

/// Creates PostgreSQL's files in the directory `$0`. PostgreSQL recognizes a directory in use by its
/// inode number, which the directories of two volumes may have in common; files before it make the
/// number this process's own.
const POSTGRESQL_CREATE: &str = "mkdir \"$0.before\"; i=0; \
    while [ $i -lt $(($PPID % 1000)) ]; do : >\"$0.before/$i\"; i=$((i+1)); done; \
    initdb --pgdata=\"$0\" --username=root --auth=trust --no-sync --no-locale --encoding=UTF8 >&2";

/// Starts PostgreSQL. The buffers are fewer than the pages of the tables, and checkpoints are frequent.
const POSTGRESQL: &str = "exec postgres -D \"$0\" -c listen_addresses= -c shared_buffers=32MB \
    -c max_wal_size=64MB -c min_wal_size=64MB -c wal_sync_method=fdatasync \
    -c checkpoint_completion_target=0.5 -c autovacuum=off -c max_connections=40 \
    -c log_min_messages=fatal \"$@\"";

/// A database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DatabaseServer {
    MariaDb,
    PostgreSql,
}

/// A load of a database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatabaseLoad {
    /// Four changes of random rows per transaction.
    MariaDbSysbench,
    /// The transactions of [`MariaDbSysbench`](Self::MariaDbSysbench).
    PostgreSqlSysbench,
    /// A change of a random row, and of a row that all transactions of a teller change.
    PostgreSqlPgbench,
}

impl DatabaseLoad {
    /// In the order of measurement.
    pub(super) const ALL: [DatabaseLoad; 3] = [
        DatabaseLoad::MariaDbSysbench,
        DatabaseLoad::PostgreSqlSysbench,
        DatabaseLoad::PostgreSqlPgbench,
    ];

    fn server(self) -> DatabaseServer {
        match self {
            DatabaseLoad::MariaDbSysbench => DatabaseServer::MariaDb,
            DatabaseLoad::PostgreSqlSysbench | DatabaseLoad::PostgreSqlPgbench => {
                DatabaseServer::PostgreSql
            }
        }
    }

    /// Returns the name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            DatabaseLoad::MariaDbSysbench => "mariadb, sysbench oltp_write_only",
            DatabaseLoad::PostgreSqlSysbench => "postgresql, sysbench oltp_write_only",
            DatabaseLoad::PostgreSqlPgbench => "postgresql, pgbench simple-update",
        }
    }

    /// Returns the server's option that controls the second write.
    pub(super) fn option(self) -> &'static str {
        match self.server() {
            DatabaseServer::MariaDb => "innodb_doublewrite",
            DatabaseServer::PostgreSql => "full_page_writes",
        }
    }
}

/// An image with a database. Every run uses a copy of it.
#[derive(Debug)]
pub(super) struct DatabaseImage {
    load: DatabaseLoad,
    /// Directory on the host for everything.
    scratch: PathBuf,
}

impl DatabaseImage {
    /// Makes a database on a drive without timing.
    ///
    /// # Errors
    /// Any failure of a program.
    pub(super) fn make(
        load: DatabaseLoad,
        scratch: &Path,
        size: DatabaseLoadSize,
    ) -> Result<DatabaseImage, BenchError> {
        let image = DatabaseImage { load, scratch: scratch.to_owned() };
        // PostgreSQL runs as another user, who must be able to read the library and to make a socket.
        let allow =
            |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
        std::fs::create_dir(image.path("sockets"))?;
        allow(scratch, 0o755)?;
        allow(&image.path("sockets"), 0o777)?;
        std::fs::copy(library()?, image.path(LIBRARY))?;
        allow(&image.path(LIBRARY), 0o755)?;
        image.set_times(DriveTimes::None)?;
        let scenario = image.path("drive.toml");
        let mut format = Command::new(std::env::current_exe()?);
        run_to_end(format.args(["volume", "format"]).arg(scenario))?;
        run_to_end(&mut image.create()?)?;
        image.start(SecondWrite::Off)?.finish(|running| running.prepare(size))?;
        copy_sparse(&image.path("drive.img"), &image.path("made.img"))?;
        Ok(image)
    }

    /// Starts the server on a copy of the image, on the drive with the times of NAND, runs a load, and
    /// shuts the server down. Returns the bytes written to the drive, and the load's result.
    ///
    /// # Errors
    /// Any failure of a program.
    pub(super) fn run<T>(
        &self,
        second: SecondWrite,
        load: impl FnOnce(&RunningDatabase<'_>) -> Result<T, BenchError>,
    ) -> Result<(u64, T), BenchError> {
        copy_sparse(&self.path("made.img"), &self.path("drive.img"))?;
        self.set_times(DriveTimes::Nand)?;
        self.start(second)?.finish(load)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    fn set_times(&self, times: DriveTimes) -> Result<(), BenchError> {
        let drive = drive(times, &self.path("drive.img"));
        Ok(std::fs::write(self.path("drive.toml"), drive)?)
    }

    /// Returns a command that runs a script with the directory of the data as `$0`.
    fn script(&self, script: &str) -> Result<Command, BenchError> {
        let sluice = std::env::current_exe()?;
        let mut command = match self.load.server() {
            // It does not end when it is asked to while it starts.
            DatabaseServer::MariaDb => command_killed_with_parent(sluice),
            // `sluice exec` itself, to which `finish` sends a signal.
            DatabaseServer::PostgreSql => command_dying_with_parent(sluice),
        };
        command.args(["exec", "--stats"]).arg("--volume").arg(self.path("drive.toml"));
        // InnoDB may take a write for durable that completed during a sync (`docs/double-writes.md`).
        command.args((self.load.server() == DatabaseServer::MariaDb).then_some("--sync"));
        command.arg("--at").arg(self.path("volume")).arg("--").env(ENV_LIBRARY, self.path(LIBRARY));
        let path = match self.load.server() {
            DatabaseServer::MariaDb => "",
            DatabaseServer::PostgreSql => {
                if is_root() {
                    // PostgreSQL refuses to run as root. The package makes this user.
                    let user = ["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"];
                    command.arg("setpriv").args(user);
                }
                POSTGRESQL_PATH
            }
        };
        command
            .args(["sh", "-c", &format!("{path}{script}")])
            .arg(self.path("volume").join("data"));
        Ok(command)
    }

    fn create(&self) -> Result<Command, BenchError> {
        match self.load.server() {
            DatabaseServer::MariaDb => {
                let mut command = self.script(MARIADB_CREATE)?;
                // A server removes the temporary files of all servers in its directory.
                command.arg(format!("--tmpdir={}", self.path("sockets").display()));
                command.args(is_root().then_some("--user=root"));
                Ok(command)
            }
            DatabaseServer::PostgreSql => self.script(POSTGRESQL_CREATE),
        }
    }

    /// Starts the server and waits until it answers.
    fn start(&self, second: SecondWrite) -> Result<RunningDatabase<'_>, BenchError> {
        let sockets = self.path("sockets");
        let assigned = format!("{}={}", self.load.option(), second.value());
        let mut command = match self.load.server() {
            DatabaseServer::MariaDb => {
                let mut command = self.script(MARIADB)?;
                command.arg(format!("--{assigned}"));
                command.arg(format!("--socket={}", sockets.join("socket").display()));
                command.arg(format!("--pid-file={}", sockets.join("pid").display()));
                command.arg(format!("--tmpdir={}", sockets.display()));
                command.args(is_root().then_some("--user=root"));
                command
            }
            DatabaseServer::PostgreSql => {
                let mut command = self.script(POSTGRESQL)?;
                command.args(["-c", &assigned]);
                command.args(["-c", &format!("unix_socket_directories={}", sockets.display())]);
                command
            }
        };
        let mut process = ChildProcess::start(&mut command)?;
        let (socket, ping) = match self.load.server() {
            DatabaseServer::MariaDb => ("socket", "mariadb-admin"),
            DatabaseServer::PostgreSql => (".s.PGSQL.5432", "pg_isready"),
        };
        process.wait_until(|| {
            let mut ping = self.client(ping);
            ping.args((self.load.server() == DatabaseServer::MariaDb).then_some("ping"));
            ping.stdout(Stdio::null()).stderr(Stdio::null());
            sockets.join(socket).exists() && ping.status().is_ok_and(|status| status.success())
        })?;
        Ok(RunningDatabase { image: self, process })
    }

    /// Returns a command on the host that connects to the server.
    fn client(&self, program: &str) -> Command {
        let sockets = self.path("sockets");
        match self.load.server() {
            DatabaseServer::MariaDb => {
                let mut command = command_dying_with_parent(program);
                command.args(["--no-defaults", "--user=root"]);
                command.arg(format!("--socket={}", sockets.join("socket").display()));
                command
            }
            DatabaseServer::PostgreSql => {
                let mut command = command_dying_with_parent("sh");
                command.args(["-c", &format!("{POSTGRESQL_PATH}exec \"$@\""), "sh", program]);
                command.args(["--username=root", "--host"]).arg(sockets);
                command
            }
        }
    }
}

/// A server that runs.
#[derive(Debug)]
pub(super) struct RunningDatabase<'i> {
    image: &'i DatabaseImage,
    process: ChildProcess,
}

impl RunningDatabase<'_> {
    /// Makes the tables of the load.
    fn prepare(&self, size: DatabaseLoadSize) -> Result<(), BenchError> {
        if self.image.load == DatabaseLoad::PostgreSqlPgbench {
            let scale = size.scale.to_string();
            let arguments = ["--initialize", "--quiet", "--scale", &scale, "postgres"];
            run_to_end(self.image.client("pgbench").args(arguments))?;
            return Ok(());
        }
        if self.image.load.server() == DatabaseServer::MariaDb {
            let arguments = ["--execute", "CREATE DATABASE sbtest"];
            run_to_end(self.image.client("mariadb").args(arguments))?;
        }
        run_to_end(self.sysbench(size).arg("prepare"))?;
        Ok(())
    }

    /// Runs the load.
    ///
    /// # Errors
    /// If the program fails or makes no transaction.
    pub(super) fn load(&self, size: DatabaseLoadSize) -> Result<TransactionCount, BenchError> {
        let is_pgbench = self.image.load == DatabaseLoad::PostgreSqlPgbench;
        let mut command = if is_pgbench { self.pgbench(size) } else { self.sysbench(size) };
        if !is_pgbench {
            command.arg("run");
        }
        let out = run_to_end(&mut command)?;
        let text = String::from_utf8_lossy(&out.stdout);
        let count = if is_pgbench { parse_pgbench(&text) } else { parse_sysbench(&text) };
        count.ok_or_else(|| setup(format!("{}: no result: {text}", self.image.load.name())))
    }

    fn pgbench(&self, size: DatabaseLoadSize) -> Command {
        let mut command = self.image.client("pgbench");
        command.args(["--no-vacuum", "--builtin=simple-update", "--jobs=2"]);
        command.arg(format!("--client={PGBENCH_CONNECTIONS}"));
        command.arg(match size.end {
            LoadEnd::Seconds(seconds) => format!("--time={seconds}"),
            LoadEnd::Transactions(count) => {
                format!("--transactions={}", count.div_ceil(PGBENCH_CONNECTIONS))
            }
        });
        command.arg("postgres");
        command
    }

    fn sysbench(&self, size: DatabaseLoadSize) -> Command {
        let mut command = command_dying_with_parent("sysbench");
        let sockets = self.image.path("sockets");
        match self.image.load.server() {
            DatabaseServer::MariaDb => {
                command.args(["--db-driver=mysql", "--mysql-user=root"]);
                command.arg(format!("--mysql-socket={}", sockets.join("socket").display()));
            }
            DatabaseServer::PostgreSql => {
                command.args(["--db-driver=pgsql", "--pgsql-user=root", "--pgsql-db=postgres"]);
                command.arg(format!("--pgsql-host={}", sockets.display()));
            }
        }
        // 0 is no limit.
        let (seconds, transactions) = match size.end {
            LoadEnd::Seconds(seconds) => (seconds, 0),
            LoadEnd::Transactions(count) => (0, count),
        };
        command.args([
            format!("--threads={SYSBENCH_CONNECTIONS}"),
            format!("--table-size={}", size.rows),
            format!("--time={seconds}"),
            format!("--events={transactions}"),
        ]);
        command.args(["--tables=2", "--rand-type=uniform", "oltp_write_only"]);
        command
    }

    /// Uses the server and shuts it down, so that it writes all changed pages. Returns the bytes
    /// written to the drive since its start, and the result of the use.
    fn finish<T>(
        mut self,
        load: impl FnOnce(&Self) -> Result<T, BenchError>,
    ) -> Result<(u64, T), BenchError> {
        let result = load(&self)?;
        match self.image.load.server() {
            DatabaseServer::MariaDb => {
                run_to_end(self.image.client("mariadb-admin").arg("shutdown"))?;
            }
            DatabaseServer::PostgreSql => {
                let process = i32::try_from(self.process.process()).ok().and_then(Pid::from_raw);
                let process = process.ok_or_else(|| setup("the server has no process"))?;
                // `sluice exec` forwards the signal. The server ends when no client is connected.
                kill_process(process, Signal::TERM).map_err(setup)?;
            }
        }
        let status = self.process.wait()?;
        let said = self.process.stderr_text()?;
        if !status.success() {
            return Err(setup(format!("{}: {status}: {said}", self.image.load.name())));
        }
        let bytes = parse_device_bytes(&said);
        Ok((bytes.ok_or_else(|| setup(format!("no statistics of the volume: {said}")))?, result))
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the path of the library that `sluice exec` would load.
fn library() -> Result<PathBuf, BenchError> {
    if let Some(path) = std::env::var_os(ENV_LIBRARY) {
        return Ok(path.into());
    }
    let own = std::env::current_exe()?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = [beside.to_owned(), beside.join("deps"), beside.join("../lib")];
    let found = places.iter().map(|dir| dir.join(LIBRARY)).find(|path| path.is_file());
    found.ok_or_else(|| setup(format!("{LIBRARY} is not beside {}", own.display())))
}

/// Copies an image, whose holes stay.
fn copy_sparse(from: &Path, to: &Path) -> Result<(), BenchError> {
    let mut copy = Command::new("cp");
    run_to_end(copy.args(["--sparse=always", "--"]).arg(from).arg(to))?;
    Ok(())
}

/// Returns the bytes written to the device in the statistics of `sluice exec`.
fn parse_device_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("volume: "))?;
    line.strip_suffix(" bytes written to the device")?.rsplit(' ').next()?.parse().ok()
}

/// Parses sysbench's results.
fn parse_sysbench(text: &str) -> Option<TransactionCount> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("transactions:"))?;
    let (transactions, rate) = line.split_once('(')?;
    let rate = rate.split_once(' ')?.0.parse().ok()?;
    Some(TransactionCount { transactions: transactions.trim().parse().ok()?, rate })
}

/// Parses pgbench's results.
fn parse_pgbench(text: &str) -> Option<TransactionCount> {
    let value = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split([' ', '/']).next()?.parse().ok()
    };
    Some(TransactionCount {
        transactions: value("number of transactions actually processed: ")?,
        rate: value("tps = ")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of sysbench, shortened.
    const SYSBENCH: &str =
        "    transactions:                        2128   (407.85 per sec.)\n    queries: 1\n";
    /// Output of pgbench, shortened.
    const PGBENCH: &str = "number of transactions actually processed: 4211
number of failed transactions: 0 (0.000%)
latency average = 9.5 ms
tps = 421.123456 (without initial connection time)
";

    #[test]
    fn transactions_and_rates_are_parsed() {
        let sysbench = TransactionCount { transactions: 2128.0, rate: 407.85 };
        assert_eq!(parse_sysbench(SYSBENCH), Some(sysbench));
        let pgbench = TransactionCount { transactions: 4211.0, rate: 421.123456 };
        assert_eq!(parse_pgbench(PGBENCH), Some(pgbench));
        for (from, to) in [("transactions:", "done:"), ("407.85", "x"), ("2128", "x")] {
            assert_eq!(parse_sysbench(&SYSBENCH.replacen(from, to, 1)), None, "{from}");
        }
        for (from, to) in [("actually", "not"), ("tps", "rate"), ("4211", "x"), ("421.", "x")] {
            assert_eq!(parse_pgbench(&PGBENCH.replacen(from, to, 1)), None, "{from}");
        }
    }

    #[test]
    fn bytes_of_the_device_are_parsed() {
        let text = "a server says something\nsluice exec: 1 calls\n\
                    volume: 2 syncs; 7 bytes in place, 1 snapshots; 123 bytes written to the device\n";
        assert_eq!(parse_device_bytes(text), Some(123));
        for (from, to) in [("volume", "v"), ("123", "x"), ("written to", "of")] {
            assert_eq!(parse_device_bytes(&text.replacen(from, to, 1)), None, "{from}");
        }
    }
}

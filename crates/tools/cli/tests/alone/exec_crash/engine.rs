//! [`Engine`]: MariaDB and PostgreSQL, without their protection against torn pages. The server's
//! files are on the volume; its socket and temporary files are not.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use super::harness::CrashHarness;
use super::library::SLUICE;

/// A database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// InnoDB with `innodb_doublewrite=OFF` and pages of 16 KiB.
    MariaDb,
    /// With `full_page_writes=off`, data checksums and pages of 8 KiB.
    PostgreSql,
}

/// Creates MariaDB's own tables in the directory `$0`.
const MARIADB_CREATE: &str = "mariadb-install-db --no-defaults --datadir=\"$0\" \
    --auth-root-authentication-method=normal --skip-test-db --innodb-use-native-aio=0 \"$@\" >&2";

/// Starts MariaDB. The buffer pool and the redo log are as small as can be, and no page stays dirty
/// for long, so that pages are written all the time.
const MARIADB: &str = "exec mariadbd --no-defaults --datadir=\"$0\" --skip-networking --skip-log-bin \
    --innodb-doublewrite=OFF --innodb-flush-method=O_DIRECT --innodb-use-native-aio=0 \
    --innodb-buffer-pool-size=6M --innodb-log-file-size=4M --innodb-fast-shutdown=0 \
    --innodb-max-dirty-pages-pct=0 --innodb-io-capacity=2000 --innodb-flush-neighbors=0 \
    --innodb-temp-data-file-path=ibtmp1:5M:autoextend \
    --innodb-buffer-pool-dump-at-shutdown=OFF --innodb-buffer-pool-load-at-startup=OFF \"$@\"";

const POSTGRESQL_CREATE: &str = "initdb --pgdata=\"$0\" --data-checksums --username=root --auth=trust \
    --no-sync --no-locale --encoding=UTF8 >&2";

/// Starts PostgreSQL. Its buffers are fewer than the pages of the tables, and checkpoints are
/// frequent.
const POSTGRESQL: &str = "exec postgres -D \"$0\" -c listen_addresses= -c full_page_writes=off \
    -c shared_buffers=1MB -c max_wal_size=32MB -c min_wal_size=32MB -c wal_sync_method=fdatasync \
    -c checkpoint_completion_target=0.1 -c autovacuum_naptime=1s -c max_connections=20 \
    -c log_min_messages=fatal \"$@\"";

impl Engine {
    /// Programs that the tests need.
    pub(super) fn programs(self) -> &'static [&'static str] {
        match self {
            Engine::MariaDb => {
                &["mariadbd", "mariadb-install-db", "mariadb", "mariadb-check", "stdbuf"]
            }
            // The package has links to the others of its version.
            Engine::PostgreSql => &["psql", "pg_ctlcluster", "setpriv", "stdbuf"],
        }
    }

    /// Returns the size of a page in bytes.
    pub(super) fn page_bytes(self) -> u32 {
        match self {
            Engine::MariaDb => 16 << 10,
            Engine::PostgreSql => 8 << 10,
        }
    }

    /// Returns the rows of a table of the numbers 1 to `count` in the column `seq`.
    pub(super) fn numbers(self, count: u32) -> String {
        match self {
            Engine::MariaDb => format!("seq_1_to_{count}"),
            Engine::PostgreSql => format!("generate_series(1, {count}) AS numbers(seq)"),
        }
    }

    /// Returns whether writes must be durable before they return. When InnoDB has synced a file, it
    /// takes all completed writes of that file for durable, also those that completed during the
    /// sync (`fil_space_t::flush_low()` of MariaDB 10.11). A checkpoint may then come too early, with
    /// doublewrite as without.
    pub(super) fn needs_sync_writes(self) -> bool {
        self == Engine::MariaDb
    }

    /// Returns a statement that writes all changed pages, if the server has one.
    pub(super) fn checkpoint(self) -> Option<&'static str> {
        (self == Engine::PostgreSql).then_some("CHECKPOINT;\n")
    }

    /// Returns statements that precede all others: the database of the tables.
    pub(super) fn begin(self) -> &'static str {
        match self {
            Engine::MariaDb => "CREATE DATABASE pages CHARACTER SET utf8mb3;\n",
            Engine::PostgreSql => "CREATE DATABASE pages;\n",
        }
    }
}

/// A server on the volume of a harness.
pub(super) struct Server<'h> {
    pub(super) engine: Engine,
    pub(super) harness: &'h CrashHarness,
    /// Directory of the server's socket.
    sockets: String,
}

impl<'h> Server<'h> {
    /// Prepares the directories of the host that the server uses.
    pub(super) fn new(engine: Engine, harness: &'h CrashHarness) -> Server<'h> {
        let sockets = harness.path("sockets");
        std::fs::create_dir_all(&sockets).unwrap();
        // Other users must find the library and the socket.
        let allow = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let library = harness.path("libsluice_preload.so");
        let built = Path::new(SLUICE).with_file_name("libsluice_preload.so");
        std::fs::copy(built, &library).unwrap();
        allow(Path::new(&sockets).parent().unwrap(), 0o755);
        allow(Path::new(&sockets), 0o777);
        allow(Path::new(&library), 0o755);
        Server { engine, harness, sockets }
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    /// Returns a command for the volume: a script with the directory of the data as `$0`.
    fn script(&self, script: &str, arguments: &[String]) -> Vec<String> {
        let mut words = Vec::new();
        if self.engine == Engine::PostgreSql && Server::is_root() {
            // PostgreSQL refuses to run as root. The package makes this user.
            let user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"];
            words.extend(user.map(str::to_owned));
        }
        words.extend(["sh".to_owned(), "-c".to_owned(), self.on_path(script)]);
        words.push(self.harness.at() + "/data");
        words.extend_from_slice(arguments);
        words
    }

    /// Adds the directories of Debian's PostgreSQL to the path of a script.
    fn on_path(&self, script: &str) -> String {
        format!("for bin in /usr/lib/postgresql/*/bin; do PATH=\"$bin:$PATH\"; done; {script}")
    }

    /// Returns the command that creates an empty database.
    pub(super) fn create(&self) -> Vec<String> {
        match self.engine {
            Engine::MariaDb => {
                // A server removes the temporary files of all servers in its directory.
                let mut arguments = vec![format!("--tmpdir={}", self.sockets)];
                arguments.extend(Server::is_root().then(|| "--user=root".to_owned()));
                self.script(MARIADB_CREATE, &arguments)
            }
            Engine::PostgreSql => self.script(POSTGRESQL_CREATE, &[]),
        }
    }

    /// Returns the command that becomes the server.
    pub(super) fn serve(&self) -> Vec<String> {
        match self.engine {
            Engine::MariaDb => {
                let mut arguments = vec![
                    format!("--socket={}", self.socket()),
                    format!("--pid-file={}/pid", self.sockets),
                    format!("--tmpdir={}", self.sockets),
                ];
                arguments.extend(Server::is_root().then(|| "--user=root".to_owned()));
                self.script(MARIADB, &arguments)
            }
            Engine::PostgreSql => {
                let sockets = format!("unix_socket_directories={}", self.sockets);
                self.script(POSTGRESQL, &["-c".to_owned(), sockets])
            }
        }
    }

    fn socket(&self) -> String {
        format!("{}/socket", self.sockets)
    }

    /// Returns a command on the host, of the server's package, that connects to the server.
    fn connected(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &self.on_path("exec \"$@\""), "sh", "timeout", "60", "stdbuf", "-oL"]);
        command.arg(program);
        match self.engine {
            Engine::MariaDb => {
                command.args(["--no-defaults", "--user=root", "--socket", &self.socket()])
            }
            Engine::PostgreSql => command.args(["--username=root", "--host", &self.sockets]),
        };
        command.args(arguments);
        command
    }

    /// Returns a shell that executes statements from its standard input as they come, and prints
    /// rows with tabs between columns. It ends at the first error.
    pub(super) fn shell(&self, database: &str) -> Command {
        match self.engine {
            Engine::MariaDb => {
                let options =
                    ["--batch", "--unbuffered", "--skip-column-names", "--skip-reconnect"];
                let mut shell = self.connected("mariadb", &options);
                shell.arg(if database.is_empty() { "mysql" } else { database });
                shell
            }
            Engine::PostgreSql => {
                let options =
                    ["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "--dbname"];
                let mut shell = self.connected("psql", &options);
                shell.arg(if database.is_empty() { "template1" } else { database });
                shell
            }
        }
    }

    /// Returns a new file for errors of shells.
    pub(super) fn errors(&self) -> File {
        File::create(self.harness.path("errors")).unwrap()
    }

    /// Returns what the shell that was started last has written to its standard error.
    pub(super) fn error_text(&self) -> String {
        std::fs::read_to_string(self.harness.path("errors")).unwrap()
    }

    /// Returns whether the server answers.
    pub(super) fn is_ready(&self) -> bool {
        let done = |out: Output| out.status.success();
        match self.engine {
            Engine::MariaDb => {
                Path::new(&self.socket()).exists()
                    && done(self.connected("mariadb-admin", &["ping"]).output().unwrap())
            }
            Engine::PostgreSql => {
                Path::new(&format!("{}/.s.PGSQL.5432", self.sockets)).exists()
                    && done(self.connected("pg_isready", &[]).output().unwrap())
            }
        }
    }

    /// Runs the database's own check of all tables and indexes.
    pub(super) fn check(&self) -> Output {
        match self.engine {
            Engine::MariaDb => self.connected("mariadb-check", &["--all-databases", "--check"]),
            Engine::PostgreSql => {
                let options = ["--install-missing", "--heapallindexed", "--parent-check", "pages"];
                self.connected("pg_amcheck", &options)
            }
        }
        .output()
        .unwrap()
    }

    /// Returns a command on the volume that checks all pages of a server that has ended.
    pub(super) fn check_pages(&self) -> Option<Vec<String>> {
        match self.engine {
            Engine::MariaDb => None,
            Engine::PostgreSql => Some(self.script("pg_checksums --check -D \"$0\" >&2", &[])),
        }
    }
}

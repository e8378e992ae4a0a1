//! The programs of table 2, as scripts of `sh`: what they need, how a folder is prepared, and how they
//! run. Programs of the paper that Debian does not have are replaced; `stands_for` says by what.
//!
//! QEMU 7.2 does not run all of two servers, also without a plugin. Processes that PostgreSQL's server
//! forks crash: it runs in its single-user mode. InnoDB does not start: MariaDB uses its engine Aria.

/// A program of the paper's table: instructions until a write, and until a read, must be waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaperRow {
    /// Name in the table.
    pub(super) name: &'static str,
    /// Mean for writes.
    pub(super) writes: f64,
    /// Mean for reads.
    pub(super) reads: f64,
}

/// A program that is profiled. Scripts run in an empty folder.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableProgram {
    /// Name in results.
    pub(super) name: &'static str,
    /// Name of the executable, as the profile has it.
    pub(super) image: &'static str,
    /// Executables that the scripts need, and the Debian packages that have them.
    pub(super) needs: &'static [(&'static str, &'static str)],
    /// Makes the inputs. `$SIZE` is the size of the run: 1 for a quick one, 10 for a full one.
    pub(super) prepare: &'static str,
    /// Runs the program. For a server, until its client ends it.
    pub(super) command: &'static str,
    /// The client of a server: waits for the server, uses it and ends it. It runs natively.
    pub(super) client: Option<&'static str>,
    /// The row of the paper's table.
    pub(super) stands_for: PaperRow,
}

/// Text of the system's files.
const TEXT: &str = "find /usr/include /usr/share/doc /usr/share/perl* /usr/lib/python3* -type f \
    -size -200k 2>/dev/null | head -4000 | xargs cat 2>/dev/null | head -c $((SIZE * 400000)) > in";

/// Uses the server's user if this is root: PostgreSQL does not run as root.
const AS_POSTGRES: &str = "as=; [ $(id -u) = 0 ] && as='setpriv --reuid=postgres --regid=postgres \
    --clear-groups --'; bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1); ";

/// Programs in the order of the paper's table.
pub(super) const PROGRAMS: [TableProgram; 10] = [
    TableProgram {
        name: "ld",
        image: "ld",
        needs: &[("gcc", "gcc"), ("ld", "binutils")],
        // A part of a kernel is linked like this: all objects of archives, to one object.
        prepare: "gcc -print-file-name=libc.a > libc",
        command: "exec ld -r -o out.o --whole-archive $(cat libc)",
        client: None,
        stands_for: PaperRow { name: "make (ld)", writes: 115.0, reads: 8_790.0 },
    },
    TableProgram {
        name: "dd",
        image: "dd",
        needs: &[],
        prepare: "head -c $((SIZE * 2000000)) /dev/zero > in",
        command: "exec dd if=in of=out bs=4k status=none",
        client: None,
        stands_for: PaperRow { name: "dd", writes: 161.0, reads: 69.0 },
    },
    TableProgram {
        name: "tar",
        image: "tar",
        needs: &[("tar", "tar")],
        prepare: "mkdir src; for i in $(seq $((SIZE * 100))); do head -c $((i * 37 % 30000)) \
                  /dev/urandom > src/$i; done; tar cf in.tar src; rm -r src",
        command: "exec tar xf in.tar",
        client: None,
        stands_for: PaperRow { name: "tar", writes: 248.0, reads: 144.0 },
    },
    TableProgram {
        name: "git clone",
        image: "git",
        needs: &[("git", "git")],
        prepare: "mkdir src; cd src; git init -q .; for i in $(seq $((SIZE * 40))); do seq $i \
                  $((i + 300)) > $i; done; git add .; git -c user.name=a -c user.email=a@b commit -qm a",
        command: "exec git clone -q --no-local src out",
        client: None,
        stands_for: PaperRow { name: "git clone", writes: 1_940.0, reads: 14.0 },
    },
    TableProgram {
        name: "Redis",
        image: "redis-server",
        needs: &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")],
        prepare: ":",
        command: "exec setpriv --pdeathsig TERM -- redis-server --port 0 --unixsocket s \
                  --appendonly yes --appendfsync always --save '' --pidfile pid --daemonize no",
        client: Some(
            "for i in $(seq 600); do redis-cli -s s ping 2>/dev/null | grep -q PONG && break; \
             sleep 0.1; done; redis-benchmark -s s -t set -c 10 -n $((SIZE * 300)) -q; \
             redis-cli -s s shutdown nosave",
        ),
        stands_for: PaperRow { name: "MongoDB", writes: 10_112.0, reads: 62.0 },
    },
    TableProgram {
        name: "SQLite",
        image: "sqlite3",
        needs: &[("sqlite3", "sqlite3")],
        prepare: "{ echo 'create table t(id integer primary key, x text);'; for i in $(seq $((SIZE \
                  * 50))); do echo \"insert into t(x) values('value $i');\"; done; } > in.sql",
        command: "exec sqlite3 -batch db '.read in.sql'",
        client: None,
        stands_for: PaperRow { name: "MongoDB", writes: 10_112.0, reads: 62.0 },
    },
    TableProgram {
        name: "PostgreSQL",
        image: "postgres",
        needs: &[("postgres", "postgresql"), ("initdb", "postgresql")],
        prepare: "mkdir db; [ $(id -u) = 0 ] && chown postgres db; chmod 700 db; $as $bin/initdb -A \
                  trust -U postgres db >/dev/null; { echo 'create table t(id serial primary key, x \
                  text);'; for i in $(seq $((SIZE * 50))); do echo \"insert into t(x) values('value \
                  $i');\"; echo \"update t set x = 'new' where id = $((i / 2 + 1));\"; done; } > in.sql",
        command: "exec $as $bin/postgres --single -D db postgres < in.sql",
        client: None,
        stands_for: PaperRow { name: "TPCC-Uva", writes: 11_390.0, reads: 37.0 },
    },
    TableProgram {
        name: "MariaDB",
        image: "mariadbd",
        needs: &[("mariadbd", "mariadb-server"), ("sysbench", "sysbench")],
        prepare: "mariadb-install-db --no-defaults --datadir=\"$PWD/db\" --skip-test-db \
                  --auth-root-authentication-method=normal >/dev/null",
        command: "exec setpriv --pdeathsig TERM -- /usr/sbin/mariadbd --no-defaults --user=root \
                  --datadir=\"$PWD/db\" --socket=\"$PWD/s\" --pid-file=\"$PWD/pid\" \
                  --skip-networking --skip-innodb --default-storage-engine=Aria",
        client: Some(
            "c=\"--no-defaults --user=root --socket=$PWD/s\"; for i in $(seq 300); do mariadb-admin \
             $c ping >/dev/null 2>&1 && break; sleep 0.1; done; mariadb $c -e 'CREATE DATABASE \
             sbtest'; o=\"--db-driver=mysql --mysql-user=root --mysql-socket=$PWD/s --tables=1 \
             --mysql-storage-engine=Aria --table-size=$((SIZE * 100)) --threads=2 --time=0 \
             --events=$((SIZE * 10)) oltp_read_write\"; sysbench $o prepare && sysbench $o run; \
             mariadb-admin $c shutdown || kill $(cat pid)",
        ),
        stands_for: PaperRow { name: "OLTP", writes: 22_641.0, reads: 31.0 },
    },
    TableProgram {
        name: "cc1",
        image: "cc1",
        needs: &[("gcc", "gcc")],
        prepare: "{ echo '#include <stdio.h>'; for i in $(seq $((SIZE * 10))); do echo \"int \
                  f$i(int x){int s=0;for(int i=0;i<x;i++){s+=i*$i;if(s>99)s^=x;printf(\\\"%d\\\",s);}\
                  return s;}\"; done; } > in.c",
        command: "gcc -g -O2 -c -o out.o in.c",
        client: None,
        stands_for: PaperRow { name: "make (cc1)", writes: 1_649_322.0, reads: 165.0 },
    },
    TableProgram {
        name: "bzip2",
        image: "bzip2",
        needs: &[("bzip2", "bzip2")],
        prepare: TEXT,
        command: "exec bzip2 -kf in",
        client: None,
        stands_for: PaperRow { name: "bzip2", writes: 43_492_452.0, reads: 1_472.0 },
    },
];

/// Returns a script with the variables that the scripts use.
pub(super) fn script(body: &str, size: u32) -> String {
    format!("SIZE={size}; export SIZE; {AS_POSTGRES}{body}")
}

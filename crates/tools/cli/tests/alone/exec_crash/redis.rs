//! Redis with an append-only file that is synced with every write. Every acknowledged command is
//! recovered, and the state is exactly that after some command.
//!
//! Commands are numbered, and a function of seed and number. Each writes its number, so that the
//! recovered state names the last one. Everything else must equal a model that has executed the
//! same commands.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Instant;

use rng::Rng;

use super::harness::{CrashHarness, Cut, Repeat, Running, TEST_TIMEOUT, moment, seed};

const KEYS: u64 = 60;

/// A reply of Redis.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Text(String),
    Error(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
    List(Vec<Reply>),
}

struct Client {
    stream: UnixStream,
    input: BufReader<UnixStream>,
}

impl Client {
    /// Connects, and waits until Redis has loaded its data.
    fn connect(socket: &str, running: &mut Running<'_>) -> Client {
        let begun = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                let input = BufReader::new(stream.try_clone().unwrap());
                stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
                let mut client = Client { stream, input };
                client.send(&[&[b"PING"]]);
                if client.receive() == Some(Reply::Text("PONG".into())) {
                    return client;
                }
            }
            let over = running.has_ended() || begun.elapsed() > TEST_TIMEOUT;
            assert!(!over, "Redis does not start: {}", running.stderr_text());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    /// Sends commands. Returns whether the connection took them.
    fn send(&mut self, commands: &[&[&[u8]]]) -> bool {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend(format!("*{}\r\n", command.len()).bytes());
            for word in *command {
                bytes.extend(format!("${}\r\n", word.len()).bytes());
                bytes.extend(*word);
                bytes.extend(b"\r\n");
            }
        }
        self.stream.write_all(&bytes).is_ok()
    }

    /// Returns the next reply; `None` if the connection has ended.
    fn receive(&mut self) -> Option<Reply> {
        let mut line = String::new();
        if self.input.read_line(&mut line).ok()? == 0 || !line.ends_with("\r\n") {
            return None;
        }
        let (kind, rest) = line.trim_end().split_at(1);
        Some(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(rest.parse().unwrap()),
            "$" if rest == "-1" => Reply::Bulk(None),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.input.read_exact(&mut bytes).ok()?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(Some(bytes))
            }
            "*" => {
                let count = rest.parse::<usize>().unwrap();
                Reply::List((0..count).map(|_| self.receive()).collect::<Option<_>>()?)
            }
            _ => panic!("unknown reply {line}"),
        })
    }
}

type Model = BTreeMap<u64, Vec<u8>>;

/// Executes command `number` on the model, and returns it as sent to Redis.
fn command(seed: u64, number: u64, model: &mut Model) -> Vec<Vec<Vec<u8>>> {
    let mut rng = Rng::new(seed).fork(number);
    let last = number.to_string().into_bytes();
    let word = |text: &str| text.as_bytes().to_vec();
    let key = |key: u64| format!("key:{key}").into_bytes();
    if rng.chance(0.15) {
        // A transaction: the file contains all of it, or none.
        let gone = rng.below(KEYS);
        model.remove(&gone);
        return vec![
            vec![word("MULTI")],
            vec![word("DEL"), key(gone)],
            vec![word("SET"), word("last"), last],
            vec![word("EXEC")],
        ];
    }
    let mut command = vec![word("MSET")];
    for _ in 0..1 + rng.below(4) {
        let (to, len) = (rng.below(KEYS), 1 + rng.below(1500) as usize);
        let value: Vec<u8> = format!("{number}.{to}:").into_bytes();
        let value: Vec<u8> = value.iter().copied().cycle().take(len).collect();
        model.insert(to, value.clone());
        command.extend([key(to), value]);
    }
    command.extend([word("last"), last]);
    vec![command]
}

/// Compares the recovered state with the model. Returns the last command's number.
fn verify(client: &mut Client, seed: u64, (model, at): (&mut Model, &mut u64), sent: u64) {
    client.send(&[&[b"GET", b"last"]]);
    let last = match client.receive() {
        Some(Reply::Bulk(Some(number))) => String::from_utf8(number).unwrap().parse().unwrap(),
        Some(Reply::Bulk(None)) => 0,
        other => panic!("{other:?}"),
    };
    let acknowledged = *at;
    assert!(last >= acknowledged, "{acknowledged} commands were acknowledged, {last} recovered");
    assert!(last <= sent, "{sent} commands were sent, {last} recovered");
    for number in acknowledged + 1..=last {
        command(seed, number, model);
    }
    *at = last;
    for key in 0..KEYS {
        client.send(&[&[b"GET", format!("key:{key}").as_bytes()]]);
        let value = Reply::Bulk(model.get(&key).cloned());
        assert!(
            client.receive() == Some(value),
            "key {key} differs from the model after {last} commands"
        );
    }
    client.send(&[&[b"DBSIZE"]]);
    let keys = model.len() as i64 + i64::from(last > 0);
    assert_eq!(client.receive(), Some(Reply::Number(keys)));
}

/// Runs Redis, cuts, and recovers, `count` times.
fn cuts(cut: Cut, count: u64, default_seed: u64) {
    cuts_with(|| CrashHarness::new(cut), count, default_seed);
}

/// Runs the program with this harness, cuts, and recovers, `count` times.
pub(crate) fn cuts_with(harness: impl FnOnce() -> CrashHarness, count: u64, default_seed: u64) {
    if !testkit::has_programs!(&["redis-server", "redis-check-aof"]) {
        return;
    }
    let seed = seed(default_seed);
    let _repeat = Repeat(seed);
    let mut rng = Rng::new(seed);
    let mut harness = harness();
    let (at, socket, log) = (harness.at(), harness.path("redis.sock"), harness.path("redis.log"));
    let (mut model, mut acknowledged, mut sent) = (Model::new(), 0, 0);
    for round in 0..=count {
        let preamble = if rng.chance(0.5) { "yes" } else { "no" };
        let script = format!(
            "m={at}/appendonlydir/appendonly.aof.manifest; if [ -e $m ]; then \
             yes | redis-check-aof --fix $m || exit 9; fi; \
             exec redis-server --port 0 --unixsocket {socket} --dir {at} --appendonly yes \
             --appendfsync always --save '' --logfile {log} --aof-use-rdb-preamble {preamble}"
        );
        harness.run_with_cut(&["sh", "-c", &script], "", &mut rng);
        // The socket of the previous service; clients could not connect to it.
        let _ = std::fs::remove_file(&socket);
        let mut running = harness.start(&["sh", "-c", &script], Stdio::null());
        let mut client = Client::connect(&socket, &mut running);
        verify(&mut client, seed, (&mut model, &mut acknowledged), sent);
        if round == count {
            client.send(&[&[b"SHUTDOWN", b"NOSAVE"]]);
            running.wait_all();
            break;
        }
        sent = acknowledged;
        let (until, window) = (acknowledged + 5 + rng.below(80), 1 + rng.below(8) as usize);
        let rewrite_at = rng.chance(0.6).then(|| acknowledged + rng.below(40));
        // In-flight requests: the number of replies of each, and whether they belong to a command.
        let mut under_way = VecDeque::new();
        let mut is_cut = false;
        loop {
            while under_way.len() < window && (!is_cut || under_way.is_empty()) {
                if rewrite_at == Some(sent) && under_way.iter().all(|(_, numbered)| *numbered) {
                    client.send(&[&[b"BGREWRITEAOF"]]);
                    under_way.push_back((1, false));
                }
                let parts = command(seed, sent + 1, &mut model.clone());
                let words: Vec<Vec<&[u8]>> =
                    parts.iter().map(|part| part.iter().map(|w| &w[..]).collect()).collect();
                let words: Vec<&[&[u8]]> = words.iter().map(|part| &part[..]).collect();
                sent += 1;
                client.send(&words);
                under_way.push_back((parts.len(), true));
            }
            let Some((answers, numbered)) = under_way.pop_front() else { break };
            let answers: Option<Vec<Reply>> = (0..answers).map(|_| client.receive()).collect();
            let Some(answers) = answers else { break };
            if numbered && !answers.iter().any(|answer| matches!(answer, Reply::Error(_))) {
                acknowledged += 1;
                command(seed, acknowledged, &mut model);
            } else if numbered {
                // Redis refuses writes only after it has lost its files, and then refuses all later
                // ones.
                assert!(is_cut, "{answers:?}");
            }
            if acknowledged >= until && !is_cut {
                moment(&mut rng);
                running.cut();
                is_cut = true;
            }
        }
        assert!(is_cut, "Redis ended before the cut: {}", running.stderr_text());
        running.wait_all();
        harness.restart();
    }
}

#[test]
fn survives_kills_of_the_program() {
    cuts(Cut::Program, 10, 1);
}

#[test]
fn survives_kills_of_the_service() {
    cuts(Cut::Service, 10, 2);
}

#[test]
fn survives_kills_of_the_drive_s_server() {
    cuts(Cut::Server, 10, 3);
}

#[test]
fn survives_cuts_of_power() {
    cuts(Cut::Power, 10, 4);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn survives_many_kills_of_the_program() {
    cuts(Cut::Program, 200, 5);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn survives_many_kills_of_the_service() {
    cuts(Cut::Service, 200, 6);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn survives_many_kills_of_the_drive_s_server() {
    cuts(Cut::Server, 200, 7);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn survives_many_cuts_of_power() {
    cuts(Cut::Power, 200, 8);
}

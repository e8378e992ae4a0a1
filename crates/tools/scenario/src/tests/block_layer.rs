//! Tests of the block layer's keys: layouts, schedulers, groups.

use super::*;

fn path(block: &str, lines: &str) -> String {
    format!("{SMALL}[path]\nqueue_model = \"{block}\"\n{lines}")
}

#[test]
fn a_block_layer_spelled_out() {
    let text = path(
        "mq",
        "cores = 8\nsockets = 2\nqueues = 4\nstaging = \"socket\"\nmerge = false\n\
         queue_depth = 64\ntimeout = \"2s\"\nabort_timeout = \"500ms\"\nretries = 0\n\
         [path.scheduler]\nkind = \"deadline\"\nread_expire = \"3ms\"\nfifo_batch = 4\n",
    );
    let layer = parse(&text).unwrap().path.block_layer.unwrap();
    assert_eq!((layer.name(), layer.cores(), layer.hardware_queues(128)), ("mq", 8, 4));
    assert_eq!(layer.layout, QueueModel::MultiQueue { staging: StagingScope::Socket });
    assert_eq!(layer.topology, QueueTopology { sockets: 2, cores: 4 });
    assert_eq!((layer.merge, layer.queue_depth), (false, 64));
    let (command, abort) = (Nanos::from_secs(2), Nanos::from_millis(500));
    assert_eq!(layer.timeouts, Timeouts { command, abort, retries: 0 });
    let SchedulerConfig::Deadline(deadline) = layer.scheduler else { panic!() };
    assert_eq!((deadline.read_expire, deadline.fifo_batch), (Nanos::from_millis(3), 4));

    let text = path(
        "sq",
        "cores = 2\nscheduler = { kind = \"fair\", weights = [300, 100], request_cost = 9 }\n\
         [[path.limit]]\ngroup = 3\nread_iops = 1000\nburst = \"10ms\"\n\
         [[path.limit]]\ngroup = 0\nwrite_bw = \"1MB/s\"\n[[job]]\nrw = \"read\"\ngroup = 3\n",
    );
    let s = parse(&text).unwrap();
    let layer = s.path.block_layer.unwrap();
    assert_eq!((layer.name(), layer.hardware_queues(128)), ("sq", 1));
    let SchedulerConfig::Fair(fair) = &layer.scheduler else { panic!() };
    assert_eq!(fair.weights, [(0, 300), (1, 100)]);
    assert_eq!(fair.request_cost_sectors, 9);
    let reads = layer.limits[0].1.read;
    assert_eq!(reads.operations, Some(RateLimit { per_sec: 1000, burst: 10 }));
    assert_eq!((layer.limits[0].0, reads.bytes), (Group(3), None));
    let writes = layer.limits[1].1.write;
    assert_eq!(writes.bytes, Some(RateLimit { per_sec: 1_000_000, burst: 100_000 }));
    assert_eq!(s.jobs[0].group, Group(3));
    assert!(s.jobs[0].pairs.iter().all(|(key, _, _)| key != "group"));

    let layer = parse(&path("mq", "cores = 4\nscheduler = \"kyber\"\nstaging = \"device\"\n"));
    let layer = layer.unwrap().path.block_layer.unwrap();
    assert_eq!(layer.scheduler, SchedulerConfig::Kyber(KyberConfig::default()));
    assert_eq!((layer.hardware_queues(128), layer.hardware_queues(3)), (4, 3));
    assert_eq!(parse(&path("raw", "")).unwrap().path.block_layer, None);
}

#[test]
fn keys_of_the_block_layer_that_make_no_sense_together_are_refused() {
    let refuse = |block, lines: &str, line, caret, says: &[&str]| {
        assert_refused(&path(block, lines), line, caret, says);
    };
    refuse("raw", "scheduler = \"fair\"\n", 5, "\"fair\"", &["`path.scheduler`", "raw"]);
    refuse("raw", "merge = true\ncores = 2\n", 6, "2", &["`path.cores`", "queue_model = \"sq\""]);
    refuse("sq", "queues = 2\n", 5, "2", &["no `queues`", "queue_model = \"mq\""]);
    refuse("sq", "staging = \"core\"\n", 5, "\"core\"", &["no `staging`"]);
    refuse("sq", "sockets = 1\n", 5, "1", &["no `sockets`"]);
    refuse("mq", "sockets = 2\ncores = 2\n", 5, "2", &["staging = \"socket\""]);
    let uneven = "cores = 3\nsockets = 2\nstaging = \"socket\"\n";
    refuse("mq", uneven, 6, "2", &["3 cores", "2 sockets", "multiple"]);
    refuse("mq", "queues = 3\ncores = 2\n", 5, "3", &["2 cores cannot use 3"]);
    for staging in ["", "staging = \"core\"\n"] {
        let lines = format!("cores = 2\nscheduler = \"fair\"\n{staging}");
        let says = ["one staging queue", "not 2", "staging = \"global\""];
        refuse("mq", &lines, 6, "\"fair\"", &says);
    }
    let lines = "cores = 2\n[[path.limit]]\ngroup = 0\nread_iops = 1\n";
    let (line, _, message) = refused(&path("mq", lines));
    assert!(line == 6 && message.contains("limits weigh submitters"), "{line}: {message}");
    let three = "scheduler = { kind = \"fair\", weights = [1, 2, 3] }\ncores = 2\n";
    let under = "{ kind = \"fair\", weights = [1, 2, 3] }";
    refuse("sq", three, 5, under, &["3 weights for 2 cores"]);
    let many = "cores = 1000\nqueues = 1000\n";
    refuse("mq", many, 6, "1000", &["drive0 has 128 I/O queues", "io_queues"]);
    let pblk = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[target]\nkind = \"pblk\"\n[path]\n";
    for block in ["raw", "sq", "mq"] {
        assert!(parse(&format!("{pblk}queue_model = \"{block}\"\n")).is_ok(), "{block}");
    }
    let two = format!("{pblk}queue_model = \"mq\"\ncores = 4\nqueues = 2\n");
    let says = ["drive0 has 1 write context,", "2 hardware queues", "allowed: 1 to 1;"];
    assert_refused(&two, 8, "2", &says);
    let shards = |n| two.replace("[path]", &format!("shards = {n}\n[path]"));
    assert!(parse(&shards(2)).is_ok() && parse(&shards(4)).is_ok());
    let three = shards(2).replace("queues = 2", "queues = 3");
    assert_refused(&three, 9, "3", &["2 write contexts", "allowed: 1 to 2;"]);
    let bare = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[path]\nqueue_model = \"sq\"\n";
    assert_refused(bare, 4, "\"sq\"", &["drive0", "no logical blocks", "[target]"]);
    let job = format!("{SMALL}[[job]]\nrw = \"read\"\ngroup = 1\n");
    assert_refused(&job, 5, "1", &["groups are the block layer's"]);
}

#[test]
fn values_of_the_block_layer_are_checked_where_they_stand() {
    let refuse = |lines: &str, line, caret, says: &[&str]| {
        assert_refused(&path("mq", lines), line, caret, says);
    };
    refuse("cores = 0\n", 5, "0", &["from 1"]);
    refuse("cores = 1025\n", 5, "1025", &["from 1 to 1024"]);
    refuse("cores = \"two\"\n", 5, "\"two\"", &["a whole number"]);
    refuse("queue_depth = 0\n", 5, "0", &["from 1 to 65536"]);
    let large = "cores = 1000\nqueues = 100\nstaging = \"device\"\n";
    refuse(large, 5, "1000", &["1000 cores with 1024 requests", "places for 102400000"]);
    refuse(&format!("{large}queue_depth = 4096\n"), 8, "4096", &["smaller"]);
    assert!(parse(&path("mq", &format!("{large}queue_depth = 64\n"))).is_ok());
    refuse("timeout = 0\n", 5, "0", &["longer than 0"]);
    refuse("timeout = 30\n", 5, "30", &["a duration with its unit"]);
    refuse("staging = \"node\"\n", 5, "\"node\"", &["\"core\", \"socket\", \"global\""]);
    refuse("scheduler = \"bfq\"\n", 5, "\"bfq\"", &["\"none\", \"deadline\", \"kyber\", \"fair\""]);
    refuse("scheduler = 3\n", 5, "3", &["a table with its `kind`"]);
    refuse("scheduler = { window = \"1ms\" }\n", 5, "{ window = \"1ms\" }", &["needs `kind`"]);
    refuse(
        "[path.scheduler]\nkind = \"kyber\"\nread_expire = \"1ms\"\n",
        7,
        "read_expire",
        &["[path.scheduler] has no key `read_expire`", "read_target"],
    );
    let kyber = "[path.scheduler]\nkind = \"kyber\"\nread_target = ";
    refuse(&format!("{kyber}0\n"), 7, "0", &["`target_ns` must not be zero"]);
    refuse(&format!("{kyber}\"2h\"\n"), 7, "\"2h\"", &["a duration"]);
    let fair = "[path.scheduler]\nkind = \"fair\"\nweights = ";
    refuse(&format!("{fair}[0]\n"), 7, "[0]", &["the weight of 0 must not be zero"]);
    refuse(&format!("{fair}[1001]\n"), 7, "[1001]", &["more than 1000"]);
    refuse(&format!("{fair}7\n"), 7, "7", &["a list of numbers"]);
    let limit = "[[path.limit]]\n";
    refuse(&format!("{limit}read_iops = 5\n"), 5, "[[path.limit]]", &["needs `group`"]);
    refuse(&format!("{limit}group = 2000\n"), 6, "2000", &["0 to 1023"]);
    refuse(&format!("{limit}group = 1\n"), 5, "[[path.limit]]", &["read_iops, write_iops"]);
    refuse(&format!("{limit}group = 1\nread_iops = 0\n"), 7, "0", &["read operations"]);
    refuse(&format!("{limit}group = 1\nread_bw = \"5M\"\n"), 7, "\"5M\"", &["a bandwidth"]);
    refuse(&format!("{limit}group = 1\nread_iop = 5\n"), 7, "read_iop", &["`read_iops`"]);
    let one = format!("{limit}group = 1\nread_iops = 5\n");
    refuse(&format!("{one}{one}"), 9, "1", &["group 1 has its limits given more than once"]);
}

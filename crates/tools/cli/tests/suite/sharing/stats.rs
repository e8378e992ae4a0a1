//! `sluice admin stats` of drives whose clients have their own queues.

use serde_json::Value;

use super::harness::*;

#[test]
fn clients_with_queues_of_their_own_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let nbd = format!("unix:{}", dir.path().join("nbd.sock").display());
    for more in [&[][..], &["--nbd", &nbd]] {
        let server = Server::start(dir.path(), SCENARIO, more);
        let stats = || -> Value {
            let output = server.sluice_admin(&["stats", "--json"]);
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let none = stats();
        assert_eq!(
            (&none["socket_clients"], &none["queue_depth"]),
            (&0.into(), &0.into()),
            "{none}"
        );
        let (device, mut h) = client(&server.socket, "left");
        let other = client(&server.socket, "right");
        let buffer = device.buffer(SECTOR).unwrap();
        for lba in 0..10 {
            h.write(lba, &buffer, false).unwrap();
        }
        h.read(0, &buffer).unwrap();
        let now = stats();
        assert_eq!((&now["reads"], &now["writes"]), (&1.into(), &10.into()), "{now}");
        assert_eq!((&now["socket_clients"], &now["nbd_clients"]), (&2.into(), &0.into()), "{now}");
        assert_eq!(now["queue_depth"], 0, "{now}");
        // The drive measures the latency of commands of clients with their own queues.
        for (latency, least) in [("read_latency_ns", 1), ("write_latency_ns", 1)] {
            let (p50, max) = (now[latency]["p50"].as_u64(), now[latency]["max"].as_u64());
            assert!(p50 >= Some(least) && p50 <= max, "{latency}: {now}");
        }
        assert!(now["queue_depth_mean"].as_f64().is_some_and(|mean| mean > 0.0), "{now}");
        let line = server.sluice_admin(&["stats"]).stdout;
        let line = String::from_utf8(line).unwrap();
        assert!(line.ends_with("0 NBD clients, 2 socket clients\n"), "{line}");
        drop((h, device, other));
        server.stop();
    }
}

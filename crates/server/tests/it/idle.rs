//! CPU time of a server whose clients are idle.

use std::fs;
use std::time::Duration;

use forebay_wire::nbd::CMD_READ;

use crate::nbd_client::Client;
use crate::process::PoolDir;

/// CPU time of all threads of a process.
fn cpu_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = |thread: fs::DirEntry| -> u64 {
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    Duration::from_nanos(threads.map(|thread| nanoseconds(thread.unwrap())).sum())
}

/// The threads look for further requests for some microseconds after each reply, and no longer.
#[test]
fn an_idle_server_uses_no_cpu_after_a_client_that_sent_one_request_at_a_time() {
    let place = PoolDir::new();
    let socket = place.path("nbd.sock");
    let server = place.serve(&["--nbd", &format!("unix:{}", socket.display())]);
    place.ok(&["volume", "create", "v", "--size", "1M"]);
    let mut clients: Vec<Client> = (0..2).map(|_| Client::open(&socket, "v")).collect();
    for client in &mut clients {
        for n in 0..2000 {
            assert_eq!(client.ask(0, CMD_READ, n % 256 * 4096, 4096).error, 0);
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    let before = cpu_time(server.id());
    std::thread::sleep(Duration::from_secs(2));
    let used = cpu_time(server.id()) - before;
    assert!(used < Duration::from_millis(20), "{used:?} in two seconds");
}

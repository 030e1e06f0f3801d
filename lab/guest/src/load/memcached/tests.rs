//! The clients against a server in this process, which does as memcached does unless it is told not to.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches};
use serde_json::Value;

use super::{Options, Schedule, found, run};

type Values = Arc<Mutex<HashMap<String, Vec<u8>>>>;

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// It answers so much later.
    Slow(Duration),
    /// It forgets what it stores.
    Forgets,
    /// It closes connections that ask for a value.
    Closes,
    /// It refuses to store.
    Full,
}

/// Starts a server; returns its address and what it has stored.
fn server(fault: Fault) -> (String, Values) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let values = Values::default();
    let theirs = values.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let values = theirs.clone();
            thread::spawn(move || serve(stream.unwrap(), fault, &values));
        }
    });
    (address, values)
}

/// Serves a connection until its client closes it.
fn serve(stream: TcpStream, fault: Fault, values: &Values) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone()?), stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let (Fault::Slow(pause), false) = (fault, words.contains(&"noreply")) {
            thread::sleep(pause);
        }
        match words[..] {
            ["version"] => writer.write_all(b"VERSION 1\r\n")?,
            ["get", _] if fault == Fault::Closes => return Ok(()),
            ["get", key] => {
                let value = values.lock().unwrap().get(key).cloned();
                let found = value.map(|value| [&b"VALUE k 0 9\r\n"[..], &value[..], b"\r\n"].concat());
                writer.write_all(&[&found.unwrap_or_default()[..], b"END\r\n"].concat())?;
            }
            ["set", key, _, _, length, ..] => {
                let mut value = vec![0; length.parse::<usize>().unwrap() + 2];
                reader.read_exact(&mut value)?;
                value.truncate(value.len() - 2);
                if fault != Fault::Forgets {
                    values.lock().unwrap().insert(key.to_owned(), value);
                }
                match (fault, words.len()) {
                    (Fault::Full, 5) => writer.write_all(b"SERVER_ERROR out of memory\r\n")?,
                    (_, 5) => writer.write_all(b"STORED\r\n")?,
                    _ => {}
                }
            }
            _ => writer.write_all(b"ERROR\r\n")?,
        }
        line.clear();
    }
    Ok(())
}

fn options(address: &str, arguments: &[&str]) -> Options {
    let fixed = ["memcached", "--server", address, "--for-ms", "50", "--keys", "20"];
    let matches = Options::augment_args(Command::new("memcached"))
        .try_get_matches_from(fixed.iter().chain(arguments))
        .unwrap();
    Options::from_arg_matches(&matches).unwrap()
}

fn measured(fault: Fault, arguments: &[&str]) -> Value {
    run(&options(&server(fault).0, arguments)).unwrap()
}

#[test]
fn gets_and_sets_are_answered_on_all_connections() {
    let (address, values) = server(Fault::None);
    let arguments = ["--threads", "2", "--connections", "3", "--gets", "0.5", "--value-bytes", "40000"];
    let report = run(&options(&address, &arguments)).unwrap();
    assert_eq!(report["misses"], 0);
    assert!(report["answers"].as_u64().unwrap() > 6, "{report}");
    assert!(report["latency_ns"]["min"].as_i64().unwrap() > 0, "{report}");
    let values = values.lock().unwrap();
    assert_eq!(values.len(), 20);
    assert!(values.iter().all(|(key, value)| (key.len(), value.len()) == (30, 40_000)));
}

#[test]
fn requests_go_round_the_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stored: Arc<Mutex<Vec<Values>>> = Arc::default();
    let theirs = stored.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let values = Values::default();
            theirs.lock().unwrap().push(values.clone());
            thread::spawn(move || serve(stream.unwrap(), Fault::None, &values));
        }
    });
    run(&options(&address, &["--connections", "4", "--gets", "0", "--rate", "400"])).unwrap();
    // The first connection is the one that fills the server.
    let keys: Vec<_> = stored.lock().unwrap().iter().map(|values| values.lock().unwrap().len()).collect();
    assert!(keys.len() == 5 && !keys.contains(&0), "{keys:?}");
}

#[test]
fn a_warm_up_does_not_count() {
    let slow = Fault::Slow(Duration::from_millis(40));
    let report = measured(slow, &["--warm-up-ms", "100"]);
    // The connection's third answer is the first one within the window, the fourth request the last one.
    let (answers, requests) = (report["answers"].as_u64().unwrap(), report["latency_ns"]["count"].as_u64());
    assert!(answers <= 2 && requests.unwrap_or(0) <= 2, "{report}");
}

#[test]
fn a_schedule_does_not_wait_for_answers() {
    let rate = ["--rate", "2000", "--threads", "2"];
    let quick = measured(Fault::None, &rate);
    let slow = measured(Fault::Slow(Duration::from_millis(2)), &rate);
    // The seed decides how many are due, and each of them counts, whenever its answer comes.
    assert_eq!(quick["latency_ns"]["count"], slow["latency_ns"]["count"]);
    let due = slow["latency_ns"]["count"].as_i64().unwrap();
    assert!((70..130).contains(&due), "{due}");
    // One of two connections has half of them or more, answers the last after 2 ms for each, and 50 ms is the window.
    assert!(slow["latency_ns"]["max"].as_i64().unwrap() >= (due - 50) * 1_000_000, "{slow}");
    assert!(slow["answers"].as_i64().unwrap() <= 50, "{slow}");
}

#[test]
fn the_seed_decides_when_requests_are_due() {
    let due = |seed: &str, index| {
        let options = options("127.0.0.1:1", &["--threads", "4", "--seed", seed]);
        let mut schedule = Schedule::new(&options, 1000, index, 5);
        (0..1000).map(|_| (schedule.next_ns, schedule.advance()).0).collect::<Vec<_>>()
    };
    assert_eq!(due("1", 0), due("1", 0));
    assert_ne!(due("1", 0), due("2", 0));
    assert_ne!(due("1", 0), due("1", 1));
    // Of 4 threads with 1000 requests a second, each has one in 4 ms.
    let last = *due("1", 0).last().unwrap();
    assert!((3_600_000_000..4_400_000_000).contains(&last), "{last}");
}

#[test]
fn what_was_not_found_is_counted() {
    let report = measured(Fault::Forgets, &["--gets", "1"]);
    assert!(report["misses"].as_u64().unwrap() >= report["answers"].as_u64().unwrap(), "{report}");
}

#[test]
fn an_answer_is_whole_or_awaited() {
    for (answer, expected) in [
        ("STORED\r\n", Some(true)),
        ("END\r\n", Some(false)),
        ("VALUE k 0 1\r\nx\r\nEND\r\n", Some(true)),
        ("VALUE k 0 1\r\n", None),
        ("VALUE k 0 1\r\nx\r\n", None),
        ("STOR", None),
        ("", None),
    ] {
        assert_eq!(found(answer.as_bytes()).unwrap(), expected, "{answer:?}");
    }
}

#[test]
fn what_goes_wrong_is_named() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (address, argument, message) in [
        (server(Fault::Full).0, "--gets=0", "the server says: SERVER_ERROR out of memory"),
        (server(Fault::Closes).0, "--gets=1", "the server closed the connection"),
        (closed, "--gets=1", "connect to 127.0.0.1"),
        (String::from("127.0.0.1:1"), "--gets=1.5", "--gets 1.5 is not within 0..1"),
    ] {
        let error = format!("{:#}", run(&options(&address, &[argument])).unwrap_err());
        assert!(error.contains(message), "{error}");
    }
}

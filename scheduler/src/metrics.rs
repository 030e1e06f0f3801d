// SPDX-License-Identifier: GPL-2.0-only

//! The counters for Prometheus: OpenMetrics text over HTTP, at /metrics.
//!
//! A client may send anything. The scheduler ends with this process, so what a
//! connection may take of memory and time is limited, and a slow one holds up
//! neither the scheduler nor the others.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::stats::{Counters, Sample};

const PREFIX: &str = "heddle";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Connections at a time; more wait until they are accepted.
const CONNECTIONS: usize = 16;

/// What a request's head may take: the least that hyper allows.
const HEAD_BYTES: usize = 8 << 10;

/// Until the next attempt to accept a connection: files that are all in use stay
/// so for a while.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How long a connection may take.
#[derive(Clone, Copy)]
struct Limits {
    /// For the request's head to come.
    head: Duration,
    /// For the scheduler to give a sample; it may be restarting.
    sample: Duration,
    /// For all of it.
    whole: Duration,
}

/// A scrape is given up after 10 s, unless Prometheus is told otherwise.
const LIMITS: Limits = Limits {
    head: Duration::from_secs(2),
    sample: Duration::from_secs(5),
    whole: Duration::from_secs(10),
};

/// A scrape's request for a sample, and where to send it.
pub type Asked = oneshot::Sender<Sample>;

/// Read `PORT`, `:PORT` (both on the loopback address) or `ADDRESS:PORT`.
///
/// # Errors
/// It is none of these.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse()
        .map_err(|_| "give a port, or an address and a port such as 192.0.2.7:9464".to_string())
}

/// Answer scrapes at `address`, each with a sample that the holder of the
/// receiver sends. The thread ends with the process.
///
/// # Errors
/// The address cannot be bound, or there can be no thread.
pub fn serve(address: SocketAddr) -> Result<Receiver<Asked>> {
    let (bound, asked) = listen(address, LIMITS).with_context(|| format!("--metrics {address}"))?;
    log::info!("metrics at http://{bound}/metrics");
    Ok(asked)
}

/// Answer scrapes from now on; also tell at which address, for `address` may
/// leave the port to the kernel.
fn listen(address: SocketAddr, limits: Limits) -> io::Result<(SocketAddr, Receiver<Asked>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind(address))?;
    let bound = listener.local_addr()?;
    let (ask, asked) = unbounded();
    thread::Builder::new().spawn(move || runtime.block_on(accept(&listener, &ask, limits)))?;
    Ok((bound, asked))
}

/// Take connections for ever, as many at a time as there are places.
async fn accept(listener: &TcpListener, ask: &Sender<Asked>, limits: Limits) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await;
        let place = place.expect("nobody closes it");
        match listener.accept().await {
            Ok((stream, _)) => {
                let ask = ask.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, ask, limits).await {
                        log::debug!("a scrape was cut short: {error:#}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                log::debug!("cannot accept a scrape: {error}");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Answer one request, the only one of its connection.
async fn converse(stream: TcpStream, ask: Sender<Asked>, limits: Limits) -> Result<()> {
    let service = service_fn(|request| answer(request, &ask, limits.sample));
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        // A client that has sent all that it will send still waits for the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    Ok(timeout(limits.whole, conversation).await??)
}

async fn answer(
    request: Request<Incoming>,
    ask: &Sender<Asked>,
    patience: Duration,
) -> Result<Response<String>, Infallible> {
    if request.uri().path() != "/metrics" {
        let text = "the metrics are at /metrics\n";
        return Ok(respond(StatusCode::NOT_FOUND, PLAIN, text.into()));
    }
    if request.method() != Method::GET {
        let mut refusal = respond(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET only\n".into());
        let allowed = HeaderValue::from_static("GET");
        refusal.headers_mut().insert(ALLOW, allowed);
        return Ok(refusal);
    }
    // Nobody reads its body, however long that is said to be.
    drop(request);
    Ok(match sample(ask, patience).await {
        Some(sample) => respond(StatusCode::OK, OPENMETRICS, render(&sample)),
        None => {
            let text = "the scheduler is not attached\n";
            respond(StatusCode::SERVICE_UNAVAILABLE, PLAIN, text.into())
        }
    })
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// What the scheduler has counted, if it says so in time.
async fn sample(ask: &Sender<Asked>, patience: Duration) -> Option<Sample> {
    let (reply, sample) = oneshot::channel();
    ask.send(reply).ok()?;
    timeout(patience, sample).await.ok()?.ok()
}

/// A sample as OpenMetrics text: a counter `heddle_NAME_total{llc="N"}` for each
/// of [`Counters::ABOUT`], since the scheduler was attached.
fn render(sample: &Sample) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The scheduler's version", version);
    for (at, (name, text)) in Counters::ABOUT.iter().enumerate() {
        let family = Family::<Vec<(&str, String)>, Counter>::default();
        for (llc, counters) in &sample.llcs {
            let (_, value) = counters.entries()[at];
            family
                .get_or_create(&vec![("llc", llc.to_string())])
                .inc_by(value);
        }
        registry.register(*name, *text, family);
    }
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("a string takes all text");
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};

    use super::*;

    const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: heddle\r\n\r\n";

    /// Longer than any test: what happens within it has waited for no limit.
    const NEVER: Duration = Duration::from_secs(3600);
    const UNLIMITED: Limits = Limits {
        head: NEVER,
        sample: NEVER,
        whole: NEVER,
    };

    fn listen_here(limits: Limits) -> (SocketAddr, Receiver<Asked>) {
        listen((Ipv4Addr::LOCALHOST, 0).into(), limits).unwrap()
    }

    /// A server whose scheduler gives `first` and then empty samples.
    fn start(limits: Limits, first: Sample) -> SocketAddr {
        let (address, asked) = listen_here(limits);
        thread::spawn(move || {
            let samples = std::iter::once(first).chain(std::iter::repeat_with(Sample::default));
            for (reply, sample) in asked.iter().zip(samples) {
                let _ = reply.send(sample);
            }
        });
        address
    }

    fn send(address: SocketAddr, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        let hang = Some(Duration::from_secs(60));
        stream.set_read_timeout(hang).unwrap();
        stream.set_write_timeout(hang).unwrap();
        // A server that refuses a request need not take all of it.
        let _ = stream.write_all(request.as_bytes());
        stream
    }

    /// What comes until the server ends the connection, by a reset at the worst.
    fn receive(mut stream: TcpStream) -> String {
        let mut bytes = Vec::new();
        if let Err(error) = stream.read_to_end(&mut bytes) {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        String::from_utf8(bytes).unwrap()
    }

    fn status(address: SocketAddr, request: &str) -> String {
        let response = receive(send(address, request));
        response.split(' ').nth(1).unwrap_or_default().to_string()
    }

    #[test]
    fn a_scrape_is_answered_with_the_sample() {
        let address = start(
            UNLIMITED,
            Sample {
                llcs: BTreeMap::from([(5, Counters::default())]),
                ..Default::default()
            },
        );
        let response = receive(send(address, SCRAPE));
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        let content_type = format!("\r\ncontent-type: {OPENMETRICS}\r\n");
        assert!(response.contains(&content_type), "{response}");
        assert!(response.contains("heddle_queued_total{llc=\"5\"} 0\n"));
        assert!(response.ends_with("# EOF\n"));
        assert_eq!(status(address, "GET /metrics HTTP/1.0\r\n\r\n"), "200");
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        let address = start(UNLIMITED, Sample::default());
        for (request, expected) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
            ("POST / HTTP/1.1\r\n\r\n", "404"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "405"),
            (
                "POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
                "405",
            ),
            ("nonsense\r\n\r\n", "400"),
        ] {
            assert_eq!(status(address, request), expected, "{request}");
        }
        assert_eq!(status(address, SCRAPE), "200");
    }

    #[test]
    fn a_body_is_not_waited_for() {
        let address = start(UNLIMITED, Sample::default());
        for (header, expected) in [
            ("Content-Length: 99999999999999", "200"),
            (
                "Content-Length: 99999999999999\r\nExpect: 100-continue",
                "200",
            ),
            ("Content-Length: 99999999999999999999999999", "400"),
            ("Transfer-Encoding: chunked", "200"),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\n{header}\r\n\r\n");
            assert_eq!(status(address, &request), expected, "{header}");
        }
        assert_eq!(status(address, SCRAPE), "200");
    }

    #[test]
    fn a_head_of_a_megabyte_is_refused() {
        let address = start(UNLIMITED, Sample::default());
        for head in [
            format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(1 << 20)),
            format!("GET /metrics HTTP/1.1\r\n{}", "X: x\r\n".repeat(200_000)),
            "x".repeat(1 << 20),
        ] {
            // The answer is lost when the reset overtakes it.
            let status = status(address, &head);
            assert!(["", "431"].contains(&&*status), "{status}");
        }
        assert_eq!(status(address, SCRAPE), "200");
    }

    #[test]
    fn who_is_slow_holds_up_nobody() {
        // More than the sockets' buffers take (tcp(7)).
        let llcs = (0..4000).map(|llc| (llc, Counters::default())).collect();
        let long = Sample {
            llcs,
            ..Default::default()
        };
        let address = start(UNLIMITED, long);
        let unread = send(address, &SCRAPE.repeat(100));
        assert_eq!(unread.peek(&mut [0]).unwrap(), 1);
        let unfinished = send(address, "GET /metrics HTTP/1.1\r\nHost");
        for _ in 0..2 * CONNECTIONS {
            assert_eq!(status(address, SCRAPE), "200");
        }
        drop((unread, unfinished));
    }

    #[test]
    fn a_scrape_waits_for_the_scheduler_alone() {
        let (address, asked) = listen_here(UNLIMITED);
        let first = send(address, SCRAPE);
        first.shutdown(Shutdown::Write).unwrap();
        let reply_to_first = asked.recv().unwrap();
        let second = send(address, SCRAPE);
        asked.recv().unwrap().send(Sample::default()).unwrap();
        assert!(receive(second).starts_with("HTTP/1.1 200 "));
        reply_to_first.send(Sample::default()).unwrap();
        assert!(receive(first).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn without_a_scheduler_there_is_no_sample() {
        let (address, asked) = listen_here(Limits {
            sample: Duration::from_millis(10),
            ..UNLIMITED
        });
        assert_eq!(status(address, SCRAPE), "503");
        assert!(asked.recv().unwrap().is_closed());
        drop(asked);
        assert_eq!(status(address, SCRAPE), "503");
    }

    #[test]
    fn more_connections_than_places_wait_for_one() {
        let address = start(UNLIMITED, Sample::default());
        let idle: Vec<_> = (0..50).map(|_| send(address, "")).collect();
        let scrape = send(address, SCRAPE);
        drop(idle);
        assert!(receive(scrape).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn idle_connections_lose_their_places() {
        let brief = Duration::from_millis(200);
        for limits in [
            Limits {
                head: brief,
                ..UNLIMITED
            },
            Limits {
                whole: brief,
                ..UNLIMITED
            },
        ] {
            let address = start(limits, Sample::default());
            let idle: Vec<_> = (0..50).map(|_| send(address, "")).collect();
            // On a busy machine a scrape may take too long as well.
            assert!((0..100).any(|_| status(address, SCRAPE) == "200"));
            drop(idle);
        }
    }

    #[test]
    fn an_address_in_use_is_named() {
        let (address, _asked) = listen_here(UNLIMITED);
        let error = format!("{:#}", serve(address).unwrap_err());
        let expected = format!("--metrics {address}: Address already in use");
        assert!(error.starts_with(&expected), "{error}");
    }

    #[test]
    fn every_counter_is_exported_with_its_text() {
        let counters = Counters {
            queued: 7,
            ..Default::default()
        };
        let text = render(&Sample {
            llcs: BTreeMap::from([(3, counters)]),
            ..Default::default()
        });
        for (name, about) in Counters::ABOUT {
            assert!(
                text.contains(&format!("# HELP heddle_{name} {about}")),
                "{name}"
            );
            assert!(
                text.contains(&format!("# TYPE heddle_{name} counter")),
                "{name}"
            );
        }
        assert!(
            text.contains("heddle_queued_total{llc=\"3\"} 7\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn an_address_is_loopback_unless_told() {
        for text in ["9464", ":9464"] {
            assert_eq!(parse_address(text), Ok("127.0.0.1:9464".parse().unwrap()));
        }
        assert_eq!(parse_address("[::1]:1"), Ok("[::1]:1".parse().unwrap()));
        for text in ["", "x", "::1", "1.2.3.4", "70000", "host:1"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}

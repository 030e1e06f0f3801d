// SPDX-License-Identifier: GPL-2.0-only

//! The counters for Prometheus: OpenMetrics text over HTTP, at /metrics.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, anyhow};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::stats::{Counters, Sample};

const PREFIX: &str = "heddle";
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long a scrape waits for the scheduler, which may be restarting.
const PATIENCE: Duration = Duration::from_secs(5);

/// A scrape's request for a sample, and where to send it.
pub type Asked = Sender<Sample>;

/// Read `PORT`, `:PORT` (both on the loopback address) or `ADDRESS:PORT`.
///
/// # Errors
/// It is none of these.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse()
        .map_err(|_| "give a port, or an address and a port such as 192.0.2.7:9464".to_string())
}

/// Answer scrapes at `address`, each with the sample that whoever holds the
/// receiver sends it. The thread ends with the process.
///
/// # Errors
/// The address cannot be bound.
pub fn serve(address: SocketAddr) -> Result<Receiver<Asked>> {
    let server = Server::http(address).map_err(|e| anyhow!("--metrics {address}: {e}"))?;
    let (ask, asked) = unbounded();
    std::thread::spawn(move || {
        for request in server.incoming_requests() {
            if let Err(error) = answer(request, &ask) {
                log::debug!("a scrape was cut short: {error}");
            }
        }
    });
    log::info!("metrics at http://{address}/metrics");
    Ok(asked)
}

fn answer(request: Request, ask: &Sender<Asked>) -> std::io::Result<()> {
    if request.url() != "/metrics" {
        let text = "the metrics are at /metrics\n";
        return request.respond(Response::from_string(text).with_status_code(404));
    }
    if *request.method() != Method::Get {
        return request.respond(Response::from_string("GET only\n").with_status_code(405));
    }
    let (reply, sample) = bounded(1);
    let sample = ask
        .send(reply)
        .ok()
        .and_then(|()| sample.recv_timeout(PATIENCE).ok());
    let Some(sample) = sample else {
        let text = "the scheduler is not attached\n";
        return request.respond(Response::from_string(text).with_status_code(503));
    };
    let header: Header = format!("Content-Type: {CONTENT_TYPE}")
        .parse()
        .expect("a constant header");
    request.respond(Response::from_string(render(&sample)).with_header(header))
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

    use super::*;

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
        for text in ["", "x", "1.2.3.4", "70000", "host:1"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}

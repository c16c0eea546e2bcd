//! What an operator does in a run: makes the group, the queues and the schedules, pauses queues and resumes
//! them, and clears up at the end.

use crate::bulk::{self, Bulk};
use crate::client::Client;
use crate::history::{LONG_WINDOW, Pause, QUEUE_SLOTS};
use crate::load::{GROUP, GROUP_SIZE, Load, Phase, queue_name};
use crate::random::Random;
use crate::witness::{body_of, flow_name};
use bytes::Bytes;
use hyper::Method;
use serde_json::json;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// The label of what schedules fire, to find it in the log.
pub(crate) const FIRED: &str = "fired";
/// A pause lasts until some number of messages below this, and above this half, has been acknowledged.
const PAUSE_MESSAGES: u64 = 600;

/// Makes what the publishers need. Nothing may fail: the server is not killed meanwhile.
pub(crate) async fn prepare(load: &Load, server: SocketAddr) {
    let witness = load.witness.address;
    let endpoints: Vec<_> =
        (0..GROUP_SIZE).map(|place| json!({ "url": format!("http://{witness}/group/{place}") })).collect();
    let group = json!({ "endpoints": endpoints });
    post(&load.client, server, &format!("/v2/topics/{GROUP}/endpoints"), &[], group.to_string()).await;
    for (queue, slots) in QUEUE_SLOTS.into_iter().enumerate() {
        let settings = json!({ "queueName": queue_name(queue), "parallelism": slots });
        post(&load.client, server, "/v2/queues", &[], settings.to_string()).await;
    }
    for schedule in 0..load.schedules {
        let id = format!("s{schedule}");
        let target = format!("/v2/schedules/http://{witness}/schedule/{id}");
        let headers = [
            ("upstash-cron", "* * * * *".to_owned()),
            ("upstash-schedule-id", id.clone()),
            ("upstash-label", FIRED.to_owned()),
            ("upstash-retry-delay", "50".to_owned()),
        ];
        post(&load.client, server, &target, &headers, body_of(&id)).await;
    }
}

/// Pauses one queue after the other until the run is over. Each pause that was acknowledged is noted; it lasts
/// over kills.
pub(crate) async fn pause_queues(load: Arc<Load>, mut random: Random) {
    while let Some(server) = load.server().await {
        let queue = random.below(QUEUE_SLOTS.len() as u64) as usize;
        let sent_at = load.witness.now();
        let is_paused = switch(&load.client, server, queue, "pause").await;
        let from = load.witness.now();
        let target = *load.acknowledged.borrow() + PAUSE_MESSAGES / 2 + random.below(PAUSE_MESSAGES / 2);
        let (mut phase, mut acknowledged) = (load.phase.subscribe(), load.acknowledged.subscribe());
        tokio::select! {
            _ = phase.wait_for(|phase| *phase == Phase::Over) => {}
            _ = acknowledged.wait_for(|count| *count >= target) => {}
        }
        if is_paused {
            let until = load.witness.now();
            load.note(|history| {
                if history.had_power(sent_at, from) {
                    history.pauses.push(Pause { queue, from, until });
                }
            });
        }
        while let Some(server) = load.server().await {
            if switch(&load.client, server, queue, "resume").await {
                break;
            }
        }
    }
}

/// Says whether it was acknowledged.
async fn switch(client: &Client, server: SocketAddr, queue: usize, verb: &str) -> bool {
    let target = format!("/v2/queues/{}/{verb}", queue_name(queue));
    let answer = client.send(Method::POST, server, &target, &[], Bytes::new()).await;
    answer.is_some_and(|answer| answer.status == 200)
}

/// Lets everything come to rest: no schedule fires any more, no queue is paused, and what the long window would
/// hold for minutes is cancelled.
pub(crate) async fn clear_up(load: &Load, server: SocketAddr) {
    let client = &load.client;
    for schedule in 0..load.schedules {
        expect(client, Method::DELETE, server, &format!("/v2/schedules/s{schedule}"), 200).await;
    }
    for queue in 0..QUEUE_SLOTS.len() {
        expect(client, Method::POST, server, &format!("/v2/queues/{}/resume", queue_name(queue)), 200).await;
    }
    load.note(|history| {
        let held = history.publishes.iter().filter(|publish| publish.terms.flow == Some(LONG_WINDOW));
        let (keys, answers): (HashSet<&str>, Vec<_>) =
            held.map(|publish| (publish.key.as_str(), publish.answer.id().map(str::to_owned))).unzip();
        // Of one whose answer did not come only the receiver may know the id.
        let arrived = history.arrivals.iter().filter(|arrival| keys.contains(arrival.key.as_str()));
        let arrived: Vec<String> = arrived.map(|arrival| arrival.id.clone()).collect();
        history.cancel_sent.extend(answers.into_iter().flatten().chain(arrived));
    });
    let target = format!("/v2/messages?flowControlKey={}", flow_name(LONG_WINDOW));
    expect(client, Method::DELETE, server, &target, 202).await;
    expect(client, Method::DELETE, server, &format!("/v2/messages?label={}", Bulk::Cancel.label()), 202).await;
    bulk::finished(load, server).await;
}

async fn post(client: &Client, server: SocketAddr, target: &str, headers: &[(&str, String)], body: String) {
    let response = client.send(Method::POST, server, target, headers, body.into()).await;
    let response = response.unwrap_or_else(|| panic!("no answer to {target}"));
    assert!([200, 201].contains(&response.status), "{target}: {} {:?}", response.status, response.body);
}

async fn expect(client: &Client, method: Method, server: SocketAddr, target: &str, status: u16) {
    let response = client.send(method, server, target, &[], Bytes::new()).await;
    let response = response.unwrap_or_else(|| panic!("no answer to {target}"));
    assert_eq!(response.status, status, "{target}: {:?}", response.body);
}

//! The overview: is anything late, stuck or failing?

use crate::support::server::{READ_ONLY, TOKEN_B};
use crate::support::{Receiver, Reply, Setup, TestServer};

/// The page, as a visitor of a development server sees it who has chosen this tenant.
async fn page_of(server: &TestServer, tenant: &str) -> String {
    let cookie = format!("posthaste-tenant={tenant}");
    server.get("/console").without("Authorization").header("Cookie", cookie).expect(200).await.text()
}

/// What the page says at the top, without its tags.
fn verdict(page: &str) -> String {
    let start = page.find("<p class=\"verdict\">").unwrap_or_else(|| panic!("no verdict in {page}"));
    let end = start + page[start..].find("</p>").expect("the paragraph ends");
    let mut text = String::new();
    let mut is_tag = false;
    for letter in page[start..end].chars() {
        match letter {
            '<' => is_tag = true,
            '>' => is_tag = false,
            letter if !is_tag => text.push(letter),
            _ => {}
        }
    }
    text
}

#[tokio::test]
async fn one_sentence_sums_up_the_current_state() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let quiet = "All quiet: no messages published or delivered in the last 5 minutes.";
    assert_eq!(verdict(&page_of(&server, "tenant-a").await), quiet);

    let id = server.publish_with(&receiver.url("/"), &[], "").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let well = "All is well: 1 delivered in the last minute, half of them within 1 ms of being due.";
    assert_eq!(verdict(&page_of(&server, "tenant-a").await), well);
    assert_eq!(verdict(&page_of(&server, "tenant-b").await), quiet, "not theirs");

    let (held, gate) = Reply::status(200).held();
    receiver.script("/slow", [held]);
    for _ in 0..3 {
        server.enqueue_with("line", &receiver.url("/slow"), &[]).await;
    }
    server.advance(30_000).await;
    assert_eq!(verdict(&page_of(&server, "tenant-a").await), "2 messages are late: the oldest was due 30 s ago.");
    server.advance(300_000).await;
    let page = page_of(&server, "tenant-a").await;
    let silent = "No deliveries: none for 5 min; 2 messages are waiting, the oldest for 5 min 30 s.";
    assert_eq!(verdict(&page), silent);
    assert!(page.contains("1 in flight · 2 due, oldest <time"), "{page}");
    server.post("/v2/queues/line/pause").expect(200).await;
    let paused = "No attempts are finishing: none for 5 min; 1 attempt is in flight; 1 queue is paused.";
    assert_eq!(verdict(&page_of(&server, "tenant-a").await), paused);
    server.post("/v2/queues/line/resume").expect(200).await;
    gate.open();
    server.finish().await;
}

#[tokio::test]
async fn it_shows_dead_letters_and_the_next_schedules() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    let id = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "").await;
    server.dead_letter_of(&id).await;
    let cron = [("Upstash-Cron", "5 * * * *"), ("Upstash-Schedule-Id", "five-past")];
    server.schedule_with(&receiver.url("/"), &cron, "").await;
    server.advance(120_000).await;
    let page = page_of(&server, "tenant-a").await;
    assert_eq!(verdict(&page), "Messages moved to the DLQ: 1 in the last 5 minutes.");
    assert!(page.contains(">five-past<") && page.contains(">in 3 min<"), "{page}");
    assert!(page.contains("href=\"/console/dlq\"") && page.contains("oldest <time"), "{page}");
    assert!(!page.contains(" style=") && !page.contains("<script>"), "the policy of pages forbids them");
    let other = page_of(&server, "tenant-b").await;
    assert!(!other.contains("five-past") && other.contains("No schedules yet"), "{other}");
    server.finish().await;
}

#[tokio::test]
async fn in_production_it_requires_a_login() {
    let server = TestServer::with(Setup::serve()).await;
    let answer = server.get("/console").without("Authorization").send().await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/console/login?next=%2Fconsole")));
    for token in [READ_ONLY, TOKEN_B] {
        let body = format!("token={token}");
        let login = server.post("/console/login").without("Authorization").body(body);
        let login = login.header("Content-Type", "application/x-www-form-urlencoded");
        let login = login.header("Origin", format!("http://{}", server.address)).send().await;
        let cookies = login.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        let cookies: Vec<&str> = cookies.filter_map(|(_, value)| value.split(';').next()).collect();
        let page = server.get("/console").without("Authorization").header("Cookie", cookies.join("; "));
        assert!(verdict(&page.expect(200).await.text()).starts_with("All quiet"));
    }
    server.finish().await;
}

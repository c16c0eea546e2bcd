//! What a newcomer meets first: the bare address in a browser, and a typo in a header.

use crate::support::{Setup, TestServer};

const NOWHERE: &str = "http://nowhere.example/";

#[tokio::test]
async fn a_browser_that_opens_the_bare_address_gets_the_console() {
    let server = TestServer::start().await;
    let page = server.get("/").header("Accept", "text/html,application/xhtml+xml").expect(303).await;
    assert_eq!(page.header("location"), Some("/console"));
    server.get("/").header("Accept", "application/json").expect(404).await;
    server.post("/").header("Accept", "text/html").expect(404).await;
    server.get("/nowhere").header("Accept", "text/html").expect(404).await;
    server.finish().await;
}

#[tokio::test]
async fn dev_warns_about_headers_that_do_not_exist() {
    let delayed = |server: &TestServer| server.publish(NOWHERE).header("Upstash-Delay", "1h");
    let server = TestServer::start().await;
    let typo = delayed(&server).header("Upstash-Retry", "5").expect(200).await;
    let expected = "header Upstash-Retry does not exist and is ignored; did you mean Upstash-Retries?";
    assert_eq!(typo.header("posthaste-warning"), Some(expected));
    let right = delayed(&server).header("Upstash-Retries", "5").expect(200).await;
    assert_eq!(right.header("posthaste-warning"), None);
    server.finish_with_pending().await;
    let server = TestServer::with(Setup::serve()).await;
    let typo = delayed(&server).header("Upstash-Retry", "5").expect(200).await;
    assert_eq!(typo.header("posthaste-warning"), None, "only dev warns");
    server.finish_with_pending().await;
}

//! The page Settings: keys on request, a confirmed rotation, and settings without secrets.

use super::{Browser, location};
use crate::support::server::{CURRENT_KEY, NEXT_KEY, READ_ONLY, TOKEN, TOKEN_B};
use crate::support::{Setup, TestServer};
use posthaste::tenants::{Scope, TokenSettings};

#[tokio::test]
async fn keys_are_hidden_until_requested_and_always_from_read_only_tokens() {
    let server = TestServer::with(Setup::serve()).await;
    let owner = Browser::log_in(&server, TOKEN).await;
    let page = owner.see("/console/settings").await;
    assert!(!page.contains(CURRENT_KEY) && !page.contains(NEXT_KEY), "{page}");
    let page = owner.see("/console/settings?keys=show").await;
    assert!(page.contains(CURRENT_KEY) && page.contains(NEXT_KEY), "{page}");
    let reader = Browser::log_in(&server, READ_ONLY).await;
    let page = reader.see("/console/settings?keys=show").await;
    assert!(!page.contains(CURRENT_KEY) && page.contains("this is a read-only token"), "{page}");
    let other = Browser::log_in(&server, TOKEN_B).await;
    let page = other.see("/console/settings?keys=show").await;
    assert!(!page.contains(CURRENT_KEY) && page.contains("Tenant tenant-b") && !page.contains("tenant-a"), "{page}");
    server.finish().await;
}

#[tokio::test]
async fn a_rotation_requires_a_confirmation_and_a_full_token() {
    let server = TestServer::with(Setup::serve()).await;
    let current = || async { server.get("/v2/keys").expect(200).await.json()["current"].clone() };
    let reader = Browser::log_in(&server, READ_ONLY).await;
    reader.refused("/console/settings/rotate", &[("confirmed", "yes")], 403).await;
    let owner = Browser::log_in(&server, TOKEN).await;
    let answer = owner.refused("/console/settings/rotate", &[], 400).await;
    assert!(answer.contains("Nothing was rotated"), "{answer}");
    assert_eq!(current().await, CURRENT_KEY);
    let rotated = owner.send("/console/settings/rotate", &[("confirmed", "yes")]).await;
    assert_eq!(current().await, NEXT_KEY);
    assert_eq!(location(&rotated), "/console/settings?keys=show");
    server.finish().await;
}

#[tokio::test]
async fn settings_are_shown_with_their_source_and_without_secrets() {
    let mut setup = Setup::serve();
    setup.settings.tenants.truncate(1);
    setup.settings.metrics_token = Some("a-token-for-the-scraper".to_owned());
    setup.settings.region = Some("<b>NOWHERE-1</b>".to_owned());
    let server = TestServer::with(setup).await;
    let page = Browser::log_in(&server, TOKEN).await.see("/console/settings").await;
    assert!(page.contains("&lt;b&gt;NOWHERE-1&lt;/b&gt;") && !page.contains("<b>NOWHERE"), "{page}");
    assert!(page.contains("set, hidden here") && !page.contains("a-token-for-the-scraper"), "{page}");
    assert!(!page.contains(TOKEN) && !page.contains(READ_ONLY), "{page}");
    let retention = "<code>dlq_retention</code></th><td>30 days <code class=\"quiet\">2592000s</code>";
    assert!(page.contains(retention), "{page}");
    for text in [
        ">ready<",
        env!("CARGO_PKG_VERSION"),
        "read_only_token",
        "<span class=\"quiet\">never</span>",
        "href=\"/metrics\"",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    server.finish().await;
}

#[tokio::test]
async fn tokens_are_listed_with_scope_and_last_use() {
    let mut setup = Setup::serve();
    let name = "phone <of> Ann".to_owned();
    let token = "pht_of_anns_phone_5kQ2".to_owned();
    setup.settings.tenants[0].tokens =
        vec![TokenSettings { name, scope: Scope::ReadOnly, token: Some(token.clone()), token_sha256: None }];
    let server = TestServer::with(setup).await;
    server.get("/v2/events").token(&token).expect(200).await;
    server.advance(120_000).await;
    let page = Browser::log_in(&server, TOKEN).await.see("/console/settings").await;
    let row = page.split("<tr>").find(|row| row.contains("phone &lt;of&gt; Ann")).expect("it has a row");
    assert!(row.contains("<td>read-only</td>") && row.contains("2 min ago"), "{row}");
    assert!(
        page.contains("uses in the last minute may be missing. The server started at <time") && !page.contains(&token),
        "{page}"
    );
    server.finish().await;
}

//! Where a login leads.

use super::{Browser, location};
use crate::support::server::TOKEN;
use crate::support::{Setup, TestServer};

#[tokio::test]
async fn a_bad_next_at_the_login_means_the_first_page() {
    let server = TestServer::with(Setup::serve()).await;
    let browser = Browser { server: &server, cookie: String::new() };
    for (next, expected) in [
        ("/console/dlq?order=earliestFirst", "/console/dlq?order=earliestFirst"),
        ("/console/\r\nX: y", "/console"),
        ("/console/\u{e9}", "/console"),
        ("//evil.example/console", "/console"),
        ("/console/../v2/keys", "/console"),
    ] {
        let answer = browser.send("/console/login", &[("token", TOKEN), ("next", next)]).await;
        assert_eq!((answer.status, location(&answer)), (303, expected), "{next:?}");
    }
    for query in ["next=/console/dlq&next=/console", "next=%FF", "next=//evil.example"] {
        let page = browser.see(&format!("/console/login?{query}")).await;
        assert!(page.contains(r#"name="next" value="/console""#), "{query}: {page}");
    }
    server.finish().await;
}

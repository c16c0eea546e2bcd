//! The console as a browser meets it: pages, buttons, and who may press them.

mod dlq;
mod flow_control;
mod hostile;
mod login;
mod messages;
mod now;
mod queues;
mod schedules;
mod send;
mod settings;
mod tail;
mod url_groups;
mod workflows;

use crate::support::{Answer, TestServer};

/// Somebody who looks at pages.
pub(crate) struct Browser<'a> {
    server: &'a TestServer,
    cookie: String,
}

impl<'a> Browser<'a> {
    /// At an open console of a development server, as the first of the test's tenants.
    pub(crate) fn open(server: &'a TestServer) -> Browser<'a> {
        Browser::of_tenant(server, "tenant-a")
    }

    pub(crate) fn of_tenant(server: &'a TestServer, tenant: &str) -> Browser<'a> {
        Browser { server, cookie: format!("posthaste-tenant={tenant}") }
    }

    /// Logs in with a token.
    pub(crate) async fn log_in(server: &'a TestServer, token: &str) -> Browser<'a> {
        let mut browser = Browser { server, cookie: String::new() };
        let answer = browser.send("/console/login", &[("token", token)]).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        let cookies = answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        let pairs = cookies.filter_map(|(_, value)| value.split(';').next());
        browser.cookie = pairs.filter(|pair| pair.starts_with("__Host-")).collect::<Vec<_>>().join("; ");
        browser
    }

    /// What says who it is.
    pub(crate) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// A page that is there.
    pub(crate) async fn see(&self, path: &str) -> String {
        let answer = self.look(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.text()
    }

    pub(crate) async fn look(&self, path: &str) -> Answer {
        self.server.get(path).without("Authorization").header("Cookie", &self.cookie).send().await
    }

    /// Sends a form, as a page of the console does.
    pub(crate) async fn send(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.server.post(path).without("Authorization").header("Cookie", &self.cookie);
        let request = request.header("Content-Type", "application/x-www-form-urlencoded");
        request.header("Origin", format!("http://{}", self.server.address)).body(body).send().await
    }

    /// Sends a form that is accepted, and gives the message of the next page.
    pub(crate) async fn press(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let answer = self.send(path, fields).await;
        assert_eq!(answer.status, 303, "{path} {fields:?}: {}", answer.text());
        let flash = answer.header("set-cookie").and_then(|cookie| cookie.split(';').next());
        let flash = flash.and_then(|pair| pair.strip_prefix("posthaste-flash=")).unwrap_or_default();
        percent_encoding::percent_decode_str(flash).decode_utf8_lossy().into_owned()
    }

    /// Sends a form that is refused, and gives the page that says why.
    pub(crate) async fn refused(&self, path: &str, fields: &[(&str, &str)], status: u16) -> String {
        let answer = self.send(path, fields).await;
        assert_eq!(answer.status, status, "{path} {fields:?}: {}", answer.text());
        answer.text()
    }
}

/// Where an answer leads.
pub(crate) fn location(answer: &Answer) -> &str {
    answer.header("location").unwrap_or_else(|| panic!("{:?} lead nowhere", answer.headers))
}

/// Fails unless this field alone is marked as invalid, and its reason has this text.
pub(crate) fn expect_marked(page: &str, field: &str, text: &str) {
    let marked: Vec<&str> = page.split('<').filter(|tag| tag.contains("aria-invalid=\"true\"")).collect();
    assert_eq!(marked.len(), 1, "{field}: {marked:?} in {page}");
    expect_texts(marked[0], &[&format!("name=\"{field}\""), &format!("{field}-problem\"")]);
    let reason = page.split_once(&format!("<p id=\"{field}-problem\">")).map(|(_, rest)| rest.split("</p>").next());
    let reason = reason.flatten().unwrap_or_else(|| panic!("{field} has no reason in {page}"));
    expect_texts(reason, &[text]);
}

/// Fails unless all texts are on the page.
pub(crate) fn expect_texts(page: &str, texts: &[&str]) {
    for text in texts {
        assert!(page.contains(text), "{text:?} is not in {page}");
    }
}

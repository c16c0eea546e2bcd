//! The style sheet and the script, inside the binary.

use super::ROOT;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use posthaste_wire::encoding::hex;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// Name, type, text.
const ASSETS: [(&str, &str, &str); 3] = [
    ("console.css", "text/css; charset=utf-8", include_str!("assets/console.css")),
    ("console.js", "text/javascript; charset=utf-8", include_str!("assets/console.js")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

/// Changes with their contents, so that browsers may keep what they have.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for (_, _, text) in ASSETS {
        hash.update(text);
    }
    hex(&hash.finalize()[..8])
});

/// Where an asset is.
pub(super) fn path(name: &str) -> String {
    format!("{ROOT}/assets/{}/{name}", *VERSION)
}

pub(super) async fn asset(Path((_, name)): Path<(String, String)>) -> Response {
    match ASSETS.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => {
            let kept = HeaderValue::from_static("public, max-age=31536000, immutable");
            ([(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::CACHE_CONTROL, kept)], *text)
                .into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

//! Cases about what this version does not have. With the feature its case fails here, and moves to `table`.

/// Servers that this one does not use: what must not be among its dependencies as long as that is so.
const SERVERS: [(&str, &[&str]); 2] =
    [("lim-pg-readonly", &["postgres", "sqlx"]), ("lim-redis-down", &["redis", "fred"])];

const MANIFEST: &str = include_str!("../../../Cargo.toml");

pub(super) fn ids() -> impl Iterator<Item = &'static str> {
    SERVERS.iter().map(|(id, _)| *id)
}

#[test]
fn servers_that_cannot_fail_are_not_used() {
    for (id, crates) in SERVERS {
        for name in crates {
            let is_used = MANIFEST.lines().any(|line| line.starts_with(name) || line.contains(&format!("-{name}")));
            assert!(!is_used, "{id} can be run now: {name} is used");
        }
    }
}

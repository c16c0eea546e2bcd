//! Lists of fields to redact: an accepted list hides what it names, also after it was stored.

use posthaste_wire::header;
use posthaste_wire::id::TenantId;
use posthaste_wire::redact::{Marks, RedactFields};

pub(crate) fn run(data: &[u8]) {
    let mark = Marks::of(&[1; 32], TenantId(1)).mark(data);
    assert!(mark.len() == "REDACTED:".len() + 64 && mark.is_ascii());
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = match RedactFields::parse(text) {
        Ok(read) => read,
        Err(refusal) => return super::check_refusal(&refusal.to_string()),
    };
    assert!(!read.is_none(), "{text:?} was accepted and hides nothing");
    assert!(read.headers.len() <= 100, "{text:?}");
    for name in &read.headers {
        assert!(header::is_valid_name(name) && header::canonical(name) == *name, "{text:?}");
        assert!(read.hides_header(&name.to_ascii_uppercase()), "{text:?}");
    }
    let stored = serde_json::to_string(&read).expect("it can be stored");
    assert_eq!(serde_json::from_str::<RedactFields>(&stored).expect("it was stored"), read);
    let mut items: Vec<String> = read.headers.iter().map(|name| format!("header[{name}]")).collect();
    items.extend(read.body.then(|| "body".to_owned()));
    items.extend(read.all_headers.then(|| "header".to_owned()));
    assert_eq!(RedactFields::parse(&items.join(" , ")), Ok(read.clone()), "{text:?}");
    assert_eq!(read.union(&read), read);
    assert_eq!(read.union(&RedactFields::default()), read);
}

//! One module per resource, as the URLs have them.

mod batch;
mod dlq;
mod events;
mod keys;
mod messages;
mod publish;
mod url_groups;

//! The server as its users meet it: real HTTP in, real HTTP out, in one process.
//!
//! `support` starts servers and receivers, `api` mirrors the URLs, the other modules are stories that
//! cross them. Time is a manual clock unless a test says otherwise, and no test sleeps: it waits for a
//! request that arrives, or asks the API until it says what is expected.

mod api;
mod callbacks;
mod console;
mod dedup;
mod delivery;
mod edge;
mod error_texts;
mod first_contact;
mod hostile;
mod listener;
mod load;
mod operators;
mod quotas;
mod restart;
mod schedules;
mod secrets;
mod storing;
mod support;
mod tenants;
mod token_guesses;
mod unauthenticated_cost;

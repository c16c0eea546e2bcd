//! One module per resource, as the URLs have them.

mod batch;
mod bulk_actions;
mod cors;
mod dlq;
mod events;
mod flow_control;
mod keys;
mod llm;
mod messages;
mod openapi;
mod publish;
mod queues;
mod retry_now;
mod schedules;
mod url_groups;
mod v1;
mod waiters;
mod workflow_bodies;
mod workflow_dlq;
mod workflow_logs;
mod workflow_runs;
mod workflow_turns;

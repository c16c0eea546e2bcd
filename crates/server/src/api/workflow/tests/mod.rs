//! Logs of runs that the engine itself has made.

mod events;
mod groups;
mod shapes;
mod story;

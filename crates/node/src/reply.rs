//! How a caller gets an answer, and when.
//!
//! An answer to a command means that its outcome is on disk, so a [`Reply`] goes through the batch and leaves after the commit;
//! there is no other way to send one. Only a refusal, which stores nothing, may leave at once. A [`ReadReply`] promises nothing.

use crate::batch::Committed;

type Send<T> = Box<dyn FnOnce(T) + std::marker::Send>;

/// The way back to a caller who wants something changed.
///
/// ```compile_fail
/// use posthaste_node::Reply;
///
/// let reply: Reply<u32> = Reply::new(|count| println!("{count}"));
/// reply.send(1); // private, and it takes the proof of a commit
/// ```
///
/// ```compile_fail
/// let proof = posthaste_node::Committed(()); // only a committed batch has one
/// ```
pub struct Reply<T> {
    send: Send<T>,
    tag: u64,
}

impl<T> Reply<T> {
    /// A reply that is sent by this function.
    pub fn new(send: impl FnOnce(T) + std::marker::Send + 'static) -> Reply<T> {
        Reply { send: Box::new(send), tag: 0 }
    }

    /// The same, and observers can tell by the tag which request something happened for.
    pub fn tagged(tag: u64, send: impl FnOnce(T) + std::marker::Send + 'static) -> Reply<T> {
        Reply { send: Box::new(send), tag }
    }

    /// The tag, or 0.
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    /// Sends the answer. Only a commit gives the proof that it takes.
    pub(crate) fn send(self, value: T, _: &Committed) {
        (self.send)(value);
    }
}

impl<T, E> Reply<Result<T, E>> {
    /// Refuses the command. Nothing was changed for it, so there is nothing to wait for.
    pub fn refuse(self, error: E) {
        (self.send)(Err(error));
    }
}

/// The way back to a caller who only reads. Its answer is true at the moment, and need not survive a crash.
pub struct ReadReply<T>(Send<T>);

impl<T> ReadReply<T> {
    /// A reply that is sent by this function.
    pub fn new(send: impl FnOnce(T) + std::marker::Send + 'static) -> ReadReply<T> {
        ReadReply(Box::new(send))
    }

    /// Sends the answer.
    pub fn send(self, value: T) {
        (self.0)(value);
    }
}

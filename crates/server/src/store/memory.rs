//! The in-memory reference model.

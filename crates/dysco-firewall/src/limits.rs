//! Version of the documents, and the bounds of their number and size.

/// Version of the documents.
pub(crate) const VERSION: u32 = 1;
/// Greatest number of documents of one session.
pub(crate) const MAX_DOCUMENTS: usize = 64;
/// Greatest number of bytes of all documents of one session, as JSON.
pub(crate) const MAX_BYTES: usize = 32 * 1024;

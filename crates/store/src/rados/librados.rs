//! The cluster behind librados.

//! Layer: sys.

//! Credentials (skeleton).

use std::time::SystemTime;

/// One identity's certificate, key and roots.
pub struct Credential {
    not_after: SystemTime,
}

impl Credential {
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }
}

//! Which build this is: the same facts, in the same forms, as the reference prints, dumps and exports.

use std::fmt;

use serde::Serialize;

/// The `version` object of `/config_dump`; `Display` is the line of `version` and of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    pub version: &'static str,
    pub git_revision: &'static str,
    pub rust_version: &'static str,
    pub build_profile: &'static str,
    /// `Clean` or `Modified`.
    pub build_status: &'static str,
    pub istio_version: String,
    pub crypto_provider: &'static str,
}

impl BuildInfo {
    /// `istio_version` is the environment's `ISTIO_META_ISTIO_VERSION`.
    pub fn new(istio_version: Option<&str>) -> Self {
        Self {
            version: env!("RINGWAY_BUILD_VERSION"),
            git_revision: env!("RINGWAY_BUILD_REVISION"),
            rust_version: env!("RINGWAY_BUILD_RUST"),
            build_profile: env!("RINGWAY_BUILD_PROFILE"),
            build_status: env!("RINGWAY_BUILD_STATUS"),
            istio_version: istio_version.unwrap_or("unknown").to_owned(),
            crypto_provider: "tls-aws-lc",
        }
    }
}

impl fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "version.BuildInfo{{Version:{:?}, GitRevision:{:?}, RustVersion:{:?}, BuildProfile:{:?}, \
             BuildStatus:{:?}, IstioVersion:{:?}, CryptoProvider:{:?}}}",
            self.version,
            self.git_revision,
            self.rust_version,
            self.build_profile,
            self.build_status,
            self.istio_version,
            self.crypto_provider,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_form_of_the_reference() {
        let line = BuildInfo::new(None).to_string();
        let inner = line.strip_prefix("version.BuildInfo{").and_then(|rest| rest.strip_suffix('}')).unwrap();
        let names: Vec<_> = inner.split(", ").map(|part| part.split(":\"").next().unwrap()).collect();
        let expected = [
            "Version",
            "GitRevision",
            "RustVersion",
            "BuildProfile",
            "BuildStatus",
            "IstioVersion",
            "CryptoProvider",
        ];
        assert_eq!(names, expected, "{line}");
        assert!(line.contains("IstioVersion:\"unknown\""));
        assert!(BuildInfo::new(Some("1.30.0")).to_string().contains("IstioVersion:\"1.30.0\""));
    }
}

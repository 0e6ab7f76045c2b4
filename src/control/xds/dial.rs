//! The discovery service as a `Target` of the control plane.

use tonic::Status;
use tonic::metadata::MetadataMap;

use super::{Dial, Dialing};
use crate::control::grpc::Target;

impl Dial for Target {
    fn at(&self) -> &str {
        Self::at(self)
    }

    fn dial(&self) -> Dialing<'_> {
        Box::pin(async {
            let mut headers = MetadataMap::new();
            let at = Self::at(self);
            let unsent = |error| format!("gRPC connection error connecting to {at}: {error}");
            self.headers(&mut headers).map_err(unsent)?;
            let channel = Box::pin(self.connect()).await.map_err(|error| error.to_string())?;
            Ok((channel, headers))
        })
    }

    fn explain(&self, status: &Status) -> String {
        Self::explain(self, status).to_string()
    }
}

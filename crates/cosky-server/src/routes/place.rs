//! Where a request points: the names in its path, checked before a handler sees them.

use axum::extract::FromRequestParts;
use cosky_core::{Error, InstanceId, Namespace, ServiceId, limits::INSTANCE_ID_BYTES};
use http::request::Parts;

use crate::{ApiError, extract::Path};

/// A namespace.
pub(super) struct InNamespace(pub(super) Namespace);

/// A service in a namespace.
pub(super) struct InService(pub(super) Namespace, pub(super) ServiceId);

/// An instance of a service in a namespace.
pub(super) struct AtInstance {
    pub(super) namespace: Namespace,
    pub(super) service: ServiceId,
    /// The id in the one form under which it is stored, or the text as it came when it follows no grammar: what a JVM
    /// writer stored may be such a text, and all others name nothing.
    pub(super) id: String,
}

/// An instance id in the form under which it is stored, so that an IPv6 address finds its instance in every spelling.
pub(super) fn canonical(id: &str) -> Option<String> {
    InstanceId::parse(id).ok().map(|parsed| parsed.as_str().to_owned())
}

impl<S: Send + Sync> FromRequestParts<S> for InNamespace {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(namespace) = Path::<String>::from_request_parts(parts, state).await?;
        Ok(Self(Namespace::new(&namespace)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for InService {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path((namespace, service)) = Path::<(String, String)>::from_request_parts(parts, state).await?;
        Ok(Self(Namespace::new(&namespace)?, ServiceId::new(&service)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AtInstance {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path((namespace, service, id)) =
            Path::<(String, String, String)>::from_request_parts(parts, state).await?;
        if id.len() > INSTANCE_ID_BYTES {
            let reason = format!("is longer than {INSTANCE_ID_BYTES} bytes");
            return Err(Error::invalid("instanceId", reason).into());
        }
        let id = canonical(&id).unwrap_or(id);
        Ok(Self { namespace: Namespace::new(&namespace)?, service: ServiceId::new(&service)?, id })
    }
}

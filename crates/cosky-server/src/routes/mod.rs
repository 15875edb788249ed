//! The registry's routes.

use utoipa_axum::router::OpenApiRouter;

use crate::AppState;

/// All of them.
pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
}

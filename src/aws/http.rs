//! AWS's clients over the HTTP client that all else uses. The one that the SDK brings would read the machine's root
//! certificates for itself and be a second connection pool and TLS setup in the binary.

use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use reqwest::{Body, Client, Request};

use crate::https::{self, Protocol};

/// AWS answers from nearby.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends what the SDK has signed, and says of a failure whether another try can help.
#[derive(Debug, Clone)]
struct Connector {
    /// The client, or why there is none: the SDK's configuration cannot fail, a call can.
    client: Result<Client, String>,
}

/// The HTTP client of all AWS clients of the process. Other time limits than that of connecting are the SDK's.
#[must_use]
pub fn client() -> SharedHttpClient {
    let client = https::http_client(Protocol::Http1, CONNECT_TIMEOUT);
    let connector = SharedHttpConnector::new(Connector { client });
    http_client_fn(move |_, _| connector.clone())
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let client = self.client.clone();
        HttpConnectorFuture::new(async move {
            let client = client.map_err(|why| ConnectorError::user(why.into()))?;
            send(client, request).await
        })
    }
}

async fn send(client: Client, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
    let request = Request::try_from(request.map(Body::wrap)).map_err(failure)?;
    let answer = hyper::Response::<Body>::from(client.execute(request).await.map_err(failure)?);
    HttpResponse::try_from(answer.map(SdkBody::from_body_1_x))
        .map_err(|error| ConnectorError::other(error.into(), None))
}

/// What never came to be, broke or took too long is tried again: all calls of ours may be repeated, see [`super`].
fn failure(error: reqwest::Error) -> ConnectorError {
    let kind = if error.is_timeout() {
        ConnectorError::timeout
    } else if error.is_builder() {
        ConnectorError::user
    } else {
        ConnectorError::io
    };
    kind(error.without_url().into())
}

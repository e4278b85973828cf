"""Classification of errors: what S3 and its SDK say, judged as one of ours."""

from __future__ import annotations

from dataclasses import replace

from mds.errors import (
    CorruptError,
    NotFoundError,
    StalledError,
    StoreError,
    TransientError,
    UnauthenticatedError,
    UnreachableError,
)
from mds.storage.translate import Failure, status_failure


class StoreAnswerError(Exception):
    """An answer that says to come again later, before it is judged."""

    def __init__(self, status: int, code: str, message: str, retry_after: str | None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message
        self.retry_after = retry_after


def _status(error: Exception) -> int:
    answer = getattr(error, "response", None)
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if answer else 0


def signature_refused(error: Exception) -> bool:
    """Whether a request failed for its signature, so that another or none may do better."""
    from botocore.exceptions import ClientError, NoCredentialsError

    code = error.response["Error"].get("Code") if isinstance(error, ClientError) else ""
    if code in ("RequestTimeout", "InvalidRange"):
        return False
    return isinstance(error, NoCredentialsError) or code in _UNKNOWN or _status(error) == 400


_UNKNOWN = {"InvalidAccessKeyId", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_BY_CODE: dict[str, type[StoreError]] = {
    **dict.fromkeys(_UNKNOWN, UnauthenticatedError),
    "SignatureDoesNotMatch": UnauthenticatedError,
    "RequestExpired": UnauthenticatedError,
    "NoSuchKey": NotFoundError,
    "NoSuchBucket": NotFoundError,
    "InvalidRange": CorruptError,
    "RequestTimeout": TransientError,
    "SlowDown": TransientError,
    "Throttling": TransientError,
    "ThrottlingException": TransientError,
    "InternalError": TransientError,
    "ServiceUnavailable": TransientError,
    "BadDigest": TransientError,
}
_BY_NAME: dict[str, type[StoreError]] = {
    "NoCredentialsError": UnauthenticatedError,
    "PartialCredentialsError": UnauthenticatedError,
    "NoAuthTokenError": UnauthenticatedError,
    "TokenRetrievalError": UnauthenticatedError,
    "UnauthorizedSSOTokenError": UnauthenticatedError,
    "SSOTokenLoadError": UnauthenticatedError,
    # The metadata service of a busy machine; it answers a moment later.
    "CredentialRetrievalError": TransientError,
    "MetadataRetrievalError": TransientError,
    "ReadTimeoutError": StalledError,
    "ConnectTimeoutError": UnreachableError,
    "FlexibleChecksumError": TransientError,
    "IncompleteReadError": TransientError,
    "ResponseStreamingError": TransientError,
    "ConnectionClosedError": TransientError,
    "EndpointConnectionError": UnreachableError,
}


def classify(error: Exception) -> Failure | None:
    """Judge what botocore raises."""
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, StoreAnswerError):
        return _judge(error.status, error.code, error.message, error.retry_after)
    if isinstance(error, ClientError):
        code = str(error.response["Error"].get("Code", ""))
        message = str(error.response["Error"].get("Message", ""))
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return _judge(_status(error), code, message, headers.get("retry-after"))
    name = type(error).__name__
    if isinstance(error, BotoCoreError) and name in _BY_NAME:
        return Failure(_BY_NAME[name], str(error))
    return None


def _judge(status: int, code: str, message: str, retry_after: str | None) -> Failure:
    text = f"{code}: {message}" if message not in ("", code) and not code.isdecimal() else code
    judged = status_failure(status, text, retry_after)
    return replace(judged, kind=_BY_CODE.get(code, judged.kind))

"""Storage options as other libraries spell them: fsspec, object_store (polars), boto3 and pyarrow.

`own_options` gives them the names of this library, so that stores know one name for each option and
the cache knows that two spellings name one source. An option without a counterpart stays as it is:
the store refuses it, with the names that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mds.errors import ConfigError
from mds.storage._url import scheme_of

_S3 = {
    # s3fs, a part of fsspec
    "key": "aws_access_key_id",
    "username": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "password": "aws_secret_access_key",
    "token": "aws_session_token",
    "anon": "anonymous",
    "profile": "profile_name",
    # object_store, which polars and delta-rs use
    "aws_endpoint_url": "endpoint_url",
    "aws_endpoint": "endpoint_url",
    "endpoint": "endpoint_url",
    "aws_region": "region_name",
    "region": "region_name",
    "aws_default_region": "region_name",
    "default_region": "region_name",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "aws_token": "aws_session_token",
    "aws_profile": "profile_name",
    "aws_skip_signature": "anonymous",
    "skip_signature": "anonymous",
    "aws_request_payer": "requester_pays",
    "request_payer": "requester_pays",
    # pyarrow
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "endpoint_override": "endpoint_url",
}
_GS = {
    "service_account": "credentials_file",
    "service_account_path": "credentials_file",
    "google_service_account": "credentials_file",
    "google_service_account_path": "credentials_file",
    "google_application_credentials": "credentials_file",
    "application_credentials": "credentials_file",
    "google_skip_signature": "anonymous",
    "skip_signature": "anonymous",
    "anon": "anonymous",
}
_AZURE = {
    "anon": "anonymous",
    "azure_storage_account_name": "account_name",
    "azure_storage_account_key": "account_key",
    "azure_storage_access_key": "account_key",
    "access_key": "account_key",
    "azure_storage_sas_token": "sas_token",
    "azure_storage_sas_key": "sas_token",
    "sas_key": "sas_token",
    "azure_storage_connection_string": "connection_string",
    "azure_storage_endpoint": "endpoint",
    "azure_endpoint": "endpoint",
    "azure_skip_signature": "anonymous",
    "skip_signature": "anonymous",
}
_HF = {"hf_token": "token", "use_auth_token": "token", "api_key": "token"}
#: By scheme: own names of options, by their names elsewhere.
_NAMES: dict[str, Mapping[str, str]] = {
    "s3": _S3,
    "gs": _GS,
    "azure": _AZURE,
    "azure-dl": _AZURE,
    "hf": _HF,
}
_ADDRESS = "write http:// or https:// in endpoint_url="
#: By scheme: what to do in place of options of other libraries that have no counterpart here.
_REMEDIES: dict[str, Mapping[str, str]] = {
    "s3": {
        "use_ssl": _ADDRESS,
        "allow_http": _ADDRESS,
        "aws_allow_http": _ADDRESS,
        "config_kwargs": "give addressing_style= and endpoint_url=",
        "config": "give addressing_style= and endpoint_url=",
        "session": "give profile_name=",
    },
    "gs": {
        "service_account_key": "write it to a file and give credentials_file=",
        "google_service_account_key": "write it to a file and give credentials_file=",
        "token": "give credentials_file= or anonymous=True, or log in by gcloud",
    },
    "azure": dict.fromkeys(
        ("tenant_id", "client_id", "client_secret", "credential"),
        "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET in the environment",
    ),
}
#: Options that are on or off; object_store writes them as text, such as "true".
_FLAGS = ("anonymous", "requester_pays", "verify", "checksums")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def own_options(url: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a store under the names that this library gives them.

    - ``url`` (str): URL of the store, whose scheme determines the names.
    - ``options`` (Mapping[str, Any] | None): Options of the user.

    Raises ConfigError if an option is given twice, under two names, with different values.

    >>> own_options("s3://bucket", {"key": "K", "client_kwargs": {"endpoint_url": "http://host"}})
    {'aws_access_key_id': 'K', 'endpoint_url': 'http://host'}
    """
    scheme = scheme_of(url)
    names = _NAMES.get(scheme)
    if not options or names is None:
        return dict(options or {})
    own: dict[str, Any] = {}
    spelling: dict[str, str] = {}  # that the user has given, by the name here
    for spelled_name, value in _flat(scheme, options):
        name = names.get(spelled_name.lower(), spelled_name)
        if name in _FLAGS and isinstance(value, str):
            value = _WORDS.get(value.lower(), value)  # noqa: PLW2901 - the value as it is here
        if name in own and own[name] != value:
            raise ConfigError(
                f"storage_options: {spelling[name]!r} and {spelled_name!r} are one option, "
                f"{name!r}, with two values. Leave one of them out."
            )
        own[name], spelling[name] = value, spelled_name
    return own


def remedy_for(scheme: str, name: str) -> str:
    """Return what to do in place of an option that a store refuses, as a sentence, or ''.

    >>> remedy_for("s3", "use_ssl")
    ' Instead, write http:// or https:// in endpoint_url=.'
    """
    scheme = "azure" if scheme == "azure-dl" else scheme
    remedy = _REMEDIES.get(scheme, {}).get(name)
    return f" Instead, {remedy}." if remedy else ""


def _flat(scheme: str, options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return pairs of a name and a value, without nested dicts and options that say nothing here.

    fsspec has arguments of boto3 in a dict ``client_kwargs``. object_store needs ``allow_http`` for
    addresses of http, which are used here as they are given.
    """
    pairs = []
    for name, value in options.items():
        if scheme == "s3" and name == "client_kwargs" and isinstance(value, Mapping):
            pairs += _flat(scheme, value)
        elif scheme == "gs" and name == "token":
            pairs += _google_token(value)
        elif name.lower() in ("allow_http", "aws_allow_http") and _is_on(value):
            continue
        elif name.lower() in _VIRTUAL_HOSTED:
            pairs.append(("addressing_style", "virtual" if _is_on(value) else "path"))
        else:
            pairs.append((name, value))
    return pairs


_VIRTUAL_HOSTED = ("virtual_hosted_style_request", "aws_virtual_hosted_style_request")


def _is_on(value: Any) -> bool:
    return bool(_WORDS.get(str(value).lower(), False))


def _google_token(value: Any) -> list[tuple[str, Any]]:
    """Return the option that a ``token`` of gcsfs means, as a pair in a list.

    It is "anon", "google_default", or the path of a key file; others are refused by the store.
    """
    if value == "anon":
        return [("anonymous", True)]
    if value in ("google_default", None):  # the default here, too
        return []
    is_path = isinstance(value, str) and value.endswith(".json")
    return [("credentials_file" if is_path else "token", value)]

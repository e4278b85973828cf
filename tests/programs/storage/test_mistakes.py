"""Permanent mistakes end soon: every way to misconfigure a store, against real servers.

Each is an error that names the remedy after at most 15 s of a clock that the test drives, if the
server never answered. With the remedy the same process reads. What may pass says the remedy at
once and keeps its time.
"""

import concurrent.futures
import contextlib
import os
import pickle
import socket
import time

import pytest

from devtools import dialects, servers
from devtools.forwardproxy import forward_proxy
from devtools.httpserver import FolderHandler, http_server
from mds import MDSWriter, StreamingDataset
from mds._process import fork_safe
from mds.errors import (
    ConfigError,
    DeniedError,
    NotFoundError,
    StoreError,
    UnauthenticatedError,
)
from mds.formats._source import Files, parse_place
from mds.storage import RetryPolicy, _remedies, _wrappers, open_store
from mds.storage._retry import Clock
from mds.storage._waiting import WaitingLines, waiting
from tests.programs.storage.test_trust import https_server, self_signed

SECONDS = 15
SECRETS = ("canary-secret", "canary-password")


class FakeClock:
    """The time of the machine, plus the waits between tries, which take none."""

    def __init__(self):
        self.slept = 0.0

    def now(self):
        return time.monotonic() + self.slept

    def sleep(self, seconds):
        self.slept += seconds


@pytest.fixture(autouse=True)
def strangers(monkeypatch):
    """As in a new process, to which no server has answered."""
    for module, name in (
        (_wrappers, "_answered"),
        (_remedies, "_said"),
        (_remedies, "_tls_servers"),
        (_remedies, "_answers"),
    ):
        known = getattr(module, name)
        monkeypatch.setattr(module, name, type(known)())
    monkeypatch.setattr(_wrappers, "_newest", [()])


@pytest.fixture(autouse=True)
def resolver(monkeypatch):
    """A resolver that knows at once that a name does not exist, as that of most networks."""
    resolve = socket.getaddrinfo

    def answer(host, *rest, **more):
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A file with a key and a certificate for 127.0.0.1, which nobody has signed."""
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def web_tls(tmp_path_factory):
    """URL of a web server with TLS, and the file of its certificate."""
    folder = tmp_path_factory.mktemp("web-tls")
    (folder / "x").write_bytes(b"content")
    with https_server(str(folder), folder, FolderHandler) as (url, path):
        yield url, path


@pytest.fixture(scope="session")
def s3_strict(tmp_path_factory, certificate):
    """An S3 server with TLS that knows one key."""
    folder = tmp_path_factory.mktemp("s3-tls")
    (folder / "bucket").mkdir()
    (folder / "bucket" / "x").write_bytes(b"content")
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(
                servers.s3_server(str(folder), auth="access,secret", certificate=certificate)
            )
        except servers.ServerMissing as error:
            pytest.skip(str(error))


@pytest.fixture
def places(web, web_tls, s3, s3_strict, sftp, certificate, tmp_path):
    """What the settings of `MISTAKES` name."""
    with open(os.path.join(web[1], "x"), "wb") as file:
        file.write(b"content")
    open_store("s3://bucket", options={"endpoint_url": s3}).put("x", b"content")
    (tmp_path / "known_hosts").write_text(sftp.known_hosts)
    return {
        "web": web[0],
        "web_tls": web_tls[0],
        "web_certificate": web_tls[1],
        "s3": s3,
        "s3_tls": s3_strict,
        "certificate": certificate,
        "closed": f"127.0.0.1:{servers.free_port()}",
        "sftp": f"127.0.0.1:{sftp.port}",
        "sftp_login": f"{sftp.user}:se%3Acr%40t",
        "known_hosts": str(tmp_path / "known_hosts"),
        "web_address": web[0].removeprefix("http://"),
        "s3_address": s3.removeprefix("http://"),
        "tls_address": s3_strict.removeprefix("https://"),
        "web_tls_address": web_tls[0].removeprefix("https://"),
    }


KEYS = {"aws_access_key_id": "access", "aws_secret_access_key": "secret"}
WRONG_KEY = {"aws_access_key_id": "nobody", "aws_secret_access_key": "canary-secret"}
WRONG_SECRET = {"aws_access_key_id": "access", "aws_secret_access_key": "canary-secret"}
STRICT = {"endpoint_url": "{s3_tls}", "verify": "{certificate}"}
WORKS = {"endpoint_url": "{s3}"}
KNOWN = {"known_hosts_file": "{known_hosts}"}
LOGIN = "sftp://{sftp_login}@{sftp}/"

#: By name: URL and options that are wrong, a part of the error, and URL and options that work.
MISTAKES = {
    "http: TLS to a plain port": (
        ("https://{web_address}", {}),
        "write http:// instead of https:// in the URL",
        ("{web}", {}),
    ),
    "http: a port of TLS without it": (
        ("http://{web_tls_address}", {"verify": "{web_certificate}"}),
        "speaks TLS: write https:// instead of http:// in the URL",
        ("{web_tls}", {"verify": "{web_certificate}"}),
    ),
    "http: certificate": (
        ("{web_tls}", {}),
        "give the storage option verify=, a file with the certificates to trust",
        ("{web_tls}", {"verify": "{web_certificate}"}),
    ),
    "http: host name": (
        ("http://no-such-host.invalid", {}),
        "Correct the host in the URL",
        ("{web}", {}),
    ),
    "http: port of SSH": (
        ("http://{sftp}", {}),
        "is a server of another kind: correct the port in the URL",
        ("{web}", {}),
    ),
    "s3: TLS to a plain port": (
        ("s3://bucket", {"endpoint_url": "https://{s3_address}"}),
        "write http:// instead of https:// in the storage option endpoint_url= (S3_ENDPOINT_URL)",
        ("s3://bucket", WORKS),
    ),
    "s3: a port of TLS without it": (
        ("s3://bucket", {"endpoint_url": "http://{tls_address}", **KEYS}),
        "speaks TLS: write https:// instead of http:// in the storage option endpoint_url=",
        ("s3://bucket", {**STRICT, **KEYS}),
    ),
    "s3: certificate": (
        ("s3://bucket", {"endpoint_url": "{s3_tls}", **KEYS}),
        "give the storage option verify=, a file with the certificates to trust, or set AWS_CA_",
        ("s3://bucket", {**STRICT, **KEYS}),
    ),
    "s3: name in the certificate": (
        ("s3://bucket", {**STRICT, **KEYS, "endpoint_url": "https://localhost:{tls_port}"}),
        "The certificate has the name of another host: write this name in",
        ("s3://bucket", {**STRICT, **KEYS}),
    ),
    "s3: host name": (
        ("s3://bucket", {"endpoint_url": "http://no-such-host.invalid"}),
        "Correct the host in the storage option endpoint_url= (S3_ENDPOINT_URL)",
        ("s3://bucket", WORKS),
    ),
    "s3: port of SSH": (
        ("s3://bucket", {"endpoint_url": "http://{sftp}"}),
        "is a server of another kind: correct the port",
        ("s3://bucket", WORKS),
    ),
    "s3: key": (
        ("s3://bucket", {**STRICT, **WRONG_KEY}),
        "InvalidAccessKeyId…Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ("s3://bucket", {**STRICT, **KEYS}),
    ),
    "s3: secret": (
        ("s3://bucket", {**STRICT, **WRONG_SECRET}),
        "SignatureDoesNotMatch…Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ("s3://bucket", {**STRICT, **KEYS}),
    ),
    "s3: no signature": (
        ("s3://bucket", {**STRICT, "anonymous": True}),
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ("s3://bucket", {**STRICT, **KEYS}),
    ),
    "s3: bucket": (
        ("s3://no-such-bucket", WORKS),
        "404",
        ("s3://bucket", WORKS),
    ),
    "sftp: port of HTTP": (
        ("sftp://u:canary-password@{web_address}/", KNOWN),
        "is a server of another kind: correct the port in the URL",
        (LOGIN, KNOWN),
    ),
    "sftp: host name": (
        ("sftp://u:canary-password@no-such-host.invalid/", KNOWN),
        "Correct the host in the URL.",
        (LOGIN, KNOWN),
    ),
    "sftp: password": (
        ("sftp://u:canary-password@{sftp}/", KNOWN),
        "Write sftp://user:password@host/, or set COMPOSER_SFTP_KEY_FILE",
        (LOGIN, KNOWN),
    ),
    "sftp: unknown server": (
        ("sftp://u:canary-password@{sftp}/", {}),
        "Put the server's key into the file that COMPOSER_SFTP_KNOWN_HOSTS_FILE",
        (LOGIN, KNOWN),
    ),
}


def filled(values, places):
    """Return a URL and options with the places that they name."""
    port = places["tls_address"].rpartition(":")[2]
    url, options = values
    fill = {**places, "tls_port": port}
    return url.format(**fill), {
        name: value.format(**fill) if isinstance(value, str) else value
        for name, value in options.items()
    }


#: What a reader, a search and a writer do first.
VERBS = {
    "get": lambda store: store.get("x"),
    "range": lambda store: store.get_range("x", 0, 3),
    "head": lambda store: store.head("x"),
    "list": lambda store: next(store.list()),
    "put": lambda store: store.put("y", b"1"),
}


def failure(url, options, verb, clock=None):
    """Return the error of a verb of a new store, and the seconds that it took."""
    store = open_store(url, options=options, retry=RetryPolicy(9, 3600))
    store.clock = clock = clock or FakeClock()
    started = clock.now()
    with pytest.raises(StoreError) as caught:
        VERBS[verb](store)
    return caught.value, clock.now() - started


def check_mistake(places, name, verbs, clock=None):
    """Check the errors of some verbs for an entry of `MISTAKES`."""
    wrong, remedy, _ = MISTAKES[name]
    for verb in verbs:
        if verb == "list" and name.startswith("http"):
            continue  # refused without a request
        error, seconds = failure(*filled(wrong, places), verb, clock)
        assert seconds < SECONDS, f"{verb}: {error}"
        for part in remedy.split("…"):
            assert part in str(error), f"{verb}: {error}"
        assert not any(secret in str(error) for secret in SECRETS)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_soon_and_names_its_remedy(places, name, caplog):
    """Whatever the policy says; with what it names, the same process reads."""
    check_mistake(places, name, ["get", "head"])
    assert not any(secret in caplog.text for secret in SECRETS)
    url, options = filled(MISTAKES[name][2], places)
    fixed = open_store(url, options=options)
    if name.startswith("sftp"):
        fixed.put("x", b"content")
    assert fixed.get("x") == b"content"


@pytest.mark.slow
def test_a_mistake_ends_within_seconds_of_the_machine(places):
    """All mistakes and all verbs at a time, with its clock."""
    with concurrent.futures.ThreadPoolExecutor(len(MISTAKES)) as pool:
        checks = [pool.submit(check_mistake, places, n, VERBS, Clock()) for n in MISTAKES]
        for check in checks:
            check.result()


# ------------------------------------------------------------------------------- the other clouds


@pytest.mark.slow
def test_a_certificate_of_azure(azure_tls, certificate, monkeypatch):
    """Reads and the SDK's requests trust what the two variables name."""
    for verb in ("get", "head", "list", "put"):
        error, seconds = failure("azure://container", {"connection_string": azure_tls}, verb)
        assert seconds < SECONDS
        assert "set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to a file" in str(error)
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate)
    store = open_store("azure://container", options={"connection_string": azure_tls})
    for read in (lambda: store.get("x"), lambda: store.head("x"), lambda: [*store.list()]):
        with pytest.raises(NotFoundError, match="ContainerNotFound"):
            read()


@pytest.fixture(scope="session")
def azure_tls(certificate):
    """Connection string of an Azure server with TLS, without containers."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(servers.azure_server(certificate))
        except servers.ServerMissing as error:
            pytest.skip(str(error))


def azure_options(connection, **changes):
    """Return the options of an account, with some changed."""
    facts = dict(part.split("=", 1) for part in connection.strip(";").split(";"))
    options = {
        "account_name": facts["AccountName"],
        "account_key": facts["AccountKey"],
        "endpoint": facts["BlobEndpoint"],
    }
    return {**options, **changes}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["get", "head", "list", "put"])
def test_settings_of_azure(azure, azure_tls, verb):
    """Scheme, host, container and key."""
    plain, tls = azure_options(azure), azure_options(azure_tls)
    cases = [
        ({**plain, "endpoint": plain["endpoint"].replace("http:", "https:")}, "write http://"),
        ({**tls, "endpoint": tls["endpoint"].replace("https:", "http:")}, "speaks TLS: write"),
        ({**plain, "account_key": "Y2FuYXJ5LXNlY3JldA=="}, "Set AZURE_ACCOUNT_NAME and"),
        ({**plain, "endpoint": "https://no-such-account.invalid"}, "Correct the host in the"),
    ]
    for options, remedy in cases:
        error, seconds = failure("azure://container", options, verb)
        assert seconds < SECONDS, error
        assert remedy in str(error)
        assert "Y2FuYXJ5LXNlY3JldA" not in str(error)
    error, seconds = failure("azure://no-such-container", plain, verb)
    assert isinstance(error, NotFoundError)
    assert "ContainerNotFound" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["get", "head", "list", "put"])
def test_settings_of_google(gcs, web_tls, verb):
    """Scheme, host, certificate and bucket."""
    cases = [
        (gcs.replace("http:", "https:"), "write http://"),
        (web_tls[0].replace("https:", "http:"), "speaks TLS: write https://"),
        (web_tls[0], "set SSL_CERT_FILE and REQUESTS_CA_BUNDLE"),
        ("http://no-such-host.invalid", "Correct the host in the storage option endpoint="),
    ]
    for endpoint, remedy in cases:
        options = {"endpoint": endpoint, "anonymous": True}
        error, seconds = failure("gs://bucket", options, verb)
        assert seconds < SECONDS, error
        assert remedy in str(error)
    error, _ = failure("gs://no-such-bucket", {"endpoint": gcs, "anonymous": True}, verb)
    assert isinstance(error, NotFoundError)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["get", "head", "list", "put"])
@pytest.mark.parametrize(
    ("url", "handler", "option", "more"),
    [
        ("hf://datasets/org/name", dialects.Hub, "endpoint", {"token": "canary-secret"}),
        ("dbfs:/Volumes/a/b/c/d", dialects.Databricks, "host", {"token": "canary-secret"}),
        ("dbfs:/d", dialects.Databricks, "host", {"token": "canary-secret"}),
        ("oci://bucket@namespace", dialects.Oci, "endpoint", {}),
    ],
)
def test_settings_of_others(url, handler, option, more, verb, web_tls, tmp_path):
    """Scheme, host, certificate and token of the Hub, Databricks and Oracle."""
    if url.startswith("oci"):
        pytest.importorskip("oci", reason='pip install "mds-streaming[oci]"')
        more = {"config_file": str(dialects.oci_config(tmp_path))}
    with http_server(str(tmp_path), handler=handler) as server:
        cases = [
            (server.replace("http:", "https:"), "write http://"),
            (web_tls[0].replace("https:", "http:"), "speaks TLS: write https://"),
            (web_tls[0], "set SSL_CERT_FILE and REQUESTS_CA_BUNDLE"),
            ("http://no-such-host.invalid", "Correct the host in"),
        ]
        if more.get("token") and not (url.startswith("hf") and verb == "list"):
            cases.append((server, "_TOKEN."))
        for address, remedy in cases:
            error, seconds = failure(url, {option: address, **more}, verb)
            assert seconds < SECONDS, error
            assert remedy in str(error)
            assert "canary" not in str(error)


# ------------------------------------------------------------------------- what only S3 answers

REGION = "the region 'us-east-1' is wrong; expecting 'eu-west-1'"


def answering(status, code, message):
    """Return a handler that answers every request with an error of S3, and HEAD without a body."""

    class Handler(FolderHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
            self.end(status, error.encode(), Content_Type="application/xml")

        do_HEAD = do_PUT = do_GET

    return Handler


@pytest.mark.parametrize(
    ("status", "code", "message", "remedy"),
    [
        (
            301,
            "PermanentRedirect",
            "Use the endpoint of the bucket.",
            "region_name= or set AWS",
        ),
        (400, "AuthorizationHeaderMalformed", REGION, "region_name= or set AWS_REGION"),
        (400, "ExpiredToken", "The provided token has expired.", "AWS_SESSION_TOKEN"),
        (
            403,
            "RequestTimeTooSkewed",
            "The difference is too large.",
            "Set the clock of this machi",
        ),
        (403, "AccessDenied", "Access Denied", "missing or wrong, or do not allow this"),
    ],
)
def test_an_answer_of_s3_names_its_remedy(tmp_path, status, code, message, remedy):
    """At once, for HEAD too."""
    with http_server(str(tmp_path), handler=answering(status, code, message)) as url:
        for verb in VERBS:
            error, seconds = failure("s3://bucket", {"endpoint_url": url}, verb)
            assert seconds < SECONDS, error
            assert remedy in str(error), verb


def test_a_wrong_secret_is_named_where_head_has_no_body(places):
    """The store is asked again by a GET, whose answer says why."""
    url, options = filled(("s3://bucket", {**STRICT, **WRONG_SECRET}), places)
    error, _ = failure(url, options, "head")
    assert isinstance(error, UnauthenticatedError)
    assert "SignatureDoesNotMatch" in str(error)
    assert "valid" not in str(error)


def test_a_denied_head_does_not_call_the_credentials_valid(tmp_path):
    """A web server says as little."""
    with http_server(str(tmp_path), handler=answering(403, "", "")) as url:
        error, _ = failure(url, {}, "head")
    assert isinstance(error, DeniedError)
    assert "missing or wrong, or do not allow this" in str(error)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "minio:9000", " store.example.com"])
@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("s3://bucket", "endpoint_url"),
        ("gs://bucket", "endpoint"),
        ("hf://datasets/org/name", "endpoint"),
        ("azure://container", "endpoint"),
    ],
)
def test_an_endpoint_needs_a_scheme(url, option, endpoint):
    """It is refused when the store is opened, with what to write."""
    with pytest.raises(ConfigError, match=rf"Write https://{endpoint.strip()}, or http://"):
        open_store(url, options={option: endpoint})


def test_files_of_options_exist(tmp_path):
    """A missing file of the user is not taken for one of the server."""
    for option in ("key_file", "known_hosts_file"):
        with pytest.raises(ConfigError, match=f"no file .*missing.*storage option {option}"):
            open_store("sftp://me@host/data", options={option: str(tmp_path / "missing")})
    for url in ("s3://bucket", "https://host/data"):
        with pytest.raises(ConfigError, match=r"no file .*missing.*storage option verify"):
            open_store(url, options={"verify": str(tmp_path / "missing")})


def test_keys_of_sftp(places, tmp_path):
    """No key, and a file that is none, are not tried for minutes."""
    (tmp_path / "key").write_text("not a key")
    for more in ({}, {"key_file": str(tmp_path / "key")}):
        url = f"sftp://me@{places['sftp']}/"
        error, _ = failure(url, {"known_hosts_file": places["known_hosts"], **more}, "head")
        assert isinstance(error, UnauthenticatedError)


def test_a_storage_bucket_of_the_hub_is_refused():
    """It is not read as the model repository 'buckets/org'."""
    with pytest.raises(ConfigError, match="does not read storage buckets of the Hub yet"):
        open_store("hf://buckets/org/name/folder")


def test_a_proxy_that_wants_a_login(web, web_tls, tmp_path, monkeypatch):
    """The login is not tried for minutes, by the SDK either, and is not shown."""
    with forward_proxy("me", "right") as proxy:
        login = f"http://me:canary-password@{proxy.address}"
        monkeypatch.setenv("https_proxy", login)
        monkeypatch.delenv("no_proxy", raising=False)
        for verb in ("get", "head"):
            options = {"endpoint_url": web_tls[0], "verify": web_tls[1]}
            error, seconds = failure("s3://bucket", options, verb)
            assert seconds < SECONDS
            assert "Set HTTPS_PROXY=http://user:password@host:port" in str(error)
            assert "canary" not in str(error)


def test_settings_that_are_corrected_are_used(places, monkeypatch):
    """As in a notebook: the SDK's client does not keep the proxy and the certificate."""
    options = {"endpoint_url": places["s3_tls"], **KEYS}
    error, _ = failure("s3://bucket", options, "head")
    assert "AWS_CA_BUNDLE" in str(error)
    monkeypatch.setenv("AWS_CA_BUNDLE", places["certificate"])
    assert open_store("s3://bucket", options=options).head("x").size == 7
    monkeypatch.setenv("http_proxy", f"http://{places['closed']}")
    monkeypatch.delenv("no_proxy", raising=False)
    _wrappers._answered.clear()
    options = {"endpoint_url": places["s3"], "region_name": "eu-west-1"}  # another client
    error, _ = failure("s3://bucket", options, "head")
    assert f"go through the proxy http://{places['closed']}" in str(error)
    monkeypatch.delenv("http_proxy")
    assert open_store("s3://bucket", options=options).head("x").size == 7


# ------------------------------------------------------------------------------------ what passes


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(429, "lower the storage option concurrency="), (502, "Check the scheme, the host and the")],
)
def test_a_busy_server_has_its_time_and_is_explained_once(tmp_path, status, remedy, caplog):
    """The first line of the log says what to check, at once."""
    with http_server(str(tmp_path), handler=answering(status, "", "")) as url:
        for _ in range(2):
            error, seconds = failure(url, {}, "get", FakeClock())
            assert seconds > 3500
            assert remedy in str(error)
    assert [remedy in line for line in caplog.messages].count(True) == 1
    assert remedy in caplog.messages[0]


def test_a_closed_port_has_its_time_and_is_explained_once(places, caplog):
    """One late node does not end a launch."""
    url = f"http://{places['closed']}"
    error, seconds = failure(url, {}, "get")
    assert 45 < seconds < 61
    assert "Check the host and the port in the URL" in str(error)
    assert "Check the host and the port in the URL" in caplog.messages[0]
    assert "for 60 s in all" in caplog.messages[0]


def test_a_resolver_that_does_not_answer_has_its_time(monkeypatch, caplog):
    """The name may exist."""

    def resolve(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for url, options in [
        ("http://name.invalid", {}),
        ("s3://bucket", {"endpoint_url": "http://name.invalid"}),
    ]:
        caplog.clear()
        _, seconds = failure(url, options, "get")
        assert 45 < seconds < 61
        assert "Check the host and the port in" in caplog.messages[0]


def test_a_silent_server_is_explained_while_it_is_waited_for():
    """Once, five seconds after the request."""
    store, lines = open_store("http://127.0.0.1:9"), []
    schedule = WaitingLines(lines.append)
    with waiting("the response to get", "http://127.0.0.1:9/x") as wait:
        wait.hint = _remedies.hint_while_waiting(store)
        schedule.look(wait.since + 5, [wait])
        schedule.look(wait.since + 10, [wait])
    assert "for 5 s. Check the host and the port in the URL. Set HTTPS_PROXY" in lines[0]
    assert "Check" not in lines[1]
    _wrappers.mark_answered(["http://127.0.0.1:9"])
    assert _remedies.hint_while_waiting(store)() == ""


# ------------------------------------------------------------------- hosts that have answered


def unknown_name(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def seconds_until_given_up(store):
    """Return the seconds of the fake clock of a store in which a host is not found."""
    store.clock = clock = FakeClock()
    with pytest.raises(StoreError):
        store.get("x")
    return clock.slept


@pytest.fixture
def answered(places):
    """URL of a server that has answered a request of this process."""
    url = places["web"].replace("127.0.0.1", "localhost")
    assert open_store(url).get("x") == b"content"
    return url


def test_a_host_that_has_answered_another_store_has_its_time(answered, monkeypatch):
    """In this process, whatever object the store is of."""
    monkeypatch.setattr(socket, "getaddrinfo", unknown_name)
    fork_safe._objects.clear()
    assert seconds_until_given_up(open_store(f"{answered}/elsewhere")) > SECONDS


def test_the_mark_travels_with_a_pickled_store(answered, monkeypatch):
    """To a process that the first one starts."""
    text = pickle.dumps(open_store(answered))
    monkeypatch.setattr(socket, "getaddrinfo", unknown_name)
    fork_safe._objects.clear()
    _wrappers._answered.clear()
    assert seconds_until_given_up(open_store(answered)) < SECONDS
    assert seconds_until_given_up(pickle.loads(text)) > SECONDS


def test_the_mark_travels_with_a_pickled_dataset(places, web, name):
    """Its worker processes wait as long as the process that opened it."""
    with MDSWriter(os.path.join(web[1], name), {"id": "int"}) as writer:
        writer.write({"id": 1})
    dataset = StreamingDataset(f"{web[0]}/{name}", batch_size=1)
    text = pickle.dumps(dataset)
    server = web[0]
    assert _wrappers.has_answered(server)
    _wrappers._answered.clear()
    pickle.loads(text)
    assert _wrappers.has_answered(server)


def test_a_pickled_store_stays_small():
    """However many servers have answered; each is named once for all streams."""
    _wrappers.mark_answered(f"http://server{number}" for number in range(1000))
    stores = [open_store(f"http://server{number}") for number in range(100)]
    assert len(pickle.dumps(stores[:1])) < 4000
    assert len(pickle.dumps(stores)) < 100 * 1000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_mark_is_that_of_a_forked_child(answered):
    """It knows what its parent knew."""
    server = _wrappers.server_of(open_store(answered))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"y" if _wrappers.has_answered(server) else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.close(writing)


def test_a_url_of_a_file_on_the_web_shows_no_answer(tmp_path):
    """`pinned_url` sends no request, so a name that does not exist ends soon after it."""
    store = open_store("http://no-such-host.invalid")
    store.pinned_url()
    assert seconds_until_given_up(store) < SECONDS


def test_a_pattern_of_files_on_the_web_is_refused_at_once():
    """A web server lists nothing, whether it can be reached or not."""
    store = open_store("https://no-such-host.invalid/data")
    store.clock = clock = FakeClock()
    with pytest.raises(StoreError, match="a web server does not list its files"):
        Files(store).find(parse_place("https://no-such-host.invalid/data/*.parquet", (".parquet",)))
    assert clock.slept == 0

"""No secret of a URL or an option is shown, whichever way it would take out of the library."""

import base64
import logging
import pickle
import traceback

import click
import pytest
from click.testing import CliRunner

from devtools.httpserver import FolderHandler, http_server
from mds import LocalDataset, MDSWriter, Stream, StreamingDataset, merge_index
from mds._cache.source import Source
from mds._cli import main
from mds._redaction import printable
from mds.compat import _clouds as clouds
from mds.errors import MdsError
from mds.events import subscribe
from mds.metrics import Tally, chrome_trace, dump_state, prometheus
from mds.storage import RetryPolicy, open_store
from mds.storage._url import Url, join, parse_url, reveal
from mds.writers._leftovers import work_folder_name
from mds.writers._spec import DEFAULTS, parse_out
from mds.writers.convert import prepare

TWICE = RetryPolicy(attempts=2, within=0, first_wait=0.01)
NOWHERE = "127.0.0.1:1"
#: What must not turn up: in itself, escaped, or in base64.
SECRET = "caNary/p@ss+word"
KEY = base64.b64encode(b"caNary-account-key").decode()
SPACES = str.maketrans("\n\t", "  ")
FORMS = ["caNary", base64.b64encode(SECRET.encode()).decode(), KEY]

URLS = {
    "password": (f"http://me:caNary-word@{NOWHERE}/x", {}),
    "only password": (f"http://:caNary-word@{NOWHERE}/x", {}),
    "token": (f"http://caNary-token@{NOWHERE}/x", {}),
    "unescaped": (f"http://me:caN@ry-caNary@{NOWHERE}/x", {}),
    "signature": (f"http://{NOWHERE}/x?X-Amz-Signature=caNary-sig&Expires=1", {}),
    "headers": (
        f"http://{NOWHERE}/x",
        {"headers": {"X-Api-Key": SECRET, "Authorization": f"Bearer {SECRET}"}},
    ),
    "s3": (
        "s3://bucket/x",
        {"aws_secret_access_key": SECRET, "endpoint_url": f"http://me:caNary-word@{NOWHERE}"},
    ),
    "gs": (
        "gs://bucket/x",
        {"gcs_key": "key", "gcs_secret": SECRET, "endpoint_url": f"http://{NOWHERE}"},
    ),
    "azure key": (
        "azure://box/x",
        {"account_name": "me", "account_key": KEY, "endpoint": f"http://{NOWHERE}/me"},
    ),
    "azure signature": (
        "azure://box/x",
        {
            "account_name": "me",
            "sas_token": "sv=1&sig=caNary-sig-nature",
            "endpoint": f"http://{NOWHERE}/me",
        },
    ),
    "hub": (
        "hf://datasets/org/name",
        {"token": SECRET.replace("/", ""), "endpoint": f"http://{NOWHERE}"},
    ),
    "databricks": ("dbfs:/Volumes/a/b/c", {"token": SECRET, "host": f"http://{NOWHERE}"}),
    "sftp": (f"sftp://me:caNary-word@{NOWHERE}/x", {"accept_unknown_host": True}),
    "fsspec": (f"ftp://me:caNary-word@{NOWHERE}/x", {}),
    "unknown": ("thing://me:caNary-word@host/x?sig=caNary", {}),
    "no port": ("https://me:caNary/word@host/x", {}),
    "no host": ("https://me:caNary-word@[host/x", {}),
    "s3, no host": ("s3://bucket/x", {"endpoint_url": "http://me:caNary-word@[host"}),
    "gs, no host": ("gs://bucket/x", {"endpoint_url": "http://me:caNary-word@[host"}),
    "azure, no host": ("azure://box/x", {"endpoint": "http://me:caNary-word@[host/me"}),
    "hub, no host": ("hf://datasets/org/name", {"endpoint": "http://me:caNary-word@[host"}),
    "databricks, no host": ("dbfs:/Volumes/a/b/c", {"host": "http://me:caNary-word@[host"}),
}


class Forbidden(FolderHandler):
    """Answers with a refusal that repeats everything it was told."""

    def do_GET(self):
        self.end(403, f"no {self.headers} at {self.path}".encode())

    do_HEAD = do_PUT = do_DELETE = do_GET


@pytest.fixture(params=URLS)
def place(request):
    """A URL and options, each with a secret, of a server that is not there."""
    return URLS[request.param]


@pytest.fixture
def shown(caplog):
    """Texts to be looked at when the test ends, with everything that was logged by then."""
    caplog.set_level(logging.DEBUG, logger="mds")
    texts = []
    yield texts
    texts += [record.getMessage() for record in caplog.records if record.name.startswith("mds")]
    texts += [f"{r.args!r}" for r in caplog.records if r.name.startswith("mds")]
    assert texts
    for text in texts:
        for form in FORMS:
            assert form not in text, text
        assert printable(text.translate(SPACES)) == text.translate(SPACES)


def every_way(value):
    """The texts that a value can be turned into."""
    return [str(value), repr(value), f"{value}", f"{value!s:>9}", "-".join([f"{value}", "x"])]


def told(act):
    """The texts of the error that an act ends with, its traceback too."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not show a secret
        kept = [*every_way(error), "".join(traceback.format_exception(error))]
        kept += [repr(vars(error)), repr(error.__cause__)]
        if isinstance(error, MdsError):
            kept += every_way(pickle.loads(pickle.dumps(error)))
        return kept
    raise AssertionError("the server is not there, and yet nothing was raised")


@pytest.mark.slow
def test_errors_of_every_verb(place, shown, tmp_path):
    """A store tells the redacted URL in its errors, their causes, its repr and its events."""
    url, options = place
    (tmp_path / "file").write_bytes(b"x")

    def store():
        made = open_store(url, options=options, retry=TWICE, timeout=0.2)
        shown.extend(every_way(made) + every_way(made.url) + every_way(made.url_of("k")))
        return made

    with subscribe(lambda event: shown.extend(every_way(event))):
        for act in (
            lambda: store().get("index.json"),
            lambda: store().get_range("index.json", 1, 2),
            lambda: store().get_file("index.json", str(tmp_path / "in")),
            lambda: store().head("index.json"),
        ):
            shown += told(act)
        if url.startswith("hf://"):
            return  # huggingface_hub tries listings and commits for minutes by itself
        for act in (
            lambda: list(store().list("a")),
            lambda: store().put("index.json", b"x"),
            lambda: store().put_file("index.json", str(tmp_path / "file")),
            lambda: store().delete("index.json"),
            lambda: parse_url(url) and store().get("../x"),
        ):
            shown += told(act)


def test_streams_and_datasets(place, shown, tmp_path):
    """Neither a stream nor a source nor the error of a dataset shows what it was given."""
    url, options = place
    stream = Stream(
        remote=url,
        local=str(tmp_path / "local"),
        split="train",
        storage_options=options,
        download_retry=1,
        download_timeout=0.2,
    )
    shown += every_way(stream) + every_way(stream.remote) + every_way(stream.remote_folder)
    shown += every_way(Source(None, stream.remote_folder, "folder", options))
    assert stream.remote == url
    shown += told(lambda: StreamingDataset(streams=[stream], batch_size=1))
    shown += told(lambda: StreamingDataset(remote=url, local=str(tmp_path / "l"), download_retry=1,
                                           download_timeout=0.2, batch_size=1))  # fmt: skip


@pytest.mark.parametrize(
    "name", [name for name in URLS if "http" in URLS[name][0] and not URLS[name][1]]
)
def test_writers_commands_and_the_compatibility_layer(name, shown, tmp_path):
    """What takes a URL alone is silent about its secrets too."""
    with http_server(str(tmp_path), handler=Forbidden) as address:
        url = URLS[name][0].replace(NOWHERE, address.removeprefix("http://"))
        there = {"out": (str(tmp_path / "out"), url), "columns": {"x": "int"}, "retry": 1}

        def write():
            with MDSWriter(**there) as writer:
                writer.write({"x": 1})

        shown += told(write)
        shown += told(lambda: merge_index([f"{url}/a/index.json"], str(tmp_path / "m"), retry=1))
        shown += told(lambda: clouds.CloudUploader.get((str(tmp_path / "up"), url), retry=1).list())
        for command in ("info", "head", "verify"):
            result = CliRunner().invoke(main, [command, url])
            assert result.exit_code
            shown.append(result.output)


def test_what_writers_know_and_refuse(shown, tmp_path):
    """Neither the arguments that they keep nor the errors about them show a secret."""
    url = "https://me:caNary-word@host/x?X-Amz-Signature=caNary-sig-nature"
    options = {**DEFAULTS, "retry": 1}
    for out in (url, (str(tmp_path / "l"), url)):
        spec = parse_out(out, options)
        assert spec.remote == url
        shown += every_way(spec) + every_way(spec.remote)
    for out in ((url, url), (None, url), [url, url, url], (url,), {url: 1}):
        shown += told(lambda out=out: parse_out(out, options))
    shown += told(lambda: merge_index(["a"], [url, url, url]))
    shown += told(lambda: clouds.CloudUploader.get([url, url, url]))
    uploader = clouds.CloudUploader.get((str(tmp_path / "up"), url))
    shown += every_way(uploader.remote) + every_way(vars(uploader))
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n')
    conversion = prepare(str(tmp_path / "rows.jsonl"), url)
    shown += every_way(conversion.out) + every_way(conversion) + every_way(conversion.output())
    assert work_folder_name(url) == work_folder_name(Url(url))


def test_metrics_and_explanations(shown, tmp_path):
    """What is measured and explained of a dataset names no secret of its remote."""
    with MDSWriter(out=str(tmp_path / "d"), columns={"x": "int"}) as writer:
        for number in range(20):
            writer.write({"x": number})
    client = pytest.importorskip("prometheus_client")
    registry, tally = client.CollectorRegistry(), Tally()
    trace, state = tmp_path / "trace.json", tmp_path / "state"
    with http_server(str(tmp_path / "d")) as address:
        url = f"{address.replace('//', '//me:caNary-word@')}?X-Amz-Signature=caNary-sig-nature"
        with prometheus(registry), chrome_trace(str(trace)), subscribe(tally):
            stream = Stream(
                remote=url,
                local=str(tmp_path / "l"),
                storage_options={"headers": {"X-Key": SECRET}},
            )
            dataset = StreamingDataset(streams=[stream], batch_size=1)
            assert [sample["x"] for sample in dataset] == list(range(20))
            with state.open("w") as file:
                dump_state(file)
            shown += [*dataset.explain().splitlines(), *every_way(dataset), repr(tally.as_dict())]
            shown += client.generate_latest(registry).decode().splitlines()
    shown += [*trace.read_text().splitlines(), *state.read_text().splitlines()]
    assert any("Fetched" in text for text in shown)


def test_a_server_that_repeats_what_it_was_told(shown, tmp_path):
    """What is known to be a secret is masked in the words of the server as well."""
    with http_server(str(tmp_path), handler=Forbidden) as url:
        address = url.removeprefix("http://")
        signed = f"http://me:caNary%2Dword@{address}/x?X-Amz-Signature=caNary-sig-nature"
        headers = {"X-Api-Key": SECRET, "X-Other": "fine"}
        store = open_store(signed, options={"headers": headers}, retry=TWICE)
        for act in (lambda: store.get("x"), lambda: store.put("x", b"1")):
            shown += told(act)


def test_a_url_is_its_redacted_text():
    """Whatever is done with it as a string, only `reveal` gives the real one; pickles keep it."""
    real = "https://me:caNary-word@host/x?sig=caNary"
    url = Url(real)
    for text in (*every_way(url), url[:], url.upper(), url + "", url.encode().decode()):
        assert "canary" not in text.lower()
    assert url == real == url.reveal() == reveal(url)
    assert pickle.loads(pickle.dumps(url)).reveal() == real
    assert len({url, Url(real)}) == 1
    assert join(url, "k").reveal() == "https://me:caNary-word@host/x/k?sig=caNary"
    assert (url + "y").reveal() == real + "y"


def test_samples_and_names_of_a_dataset_do_not_act_on_a_terminal(tmp_path):
    """The commands print columns, values and paths with what acts escaped."""
    with MDSWriter(out=str(tmp_path / "d"), columns={"a\x1b[2J": "str"}) as writer:
        writer.write({"a\x1b[2J": "b\x1b]0;owned\x07"})
    for command in ("info", "head", "verify"):
        for more in ([], ["--json"]) if command != "head" else ([],):
            result = CliRunner().invoke(main, [command, str(tmp_path / "d"), *more])
            assert "\x1b" not in result.output, result.output
            assert "\x07" not in result.output
    assert LocalDataset(str(tmp_path / "d"))[0]


def command_lines(url):
    """Every command with the URL as each of its arguments and as the value of each option."""
    for name, command in main.commands.items():
        arguments = [each for each in command.params if isinstance(each, click.Argument)]
        for count in range(1, len(arguments) + 2):
            yield [name, *[url] * count]
        for option in command.params:
            if isinstance(option, click.Option) and not (option.is_flag or option.count):
                yield [name, *[url] * len(arguments), option.opts[-1], url]
    yield [url]
    yield [f"--{url}"]
    yield ["convert", "a.csv", url, "--overwrite"]
    yield ["convert", "a.csv", "out", "--drop", url]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["d", "nothing", "d/x.parquet", "*.parquet", "a.csv"])
def test_no_command_shows_the_secret_of_a_url(path, tmp_path, monkeypatch):
    """A password and a signature, too short to be known elsewhere, are in no line of a command."""
    monkeypatch.chdir(tmp_path)
    with MDSWriter(out="d", columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with http_server(str(tmp_path)) as address:
        host = address.removeprefix("http://")
        url = f"http://anna:pwX@{host}/{path}?X-Amz-Signature=SiG"
        for line in command_lines(url):
            output = CliRunner().invoke(main, line, input="a,b\n1,2\n").output
            assert not any(secret in output for secret in ("pwX", "SiG")), (line, output)

"""One contract for every engine: results, errors, and the same dataset as anywhere."""

import operator
import os
import subprocess
import sys

import pytest

from mds._shardfile.compression import parse_compression
from mds.errors import ConfigError, NotFoundError, WriterError
from mds.storage import open_store
from mds.writers._engines import InlineEngine, LocalEngine
from mds.writers.convert import convert

#: Raises an error that does not survive pickling, as errors of other packages may.
ODD = """
class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one)
raise Odd("very odd", 2)
"""

#: Prints whether the first process that a program starts has blocked the signal of Ctrl-C.
FIRST_PROCESS = """
import signal
from mds.writers._engines import LocalEngine
if __name__ == "__main__":
    with LocalEngine(1) as engine:
        blocked = engine.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result(100)
    print(signal.SIGINT in blocked)
"""


class EngineContract:
    """What an engine promises; a subclass has its ``name`` and a fixture ``engine``."""

    name = "local"

    def test_calls_return_their_results(self, engine):
        """Many calls at once, each with its own arguments and result."""
        futures = [engine.submit(operator.mul, i, 3) for i in range(20)]
        assert [future.result(100) for future in futures] == [3 * i for i in range(20)]

    def test_errors_come_back_as_what_they_are(self, engine, tmp_path):
        """The same kind with the same text and fields; one that cannot travel keeps its text."""
        with pytest.raises(ConfigError, match="there is no compression 'zip'"):
            engine.submit(parse_compression, "zip").result(100)
        store = open_store(str(tmp_path))
        with pytest.raises(NotFoundError) as caught:
            engine.submit(operator.methodcaller("get", "x"), store).result(100)
        assert (caught.value.verb, caught.value.url) == ("get", str(tmp_path / "x"))
        with pytest.raises(Exception, match="very odd"):
            engine.submit(exec, ODD, {}).result(100)
        assert engine.submit(abs, -1).result(100) == 1

    def test_slots_and_repr_tell_what_it_is(self, engine):
        """There is room for at least one call, and the name is in the repr."""
        assert engine.slots >= 1
        assert type(engine).__name__ in repr(engine)

    def test_dataset_is_the_same_as_anywhere(self, kit, engine):
        """A conversion on this engine writes what one process writes."""
        assert engine.slots >= 1  # a cluster that runs already is used, and left running
        for i in range(30):
            kit.write(f"{i:02}.txt", f"text {i} " * 500)
        options = {"size_limit": 50_000, "split": "a=0.5,b=0.5", "hashes": "sha1"}
        convert(str(kit.source), kit.out, **options)
        convert(str(kit.source), kit.out + "2", engine=self.name, num_workers=2, **options)
        assert kit.files() == kit.files(kit.out + "2")

    def test_closing_twice_is_fine(self, engine):
        """Whoever closes after somebody did is right too."""
        engine.close()
        engine.close()


class TestInline(EngineContract):
    """Calls in this process."""

    @pytest.fixture
    def engine(self):
        return InlineEngine()


class TestLocal(EngineContract):
    """Processes of this machine."""

    def test_no_process_acts_on_ctrl_c(self, tmp_path):
        """Not even the first, with which Python starts a process of its own."""
        path = tmp_path / "script.py"
        path.write_text(FIRST_PROCESS)
        shown = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, check=True
        )
        assert shown.stdout == "True\n"

    @pytest.fixture
    def engine(self):
        with LocalEngine(2) as engine:
            yield engine


@pytest.mark.filterwarnings("ignore")  # pyspark and what it brings warn of each other
class TestSpark(EngineContract):
    """A local Spark."""

    name = "spark"

    @pytest.fixture
    def engine(self, spark):
        from mds.writers._engines import SparkEngine

        with SparkEngine(spark) as engine:
            yield engine


@pytest.mark.filterwarnings("ignore")  # ray forks, starts threads and opens sockets as it likes
class TestRay(EngineContract):
    """A local Ray."""

    name = "ray"

    @pytest.fixture(scope="class")
    def ray(self):
        ray = pytest.importorskip("ray", reason="ray is not installed")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield ray
        ray.shutdown()

    @pytest.fixture
    def engine(self, ray):
        from mds.writers._engines import RayEngine

        assert ray.is_initialized()
        with RayEngine() as engine:
            yield engine


def test_local_process_that_dies_is_an_error():
    """A process that ends in the middle of a call is said to, and nobody waits for it."""
    with LocalEngine(2) as engine, pytest.raises(WriterError, match="exit code 7"):
        engine.submit(os._exit, 7).result(60)


def test_closed_engine_leaves_no_process():
    """Closing ends processes, whatever they are doing."""
    engine = LocalEngine(1)
    pid = engine.submit(os.getpid).result(60)
    engine.submit(exec, "import threading; threading.Event().wait()", {})
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_traceback_of_the_other_process_is_kept():
    """The cause of an error shows where in the other process it was raised."""
    with LocalEngine(1) as engine, pytest.raises(ConfigError) as caught:
        engine.submit(parse_compression, "zip").result(60)
    assert "compression.py" in str(caught.value.__cause__)


@pytest.mark.parametrize("name", ["spark", "ray"])
def test_absent_package_is_one_sentence(name, monkeypatch):
    """Without its package an engine says which command installs it."""
    from mds.errors import MissingDependencyError
    from mds.writers._engines import open_engine

    for module in [each for each in sys.modules if each.partition(".")[0] in ("pyspark", "ray")]:
        monkeypatch.delitem(sys.modules, module)
    package = {"spark": "pyspark.sql", "ray": "ray"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf'pip install "mds-streaming\[{name}\]"'):
        open_engine(name, 1)

"""Copy a dataset with Ray or Spark, read the copy, and kill a worker in both jobs.

    python engine_job.py ray|spark FOLDER [MEGABYTES] [WORKERS]

In both jobs a worker kills itself (SIGKILL) at a random row. The program prints a JSON object, and
writes it to FOLDER/facts.json: the digests of the source, of the copy, and of the copy as the
engine reads it; the folders in the copy that its index does not name; and for each job the process
that was killed, seconds, and the peak memory of a worker in MB: of all its pages, and of those that
are its own.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

import xxhash

from mds import LocalDataset, MDSWriter

ROW_BYTES = 4096


def make_source(folder, megabytes):
    """Write rows of a number, text and bytes, in 24 shards or more; return how many."""
    rows, rng = megabytes * (1 << 20) // ROW_BYTES, random.Random(7)
    limit = min(megabytes * (1 << 20) // 24, 32 << 20)
    columns = {"id": "int", "text": "str", "data": "bytes"}
    with MDSWriter(folder, columns, size_limit=limit, durable=False) as writer:
        for number in range(rows):
            data = rng.randbytes(ROW_BYTES // 2)
            writer.write({"id": number, "text": data.hex()[: ROW_BYTES // 2], "data": data})
    return rows


def digest_of(batches):
    """Return a sum of digests of all rows, which is the same in any order."""
    total = 0
    for batch in batches:
        for row in batch.select(["id", "text", "data"]).to_pylist():
            data = b"%d|%s|%s" % (row["id"], row["text"].encode(), row["data"])
            total += xxhash.xxh3_64_intdigest(data)
    return total % (1 << 62)


def descendants():
    """Yield the ids of all processes below this one."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    for pid in parents:
        parent = pid
        while parent in parents:
            parent = parents[parent]
            if parent == os.getpid():
                yield pid
                break


def uses(pid, folder):
    """Whether a process writes or maps files below a folder."""
    with contextlib.suppress(OSError):
        if folder in pathlib.Path(f"/proc/{pid}/maps").read_text():
            return True
        return any(os.readlink(fd).startswith(folder) for fd in os.scandir(f"/proc/{pid}/fd"))
    return False


class Dying:
    """Passes batches on, and kills the process once, when ``fatal_row`` rows have passed in all.

    The workers of a job count the rows together, in a file.
    """

    def __init__(self, folder, rows):
        self.file, self.fatal_row = f"{folder}.rows", random.randrange(rows * 9 // 10)

    def __call__(self, batches):
        """Yield the rows of batches, 64 at a time."""
        for batch in batches:
            for start in range(0, batch.num_rows, 64):
                piece = batch.slice(start, 64)
                with open(self.file, "ab") as file:
                    file.write(b"." * piece.num_rows)
                    is_fatal = file.tell() > self.fatal_row
                with contextlib.suppress(FileExistsError):
                    if is_fatal:
                        fd = os.open(f"{self.file}.killed", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                        os.write(fd, b"%d" % os.getpid())
                        os.kill(os.getpid(), signal.SIGKILL)
                yield piece


class Watch(threading.Thread):
    """Measures the memory of the processes that use a folder until the job is over."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder = f"{folder}/"
        self.rss = self.private = 0
        self.is_over = threading.Event()

    def run(self):
        """Measure."""
        while not self.is_over.wait(0.1):
            for pid in descendants():
                if uses(pid, self.folder):
                    self._measure(pid)

    def _measure(self, pid):
        with contextlib.suppress(OSError, KeyError):
            text = pathlib.Path(f"/proc/{pid}/status").read_text()
            sizes = dict(line.split(":", 1) for line in text.splitlines())
            self.rss = max(self.rss, int(sizes["VmRSS"].split()[0]) >> 10)
            self.private = max(self.private, int(sizes["RssAnon"].split()[0]) >> 10)


def measured(folder, dying, job):
    """Run a job in which a worker dies; return its result and facts."""
    watch, begin = Watch(folder), time.monotonic()
    watch.start()
    result = job(dying)
    watch.is_over.set()
    watch.join()
    killed = int(pathlib.Path(f"{dying.file}.killed").read_text())
    facts = {"killed": killed, "rss": watch.rss, "private": watch.private}
    return result, {**facts, "seconds": round(time.monotonic() - begin, 1)}


def ray_jobs(source, out, workers):
    """Start Ray, and return a function that copies, and one that returns the digest of the copy."""
    import pyarrow as pa
    import ray

    from mds import StreamingDataset
    from mds.integrations.ray import MDSDatasink, MDSDatasource

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    class DyingSink(MDSDatasink):
        def __init__(self, out, dying):
            super().__init__(out)
            self.dying = dying

        def write(self, blocks, ctx):
            return super().write(self.dying(blocks), ctx)

    def rows(folder):
        return ray.data.read_datasource(MDSDatasource(StreamingDataset(folder)))

    def read(dying):
        def digest(table):
            return pa.table({"digest": [digest_of(dying([table]))]})

        parts = rows(out).map_batches(digest, batch_format="pyarrow").take_all()
        return sum(part["digest"] for part in parts) % (1 << 62)

    return lambda dying: rows(source).write_datasink(DyingSink(out, dying)), read


def spark_jobs(source, out, workers):
    """Start Spark, and return the same two functions."""
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mds.integrations.spark import MDSDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{workers},4]")  # a task may fail three times
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(MDSDataSource)

    class DyingSource(MDSDataSource):
        dying = None

        @classmethod
        def name(cls):
            return "dying"

        def writer(self, schema, overwrite):
            writer, dying = super().writer(schema, overwrite), self.dying
            kind = type(writer)

            class Writer(kind):
                def write(self, iterator):
                    return super().write(dying(iterator))

            return Writer(writer.out)

    def rows(folder):
        return session.read.format("mds").option("partitions", workers * 2).load(folder)

    def copy(dying):
        DyingSource.dying = dying
        session.dataSource.register(DyingSource)
        rows(source).write.format("dying").mode("append").save(out)

    def read(dying):
        def digest(batches):
            yield pa.record_batch({"digest": [digest_of(dying(batches))]})

        parts = rows(out).mapInArrow(digest, "digest long").collect()
        return sum(part["digest"] for part in parts) % (1 << 62)

    return copy, read


def main(engine, folder, megabytes="24", workers="4"):
    """Run both jobs, and print what happened."""
    source, out = (str(pathlib.Path(folder).resolve() / name) for name in ("source", "out"))
    rows = make_source(source, int(megabytes))
    copy, read = {"ray": ray_jobs, "spark": spark_jobs}[engine](source, out, int(workers))
    facts = {}
    _, facts["write"] = measured(out, Dying(source, rows), copy)
    in_engine, facts["read"] = measured(out, Dying(out, rows), read)
    index = json.loads(pathlib.Path(out, "index.json").read_text())
    named = {shard["raw_data"]["basename"].partition("/")[0] for shard in index["shards"]}
    facts["unnamed"] = sorted({entry.name for entry in os.scandir(out) if entry.is_dir()} - named)
    facts["digests"] = [digest_of(LocalDataset(each).to_arrow_reader()) for each in (source, out)]
    facts["digests"].append(in_engine)
    text = json.dumps(facts)
    pathlib.Path(folder, "facts.json").write_text(text)  # the engines print to stdout too
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])

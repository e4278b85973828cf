"""Processes that do the same at the same time; imported by the tests."""

import multiprocessing


def run_together(method, count, act, *arguments):
    """Call ``act(*arguments)`` in so many processes at once, started by a method; all end well."""
    context = multiprocessing.get_context(method)
    barrier = context.Barrier(count)
    jobs = [context.Process(target=_begin, args=(barrier, act, arguments)) for _ in range(count)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * count


def _begin(barrier, act, arguments):
    barrier.wait()
    act(*arguments)

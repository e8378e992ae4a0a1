"""`RayExecutor`: a Ray cluster as a `concurrent.futures.Executor`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import wait as futures_wait
from typing import Any, TypeVar

T = TypeVar("T")


def _call(function: Callable[..., T], arguments: tuple[Any, ...], named: dict[str, Any]) -> T:
    return function(*arguments, **named)


class RayExecutor(Executor):
    """Runs functions as tasks of the Ray cluster that `ray.init()` has connected to.

    `options` are those of `ray.remote`, such as `num_cpus=1`. A task whose worker dies fails with an exception of
    Ray, and is not tried again by Ray: a sweep does that.

    The extra `sluice[ray]` installs Ray. Raises `ImportError` without it.
    """

    def __init__(self, **options: Any) -> None:
        import ray

        self._remote: Any = ray.remote(**{"max_retries": 0, "num_cpus": 1, **options})(_call)
        self._futures: set[Future[Any]] = set()
        self._is_shut_down = False

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        """Runs `function` on a worker of the cluster."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = self._remote.remote(function, arguments, named).future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more functions. The cluster keeps running. Tasks of Ray that have begun are not canceled."""
        self._is_shut_down = True
        pending = list(self._futures)
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            # A canceled future never becomes one that `wait` takes as done.
            futures_wait([future for future in pending if not future.cancelled()])

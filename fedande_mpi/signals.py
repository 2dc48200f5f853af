"""Signals that ask a job to stop: remembered until it can."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedande_mpi.errors import Interrupted

if TYPE_CHECKING:
    from fedande_mpi.links import Communicator


class Signals:
    """Remembers a signal until the program asks; a handler only runs between compiled calls."""

    STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.received: int | None = None
        self.look_at_others: Callable[[], None] = lambda: None
        for number in self.STOPPING:
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: object) -> None:
        self.received = number

    def connect(self, allow_singleton: bool) -> Communicator:
        """Join the job; from now on what stops another rank stops this one."""
        from fedande_mpi.comm import connect
        from fedande_mpi.leaving import stop_if_told

        comm = connect(allow_singleton=allow_singleton)
        self.look_at_others = lambda: stop_if_told(comm)
        return comm

    def poll(self) -> None:
        """Raise `Interrupted` when a signal has come, here or to another rank."""
        try:
            if self.received is not None:
                name = signal.Signals(self.received).name
                raise Interrupted(
                    f"stopped by {name}; complete folds are saved, run the same command again to continue"
                )
            self.look_at_others()
        except Interrupted:
            self.ignore()  # a second one must not disturb the way out
            raise

    def ignore(self) -> None:
        """Let nothing disturb the way out, not even while Python ends and takes its handlers down."""
        for number in self.STOPPING:
            signal.signal(number, signal.SIG_IGN)

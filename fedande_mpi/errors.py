"""Errors a user can mend: each message says what was expected, what came, and what to do."""

from __future__ import annotations


class FedandeError(Exception):
    """Base class of every expected error.

    Attributes
    ----------
    exit_code : int
        What the command line exits with: 1, or 75 (``EX_TEMPFAIL``) for an interruption that the same
        command continues.
    """

    exit_code: int = 1


class ConfigError(FedandeError):
    """An experiment that cannot be run as written."""


class DataError(FedandeError):
    """A data set that cannot be read, or is not what its name promises."""


class ResultsError(FedandeError):
    """A result file or directory that cannot be read, written or continued."""


class DamagedFile(ResultsError):
    """A result file that is truncated or corrupt; a run sets it aside and computes it anew."""


class FederationError(FedandeError):
    """A round that cannot be completed: a refused update, an empty average, a wrong launch."""


class PrivacyError(FedandeError):
    """A privacy parameter outside its range."""


class Interrupted(FedandeError):
    """The job was told to stop; what was complete is saved and the same command continues."""

    exit_code = 75

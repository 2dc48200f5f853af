"""The centralised AnDE as a scikit-learn estimator (extra ``sklearn``): AnDE without MPI.

This module alone imports scikit-learn when it is imported, as its class is derived from scikit-learn's;
``fedande_mpi.AnDEClassifier`` loads it on first use.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedande_mpi import ande, centralised, lbfgs
from fedande_mpi.encoding import Categories, InputError, as_array, columns_of, encode, is_frame, learn
from fedande_mpi.errors import ConfigError
from fedande_mpi.planning import available_memory

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        check_array,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    # both: what the command line reports in one line, and what asks for an optional package expect
    class MissingExtra(ConfigError, ImportError):
        """A package of an extra is not installed."""

    raise MissingExtra(
        "AnDEClassifier expects scikit-learn 1.6 or newer, which is not installed; "
        "pip install 'fedande-mpi[sklearn]'"
    ) from error

FloatArray = NDArray[np.float64]

_CHOICES: dict[str, tuple[str, ...]] = {
    "smoothing": ("laplace", "m-estimate"),
    "combine": ("mean", "joint"),
    "missing": ("value", "ignore"),
    "handle_unknown": ("ignore", "error"),
    "granularity": ("parameter", "attribute"),
}


class ParameterError(ConfigError, ValueError):
    """A parameter outside its range; a ValueError too, as scikit-learn's tools expect."""


class AnDEClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Averaged n-dependence estimators: NB, A1DE, A2DE, ..., generative or weighted.

    One Bayesian network (SPnDE) for every set P of n attributes, in which P and the class are the parents
    of every other attribute; P(y|x) is the mean of their posteriors. A weighted model has one exponent for
    every probability, learned by maximising the conditional log-likelihood. The numbers are those of an
    experiment's cell of scope "centralised".

    Attributes are categorical: every distinct value of a column, number or text, is a category. Put
    continuous features into bins first, with
    ``KBinsDiscretizer(encode="ordinal")`` in a pipeline; else a new number is an unknown category.

    Parameters
    ----------
    n : int, default=1
        Dependence order: 0 is naive Bayes. Time and memory grow with the n-th power of attributes and
        arities.
    weighted : bool, default=False
        Whether to learn weights (discriminative) or leave them at 1 (generative).
    smoothing : {"laplace", "m-estimate"}, default="laplace"
        Add ``pseudocount`` to every count, or ``pseudocount`` over the number of a table's values.
    pseudocount : float, default=1.0
        Positive.
    combine : {"mean", "joint"}, default="mean"
        Mean of the posteriors, or posterior of the summed joints as in AODE (generative only).
    missing : {"value", "ignore"}, default="value"
        A missing cell (None, NaN, pandas.NA) is one more category of its attribute, or counts nowhere and
        drops the factors it is part of.
    categories : "auto" or list of array-like, default="auto"
        Categories of each attribute in the order of their codes; None or NaN among them declares that
        cells may be missing. "auto": those that a pandas categorical type declares, else what occurs.
    handle_unknown : {"ignore", "error"}, default="ignore"
        What `predict` does with a category that was not there in training (a missing cell, under
        ``missing="value"``, included): as if the cell were missing under ``missing="ignore"``, its factor
        1 for every class; or refuse it.
    granularity : {"parameter", "attribute"}, default="parameter"
        One weight per probability, or the paper's printed index set. This and what follows is for
        weighted models.
    initial_weight : float, default=0.0
        Where every weight starts.
    l2 : float, default=0.0
        Adds l2/2 times the squared distance from the initial weights to the objective.
    local_steps : int, default=0
        Number of L-BFGS-B iterations; 0 = until convergence.
    max_iterations : int, default=15000
        Limit of the iterations until convergence, per parent set.

    Attributes
    ----------
    classes_ : ndarray of shape (o,)
        Class labels, sorted.
    n_features_in_ : int
        Number of attributes, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if all are texts.
    categories_ : list of ndarray, length d
        Categories of each attribute in the order of their codes, without that of missing cells.
    arity_ : ndarray of shape (d,)
        Number of codes of each attribute, that of missing cells included.
    parent_sets_ : ndarray of shape (|P|, n)
        Attributes in each parent set.
    objective_ : ndarray of shape (|P|,)
        -CLL of the training rows, in nats (weighted models).
    n_iter_ : ndarray of shape (|P|,)
        Iterations made (weighted models).

    See Also
    --------
    fedande_mpi.run_experiment : Federated models, in cells of an experiment.

    Notes
    -----
    A row on which no parent set has a say, because too many of its cells are missing or unknown, is scored
    by the next lower order down to NB; in a weighted model by the prior.

    Examples
    --------
    >>> from fedande_mpi import AnDEClassifier
    >>> X = [["sun", "warm"], ["sun", "cold"], ["rain", "warm"], ["rain", "cold"]]
    >>> model = AnDEClassifier(n=1).fit(X, ["out", "in", "in", "in"])
    >>> model.predict([["sun", "warm"], ["rain", None]]).tolist()
    ['out', 'in']
    """

    def __init__(
        self,
        n: int = 1,
        *,
        weighted: bool = False,
        smoothing: Literal["laplace", "m-estimate"] = "laplace",
        pseudocount: float = 1.0,
        combine: Literal["mean", "joint"] = "mean",
        missing: Literal["value", "ignore"] = "value",
        categories: Literal["auto"] | Sequence[ArrayLike] = "auto",
        handle_unknown: Literal["ignore", "error"] = "ignore",
        granularity: Literal["parameter", "attribute"] = "parameter",
        initial_weight: float = 0.0,
        l2: float = 0.0,
        local_steps: int = 0,
        max_iterations: int = 15_000,
    ) -> None:
        self.n = n
        self.weighted = weighted
        self.smoothing = smoothing
        self.pseudocount = pseudocount
        self.combine = combine
        self.missing = missing
        self.categories = categories
        self.handle_unknown = handle_unknown
        self.granularity = granularity
        self.initial_weight = initial_weight
        self.l2 = l2
        self.local_steps = local_steps
        self.max_iterations = max_iterations

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: ArrayLike) -> AnDEClassifier:
        """Count the tables, and learn the weights of a weighted model.

        Parameters
        ----------
        X : DataFrame or array-like of shape (m, d)
            Categories: texts, numbers, or anything hashable.
        y : array-like of shape (m,)
            Class labels.

        Returns
        -------
        AnDEClassifier
            Itself.

        Raises
        ------
        ValueError
            When a parameter or the rows are not as described; a `FedandeError` too unless scikit-learn's
            own checks raise it.
        """
        self._check_parameters()
        X = self._checked(X, y=y, reset=True)
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
        check_consistent_length(X, y)
        check_classification_targets(y)
        self.classes_, positions = np.unique(y, return_inverse=True)
        labels = positions.astype(np.int32)
        codes = self._learn_categories(X)
        d, o = codes.shape[1], self.classes_.size
        if self.n >= d:
            raise ParameterError(f"expected n < d, got n = {self.n} for {d} feature(s): lower n")
        self._refuse_too_large(o, labels.size)
        orders = [self.n] if self.weighted else range(self.n, -1, -1)
        self._model = centralised.Model(
            self.arity_,
            o,
            self.smoothing,
            float(self.pseudocount),
            self.combine == "joint",
            tuple(centralised.count(codes, labels, n, self.arity_, o) for n in orders),
        )
        self.parent_sets_ = self._model.counts[0].sets
        if self.weighted:
            self._train(codes, labels)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row; ties go to the first of ``classes_``.

        Parameters
        ----------
        X : DataFrame or array-like of shape (m, d)

        Returns
        -------
        ndarray of shape (m,)
        """
        codes = self._encoded(X)
        sums, _ = centralised.score(self._model, codes, np.zeros(len(codes), dtype=np.int32))
        return np.asarray(self.classes_[sums.posterior[0].argmax(axis=1)])

    def predict_proba(self, X: Any) -> FloatArray:
        """Return P(y|x).

        Parameters
        ----------
        X : DataFrame or array-like of shape (m, d)

        Returns
        -------
        ndarray of shape (m, o)
            Columns in the order of ``classes_``; rows sum to 1.
        """
        codes = self._encoded(X)
        return centralised.posteriors(self._model, codes)

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return log P(y|x), finite where `predict_proba` is 0; o times as long as that.

        Parameters
        ----------
        X : DataFrame or array-like of shape (m, d)

        Returns
        -------
        ndarray of shape (m, o)
            Columns in the order of ``classes_``.
        """
        codes = self._encoded(X)
        return centralised.log_posteriors(self._model, codes)

    def tables(
        self, parents: Sequence[int] = (), kind: Literal["count", "theta", "weight"] = "theta"
    ) -> dict[str, NDArray[Any]]:
        """Return the tables of one parent set.

        Parameters
        ----------
        parents : sequence of int, length n
            Positions of the attributes, ascending.
        kind : {"count", "theta", "weight"}
            Counts of the training rows, probabilities, or weights.

        Returns
        -------
        dict of str to ndarray
            ``prior (o,)``, ``parents (o, q)`` (absent for n = 0), ``child{j} (o, q, arity_j)``; weights of
            granularity "attribute" are ``parents (o,)`` and ``child{j} (o, q)``.
        """
        check_is_fitted(self)
        model, o = self._model, self.classes_.size
        sets = self.parent_sets_.tolist()
        if list(parents) not in sets:
            raise ParameterError(
                f"expected one of parent_sets_, such as {tuple(sets[0])}, got {tuple(parents)}"
            )
        position = sets.index(list(parents))
        if kind == "weight":
            if model.weights is None:
                raise ParameterError("expected a weighted model for kind='weight', got weighted=False")
            flat = model.weights.of(position)
        elif kind == "theta":
            flat = np.exp(centralised.log_theta(model, slice(position, position + 1)))
        else:
            flat = model.counts[0].of(position)
        return dict(ande.unpack(np.asarray(flat, dtype=np.float64), parents, model.arity, o))

    def _check_parameters(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                words = " or ".join(repr(value) for value in allowed)
                raise ParameterError(f"expected {name} = {words}, got {getattr(self, name)!r}")
        for name, least in (("n", 0), ("local_steps", 0), ("max_iterations", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ParameterError(f"expected {name} = a whole number >= {least}, got {value!r}")
        for name, words in (("pseudocount", "> 0"), ("l2", ">= 0"), ("initial_weight", "that is finite")):
            value = getattr(self, name)
            if (
                not isinstance(value, Real)
                or not isfinite(value)
                or (name == "pseudocount" and value <= 0)
                or (name == "l2" and value < 0)
            ):
                raise ParameterError(f"expected {name} = a number {words}, got {value!r}")
        if self.combine == "joint" and self.weighted:
            raise ParameterError(
                "expected weighted=False for combine='joint', got weighted=True: "
                "the joints of a weighted model are no probabilities; use combine='mean'"
            )

    def _checked(self, X: Any, **validation: Any) -> Any:
        """Return a DataFrame or an array of shape (m, d) that keeps the cells' types."""
        if is_frame(X):
            check_array(np.broadcast_to(False, X.shape))
            cells = X
        else:
            cells = check_array(X, dtype=None, ensure_all_finite=False)
            if cells.dtype.kind in "US" and not hasattr(X, "dtype"):
                # NumPy makes texts of all cells of a list with texts, of None and NaN too
                cells = check_array(X, dtype=object, ensure_all_finite=False)
        validate_data(self, X if hasattr(X, "columns") else cells, skip_check_array=True, **validation)
        return cells

    def _learn_categories(self, X: Any) -> NDArray[np.int32]:
        """Choose the categories and return the codes, shape (m, d)."""
        d = X.shape[1]
        auto = isinstance(self.categories, str)
        if (auto and self.categories != "auto") or (not auto and len(self.categories) != d):
            raise ParameterError(
                f"expected categories = 'auto' or a list of {d}, got {self.categories!r}"
                if auto
                else f"expected categories of {d} attributes, got {len(self.categories)}"
            )
        codes = np.empty(X.shape, dtype=np.int32)
        self._categories: list[Categories] = []
        for j, cells in enumerate(columns_of(X)):
            learned, codes[:, j] = learn(
                cells,
                None if auto else self.categories[j],
                missing_is_value=self.missing == "value",
                handle_unknown=self.handle_unknown,
            )
            self._categories.append(learned)
        self.categories_ = [as_array(learned.values) for learned in self._categories]
        self.arity_ = np.array([learned.arity for learned in self._categories], dtype=np.int64)
        return codes

    def _encoded(self, X: Any) -> NDArray[np.int32]:
        """Return the codes of rows to score, shape (m, d)."""
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        codes = np.empty(X.shape, dtype=np.int32)
        for j, (cells, learned) in enumerate(zip(columns_of(X), self._categories, strict=True)):
            codes[:, j] = encode(
                cells,
                learned,
                missing_is_value=self.missing == "value",
                handle_unknown=self.handle_unknown,
            )
        return codes

    def _refuse_too_large(self, n_classes: int, n_instances: int) -> None:
        """Refuse tables that do not fit the memory, before any is made."""
        number = np.min_scalar_type(n_instances).itemsize + (8 if self.weighted else 0)
        size = centralised.n_cells(self.arity_, self.n) * n_classes * number
        available = available_memory()
        if available is not None and size > available:
            raise InputError(
                f"expected tables of at most {available / 2**30:.1f} GiB, the memory that is available, got "
                f"{size / 2**30:.1f} GiB for n = {self.n}, {self.arity_.size} attributes of up to "
                f"{self.arity_.max()} categories: lower n, or put continuous features into bins first "
                "(sklearn.preprocessing.KBinsDiscretizer(encode='ordinal'))"
            )

    def _train(self, codes: NDArray[np.int32], labels: NDArray[np.int32]) -> None:
        self._model, training = centralised.train(
            self._model,
            codes,
            labels,
            granularity=self.granularity,
            initial_weight=float(self.initial_weight),
            l2=float(self.l2),
            max_iterations=int(self.local_steps or self.max_iterations),
        )
        self.objective_, self.n_iter_ = training.objective, training.iterations
        stopped = int((training.stop_reason == lbfgs.STEP_LIMIT).sum())
        if stopped and not self.local_steps:
            warnings.warn(
                f"{stopped} of {self.n_iter_.size} parent sets did not converge in max_iterations = "
                f"{self.max_iterations} iterations: raise it, or set l2 > 0",
                ConvergenceWarning,
                stacklevel=3,
            )

"""The requests and responses of MLflow's client, and the checks of their values.

Requests are decoded leniently, like protocol buffers in JSON: numbers may be strings, and unknown fields are ignored.
Errors have MLflow's codes, which tell its client what to raise and what to retry.
"""

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec

from hookline._engine.errors import HooklineError
from hookline._record.records import parse_nonfinite, valid_text
from hookline.server.access import MLFLOW_PREFIXES
from hookline.server.limits import MAX_INTEGER

MAX_KEY, MAX_PARAM, MAX_TAG, MAX_NAME = 250, 6000, 8000, 500
MAX_METRICS, MAX_TEXTS = 1000, 100
"""The most metrics, and the most params and tags, of one request."""
MAX_DATASETS, MAX_DATASET_TEXT = 100, 1 << 20
_ID = re.compile(r"[A-Za-z0-9][\w-]{0,255}")

T = TypeVar("T")

INVALID, EXISTS, MISSING = "INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"
BAD_STATE, NOT_OFFERED = "BAD_REQUEST", "NOT_IMPLEMENTED"
_STATUSES = {INVALID: 400, EXISTS: 400, BAD_STATE: 400, MISSING: 404, NOT_OFFERED: 501}
ERROR_CODES = {
    400: INVALID,
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "ENDPOINT_NOT_FOUND",
    405: "ENDPOINT_NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: INVALID,
    415: INVALID,
    422: INVALID,
    501: NOT_OFFERED,
    503: "TEMPORARILY_UNAVAILABLE",
    507: "TEMPORARILY_UNAVAILABLE",
}
"""MLflow's codes for the statuses of other errors; the rest are internal errors."""


class MlflowError(HooklineError, ValueError):
    """A request that is refused, with MLflow's code for the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.status = code, _STATUSES[code]


def error_fields(path: str, text: str, status: int) -> dict[str, Any]:
    """Return the fields that MLflow's client expects in an error response; empty for other requests."""
    if not path.startswith(MLFLOW_PREFIXES):
        return {}
    return {"error_code": ERROR_CODES.get(status, "INTERNAL_ERROR"), "message": text}


class KeyValue(msgspec.Struct, frozen=True):
    """A param or a tag."""

    key: str
    value: str = ""


class SentMetric(msgspec.Struct, frozen=True):
    """A value of a metric; times are in milliseconds since 1970."""

    key: str
    value: float | str
    timestamp: int | None = None
    step: int = 0
    model_id: str = ""
    dataset_name: str = ""
    dataset_digest: str = ""


class Dataset(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a data set."""

    name: str
    digest: str
    source_type: str = ""
    source: str = ""
    schema: str = ""
    profile: str = ""


class DatasetInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """A data set that a run uses, with tags such as its context."""

    dataset: Dataset
    tags: list[KeyValue] = []


class ModelUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model that a run uses or makes."""

    model_id: str
    step: int = 0


class CreateExperiment(msgspec.Struct):
    """``experiments/create``."""

    name: str
    artifact_location: str = ""
    tags: list[KeyValue] = []


class ExperimentRequest(msgspec.Struct):
    """A request that reads or changes an experiment."""

    experiment_id: str
    new_name: str = ""
    key: str = ""
    value: str = ""


class Search(msgspec.Struct):
    """A search for experiments, runs or models."""

    experiment_ids: list[str] = []
    filter: str = ""
    run_view_type: str = "ACTIVE_ONLY"
    view_type: str = "ACTIVE_ONLY"
    max_results: Annotated[int, msgspec.Meta(ge=0)] = 1000
    order_by: list[Any] = []
    page_token: str = ""


class CreateRun(msgspec.Struct):
    """``runs/create``."""

    experiment_id: str = "0"
    user_id: str = ""
    run_name: str = ""
    start_time: int | None = None
    tags: list[KeyValue] = []


class RunRequest(msgspec.Struct):
    """A request that reads or changes a run; old clients name its id ``run_uuid``."""

    run_id: str = ""
    run_uuid: str = ""
    status: str = ""
    end_time: int | None = None
    run_name: str = ""
    key: str = ""
    value: str = ""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run_id or self.run_uuid


class LogMetric(RunRequest):
    """``runs/log-metric``."""

    value: float | str = ""  # type: ignore[assignment]
    timestamp: int | None = None
    step: int = 0
    model_id: str = ""
    dataset_name: str = ""
    dataset_digest: str = ""


class LogBatch(msgspec.Struct):
    """``runs/log-batch``."""

    run_id: str = ""
    metrics: list[SentMetric] = []
    params: list[KeyValue] = []
    tags: list[KeyValue] = []


class LogInputs(msgspec.Struct):
    """``runs/log-inputs`` and ``runs/outputs``."""

    run_id: str = ""
    datasets: list[DatasetInput] = []
    models: list[ModelUse] = []


class LogModel(msgspec.Struct):
    """``runs/log-model``, which old clients send."""

    run_id: str = ""
    model_json: str = ""


class CreateModel(msgspec.Struct):
    """``logged-models``."""

    experiment_id: str = "0"
    name: str = ""
    model_type: str = ""
    source_run_id: str = ""
    params: list[KeyValue] = []
    tags: list[KeyValue] = []


class ChangeModel(msgspec.Struct):
    """A request that changes a model."""

    status: str = ""
    params: list[KeyValue] = []
    tags: list[KeyValue] = []


def decoded(body: bytes, kind: type[T]) -> T:
    """Decode a request.

    Raises:
        MlflowError: It is not valid.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MlflowError(INVALID, f"The body is not valid: {error}.") from None


def checked_key(what: str, key: str) -> str:
    """Return the name of a metric, a param or a tag.

    Raises:
        MlflowError: It is empty, too long, or has characters that are not printed.
    """
    if not (0 < len(key) <= MAX_KEY and key.isprintable()):
        raise MlflowError(INVALID, f"{what}={key!r:.80}: give 1 to {MAX_KEY} printable characters.")
    return key


def checked_texts(what: str, given: Iterable[KeyValue], limit: int) -> dict[str, str]:
    """Return params or tags by name; longer ones are cut, as MLflow does.

    Raises:
        MlflowError: A name is not accepted.
    """
    return {checked_key(what, each.key): valid_text(each.value[:limit]) for each in given}


def checked_number(name: str, value: float | str) -> float:
    """Return the value of a metric.

    Raises:
        MlflowError: It is not a number.
    """
    if isinstance(value, float):
        return value
    try:
        return float(parse_nonfinite(value))
    except ValueError:
        raise MlflowError(INVALID, f"The metric {name!r:.80} is {value!r:.80}; give a number.") from None


def checked_integer(name: str, value: int) -> int:
    """Return a step or a time.

    Raises:
        MlflowError: It does not fit 53 bits.
    """
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise MlflowError(INVALID, f"{name}={value}: give a whole number that fits 53 bits.")
    return value


def checked_id(name: str, given: str) -> str:
    """Return the id of a run, an experiment or a model.

    Raises:
        MlflowError: It is missing, or cannot be one.
    """
    if not given:
        raise MlflowError(INVALID, f"{name} is missing.")
    if not _ID.fullmatch(given):
        raise MlflowError(INVALID, f"{name}={given!r:.80}: give letters, digits, '_' and '-'.")
    return given


def shown_number(value: float) -> float | str:
    """Return a number in a form that JSON allows."""
    return value if math.isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def shown_texts(texts: dict[str, str]) -> list[dict[str, str]]:
    """Return params or tags as sent to clients."""
    return [{"key": key, "value": value} for key, value in texts.items()]

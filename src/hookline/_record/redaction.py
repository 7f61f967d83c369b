"""Redaction: keeps secrets out of everything that is recorded.

A `Redactor` passes each text through the user's functions and patterns (``redact=``), and then through patterns for
well-known secrets: keys and tokens of common services, JSON web tokens, private keys, passwords in URLs and in
assignments such as ``password=...``. What matches becomes ``[redacted]``. In settings, texts whose name says that they
are secret (``api_key``, ``*_token``, ``*password*``) are replaced whatever they look like; so are arguments of the
command line.

Guarantees:

- A text that a user's function fails on is never recorded: ``[redaction failed]`` takes its place. The failure is
  logged once and counted.
- Numbers are not looked at.
- References to variables, such as ``${HF_TOKEN}``, and the special tokens of tokenizers stay as they are.

It leaves out names (of metrics, columns and settings), the content of files and pictures, and secrets that look like
ordinary words and have no name.
"""

import importlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from hookline._engine.errors import OptionError
from hookline._record.records import (
    HYPERPARAMETERS,
    SUMMARY,
    Event,
    Media,
    Metrics,
    Record,
    Rewards,
    Status,
    TableRows,
    valid_text,
)

logger = logging.getLogger("hookline")

RedactFunction: TypeAlias = Callable[[str], str]
RedactRule: TypeAlias = RedactFunction | str | re.Pattern[str]
Redact: TypeAlias = RedactRule | Sequence[RedactRule] | bool | None
"""What ``redact=`` accepts."""

REDACTED = "[redacted]"
FAILED = "[redaction failed]"
_NONFINITE = frozenset({"NaN", "Infinity", "-Infinity"})
_FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

# Shapes that no ordinary text has. Each begins with a literal.
_SHAPES = re.compile(
    r"""
    \b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b                             # AWS
    | \bgh[pousr]_[A-Za-z0-9]{30,}                                      # GitHub
    | \bgithub_pat_[A-Za-z0-9_]{22,}
    | \bglpat-[A-Za-z0-9_-]{20,}                                        # GitLab
    | \bhf_[A-Za-z0-9]{20,}                                             # Hugging Face
    | \bsk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}                       # OpenAI, Anthropic, OpenRouter
    | \b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}                            # Stripe
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}                                  # Slack
    | \bhooks\.slack\.com/services/[A-Za-z0-9/]{20,}
    | \bAIza[A-Za-z0-9_-]{30,}                                          # Google
    | \bya29\.[A-Za-z0-9_-]{20,}
    | \b(?:gsk|r8|npm|wandb_v1|dop_v1|lin_api)_[A-Za-z0-9_]{30,}        # Groq, Replicate, npm, W&B, ...
    | \b(?:nvapi|pypi)-[A-Za-z0-9_-]{30,}
    | \bdapi[0-9a-f]{32}\b                                              # Databricks
    | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}      # a JSON web token
    """,
    re.VERBOSE,
)
_SHAPE_HINT = re.compile(r"[-_][A-Za-z0-9]{9}")
_SHAPE_STARTS = ("eyJ", "AKIA", "ASIA", "AIza", "ABIA", "ACCA", "ya29.", "dapi", "hooks.slack")
"""One of these, or the hint, is in every text with a shape: cheaper to search for than the shapes."""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL
)
_KEY_LINE = re.compile(r"\n([-+ ]?)[^\n]*")
_USER_INFO = re.compile(r"(?<=://)([^\s/@:\"'<>]{0,200}):([^\s/@\"'<>]{1,500})@|(?<=://)[A-Za-z0-9_-]{20,200}@")
_AUTHORIZATION = re.compile(
    r"(?i)(\bauthorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:bearer|basic|token|digest)\s+)[^\s\"',;]{4,}"
    r"|(\bbearer\s+)(?=[A-Za-z0-9._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{16,}"
)
_QUERY = re.compile(r"(?i)([?&](?:[\w-]*(?:token|secret|passw(?:or)?d|signature|api_?key)|key|sig)=)[^&\s\"'<>#]+")

_ASSIGNMENTS = [
    (name, re.compile(rf"{name}{rest}(?:_?value)?[\"'`]?\s{{0,3}}(?:=>?|:=?)\s{{0,3}}"))
    for name, rest in [
        *(("token", ""), ("key", ""), ("passw", "(?:or)?d"), ("secret", ""), ("passphrase", ""), ("pwd", "")),
        *(("credential", "s?"), ("authorization", "")),
    ]
]
"""Names in lower case, and the beginning of an assignment. A pattern that begins with a literal is found fast."""
_VALUE = re.compile(
    r"(?P<quote>[\"'`])(?P<quoted>[^\"'`\s]{4,})(?P=quote)|(?P<bare>[^\s\"'`,;&|<>(){}\[\]]{6,}+)(?![\w(\[{<])"
)
_KEY_BEFORE = re.compile(
    r"(?:api|access|account|private|secret|signing|encryption|auth|client|license|subscription)[_ -]?\Z"
)
_DIGIT_OR_SIGN = re.compile(r"[0-9!@#$%^*+~?]")
_LETTER = re.compile(r"[A-Za-z]")
_DIGIT = re.compile(r"[0-9]")
_WORD_BEFORE = re.compile(r"[A-Za-z0-9]*(?=[_ -]?\Z)")
_REFERENCE = re.compile(r"\$\{?\w|<|\{|%|\*{3}|\[redact|\.\.\.|x{4}", re.IGNORECASE)
"""How a text begins that stands for a secret without being one."""

_TOKENIZER_WORDS = (
    "pad eos bos unk sep cls mask special image video audio stop start end begin decoder next last first each per max "
    "min num new prev previous current this that every same control tool think thinking answer user assistant system "
    "text word sub byte input output target source prompt completion response class object vision patch box point time"
)
_SPECIAL_TOKENS = frozenset(_TOKENIZER_WORDS.split())
"""Words before "token" that make it one of a tokenizer."""
_LAST_WORDS = (
    "file files path paths dir env var variable name names id ids type types url uri count counts length size limit "
    "level ttl expiry expires index position rate ratio loss weight mask embedding embeddings class field fields "
    "column prompt required enabled version manager provider store policy hash seconds"
)
_NOT_SECRET = frozenset(_LAST_WORDS.split())
"""Last words of a name that speaks about a secret, or about something else."""
_SECRET_NAME = re.compile(
    r"passw(?:or)?d|passphrase|(?:^|_)pwd(?:_|$)|secret|credential|(?:^|_)authorization(?:_|$)"
    r"|(?:api|access|account|private|signing|encryption|auth|license|subscription|ssh)_?keys?(?:_|$)"
    r"|(?:^|_)(?:api|auth|access|refresh|bearer|session|hf|github|gitlab|wandb|bot)_?tokens?(?:_|$)"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def redact_secrets(text: str) -> str:
    """Replace texts that look like secrets.

    >>> redact_secrets("login with token=3c5d7a9b1e2f4a6c at https://me:pass@host/")
    'login with token=[redacted] at https://me:[redacted]@host/'
    """
    if _SHAPE_HINT.search(text) is not None or any(start in text for start in _SHAPE_STARTS):
        text = _SHAPES.sub(REDACTED, text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(_without_key, text)
    if "://" in text:
        text = _USER_INFO.sub(lambda match: f"{match[1] or ''}{':' if match[2] else ''}{REDACTED}@", text)
        if "?" in text:
            text = _QUERY.sub(rf"\1{REDACTED}", text)
    is_assigning, lower = "=" in text or ":" in text, text.lower()
    if "bearer" in lower or (is_assigning and "authorization" in lower):
        text = _AUTHORIZATION.sub(lambda match: f"{match[1] or match[2]}{REDACTED}", text)
        lower = text.lower()
    return _without_assigned(text, lower) if is_assigning else text


def _without_key(match: re.Match[str]) -> str:
    # Line by line, with the marks of a diff: a diff with fewer lines would not apply.
    return REDACTED + "".join(f"\n{line[1]}{REDACTED}" for line in _KEY_LINE.finditer(match[0]))


def _without_assigned(text: str, lower: str) -> str:
    if len(lower) != len(text):  # a few letters are longer in lower case: keep the positions of the others
        lower = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    spans = []
    for name, assignment in _ASSIGNMENTS:
        for found in assignment.finditer(lower) if name in lower else ():
            value = _VALUE.match(text, found.end())
            if value is not None and _is_secret(name, lower, found.start(), value):
                spans.append(value.span("quoted" if value["quoted"] else "bare"))
    pieces, end = [], 0
    for first, last in sorted(spans):
        if first >= end:
            pieces += [text[end:first], REDACTED]
            end = last
    return "".join([*pieces, text[end:]]) if pieces else text


def _is_secret(name: str, lower: str, start: int, match: re.Match[str]) -> bool:
    """Whether a value that is assigned to a name in a text looks like a secret, not like a word or code."""
    value = match["quoted"] or match["bare"]
    if _REFERENCE.match(value):
        return False
    if name == "token":
        before = _WORD_BEFORE.search(lower, max(0, start - 40), start)
        if before is not None and before[0] in _SPECIAL_TOKENS:
            return False
        return len(value) >= 8 and bool(_DIGIT.search(value) and _LETTER.search(value))
    if name == "key" and not _KEY_BEFORE.search(lower, max(0, start - 20), start):
        return False
    return _DIGIT_OR_SIGN.search(value) is not None or (match["quoted"] is not None and len(value) >= 12)


def is_secret_name(name: str) -> bool:
    """Return whether a setting of this name holds a secret.

    >>> [is_secret_name(name) for name in ("hf_token", "apiKey", "DB_PASSWORD", "eos_token", "token_file")]
    [True, True, True, False, False]
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _NOT_SECRET:
        return False
    if _SECRET_NAME.search("_".join(words)):
        return True
    return words[-1] == "token" and (len(words) == 1 or words[-2] not in _SPECIAL_TOKENS)


class Redactor:
    """Redacts texts, settings and records of one run. May be called from any thread.

    Args:
        redact: A function of a text, a regular expression whose matches are replaced, ``"module:function"``, or a list
            of these, applied before the patterns for well-known secrets. False records everything unchanged.

    Raises:
        OptionError: It is none of these.
    """

    def __init__(self, redact: Any = None) -> None:
        self.is_active = redact is not False
        given = [] if redact is None or redact is False or redact is True else redact
        if isinstance(given, str | re.Pattern) or callable(given):
            given = [given]
        if not isinstance(given, Iterable) or isinstance(given, Mapping | bytes):
            raise _wrong(given)
        self._functions = [_function(each) for each in given]
        self.failures = 0
        """How many texts were replaced because a function failed."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def extend(self, other: "Redactor") -> None:
        """Also apply the functions of another, before the patterns."""
        self._functions += [each for each in other._functions if each not in self._functions]

    def withdraw(self, other: "Redactor") -> None:
        """Undo `extend`."""
        self._functions = [each for each in self._functions if each not in other._functions]

    @property
    def has_functions(self) -> bool:
        """Whether every text has to be seen, not only those that look as if they held a secret."""
        return bool(self._functions)

    def __call__(self, text: str) -> str:
        """Return a text without what is secret in it."""
        if not self.is_active:
            return text
        for function in self._functions:
            try:
                redacted = function(text)
                if not isinstance(redacted, str):
                    raise TypeError(f"it returned a {type(redacted).__name__}, not a string")  # noqa: TRY301
                text = redacted
            # Everything that a user's code may raise: the text must not be recorded as it is.
            except Exception as error:
                self._count_failure(function, error)
                return FAILED
        return redact_secrets(text)

    def would_keep(self, text: str) -> bool:
        """Return whether a text is recorded unchanged; cheaper than a call, where there are no functions."""
        return not self.is_active or (not self._functions and redact_secrets(text) is text)

    def values(self, value: Any) -> Any:
        """Redact every text in plain nested values; references to blobs stay."""
        if isinstance(value, str):
            return value if value in _NONFINITE else self(value)
        if isinstance(value, dict):
            return {key: item if key == "blob" else self.values(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.values(item) for item in value]
        return value

    def encoded_text(self, content: bytes, *, is_json: bool = False) -> bytes:
        """Redact an encoded text, or the texts in encoded JSON."""
        text = content.decode("utf-8", "replace")
        if self.would_keep(text):
            return content
        # Parsed first: a pattern that ends in the middle of an escape would leave something else than JSON.
        redacted = json.dumps(self.values(json.loads(text))) if is_json else self(text)
        return valid_text(redacted).encode()

    def settings(self, value: Any, *, is_secret: bool = False) -> Any:
        """Redact plain nested settings: texts, and the values of those whose name says that they are secret."""
        if not self.is_active:
            return value
        if isinstance(value, dict):
            return {
                key: self.settings(item, is_secret=is_secret or is_secret_name(str(key))) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.settings(item, is_secret=is_secret) for item in value]
        if isinstance(value, str):
            if is_secret and value and value not in _NONFINITE and not _REFERENCE.match(value):
                return REDACTED
            return self.values(value)
        # A numeric password; other numbers under such names count something.
        return REDACTED if is_secret and type(value) is int and value > 999 else value

    def command(self, arguments: Iterable[Any]) -> list[str]:
        """Redact a command line: the values of options whose name says that they are secret, and texts."""
        found: list[str] = []
        is_secret = False
        for argument in map(str, arguments):
            name, sign, value = argument.partition("=")
            if not self.is_active:
                found.append(argument)
            elif is_secret and not argument.startswith("--"):
                found.append(argument if _REFERENCE.match(argument) else REDACTED)
            elif sign and value and len(name) < 200 and is_secret_name(name) and not _REFERENCE.match(value):
                found.append(f"{name}={REDACTED}")
            else:
                found.append(self(argument))
            is_secret = not sign and argument.startswith("-") and is_secret_name(argument)
        return found

    def record(self, record: Record) -> None:
        """Redact a record in place. Samples and log lines are redacted where they are truncated."""
        match record:
            case Metrics():
                values = record.values
                record.values = {k: self(v) if type(v) is str and v not in _NONFINITE else v for k, v in values.items()}
            case Event():
                redact = self.settings if record.name in (HYPERPARAMETERS, SUMMARY) else self.values
                record.data = redact(record.data)
            case Status():
                record.message, record.data = self(record.message), self.values(record.data)
            case Media():
                record.caption, record.data = self(record.caption) if record.caption else "", self.values(record.data)
            case TableRows():
                record.rows = self.values(record.rows)
            case Rewards():
                record.samples = [self(text) for text in record.samples]

    def _count_failure(self, function: RedactFunction, error: Exception) -> None:
        with self._lock:
            self.failures += 1
            is_first = self.failures == 1
        if is_first:
            # Without the error's text, which may quote what was to be redacted.
            logger.error(
                "redact: %r raised %s. The texts that it fails on are recorded as %r.",
                getattr(function, "__name__", function),
                type(error).__name__,
                FAILED,
            )


def as_redactor(redact: Any) -> Redactor:
    """Return the redactor for the argument ``redact=``."""
    return redact if isinstance(redact, Redactor) else Redactor(redact)


def _function(given: Any) -> RedactFunction:
    if isinstance(given, str) and _FUNCTION_NAME.fullmatch(given):
        module, _, name = given.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise OptionError(
                f"redact={given!r} cannot be imported: {error}. If it is a regular expression, write [:] for the colon."
            ) from error
        if not callable(found):
            raise OptionError(f"redact={given!r} is {found!r:.200}, not a function.")
        return found  # type: ignore[no-any-return]
    if isinstance(given, str):
        try:
            given = re.compile(given)
        except re.error as error:
            raise OptionError(f"redact={given!r} is not a regular expression: {error}.") from error
    if isinstance(given, re.Pattern):
        if isinstance(given.pattern, bytes) or given.search("") is not None:
            raise OptionError(f"redact={given.pattern!r}: give a pattern of text that does not match the empty text.")
        return PatternFunction(given)
    if callable(given):
        return given  # type: ignore[no-any-return]
    raise _wrong(given)


class PatternFunction:
    """Replaces what a user's regular expression matches; a class, because it is sent to other processes."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def __call__(self, text: str) -> str:
        return self._pattern.sub(REDACTED, text)


def _wrong(given: Any) -> OptionError:
    return OptionError(
        f"redact={given!r:.200}: give a function of a text, a regular expression, 'module:function', a list of these, "
        "or False to record everything unchanged."
    )

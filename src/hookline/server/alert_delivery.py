"""Where alerts are delivered: webhooks, Slack and what accepts its messages, e-mail, and the desktop.

A destination sends one alert at a time and raises if that fails: `RefusedError` where trying again is useless until a
setting changes, anything else where it may work later. Each message carries the alert's id (``Idempotency-Key``, or the
``Message-ID`` of a mail), so that a receiver can recognize one that is sent again after a crash.

``${NAME}`` in addresses, headers and passwords is taken from the environment when a message is sent. Secrets are in no
error message, and nothing here is written to disk.
"""

import email.message
import shutil
import smtplib
import ssl
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from hookline._engine.errors import ConfigError, RefusedError
from hookline._engine.factories import Source, checked_arguments, split_entry
from hookline._record.records import clean
from hookline.sinks.http import EndpointError, MessageEndpoint, expanded, redacted, require_url
from hookline.store.alert_book import RaisedAlert

SECONDS = 10.0
"""How long a destination may take to accept a message."""


class Destination(ABC):
    """Delivers alerts; see the module."""

    kind: ClassVar[str]

    @abstractmethod
    def send(self, alert: RaisedAlert) -> None:
        """Send one alert."""

    def close(self) -> None:  # noqa: B027 - few hold a connection
        """Release connections. May be called again."""


@dataclass(eq=False)
class Webhook(Destination):
    """Posts each alert as a JSON object: ``id``, ``run``, ``rule``, ``metric``, ``value``, ``step``, ``message``, ...

    Args:
        url: The address.
        headers: Sent with each request, e.g. ``{"Authorization": "Bearer ${TOKEN}"}``.
    """

    kind = "webhook"
    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_url(self.url, f"{self.kind}: url")
        self._endpoint = MessageEndpoint(self.url, self.headers, option="url", timeout_seconds=SECONDS)

    def send(self, alert: RaisedAlert) -> None:
        self._endpoint.open()
        try:
            self._endpoint.send(alert.id, self.payload(alert))
        except (RefusedError, EndpointError) as error:
            # The path of such an address is often its secret, and the error is written into the book.
            known, parts = redacted(self.url), urlsplit(self.url)
            hidden = known if known == self.url and not parts.netloc else f"{parts.scheme}://{parts.hostname}/..."
            raise type(error)(str(error).replace(known, hidden)) from None
        # The book remembers what was delivered, also after a restart.
        self._endpoint.settle()

    def payload(self, alert: RaisedAlert) -> dict[str, Any]:
        """Return the body of the request."""
        names = ("id", "run", "rule", "severity", "metric", "value", "step", "message", "time")
        return {name: clean(getattr(alert, name)) for name in names}

    def close(self) -> None:
        self._endpoint.close()


@dataclass(eq=False)
class Slack(Webhook):
    """Posts each alert as a Slack message; Mattermost, Rocket.Chat, Discord's ``/slack`` address and others accept it.

    Args:
        url: The address of the incoming webhook, best as ``${SLACK_WEBHOOK}``: anyone who has it can post.
        headers: Sent with each request.
    """

    kind = "slack"

    def payload(self, alert: RaisedAlert) -> dict[str, Any]:
        return {"text": _escaped(f"[{alert.severity}] {alert.run}: {alert.message}")}


@dataclass(eq=False)
class Email(Destination):
    """Sends each alert as a mail.

    Args:
        host: The SMTP server.
        sender: The address that mails come from.
        to: The addresses of the recipients.
        port: The server's port.
        security: ``"starttls"``, ``"tls"`` from the beginning (usually at port 465), or ``"none"``.
        user: The user's name, if the server needs one.
        password: Best as ``${SMTP_PASSWORD}``.
    """

    kind = "email"
    host: str
    sender: str
    to: list[str]
    port: int = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = ""

    def __post_init__(self) -> None:
        if self.security not in ("starttls", "tls", "none"):
            raise ConfigError(f"email: security={self.security!r}: give 'starttls', 'tls' or 'none'.")
        addresses = [self.sender, *self.to]
        if not self.to or any("@" not in each or set(each) & set("\r\n") for each in addresses):
            raise ConfigError(f"email: sender={self.sender!r}, to={self.to!r}: give mail addresses.")
        if self.user and self.security == "none" and self.host not in ("localhost", "127.0.0.1", "::1"):
            raise ConfigError("email: security='none' would send the password unencrypted: give 'starttls' or 'tls'.")

    def send(self, alert: RaisedAlert) -> None:
        message = email.message.EmailMessage()
        message["From"], message["To"] = self.sender, ", ".join(self.to)
        message["Subject"] = " ".join(f"[{alert.severity}] {alert.run}: {alert.message}".split())[:200]
        message["Message-ID"] = f"<{alert.id}@hookline>"
        lines = [f"{name}: {getattr(alert, name)}" for name in ("run", "rule", "metric", "value", "step")]
        message.set_content("\n".join([alert.message, "", *lines, ""]))
        user, password = expanded(self.user, "email: user"), expanded(self.password, "email: password")
        try:
            with self._connected() as server:
                if user:
                    server.login(user, password)
                server.send_message(message)
        except (smtplib.SMTPAuthenticationError, smtplib.SMTPRecipientsRefused, smtplib.SMTPSenderRefused) as error:
            code = getattr(error, "smtp_code", 550)
            if not isinstance(error, smtplib.SMTPRecipientsRefused) and code < 500:
                raise  # temporary
            raise RefusedError(
                f"{self.host} refuses the mail: {type(error).__name__}. Check user, sender, to."
            ) from None

    def _connected(self) -> smtplib.SMTP:
        if self.security == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=SECONDS, context=context)
        server = smtplib.SMTP(self.host, self.port, timeout=SECONDS)
        try:
            if self.security == "starttls":
                server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
        return server


@dataclass(eq=False)
class Desktop(Destination):
    """Shows each alert as a notification on the desktop of this machine, with ``notify-send``."""

    kind = "desktop"

    def send(self, alert: RaisedAlert) -> None:
        program = shutil.which("notify-send")
        if program is None:
            raise RefusedError("There is no notify-send on this machine. Install libnotify.")
        urgency = "critical" if alert.severity in ("error", "critical") else "normal"
        # After "--": a run's name may begin with a dash.
        command = [program, f"--urgency={urgency}", "--app-name=hookline", "--", alert.run, _escaped(alert.message)]
        subprocess.run(command, check=True, timeout=SECONDS, capture_output=True)  # noqa: S603 - a list, no shell


def _escaped(text: str) -> str:
    """Escape what Slack, and notifications, read as markup: a run's name comes from elsewhere."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


KINDS: dict[str, type[Destination]] = {kind.kind: kind for kind in (Webhook, Slack, Email, Desktop)}


def make_destinations(entries: Any, source: Source) -> dict[str, Destination]:
    """Build destinations from the entries of a file, by name; a second one of a kind gets a number.

    Raises:
        ConfigError: An entry is not accepted.
    """
    if not isinstance(entries, list):
        raise ConfigError(f"{source.file}: deliver={entries!r:.60}: give a list of destinations: {', '.join(KINDS)}.")
    made: dict[str, Destination] = {}
    for position, entry in enumerate(entries):
        name, arguments = split_entry(entry, "a destination")
        if name not in KINDS:
            raise ConfigError(f"{source.file}: deliver[{position}]: {name!r:.60} is none of {', '.join(KINDS)}.")
        kind: Any = KINDS[name]
        made_here = kind(**checked_arguments(kind, _mapping(arguments), source, f"deliver[{position}].{name}"))
        label = next(each for each in (name, *(f"{name}_{n}" for n in range(2, len(made) + 3))) if each not in made)
        made[label] = made_here
    return made


def _mapping(arguments: Any) -> Mapping[str, Any]:
    return arguments if isinstance(arguments, Mapping) else {}

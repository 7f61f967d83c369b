"""The alerts of the runs (`hookline.store.alert_book`) for the page: listing, acknowledging and muting them.

Also the rules that raise them: those of the alert file are listed, those of the page are added and removed here.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from hookline._engine.errors import OptionError, UnknownNameError
from hookline._record.records import clean, valid_text
from hookline.server.actions import ACTION_PREFIX, ActionContext, ActionEndpoint, ActionRequest
from hookline.server.alert_rules import check_rule, references, rule_text
from hookline.server.audit import local_user
from hookline.server.endpoint import Endpoint, OutOfScopeError, Values
from hookline.server.listing import Listing
from hookline.server.tokens import ProjectScope
from hookline.store.alert_book import AlertBook, AlertRule, Book, Mute, RaisedAlert
from hookline.store.edits import run_directory_of

MOST_SHOWN = 500
MOST_NAMED = 1000
_Id = Annotated[str, msgspec.Meta(min_length=16, max_length=16)]


class ShownAlert(msgspec.Struct):
    """An alert and how far its delivery is."""

    id: str
    run: str
    rule: str
    message: str
    time: float
    metric: str
    value: Any
    step: int | None
    severity: str
    state: str
    acknowledged_by: str
    errors: dict[str, str]


class ShownMute(msgspec.Struct):
    """A rule, a run, or a rule in a run whose alerts are not delivered."""

    rule: str
    run: str
    until: float


class ShownRule(msgspec.Struct):
    """A rule.

    Attributes:
        name: Its name; empty for a rule of the alert file, which cannot be removed here.
        text: What it looks for, as in a configuration file.
        project: The project whose runs it is for; empty for all.
    """

    name: str
    text: str
    project: str = ""
    author: str = ""
    time: float = 0.0


class Alerts(msgspec.Struct):
    """The latest alerts, newest first, what is muted, and the rules.

    Attributes:
        total: How many alerts there are.
        destinations: Where alerts are delivered.
    """

    alerts: list[ShownAlert]
    mutes: list[ShownMute]
    total: int
    rules: list[ShownRule]
    destinations: list[str]


class Acknowledgement(msgspec.Struct, forbid_unknown_fields=True):
    """The alerts to acknowledge, by their ids."""

    alerts: Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=MOST_NAMED)]


class AcknowledgedAlerts(msgspec.Struct):
    """The ids of the alerts that are acknowledged."""

    alerts: list[str]


class MuteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to mute, or with ``off`` to deliver again: a rule, a run, or a rule in a run.

    Attributes:
        seconds: For how long; None for good.
    """

    rule: str = ""
    run: str = ""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=366 * 86400.0)] | None = None
    off: bool = False


class Mutes(msgspec.Struct):
    """What is muted."""

    mutes: list[ShownMute]


class RuleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A rule to add.

    Attributes:
        use: ``alert`` or ``no_progress``.
        arguments: Its arguments, as in a configuration file.
        project: The project whose runs it is for; empty for all.
    """

    name: Annotated[str, msgspec.Meta(max_length=200)]
    use: str
    arguments: dict[str, Any]
    project: str = ""


class RuleName(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a rule to remove."""

    name: str


class Rules(msgspec.Struct):
    """The rules."""

    rules: list[ShownRule]


def _shown(alert: RaisedAlert) -> ShownAlert:
    errors = {name: each.error for name, each in alert.deliveries.items() if each.error}
    value = clean(alert.value)  # JSON has no NaN
    facts = alert.id, alert.run, alert.rule, alert.message, alert.time, alert.metric, value, alert.step
    return ShownAlert(*facts, alert.severity, alert.state, alert.acknowledged_by, errors)


def _in_force(mutes: Sequence[Mute]) -> list[ShownMute]:
    now = time.time()
    return [ShownMute(each.rule, each.run, each.until) for each in mutes if not each.until or each.until > now]


def _visible(mutes: Sequence[Mute], scope: ProjectScope) -> list[Mute]:
    """The mutes that a token sees: with one for some projects, those of its runs, because rules may have any names."""
    return [each for each in mutes if scope.is_all or (each.run and scope.allows(_project(each.run)))]


def _shown_rules(book: Book, scope: ProjectScope) -> list[ShownRule]:
    """The rules that a token sees: with one for some projects, those for their runs."""
    from_file = [ShownRule("", each) for each in book.file_rules] if scope.is_all else []
    return from_file + [
        ShownRule(each.name, valid_text(rule_text(each))[:500], each.project, each.author, each.time)
        for each in book.rules
        if scope.is_all or (each.project and scope.allows(each.project))
    ]


def _project(run: str) -> str:
    return run.partition("/")[0]


def _alerts(listing: Listing, values: Values) -> Alerts:
    book = AlertBook(listing.now().runs.root).read()
    seen = [each for each in book.alerts.values() if listing.scope.allows(_project(each.run))]
    seen.sort(key=lambda each: each.time, reverse=True)
    return Alerts(
        [_shown(each) for each in seen[:MOST_SHOWN]],
        _in_force(_visible(book.mutes, listing.scope)),
        len(seen),
        _shown_rules(book, listing.scope),
        book.destinations,
    )


def _acknowledge(context: ActionContext, request: ActionRequest) -> AcknowledgedAlerts:
    book, wanted = AlertBook(context.root), request.body.alerts
    known = book.read().alerts
    runs = [known[each].run for each in wanted if each in known]
    context.check_projects(request.principal, [_project(run) for run in runs])
    by = request.principal.name if context.needs_token else local_user().name
    done = book.acknowledge(wanted, by)
    context.record("alerts.acknowledged", request, sorted(set(runs)))
    return AcknowledgedAlerts(done)


def _mute(context: ActionContext, request: ActionRequest) -> Mutes:
    given: MuteRequest = request.body
    if given.run:
        context.check_projects(request.principal, [_project(given.run)])
        run_directory_of(context.root, given.run)  # refuses what is no run
    elif not request.principal.scope.is_all:
        raise OptionError("This token is for some projects only: give a run of them to mute.")
    mutes = AlertBook(context.root).mute(rule=given.rule, run=given.run, seconds=given.seconds, off=given.off)
    if given.run:
        context.record(f"alerts.{'unmuted' if given.off else 'muted'}", request, [given.run], result=given.rule or "ok")
    return Mutes(_in_force(_visible(mutes, request.principal.scope)))


def _add_rule(context: ActionContext, request: ActionRequest) -> Rules:
    given: RuleRequest = request.body
    author = request.principal.name if context.needs_token else local_user().name
    rule = AlertRule(given.name.strip(), given.use, given.arguments, given.project, author)
    check_rule(rule)
    if not rule.project and not request.principal.scope.is_all:
        raise OutOfScopeError("This token is for some projects only: give the one whose runs the rule is for.")
    # Its alerts show values of these runs.
    context.check_projects(request.principal, references(rule))
    book = AlertBook(context.root)
    book.add_rule(rule)
    context.record("alerts.rule_added", request, [f"{rule.project}/{rule.name}"])
    return Rules(_shown_rules(book.read(), request.principal.scope))


def _remove_rule(context: ActionContext, request: ActionRequest) -> Rules:
    book, name = AlertBook(context.root), request.body.name
    if not name or all(each.name != name for each in _shown_rules(book.read(), request.principal.scope)):
        raise UnknownNameError(f"There is no rule {name!r:.100}. It may have been removed.")
    removed = book.remove_rule(name)
    context.record("alerts.rule_removed", request, [f"{removed.project}/{name}"])
    return Rules(_shown_rules(book.read(), request.principal.scope))


ENDPOINTS = (Endpoint("/api/alerts", "The alerts that rules raised, and the mutes.", Alerts, _alerts),)
ACTIONS: Sequence[ActionEndpoint] = (
    ActionEndpoint(
        f"{ACTION_PREFIX}acknowledge_alerts", "Acknowledge alerts.", Acknowledgement, AcknowledgedAlerts, _acknowledge
    ),
    ActionEndpoint(f"{ACTION_PREFIX}mute_alerts", "Stop or continue delivering alerts.", MuteRequest, Mutes, _mute),
    ActionEndpoint(f"{ACTION_PREFIX}add_alert_rule", "Add an alert rule.", RuleRequest, Rules, _add_rule),
    ActionEndpoint(f"{ACTION_PREFIX}remove_alert_rule", "Remove an alert rule.", RuleName, Rules, _remove_rule),
)

"""Endpoints for the role ``admin``: the audit log and the tokens.

`hookline.server.access` lets only admins call them. An admin of some projects sees the entries and the tokens of these
projects only; entries about tokens, which are not of one project, are for admins of all projects.
"""

import msgspec

from hookline.server.access import Access
from hookline.server.audit import AuditEvent, AuditLog
from hookline.server.endpoint import Endpoint, Parameter, Values
from hookline.server.listing import Listing
from hookline.server.tokens import TokenInfo, token_info

_LIMIT = Parameter("limit", "integer", "The maximum number of entries.", default=200, low=1, high=5000)


class AuditReply(msgspec.Struct):
    """The latest entries of the audit log, the latest first."""

    entries: list[AuditEvent]


class TokensReply(msgspec.Struct):
    """The tokens of the tokens file, without their values."""

    tokens: list[TokenInfo]


def admin_endpoints(access: Access, audit: AuditLog) -> tuple[Endpoint, ...]:
    """The endpoints of a server."""

    def read_audit(listing: Listing, values: Values) -> AuditReply:
        return AuditReply(audit.read(values["limit"], scope=listing.scope))

    def list_tokens(listing: Listing, values: Values) -> TokensReply:
        # A token with a pattern that this admin does not have could be for other projects as well.
        visible = [
            token_info(token)
            for token in access.live.all().values()
            if listing.scope.is_all or set(token.projects) <= set(listing.scope.patterns)
        ]
        return TokensReply(visible)

    return (
        Endpoint("/api/audit", "Who did what on this server.", AuditReply, read_audit, (_LIMIT,)),
        Endpoint("/api/tokens", "The tokens with roles and projects.", TokensReply, list_tokens),
    )

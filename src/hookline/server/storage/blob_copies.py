"""The protocol of blobs in a shared object store: their users, and when their content may be deleted.

Below ``blobs/<two digits>/<digest>/`` a blob has:

- ``uses/<user>``: marks that a run, or a version of an artifact, refers to the blob. The name of a user is the prefix
  of its objects. A use is created *before* its server checks whether the blob exists.
- ``copies/<token>``: its content. Usually there is one copy; each has a name that is used once only.
- ``unused/<token>``: marks a copy that is going to be deleted. A marked copy counts as missing.

To collect a blob that no living user has, a server marks its copies, lists the blob again, and deletes the marked
copies. A user that appears meanwhile has either created its use before the second listing, which sees it, so that the
content is copied to a new name first; or after the mark, which it sees, so that it sends the content again, which gets
a new name. So no blob is lost that a server reported as stored, whatever servers crash, stall, or collect at the same
time, and without clocks. A mark is never taken back: another server may be about to delete that copy.

Everything here works on an `ObjectStore`, without threads, clocks and files of its own.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hookline._record.blobs import is_digest
from hookline.server.storage.objects import Entry, MissingObjectError, ObjectStore

BLOBS = "blobs"


@dataclass(slots=True)
class BlobView:
    """A blob as it was listed.

    Attributes:
        copies: The tokens of the copies, also of marked ones.
        unused: The tokens that are marked.
        users: The prefixes of its users.
    """

    digest: str
    copies: list[str] = field(default_factory=list)
    unused: set[str] = field(default_factory=set)
    users: list[str] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """The prefix of its objects."""
        return f"{BLOBS}/{self.digest[:2]}/{self.digest}"

    @property
    def usable(self) -> list[str]:
        """The tokens of the copies that are not marked."""
        return [token for token in self.copies if token not in self.unused]

    def copy(self, token: str) -> str:
        """The name of a copy."""
        return f"{self.prefix}/copies/{token}"

    def mark(self, token: str) -> str:
        """The name of the mark of a copy."""
        return f"{self.prefix}/unused/{token}"

    def use(self, user: str) -> str:
        """The name of a use."""
        return f"{self.prefix}/uses/{user}"

    def add(self, entry: Entry) -> None:
        """Note an object of the blob."""
        kind, _, rest = entry.name.removeprefix(f"{self.prefix}/").partition("/")
        if kind == "copies":
            self.copies.append(rest)
        elif kind == "unused":
            self.unused.add(rest)
        elif kind == "uses":
            self.users.append(rest)


def list_blob(objects: ObjectStore, digest: str) -> BlobView:
    """List a blob."""
    view = BlobView(digest)
    for entry in objects.list(view.prefix):
        view.add(entry)
    return view


def group_blobs(entries: Iterable[Entry]) -> Iterator[BlobView]:
    """Group a listing of all blobs by blob."""
    view: BlobView | None = None
    for entry in entries:
        digest = (entry.name.split("/", 3) + [""] * 3)[2]
        if view is None or view.digest != digest:
            if view is not None:
                yield view
            view = BlobView(digest) if is_digest(digest) else None
        if view is not None:
            view.add(entry)
    if view is not None:
        yield view


def use_blob(objects: ObjectStore, digest: str, user: str) -> str | None:
    """Record a use of a blob, and return the name of a copy; None if its content has to be stored.

    The store has the content for as long as the user lives, perhaps under another name.
    """
    objects.create(BlobView(digest).use(user), b"")
    view = list_blob(objects, digest)
    for token in view.usable:
        # The listing took time: a marked copy, and then its mark, may have been deleted in the meantime. A copy that
        #     still exists was not marked when the use was created.
        if objects.size(view.copy(token)) is not None:
            return view.copy(token)
    return None


def new_copy(digest: str) -> str:
    """A name for the content of a blob, which its user has noted before. No other copy ever gets it."""
    return BlobView(digest).copy(secrets.token_hex(8))


def find_copy(objects: ObjectStore, digest: str) -> str | None:
    """Return the name of a copy to read, which may be deleted a moment later; None if there is none."""
    view = list_blob(objects, digest)
    found = [*view.usable, *view.copies]
    return view.copy(found[0]) if found else None


def collect_blob(objects: ObjectStore, view: BlobView, is_gone: Callable[[str], bool]) -> int:
    """Delete the copies of an unused blob; returns how many.

    Args:
        view: The blob as it was listed at any time.
        is_gone: Whether a user is gone for good.
    """
    # Mark before listing again: during that listing, others may mark copies that have just got a user.
    marked = set(view.unused)
    if not _is_used(view, is_gone):
        for token in view.usable:
            objects.create(view.mark(token), b"")
            marked.add(token)
    if not marked:  # tested once: a user may be gone a moment later, but then nothing is marked yet
        return 0
    now = list_blob(objects, view.digest)
    doomed = [token for token in now.copies if token in marked]
    is_used = _is_used(now, is_gone)
    if is_used and not now.usable and doomed:
        try:
            content = objects.get(now.copy(doomed[0]))
        except MissingObjectError:
            return 0  # another server is doing this
        objects.create(new_copy(view.digest), content)
    # The marks last: a copy without its mark would count as usable.
    objects.delete([now.copy(token) for token in doomed])
    objects.delete([now.mark(token) for token in now.unused & marked])
    if not is_used:
        objects.delete([now.use(user) for user in now.users])
    return len(doomed)


def _is_used(view: BlobView, is_gone: Callable[[str], bool]) -> bool:
    return any(not is_gone(user) for user in view.users)

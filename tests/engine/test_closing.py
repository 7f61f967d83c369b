"""Closing a collection: everyone once, also in groups, also those that left, whatever another one raises."""

import pytest

import hookline as hl


class Closing(hl.Callback):
    """Says in a list that it was closed."""

    def __init__(self, label, closed, error=None):
        self.label, self.closed, self.error = label, closed, error

    def close(self):
        self.closed.append(self.label)
        if self.error is not None:
            raise self.error


def test_closing_of_critical_subscribers_that_raise_closes_all_and_raises_the_first_error(caplog):
    closed = []
    callbacks = hl.CallbackCollection(
        [
            Closing("a", closed, ValueError("first")).configure(critical=True),
            Closing("b", closed, ValueError("second")).configure(critical=True),
            Closing("c", closed),
        ]
    )
    with pytest.raises(ValueError, match="first"):
        callbacks.close()
    assert closed == ["a", "b", "c"]
    assert [r.getMessage() for r in caplog.records] == [
        "ValueError: second (in addition to the exception that is raised)"
    ]


def test_closing_that_is_interrupted_closes_the_others_and_raises_the_interrupt():
    closed = []
    members = [Closing("a", closed, ValueError("first")), Closing("b", closed, KeyboardInterrupt())]
    callbacks = hl.CallbackCollection([*members, Closing("c", closed)], strict=True)
    with pytest.raises(KeyboardInterrupt):
        callbacks.close()
    assert closed == ["a", "b", "c"]


def test_closing_member_of_a_critical_group_that_raises_is_not_swallowed():
    group = hl.CallbackCollection([Closing("a", [], ValueError("disk full"))], name="group")
    callbacks = hl.CallbackCollection()
    callbacks.add(group, critical=True)
    with pytest.raises(ValueError, match="disk full"):
        callbacks.close()
    assert [(f.subscriber, f.moment) for f in callbacks.failures] == [("group/closing", "close")]


def test_closing_reaches_members_of_a_group_that_left_and_those_that_left_a_group():
    closed = []
    inner, gone = (hl.CallbackCollection([Closing(label, closed)]) for label in ("inner", "gone"))
    group = hl.CallbackCollection([inner, Closing("stays", closed)])
    callbacks = hl.CallbackCollection([group, gone])
    inner.remove(Closing)
    callbacks.remove(gone)
    callbacks.close()
    assert sorted(closed) == ["gone", "inner", "stays"]
    closed.clear()
    callbacks.close()
    assert closed == ["stays"]


def test_closing_of_a_group_that_left_and_now_holds_the_collection_ends():
    closed = []
    group = hl.CallbackCollection([Closing("member", closed)])
    callbacks = hl.CallbackCollection([group, Closing("own", closed)])
    callbacks.remove(group)
    group.add(callbacks)
    callbacks.close()
    assert sorted(closed) == ["member", "own"]


def test_closing_after_a_refused_return_still_closes_the_one_that_left():
    closed = []
    callback = Closing("left", closed)
    callbacks = hl.CallbackCollection([callback])
    callbacks.remove(callback)
    with pytest.raises(hl.OrderError):
        callbacks.add(callback, before="nobody")
    callbacks.close()
    assert closed == ["left"]


def test_closing_of_one_that_went_from_a_group_to_its_parent_closes_it_once():
    closed = []
    callback = Closing("moved", closed)
    group = hl.CallbackCollection([callback])
    callbacks = hl.CallbackCollection([group])
    group.remove(callback)
    callbacks.add(callback)
    callbacks.close()
    assert closed == ["moved"]


def test_closing_leaves_the_members_of_a_borrowed_group_to_their_owner():
    closed = []
    stays, leaves = Closing("stays", closed), Closing("leaves", closed)
    group = hl.CallbackCollection([stays, leaves], name="group")
    owner, borrower = hl.CallbackCollection([group]), hl.CallbackCollection()
    borrower.borrow(owner)
    group.remove(leaves)
    borrower.close()
    assert closed == []
    owner.close()
    assert closed == ["stays", "leaves"]

from ottla.limits.budget import ByteBudget


def test_a_draw_above_the_limit_is_refused_until_bytes_come_back() -> None:
    budget = ByteBudget(100)

    assert budget.take(70)
    assert not budget.take(31)
    budget.give(70)

    assert budget.take(31)


def test_a_request_larger_than_the_whole_budget_is_served_alone() -> None:
    budget = ByteBudget(100)

    assert budget.take(1000)
    assert not budget.take(1)


def test_those_who_wait_are_called_once_in_turn_when_bytes_come_back() -> None:
    budget, called = ByteBudget(100), []
    budget.take(100)
    budget.call_when_free(lambda: called.append("first"))
    budget.call_when_free(lambda: called.append("second"))

    budget.give(60)
    budget.give(40)

    assert called == ["first", "second"]

from ottla.limits.budget import ByteBudget


def test_a_reservation_above_the_limit_is_refused_until_bytes_are_released() -> None:
    budget = ByteBudget(100)

    assert budget.try_reserve(70)
    assert not budget.try_reserve(31)
    budget.release(70)

    assert budget.try_reserve(31)


def test_a_request_larger_than_the_whole_budget_is_served_alone() -> None:
    budget = ByteBudget(100)

    assert budget.try_reserve(1000)
    assert not budget.try_reserve(1)


def test_those_who_wait_are_called_once_in_turn_when_bytes_are_released() -> None:
    budget, called = ByteBudget(100), []
    budget.try_reserve(100)
    budget.call_when_free(lambda: called.append("first"))
    budget.call_when_free(lambda: called.append("second"))

    budget.release(60)
    budget.release(40)

    assert called == ["first", "second"]

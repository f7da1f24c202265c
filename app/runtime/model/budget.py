"""A limit on the tokens that one attempt may consume."""

from __future__ import annotations


class BudgetExceeded(Exception):
    """The attempt consumed more tokens than its limit."""

    def __init__(self, *, limit: int, consumed: int) -> None:
        super().__init__(limit, consumed)
        self.limit = limit
        self.consumed = consumed

    def __repr__(self) -> str:
        return f"BudgetExceeded(limit={self.limit}, consumed={self.consumed})"

    def __str__(self) -> str:
        return f"token budget exceeded: consumed {self.consumed} of {self.limit}"


class TokenBudget:
    """Meters total tokens; exactly the limit is still within it."""

    def __init__(self, limit: int) -> None:
        if limit <= 0:
            raise ValueError(f"a token budget must be above 0 tokens, not {limit}")
        self.limit = limit
        self.consumed = 0

    def check(self) -> None:
        """Raise BudgetExceeded when the budget is spent already."""
        if self.consumed > self.limit:
            raise BudgetExceeded(limit=self.limit, consumed=self.consumed)

    def charge(self, tokens: int) -> None:
        """Add the tokens of one answer; raises BudgetExceeded when that passes the limit."""
        self.consumed += tokens
        self.check()

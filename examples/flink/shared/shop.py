"""The world outside the example's agent: orders, and a ledger of refunds that is a file, so that a call leaves a trace.

A recording makes these calls; a re-run must not.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def order(order_id: str) -> dict[str, object]:
    """What the shop knows of an order."""
    number = int(order_id.removeprefix("order-"))
    status = ("paid", "delivered", "paid", "lost")[number % 4]
    return {"order_id": order_id, "cents": 1_500 + 600 * (number % 13), "status": status}


def pay_back(order_id: str, cents: int) -> None:
    """Move money; in this example, a line in a file."""
    ledger = Path(os.environ.get("DESK_LEDGER", "refunds.jsonl"))
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"order_id": order_id, "cents": cents}) + "\n")

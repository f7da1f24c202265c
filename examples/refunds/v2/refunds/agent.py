"""Answers refund tickets: looks the order up, lets a model read the ticket, and refunds what the order allows.

What the model read is compared with the order book. Where it asks for more than was paid, or the order was dear, a
person decides.
"""

from __future__ import annotations

import json

from beam_agents import HitlPolicy
from beam_agents.core.agent import Complete, Suspend
from beam_agents.core.context import ActivationContext
from beam_agents.model.client import LlmRequest
from beam_agents.model.facade import DecodedResponse, TokenUsage
from beam_agents.model.fake import FakeLLM, match_any, match_contains, respond_with
from beam_agents.tools import ToolRegistry, tool

ORDERS = {
    "7702": {"order": "7702", "total_cents": 1250, "currency": "EUR", "items": "filter cartridge"},
    "7731": {"order": "7731", "total_cents": 4800, "currency": "EUR", "items": "espresso grinder, used"},
    "7740": {"order": "7740", "total_cents": 3590, "currency": "EUR", "items": "kettle"},
    "7752": {"order": "7752", "total_cents": 5400, "currency": "EUR", "items": "hand mill"},
    "7760": {"order": "7760", "total_cents": 34900, "currency": "EUR", "items": "espresso machine"},
    "7771": {"order": "7771", "total_cents": 2200, "currency": "EUR", "items": "two mugs"},
}

# Above this price of the order, a person decides.
APPROVED_FROM_CENTS = 20_000

CONFIG = {"hitl_policy": HitlPolicy(approval_channel="refund-desk"), "activation_timeout_s": 20.0}


@tool
def order_lookup(order: str) -> dict[str, object]:
    """Read an order from the order book."""
    return dict(ORDERS.get(order, {"order": order, "total_cents": 0, "currency": "EUR", "items": "unknown order"}))


@tool(side_effect=True)
def issue_refund(order: str, amount_cents: int, currency: str) -> str:
    """Pay money back; only the effector outside the pipeline ever does it."""
    raise AssertionError("the pipeline emits an intent instead")


TOOLS = ToolRegistry()
TOOLS.register(order_lookup)
TOOLS.register(issue_refund)


def decode(data: bytes) -> DecodedResponse:
    """Read a chat response's text and token counts."""
    body = json.loads(data)
    usage = body["usage"]
    counts = TokenUsage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    return DecodedResponse(counts, body["choices"][0]["message"]["content"])


def ask(instruction: str, text: str, model: str) -> LlmRequest:
    """Make a request of two messages; equal words make an equal request."""
    messages = [{"role": "system", "content": instruction}, {"role": "user", "content": text}]
    return LlmRequest(model_id=model, messages=messages, tools_schema=None, sampling_params={"temperature": 0})


def money(cents: int, currency: str) -> str:
    """Write an amount as the desk does."""
    return f"{cents // 100}.{cents % 100:02} {currency}"


async def AGENT(ctx: ActivationContext) -> Complete | Suspend:  # noqa: N802
    """Handle one ticket, or what a person decided about one."""
    if ctx.is_resume:
        return _decided(ctx)
    ticket = json.loads(ctx.single_event)
    order = await ctx.run_tool("order_lookup", {"order": ticket["order"]})
    earlier = [item.decode() for item in ctx.memory.ring("refunds")]
    facts = f"ticket: {ticket['text']}\norder: {json.dumps(order, sort_keys=True)}\nearlier refunds: {earlier}"
    read = await ctx.call_model(ask("Decide the refund. Answer as JSON.", facts, "support-large-2"))
    decision = json.loads(decode(read.response).text)

    amount = decision["amount_cents"]
    if amount > order["total_cents"] or order["total_cents"] > APPROVED_FROM_CENTS:
        question = {"ticket": ticket["ticket"], "asked_cents": amount, "paid_cents": order["total_cents"]}
        ctx.request_approval(json.dumps(question, sort_keys=True), ttl_ms=900_000)
        return Suspend(snapshot=json.dumps(ticket, sort_keys=True).encode())
    refund = {"order": ticket["order"], "amount_cents": amount, "currency": order["currency"]}
    ctx.act("issue_refund", json.dumps(refund, sort_keys=True), ttl_ms=900_000)

    told = f"refund {money(amount, order['currency'])} for order {ticket['order']}, because {decision['reason']}"
    reply = await ctx.call_model(ask("Tell the customer, kindly, in one sentence.", told, "support-small-1"))
    ctx.memory.append("refunds", f"{ticket['ticket']} {ticket['order']} {amount}".encode(), max_items=20)
    ctx.memory.set("last_ticket", ticket["ticket"].encode())
    return Complete(output=decode(reply.response).text.encode())


def _decided(ctx: ActivationContext) -> Complete:
    ticket = json.loads(ctx.snapshot)
    approved = ctx.resume_approval is not None and ctx.resume_approval.approved
    if approved:
        paid = ORDERS[ticket["order"]]
        refund = {"order": ticket["order"], "amount_cents": paid["total_cents"], "currency": paid["currency"]}
        ctx.act("issue_refund", json.dumps(refund, sort_keys=True), ttl_ms=900_000)
    return Complete(output=b"refunded what was paid" if approved else b"a colleague will write to you")


def make_provider() -> FakeLLM:
    """The models as they answered that night, so that the example needs no account anywhere."""
    return FakeLLM(
        [
            (
                match_contains("48,00"),
                respond_with(_chat({"amount_cents": 480_000, "reason": "charged twice"}, 131, 19)),
            ),
            (match_contains("12.50"), respond_with(_chat({"amount_cents": 1250, "reason": "arrived broken"}, 118, 18))),
            (match_contains("4800.00"), respond_with(_text("We are sorry: 4800.00 EUR are on their way.", 44, 16))),
            (
                match_contains("never came"),
                respond_with(_chat({"amount_cents": 3590, "reason": "not delivered"}, 112, 18)),
            ),
            (match_contains("louder than"), respond_with(_chat({"amount_cents": 1800, "reason": "faulty"}, 117, 18))),
            (match_contains("all back"), respond_with(_chat({"amount_cents": 34_900, "reason": "returned"}, 121, 18))),
            # What a model does on a bad day: words where JSON was asked for.
            (match_contains("a real person"), respond_with(_text("I would rather not decide this one.", 109, 9))),
            (match_any(), respond_with(_text("We are sorry, and have refunded your order.", 40, 12))),
        ]
    )


def _chat(decision: dict[str, object], prompt: int, completion: int) -> bytes:
    return _text(json.dumps(decision, sort_keys=True), prompt, completion)


def _text(text: str, prompt: int, completion: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}).encode()

"""What a person can do in the lab. How each step is done is in static/lab/story.js."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    #: The name by which the page's script knows it.
    name: str
    #: What its button says.
    label: str
    #: What the tables call it.
    short: str
    #: What should come of it, in a few words.
    promise: str
    #: What it shows, in one sentence.
    meaning: str
    #: Whether it breaks something, which DEMO_FAULTS has to allow.
    breaks: bool = False


STEPS = (
    Step(
        "pay",
        "Pay",
        "Pay",
        "201, and one charge.",
        "The key is claimed, the gateway is asked once, and the answer is stored in the very "
        "transaction that writes the charge down.",
    ),
    Step(
        "double",
        "Double-click: 20 at once",
        "Double-click",
        "One runs, nineteen are replayed: one charge.",
        "Of twenty requests with one key a single one gets the lease and runs; the others wait for "
        "its answer and get the same bytes, marked as replayed.",
    ),
    Step(
        "lost",
        "Lose the answer, then retry",
        "Lost answer",
        "No answer, then 201 replayed: one charge.",
        "The payment is done and the connection is cut before its answer arrives, so the client "
        "cannot know; the retry with the same key hears the answer that was lost.",
        breaks=True,
    ),
    Step(
        "amount",
        "Retry with ten times the amount",
        "Other amount",
        "422 for the changed request: one charge.",
        "A key stands for one request: with another amount it is refused, and neither the payment "
        "nor its stored answer changes.",
    ),
    Step(
        "decline",
        "Pay with a declined card, twice",
        "Decline",
        "402, then 402 replayed: no charge.",
        "No is an answer too: it is stored and replayed, and the card is not asked again under "
        "this key.",
    ),
    Step(
        "kill",
        "Kill the worker after the charge",
        "Killed worker",
        "No answer, then recovered by the job: one charge.",
        "The process dies when the money has moved and nothing of it is saved; once its lease is "
        "over the job asks again under the same downstream key, and the gateway answers without "
        "charging, whether or not the client ever comes back.",
        breaks=True,
    ),
    Step(
        "transfer",
        "Transfer, twice",
        "Transfer",
        "201, then 201 replayed: one transfer.",
        "Money that moves inside our own database commits together with its answer, so the second "
        "request finds both or, had the first one failed, neither.",
    ),
)

"""The thread that makes texts: who shares its rows, who is turned away, and who is told when it ends."""

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Barrier, Thread

import pytest
from tests.cli.server.small import ENDLESS, LIMIT_SECONDS, ROWS, Small, until

from shardwise.cli.asked import Asked
from shardwise.cli.server import engine as module
from shardwise.cli.server.engine import EndedError, Engine
from shardwise.cli.server.texts import News, Text
from shardwise.protocol.errors import NonFiniteError
from shardwise.train.data.tokenizer import ByteTokenizer
from shardwise.train.decoder import Decoder
from shardwise.train.generation import Generation, Wish, of_prompts
from shardwise.train.sampling import Sampling

GREEDY = Sampling(temperature=0)
PROMPTS = (b"hi", b"h", b"the longest of all these prompts, which needs a window of its own", b"a", b"hi there", b"x")
WISHES = tuple(
    Wish(num_tokens=20 + 7 * number, sampling=Sampling(temperature=temperature, top_k=top_k), seed=number, stop=256)
    for number, (temperature, top_k) in enumerate([(0, None), (1.0, None), (2.0, 5), (0, 3), (1.5, 20), (0.7, None)])
)


class Listening:
    """Who waits for a text."""

    def __init__(
        self, prompt: bytes = b"hi", num_tokens: int = 1, wish: Wish | None = None, *, is_scored: bool = False
    ) -> None:
        self._news = SimpleQueue[News | Exception]()
        wish = wish or Wish(num_tokens=num_tokens, sampling=GREEDY)
        asked = Asked([*prompt], "", {}, [*prompt])
        decode, tell = ByteTokenizer().decode, self._news.put
        self.text = Text(0, asked, wish, (), frozenset(), decode, tell, is_scored=is_scored)

    def hear(self) -> News | Exception:
        """Return what is told next."""
        return self._news.get(timeout=LIMIT_SECONDS)

    @property
    def is_told(self) -> bool:
        """Whether something was told that is not heard yet."""
        return not self._news.empty()

    def whole(self) -> str:
        """Return the text when it is over."""
        found, is_over = "", False
        while not is_over:
            new = self.hear()
            assert isinstance(new, News), new
            found, is_over = found + new.text, new.finish is not None
        return found

    def until_live(self) -> None:
        """Wait until some of the text is made."""
        assert isinstance(self.hear(), News)


def engine_of(decoder: Decoder, failing: Callable[[Exception], None] | None = None) -> Engine:
    """Return an engine that is not started."""

    def fail(error: Exception) -> None:
        raise AssertionError from error

    return Engine(Generation(decoder), failing or fail)


@pytest.fixture
def engine(small: Small) -> Iterator[Engine]:
    """Return an engine that makes texts, and stops it."""
    made = engine_of(small.decoder)
    made.start()
    yield made
    made.stop()


def endless(engine: Engine, count: int) -> list[Listening]:
    """Fill rows with texts that go on, and wait until they are in the making."""
    found = [Listening(num_tokens=ENDLESS) for _ in range(count)]
    assert engine.add([each.text for each in found])
    for each in found:
        each.until_live()
    return found


def give_up(texts: Sequence[Listening]) -> None:
    """Want none of these texts any more."""
    for each in texts:
        each.text.is_unwanted = True


def test_texts_of_several_threads_are_as_each_by_itself(small: Small, engine: Engine) -> None:
    """Whoever asks, and whatever else is in the rows, a text is what a decoder of one row makes of it.

    There are more texts than rows.
    """
    assert len(PROMPTS) > ROWS
    listening = [Listening(prompt, wish=wish) for prompt, wish in zip(PROMPTS, WISHES, strict=True)]
    together, found = Barrier(len(PROMPTS)), dict[int, str]()

    def ask(number: int) -> None:
        together.wait(LIMIT_SECONDS)
        assert engine.add([listening[number].text])
        found[number] = listening[number].whole()

    threads = [Thread(target=ask, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    alone = Decoder.of(small.program, small.params, 1)
    for number, (prompt, wish) in enumerate(zip(PROMPTS, WISHES, strict=True)):
        made = [token for each in of_prompts(alone, [[*prompt]], wish) for token in each.tokens]
        assert found[number] == ByteTokenizer().decode(made)
    until(lambda: engine.num_live == 0)
    assert engine.num_tokens == sum(each.text.num_tokens for each in listening)


def test_a_waiting_text_that_nobody_wants_never_has_a_row(engine: Engine) -> None:
    """It no longer waits, though no row is free; the one behind it gets the next row."""
    live = endless(engine, ROWS)
    unwanted, wanted = Listening(), Listening()
    assert engine.add([unwanted.text, wanted.text])
    assert engine.num_waiting == 2
    give_up([unwanted])
    until(lambda: engine.num_waiting == 1)
    assert engine.num_live == ROWS
    assert not wanted.is_told
    give_up(live[:1])
    assert len(wanted.whole()) == 1
    give_up(live)
    until(lambda: engine.num_live == 0)
    assert (unwanted.is_told, unwanted.text.num_tokens) == (False, 0)


def test_a_text_that_nobody_wants_frees_its_row(engine: Engine) -> None:
    """However much of it is left to make; the text beside it goes on."""
    given_up, kept = endless(engine, 2)
    give_up([given_up])
    until(lambda: engine.num_live == 1)
    kept.until_live()
    give_up([kept])
    until(lambda: engine.num_live == 0)
    assert engine.add([(another := Listening()).text])
    assert len(another.whole()) == 1


def test_who_asks_for_too_much_is_turned_away(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of one request wait together or not at all; those that are turned away are never made."""
    live = endless(engine, ROWS)
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    waiting, refused = [Listening() for _ in range(2)], [Listening() for _ in range(2)]
    assert engine.add([each.text for each in waiting])
    assert not engine.add([each.text for each in refused])
    assert engine.num_waiting == 2
    assert engine.add([(last := Listening()).text])
    assert not engine.add([Listening().text])
    give_up(live)
    assert [len(each.whole()) for each in (*waiting, last)] == [1, 1, 1]
    assert not any(each.is_told for each in refused)
    assert engine.add([Listening().text])


def test_a_stop_ends_what_is_in_the_making(small: Small) -> None:
    """Those that have a row and those that wait are told, who comes later too, and the thread is at its end."""
    engine = engine_of(small.decoder)
    engine.start()
    live, waiting = endless(engine, ROWS), Listening()
    assert engine.add([waiting.text])
    engine.stop()
    assert not engine._thread.is_alive()
    for each in (*live, waiting):
        while isinstance(told := each.hear(), News):
            pass
        assert isinstance(told, EndedError)
        assert str(told) == "the server is stopping"
    with pytest.raises(EndedError, match="the server is stopping"):
        engine.add([Listening().text])
    assert engine.error is None


def test_what_is_asked_before_the_end_is_heard_is_told(small: Small) -> None:
    """A text that came behind the order to stop is not forgotten."""
    engine, late = engine_of(small.decoder), Listening()
    engine._coming.put(None)
    assert engine.add([late.text])
    engine.start()
    assert isinstance(late.hear(), EndedError)
    engine.stop()


def test_a_failure_of_the_model_is_told_to_all(small: Small) -> None:
    """Parameters that are no numbers end the server: who waits is told why, who comes later too."""
    failures = list[Exception]()
    engine = engine_of(small.broken, failures.append)
    listening = [Listening() for _ in range(ROWS + 2)]
    assert engine.add([each.text for each in listening])
    engine.start()
    told = [each.hear() for each in listening]
    assert [type(each) for each in told] == [EndedError] * len(listening)
    assert "its parameters are not" in str(told[0])
    engine.stop()
    assert failures == [engine.error]
    assert isinstance(engine.error, NonFiniteError)
    with pytest.raises(EndedError, match="its parameters are not"):
        engine.add([Listening().text])


def test_a_failure_of_scores_is_told_to_those_that_wait_for_them(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is made but for its scores is told of the failure like one in the making."""
    monkeypatch.setattr(Decoder, "score", lambda *_: 1 / 0)
    engine = engine_of(small.decoder, lambda _: None)
    engine.start()
    live, scored = Listening(num_tokens=ENDLESS), Listening(is_scored=True)
    assert engine.add([live.text, scored.text])
    for each in (live, scored):
        while isinstance(told := each.hear(), News):
            assert told.finish is None
        assert isinstance(told, EndedError)
    assert isinstance(engine.error, ZeroDivisionError)
    engine.stop()

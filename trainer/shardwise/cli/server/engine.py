"""The thread that makes texts: all that are asked for are in the rows of one decoder, whoever asks."""

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Protocol

from shardwise.cli.server.texts import Text
from shardwise.train.generation import Generation

MOST_WAITING = 1024
"""Texts that wait for a row; who asks for more is asked to come again."""


class EndedError(Exception):
    """No more texts are made."""


class Failing(Protocol):
    """What is told that no more texts can be made."""

    def __call__(self, error: Exception, /) -> None:
        """End the server."""


class Engine:
    """Makes texts in a thread of its own, which alone calls the model."""

    def __init__(self, generation: Generation, failing: Failing) -> None:
        """Take what makes tokens, and what is told once it cannot."""
        self._generation, self._failing = generation, failing
        self._coming: SimpleQueue[Text | None] = SimpleQueue()
        self._texts: dict[int, Text] = {}
        self._next_number = 0
        self._adding, self._is_over = Lock(), False
        self.num_tokens = 0
        """Made so far."""
        self.error: Exception | None = None
        """Why no more can be made."""
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to make what is asked for."""
        self._thread.start()

    def stop(self) -> None:
        """Make no more, whatever waits, and wait until no call of the model is under way."""
        self._coming.put(None)
        self._thread.join()

    @property
    def num_waiting(self) -> int:
        """How many texts wait for a row."""
        return self._coming.qsize() + self._generation.num_waiting

    @property
    def num_live(self) -> int:
        """How many texts are in the making."""
        return self._generation.num_live

    def add(self, texts: Sequence[Text]) -> bool:
        """Let texts wait for rows, and return whether there was room for them. Any thread may call it.

        Raises:
            EndedError: no more texts are made.

        """
        with self._adding:
            if self._is_over:
                raise self._ended()
            if self.num_waiting + len(texts) > MOST_WAITING:
                return False
            for text in texts:
                self._coming.put(text)
        return True

    def _run(self) -> None:
        try:
            while self._take():
                made = self._generation.go_on()
                self.num_tokens += sum(len(each.tokens) for each in made)
                self._close([each.sequence for each in made if each.is_last])
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait are told, and the command ends with it
            self.error = error
            self._failing(error)
        with self._adding:  # who adds later is told there
            self._is_over = True
        self._tell_all()

    def _take(self) -> bool:
        """Take what has been asked for, waiting while there is nothing to do; return whether to go on."""
        self._drop_unwanted()
        while not self._generation.is_busy or not self._coming.empty():
            text = self._coming.get()
            if text is None:
                return False
            if not text.is_unwanted:
                self._begin(text)
        return True

    def _begin(self, text: Text) -> None:
        self._texts[self._next_number] = text
        self._generation.add(self._next_number, text.prompt, text.wish, text.take)
        self._next_number += 1

    def _close(self, numbers: Sequence[int]) -> None:
        """Close these texts, one for each row at most; should their scores fail, they are told as all others are."""
        over = [self._texts[number] for number in numbers]
        scored = [text for text in over if text.is_scored and not text.is_unwanted]
        scores = self._generation.decoder.score([text.sequence for text in scored]) if scored else []
        for text, found in zip(scored, scores, strict=True):
            text.close(found)
        for text in over:
            if not text.is_scored:
                text.close()
        for number in numbers:
            del self._texts[number]

    def _drop_unwanted(self) -> None:
        for number in [number for number, text in self._texts.items() if text.is_unwanted]:
            self._generation.drop(number)
            del self._texts[number]

    def _tell_all(self) -> None:
        while not self._coming.empty():
            if (text := self._coming.get()) is not None:
                text.tell(self._ended())
        for text in self._texts.values():
            text.tell(self._ended())

    def _ended(self) -> EndedError:
        return EndedError("the server is stopping" if self.error is None else str(self.error))

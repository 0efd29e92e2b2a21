"""shardwise.page.render: the page as one file, what it may do, and what a browser makes of it."""

import base64
import hashlib
import html
import json
import os
import re
from pathlib import Path

import pytest
from tests.page.browser import Browser, with_script
from tests.page.building import BEGAN, HOSTILE, lines, lose_number, make_program_run, make_run, step

from shardwise.cli.status import STATUSES
from shardwise.page.document import PageDocument
from shardwise.page.gather import gather
from shardwise.page.render import TEMPLATE, composed, render
from shardwise.protocol.run_status import RunStatus

SECTIONS = ("now", "curves", "goodput", "attempts", "hosts", "checkpoints", "memory", "logs", "events")


def test_template_is_small_and_needs_nothing_else() -> None:
    """The page without a run has less than 60 KB, and names no address: there is nothing to fetch."""
    template, _ = composed("shardwise.page", TEMPLATE)
    assert len(template.encode()) < 60_000
    assert re.findall(r"https?://[^\"]+", template) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", template)


def test_a_long_run_makes_a_small_page(tmp_path: Path) -> None:
    """Twenty thousand steps make a page of a few hundred KiB."""
    directory = make_run(tmp_path / "run")
    (directory / "metrics.jsonl").write_text(lines(step(n, n * 0.1234567) for n in range(1, 20_001)), encoding="utf-8")
    assert len(render(gather(directory, status="complete")).encode()) < 300_000


def test_text_of_a_run_stays_text(tmp_path: Path) -> None:
    """Whatever a log or a name has in it, the page has one script, its own, and the document holds the text."""
    directory = make_run(tmp_path / "run")
    document = gather(directory, status="complete").model_copy(update={"name": f"{HOSTILE} {{{{document}}}}"})
    page = render(document)
    scripts = re.findall(r"<script(.*?)>(.*?)</script>", page, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [' type="application/json" id="document"', ""]
    assert not set("<>&\u2028") & set(scripts[0][1])
    assert PageDocument.model_validate_json(scripts[0][1]) == document
    (title,) = re.findall(r"<title>(.*?)</title>", page, re.DOTALL)
    assert html.unescape(title) == f"{document.name} - shardwise"


def test_text_of_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    """A folder may have such a name, and a message such a word: they are shown by the bytes' numbers."""
    directory = make_run(tmp_path / os.fsdecode(b"caf\xe9"))
    page = render(gather(directory))
    assert r"caf\\udce9" in page
    page.encode()


def test_an_end_with_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    """How an attempt ended may name a file of such a name, and the page still says it."""
    directory = make_run(tmp_path / "run")
    message = os.fsdecode(b"/data/th\xe9 is gone")
    events = [
        {"time": BEGAN + 50, "event": "attempt", "attempt": 2},
        {"time": BEGAN + 60, "event": "done", "code": 1, "message": message, "cause": "failure"},
    ]
    with (directory / "logs/launcher.jsonl").open("a", encoding="utf-8") as launcher:
        launcher.write(lines(events))
    assert r"/data/th\\udce9 is gone" in render(gather(directory))


def test_policy_allows_its_own_script_alone(tmp_path: Path) -> None:
    """The policy names the hash of the one script and of the one style, and nothing else may be loaded."""
    page = render(gather(make_run(tmp_path / "run"), status="complete"))
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_a_loss_that_is_no_number(browser: Browser, tmp_path: Path) -> None:
    """The figures say nan where the newest loss was none, not the number before it."""
    directory = make_run(tmp_path / "run")
    lose_number(directory)
    shown = browser.shown(render(gather(directory)))
    figures = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)<", shown))
    assert [figures[name] for name in ("loss", "held-out loss", "loss on books")] == ["nan"] * 3
    assert "data-error" not in shown


def test_questions_are_shares_of_right_answers(browser: Browser, tmp_path: Path) -> None:
    """A figure and a chart of their own, in per cent, beside the loss."""
    directory = make_run(tmp_path / "run")
    found = ({"asked": {"loss": 2.0, "accuracy": share, "questions": 8}} for share in (0.25, 0.375))
    steps = [
        each for n, sets in enumerate(found, 7) for each in (step(n), {"event": "evaluated", "step": n, "sets": sets})
    ]
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write(lines(steps))
    shown = browser.shown(render(gather(directory)))
    assert re.search(r"<dt>right on asked</dt><dd>38 %<small>of its questions</small>", shown)
    assert "Answered right on asked" in shown
    assert "data-error" not in shown


def test_the_mfu_is_not_said_to_be_of_a_measured_peak(browser: Browser, tmp_path: Path) -> None:
    """A class may give the peak of its devices, and then nothing was measured; a run directory does not say which."""
    shown = browser.shown(render(gather(make_run(tmp_path / "run"))))
    assert re.search(r"<dt>MFU</dt><dd>25.*?<small>of the devices' peak</small>", shown)


def test_browser_shows_every_part(browser: Browser, tmp_path: Path) -> None:
    """In a browser all sections are there, the charts have a point for each step, and a log's markup is text."""
    shown = browser.shown(render(gather(make_run(tmp_path / "run"), status="complete", checkpoints=lambda _: [4])))
    assert 'data-ready="true"' in shown
    assert "data-error" not in shown
    for section in SECTIONS:
        assert f'<section id="{section}"' in shown
        assert f'<a href="#{section}">' in shown
    assert re.findall(r'data-points="(\d+)"', shown) == ["6"] * 5
    assert re.findall(r'data-attempts="(\d+)"', shown) == ["2"]
    body = shown[shown.index("<body") : shown.index('<script type="application/json"')]
    assert "<script" not in body
    assert html.escape(f"log 1 1 {HOSTILE}", quote=False) in body
    for text in ("63 %", "its devices take 2.0 times as long", "rank 1 ended with signal SIGKILL", "data 2"):
        assert text in body
    assert "<title>quickstart - shardwise</title>" in shown


def test_page_is_for_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    """Arrow keys read a chart's steps, a list picks the attempt, a button the colours, and all else is a link."""
    keys = """
    const press = (key) => document.querySelector(".plot svg").dispatchEvent(new KeyboardEvent("keydown", {key}));
    const said = () => document.querySelector("figure output").textContent;
    const told = [];
    press("ArrowLeft"); told.push(said());
    press("Home"); told.push(said());
    press("ArrowLeft"); press("ArrowRight"); told.push(said());
    document.querySelector("button").click(); told.push(document.documentElement.style.colorScheme);
    document.querySelector("button").click(); told.push(document.documentElement.style.colorScheme);
    told.push(document.querySelectorAll("nav a[href], summary, select, button, [tabindex='0']").length);
    document.body.dataset.told = told.join("; ");
    """
    page = render(gather(make_run(tmp_path / "run"), status="complete"))
    shown = browser.shown(with_script(page, keys))
    (told,) = re.findall(r'data-told="(.*?)"', shown)
    *said, count = told.split("; ")
    assert said == ["50.0 at step 5", "1.000 at step 1", "2.000 at step 2", "light", "dark"]
    assert int(count) >= len(SECTIONS) + 4 + 5


@pytest.mark.parametrize("width", [360, 1200])
def test_page_fits_its_screen(browser: Browser, tmp_path: Path, width: int) -> None:
    """On a telephone as on a wide screen nothing sticks out to the side; what is wider scrolls in its own box."""
    assert browser.sticks_out(render(gather(make_run(tmp_path / "run"), status="complete")), width) == 0


def test_browser_says_what_a_run_has_not_recorded(browser: Browser, tmp_path: Path) -> None:
    """A run that never started has all sections too, each with a word why it is empty."""
    shown = browser.shown(render(gather(tmp_path, status="ready")))
    assert 'data-ready="true"' in shown
    assert "data-error" not in shown
    for text in ("No step is complete", "has not recorded", "No start of the trainers", "None is committed", "no logs"):
        assert text in shown


@pytest.mark.parametrize("numbers", [{"loss": 0.5, "accuracy": 0.25, "valLoss": 0.75}, {"accuracy": 0.25}])
def test_browser_shows_the_numbers_of_an_own_program(
    browser: Browser, tmp_path: Path, numbers: dict[str, float]
) -> None:
    """All that it reports is drawn, each by its name; its loss has no unit, and nothing is said of what it lacks."""
    shown = browser.shown(render(gather(make_program_run(tmp_path / "run", **numbers), status="complete")))
    assert "data-error" not in shown
    assert re.findall(r'data-points="(\d+)"', shown) == ["4"] * (len(numbers) + 1)
    titles = re.findall(r"<h3>(.*?)</h3>", shown)
    assert {"Loss" if name == "loss" else name for name in numbers} | {"Seconds per step"} == set(titles)
    body = shown[shown.index("<body") : shown.index('<script type="application/json"')]
    assert "nats" not in body
    assert "held-out" not in body


def test_saves_evaluations_and_host_times_are_drawn_over_time(browser: Browser, tmp_path: Path) -> None:
    """Saves and evaluations have their length at their time of day.

    A host's step time of each attempt is a point of a small line.
    """
    document = gather(make_run(tmp_path / "run"), status="complete")
    first, last = document.attempts
    slower = [host.model_copy(update={"step_seconds": 1.0}) for host in first.hosts[:1]]
    document = document.model_copy(update={"attempts": [first, last.model_copy(update={"hosts": slower})]})
    place = """
    const gantt = document.querySelector("[data-attempts]"), box = (part) => part.getBBox();
    const save = box(gantt.querySelector(".saving")), line = box(gantt.querySelector(".saved"));
    const evaluations = [...gantt.querySelectorAll(".evaluation")].map(box);
    const steps = [...gantt.querySelectorAll("rect")].filter((part) => /attempt 0: steps/.test(part.textContent))[0];
    const second = box(steps).width / STEPS, shown = (width) => (width / second).toFixed(2);
    document.body.dataset.told = [Math.abs(save.x + save.width - line.x) < 0.5, shown(save.width),
      evaluations.map((one) => `${shown(one.x - box(steps).x)}+${shown(one.width)}`)].join(" ");
    """.replace("STEPS", "10")  # from its first step to the save, 10 s later, from which the next attempt went on
    shown = browser.shown(with_script(render(document), place))
    assert re.findall(r'data-told="(.*?)"', shown) == ["true 1.50 5.00+3.00"]
    assert "evaluation after step 4, 3.00 s" in shown
    assert "step 4 written in 1.50 s; training waited 250 ms" in shown
    assert re.findall(r'aria-label="Step time: (.*?)"', shown) == ["attempt 0 500 ms, attempt 1 1.00 s"]


def test_every_status_has_its_words(browser: Browser, tmp_path: Path) -> None:
    """The page has a colour and words for each status that `shardwise status` names, and says that a run recovers."""
    live = RunStatus(phase="recovering", reason="rank 1 has ended", name="x", ray_session=1, hosts=())
    words = "document.body.dataset.told = Object.keys(MEANING).join(' ');"
    shown = browser.shown(with_script(render(gather(make_run(tmp_path / "run"), live=live)), words))
    (told,) = re.findall(r'data-told="(.*?)"', shown)
    assert set(told.split()) == set(STATUSES)
    assert '<span class="status held">recovering</span><span class="muted">rank 1 has ended</span>' in shown
    shown = browser.shown(render(gather(tmp_path / "run", live=live.model_copy(update={"reason": ""}))))
    assert '<span class="status held">recovering</span><span class="muted">its processes are started again' in shown


@pytest.mark.parametrize(
    ("step", "kept", "words"),
    [
        (4, [4], "saved on request; it goes on when it is started again"),
        (6, [4], "on request; it goes on from step 4 when it is started again"),
        (6, [], "on request; the same command starts it again"),
    ],
)
def test_a_stopped_run(browser: Browser, tmp_path: Path, step: int, kept: list[int], words: str) -> None:
    """It is said to be saved only where a checkpoint of its last step is there."""
    document = gather(make_run(tmp_path / "run"), status="stopped", checkpoints=lambda _: kept)
    shown = browser.shown(render(document.model_copy(update={"step": step})))
    assert f'<span class="status held">stopped</span><span class="muted">{words}</span>' in shown


def test_document_is_json_of_known_names() -> None:
    """What has its default is left out of the page, and times are numbers."""
    document = PageDocument(name="x", directory="/r", made_at=BEGAN, status="ready", live=False, step=0)
    (data,) = re.findall(r'id="document">(.*?)</script>', render(document))
    assert json.loads(data) == {
        "name": "x",
        "directory": "/r",
        "madeAt": BEGAN,
        "status": "ready",
        "live": False,
        "step": 0,
    }

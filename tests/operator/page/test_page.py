"""The page of all jobs as a file, and what a browser makes of it."""

import html
import json
import re
from pathlib import Path

import pytest
from tests.operator.building import NOW
from tests.operator.page.rows import HOSTILE, condition, job, many, page_of, running, told_of
from tests.page.browser import browse, needs_chromium, sticks_out, with_script

from shardwise.page.render import composed
from shardwise_operator.page.serve import PACKAGE, TEMPLATE


def test_template_is_small_and_needs_nothing_else() -> None:
    """The page without jobs has less than 60 KB, and names no address: there is nothing to fetch."""
    template, _ = composed(PACKAGE, TEMPLATE)

    assert len(template.encode()) < 60_000
    assert not re.findall(r"https?://[^\"]+", template)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", template)


def test_a_thousand_jobs_make_a_small_page() -> None:
    """A job takes less than a kilobyte, so a thousand make a page that a telephone loads."""
    assert len(page_of(running(f"job-{number}") for number in range(1000)).encode()) < 700_000


def test_text_of_a_job_stays_text() -> None:
    """Whatever a message has in it, the page has one script, its own, and the document holds the text."""
    page = page_of([job("job", "Failed", reason=HOSTILE, message=HOSTILE)], namespace=HOSTILE)
    scripts = re.findall(r"<script(.*?)>(.*?)</script>", page, re.DOTALL)

    assert [attributes for attributes, _ in scripts] == [' type="application/json" id="document"', ""]
    assert not set("<>&\u2028") & set(scripts[0][1])
    assert told_of(page)["jobs"][0]["message"] == HOSTILE
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def texts(shown: str) -> list[list[str]]:
    """Return the cells of the table's rows as text, without what is folded away."""
    rows = re.findall(r'<tr role="row">(.*?)</tr>', shown[shown.index("<tbody") :], re.DOTALL)
    cells = [re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [
        [re.sub(r"\|+", "|", html.unescape(re.sub(r"<[^>]*>", "|", cell))).strip("|") for cell in row] for row in cells
    ]


@needs_chromium
def test_browser_shows_every_job(tmp_path: Path) -> None:
    """In a browser each job has its row with all its figures; what waits or recovers is above what runs."""
    shown = browse(page_of(many()), tmp_path)

    assert 'data-ready="true"' in shown
    assert "data-error" not in shown
    rows = texts(shown)
    assert [row[1] for row in rows] == ["new", "waits", "fast", "slow", "ended"]
    assert rows[1][:4] == ["team", "waits", "Pending| 16 min|Unschedulable: 0 of 4 nodes fit", "night"]
    assert rows[2][4:] == [
        *(
            "500|of 2,000",
            "2.5000",
            "12,500",
            "42 %",
            "65 min",
            "3|failure\u00a02, hang\u00a01",
            "2 min ago|step 400",
            "79 %",
        ),
        *("2 of 2", "16 min"),
    ]
    assert re.findall(r"<output.*?>(.*?)</output>", shown) == ["5 jobs, 4 hosts ready, 13,400 tokens/s"]
    assert "<title>Training jobs - shardwise</title>" in shown


@needs_chromium
def test_hostile_text_is_shown_as_text(tmp_path: Path) -> None:
    """Names, reasons and messages from anywhere are text in a row, in what is folded away, and in commands."""
    made = running("job", reason=HOSTILE, message=HOSTILE, restarts={HOSTILE[:30]: 2}, progress={"loss": HOSTILE[:32]})
    made["spec"]["pod"]["directory"] = "/runs/$(touch x)'; <b>"
    made["status"]["conditions"] = [condition("NoticeTooShort", "True", NOW, message=HOSTILE)]
    open_all = 'document.querySelectorAll("td.job button").forEach((button) => button.click());'
    shown = browse(with_script(page_of([made], namespace=HOSTILE), open_all), tmp_path)
    body = shown[shown.index("<body") : shown.index('<script type="application/json"')]

    assert "<title>Training jobs - shardwise</title>" in shown
    assert "<script" not in body
    assert "<b>" not in body
    assert body.count(html.escape(HOSTILE, quote=False)) >= 3
    assert html.escape("shardwise page '/runs/$(touch x)'\\''; <b>' --out -", quote=False) in body


def told_by(page: str, script: str, folder: Path) -> list[str]:
    """Return what a script that runs in the page has told."""
    helpers = """
    const told = [], tell = (value) => told.push(String(value));
    const all = (selector) => [...document.querySelectorAll(selector)];
    const press = (key, on = document.activeElement) => {
      on.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
    };
    const names = () => all("tbody td.job button").map((button) => button.textContent).join(" ");
    const type = (text) => {
      document.getElementById("filter").value = text;
      document.getElementById("filter").dispatchEvent(new Event("input"));
    };
    const head = (title) => all("th button").find((button) => button.textContent === title);
    """
    shown = browse(
        with_script(page, f"{{{helpers}{script};document.body.dataset.told = JSON.stringify(told);}}"), folder
    )
    (said,) = re.findall(r'data-told="(.*?)"', shown)
    told: list[str] = json.loads(html.unescape(said))
    return told


@needs_chromium
def test_sorted_by_any_column(tmp_path: Path) -> None:
    """A column's head sorts, of figures the biggest first, and the other way when pressed again; unknown comes last."""
    script = """
    head("tokens/s").click(); tell(names()); tell(head("tokens/s").parentElement.getAttribute("aria-sort"));
    head("tokens/s").click(); tell(names()); tell(location.hash);
    head("job").click(); tell(names());
    head("loss").click(); tell(names());
    head("restarts").click(); tell(names().split(" ")[0]);
    """
    assert told_by(page_of(many()), script, tmp_path) == [
        *("fast slow ended new waits", "descending", "slow fast ended new waits", "#by=speed"),
        *("ended fast new slow waits", "fast ended slow new waits", "fast"),
    ]


@needs_chromium
def test_filtered_by_words_and_phase(tmp_path: Path) -> None:
    """Every word must be in a job's text, in any case and order; a phase's button counts, and shows it alone."""
    script = """
    const button = (phase) => document.querySelector(`[data-phase="${phase}"]`);
    type("TEAM unsched"); tell(names()); tell(document.querySelector("output").textContent);
    type("night"); tell(names());
    type("hang failure"); tell(names());
    type("nothing"); tell(names());
    type(""); button("Running").click(); tell(names());
    tell(button("Running").textContent + button("Running").getAttribute("aria-pressed"));
    type("slow"); tell(names()); tell(button("Running").textContent); tell(location.hash);
    type(""); button("Running").click(); tell(names());
    """
    assert told_by(page_of(many()), script, tmp_path) == [
        *("waits", "1 of 5 jobs, 0 hosts ready, 0 tokens/s", "waits", "fast", "", "fast slow", "Running 2true"),
        *("slow", "Running 1", "#filter=slow&phase=Running", "new waits fast slow ended"),
    ]


@needs_chromium
def test_page_is_for_the_keyboard(tmp_path: Path) -> None:
    """A slash goes to the filter, arrows from job to job and back, a job's button shows more; all has a focus."""
    script = """
    const at = () => document.activeElement.textContent || document.activeElement.id;
    press("/", document.body); tell(at());
    type("team"); press("ArrowDown"); tell(at());
    press("ArrowDown"); tell(at()); press("ArrowDown"); tell(at());
    press("Home"); tell(at()); press("ArrowUp"); tell(at());
    press("Escape"); tell(names());
    press("ArrowDown"); press("End"); tell(at());
    document.activeElement.click(); tell(document.activeElement.getAttribute("aria-expanded"));
    tell(document.getElementById(document.activeElement.getAttribute("aria-controls")).hidden);
    document.activeElement.click(); tell(document.activeElement.getAttribute("aria-expanded"));
    tell(document.querySelectorAll("th button").length === document.querySelectorAll("th").length);
    """
    assert told_by(page_of(many()), script, tmp_path) == [
        *("filter", "new", "waits", "waits", "new", "filter", "new waits fast slow ended", "ended", "true", "false"),
        *("false", "true"),
    ]


@needs_chromium
def test_way_to_the_page_of_a_run(tmp_path: Path) -> None:
    """Of a job that runs the command goes into host 0's pod, of one at rest to where its volume is."""
    script = """
    document.querySelectorAll("td.job button").forEach((button) => button.click());
    document.querySelectorAll("pre").forEach((pre) => tell(pre.textContent));
    """
    pod, volume = told_by(page_of([running("fast"), job("ended", "Complete")]), script, tmp_path)

    page = "shardwise page /runs/job"
    assert f"kubectl exec -n default fast-0-0-3 -c agent -- {page} --out - > fast.html\n" in pod
    assert "shardwise logs tj/fast -n default --follow\n" in pod
    assert volume.startswith(f"# the page of this run, where its volume is\n{page}\n")
    assert "kubectl exec" not in volume


@needs_chromium
@pytest.mark.parametrize("width", [360, 1200])
def test_page_fits_its_screen(tmp_path: Path, width: int) -> None:
    """On a telephone each job is a list of its figures; nothing sticks out to the side, however long a name is."""
    jobs = [*many(), running("n" * 63), job("m" * 63, "Failed", namespace="o" * 63, reason="R" * 63, message="m" * 500)]

    assert sticks_out(page_of(jobs), width, tmp_path) == 0


@needs_chromium
def test_no_jobs(tmp_path: Path) -> None:
    """A cluster without jobs has a page that says so."""
    shown = browse(page_of([]), tmp_path)

    assert 'data-ready="true"' in shown
    assert "There is no training job." in shown

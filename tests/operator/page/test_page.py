"""The page of all jobs as a file, and what a browser makes of it."""

import html
import json
import re

import pytest
from tests.operator.building import NOW
from tests.operator.page.rows import HOSTILE, condition, job, many, page_of, running, told_of
from tests.page.browser import Browser, with_script

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


def test_browser_shows_every_job(browser: Browser) -> None:
    """In a browser each job has its row with all its figures; what waits or recovers is above what runs."""
    shown = browser.shown(page_of(many()))

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


def test_hostile_text_is_shown_as_text(browser: Browser) -> None:
    """Names, reasons and messages from anywhere are text in a row, in what is folded away, and in commands."""
    made = running("job", reason=HOSTILE, message=HOSTILE, restarts={HOSTILE[:30]: 2}, progress={"loss": HOSTILE[:32]})
    made["spec"]["pod"]["directory"] = "/runs/$(touch x)'; <b>"
    made["status"]["conditions"] = [condition("NoticeTooShort", "True", NOW, message=HOSTILE)]
    open_all = 'document.querySelectorAll("td.job button").forEach((button) => button.click());'
    shown = browser.shown(with_script(page_of([made], namespace=HOSTILE), open_all))
    body = shown[shown.index("<body") : shown.index('<script type="application/json"')]

    assert "<title>Training jobs - shardwise</title>" in shown
    assert "<script" not in body
    assert "<b>" not in body
    assert body.count(html.escape(HOSTILE, quote=False)) >= 3
    assert html.escape("shardwise page '/runs/$(touch x)'\\''; <b>' --out -", quote=False) in body


def told_by(page: str, script: str, browser: Browser) -> list[str]:
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
    told_in_the_end = f"{{{helpers}{script};document.body.dataset.told = JSON.stringify(told);}}"
    shown = browser.shown(with_script(page, told_in_the_end))
    (said,) = re.findall(r'data-told="(.*?)"', shown)
    told: list[str] = json.loads(html.unescape(said))
    return told


def test_sorted_by_any_column(browser: Browser) -> None:
    """A column's head sorts, of figures the biggest first, and the other way when pressed again; unknown comes last."""
    script = """
    head("tokens/s").click(); tell(names()); tell(head("tokens/s").parentElement.getAttribute("aria-sort"));
    head("tokens/s").click(); tell(names()); tell(location.hash);
    head("job").click(); tell(names());
    head("loss").click(); tell(names());
    head("restarts").click(); tell(names().split(" ")[0]);
    """
    assert told_by(page_of(many()), script, browser) == [
        *("fast slow ended new waits", "descending", "slow fast ended new waits", "#by=speed"),
        *("ended fast new slow waits", "fast ended slow new waits", "fast"),
    ]


def test_a_column_that_is_none(browser: Browser) -> None:
    """A link that sorts by what no column is, though every object has it, shows the jobs as ever."""
    page = page_of(many()).replace('wanted.get("by")', '"constructor"')
    assert told_by(page, "tell(names());", browser) == told_by(page_of(many()), "tell(names());", browser)


def test_filtered_by_words_and_phase(browser: Browser) -> None:
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
    assert told_by(page_of(many()), script, browser) == [
        *("waits", "1 of 5 jobs, 0 hosts ready, 0 tokens/s", "waits", "fast", "", "fast slow", "Running 2true"),
        *("slow", "Running 1", "#filter=slow&phase=Running", "new waits fast slow ended"),
    ]


def test_page_is_for_the_keyboard(browser: Browser) -> None:
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
    assert told_by(page_of(many()), script, browser) == [
        *("filter", "new", "waits", "waits", "new", "filter", "new waits fast slow ended", "ended", "true", "false"),
        *("false", "true"),
    ]


def test_way_to_the_page_of_a_run(browser: Browser) -> None:
    """Of a job that runs the command goes into host 0's pod, of one at rest to where its volume is."""
    script = """
    document.querySelectorAll("td.job button").forEach((button) => button.click());
    document.querySelectorAll("pre").forEach((pre) => tell(pre.textContent));
    """
    pod, volume = told_by(page_of([running("fast"), job("ended", "Complete")]), script, browser)

    page = "shardwise page /runs/job"
    assert f"kubectl exec -n default fast-0-0-3 -c agent -- {page} --out - > fast.html\n" in pod
    assert "shardwise logs tj/fast -n default --follow\n" in pod
    assert volume.startswith(f"# the page of this run, where its volume is\n{page}\n")
    assert "kubectl exec" not in volume


@pytest.mark.parametrize("width", [360, 1200])
def test_page_fits_its_screen(browser: Browser, width: int) -> None:
    """On a telephone each job is a list of its figures; nothing sticks out to the side, however long a name is."""
    jobs = [*many(), running("n" * 63), job("m" * 63, "Failed", namespace="o" * 63, reason="R" * 63, message="m" * 500)]

    assert browser.sticks_out(page_of(jobs), width) == 0


def test_no_jobs(browser: Browser) -> None:
    """A cluster without jobs has a page that says so."""
    shown = browser.shown(page_of([]))

    assert 'data-ready="true"' in shown
    assert "There is no training job." in shown

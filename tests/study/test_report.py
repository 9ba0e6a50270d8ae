"""The report: what it holds, and in a browser that every control does what it says."""

import json
import math
import random
import re
import shutil

import pytest
from study_rows import LENGTHS, buckets, row, table

from experiments import compare
from posx import cli
from posx.errors import UserError
from posx.study import report, results, series

EVIL = "<script>document.title='owned'</script>"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def fill(folder):
  """A study: three encodings, one under YaRN, controls, two seeds of NoPE, a second protocol and text, an evil name."""
  each = lambda p, shift=0.0: [math.log(p) + shift + 0.01 * (i % 3 - 1) for i in range(15)]
  rows = [{**r, "documents": 15, "document_losses": each(r["perplexity"])} for r in table()]
  rows += [row("nope", n, 8.0 + seed, run=f"nope-seed={seed}", seed=seed) for n in LENGTHS for seed in (0, 1)]
  # The last tokens are better under ALiBi than under T5, all tokens the other way round.
  last = {"protocol": "last_k", "k": 256, "documents": 15}
  rows += [row(name, 2048, p, document_losses=each(p), **last) for name, p in (("alibi", 4.0), ("t5", 4.5))]
  rows += [row("learned", n, None, note="a table of 512 rows cannot serve it") for n in LENGTHS[1:]] + [row("learned", 512, 7.0)]
  rows += [row(EVIL, 512, 9.0), row("rope", 512, 3.0, data="text"), *buckets()]
  results.append(folder / results.FILE, rows)
  (folder / "runs" / "t5").mkdir(parents=True)
  (folder / "runs" / "t5" / "config.json").write_text(json.dumps({"seed": 0, "encoding": {"name": "t5"}, "train": {"steps": 5}}))
  for seed in (0, 1):
    home = folder / "runs" / f"nope-seed={seed}"
    home.mkdir(parents=True)
    (home / "config.json").write_text(json.dumps({"seed": seed, "encoding": {"name": "nope"}, "train": {"steps": 5}}))
    (home / "origin.json").write_text(json.dumps({"command": f"train {EVIL} {seed}", "versions": {"jax": "1.2.3"}, "devices": ["cpu"]}))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
  folder = tmp_path_factory.mktemp("study")
  fill(folder)
  return folder


def test_what_is_collected(study):
  made = report.collect(series.read([study]), "title")
  first, second = made["texts"]
  assert (first["name"], second["name"]) == ("sotu (test)", "text (test)")
  assert [p["name"] for p in first["protocols"]] == ["nonoverlapping", "last_k:256"]
  assert {p["name"] for p in first["protocols"][0]["published"]} >= {"kerple_arxiv", "alibi_wikitext103_nonoverlapping"}
  assert [p["name"] for p in first["protocols"][1]["published"]] == ["dape_arxiv_last256"]
  (learned,) = [c for c in first["protocols"][0]["curves"] if c["label"] == "learned"]
  assert [p["shown"] for p in learned["points"]] == ["7.00", "n/a", "n/a"] and learned["points"][1]["loss"] is None
  assert len(first["disagreements"]) == 1 and "t5 < alibi" in first["disagreements"][0]
  runs = {r["run"]: r for r in made["runs"]}
  assert (
    made["differing"] == ["encoding.name", "seed"]
    and made["common"]["train.steps"] == "5"
    and runs["nope-seed=1"]["origin"]["devices"] == ["cpu"]
  )
  assert not runs["rope"]["kept"]


def test_an_overflow_is_shown_as_such(tmp_path):
  results.append(tmp_path / results.FILE, [{**row("rope", 512, 6.0), "loss": 800.0, "perplexity": None, "note": "perplexity overflows"}])
  made = report.collect(series.read([tmp_path]), "title")
  (point,) = made["texts"][0]["protocols"][0]["curves"][0]["points"]
  assert point["shown"] == "overflow" and point["loss"] == 800 and point["perplexity"] is None


def test_without_the_library_the_cure_is_named(study, monkeypatch):
  report._library.cache_clear()
  monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
  with pytest.raises(UserError, match=r"needs vl-convert-python, which is not installed: pip install -e '.\[report\]'"):
    report.render(report.collect(series.read([study]), "title"))


@pytest.fixture(scope="module")
def page(study):
  """The file that the command writes."""
  with pytest.raises(SystemExit) as ended:
    cli.run(compare.main, [str(study), f"--html={study}/new/report.html"])
  assert not ended.value.code
  return study / "new" / "report.html"


@pytest.mark.slow
def test_one_file_with_names_escaped_and_nothing_from_elsewhere(page):
  text = page.read_text(encoding="utf-8")
  assert len(text) < 2_000_000 and EVIL not in text
  ours = re.sub(r'<script type="module">.*?</script>', "", text, flags=re.DOTALL)
  assert not re.findall(r"(?:src|href)=|url\(|@import", ours)
  (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
  assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe-eval" not in policy and "http" not in policy


@pytest.fixture(scope="module")
def browser():
  if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: apt-get install chromium")
  from playwright.sync_api import sync_playwright

  with sync_playwright() as playwright:
    # A container's root user has no sandbox, and its /dev/shm is small.
    started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
    yield started
    started.close()


class Tab:
  """A page opened from its file, with no network; what the browser complains about is kept."""

  def __init__(self, browser, path, **settings):
    context = browser.new_context(offline=True, **settings)
    self.page, self.complaints = context.new_page(), []
    self.page.set_default_timeout(180_000)
    self.page.on("console", lambda message: self.complaints.append(message.text))
    self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
    self.page.on("request", lambda request: request.url.startswith(("file:", "data:")) or self.complaints.append(request.url))
    self.page.goto(path.as_uri(), wait_until="commit")
    self.ready()

  def ready(self):
    self.page.wait_for_selector("#curves[aria-busy=false]")
    self.page.wait_for_selector("#position[aria-busy=false]", state="attached")

  def points(self, chart="#curves"):
    return self.page.locator(f"{chart} svg .mark-symbol path").count()

  def lines(self, chart="#curves"):
    return self.page.locator(f"{chart} svg .mark-line path").count()

  def column(self, n):
    return self.page.locator(f"#table tbody tr > :nth-child({n})").all_inner_texts()

  def choose(self, selector, label):
    self.page.select_option(selector, label=label)
    self.ready()

  def click(self, selector):
    self.page.click(selector)
    self.ready()


@pytest.mark.slow
def test_every_control_does_what_it_says(browser, page):
  tab = Tab(browser, page, viewport={"width": 1200, "height": 900})
  view = tab.page
  assert view.title() == f"posx: {page.parents[1].name}" and "non-overlapping windows" in view.inner_text("#caption")
  # alibi, t5, rope, nope: 3 lengths; rope + yarn: 2; learned and the evil one: 1. Lines: those 7 and two controls.
  assert tab.points() == 16 and tab.lines() == 9
  assert EVIL in view.inner_text("#runs-toggles")
  assert "learned at 1K, learned at 2K: a table of 512 rows cannot serve it" in view.inner_text("#notes")
  # Curves are switched off and on, alone and together; controls stay as long as anything of their encoding does.
  view.get_by_label("t5", exact=True).uncheck()
  tab.ready()
  assert tab.points() == 13 and tab.lines() == 8
  tab.click("#none")
  assert tab.points() == 0 and tab.lines() == 0
  view.fill("#find", "alibi")
  tab.click("#all")
  assert tab.points() == 3 and tab.lines() == 3
  view.fill("#find", "")
  tab.click("#all")
  assert tab.points() == 16
  # The scale.
  ticks = lambda: view.locator("#curves svg .role-axis-label text").all_text_contents()
  before = ticks()
  tab.click("#log")
  assert ticks() != before and tab.points() == 16
  tab.click("#log")
  assert ticks() == before
  # Which control.
  tab.choose("#control", "truncate")
  assert tab.lines() == 8 and not any("window" in name for name in tab.column(1))
  tab.choose("#control", "window and truncate")
  # Which value: the perplexity of ALiBi at 512 is 6.12.
  cell = lambda: view.locator("#table tbody tr", has_text="alibi").first.locator("td").first.inner_text()
  assert cell() == "6.12 ±0.01"
  tab.choose("#value", "loss, nats per token")
  assert cell() == f"{math.log(6.12):.3f}"
  tab.choose("#value", "ratio to truncation")
  assert cell() == "1.020"
  tab.choose("#value", "perplexity")
  # Sorting by 2K, both ways, by mouse; missing numbers stay last. Filtering.
  view.get_by_role("button", name="2K").click()
  numbers = lambda: [float(text.split(" ")[0]) for text in tab.column(4) if text[0].isdigit()]
  assert numbers() == sorted(numbers()) and len(numbers()) == 7 and tab.column(4)[-1] in ("n/a", "–")
  view.get_by_role("button", name="2K").click()
  assert numbers() == sorted(numbers(), reverse=True) and tab.column(4)[-1] in ("n/a", "–")
  assert view.locator("#table th[aria-sort=descending]").inner_text().strip().startswith("2K")
  view.fill("#filter", "rope")
  assert set(tab.column(1)) == {"rope", "rope + yarn"} and view.inner_text("#matches") == "2 of 9 rows"
  view.fill("#filter", "")
  # The ranking of each length, and where protocols disagree.
  view.select_option("#ranking-length", label="2K")
  assert view.locator("#ranking tbody tr td:nth-child(2)").all_inner_texts() == ["t5", "alibi", "rope + yarn", "nope", "rope"]
  assert "t5 < alibi" in view.inner_text("#disagreements")
  # Published curves, of the same protocol only.
  assert "KERPLE, ArXiv" in view.inner_text("#published") and "DAPE" not in view.inner_text("#published")
  view.locator("#published label", has_text="KERPLE, ArXiv").locator("input").check()
  tab.ready()
  assert tab.points() == 16 + 6 * 6 and "Table 3" in view.inner_text("#published")
  tab.choose("#protocol", "last 256 tokens of each window")
  assert tab.points() == 2 and "DAPE" in view.inner_text("#published") and "KERPLE" not in view.inner_text("#published")
  tab.choose("#protocol", "non-overlapping windows")
  # By position; another text has none.
  assert tab.points("#position") == 6
  tab.choose("#text", "text (test)")
  assert tab.points() == 1 + 36 and not view.locator("#position-section").is_visible()
  tab.choose("#text", "sotu (test)")
  # Runs.
  assert "not kept" in view.inner_text("#differences")
  view.get_by_text("nope-seed=1", exact=True).last.click()
  assert f"command: train {EVIL} 1" in view.inner_text("#origins") and "jax 1.2.3" in view.inner_text("#origins")
  assert tab.complaints == []


def recall(length, depth, accuracy, loss, control=""):
  made = row("rope", length, 2.0, protocol="recall", control=control, depth=depth, accuracy=accuracy, target_hash=f"{length}{depth}")
  return {**made, "data": "task:recall", "loss": loss, "perplexity": None, "bits_per_byte": None, "ratio_to_truncation": None}


@pytest.mark.slow
def test_recall_is_a_table_of_shades_and_may_be_all_there_is(browser, page, tmp_path):
  assert not Tab(browser, page).page.locator("#grid-section").is_visible()
  rows = [recall(n, d, 1.0 if n == 64 else d, 0.5) for n in (64, 128) for d in (0.0, 0.25)]
  results.append(
    tmp_path / results.FILE, [*rows, *(recall(n, d, 0.0, 0.5 - math.log(2), "wrong_key") for n in (64, 128) for d in (0.0, 0.25))]
  )
  (tmp_path / "report.html").write_text(report.render(report.collect(series.read([tmp_path]), "recall")), encoding="utf-8")
  view = browser.new_context(offline=True).new_page()
  complaints = []
  view.on("console", lambda message: complaints.append(message.text))
  view.on("pageerror", lambda error: complaints.append(str(error)))
  view.goto((tmp_path / "report.html").as_uri())
  view.wait_for_selector("#grid td")
  cells = lambda: view.locator("#grid tbody tr").all_inner_texts()
  assert cells() == ["0\t1.00\t0.00", "0.25\t1.00\t0.25"]
  shade = lambda n: view.locator("#grid td").nth(n).evaluate("node => getComputedStyle(node).backgroundColor")
  assert shade(0) == shade(2) != shade(1) and shade(3) not in (shade(0), shade(1))
  view.select_option("#grid-choice", label="recall, rope: bits a token gains over a wrong key")
  assert cells() == ["0\t-1.00\t-1.00", "0.25\t-1.00\t-1.00"]
  # Nothing of a text's losses is shown, the runs are.
  assert not view.locator("#choices").is_visible() and not view.locator("#table-title").is_visible()
  assert view.locator("#runs-title").is_visible() and complaints == []


@pytest.mark.slow
def test_values_on_hover_keyboard_dark_narrow_and_print(browser, page):
  tab = Tab(browser, page, viewport={"width": 390, "height": 800}, color_scheme="dark")
  view = tab.page
  # Nothing is wider than the screen, the page is dark.
  assert view.locator("body").bounding_box()["width"] <= 390 and view.locator("main").bounding_box()["width"] <= 390
  colour = lambda: view.locator("body").evaluate("node => getComputedStyle(node).backgroundColor")
  assert sum(map(int, re.findall(r"\d+", colour()))) < 150
  point = view.locator("#curves svg .mark-symbol path").nth(1)
  point.hover(force=True)
  assert "1,024" in view.inner_text("#hover") and "5.82 ±0.01" in view.inner_text("#hover") and "15 documents" in view.inner_text("#hover")
  # All by keyboard: the first control, a switch, a sort.
  view.focus("#log")
  view.keyboard.press("Space")
  tab.ready()
  assert not view.is_checked("#log")
  view.locator("#runs-toggles input").first.focus()
  view.keyboard.press("Space")
  tab.ready()
  assert tab.points() == 13
  view.locator("#table th button").nth(1).focus()
  view.keyboard.press("Enter")
  assert view.locator("#table th[aria-sort=ascending]").count() == 1
  assert view.evaluate("document.activeElement.textContent") == "512"
  view.emulate_media(media="print")
  assert not view.locator("#choices").is_visible() and view.locator("#table").is_visible() and colour() == "rgb(255, 255, 255)"
  assert tab.complaints == []


@pytest.mark.slow
def test_two_hundred_runs_stay_responsive(browser, tmp_path):
  draw = random.Random(0)
  rows = []
  for i in range(200):
    for n in (512, 1024, 2048, 4096, 8192, 16384, 32768):
      losses = [1.5 + i / 200 + draw.gauss(0, 0.1) for _ in range(16)]
      own = row("rope", n, math.exp(sum(losses) / 16), run=f"rope-base={i}", document_losses=losses)
      rows += [own, *({**own, "control": control} for control in ("window", "truncate"))]
  results.append(tmp_path / results.FILE, rows)
  (tmp_path / "report.html").write_text(report.render(report.collect(series.read([tmp_path]), "many")), encoding="utf-8")
  tab = Tab(browser, tmp_path / "report.html")
  assert tab.points() == 1400 and len(tab.column(1)) == 600
  session = tab.page.context.new_cdp_session(tab.page)
  # Seconds of the page's own thread, for the clock of a busy machine says nothing about the page.
  session.send("Performance.enable", {"timeDomain": "threadTicks"})

  def worked(action):
    measured = lambda: {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}["TaskDuration"]
    before = measured()
    action()
    tab.ready()
    return measured() - before

  assert worked(lambda: tab.page.locator("#runs-toggles input").first.click()) < 3
  assert tab.points() == 1393
  assert worked(lambda: tab.page.fill("#filter", "base=19")) < 2
  assert tab.complaints == []

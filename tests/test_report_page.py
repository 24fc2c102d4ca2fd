"""The report's page in a real browser: nothing sticks out, nothing is asked of any network, and data stays data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from committed_set import job as job_of
from committed_set import write_set
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from pipeline.cli import main
from pipeline.report import write_report
from pipeline.report_page import duration, number, percent, size
from pipeline.storage import Storage
from specdiff import Stats

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
README_JOB = Path(__file__).parent.parent / "jobs" / "fashion.yaml"
WIDTHS = [390, 1280]
EVIL = [
    '<script>document.title = "taken"</script>',
    "<img src=x onerror=\"document.title='taken'\">",
    '"><svg onload="document.title=\'taken\'">',
    "{{ 7 * 7 }} &amp; <b>bold</b>",
]

browser_needed = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromium-driver (Debian)")


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options, Service(DRIVER)) as driver:
        yield driver


def opened(browser: webdriver.Chrome, page: str, width: int, scheme: str = "light") -> dict[str, Any]:
    """What is there to complain of when a page is shown at a width: what sticks out, what is logged, what is asked."""
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)  # of the page before
    screen = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    colours = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
    browser.get(page)
    overflow = browser.execute_script(
        """
        const wide = [...document.querySelectorAll('body *')].filter(
            node => !node.closest('pre') && node.getBoundingClientRect().right > innerWidth + 0.5);
        const page = document.documentElement;
        return [page.scrollWidth - page.clientWidth, wide.map(node => node.outerHTML.slice(0, 80))];
        """
    )
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return {
        "overflow": overflow,
        "console": browser.get_log("browser"),
        "asked": [url for url in asked if url != page and not url.startswith(("data:", "about:"))],
    }


CLEAN = {"overflow": [0, []], "console": [], "asked": []}


@pytest.fixture(scope="module")
def readme_report(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the README's job, cut short."""
    folder = tmp_path_factory.mktemp("readme") / "fashion"
    command = ["run", str(README_JOB), "--output", str(folder), "--limit", "10", "--set", "output.shard_size=5"]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return (folder / "report" / "report.html").as_uri()


@browser_needed
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_readmes_report(browser: webdriver.Chrome, readme_report: str, width: int, scheme: str) -> None:
    assert opened(browser, readme_report, width, scheme) == CLEAN
    assert len(browser.find_elements(By.CSS_SELECTOR, "#images img")) == 10
    assert all(
        browser.execute_script("return arguments[0].naturalWidth", image) == 28
        for image in browser.find_elements(By.CSS_SELECTOR, "#images img")
    )
    assert [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".class h3")][:2] == ["T-shirt", "trouser"]
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg.chart")) == 4
    # Text stands out from the page by at least 4.5 : 1, as accessibility guidelines want it.
    for selector in ("h1", ".told", ".note", "nav a", ".chart text"):
        assert contrast(browser, selector) >= 4.5, selector


def contrast(browser: webdriver.Chrome, selector: str) -> float:
    """Of an element's text with the page's ground (WCAG 2)."""
    colours = browser.execute_script(
        """
        const style = getComputedStyle(document.querySelector(arguments[0]));
        const svg = document.querySelector(arguments[0]) instanceof SVGElement;
        return [svg ? style.fill : style.color, getComputedStyle(document.body).backgroundColor];
        """,
        selector,
    )
    light, dark = sorted((luminance(colour) for colour in colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    channels = np.array([float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.fixture(scope="module")
def evil_report(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Of a set whose prompts, name, failures and metrics hold markup; one prompt has two images."""
    pixels = np.random.default_rng(0).integers(0, 255, (6, 120, 80, 3), np.uint8)
    storage = write_set(tmp_path_factory.mktemp("evil"), pixels, prompts=[*EVIL, "two of a kind", "two of a kind"])
    failure = {"row": 6, "key": EVIL[0], "seed": 2**63 - 1, "shard": 0, "kind": "sample", "reason": EVIL[1]}
    storage.replace("failures.jsonl", json.dumps(failure).encode() + b"\n")
    named = job_of().model_copy(update={"name": EVIL[0]})
    metrics = {"fid": {"value": None, "count": 6, "extractor": EVIL[1], "reference": EVIL[2], "warnings": [EVIL[3]]}}
    write_report(storage, named, {"metrics": metrics, "failures": {"failed": 1}, "sampler": Stats().to_dict()})
    return storage


@browser_needed
@pytest.mark.parametrize("width", WIDTHS)
def test_markup_in_data_is_text(browser: webdriver.Chrome, evil_report: Storage, width: int) -> None:
    page = Path(evil_report.uri, "report", "report.html").as_uri()
    assert opened(browser, page, width) == CLEAN
    assert browser.title == f"{EVIL[0]} – data set report"
    assert browser.find_element(By.TAG_NAME, "h1").text == EVIL[0]
    shown = [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".prompt")]
    assert shown == EVIL
    assert [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".group h3")] == ["two of a kind"]
    assert not browser.find_elements(By.CSS_SELECTOR, "script, main b, img:not([src^='data:']), svg:not(.chart)")
    assert EVIL[1] in browser.find_element(By.ID, "failures").text
    assert EVIL[3] in browser.find_element(By.ID, "quality").text


def test_a_page_asks_for_nothing(evil_report: Storage) -> None:
    """Without a browser as well: no address but of data, and a policy that forbids all others."""
    page = evil_report.read("report/report.html").decode()
    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script>" not in page


def test_numbers_are_told_short() -> None:
    assert [number(x) for x in (None, 0, 7, 12345, 3.14159, 0.012345, 99.96, 250.4)] == [
        *("–", "0", "7", "12,345", "3.14", "0.0123", "100", "250"),
    ]
    assert [percent(x) for x in (None, 0, 0.0001, 0.0123, 0.5)] == ["–", "0 %", "< 0.1 %", "1.2 %", "50 %"]
    assert [size(x) for x in (None, 12, 2048, 5 * 2**30)] == ["–", "12 B", "2 KiB", "5 GiB"]
    assert [duration(x) for x in (None, 3.21, 89, 619, 7260)] == ["–", "3.21 s", "89 s", "10 min 19 s", "2 h 01 min"]

"""The page of a real model shows the numbers that `tiebeam lens` prints, to the digit."""

from __future__ import annotations

import re

import pytest

from tiebeam.cli import main

from .conftest import start

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]
CELLS = """() => [...document.querySelectorAll("section[aria-labelledby=direct] table.grid tbody td")]
             .map((cell) => cell.textContent.replace("−", "-"))"""
TOKENS = ["New", " York", " City"]  # of the text "New York City"


@pytest.fixture(scope="module")
def smollm2_studio(smollm2):
    process, address = start(str(smollm2))
    yield address
    process.terminate()
    process.wait(10)


@pytest.mark.parametrize(("options", "label"), [((), "with the final norm"), (("--no-norm",), "without (--no-norm)")])
def test_lens_and_the_studio_show_the_same_digits_of_smollm2(visit, smollm2, smollm2_studio, capsys, options, label):
    main(["lens", str(smollm2), "--quiet", *options, "--tokens", *TOKENS])
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    first = next(n for n, line in enumerate(lines) if line.split() == ["New", "·York", "·City"]) + 1
    matrix = [value for line in lines[first : first + 3] for value in line.split()[1:]]
    symmetric, negative = (re.findall(rf"{name} +([\d.]+%)", printed)[0] for name in ("symmetric", "negative"))
    assert all(re.fullmatch(r"-?\d+\.\d\d", value) for value in matrix), matrix

    page = visit(address=smollm2_studio).go("models.html")
    panel = page.locator("section[aria-labelledby=direct]")
    panel.get_by_label(label).check()
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_function(f"(wanted) => ({CELLS})().join(' ') === wanted", arg=" ".join(matrix), timeout=120_000)
    spectrum = page.locator("section[aria-labelledby=spectrum]")
    spectrum.get_by_label(label).check()
    page.get_by_role("button", name="Compute the spectrum").click()
    page.wait_for_selector(f"text={symmetric} of its energy is symmetric", timeout=400_000)
    assert f"{negative} of the symmetric part’s energy is in negative eigenvalues" in spectrum.inner_text()

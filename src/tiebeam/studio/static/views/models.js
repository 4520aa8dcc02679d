// Models view: inspect report, doctor findings, tensors, direct path, nearest tokens, spectrum.
import { get, post } from "../lib/api.js";
import { curves, hbars, shareBars } from "../lib/charts.js";
import { freshId, h, prose, scroller, swatch } from "../lib/dom.js";
import { grid } from "../lib/grid.js";
import { grouped, human, humanBytes, percent, signed } from "../lib/numbers.js";

// Path of a dropped item: file managers give an encoded URL, editors and terminals the path itself.
function pathOf(dropped) {
  const line = dropped.split("\n")[0].trim();
  try {
    return line.startsWith("file:") ? decodeURIComponent(new URL(line).pathname) : line;
  } catch {
    return line;
  }
}

export async function show(main) {
  const [{ models }, status] = await Promise.all([get("api/models"), get("api/status")]);
  const here = h("div", { class: "stack-wide" });
  const list = h("div", { class: "choices tall" });
  const typed = h("input", { id: "path", type: "text", autocomplete: "off", spellcheck: "false", placeholder: status.root ? `${status.root}/…` : "/path/to/model", "aria-describedby": "path-note" });
  const problem = h("p", { class: "error", role: "alert" });
  const form = h("form", { class: "field", onsubmit: (event) => { event.preventDefault(); find(typed.value); } },
    h("label", { for: "path" }, "Open a path"), typed,
    h("span", { class: "hint", id: "path-note" }, status.root ? `Type a path or drop one here; it must be below ${status.root}.` : "Only models named on the command line can be read; start with --root DIR to open others."),
    h("div", null, h("button", { type: "submit" }, "Open")), problem);
  const side = h("section", { class: "panel stack", "aria-label": "Models" }, models.length ? h("fieldset", null, h("legend", null, "Models"), list) : h("p", null, "No models."), form);
  main.replaceChildren(h("h1", null, "Your models"), h("div", { class: "side-by-side play" }, side, here));
  for (const model of models) offer(model);
  side.addEventListener("dragover", (event) => event.preventDefault());
  side.addEventListener("drop", (event) => {
    event.preventDefault();
    typed.value = pathOf(event.dataTransfer.getData("text/uri-list") || event.dataTransfer.getData("text/plain"));
    if (typed.value) find(typed.value);
    else problem.textContent = "Browsers hide the path of a dropped file; drop the path as text, or type it.";
  });

  function offer(model) {
    const input = h("input", { type: "radio", name: "model", value: model.id, onchange: () => open(model) });
    list.append(h("label", { class: "choice" }, input, h("span", null, model.name)));
    return input;
  }
  async function find(path) {
    problem.textContent = "";
    try {
      const model = await post("api/find", { path });
      const known = list.querySelector(`input[value="${model.id}"]`) ?? offer(model);
      known.checked = true;
      await open(model);
    } catch (error) {
      problem.textContent = error.message;
    }
  }
  async function open(model) {
    history.replaceState(null, "", `?model=${model.id}`);
    here.replaceChildren(h("p", { class: "quiet", role: "status" }, `Reading ${model.name} …`));
    try {
      const report = await get(`api/models/${model.id}`);
      here.replaceChildren(...view(model, report));
    } catch (error) {
      here.replaceChildren(h("p", { class: "notice error", role: "alert" }, error.message));
    }
  }
  const wanted = new URLSearchParams(location.search).get("model");
  const first = models.find((model) => model.id === wanted) ?? models[0];
  if (!first) {
    here.replaceChildren(h("div", { class: "panel empty" }, h("h2", null, "No models"), h("p", { class: "quiet" }, "Start the studio with a model:"), h("p", null, h("code", null, "tiebeam studio ./my-model")), h("p", { class: "quiet" }, "or with a directory of models:"), h("p", null, h("code", null, "tiebeam studio --root ~/models"))));
    return;
  }
  list.querySelector(`input[value="${first.id}"]`).checked = true;
  await open(first);
}

function view(model, report) {
  const one = ["shared", "twin", "swapped"].includes(report.tie);
  const params = report.params;
  const fact = (name, value, more) => h("div", null, h("dt", null, name), h("dd", null, value, more ? h("small", null, more) : null));
  const declared = report.declared === null ? "nothing" : report.declared ? "tied" : "untied";
  const head = h("section", { class: "panel stack", "aria-labelledby": "tie" },
    h("h2", { id: "tie" }, swatch(one), report.tie, report.healthy ? null : h("span", { class: "row", style: { display: "inline-flex", "margin-left": "0.6rem" } }, severityPill(report.findings))),
    h("p", null, `${report.meaning}.`),
    h("p", { class: "quiet small" }, `${report.architecture ?? "unknown architecture"} · ${report.format} · ${humanBytes(report.bytes)}`),
    h("dl", { class: "facts" },
      fact("Declared", declared, report.declared_by),
      fact("Stored", report.stored.length ? report.stored.join(" and ") : "neither", [report.embed, report.head].filter(Boolean).map((m) => `${m.name} ${m.shape.map(grouped).join(" × ")} ${m.dtype}`).join("; ")),
      fact("Equal", report.equal === null ? "–" : report.equal ? "yes" : "no", report.equal === null ? "one matrix: nothing to compare" : "values of the two matrices"),
      fact("Parameters", human(params.total), grouped(params.total))),
    report.tie === "none" ? null : h("div", null, shareBars(BigInt(params.trunk), BigInt(params.saved_by_tying)), h("p", { class: "note" }, `The LM head is ${percent(params.head_share)} of the untied model.`)),
    report.notes.map((note) => h("p", { class: "note" }, note)));
  const parts = [head, findings(report)];
  if (report.tie !== "none") parts.push(directPath(model), spectrum(model));
  parts.push(tensors(model));
  return parts;
}

// The worst severity and how many findings have it: "2 errors". Notes do not make a model unhealthy.
function severityPill(list) {
  const worst = ["error", "warning"].find((severity) => list.some((finding) => finding.severity === severity)) ?? "warning";
  const count = list.filter((finding) => finding.severity === worst).length;
  return h("span", { class: `pill ${worst}` }, `${count} ${worst}${count === 1 ? "" : "s"}`);
}

function findings(report) {
  return h("section", { class: "panel stack", "aria-labelledby": "doctor" }, h("h2", { id: "doctor" }, "Findings"),
    report.findings.length ? report.findings.map((finding) => h("article", null,
      h("h3", null, h("span", { class: `pill ${finding.severity}` }, `${finding.code} ${finding.severity}`)), h("p", null, h("strong", null, finding.title)),
      h("p", { class: "small mono" }, finding.evidence), h("p", { class: "small" }, prose(finding.cause)), h("p", { class: "small" }, h("strong", null, "Fix: "), prose(finding.fix)))) : h("p", null, "Healthy: no findings."),
    h("details", null, h("summary", null, "What each loader does"), scroller("Loaders", h("table", { class: "data words" },
      h("tbody", null, report.loaders.map((loader) => h("tr", null, [loader.loader, loader.outcome, loader.reason].map((value, i) => h(i ? "td" : "th", i ? null : { scope: "row" }, value === null ? "–" : prose(String(value)))))))))));
}

const shownToken = (token) => (token.text === null || token.text === undefined ? `#${token.id}` : token.text.replaceAll(" ", "␣").replaceAll("\n", "⏎"));

function directPath(model) {
  const id = freshId("text");
  const input = h("input", { id, type: "text", value: "New York City", autocomplete: "off", spellcheck: "false" });
  const out = h("div", { class: "stack", role: "status" });
  const norm = normSwitch(() => ask());
  const ask = async () => {
    const text = input.value;
    const query = /^[\d\s,]+$/.test(text) ? `ids=${encodeURIComponent(text)}` : `text=${encodeURIComponent(text)}`;
    out.replaceChildren(h("p", { class: "quiet" }, "Reading the matrices …"));
    try {
      const direct = await get(`api/models/${model.id}/direct?${query}&k=6&norm=${norm.value()}`);
      const near = await get(`api/models/${model.id}/neighbours?${query}&k=6`);
      out.replaceChildren(...pathAndNeighbours(direct, near));
    } catch (error) {
      out.replaceChildren(h("p", { class: "error" }, error.message));
    }
  };
  return h("section", { class: "panel stack", "aria-labelledby": "direct" }, h("h2", { id: "direct" }, "Direct path"),
    h("p", { class: "quiet small" }, "Logits of a model without layers: the dot product of a token’s embedding, through the final norm, with every row of the LM head. The same numbers as `tiebeam lens`."),
    norm.element,
    h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); ask(); } }, h("label", { for: id }, "Text, or token ids"), h("span", { style: { flex: "1 1 12rem" } }, input), h("button", { type: "submit", class: "first" }, "Show")), out);
}

function pathAndNeighbours(direct, near) {
  const names = direct.tokens.slice(0, direct.between.length).map(shownToken);
  const bars = (list, tone) => hbars(list.map((score) => ({ name: shownToken(score), value: score.score, label: signed(score.score, 3), tone })));
  return [
    grid(direct.between, { rows: names, columns: names, caption: "Direct-path logit of the column token after the row token", digits: 2 }).element,
    h("p", { class: "note" }, direct.tied ? (direct.norm ? "Tied: without the final norm this matrix would be symmetric." : "Tied: this matrix is symmetric, and its diagonal is never negative.") : "Untied: this matrix need not be symmetric."),
    ...direct.tokens.slice(0, 4).map((token, i) => h("div", null,
      h("h3", null, h("code", null, shownToken(token))),
      h("p", { class: "note" }, `Logit of the token after itself: ${signed(token.itself, 3)}${token.top[0]?.id === token.id ? ", the highest of all tokens" : ""}.`),
      h("div", { class: "columns" }, h("div", null, h("p", { class: "small" }, h("strong", null, "highest direct-path logits")), bars(token.top)),
        near.tokens[i] ? h("div", null, h("p", { class: "small" }, h("strong", null, near.tied ? "nearest rows (cosine)" : "nearest in the embedding")), bars(near.tokens[i].embed, "tied")) : null,
        near.tokens[i]?.head ? h("div", null, h("p", { class: "small" }, h("strong", null, "nearest in the LM head")), bars(near.tokens[i].head, "untied")) : null))),
  ];
}

// Whether the direct path includes the final norm. As in `tiebeam lens`, it does by default.
function normSwitch(changed) {
  let value = 1;
  const id = freshId("norm");
  const one = (text, given) => h("label", { class: "choice" }, h("input", { type: "radio", name: id, checked: given === value, onchange: () => { value = given; changed(); } }), h("span", null, text));
  return { element: h("fieldset", null, h("legend", { class: "visually-hidden" }, "Final norm"), h("div", { class: "choices" }, one("with the final norm", 1), one("without (--no-norm)", 0))), value: () => value };
}

function spectrum(model) {
  const out = h("div", { role: "status" });
  const norm = normSwitch(() => { if (out.firstChild) button.click(); });
  const button = h("button", { type: "button", onclick: async () => {
    button.disabled = true;
    out.replaceChildren(h("p", { class: "quiet" }, "Computing; a large matrix takes a minute …"));
    try {
      const found = await get(`api/models/${model.id}/spectrum?norm=${norm.value()}`);
      const points = found.values.map((x, i) => [i + 1, Math.log10(Math.max(x, 1e-9))]);
      const { antisymmetric, negative, rank } = found.energy;
      out.replaceChildren(
        curves([{ name: "direct path", tone: found.tied ? "tied" : "untied", points }], { xLabel: "index of singular value", yLabel: "log₁₀ value" }),
        h("p", { class: "note" }, `Rank ${grouped(rank)}. `, found.tied && !found.norm
          ? "Tied, so the direct path is E·Eᵀ: symmetric and positive semidefinite, with no antisymmetric part and no negative eigenvalues."
          : `${percent(antisymmetric)} of its energy is antisymmetric; ${percent(negative)} of the symmetric part’s energy is in negative eigenvalues. ${found.tied ? "The norm rescales each row, so the path of this tied model is not symmetric." : "A tied model can represent neither."}`));
    } catch (error) {
      out.replaceChildren(h("p", { class: "error" }, error.message));
    }
    button.disabled = false;
  } }, "Compute the spectrum");
  return h("section", { class: "panel stack", "aria-labelledby": "spectrum" }, h("h2", { id: "spectrum" }, "Spectrum"), h("p", { class: "quiet small" }, "Singular values of the direct path E·Wᵀ, and how much of it a tied model cannot represent. Reads both matrices once."), norm.element, h("div", null, button), out);
}

function tensors(model) {
  const body = h("tbody");
  const filter = h("input", { id: "filter", type: "text", autocomplete: "off", spellcheck: "false" });
  const more = h("p", { class: "note" });
  let all = null;
  const draw = () => {
    const wanted = all.filter((t) => t.name.toLowerCase().includes(filter.value.toLowerCase()));
    body.replaceChildren(...wanted.slice(0, 300).map((t) => h("tr", null, h("td", { class: "name" }, t.role ? h("strong", null, t.name, ` · ${t.role}`) : t.name), h("td", null, t.shape.map(grouped).join(" × ")), h("td", null, t.dtype), h("td", null, humanBytes(t.bytes)))));
    more.textContent = `${grouped(wanted.length)} of ${grouped(all.length)} tensors${wanted.length > 300 ? "; the first 300 are shown" : ""}.`;
  };
  filter.addEventListener("input", () => all && draw());
  const details = h("details", null, h("summary", null, "Show tensors"), h("div", { class: "stack play" }, h("div", { class: "field" }, h("label", { for: "filter" }, "Filter by name"), filter), more,
    scroller("Tensors", h("table", { class: "data" }, h("thead", null, h("tr", null, ["name", "shape", "type", "size"].map((name) => h("th", { scope: "col" }, name)))), body))));
  details.addEventListener("toggle", async () => {
    if (all || !details.open) return;
    try {
      ({ tensors: all } = await get(`api/models/${model.id}/tensors`));
      draw();
    } catch (error) {
      more.textContent = error.message;
    }
  });
  return h("section", { class: "panel stack", "aria-labelledby": "tensors" }, h("h2", { id: "tensors" }, "Tensors"), details);
}
